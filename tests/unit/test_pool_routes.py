"""Ways to other nodes' blocks of pools, and where a node's pods live: as of pod CIDRs, but for single addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.explain import places
from podwire.findings import findings
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import (
    TUNNEL_INDEX,
    AddressKey,
    ClusterRangeKey,
    ForwardKey,
    NeighbourKey,
    Route,
    RouteKey,
    UnmasqueradedKey,
)
from podwire.model.objects import Node, NodeKey, PodBlock, PodPoolKey, Protocol, Service, ServiceKey, ServicePort
from podwire.model.snapshot import EVERYTHING, Local, Snapshot, Transport
from podwire.nodes import outside, routes
from podwire.nodes.tunnels import mac_of
from podwire.services import frontends
from tests.unit.test_claims import ONE, TWO, block, known, pods, pool

LINK = frozenset((parse_prefix("192.0.2.0/24"),))
HERE, THERE = parse_address("192.0.2.1"), parse_address("192.0.2.2")
LOCAL = Local("one", 1500, addresses=frozenset((HERE,)), networks=LINK, network_mtu=1500)
WORLD: dict[ObjectKey, Object] = {
    ONE: Node((), (HERE,)),
    TWO: Node((), (THERE,)),
    PodPoolKey("all"): pool("10.1.0.0/24", reserved=("10.1.0.2-10.1.0.5",)),
    block("10.1.0.0/26"): PodBlock("one", "all"),
    block("10.1.0.64/26"): PodBlock("two", "all"),
}


CONTESTED = (
    "podblock/10.1.0.0/26: no address is given of it: another node has a part of it, or it is a part of another node's"
)


def world(*theirs: str, held: tuple[str, ...] = (), local: Local = LOCAL) -> Snapshot:
    return known(WORLD | {block(text): PodBlock("two", "all") for text in theirs}, pods(*held), local)


def ways(now: Snapshot) -> dict[str, str]:
    linux = routes.desired(now, EVERYTHING)["linux"]
    return {str(key.destination): it for key, it in linux.items() if isinstance(key, RouteKey)}


@pytest.mark.parametrize(
    ("theirs", "held", "routed", "told"),
    [
        pytest.param((), (), {"10.1.0.64/26"}, [], id="another node's block"),
        pytest.param(
            ("10.1.0.3/32",), (), {"10.1.0.64/26", "10.1.0.3/32"}, [], id="its fixed address in this node's block",
        ),
        pytest.param(
            ("10.1.0.3/32",), ("10.1.0.3",), {"10.1.0.64/26"},
            ["node/two: there is no route to its block 10.1.0.3/32: a pod of this node lies in it",
             "pod/default/p0: its address 10.1.0.3 is in the block 10.1.0.3/32 of node/two: start it anew"],
            id="a fixed address that a pod of this node has",
        ),
        pytest.param(
            ("10.1.0.16/28",), (), {"10.1.0.64/26"},
            ["node/two: there is no route to its block 10.1.0.16/28: part of this node's block 10.1.0.0/26 lies in it",
             CONTESTED],
            id="a part of this node's block",
        ),
        pytest.param(
            ("10.1.0.0/25",), (), {"10.1.0.64/26", "10.1.0.0/25"},
            ["node/two: its block 10.1.0.0/25 overlaps this node's 10.1.0.0/26: two pods may have one address",
             CONTESTED],
            id="a block around it",
        ),
    ],
)  # fmt: skip
def test_ways_to_blocks(theirs: tuple[str, ...], held: tuple[str, ...], routed: set[str], told: list[str]) -> None:
    now = world(*theirs, held=held)
    assert ways(now) == dict.fromkeys(routed, Route(0, via=THERE, source=HERE))
    assert [line for line in findings(now) if "run short" not in line] == told


def test_a_block_of_a_node_that_nobody_knows_leads_nowhere_yet() -> None:
    now = known(WORLD | {block("10.1.0.128/26"): PodBlock("new", "all")}, local=LOCAL)
    assert set(ways(now)) == {"10.1.0.64/26"}
    assert findings(now) == ()
    now, _ = fold(now, e.KubeStateChange(((NodeKey("new"), Node((), (parse_address("192.0.2.3"),))),)))
    assert set(ways(now)) == {"10.1.0.64/26", "10.1.0.128/26"}


def test_by_vxlan_each_block_has_a_next_hop_and_the_device_the_node_s_one_address() -> None:
    now = world("10.1.0.3/32", local=replace(LOCAL, transport=Transport.VXLAN))
    linux = routes.desired(now, EVERYTHING)["linux"]
    (index,) = {key.index for key in linux if isinstance(key, ForwardKey)}
    assert index in TUNNEL_INDEX.values()
    own = parse_address("10.1.0.1")
    hops = {"10.1.0.64/26": parse_address("10.1.0.64"), "10.1.0.3/32": parse_address("10.1.0.3")}
    for text, hop in hops.items():
        assert linux[RouteKey("", parse_prefix(text))] == Route(index, via=hop, source=own, onlink=True)
        assert linux[NeighbourKey("", index, hop)] == mac_of("two")
    assert [key.address for key in linux if isinstance(key, AddressKey)] == [own]


def test_pods_see_each_other_s_addresses_and_the_pool_is_the_cluster_s() -> None:
    now = world("10.1.0.3/32")
    kept = {key.first for key in outside.desired(now, EVERYTHING)["nftables"] if isinstance(key, UnmasqueradedKey)}
    assert kept == {parse_address(text) for text in ("10.1.0.0", "10.1.0.64", "192.0.2.1", "192.0.2.2")}
    tables = frontends.desired(now, EVERYTHING)["nftables"]
    ranges = [(key.first, key.last) for key in tables if isinstance(key, ClusterRangeKey)]
    assert ranges == [(parse_address("10.1.0.0"), parse_address("10.1.0.255"))]
    more, _ = fold(now, e.KubeStateChange(((block("10.1.0.128/26"), PodBlock("two", "all")),)))
    assert frontends.desired(more, EVERYTHING)["nftables"] == tables


def test_a_service_has_no_address_of_a_block_and_says_whose_it_is() -> None:
    key = ServiceKey("default", "web")
    web = Service((ServicePort("p", Protocol.TCP, 80),), (parse_address("10.1.0.70"),))
    now, _ = fold(world(), e.KubeStateChange(((key, web),)))
    assert [line for line in findings(now) if line.startswith("service")] == [
        "service/default/web: 10.1.0.70 is not used: it is in the block 10.1.0.64/26 of node/two"
    ]
    after, touched = fold(now, e.KubeStateChange(((block("10.1.0.64/26"), None),)))
    assert touched is not None
    assert touched.services == {key}
    assert not after.misplaced


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("10.1.0.9", "an address of this node's pods that no pod has"),
        ("10.1.0.70", "a pod of node two, by way of 192.0.2.2"),
        ("10.1.0.3", "a pod of node two, by way of 192.0.2.2"),
        ("10.1.0.200", "an address of pool all, in a block that no node has"),
        ("10.1.0.1", "this node itself"),
    ],
)
def test_explain_knows_where_an_address_of_a_pool_is(address: str, where: str) -> None:
    assert places.where(places.places(world("10.1.0.3/32")), parse_address(address)) == where


few = st.lists(
    st.tuples(
        st.sampled_from(("10.1.0.0/26", "10.1.0.64/26", "10.1.0.64/27", "10.1.0.0/25", "10.1.0.3/32", "10.1.0.70/32")),
        st.sampled_from((None, "one", "two", "three")),
    ),
    max_size=9,
)


@given(few)
def test_whatever_the_way_the_same_blocks_give_the_same_network(way: list[tuple[str, str | None]]) -> None:
    """By single events as by one list; and what others have is where packets go, this node's own never leaves."""
    three = {NodeKey("three"): Node((), (parse_address("192.0.2.3"),))}
    now = known(WORLD | three, local=LOCAL)
    for text, owner in way:
        now, _ = fold(now, e.KubeStateChange(((block(text), PodBlock(owner, "all") if owner else None),)))
    objects: dict[ObjectKey, Object] = {**now.nodes, **now.pools, **now.blocks}
    anew = known(objects, local=LOCAL)
    assert ways(now) == ways(anew)
    assert (now.homes, now.contested, now.blocks_of) == (anew.homes, anew.contested, anew.blocks_of)
    assert findings(now) == findings(anew)
    for number in range(256):
        address = parse_prefix("10.1.0.0/24").nth(number)
        assert now.is_pods(address) == any(address in cidr for cidr in now.pod_ranges)
    mine = now.blocks_of.get(ONE, ())
    for text in ways(now):
        assert parse_prefix(text) not in mine
