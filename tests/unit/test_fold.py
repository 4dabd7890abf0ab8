"""The fold: the same objects give the same network whatever the way; addresses are given once and found again."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.controller.transaction import merge
from podwire.model.addresses import Address, Prefix, parse_address, parse_prefix, show_address
from podwire.model.network import Backend, Frontend, RouteKey, RuleKey, ServiceRangeKey, Serving, Space, UpKey
from podwire.model.objects import (
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
from podwire.model.room import Capacity
from podwire.model.snapshot import EVERYTHING, Snapshot, Touched
from podwire.pods.names import link_of
from podwire.services.frontends import frontends
from tests.unit import world


def indexes(now: Snapshot) -> tuple[Any, ...]:
    services = now.slices_of, now.claims, now.misplaced
    return now.homes, now.crowded, now.blocks_of, now.unfit_pools, now.contested, *services


def decided(now: Snapshot) -> dict[str, dict]:  # type: ignore[type-arg]
    return merge((c.name, c.desired(now, EVERYTHING)) for c in world.CAPABILITIES)


@settings(max_examples=200)
@given(st.lists(world.kube_changes, max_size=12), st.randoms(use_true_random=False))
def test_from_any_state_by_any_order_the_same_is_desired(way: list[e.KubeStateChange], random: Random) -> None:
    now = world.start()
    last: dict = {world.NODE: world.NODES[0]}  # type: ignore[type-arg]
    for event in way:
        now, _ = fold(now, event)
        last |= dict(event.changes)
    shuffled = list(last.items())
    random.shuffle(shuffled)
    other, _ = fold(world.start(world.NODES[2]), e.KubeStateChange(tuple(shuffled)))
    listed, _ = fold(now, e.Resync(e.ResyncReason.STARTUP, {k: v for k, v in shuffled if v is not None}))
    assert decided(now) == decided(other) == decided(listed)
    assert indexes(now) == indexes(other) == indexes(listed)


anything = world.kube_changes | world.pod_events | world.wishful | world.delegated | world.address_events


@settings(max_examples=200)
@given(st.lists(anything, max_size=15), anything, st.none() | world.capacities)
def test_deciding_for_what_was_touched_is_as_good_as_deciding_for_all(
    way: list[e.Event], event: e.Event, capacity: Capacity | None
) -> None:
    now = world.start()
    now = replace(now, local=replace(now.local, capacity=capacity))
    for earlier in (*way, event):
        before = now
        try:
            now, touched = fold(now, earlier)
        except e.Refused:
            touched = EVERYTHING
    whole = decided(before)
    if touched is not EVERYTHING:
        new = merge((c.name, c.desired(now, touched)) for c in world.CAPABILITIES)
        old = merge((c.name, c.desired(before, touched)) for c in world.CAPABILITIES)
        for driver, keys in whole.items():
            for key in old.get(driver, {}):
                del keys[key]
            keys |= new.get(driver, {})
        for driver, keys in new.items():
            whole.setdefault(driver, keys)
    assert whole == decided(now)


def by_pod(now: Snapshot) -> dict[PodKey, set[AttachmentKey]]:
    found: dict[PodKey, set[AttachmentKey]] = {}
    for key, it in now.attachments.items():
        found.setdefault(it.pod, set()).add(key)
    return found


@given(st.lists(world.pod_events, max_size=40))
def test_addresses_are_never_given_twice_nor_lost(requests: list[e.Event]) -> None:
    now = world.start()
    for event in requests:
        try:
            now, _ = fold(now, event)
        except e.Refused as refused:
            full = refused.refusal is not e.Refusal.PORT_TAKEN
            assert len(now.attachments) == 5 or not full
        held = [
            item
            for it in now.attachments.values()
            for item in (*it.addresses, it.index, *([it.shaper] if it.shaper else []))
        ]
        assert len(held) == len(set(held)) == len(now.ledger)
        assert dict(now.housed) == {it.netns: {key} for key, it in now.attachments.items()}
        assert dict(now.links) == {link_of(key, it): key for key, it in now.attachments.items()}
        assert dict(now.attached) == by_pod(now)


def test_of_two_that_share_a_namespace_the_first_has_the_routes_and_the_other_inherits_them() -> None:
    """As an older version has attached them."""
    now = world.start()
    keys = [AttachmentKey("s", name) for name in ("eth0", "net1")]
    for number, key in enumerate(keys):
        now, _ = fold(now, e.AddPod(key, PodKey("default", "a"), f"/{number}", 4, 100 + number))
    shared = {key: replace(it, device=4, inode=7, confirmed=True) for key, it in now.attachments.items()}
    now, _ = fold(world.start(), e.Restored(shared, {}))
    space = Space("/0", 4, 7)
    default = RouteKey(space, parse_prefix("0.0.0.0/0"))
    assert decided(now)["linux"][default].index == shared[keys[0]].index + 1
    for gone in (e.DeletePod(keys[0]), e.SandboxGone(frozenset((keys[0],)))):
        after, touched = fold(now, gone)
        assert touched is not None
        assert touched.attachments == set(keys)
        wanted = merge((c.name, c.desired(after, touched)) for c in world.CAPABILITIES)["linux"]
        assert wanted[default].index == shared[keys[1]].index + 1
        assert UpKey(space, 1) in wanted


def test_a_namespace_has_one_interface_of_a_name_and_several_of_others() -> None:
    now, _ = fold(world.start(), e.AddPod(AttachmentKey("s", "eth0"), PodKey("default", "a"), "/a", 4, 7))
    with pytest.raises(e.Refused, match="eth0 of sandbox s") as refused:
        fold(now, e.AddPod(AttachmentKey("t", "eth0"), PodKey("default", "b"), "/b", 4, 7))
    assert refused.value.refusal is e.Refusal.OCCUPIED
    before = decided(now)["linux"]
    space = Space("/a", 4, 7)
    both, touched = fold(now, e.AddPod(AttachmentKey("s", "net1"), PodKey("default", "a"), "/b", 4, 7))
    assert touched is not None
    wanted = decided(both)["linux"]
    assert before.items() <= wanted.items()
    second = both.attachments[AttachmentKey("s", "net1")]
    for address in second.addresses:
        table = wanted[RuleKey(space, address)]
        assert wanted[RouteKey(space, anywhere(address), table=table)].index == second.index + 1
    assert not [key for key in before if isinstance(key, RuleKey)]
    for gone, left in (("net1", "eth0"), ("eth0", "net1")):
        after, _ = fold(both, e.DeletePod(AttachmentKey("s", gone)))
        found = decided(after)["linux"]
        assert set(after.attachments) == {AttachmentKey("s", left)}
        assert not [key for key in found if isinstance(key, RuleKey)]
        held = after.attachments[AttachmentKey("s", left)]
        assert {found[RouteKey(space, anywhere(address))].index for address in held.addresses} == {held.index + 1}


def anywhere(address: Address) -> Prefix:
    return Prefix(Address(bytes(len(address))), 0)


@given(st.lists(world.pod_events, max_size=20))
def test_what_was_confirmed_is_restored_and_the_rest_released(requests: list[e.Event]) -> None:
    now = world.start()
    for event in requests:
        try:
            now, _ = fold(now, event)
        except e.Refused:
            continue
        if isinstance(event, e.AddPod) and event.key.sandbox < "s4":
            now, _ = fold(now, e.PodWired(event.key))
    again, _ = fold(world.start(), e.Restored(dict(now.attachments), dict(now.cursors)))
    confirmed = {key: it for key, it in now.attachments.items() if it.confirmed}
    assert dict(again.attachments) == confirmed
    assert set(again.ledger.values()) == set(confirmed)
    assert again.cursors == now.cursors


def test_a_repeated_add_keeps_address_and_confirmation() -> None:
    key = AttachmentKey("s", "eth0")
    add = e.AddPod(key, PodKey("default", "a"), "/run/netns/a")
    first, _ = fold(world.start(), add)
    first, _ = fold(first, e.PodWired(key))
    assert fold(first, add)[0] == first


@pytest.mark.parametrize(
    ("node", "mtu", "refusal", "says"),
    [
        (Node(), 1500, e.Refusal.NOT_READY, "node one has no spec.podCIDRs yet"),
        (world.NODES[0], 0, e.Refusal.NOT_READY, "the MTU of node one is not known"),
        (Node((parse_prefix("10.1.1.0/30"),)), 1500, e.Refusal.EXHAUSTED, "10.1.1.0/30: all 1 are in use"),
        (Node((parse_prefix("10.1.1.0/32"),)), 1500, e.Refusal.EXHAUSTED, "10.1.1.0/32: all 0 are in use"),
        (
            Node((parse_prefix("fd01::/64"), parse_prefix("10.1.1.0/30"))),
            1500,
            e.Refusal.EXHAUSTED,
            "10.1.1.0/30: all 1 are in use",
        ),
    ],
    ids=["no pod CIDR", "no MTU", "IPv4 exhausted", "a block of one address", "of two blocks one exhausted"],
)
def test_what_cannot_be_granted_says_why_and_changes_nothing(
    node: Node, mtu: int, refusal: e.Refusal, says: str
) -> None:
    now = Snapshot(world.Local("one", mtu), nodes=Snapshot(world.LOCAL).nodes.set(world.NODE, node))
    if refusal is e.Refusal.EXHAUSTED and "all 1" in says:
        now, _ = fold(now, e.AddPod(AttachmentKey("first", "eth0"), PodKey("default", "a"), "/a"))
    with pytest.raises(e.Refused, match=says) as refused:
        fold(now, e.AddPod(AttachmentKey("s", "eth0"), PodKey("default", "b"), "/b"))
    assert refused.value.refusal is refusal


def _service(created: str, address: str = "10.96.0.1") -> Service:
    return Service((ServicePort("p", Protocol.TCP, 80),), (parse_address(address),), created=created)


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "a"),
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "b"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "a"),
    ],
    ids=["the older", "whichever came first", "of equal age the first by name"],
)
def test_a_frontend_that_two_services_claim_has_one_owner(first: str, second: str, winner: str) -> None:
    keys = ServiceKey("default", "a"), ServiceKey("default", "b")
    for order in (keys, keys[::-1]):
        values = dict(zip(keys, (_service(first), _service(second)), strict=True))
        now, _ = fold(world.start(), e.KubeStateChange(tuple((key, values[key]) for key in order)))
        assert [key.name for key in keys if frontends(now, key)] == [winner]
        gone, touched = fold(now, e.KubeStateChange(((ServiceKey("default", winner), None),)))
        assert touched is not None
        assert touched.services == frozenset(keys)
        assert [key.name for key in keys if frontends(gone, key)] == ["b" if winner == "a" else "a"]


def test_a_slice_that_changes_its_service_leaves_the_old_one() -> None:
    now, _ = fold(world.start(), e.KubeStateChange(((ServiceKey("default", "a"), _service("", "10.96.0.1")),)))
    now, _ = fold(now, e.KubeStateChange(((ServiceKey("default", "b"), _service("", "10.96.0.2")),)))
    slice_key = world.SliceKey("default", "x")
    member = world.Member(parse_address("10.1.0.2"))
    for owner in "ab":
        part = world.BackendSlice(
            ServiceKey("default", owner), (world.BackendPort("p", Protocol.TCP, 8080),), (member,)
        )
        now, touched = fold(now, e.KubeStateChange(((slice_key, part),)))
    assert touched is not None
    assert {key.name for key in touched.services} == {"a", "b"}
    backend = Serving((Backend(parse_address("10.1.0.2"), 8080),))
    assert frontends(now, ServiceKey("default", "a")) == {
        Frontend(parse_address("10.96.0.1"), Protocol.TCP, 80): Serving()
    }
    assert frontends(now, ServiceKey("default", "b")) == {
        Frontend(parse_address("10.96.0.2"), Protocol.TCP, 80): backend
    }


def _cidrs(*lists: tuple[str, ...]) -> tuple[tuple[ServiceCIDRKey, ServiceCIDR], ...]:
    values = (ServiceCIDR(tuple(map(parse_prefix, prefixes))) for prefixes in lists)
    return tuple((ServiceCIDRKey(str(number)), value) for number, value in enumerate(values))


@pytest.mark.parametrize(
    ("objects", "ranges"),
    [
        pytest.param((), ["10.96.0.0/16"], id="the configuration alone"),
        pytest.param((("10.96.0.0/16", "fd96::/112"),), ["10.96.0.0/16", "fd96::/112"], id="the same again"),
        pytest.param((("10.96.0.0/24",), ("10.96.255.0/24",)), ["10.96.0.0/16"], id="within"),
        pytest.param((("10.96.0.0/12",),), ["10.96.0.0/12"], id="around"),
        pytest.param(
            (("10.97.0.0/16",), ("10.95.0.0/16",)), ["10.95.0.0/16", "10.96.0.0/16", "10.97.0.0/16"], id="beside"
        ),
    ],
)
def test_service_ranges_are_those_of_configuration_and_objects_without_overlaps(
    objects: tuple[tuple[str, ...], ...], ranges: list[str]
) -> None:
    now, _ = fold(world.start(), e.KubeStateChange(_cidrs(*objects)))
    assert [str(prefix) for prefix in now.service_ranges] == ranges
    gone, _ = fold(now, e.KubeStateChange(tuple((key, None) for key, _ in _cidrs(*objects))))
    assert gone == world.start()


def test_a_range_touches_only_the_services_that_come_to_lie_in_it() -> None:
    inside, outside = ServiceKey("default", "a"), ServiceKey("default", "b")
    values = ((inside, _service("", "10.97.0.1")), (outside, _service("", "10.98.0.1")))
    now, _ = fold(world.start(), e.KubeStateChange(values))
    after, touched = fold(now, e.KubeStateChange(_cidrs(("10.97.0.0/16",))))
    assert touched is not None
    assert (touched.services, touched.ranges) == (frozenset((inside,)), True)
    held = {key for key in decided(after)["nftables"] if isinstance(key, ServiceRangeKey)}
    assert sorted(map(str, held)) == [
        "service range 10.96.0.0 to 10.96.255.255",
        "service range 10.97.0.0 to 10.97.255.255",
        "service range 10.98.0.1",
    ]
    _, touched = fold(after, e.KubeStateChange(_cidrs(("10.97.0.0/16",), ("10.97.4.0/24",))))
    assert touched is not None
    assert touched.services == frozenset()  # they lie in it as before


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("0.0.0.0/0", "the node's address 192.168.0.1 lies in it"),
        ("192.168.0.0/16", "the node's address 192.168.0.1 lies in it"),
        ("10.1.0.0/16", "the node's pod CIDR 10.1.1.0/29 lies in it"),
        ("10.1.1.0/30", "the node's pod CIDR 10.1.1.0/29 lies in it"),
    ],
    ids=["everything", "around the node", "around its pods", "within its pods"],
)
def test_a_service_range_in_which_somebody_lives_is_left_out_and_said_so(cidr: str, why: str) -> None:
    now = Snapshot(world.Local("one", 1500, (parse_prefix(cidr), parse_prefix("10.96.0.0/16"))))
    now, _ = fold(now, e.KubeStateChange(((world.NODE, world.NODES[0]),)))
    assert now.service_ranges == (parse_prefix("10.96.0.0/16"),)
    assert now.unfit_ranges == (f"service range {cidr} is not used: {why}",)


# --- the node's own address --------------------------------------------------------------------


def _home(*addresses: str) -> e.NodeAddressesChanged:
    link = parse_prefix("192.168.0.0/24")
    return e.NodeAddressesChanged(frozenset(map(parse_address, addresses)), frozenset((link,)))


def _sources(now: Snapshot) -> set[str]:
    """Of all routes, by family."""
    routes = [(key, it) for key, it in decided(now)["linux"].items() if isinstance(key, RouteKey) and not key.space]
    return {f"{key.destination.family} {'-' if it.source is None else show_address(it.source)}" for key, it in routes}


def test_routes_have_the_node_s_address_as_their_source_while_its_kernel_has_it() -> None:
    now, _ = fold(world.start(), e.AddPod(AttachmentKey("s", "eth0"), PodKey("default", "a"), "/run/netns/a"))
    now, _ = fold(now, e.KubeStateChange(((NodeKey("two"), world.NODES[1]),)))
    now, _ = fold(now, _home("192.168.0.1"))
    assert _sources(now) == {"IPv4 192.168.0.1", "IPv6 -"}  # fd99::1 is told by the cluster alone
    now, touched = fold(now, _home("192.168.0.1", "fd99::1", "192.0.2.9"))
    assert _sources(now) == {"IPv4 192.168.0.1", "IPv6 fd99::1"}
    assert touched is not None
    assert touched.attachments == {AttachmentKey("s", "eth0")}
    now, touched = fold(now, _home("192.168.0.1", "fd99::1"))
    assert touched == Touched()
    now, _ = fold(now, _home())
    assert _sources(now) == {"IPv4 -", "IPv4 10.1.1.1", "IPv6 -"}  # the last: to Services, of the node's own block


def test_an_attachment_never_gets_the_link_of_another_whose_names_end_elsewhere() -> None:
    """`k` with `b.c`, and `k.b` with `c`: they have links of their own; but one that an older version has made keeps
    its name."""
    keys = AttachmentKey("k", "b.c"), AttachmentKey("k.b", "c")
    now = world.start()
    for number, key in enumerate(keys):
        now, _ = fold(now, e.AddPod(key, PodKey("default", str(number)), f"/run/netns/{number}"))
    assert len({link_of(key, now.attachments[key]) for key in keys}) == 2
    old = replace(now.attachments[keys[0]], link="", confirmed=True)
    now, _ = fold(world.start(), e.Restored({keys[0]: old}, {}))
    with pytest.raises(e.Refused, match=r"c of sandbox k\.b would have the link of interface b\.c of sandbox k"):
        fold(now, e.AddPod(keys[1], PodKey("default", "b"), "/run/netns/3"))
    again, _ = fold(now, e.AddPod(keys[0], PodKey("default", "a"), "/run/netns/1"))
    assert link_of(keys[0], again.attachments[keys[0]]) == link_of(keys[0], old)
    gone, _ = fold(now, e.DeletePod(keys[0]))
    fold(gone, e.AddPod(keys[1], PodKey("default", "b"), "/run/netns/3"))
