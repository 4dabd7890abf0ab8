"""Slots of a frontend, and that the elements of a change are read back as itself."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.controller.difference import Change
from podwire.dataplane.messages import attr, attrs, nest, text
from podwire.dataplane.nftables import reading, slots
from podwire.dataplane.nftables import render as r
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.driver import MAPS
from podwire.dataplane.nftables.elements import elements
from podwire.dataplane.nftables.layout import CLASSES
from podwire.model.addresses import IPV4, IPV6, Address, Family, Prefix, parse_address
from podwire.model.network import (
    AllowedKey,
    Backend,
    ClusterRangeKey,
    Frontend,
    InternalKey,
    LocalPodKey,
    RestrictedKey,
    ServiceRangeKey,
    Serving,
    Slots,
    TunnelEndKey,
    TunnelPortKey,
    UnmasqueradedKey,
)
from podwire.model.objects import Protocol

backends = st.builds(lambda n: Backend(Address(n.to_bytes(4, "big")), 80), st.integers(1, 40))
wanted = st.builds(
    lambda some, heavy, weight, dropped, affinity, outside: Serving(
        tuple(sorted(some)), dropped and not some, affinity, some & heavy, weight if some & heavy else 1, outside
    ),
    st.frozensets(backends, max_size=20),
    st.frozensets(backends, max_size=5),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from((0, 60, 10800)),
    st.booleans(),
)
broken = st.builds(
    Slots,
    st.none() | st.sampled_from((-1, 1, 2, 4, 8, 16)),
    st.lists(st.none() | backends, max_size=16).map(tuple),
    st.booleans(),
    st.booleans(),
    st.sampled_from((0, 60)),
    st.none() | st.sampled_from((-1, 1, 4)),
    st.frozensets(backends, max_size=4),
    st.booleans(),
)
FRONTENDS = {
    IPV4: Frontend(parse_address("10.96.0.1"), Protocol.TCP, 80),
    IPV6: Frontend(parse_address("fd96::1"), Protocol.SCTP, 443),
}


def right(it: Slots, want: Serving) -> bool:
    if not want.backends:
        return it == Slots(None, (), refused=not want.dropped, dropped=want.dropped)
    size = (it.drawn if want.affinity else it.verdict) or 0
    held = Counter(b for b in it.backends if b is not None)
    return (
        size == len(it.backends)
        and held == {b: want.weight if b in want.heavy else 1 for b in want.backends}
        and size // 2 <= held.total() <= size
        and all(b is not None for b in it.backends[: size // 2])
        and not it.refused | it.dropped
        and it.affinity == want.affinity
        and (it.verdict if want.affinity else it.drawn) is None
        and it.keeps == frozenset(want.backends if want.affinity else ())
        and it.outside == want.outside
    )


@given(st.lists(wanted, min_size=1, max_size=8))
def test_slots_hold_all_keep_the_lower_half_full_and_move_little(history: list[Serving]) -> None:
    now: Slots | None = None
    for want in history:
        after = slots.slots(want, now)
        assert right(after, want)
        assert slots.slots(want, after) == after
        if now is not None and len(now.backends) == len(after.backends):
            moved = sum(a != b for a, b in zip(now.backends, after.backends, strict=True))
            old, new = Counter(now.backends), Counter(after.backends)
            assert moved <= 2 * ((old - new) + (new - old)).total()
        now = after


@given(wanted, broken)
def test_whatever_is_read_what_is_wanted_comes_right(want: Serving, found: Slots) -> None:
    """Also from a state with repeated backends, holes in the lower half, slots without a verdict."""
    after = slots.slots(want, found)
    assert right(after, want)
    assert slots.slots(want, after) == after


def test_more_than_the_largest_class_are_left_out_from_the_end() -> None:
    some = [Backend(Address((n + 1).to_bytes(4, "big")), 80) for n in range(CLASSES[-1] + 5)]
    assert slots.slots(Serving(tuple(some)), None).backends == tuple(some[: CLASSES[-1]])


def test_weights_give_way_where_the_largest_class_is_too_small_for_them() -> None:
    some = tuple(Backend(Address((n + 1).to_bytes(4, "big")), 80) for n in range(CLASSES[-1] // 2 + 1))
    after = slots.slots(Serving(some, heavy=frozenset(some), weight=2), None)
    assert Counter(b for b in after.backends if b is not None) == dict.fromkeys(some, 1)


class Maps:
    """The kernel's maps in memory: refuses what nfnetlink would refuse."""

    def __init__(self) -> None:
        self.held: dict[str, dict[bytes, tuple[bytes, int, bytes]]] = {}

    def apply(self, messages: list[w.Message]) -> None:
        for message in messages:
            assert len(message.body) < 65_535
            name = attrs(message.body, 4)[2][:-1].decode()
            held = self.held.setdefault(name, {})
            for key, data, flags, _, until in elements([message.body]):
                if message.kind == w.DELELEM:
                    assert held.pop(key)[2] == until
                else:
                    assert key not in held, "EEXIST"
                    held[key] = (data, flags, until)

    def read(self, family: Family) -> Mapping[object, object]:
        dumped = {
            name: [m.body for m in w.messages(family, name, [w.element(key, *it) for key, it in some.items()])]
            for name, some in self.held.items()
        }
        return reading.keys(family, dumped)


@given(wanted, wanted, st.sampled_from((IPV4, IPV6)), st.booleans())
def test_elements_of_a_change_are_read_back(first: Serving, second: Serving, family: Family, internal: bool) -> None:
    if family == IPV6:
        first, second = map(as_ipv6, (first, second))
    if internal:  # a list for the cluster is never empty, and nobody's outside
        first, second = (replace(some, outside=False) for some in (first, second))
        first, second = (some if some.backends else as_ipv6(ONE) if family == IPV6 else ONE for some in (first, second))
    frontend = InternalKey(FRONTENDS[family]) if internal else FRONTENDS[family]
    one = slots.slots(first, None)
    two = slots.slots(second, one)
    maps = Maps()
    for change in (Change(None, one), Change(one, two)):
        if change.before != change.after:
            maps.apply(r.render(frontend, change))
        assert maps.read(family) == {frontend: change.after}
    maps.apply(r.render(frontend, Change(two, None)))
    assert maps.read(family) == {}


ONE = Serving((Backend(Address(bytes(3) + b"\1"), 80),))


def as_ipv6(it: Serving) -> Serving:
    backends, heavy = (
        [Backend(Address(bytes(12) + b.address), b.port) for b in some] for some in (it.backends, it.heavy)
    )
    return Serving(tuple(backends), it.dropped, it.affinity, frozenset(heavy), it.weight, it.outside)


def test_a_list_for_the_cluster_stands_beside_the_frontends_own() -> None:
    name, maps = FRONTENDS[IPV4], Maps()
    two = Serving((*ONE.backends, Backend(Address(bytes(3) + b"\2"), 80)))
    held = {name: slots.slots(Serving(dropped=True), None), InternalKey(name): slots.slots(two, None)}
    for key, value in held.items():
        maps.apply(r.render(key, Change(None, value)))
    assert maps.read(IPV4) == held
    maps.apply(r.render(name, Change(held[name], slots.slots(ONE, None))))
    assert maps.read(IPV4) == held | {name: slots.slots(ONE, None)}


@pytest.mark.parametrize("outside", [False, True])
def test_a_verdict_in_both_maps_is_seen_and_comes_right(outside: bool) -> None:
    """By hands: whoever asks for a frontend with two lists must not find another before them."""
    name, maps = FRONTENDS[IPV4], Maps()
    for some in (ONE, replace(ONE, outside=True)):
        placed = slots.slots(some, None)
        maps.apply([it for it in r.render(name, Change(None, placed)) if b"svc" in it.body])
    maps.apply([it for it in r.render(name, Change(None, slots.slots(ONE, None))) if b"eps" in it.body])
    found, want = maps.read(IPV4), slots.slots(replace(ONE, outside=outside), None)
    assert found != {name: want}
    for key, value in sorted(found.items(), key=lambda item: isinstance(item[0], Frontend)):
        maps.apply(r.render(key, Change(value, want if key == name else None)))
    assert maps.read(IPV4) == {name: want}


def test_a_change_of_many_backends_fits_its_messages() -> None:
    many = Serving(tuple(Backend(Address((n + 1).to_bytes(4, "big")), 80) for n in range(4000)))
    maps = Maps()
    maps.apply(r.render(FRONTENDS[IPV4], Change(None, slots.slots(many, None))))
    assert maps.read(IPV4) == {FRONTENDS[IPV4]: slots.slots(many, None)}


ranges = st.builds(
    lambda n, length: (n >> (32 - length) << (32 - length), length), st.integers(0, 2**32 - 1), st.integers(0, 32)
)


@pytest.mark.parametrize(
    ("name", "form"),
    [("service_ranges", ServiceRangeKey), ("cluster", ClusterRangeKey), ("unmasqueraded", UnmasqueradedKey)],
    ids=["Services", "pods", "not masqueraded"],
)
@given(drawn=st.lists(ranges, max_size=5))
def test_ranges_are_read_back(
    name: str, form: type[ServiceRangeKey | ClusterRangeKey | UnmasqueradedKey], drawn: list[tuple[int, int]]
) -> None:
    kept: list[Prefix] = []
    for number, length in drawn:
        prefix = Prefix(Address(number.to_bytes(4, "big")), length)
        if all(prefix.first not in other and other.first not in prefix for other in kept):
            kept.append(prefix)
    keys = {form(p.first, p.last): True for p in kept}
    bodies = [m.body for key in keys for m in r.render(key, Change(None, True))]
    assert reading.keys(IPV4, {name: bodies}) == keys


@given(st.lists(st.tuples(ranges, st.sampled_from((80, 443))), max_size=5, unique=True))
def test_allowed_sources_are_read_back(drawn: list[tuple[tuple[int, int], int]]) -> None:
    address, maps, keys = parse_address("192.0.2.1"), Maps(), {}
    for (number, length), port in drawn:
        frontend = Frontend(address, Protocol.TCP, port)
        key = AllowedKey(frontend, Prefix(Address(number.to_bytes(4, "big")), length))
        if all(key.sources.first != other.sources.first or other.frontend != frontend for other in keys):
            keys[key] = True
    for key in keys:
        maps.apply(r.render(key, Change(None, True)))
    assert maps.read(IPV4) == keys
    for key in keys:
        maps.apply(r.render(key, Change(True, None)))
    assert maps.read(IPV4) == {}


def test_adjacent_ranges_stay_apart() -> None:
    one = ServiceRangeKey(parse_address("10.0.0.0"), parse_address("10.0.0.255"))
    two = ServiceRangeKey(parse_address("10.0.1.0"), parse_address("10.0.1.255"))
    bodies = [m.body for key in (two, one) for m in r.render(key, Change(None, True))]
    assert reading.keys(IPV4, {"service_ranges": bodies}) == {one: True, two: True}


@pytest.mark.parametrize(
    "key",
    [
        LocalPodKey(parse_address("fd01::2")),
        RestrictedKey(FRONTENDS[IPV6]),
        TunnelEndKey(parse_address("fd01::2")),
        TunnelPortKey(IPV6, 4789),
    ],
    ids=str,
)
def test_a_key_without_a_value_is_read_back(key: LocalPodKey | RestrictedKey | TunnelEndKey | TunnelPortKey) -> None:
    maps = Maps()
    maps.apply(r.render(key, Change(None, True)))
    assert maps.read(IPV6) == {key: True}


SIZES = {"eps": 16, "allowed": 16, "pods": 8, "service_ranges": 4, "cluster": 4, "external_ips": 4}
SIZES |= {"tunnels": 4, "tunnel_ports": 2, "serving": 20, "serving_internal": 20}
elements_of_hands = st.lists(
    st.tuples(
        st.sampled_from(sorted(MAPS)),
        st.binary(min_size=4, max_size=4),
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
    ),
    max_size=6,
)


@given(elements_of_hands)
def test_whatever_hands_put_into_the_maps_is_read_and_can_be_removed(drawn: list[tuple[str, bytes, int, int]]) -> None:
    """Any protocol number, any slot, no data where there should be some, a catch-all; beside each other."""
    put: dict[str, list[bytes]] = {}
    for name, address, protocol, slot in drawn:
        key = address + bytes((protocol, 0, 0, 0)) + bytes((0, 80, 0, 0)) + slot.to_bytes(4, "little")
        key = key[: SIZES.get(name, 12)]
        key = key[: slot % 17] if slot % 3 == 0 else key  # in a table of another form than ours
        data = attr(1, address + bytes((0, 80, 0, 0))) if slot % 2 else b""
        element = w.element(key, data) if slot % 5 else nest(1, attr(3, bytes((0, 0, 0, 2))))
        put.setdefault(name, []).append(element)
    dumped = {name: [w.message(w.table(IPV4) + text(2, name), some, False).body] for name, some in put.items()}
    for key, value in reading.keys(IPV4, dumped).items():
        gone = slots.slots(Serving(), value) if isinstance(key, Frontend) else None
        assert r.render(key, Change(value, gone if isinstance(key, Frontend) else None)) or value == gone
