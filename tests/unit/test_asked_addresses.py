"""Addresses and MAC addresses that are asked for, or given by another plugin: nobody else's, kept, and found again."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.controller.transaction import merge
from podwire.dataplane.linux import rebuild
from podwire.findings import findings
from podwire.ipam.own import own_addresses
from podwire.model.addresses import Address, parse_address, parse_prefix, show_address
from podwire.model.network import AddressKey, Link, LinkKey, NeighbourKey, PodMAC, Route, RouteKey
from podwire.model.objects import Attachment, AttachmentKey, PodKey
from podwire.model.snapshot import EVERYTHING, Snapshot
from podwire.pods import wiring
from podwire.pods.names import link_of, mac_of, pod_mac
from tests.unit import world

KEY, OTHER = AttachmentKey("s1", "eth0"), AttachmentKey("s2", "eth0")
MAC = world.MACS[1]


def addresses(*texts: str) -> tuple[Address, ...]:
    return tuple(map(parse_address, texts))


def add(key: AttachmentKey = KEY, **asked: Any) -> e.AddPod:
    return e.AddPod(key, PodKey("default", key.sandbox), f"/run/netns/{key.sandbox}", **asked)


def has(now: Snapshot, key: AttachmentKey = KEY) -> list[str]:
    return [show_address(it) for it in now.attachments[key].addresses]


def refused(now: Snapshot, event: e.AddPod) -> e.Refused:
    with pytest.raises(e.Refused) as raised:
        fold(now, event)
    return raised.value


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((), ["10.1.1.2", "fd01::2"]),
        (("10.1.1.5",), ["10.1.1.5", "fd01::2"]),
        (("fd01::abc",), ["10.1.1.2", "fd01::abc"]),
        (("fd01::abc", "10.1.1.5"), ["10.1.1.5", "fd01::abc"]),
        (("10.1.1.5", "10.1.1.4"), ["10.1.1.5", "10.1.1.4", "fd01::2"]),
    ],
)
def test_what_is_asked_for_is_given_and_the_rest_as_ever(asked: tuple[str, ...], expected: list[str]) -> None:
    now, _ = fold(world.start(), add(requested=addresses(*asked)))
    assert has(now) == expected


@pytest.mark.parametrize(
    ("asked", "refusal", "says"),
    [
        ("10.1.1.2", e.Refusal.EXHAUSTED, "10.1.1.2 is given to pod default/s2 (sandbox s2)"),
        ("10.1.1.1", e.Refusal.ADDRESS_UNFIT, "10.1.1.1 is an address of this node"),
        ("10.1.1.0", e.Refusal.ADDRESS_UNFIT, "10.1.1.0 is at an end of 10.1.1.0/29, where no pod has its address"),
        ("10.1.1.7", e.Refusal.ADDRESS_UNFIT, "10.1.1.7 is at an end of 10.1.1.0/29, where no pod has its address"),
        (
            "10.9.9.9",
            e.Refusal.ADDRESS_UNFIT,
            "10.9.9.9 is in none of the ranges that this node gives addresses of: 10.1.1.0/29, fd01::/64",
        ),
    ],
)
def test_what_can_not_be_had_is_refused_and_nothing_changes(asked: str, refusal: e.Refusal, says: str) -> None:
    now, _ = fold(world.start(), add(OTHER))
    error = refused(now, add(requested=addresses("fd01::9", asked)))
    assert (error.refusal, str(error)) == (refusal, says)


def test_a_node_without_ranges_says_so() -> None:
    error = refused(world.start(world.NODES[2]), add(requested=addresses("10.1.1.5")))
    assert (error.refusal, str(error)) == (e.Refusal.NOT_READY, "node one has no spec.podCIDRs yet")


def test_a_repeated_add_keeps_what_was_given_and_says_where_it_asks_for_something_else() -> None:
    asked = add(requested=addresses("10.1.1.5"), mac=MAC)
    now, _ = fold(world.start(), asked)
    for again in (asked, add(), add(requested=addresses("fd01::2")), add(mac=MAC)):
        after, _ = fold(now, again)
        assert after.attachments[KEY] == now.attachments[KEY]
    error = refused(now, add(requested=addresses("10.1.1.5", "10.1.1.4")))
    assert error.refusal is e.Refusal.ADDRESS_UNFIT
    assert str(error) == "10.1.1.4 can't be had any more: until its DEL the interface keeps 10.1.1.5, fd01::2"
    error = refused(now, add(mac=world.MACS[2]))
    assert error.refusal is e.Refusal.MAC_UNFIT
    assert "keeps 02:00:5e:00:00:01" in str(error)


@pytest.mark.parametrize("mac", world.MACS[:2])
def test_a_mac_address_is_that_of_the_pods_end_and_of_the_nodes_neighbour(mac: bytes) -> None:
    now, _ = fold(world.start(), add(mac=mac))
    it = now.attachments[KEY]
    expected = mac or pod_mac(link_of(KEY, it))
    wanted = wiring.desired(now, EVERYTHING)["linux"]
    assert wanted[LinkKey(link_of(KEY, it))].mac == expected == mac_of(KEY, it)
    assert wanted[NeighbourKey("", it.index, it.addresses[0])] == PodMAC(link_of(KEY, it), expected)


def test_the_same_mac_address_twice_harms_nobody() -> None:
    """Each link is a segment of its own, and so are its neighbours."""
    now, _ = fold(world.start(), add(mac=MAC))
    both, _ = fold(now, add(OTHER, mac=MAC))
    one, two = (wiring.desired(it, EVERYTHING)["linux"] for it in (now, both))
    assert {key: value for key, value in two.items() if key in one} == one


def test_the_kernel_knows_a_mac_address_that_a_lost_store_knew() -> None:
    """And an address; a MAC address that follows from the link's name is none that was asked for."""
    now, _ = fold(world.start(), add(mac=MAC, requested=addresses("10.1.1.5")))
    now, _ = fold(now, add(OTHER))
    held = wiring.desired(now, EVERYTHING)["linux"]
    seen = {key: value.born if isinstance(value, PodMAC) else value for key, value in held.items()}
    found = rebuild.attachments(seen)
    assert {key: it.mac for key, it in found.items()} == {KEY: MAC, OTHER: b""}
    assert {key: set(it.addresses) for key, it in found.items()} == {
        key: set(it.addresses) for key, it in now.attachments.items()
    }


# --- another IPAM plugin -----------------------------------------------------------------------


def test_what_another_plugin_gives_needs_no_block_of_this_node() -> None:
    now, _ = fold(world.start(world.NODES[2]), add(delegated=addresses("10.9.9.9", "fd09::9")))
    it = now.attachments[KEY]
    assert (has(now), it.delegated, it.routes) == (["10.9.9.9", "fd09::9"], True, None)
    assert dict(now.cursors) == {}


@pytest.mark.parametrize(
    ("given_to_it", "refusal", "says"),
    [
        ("10.1.1.2", e.Refusal.EXHAUSTED, "10.1.1.2 is given to pod default/s2 (sandbox s2)"),
        ("10.1.1.1", e.Refusal.ADDRESS_UNFIT, "10.1.1.1 is an address of this node"),
        ("192.168.0.1", e.Refusal.ADDRESS_UNFIT, "192.168.0.1 is an address of this node"),
    ],
)
def test_what_another_plugin_gives_must_be_nobodys(given_to_it: str, refusal: e.Refusal, says: str) -> None:
    now, _ = fold(world.start(), add(OTHER))
    error = refused(now, add(delegated=addresses("10.9.9.9", given_to_it)))
    assert (error.refusal, str(error)) == (refusal, says)


def test_what_another_plugin_has_given_is_given_to_no_other_pod() -> None:
    now, _ = fold(world.start(), add(delegated=addresses("10.1.1.2")))
    now, _ = fold(now, add(OTHER))
    assert has(now, OTHER) == ["10.1.1.3", "fd01::2"]


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        (None, {"0.0.0.0/0", "::/0"}),
        (("10.0.0.0/8",), {"10.0.0.0/8"}),
        (("0.0.0.0/0", "fd00::/8"), {"0.0.0.0/0", "fd00::/8"}),
    ],
)
def test_a_pod_sends_where_its_routes_lead(routes: tuple[str, ...] | None, expected: set[str]) -> None:
    told = None if routes is None else tuple(map(parse_prefix, routes))
    now, _ = fold(world.start(), add(delegated=addresses("10.9.9.9", "fd09::9"), routes=told))
    wanted = wiring.desired(now, EVERYTHING)["linux"]
    found = {str(key.destination) for key, it in wanted.items() if isinstance(key, RouteKey) and key.space and it.via}
    assert found == expected


def test_what_other_nodes_have_no_way_to_is_told() -> None:
    """Not of addresses in the node's own ranges."""
    now, _ = fold(world.start(), e.KubeStateChange(((world.NodeKey("two"), world.NODES[1]),)))
    now, _ = fold(now, add(delegated=addresses("10.9.9.9", "fd01::9")))
    now, _ = fold(now, add(OTHER, delegated=addresses("10.1.2.5")))
    told = "other nodes have no way to what an IPAM plugin has given beside this node's ranges: "
    mine = [line for line in findings(now) if "default/s" in line]
    assert mine == [told + "pod/default/s1 10.9.9.9, pod/default/s2 10.1.2.5"]


anything = st.lists(world.pod_events | world.wishful | world.delegated, max_size=40)


@settings(max_examples=200)
@given(anything)
def test_whoever_asks_nobodys_address_is_given_twice(requests: list[e.Event]) -> None:
    now = world.start()
    for event in requests:
        before = now
        try:
            now, _ = fold(now, event)
        except e.Refused:
            assert now is before
            continue
        held = [address for it in now.attachments.values() for address in it.addresses]
        assert len(held) == len(set(held))
        assert not set(held) & {*now.node.addresses, *now.local.addresses, *own_addresses(now)}
        if isinstance(event, e.AddPod):
            mine = now.attachments[event.key]
            if event.key in before.attachments:
                assert mine.addresses == before.attachments[event.key].addresses
                continue
            assert set(mine.addresses) >= {*event.requested, *(event.delegated or ())}
            assert mine.addresses == (event.delegated or mine.addresses)


@given(anything)
def test_a_row_is_read_as_it_was_written(requests: list[e.Event]) -> None:
    now = world.start()
    for event in requests:
        try:
            now, _ = fold(now, event)
        except e.Refused:
            continue
    for it in now.attachments.values():
        assert msgpack.decode(msgpack.encode(it), type=Attachment) == it


@settings(max_examples=200)
@given(anything)
def test_no_two_interfaces_want_the_same_of_the_kernel(requests: list[e.Event]) -> None:
    now = world.start()
    for event in requests:
        try:
            now, _ = fold(now, event)
        except e.Refused:
            continue
    alone: dict[Any, AttachmentKey] = {}
    for key in now.attachments:
        one = wiring.wiring(key, now.attachments[key], 1500)
        assert not alone.keys() & one.keys()
        alone |= dict.fromkeys(one, key)
    assert set(merge([("pods", wiring.desired(now, EVERYTHING))])["linux"]) == set(alone)
    assert all(isinstance(alone[key], AttachmentKey) for key in alone if isinstance(key, AddressKey | Link | Route))
