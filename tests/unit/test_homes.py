"""Where nodes and their pods live nobody else comes to be: not the node itself, not a Service, not another node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.explain.services import explain_service
from podwire.findings import findings
from podwire.ipam.blocks import next_free, own_address
from podwire.model.addresses import Prefix, parse_address, parse_prefix, show_address
from podwire.model.homes import NO_HOME, Home, Homes
from podwire.model.network import LOOPBACK, AddressKey, ExternalIPKey, Frontend, Route, RouteKey, ServiceRangeKey
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    Node,
    NodeKey,
    PodKey,
    Protocol,
    Service,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
    ServicePort,
)
from podwire.model.snapshot import EVERYTHING, Local, Snapshot, Transport
from podwire.nodes import own, routes
from podwire.services import frontends
from tests.unit import world

A = ServiceKey("default", "a")


def node(blocks: str, *addresses: str) -> Node:
    return Node(tuple(map(parse_prefix, blocks.split())), tuple(map(parse_address, addresses)))


def holding(here: Node, *addresses: str) -> Snapshot:
    """A node whose pods have these addresses from before."""
    pods = {
        AttachmentKey(address, "eth0"): Attachment(
            PodKey("default", f"p{n}"), "", (parse_address(address),), 70000 + n, True
        )
        for n, address in enumerate(addresses)
    }
    link = frozenset((parse_prefix("192.168.0.0/24"),))
    now, _ = fold(Snapshot(Local("one", 1500, networks=link, transport=Transport.DIRECT)), e.Restored(pods, {}))
    return fold(now, e.KubeStateChange(((world.NODE, here),)))[0]


def on_lo(now: Snapshot) -> set[str]:
    keys = own.desired(now, EVERYTHING)["linux"]
    return {show_address(key.address) for key in keys if isinstance(key, AddressKey) and key.index == LOOPBACK}


# --- the node's own address --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "pods", "address"),
    [
        pytest.param("10.1.1.0/24", (), "10.1.1.1", id="the second of the block"),
        pytest.param("10.1.1.0/24", ("10.1.1.2",), "10.1.1.1", id="with pods where they belong"),
        pytest.param("10.1.1.0/24", ("10.1.1.1",), "10.1.1.2", id="a pod has it from before"),
        pytest.param("10.1.1.0/24", ("10.1.1.1", "10.1.1.2", "10.1.1.4"), "10.1.1.3", id="pods have several"),
        pytest.param("10.1.1.0/30", ("10.1.1.1", "10.1.1.2"), None, id="pods have all: never the broadcast's"),
        pytest.param("10.1.1.4/31", (), "10.1.1.5", id="a block of two"),
        pytest.param("10.1.1.5/32", (), "10.1.1.5", id="a block of one"),
        pytest.param("10.1.1.5/32", ("10.1.1.5",), None, id="a block of one pod"),
        pytest.param("fd01::/64", ("fd01::1",), "fd01::2", id="IPv6"),
        pytest.param("192.168.0.0/24", (), "192.168.0.1", id="another node says it is at the second"),
    ],
)
def test_the_own_address_of_a_block_is_nobody_elses(block: str, pods: tuple[str, ...], address: str | None) -> None:
    now = holding(node(block), *pods)
    now, _ = fold(now, e.KubeStateChange(((NodeKey("two"), node("", "192.168.0.1")),)))
    assert on_lo(now) == ({address} if address else set())


def test_a_pod_that_ends_gives_the_node_its_address_back() -> None:
    now = holding(node("10.1.1.0/24"), "10.1.1.1")
    after, touched = fold(now, e.DeletePod(AttachmentKey("10.1.1.1", "eth0")))
    assert touched is not None
    assert touched.nodes == {world.NODE}
    assert (on_lo(now), on_lo(after)) == ({"10.1.1.2"}, {"10.1.1.1"})
    _, touched = fold(holding(node("10.1.1.0/24"), "10.1.1.9"), e.DeletePod(AttachmentKey("10.1.1.9", "eth0")))
    assert touched is not None
    assert not touched.nodes


BLOCKS = st.sampled_from(("10.1.1.0/29", "10.1.1.0/30", "10.1.0.0/22", "10.1.1.2/31", "10.1.1.4/30", "10.1.1.0/28"))


@given(st.lists(world.pod_events | BLOCKS, max_size=30))
def test_whatever_blocks_come_no_address_is_had_twice(way: list[e.Event | str]) -> None:
    now = world.start()
    for step in way:
        event = e.KubeStateChange(((world.NODE, node(step)),)) if isinstance(step, str) else step
        try:
            now, _ = fold(now, event)
        except e.Refused:
            continue
        pods = [show_address(address) for it in now.attachments.values() for address in it.addresses]
        assert len(set(pods)) == len(pods)
        assert on_lo(now).isdisjoint(pods)
        assert on_lo(now) == on_lo(
            fold(
                Snapshot(now.local, nodes=now.nodes),
                e.Restored(
                    {
                        key: Attachment(it.pod, it.netns, it.addresses, it.index, True)
                        for key, it in now.attachments.items()
                    },
                    {},
                ),
            )[0]
        )


@pytest.mark.parametrize("cursor", [0, 5, 251])
def test_the_search_passes_over_the_own_address_and_those_of_nodes(cursor: int) -> None:
    block = parse_prefix("10.1.1.0/24")
    taken = {block.nth(n) for n in range(1, 255) if n not in (2, 77)}
    assert own_address(block, taken) == block.nth(2)
    assert next_free(block, taken, cursor) == (block.nth(77), 76)
    assert next_free(block, taken | {block.nth(77)}, cursor) is None


# --- Services ----------------------------------------------------------------------------------

HERE, TWO = node("10.1.1.0/24 fd01::/64", "192.168.0.1", "fd99::1"), node("10.1.2.0/24", "192.168.0.2")


def served(cluster_ip: str, *external_ips: str, nodes: bool = True, first: bool = True) -> Snapshot:
    port = ServicePort("p", Protocol.TCP, 80)
    service = Service((port,), (parse_address(cluster_ip),), tuple(map(parse_address, external_ips)))
    changes = [((world.NODE, HERE), (NodeKey("two"), TWO)) if nodes else (), ((A, service),)]
    now = Snapshot(Local("one", 1500, (parse_prefix("10.96.0.0/16"),)))
    for part in changes if first else reversed(changes):
        now, _ = fold(now, e.KubeStateChange(part))
    return now


@pytest.mark.parametrize("first", [True, False], ids=["nodes first", "the Service first"])
@pytest.mark.parametrize(
    ("cluster_ip", "external_ips", "addresses", "why"),
    [
        pytest.param("10.96.0.1", ("192.0.2.1",), ["10.96.0.1", "192.0.2.1"], [], id="nobody lives there"),
        pytest.param("10.96.0.1", ("192.168.0.1",), ["10.96.0.1", "192.168.0.1"], [], id="a port of the node"),
        pytest.param("192.168.0.1", (), [], ["192.168.0.1 is not used: it is an address of node/one"], id="the node"),
        pytest.param("192.168.0.2", (), ["192.168.0.2"], [], id="what another node claims"),
        pytest.param(
            "10.1.1.9", (), [], ["10.1.1.9 is not used: it is in the pod CIDR 10.1.1.0/24 of node/one"], id="a pod here"
        ),
        pytest.param(
            "10.96.0.1",
            ("10.1.1.9", "10.1.2.9", "192.0.2.1"),
            ["10.96.0.1", "192.0.2.1"],
            [
                "10.1.1.9 is not used: it is in the pod CIDR 10.1.1.0/24 of node/one",
                "10.1.2.9 is not used: it is in the pod CIDR 10.1.2.0/24 of node/two",
            ],
            id="external IPs of pods",
        ),
        pytest.param(
            "fd01::9", (), [], ["fd01::9 is not used: it is in the pod CIDR fd01::/64 of node/one"], id="IPv6"
        ),
    ],
)
def test_a_service_has_no_address_where_somebody_lives(
    cluster_ip: str, external_ips: tuple[str, ...], addresses: list[str], why: list[str], first: bool
) -> None:
    now = served(cluster_ip, *external_ips, first=first)
    held = frontends.desired(now, EVERYTHING)["nftables"]
    assert sorted(show_address(key.address) for key in held if isinstance(key, Frontend)) == addresses
    taken = [key for key in held if isinstance(key, ServiceRangeKey | ExternalIPKey)]
    shut = [show_address(key.first if isinstance(key, ServiceRangeKey) else key.address) for key in taken]
    assert set(shut) <= {"10.96.0.0", *addresses}
    assert [text for text in explain_service(now, A).notes if "is not used" in text] == why
    assert [text for text in findings(now) if text.startswith("service/")] == [f"{A}: {text}" for text in why]


def test_an_address_serves_again_once_nobody_lives_there() -> None:
    now = served("10.1.2.9", "10.1.2.8")
    after, touched = fold(now, e.KubeStateChange(((NodeKey("two"), None),)))
    assert touched is not None
    assert touched.services == {A}
    assert not after.misplaced
    assert len(frontends.frontends(after, A)) == 2


def test_node_ports_follow_the_first_address_when_the_order_alone_is_another() -> None:
    port = ServicePort("p", Protocol.TCP, 80, 30080)
    now, _ = fold(
        Snapshot(Local("one", 1500)),
        e.KubeStateChange(
            (
                (world.NODE, node("", "192.168.0.1", "192.168.0.3")),
                (A, Service((port,), (parse_address("10.96.0.1"),))),
            )
        ),
    )
    now, touched = fold(now, e.KubeStateChange(((world.NODE, node("", "192.168.0.3", "192.168.0.1")),)))
    assert touched is not None
    assert touched.services == {A}
    assert Frontend(parse_address("192.168.0.3"), Protocol.TCP, 30080) in frontends.frontends(now, A)


# --- what another node claims ------------------------------------------------------------------


def working() -> Snapshot:
    """With a cluster IP in a range and one outside, external IPs of this node and of nobody, and a pod."""
    now = holding(HERE, "10.1.1.7")
    port = ServicePort("p", Protocol.TCP, 80, 30080)
    services = {
        A: Service((port,), (parse_address("10.96.0.1"),), (parse_address("192.168.0.1"),)),
        ServiceKey("default", "b"): Service((port,), (parse_address("10.97.0.1"),), (parse_address("192.0.2.1"),)),
    }
    cidr = (ServiceCIDRKey("x"), ServiceCIDR((parse_prefix("10.96.0.0/16"), parse_prefix("fd00:96::/112"))))
    nodes = ((NodeKey("two"), TWO), (NodeKey("three"), node("10.1.3.0/24", "192.168.0.3")))
    return fold(now, e.KubeStateChange((cidr, *services.items(), *nodes)))[0]


CLAIMS = {
    "10.96.0.1": "lies in the service range 10.96.0.0/16",
    "10.96.77.7": "lies in the service range 10.96.0.0/16",
    "fd00:96::5": "lies in the service range fd00:96::/112",
    "10.97.0.1": "is the cluster IP of service/default/b",
    "10.1.1.1": "lies in the pod CIDR 10.1.1.0/24 of node/one",
    "10.1.1.7": "lies in the pod CIDR 10.1.1.0/24 of node/one",
    "10.1.1.8": "lies in the pod CIDR 10.1.1.0/24 of node/one",
    "10.1.3.9": "lies in the pod CIDR 10.1.3.0/24 of node/three",
    "fd01::8": "lies in the pod CIDR fd01::/64 of node/one",
}
HARMLESS = ("192.168.0.9", "192.0.2.1", "fd99::9")


@given(st.lists(st.sampled_from((*CLAIMS, *HARMLESS)), unique=True), st.booleans())
def test_what_another_node_claims_changes_nothing_here_and_is_told(claimed: list[str], first: bool) -> None:
    """Its kubelet writes its addresses: one that is taken over must not shut others off. `first`: beside the address
    that it always had, or before."""
    now = working()
    addresses = ("192.168.0.2", *claimed) if not first else (*claimed, "192.168.0.2")
    after, touched = fold(now, e.KubeStateChange(((NodeKey("two"), node("10.1.2.0/24", *addresses)),)))
    assert touched is not None
    assert (touched.services, touched.ranges) == (frozenset(), False)
    assert (after.service_ranges, after.misplaced, after.crowded) == (now.service_ranges, now.misplaced, now.crowded)
    assert frontends.desired(after, EVERYTHING) == frontends.desired(now, EVERYTHING)
    assert own.desired(after, EVERYTHING) == own.desired(now, EVERYTHING)
    assert on_lo(after) == {"10.1.1.1", "fd01::1"}
    told = {f"node/two: its address {it} is not heeded: it {CLAIMS[it]}" for it in claimed if it in CLAIMS}
    assert {text for text in findings(after) if "heeded" in text} == told


def test_a_node_that_claims_a_whole_block_leaves_its_pods_their_addresses() -> None:
    block = parse_prefix("10.1.1.0/29")
    all_of_it = Node((), tuple(block.nth(n) for n in range(8)))
    now, _ = fold(holding(node("10.1.1.0/29")), e.KubeStateChange(((NodeKey("two"), all_of_it),)))
    assert next_free(block, now.taken, 0) is not None


def test_of_two_claimants_one_that_cannot_have_the_frontend_does_not_keep_it_from_the_other() -> None:
    now = served("192.168.0.1")
    young = Service((ServicePort("p", Protocol.TCP, 8, 80),), (parse_address("10.96.0.2"),), (), "2026-01-01T00:00:00Z")
    now, _ = fold(now, e.KubeStateChange(((ServiceKey("default", "b"), young),)))
    at_node = Frontend(parse_address("192.168.0.1"), Protocol.TCP, 80)
    assert at_node in frontends.frontends(now, ServiceKey("default", "b"))


# --- service ranges ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("192.168.0.0/16", "the node's address 192.168.0.1 lies in it"),
        ("10.1.0.0/16", "the node's pod CIDR 10.1.1.0/24 lies in it"),
        ("10.1.2.0/28", "node two's pod CIDR 10.1.2.0/24 lies in it"),
    ],
    ids=["around the node", "around pods", "within another node's pods"],
)
def test_a_range_in_which_this_node_or_any_pods_live_is_not_used(cidr: str, why: str) -> None:
    key, value = ServiceCIDRKey("x"), ServiceCIDR((parse_prefix(cidr),))
    now, _ = fold(served("10.96.0.1"), e.KubeStateChange(((key, value),)))
    assert now.service_ranges == (parse_prefix("10.96.0.0/16"),)
    assert [text for text in findings(now) if "range" in text] == [f"service range {cidr} is not used: {why}"]
    gone = e.KubeStateChange(((NodeKey("two"), None), (world.NODE, Node())))
    assert set(fold(now, gone)[0].service_ranges) == {parse_prefix("10.96.0.0/16"), parse_prefix(cidr)}


# --- other nodes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "ways", "told"),
    [
        pytest.param(node("10.1.2.0/24", "192.168.0.2"), ["10.1.2.0/24"], [], id="as it should be"),
        pytest.param(node("10.1.2.0/24"), [], [], id="only just coming"),
        pytest.param(
            node("10.1.1.0/24", "192.168.0.2"),
            [],
            ["there is no route to its pod CIDR 10.1.1.0/24: this node's pod CIDR 10.1.1.0/24 lies in it"],
            id="this node's block",
        ),
        pytest.param(
            node("10.1.1.64/26", "192.168.0.2"),
            [],
            ["there is no route to its pod CIDR 10.1.1.64/26: part of this node's pod CIDR 10.1.1.0/24 lies in it"],
            id="a part of it",
        ),
        pytest.param(
            node("10.1.0.0/16", "192.168.0.2"),
            ["10.1.0.0/16"],
            ["its pod CIDR 10.1.0.0/16 overlaps this node's 10.1.1.0/24: two pods may have one address"],
            id="a block around it",
        ),
        pytest.param(
            node("192.168.0.0/24", "192.168.0.2"),
            [],
            ["there is no route to its pod CIDR 192.168.0.0/24: this node's address 192.168.0.1 lies in it"],
            id="a block around this node",
        ),
        pytest.param(
            node("192.168.0.2/31", "192.168.0.2"),
            [],
            ["there is no route to its pod CIDR 192.168.0.2/31: the node's own address 192.168.0.2 lies in it"],
            id="a block around itself",
        ),
        pytest.param(
            node("10.1.2.0/24", "192.168.0.1"),
            [],
            [
                "it has the address 192.168.0.1 as this node has: they can't reach each other",
                "there is no route to its pod CIDR 10.1.2.0/24: the node's address 192.168.0.1 is this node's too",
            ],
            id="this node's address",
        ),
        pytest.param(
            node("fd02::/64", "192.168.0.2"),
            [],
            ["there is no route to its pod CIDR fd02::/64: the node has no IPv6 address to route to"],
            id="without an address of the family",
        ),
    ],
)
def test_no_route_to_another_node_leads_this_ones_packets_away(other: Node, ways: list[str], told: list[str]) -> None:
    now, _ = fold(holding(HERE), e.KubeStateChange(((NodeKey("two"), other),)))
    held = routes.desired(now, EVERYTHING)["linux"]
    assert held == {RouteKey("", parse_prefix(way)): Route(0, via=parse_address("192.168.0.2")) for way in ways}
    assert list(findings(now)) == [f"node/two: {text}" for text in told]


def test_of_two_nodes_with_one_block_the_first_has_it_and_the_other_is_told_of() -> None:
    now, _ = fold(
        holding(HERE),
        e.KubeStateChange(((NodeKey("two"), TWO), (NodeKey("three"), node("10.1.2.0/24", "192.168.0.3")))),
    )
    assert list(routes.desired(now, EVERYTHING)["linux"].values()) == [Route(0, via=parse_address("192.168.0.3"))]
    assert findings(now) == (
        "node/two: there is no route to its pod CIDR 10.1.2.0/24: node three has it too, and comes first",
    )


def test_a_pod_whose_block_went_to_another_node_is_told_of() -> None:
    now, _ = fold(holding(HERE, "10.1.2.7", "10.1.1.7"), e.KubeStateChange(((NodeKey("two"), TWO),)))
    assert findings(now) == (
        "pod/default/p0: its address 10.1.2.7 is in the pod CIDR 10.1.2.0/24 of node/two: start it anew",
    )


# --- the index ---------------------------------------------------------------------------------

PREFIXES = st.builds(
    lambda length, number: Prefix(parse_prefix(f"10.0.0.0/{length}").nth(number << (32 - length)), length),
    st.sampled_from((24, 28, 30, 32)),
    st.integers(0, 3),
)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(PREFIXES, max_size=2)), max_size=8), st.integers(0, 1023))
def test_the_longest_block_around_an_address_is_found_whatever_the_way(
    way: list[tuple[str, list[Prefix]]], number: int
) -> None:
    homes, held = Homes(), dict.fromkeys(map(NodeKey, "abc"), NO_HOME)
    for name, blocks in way:
        key, after = NodeKey(name), Home((), tuple(blocks[:1]), tuple(blocks[1:]))
        homes, held[key] = homes.moved(key, held[key], after), after
    address = parse_prefix("10.0.0.0/8").nth(number)
    around = [block for it in held.values() for block in it.blocks if address in block]
    assert homes.block_of(address) == max(around, key=lambda block: block.length, default=None)
    fresh = Homes()
    for key, it in held.items():
        fresh = fresh.moved(key, NO_HOME, it)
    assert homes == fresh
