"""PodPools and PodBlocks at a real API server: what their definitions let in, and what they say of the rest."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from podwire.sources.kube_credentials import Credentials
from tests.cluster.api_server import GUARD, ApiServer, define_pools, needed, serving
from tests.unit import kube_records as records
from tests.unit.kube_records import Answer

pytestmark = needed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory.mktemp("api-server"), define_pools) as it:
        yield it


@asynccontextmanager
async def asking(server: ApiServer) -> AsyncIterator[Any]:
    access = server.access()
    tls = (await Credentials(access).current()).tls
    async with asyncio.timeout(GUARD), aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: Any, kind: str) -> Answer:
            data = body if isinstance(body, bytes) else json.dumps(body) if body is not None else None
            headers = {"Content-Type": kind}
            async with session.request(method, access.servers[0] + path, data=data, headers=headers, ssl=tls) as got:
                return Answer(got.status, await got.json())

        yield ask


async def made(server: ApiServer, path: str, kind: str, metadata: Any, spec: Any) -> Answer:
    """What the server says of an object; it is gone afterwards."""
    body = {"apiVersion": records.VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    async with asking(server) as ask:
        answer: Answer = await ask("POST", path, body, "application/json")
        if answer.status == 201:
            await ask("DELETE", f"{path}/{metadata['name']}", {}, "application/json")
        return answer


# --- PodPool -------------------------------------------------------------------------------------

BOTH = ["10.1.0.0/16", "fd00:10::/56"]


RIGHT: dict[str, Any] = {
    "the least": {"cidrs": ["10.1.0.0/16"]},
    "reserved": {"cidrs": BOTH, "reserved": ["10.1.3.0/24", "10.1.4.1-10.1.4.9", "fd00:10::5-fd00:10::9"]},
    "one block": {"cidrs": ["10.1.0.0/26"], "blockSizes": {"ipv4": 26}},
    "the most": {
        "cidrs": [f"10.{number}.0.0/16" for number in range(16)],
        "reserved": [f"10.1.{number}.0/24" for number in range(64)],
    },
    "for some nodes": {
        "cidrs": BOTH,
        "autoAssign": False,
        "nodeSelector": {
            "matchLabels": {"zone": "a"},
            "matchExpressions": [
                {"key": "kind", "operator": "In", "values": ["x"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        },
    },
}


@pytest.mark.parametrize("spec", RIGHT.values(), ids=RIGHT)
async def test_a_pool_that_is_right_is_made(server: ApiServer, spec: Any) -> None:
    answer = await made(server, records.POOLS, "PodPool", {"name": "pods"}, spec)
    assert answer.status == 201, answer.body
    assert answer.body["spec"] == records.pool("pods", **spec)["spec"]


def _selecting(**expression: Any) -> Any:
    return {"cidrs": BOTH, "nodeSelector": {"matchExpressions": [{"key": "a", **expression}]}}


WRONG: dict[str, tuple[Any, str]] = {
    "no ranges": ({}, "spec.cidrs: Required value"),
    "an empty list": ({"cidrs": []}, "spec.cidrs in body should have at least 1 items"),
    "an address": ({"cidrs": ["10.1.0.0"]}, 'spec.cidrs[0]: Invalid value: "10.1.0.0": expected an address range'),
    "host bits": ({"cidrs": ["10.1.0.1/16"]}, "without host bits, such as 10.1.0.0/16"),
    "overlap": ({"cidrs": ["10.1.0.0/16", "10.1.2.0/24"]}, "spec.cidrs: Invalid value: expected ranges that"),
    "twice": ({"cidrs": ["10.1.0.0/16"] * 2}, "expected ranges that don't overlap"),
    "less than a block": ({"cidrs": ["10.1.0.0/27"]}, "expected cidrs that hold a block of blockSizes"),
    "less than a block of IPv6": ({"cidrs": ["fd00::/123"]}, "expected cidrs that hold a block of blockSizes"),
    "blocks too small": (
        {"cidrs": BOTH, "blockSizes": {"ipv4": 31}},
        "spec.blockSizes.ipv4 in body should be less than or equal to 30",
    ),
    "reserved elsewhere": ({"cidrs": BOTH, "reserved": ["10.2.0.0/24"]}, "expected ranges within one of cidrs"),
    "reserved beyond the end": (
        {"cidrs": BOTH, "reserved": ["10.1.255.0-10.2.0.9"]},
        "expected ranges within one of cidrs",
    ),
    "an address reserved": (
        {"cidrs": BOTH, "reserved": ["10.1.3.7"]},
        "expected a range such as 10.1.3.0/24 or 10.1.3.0-10.1.3.9",
    ),
    "two families": ({"cidrs": BOTH, "reserved": ["10.1.3.7-fd00:10::9"]}, "expected a range such as"),
    "In nothing": (_selecting(operator="In"), "expected values for In and NotIn"),
    "Exists with values": (_selecting(operator="Exists", values=["b"]), "none for Exists and DoesNotExist"),
    "an unknown operator": (_selecting(operator="Like"), "Unsupported value"),
}


@pytest.mark.parametrize(("spec", "says"), WRONG.values(), ids=WRONG)
async def test_a_pool_that_is_wrong_is_refused_with_the_right_form(server: ApiServer, spec: Any, says: str) -> None:
    answer = await made(server, records.POOLS, "PodPool", {"name": "pods"}, spec)
    assert answer.status == 422, answer.body
    assert says in answer.body["message"]
    assert "no such overload" not in answer.body["message"]


async def test_a_pool_grows_and_its_blocks_keep_their_size(server: ApiServer) -> None:
    name = f"{records.POOLS}/grows"
    body = {
        "apiVersion": records.VERSION,
        "kind": "PodPool",
        "metadata": {"name": "grows"},
        "spec": {"cidrs": BOTH[:1]},
    }
    async with asking(server) as ask:
        assert (await ask("POST", records.POOLS, body, "application/json")).status == 201
        grown = await ask("PATCH", name, {"spec": {"cidrs": BOTH}}, records.MERGE)
        assert (grown.status, grown.body["spec"]["cidrs"]) == (200, BOTH)
        refused = await ask("PATCH", name, {"spec": {"blockSizes": {"ipv4": 25}}}, records.MERGE)
        says = "can't be changed, since nodes have blocks"
        assert refused.status == 422
        assert says in refused.body["message"]


# --- PodBlock ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cidr", ["10.1.0.64/26", "10.1.3.4/32", "fd00:10::40/122", "fd00:10::7/128", "fd00::/64"])
async def test_a_block_that_is_right_is_made(server: ApiServer, cidr: str) -> None:
    block = records.block(cidr, "one", uid="12345678-0000-0000-0000-000000000000")
    answer = await made(server, records.BLOCKS, "PodBlock", block["metadata"], block["spec"])
    assert answer.status == 201, answer.body
    assert answer.body["spec"] == block["spec"]


@pytest.mark.parametrize(
    ("name", "cidr"),
    [
        ("10.1.0.0-26", "10.1.0.64/26"),
        ("10.1.0.64-27", "10.1.0.64/26"),
        ("fd00-10--40-122", "fd00:10::40/122"),
        ("fd00-0010-0000-0000-0000-0000-0000-0040-0122", "fd00:10::40/122"),
        ("fd00-0010-0000-0000-0000-0000-0000-0080-122", "fd00:10::40/122"),
        ("fd00-0010-0000-0000-0000-0000-0040-122", "fd00:10::40/122"),
        ("a", "fd00:10::40/122"),
    ],
)
async def test_a_block_has_one_name_only(server: ApiServer, name: str, cidr: str) -> None:
    """Else two nodes could have it."""
    spec = {"cidr": cidr, "pool": "pods", "node": "one"}
    answer = await made(server, records.BLOCKS, "PodBlock", {"name": name}, spec)
    assert answer.status == 422, answer.body
    assert "metadata.name must be that of spec.cidr, such as 10.1.0.64-26" in answer.body["message"]


@pytest.mark.parametrize(
    "cidr", ["10.1.0.65/26", "10.1.0.64", "fd00:10:0::40/122", "FD00:10::40/122", "::ffff:10.1.0.64/122"]
)
async def test_a_block_s_range_has_one_form_only(server: ApiServer, cidr: str) -> None:
    spec = {"cidr": cidr, "pool": "pods", "node": "one"}
    answer = await made(server, records.BLOCKS, "PodBlock", {"name": "10.1.0.64-26"}, spec)
    assert answer.status == 422, answer.body
    assert 'spec.cidr: Invalid value: "string": expected an address range in its shortest form' in answer.body[
        "message"
    ].replace(f'"{cidr}"', '"string"')


async def test_blocks_are_found_by_their_node(server: ApiServer) -> None:
    async with asking(server) as ask:
        for number, node in enumerate(("one", "two", "one")):
            body = {
                "apiVersion": records.VERSION,
                "kind": "PodBlock",
                **records.block(f"10.7.0.{64 * number}/26", node),
            }
            assert (await ask("POST", records.BLOCKS, body, "application/json")).status == 201
        found = await ask("GET", f"{records.BLOCKS}?fieldSelector=spec.node%3Done", None, "application/json")
        assert [it["spec"]["cidr"] for it in found.body["items"]] == ["10.7.0.0/26", "10.7.0.128/26"]


@pytest.mark.parametrize("case", records.CONTRACT)
async def test_single_objects_are_kept_as_the_fake_server_keeps_them(server: ApiServer, case: str) -> None:
    async with asking(server) as ask:
        await records.keeps(ask, records.CONTRACT[case])
