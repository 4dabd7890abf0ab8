"""BGPPeers and advertisements at a real API server: what their definitions let in, and what they say of the rest."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api_server import (
    ADDRESS_POOLS,
    BGP_ADVERTISEMENTS,
    BGP_PEERS,
    L2_ADVERTISEMENTS,
    ApiServer,
    administered,
    define_pools,
    needed,
    serving,
)
from tests.unit import kube_records as records
from tests.unit.kube_records import MERGE
from tests.unit.test_announcer_objects import CHOICE, LEAST, WRONG_ADVERTISEMENTS, WRONG_PEERS, bgp, l2, peer

pytestmark = needed
KINDS = {
    BGP_PEERS: "BGPPeer",
    BGP_ADVERTISEMENTS: "BGPAdvertisement",
    L2_ADVERTISEMENTS: "L2Advertisement",
    ADDRESS_POOLS: "AddressPool",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory.mktemp("api-server"), define_pools) as it:
        yield it


async def made(server: ApiServer, path: str, spec: Any) -> Any:
    """The spec as the server keeps it; the object is gone afterwards. Raises AssertionError with its refusal."""
    body = {"apiVersion": records.VERSION, "kind": KINDS[path], "metadata": {"name": "it"}, "spec": spec}
    async with administered(server) as admin:
        answer = await admin.ask("POST", path, body)
        await admin.ask("DELETE", f"{path}/it")
        return answer["spec"]


WHOLE_PEER = {
    **LEAST,
    "peerPort": 1179,
    "sourceAddress": "192.0.2.9",
    "routerID": "0.0.0.9",
    "holdTimeSeconds": 9,
    "keepaliveTimeSeconds": 3,
    "connectRetryTimeSeconds": 5,
    "ebgpMultiHop": True,
    "passwordSecret": {"name": "a.b", "key": "C_d"},
    "bfd": {"receiveIntervalMilliseconds": 50, "transmitIntervalMilliseconds": 60, "detectMultiplier": 5},
    "gracefulRestart": {"enabled": False, "restartTimeSeconds": 60},
    "families": ["IPv6"],
    "receive": ["::/0", "2001:db8::/32"],
    "nodeSelectors": [{"matchLabels": {"zone": "a"}}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
}
WHOLE_ADVERTISEMENT = {
    **CHOICE,
    "peers": ["a", "b"],
    "communities": ["64512:100", "1:2:4294967295", "no-export", "local-AS", "blackhole", "65535:65535"],
    "localPref": 4294967295,
    "aggregationLength": 32,
    "aggregationLengthV6": 128,
    "advertise": ["PodCIDR", "ClusterIP"],
}


@pytest.mark.parametrize(
    ("path", "spec", "read"),
    [
        pytest.param(BGP_PEERS, LEAST, peer, id="the least peer"),
        pytest.param(BGP_PEERS, WHOLE_PEER, peer, id="a whole peer"),
        pytest.param(BGP_PEERS, {**LEAST, "bfd": {}, "gracefulRestart": {}}, peer, id="BFD"),
        pytest.param(BGP_PEERS, {**LEAST, "holdTimeSeconds": 0, "keepaliveTimeSeconds": 0}, peer, id="for ever"),
        pytest.param(BGP_ADVERTISEMENTS, {}, bgp, id="all"),
        pytest.param(BGP_ADVERTISEMENTS, WHOLE_ADVERTISEMENT, bgp, id="a whole one"),
        pytest.param(BGP_ADVERTISEMENTS, {"aggregationLength": 24, "aggregationLengthV6": 64}, bgp, id="ranges"),
        pytest.param(L2_ADVERTISEMENTS, {}, l2, id="all, by ARP"),
        pytest.param(L2_ADVERTISEMENTS, {**CHOICE, "interfaces": ["eth0", "eth0.5"]}, l2, id="a whole one, by ARP"),
    ],
)
async def test_what_is_right_is_made_and_its_defaults_are_those_that_it_means(
    server: ApiServer, path: str, spec: Any, read: Any
) -> None:
    kept = await made(server, path, spec)
    assert kept.keys() >= spec.keys()
    assert read(**kept) == read(**spec)


@pytest.mark.parametrize(("spec", "error"), WRONG_PEERS.values(), ids=WRONG_PEERS)
async def test_the_server_refuses_every_peer_that_the_agent_would(server: ApiServer, spec: Any, error: str) -> None:
    await _refused(server, BGP_PEERS, {**LEAST, **spec}, error)


@pytest.mark.parametrize(("spec", "error"), WRONG_ADVERTISEMENTS.values(), ids=WRONG_ADVERTISEMENTS)
async def test_the_server_refuses_every_advertisement_that_the_agent_would(
    server: ApiServer, spec: Any, error: str
) -> None:
    await _refused(server, BGP_ADVERTISEMENTS, spec, error)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a:b", "sixteen-of-bytes"])
async def test_the_server_refuses_what_is_no_interface_s_name(server: ApiServer, name: str) -> None:
    await _refused(server, L2_ADVERTISEMENTS, {"interfaces": ["eth0", name]}, "spec.interfaces[1]: ")


@pytest.mark.parametrize("announce", [[], ["OSPF"], ["BGP", "BGP"]])
async def test_a_pool_is_announced_by_what_there_is(server: ApiServer, announce: list[str]) -> None:
    await _refused(server, ADDRESS_POOLS, {"addresses": ["192.0.2.0/24"], "announce": announce}, "spec.announce: ")


async def _refused(server: ApiServer, path: str, spec: Any, error: str) -> None:
    """With the field's name; an item's number only where the rule is the item's."""
    field = error.partition(":")[0].partition("[")[0].removesuffix(".matchExpressions")
    with pytest.raises(AssertionError) as refused:
        await made(server, path, spec)
    answer = refused.value.args[0]
    assert answer["code"] == 422, answer
    assert field in answer["message"], answer
    assert "no such" not in answer["message"], answer


async def test_statuses_are_written_apart_from_what_is_wanted(server: ApiServer) -> None:
    condition = {
        "type": "Accepted",
        "status": "False",
        "reason": "UnknownPool",
        "message": "m",
        "lastTransitionTime": "2024-05-06T07:08:09Z",
        "observedGeneration": 1,
    }
    specs = {BGP_PEERS: LEAST, ADDRESS_POOLS: {"addresses": ["2001:db8::/64"]}}
    async with administered(server) as admin:
        for path, kind in KINDS.items():
            body = {"apiVersion": records.VERSION, "kind": kind, "metadata": {"name": "told"}}
            body["spec"] = specs.get(path, {})
            await admin.ask("POST", path, {**body, "status": {"conditions": [condition]}})
            assert "status" not in await admin.ask("GET", f"{path}/told")
            patch = {"status": {"conditions": [condition]}, "spec": {"peerASN": 0, "addresses": []}}
            answer = await admin.ask("PATCH", f"{path}/told/status", patch, MERGE)
            assert answer["status"] == {"conditions": [condition]}
            assert answer["metadata"]["generation"] == 1
        counted = {"ipv6": {"total": str(1 << 64), "assigned": 1, "available": str((1 << 64) - 1)}}
        answer = await admin.ask("PATCH", f"{ADDRESS_POOLS}/told/status", {"status": counted}, MERGE)
        assert answer["status"] == {"conditions": [condition], **counted}
        await asyncio.gather(*(admin.ask("DELETE", f"{path}/told") for path in KINDS))
