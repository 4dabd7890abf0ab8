"""How other nodes are reached: the same for the same nodes and networks, in whatever order they came to be known."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire import views
from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.controller.transaction import Transaction
from podwire.dataplane.linux import render
from podwire.explain.packets import explain_packet, parse_destination
from podwire.findings import findings
from podwire.model.addresses import IPV4, IPV6, Address, Prefix, parse_address, parse_prefix, prefix_around
from podwire.model.network import (
    TUNNEL_INDEX,
    AddressKey,
    ForwardKey,
    NeighbourKey,
    Route,
    RouteKey,
    Tunnel,
    TunnelEndKey,
    TunnelKey,
    TunnelPortKey,
    UpKey,
)
from podwire.model.objects import AttachmentKey, Node, NodeKey, PodBlock, PodBlockKey, PodKey
from podwire.model.snapshot import EVERYTHING, Local, Snapshot, Transport
from podwire.nodes import ends, routes
from podwire.nodes.tunnels import mac_of, next_hop
from tests.unit import world

ONE, TWO = NodeKey("one"), NodeKey("two")
LINK = frozenset(map(parse_prefix, ("192.0.2.0/24", "fd99::/64")))
HERE = parse_address("192.0.2.1"), parse_address("fd99::1")
LOCAL = Local("one", 1500, addresses=frozenset(HERE), networks=LINK, network_mtu=1500)
BLOCKS = parse_prefix("10.1.1.0/24"), parse_prefix("fd01::/64")


def node(*words: str) -> Node:
    """Blocks, with a slash, and addresses."""
    blocks = tuple(parse_prefix(word) for word in words if "/" in word)
    return Node(blocks, tuple(parse_address(word) for word in words if "/" not in word))


def told(local: Local, nodes: Iterable[tuple[NodeKey, Node | None]], here: Node | None = None) -> Snapshot:
    here = here or Node(BLOCKS, HERE)
    return fold(Snapshot(local, whole=True), e.KubeStateChange(((ONE, here), *nodes)))[0]


def linux(now: Snapshot) -> dict[Any, Any]:
    return routes.desired(now, EVERYTHING)["linux"]


@given(st.lists(st.one_of(world.kube_changes, world.address_events, world.pod_events), max_size=12))
def test_ways_are_those_of_the_snapshot_that_is_asked_for_whatever_was_asked_for_before(events: list[e.Event]) -> None:
    """Also where no part of it but those that they are said to follow from is another one."""
    seen = [world.start()]
    for event in events:
        with suppress(e.Refused):
            seen.append(fold(seen[-1], event)[0])
    for now in (*seen, *reversed(seen)):
        assert routes.ways(now) == tuple(routes._each(now))


def test_the_way_to_a_single_address_ends_when_a_pod_of_this_node_has_it() -> None:
    now = told(LOCAL, [(TWO, node("10.9.0.9/32", "192.0.2.2"))])
    single = parse_prefix("10.9.0.9/32")
    assert routes.ways(now) == ((TWO, single, routes.Way(parse_address("192.0.2.2"))),)
    now = replace(now, ledger=now.ledger.set(single.first, AttachmentKey("s1", "eth0")))
    assert routes.ways(now) == ((TWO, single, "a pod of this node lies in it"),)


# --- which way ---------------------------------------------------------------------------------


NEAR4, NEAR6, FAR4, FAR6 = "192.0.2.2", "fd99::2", "198.51.100.2", "fd98::2"
NO_LINK = "is on no link of this node, and transport is direct"


@pytest.mark.parametrize(
    ("transport", "other", "ipv4", "ipv6"),
    [
        pytest.param("auto", [NEAR4, NEAR6], NEAR4, NEAR6, id="on the link"),
        pytest.param("auto", [FAR4, FAR6], f"vxlan {FAR4}", f"vxlan {FAR4}", id="on another"),
        pytest.param("auto", [NEAR4, FAR6], NEAR4, f"vxlan {NEAR4}", id="on the link by one family"),
        pytest.param("auto", [FAR4, NEAR6], f"vxlan {FAR4}", NEAR6, id="by the other"),
        pytest.param("auto", [NEAR4], NEAR4, f"vxlan {NEAR4}", id="of one family"),
        pytest.param("auto", [NEAR6], f"vxlan {NEAR6}", NEAR6, id="of the other"),
        pytest.param("auto", [FAR6], f"vxlan {FAR6}", f"vxlan {FAR6}", id="of the other, on another link"),
        pytest.param("auto", [FAR4, NEAR4], f"vxlan {FAR4}", f"vxlan {FAR4}", id="the first address counts"),
        pytest.param("vxlan", [NEAR4, NEAR6], f"vxlan {NEAR4}", f"vxlan {NEAR4}", id="always"),
        pytest.param("direct", [NEAR4, NEAR6], NEAR4, NEAR6, id="never"),
        pytest.param(
            "direct",
            [FAR4],
            f"the node's address {FAR4} {NO_LINK}",
            "the node has no IPv6 address to route to",
            id="never, on another link",
        ),
        pytest.param("auto", [], *(f"the node has no {it} address to route to" for it in ("IPv4", "IPv6")), id="none"),
        pytest.param("auto", ["10.1.2.9"], *["the node's own address 10.1.2.9 lies in it"] * 2, id="in its own block"),
        pytest.param(
            "auto",
            ["10.1.3.9"],
            *["the node's address 10.1.3.9 lies in the pod CIDR 10.1.3.0/24 of node/three"] * 2,
            id="in another's block",
        ),
    ],
)
def test_the_way_to_a_node(transport: str, other: list[str], ipv4: str, ipv6: str) -> None:
    local = replace(LOCAL, transport=Transport(transport))
    others = ((TWO, node("10.1.2.0/24", "fd02::/64", *other)), (NodeKey("three"), node("10.1.3.0/24")))
    now = told(local, others)
    found = {block.family: way for key, block, way in routes.ways(now) if key == TWO}

    def in_words(way: routes.Way | str) -> str:
        if isinstance(way, str):
            return way
        gateway = next(word for word in other if parse_address(word) == way.address)
        return f"vxlan {gateway}" if way.vxlan else gateway

    assert {family: in_words(way) for family, way in found.items()} == {IPV4: ipv4, IPV6: ipv6}


@pytest.mark.parametrize(
    ("local", "here", "why"),
    [
        pytest.param(
            replace(LOCAL, addresses=frozenset(HERE[1:]), networks=frozenset((parse_prefix("fd99::/64"),))),
            HERE,
            "this node's own address 192.0.2.1 is on none of its interfaces",
            id="its own address has never been there",
        ),
        pytest.param(
            LOCAL, HERE[1:], "the node and this one have no addresses of one family", id="of no common family"
        ),
        pytest.param(
            replace(LOCAL, mtu=0, network_mtu=0),
            HERE,
            "the MTU of this node is not known: no default route, and no mtu set",
            id="no MTU",
        ),
    ],
)
def test_without_what_vxlan_needs_there_is_no_way_and_that_is_told(local: Local, here: Any, why: str) -> None:
    now = told(local, ((TWO, node("10.1.2.0/24", FAR4)),), Node(BLOCKS, tuple(here)))
    assert linux(now) == {}
    assert findings(now) == (f"node/two: there is no route to its pod CIDR 10.1.2.0/24: {why}",)


def test_ipv6_needs_room_that_vxlan_may_not_leave() -> None:
    now = told(replace(LOCAL, network_mtu=1320), ((TWO, node("10.1.2.0/24", "fd02::/64", FAR4)),))
    assert [key.destination for key in linux(now) if isinstance(key, RouteKey)] == [parse_prefix("10.1.2.0/24")]
    (said,) = findings(now)
    assert said.endswith("fd02::/64: VXLAN leaves an MTU of 1270, and IPv6 needs 1280")


def test_all_that_vxlan_takes_for_one_node() -> None:
    now, index = told(LOCAL, ((TWO, node("10.1.2.0/24", "fd02::/64", FAR4)),)), TUNNEL_INDEX[IPV4]
    mac, hop = mac_of("two"), next_hop(parse_prefix("fd02::/64"), mac_of("two"))
    four, six = parse_address("10.1.1.1"), parse_address("fd01::1")
    assert hop[:8] + hop[11:13] == parse_address("fe80::")[:8] + b"\xff\xfe"
    assert linux(now) == {
        TunnelKey(IPV4): Tunnel(index, 28791, 4789, mac_of("one"), 1450, HERE[0]),
        UpKey("", index): True,
        AddressKey("", index, four): True,
        AddressKey("", index, six): True,
        ForwardKey(index, mac): parse_address(FAR4),
        NeighbourKey("", index, parse_address("10.1.2.0")): mac,
        NeighbourKey("", index, hop): mac,
        RouteKey("", parse_prefix("10.1.2.0/24")): Route(index, parse_address("10.1.2.0"), four, onlink=True),
        RouteKey("", parse_prefix("fd02::/64")): Route(index, hop, six),
    }


@pytest.mark.parametrize(
    ("local", "others", "guarded"),
    [
        pytest.param({}, [[NEAR4, NEAR6]], "", id="no device, no end"),
        pytest.param({}, [[FAR4, FAR6], [NEAR4]], f"{FAR4} 192.0.2.1 4789", id="those on the link are none"),
        pytest.param({}, [[FAR4, "198.51.100.9"]], f"{FAR4} 192.0.2.1 4789", id="the first address"),
        pytest.param({}, [[FAR6]], f"{FAR6} fd99::1 4789/6", id="over IPv6"),
        pytest.param({}, [[FAR4], ["fd98::3"]], f"{FAR4} fd98::3 192.0.2.1 fd99::1 4789 4789/6", id="over both"),
        pytest.param({"transport": Transport.VXLAN}, [[NEAR4]], f"{NEAR4} 192.0.2.1 4789", id="all by VXLAN"),
        pytest.param({"transport": Transport.DIRECT}, [[FAR4]], "", id="never by VXLAN"),
        pytest.param({"vxlan_port": 8472}, [[FAR4]], f"{FAR4} 192.0.2.1 8472", id="another port"),
    ],
)
def test_the_ends_of_tunnels_are_those_of_the_routes(
    local: dict[str, Any], others: list[list[str]], guarded: str
) -> None:
    known = [(NodeKey(f"node{n}"), node(f"10.1.{n}.0/24", *it)) for n, it in enumerate(others, 2)]
    now = told(replace(LOCAL, **local), known)
    wanted: set[Any] = set()
    for word in guarded.split():
        port, _, six = word.partition("/")
        of = TunnelPortKey(IPV6 if six else IPV4, int(port)) if port.isdigit() else None
        wanted.add(of or TunnelEndKey(parse_address(word)))
    assert ends.desired(now, EVERYTHING)["nftables"] == dict.fromkeys(wanted, True)
    tunnels = {key.family for key in linux(now) if isinstance(key, TunnelKey)}
    assert tunnels == {it.family for it in wanted if isinstance(it, TunnelPortKey)}


def test_of_two_blocks_with_one_beginning_the_first_node_s_is_reached() -> None:
    """The next hop is called by a block's first address."""
    others = ((TWO, node("10.2.0.0/24", FAR4)), (NodeKey("three"), node("10.2.0.0/16", "198.51.100.3")))
    assert findings(told(LOCAL, others)) == (
        "node/two: there is no route to its pod CIDR 10.2.0.0/24: one of node three's begins with the same address",
    )


# --- room --------------------------------------------------------------------------------------


def mtus(*held: int) -> frozenset[tuple[Address, int]]:
    """Of the interfaces with the node's addresses, 0: it is away."""
    return frozenset((address, mtu) for address, mtu in zip(HERE, held, strict=True) if mtu)


@pytest.mark.parametrize(
    ("local", "others", "mtu"),
    [
        pytest.param({}, [], 1500, id="alone"),
        pytest.param({}, [NEAR4], 1500, id="on the link"),
        pytest.param({}, [FAR4], 1450, id="by VXLAN over IPv4"),
        pytest.param({}, [FAR6], 1430, id="over IPv6"),
        pytest.param({"transport": Transport.VXLAN}, [], 1450, id="by VXLAN, once there is another"),
        pytest.param({"transport": Transport.DIRECT}, [FAR4], 1500, id="never by VXLAN"),
        pytest.param({"fixed_mtu": True, "mtu": 1400}, [FAR4], 1400, id="as somebody says"),
        pytest.param({"fixed_mtu": True, "mtu": 1500}, [FAR4], 1500, id="even if that is too much"),
        pytest.param({"mtu": 0, "network_mtu": 0}, [], 0, id="not known"),
        pytest.param({"last_mtu": 1450}, [], 1500, id="others have gone"),
        pytest.param({"mtus": mtus(9000, 9000)}, [], 9000, id="its own interface has more"),
        pytest.param({"mtus": mtus(1400, 9000)}, [NEAR4], 1400, id="of two interfaces the least"),
        pytest.param({"mtus": mtus(9000, 1400)}, [FAR4], 1400, id="also where VXLAN has room"),
        pytest.param({"mtus": mtus(9000, 9000)}, [FAR4], 8950, id="by VXLAN over IPv4, of its own interface"),
        pytest.param({"mtus": mtus(0, 4000)}, [], 4000, id="one of two addresses is away"),
        pytest.param({"mtus": mtus(0, 0), "mtu": 0}, [], 0, id="both are away, and nobody knows"),
        pytest.param({"mtus": mtus(0, 0), "mtu": 0, "last_mtu": 1300}, [], 1300, id="both are away, and pods had one"),
        pytest.param(
            {"mtus": mtus(0, 0), "mtu": 1400, "fixed_mtu": True}, [], 1400, id="both are away, and one is set"
        ),
    ],
)
def test_the_mtu_of_pods(local: dict[str, Any], others: list[str], mtu: int) -> None:
    blocks = ("10.1.2.0/24",)
    now = told(replace(LOCAL, **local), ((TWO, node(*blocks, it)) for it in others))
    assert now.pod_mtu == mtu


def test_what_an_interface_had_is_remembered_while_its_address_is_away() -> None:
    """And no longer than that: another interface may have it when it is back."""
    now = told(replace(LOCAL, mtus=mtus(9000, 9000)), ((TWO, node("10.1.2.0/24", FAR4)),))
    key = AttachmentKey("s", "eth0")
    now, _ = fold(now, e.AddPod(key, PodKey("default", "a"), "/run/netns/a"))
    for has, mtu in ((mtus(0, 0), 8950), (mtus(1400, 0), 1350), (mtus(1400, 1300), 1300), (mtus(0, 1300), 1300)):
        before = now.pod_mtu
        now, touched = fold(now, e.NodeAddressesChanged(frozenset(it for it, _ in has), LINK, has))
        assert now.pod_mtu == mtu
        assert touched is not None
        assert mtu == before or key in touched.attachments


def test_a_device_follows_its_own_family_s_interface() -> None:
    """Though pods keep theirs, as where somebody has set it."""
    fixed = replace(LOCAL, mtus=mtus(1500, 1500), mtu=1300, fixed_mtu=True)
    now = told(fixed, ((TWO, node("10.1.2.0/24", FAR4)),))
    now, touched = fold(now, e.NodeAddressesChanged(frozenset(HERE), LINK, mtus(1400, 1500)))
    assert touched is not None
    assert (touched.nodes, touched.attachments) == ({ONE}, set())
    assert [it.mtu for it in linux(now).values() if isinstance(it, Tunnel)] == [1350]


def test_until_all_nodes_are_known_pods_keep_the_mtu_that_they_had() -> None:
    now = Snapshot(replace(LOCAL, last_mtu=1450))
    now, _ = fold(now, e.KubeStateChange(((ONE, Node(BLOCKS, HERE)),)))
    assert now.pod_mtu == 1450
    known = {ONE: Node(BLOCKS, HERE)}
    now, _ = fold(now, e.Resync(e.ResyncReason.STARTUP, known))
    assert now.pod_mtu == 1500


def test_pods_are_wired_anew_when_another_node_takes_room_of_theirs() -> None:
    key = AttachmentKey("s", "eth0")
    now = told(LOCAL, ())
    now, _ = fold(now, e.AddPod(key, PodKey("default", "a"), "/run/netns/a"))
    now, touched = fold(now, e.KubeStateChange(((TWO, node("10.1.2.0/24", NEAR4)),)))
    assert touched is not None
    assert touched.attachments == frozenset()
    now, touched = fold(now, e.KubeStateChange(((TWO, node("10.1.2.0/24", FAR4)),)))
    assert touched is not None
    assert touched.attachments == {key}
    now, touched = fold(now, e.NodeAddressesChanged(frozenset(HERE), frozenset((parse_prefix("0.0.0.0/0"),))))
    assert touched is not None
    assert touched.attachments == {key}
    assert now.pod_mtu == 1500


# --- in whatever order -------------------------------------------------------------------------


addresses = st.sampled_from((NEAR4, NEAR6, FAR4, FAR6, "192.0.2.3", "198.51.100.3", "10.1.2.9", "192.0.2.1", "fd99::1"))
blocks = st.sampled_from(("10.1.2.0/24", "10.1.3.0/24", "10.1.0.0/16", "10.1.1.0/24", "fd02::/64", "fd03::/64"))
nodes = st.builds(
    lambda those, prefixes: node(*prefixes, *those),
    st.lists(addresses, max_size=3, unique=True),
    st.lists(blocks, max_size=3, unique=True),
)
names = st.sampled_from(("two", "three", "four")).map(NodeKey)
clusters = st.dictionaries(names, nodes)
networks = st.frozensets(st.sampled_from(("192.0.2.0/24", "fd99::/64", "198.51.100.0/24")).map(parse_prefix))
locals_ = st.builds(
    lambda transport, mtu: replace(LOCAL, transport=transport, fixed_mtu=mtu), st.sampled_from(Transport), st.booleans()
)
own_addresses = st.frozensets(st.sampled_from(HERE))
home_events = st.builds(e.NodeAddressesChanged, own_addresses, networks)
node_events = st.builds(lambda key, it: e.KubeStateChange(((key, it),)), names, st.none() | nodes)
pool_blocks = st.builds(
    lambda cidr: PodBlockKey(parse_prefix(cidr)), blocks | st.sampled_from(("10.1.2.9/32", "10.1.3.0/26"))
)
of_pools = st.sampled_from(("one", "two", "three")).map(lambda name: PodBlock(name, "all"))
block_events = st.builds(lambda key, it: e.KubeStateChange(((key, it),)), pool_blocks, st.none() | of_pools)


@given(locals_, clusters, st.dictionaries(pool_blocks, of_pools), home_events, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_and_blocks_come_changes_nothing(
    local: Local,
    cluster: dict[NodeKey, Node],
    taken: dict[PodBlockKey, PodBlock],
    home: e.NodeAddressesChanged,
    chance: Any,
) -> None:
    found = []
    for _ in range(2):
        events: list[e.Event] = [e.KubeStateChange(((key, it),)) for key, it in (*cluster.items(), *taken.items())]
        events += [home, e.KubeStateChange(((ONE, Node(BLOCKS, HERE)),))]
        chance.shuffle(events)
        now = Snapshot(local, whole=True)
        for event in events:
            now, _ = fold(now, event)
        found.append((linux(now), now.pod_mtu, now.underlays, findings(now)))
    assert found[0] == found[1]


histories = st.lists(node_events | block_events | home_events, max_size=6)


@given(locals_, locals_, histories, histories)
def test_from_any_state_of_any_transport_the_network_becomes_what_it_should_be(
    first: Local, second: Local, before: list[e.Event], after: list[e.Event]
) -> None:
    """Updates, then a restart with another configuration, then updates: as if it had always been so."""
    here = e.KubeStateChange(((ONE, Node(BLOCKS, HERE)),))
    add = e.AddPod(AttachmentKey("s", "eth0"), PodKey("default", "a"), "/run/netns/a")
    drivers = world.memories()

    async def run(transaction: Transaction, now: Snapshot, events: Iterable[e.Event]) -> Snapshot:
        for event in events:
            now, result = await transaction.run(now, event)
            assert result.error is None
        return now

    async def at_work() -> tuple[Snapshot, Snapshot]:
        transaction = world.transaction(drivers)
        now = await run(transaction, Snapshot(first, whole=True), (here, add, *before))
        started = replace(now, local=second, programmed=Snapshot(second).programmed)
        listed = e.Resync(e.ResyncReason.STARTUP, {**now.nodes, **now.blocks})
        now = await run(transaction, started, (e.NodeAddressesChanged(frozenset(HERE), LINK), listed, *after))
        fresh = world.memories()
        unheld = replace(now, programmed=Snapshot(second).programmed)
        anew = await run(
            world.transaction(fresh), unheld, (e.Resync(e.ResyncReason.STARTUP, {**now.nodes, **now.blocks}),)
        )
        assert world.contents(fresh)["linux"] == world.contents(drivers)["linux"]
        return now, anew

    now, anew = asyncio.run(at_work())
    assert linux(now) == linux(anew)


@given(clusters, clusters, st.sampled_from(Transport), st.sampled_from(Transport))
def test_what_a_tunnel_needs_comes_before_the_routes_and_goes_after_them(
    before: dict[NodeKey, Node], after: dict[NodeKey, Node], first: Transport, second: Transport
) -> None:
    """A route that is led over to another way always has one that carries packets."""
    wanted = [
        linux(told(replace(LOCAL, transport=transport), cluster.items()))
        for transport, cluster in ((first, before), (second, after))
    ]
    comes = sorted(wanted[1], key=render.rank)
    last_tunnel = max((n for n, key in enumerate(comes) if render.outlasts(key)), default=-1)
    first_route = min((n for n, key in enumerate(comes) if isinstance(key, RouteKey)), default=len(comes))
    assert last_tunnel < first_route
    assert not any(render.outlasts(key) for key in wanted[0] if isinstance(key, RouteKey))
    used = {value.index for value in wanted[1].values() if isinstance(value, Route)} & set(TUNNEL_INDEX.values())
    assert {TUNNEL_INDEX[key.family] for key in wanted[1] if isinstance(key, TunnelKey)} == used


# --- both ends alike ---------------------------------------------------------------------------


LENGTHS = {f"{head}.{n}": 24 for head in ("10.0", "10.9") for n in (1, 2)} | {f"fd9{n}:": 64 for n in (1, 2)}
"""By link: the prefix length that all have there."""


@st.composite
def at_home(draw: st.DrawFn, number: int) -> tuple[Node, frozenset[Prefix]]:
    """A node, and the networks of its interfaces: each on some link with an address, of which it publishes some, in
    some order."""
    links = draw(st.lists(st.sampled_from(sorted(LENGTHS)), max_size=5, unique=True))
    held = [parse_address(f"{it}.{number}" if "." in it else f"{it}:{number}") for it in links]
    networks = frozenset(prefix_around(own, LENGTHS[it]) for own, it in zip(held, links, strict=True))
    published = draw(st.lists(st.sampled_from(held), unique=True)) if held else []
    blocks = parse_prefix(f"10.1.{number}.0/24"), parse_prefix(f"fd0{number}::/64")
    return Node(blocks, tuple(published)), networks


@given(at_home(1), at_home(2), st.sampled_from((Transport.AUTO, Transport.VXLAN)))
def test_both_ends_decide_alike(
    one: tuple[Node, frozenset[Prefix]], two: tuple[Node, frozenset[Prefix]], transport: Transport
) -> None:
    """Else what one of them sends directly the other expects by VXLAN, or has no device for."""
    nodes, found = {ONE: one[0], TWO: two[0]}, []
    for key, (own, networks) in ((ONE, one), (TWO, two)):
        local = Local(key.name, 1500, (), networks=networks, network_mtu=1500, transport=transport)
        now = told(replace(local, addresses=frozenset(own.addresses)), nodes.items(), nodes[ONE])
        ways = {block.family: way for _, block, way in routes.ways(now)}
        found.append({family: None if isinstance(way, str) else way.vxlan for family, way in ways.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("here", "networks", "other"),
    [
        pytest.param(["10.0.1.1"], ["10.0.1.0/24", "10.0.2.0/24"], "10.0.2.2", id="another interface is on its link"),
        pytest.param(["10.0.1.1"], ["10.0.1.0/24", "fd99::/64"], "fd99::2", id="of a family that is not published"),
    ],
)
def test_who_is_on_a_link_that_is_not_this_node_s_own_is_not_reached_directly(
    here: list[str], networks: list[str], other: str
) -> None:
    own = tuple(map(parse_address, here))
    local = replace(LOCAL, addresses=frozenset(own), networks=frozenset(map(parse_prefix, networks)))
    now = told(local, ((TWO, node("10.1.2.0/24", "fd02::/64", "10.0.9.2", other)),), Node(BLOCKS, own))
    assert not any(isinstance(way, routes.Way) and not way.vxlan for _, _, way in routes.ways(now))


# --- while an address is away ------------------------------------------------------------------


@given(clusters, st.sampled_from(Transport), own_addresses, st.booleans())
def test_what_goes_by_vxlan_stays_while_an_address_of_this_node_is_away(
    cluster: dict[NodeKey, Node], transport: Transport, left: frozenset[Any], first_nodes: bool
) -> None:
    before = told(replace(LOCAL, transport=transport), cluster.items())
    networks = frozenset(it for it in LINK if any(own in it for own in left))
    away, back = e.NodeAddressesChanged(left, networks), e.NodeAddressesChanged(frozenset(HERE), LINK)
    if first_nodes:
        now, _ = fold(before, away)
    else:
        now, _ = fold(Snapshot(replace(LOCAL, transport=transport), whole=True), away)
        now, _ = fold(now, e.KubeStateChange(((ONE, Node(BLOCKS, HERE)), *cluster.items())))
    ours = {key: it for key, it in linux(before).items() if not isinstance(key, RouteKey) or it.index}
    assert {key: it for key, it in linux(now).items() if not isinstance(key, RouteKey) or it.index} == ours
    assert (now.pod_mtu, now.underlays) == (before.pod_mtu, before.underlays)
    assert ends.desired(now, EVERYTHING) == ends.desired(before, EVERYTHING)
    again, _ = fold(now, e.NodeAddressesChanged(frozenset(), frozenset()))
    again, _ = fold(again, away)
    assert (linux(again), again.pod_mtu) == (linux(now), now.pod_mtu)
    again, _ = fold(again, back)
    assert (again.local, linux(again)) == (before.local, linux(before))


# --- in words ----------------------------------------------------------------------------------


def test_explain_says_that_a_packet_goes_by_vxlan_and_by_which_address() -> None:
    now = told(LOCAL, ((TWO, node("10.1.2.0/24", "fd02::/64", FAR4)),))
    for to, client in (("10.1.2.9:80", "10.1.1.1"), ("[fd02::9]:80", "fd01::1")):
        why = explain_packet(now, None, parse_destination(to))
        assert why.way == f"a pod of node two, by VXLAN to node two ({FAR4})"
        assert why.client == client


def test_status_counts_the_other_nodes_by_the_way_to_them() -> None:
    others = {TWO: FAR4, NodeKey("three"): "192.0.2.3", NodeKey("four"): "10.1.4.9"}
    now = told(LOCAL, ((key, node(f"10.1.{n}.0/24", it)) for n, (key, it) in enumerate(others.items(), 2)))
    seen = views.status(now, views.Facts("0.1.0", None, 0.0, {}, ()))
    assert seen.others == {"direct": 1, "by VXLAN": 1, "not reached": 1}
    assert seen.mtu == 1450


@pytest.mark.parametrize("name", ["one", "two", "a" * 253])
def test_a_node_s_mac_address_is_a_host_s_own(name: str) -> None:
    mac = mac_of(name)
    assert (len(mac), mac[0]) == (6, 2)
    assert all(mac_of(other) != mac for other in ("three", "four"))
