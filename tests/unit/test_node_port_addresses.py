"""Where node ports are, when that is told by ranges: the addresses of the node's interfaces, and their changes."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.controller.transaction import merge
from podwire.explain.services import explain_service
from podwire.model.addresses import Address, parse_address, parse_prefix
from podwire.model.objects import Protocol, Service, ServiceKey, ServicePort
from podwire.model.snapshot import EVERYTHING, Snapshot
from podwire.services.frontends import node_port_addresses
from podwire.services.health import Place, listening
from tests.unit import world

RANGES = tuple(map(parse_prefix, ("192.0.2.0/24", "192.168.0.0/24", "fd99::/64")))
HERE = tuple(
    map(parse_address, ("192.0.2.1", "192.0.2.200", "192.168.0.1", "198.51.100.1", "fd99::1", "fd98::1", "10.96.0.1"))
)
LOCAL = replace(world.LOCAL, node_ports=RANGES)
told = st.frozensets(st.sampled_from(HERE)).map(e.NodeAddressesChanged)


def start(*addresses: Address) -> Snapshot:
    now, _ = fold(Snapshot(LOCAL, whole=True), e.KubeStateChange(((world.NODE, world.NODES[0]),)))
    return fold(now, e.NodeAddressesChanged(frozenset(addresses)))[0]


def decided(now: Snapshot, touched=EVERYTHING) -> dict:  # type: ignore[no-untyped-def, type-arg]
    return merge((c.name, c.desired(now, touched)) for c in world.CAPABILITIES)


@settings(max_examples=200)
@given(st.lists(world.kube_changes | told, max_size=12), world.kube_changes | told)
def test_deciding_for_what_was_touched_is_as_good_as_deciding_for_all(way: list[e.Event], event: e.Event) -> None:
    now = start()
    for earlier in (*way, event):
        before = now
        now, touched = fold(now, earlier)
    whole = decided(before)
    assert touched is not EVERYTHING
    new, old = decided(now, touched), decided(before, touched)
    for driver, keys in whole.items():
        for key in old.get(driver, {}):
            del keys[key]
        keys |= new.get(driver, {})
    for driver, keys in new.items():
        whole.setdefault(driver, keys)
    assert whole == decided(now)


@settings(max_examples=200)
@given(st.lists(world.kube_changes | told, max_size=12), st.randoms(use_true_random=False))
def test_only_what_there_is_at_last_counts(way: list[e.Event], random: Random) -> None:
    now, addresses = start(), frozenset[Address]()
    last: dict = {world.NODE: world.NODES[0]}  # type: ignore[type-arg]
    for event in way:
        now, _ = fold(now, event)
        if isinstance(event, e.NodeAddressesChanged):
            addresses = event.addresses
        elif isinstance(event, e.KubeStateChange):
            last |= dict(event.changes)
    shuffled: list[e.Event] = [e.KubeStateChange((change,)) for change in last.items()]
    shuffled.append(e.NodeAddressesChanged(addresses))
    random.shuffle(shuffled)
    other = Snapshot(LOCAL, whole=True)
    for event in shuffled:
        other, _ = fold(other, event)
    listed, _ = fold(now, e.Resync(e.ResyncReason.STARTUP, {k: v for k, v in last.items() if v is not None}))
    assert decided(now) == decided(other) == decided(listed)
    assert now.claims == other.claims == listed.claims


@given(st.frozensets(st.sampled_from(HERE)))
def test_the_ranges_say_which_addresses(addresses: frozenset[Address]) -> None:
    wanted = [address for address in addresses if any(address in cidr for cidr in RANGES)]
    assert node_port_addresses(start(*addresses)) == tuple(sorted(wanted, key=lambda it: (len(it), it)))


def test_without_ranges_the_first_internal_ip_of_each_family_counts_whatever_the_interfaces_have() -> None:
    now, _ = fold(world.start(), e.NodeAddressesChanged(frozenset(HERE)))
    assert node_port_addresses(now) == world.NODES[0].addresses


WEB = ServiceKey("default", "web")


def service(*cluster_ips: str) -> Service:
    port = ServicePort("p", Protocol.TCP, 80, 30080)
    return Service((port,), tuple(map(parse_address, cluster_ips)), external_local=True, health_port=32000)


@pytest.mark.parametrize(
    ("addresses", "says"),
    [
        (("192.0.2.1",), ("IPv6",)),
        (("fd99::1", "198.51.100.1"), ("IPv4",)),
        ((), ("IPv4", "IPv6")),
        (("192.0.2.1", "fd99::1"), ()),
    ],
    ids=["IPv4 only", "IPv4 out of range", "none", "both"],
)
def test_explain_says_where_no_address_is_in_the_ranges(addresses: tuple[str, ...], says: tuple[str, ...]) -> None:
    now, _ = fold(start(*map(parse_address, addresses)), e.KubeStateChange(((WEB, service("10.96.0.2", "fd96::2")),)))
    why = "address in the ranges of node_port_addresses: there are no node ports of that family"
    assert [note for note in explain_service(now, WEB).notes if "node ports" in note] == [
        f"node one has no {family} {why}" for family in says
    ]


def test_health_check_node_ports_go_with_the_addresses() -> None:
    now, _ = fold(start(HERE[0], HERE[1], HERE[4]), e.KubeStateChange(((WEB, service("10.96.0.2")),)))
    assert listening(now) == {Place(address, 32000): WEB for address in HERE[:2]}
    now, _ = fold(now, e.NodeAddressesChanged(frozenset(HERE[1:])))
    assert listening(now) == {Place(address, 32000): WEB for address in HERE[1:3]}
