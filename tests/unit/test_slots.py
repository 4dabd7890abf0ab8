"""Slots of a frontend, and that the elements of a change are read back as itself."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from podwire.controller.difference import Change
from podwire.dataplane.messages import attr, attrs, nest
from podwire.dataplane.nftables import reading, slots
from podwire.dataplane.nftables import render as r
from podwire.dataplane.nftables.layout import CLASSES
from podwire.model.addresses import IPV4, IPV6, Address, Family, Prefix, parse_address
from podwire.model.network import Backend, Frontend, LocalPodKey, ServiceRangeKey, Slots
from podwire.model.objects import Protocol

backends = st.builds(lambda n: Backend(Address(n.to_bytes(4, "big")), 80), st.integers(1, 40))
wanted = st.frozensets(backends, max_size=20)
broken = st.builds(
    Slots, st.none() | st.sampled_from((-1, 0, 1, 2, 4, 8, 16)), st.lists(st.none() | backends, max_size=16).map(tuple)
)
FRONTENDS = {
    IPV4: Frontend(parse_address("10.96.0.1"), Protocol.TCP, 80),
    IPV6: Frontend(parse_address("fd96::1"), Protocol.SCTP, 443),
}


def right(it: Slots, want: frozenset[Backend]) -> bool:
    size = it.verdict
    held = [b for b in it.backends if b is not None]
    return (
        size == len(it.backends)
        and set(held) == want
        and len(held) == len(want)
        and (size == 0) == (not want)
        and size // 2 <= len(want) <= size
        and all(b is not None for b in it.backends[: size // 2])
    )


@given(st.lists(wanted, min_size=1, max_size=8))
def test_slots_hold_all_keep_the_lower_half_full_and_move_little(history: list[frozenset[Backend]]) -> None:
    now: Slots | None = None
    for want in history:
        after = slots.slots(want, now)
        assert right(after, want)
        assert slots.slots(want, after) == after
        if now is not None and now.verdict == after.verdict:
            moved = sum(a != b for a, b in zip(now.backends, after.backends, strict=True))
            assert moved <= 2 * len(set(now.backends) ^ set(after.backends))
        now = after


@given(wanted, broken)
def test_whatever_is_read_what_is_wanted_comes_right(want: frozenset[Backend], found: Slots) -> None:
    """Also from a state with repeated backends, holes in the lower half, slots without a verdict."""
    after = slots.slots(want, found)
    assert right(after, want)
    assert slots.slots(want, after) == after


def test_the_order_of_the_set_does_not_matter() -> None:
    some = [Backend(Address(bytes((10, 0, 0, n))), 80) for n in range(9)]
    assert slots.slots(frozenset(some), None) == slots.slots(frozenset(reversed(some)), None)


def test_more_than_the_largest_class_are_left_out_from_the_end() -> None:
    some = [Backend(Address((n + 1).to_bytes(4, "big")), 80) for n in range(CLASSES[-1] + 5)]
    after = slots.slots(frozenset(some), None)
    assert after.backends == tuple(some[: CLASSES[-1]])


class Maps:
    """The kernel's maps in memory: refuses what nfnetlink would refuse."""

    def __init__(self) -> None:
        self.held: dict[str, dict[bytes, tuple[bytes, int]]] = {}

    def apply(self, messages: list[r.Message]) -> None:
        for message in messages:
            assert len(message.body) < 65_535
            name = attrs(message.body, 4)[2][:-1].decode()
            elements = self.held.setdefault(name, {})
            for key, data, flags, _ in reading.elements([message.body]):
                if message.kind == r.DELELEM:
                    del elements[key]
                else:
                    assert key not in elements, "EEXIST"
                    elements[key] = (data, flags)

    def read(self, family: Family) -> Mapping[object, object]:
        dumped = {
            name: [
                m.body
                for key, (data, flags) in some.items()
                for m in r._messages(family, name, [r._element(key, data, flags)])
            ]
            for name, some in self.held.items()
        }
        return reading.keys(family, dumped)


@given(wanted, wanted, st.sampled_from((IPV4, IPV6)))
def test_elements_of_a_change_are_read_back(
    first: frozenset[Backend], second: frozenset[Backend], family: Family
) -> None:
    if family == IPV6:
        first, second = (
            frozenset(Backend(Address(bytes(12) + b.address), b.port) for b in some) for some in (first, second)
        )
    frontend = FRONTENDS[family]
    one = slots.slots(first, None)
    two = slots.slots(second, one)
    maps = Maps()
    for change in (Change(None, one), Change(one, two)):
        if change.before != change.after:
            maps.apply(r.render(frontend, change))
        assert maps.read(family) == {frontend: change.after}
    maps.apply(r.render(frontend, Change(two, None)))
    assert maps.read(family) == {}


def test_a_change_of_many_backends_fits_its_messages() -> None:
    many = frozenset(Backend(Address((n + 1).to_bytes(4, "big")), 80) for n in range(4000))
    maps = Maps()
    maps.apply(r.render(FRONTENDS[IPV4], Change(None, slots.slots(many, None))))
    assert maps.read(IPV4) == {FRONTENDS[IPV4]: slots.slots(many, None)}


ranges = st.builds(
    lambda n, length: (n >> (32 - length) << (32 - length), length), st.integers(0, 2**32 - 1), st.integers(1, 32)
)


@given(st.lists(ranges, max_size=5))
def test_ranges_are_read_back(drawn: list[tuple[int, int]]) -> None:
    kept: list[Prefix] = []
    for number, length in drawn:
        prefix = Prefix(Address(number.to_bytes(4, "big")), length)
        if all(prefix.first not in other and other.first not in prefix for other in kept):
            kept.append(prefix)
    keys = {ServiceRangeKey(p.first, p.last): True for p in kept}
    bodies = [m.body for key in keys for m in r.render(key, Change(None, True))]
    assert reading.keys(IPV4, {"service_ranges": bodies}) == keys


def test_adjacent_ranges_stay_apart() -> None:
    one = ServiceRangeKey(parse_address("10.0.0.0"), parse_address("10.0.0.255"))
    two = ServiceRangeKey(parse_address("10.0.1.0"), parse_address("10.0.1.255"))
    bodies = [m.body for key in (two, one) for m in r.render(key, Change(None, True))]
    assert reading.keys(IPV4, {"service_ranges": bodies}) == {one: True, two: True}


def test_a_local_pod_is_read_back() -> None:
    maps = Maps()
    key = LocalPodKey(parse_address("fd01::2"))
    maps.apply(r.render(key, Change(None, True)))
    assert maps.read(IPV6) == {key: True}


elements_of_hands = st.lists(
    st.tuples(
        st.sampled_from(("svc", "eps", "refused", "external", "pods", "service_ranges")),
        st.binary(min_size=4, max_size=4),
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
    ),
    max_size=6,
)


@given(elements_of_hands)
def test_whatever_hands_put_into_the_maps_is_read_and_can_be_removed(drawn: list[tuple[str, bytes, int, int]]) -> None:
    """Any protocol number, any slot, no data where there should be some, a catch-all."""
    dumped: dict[str, list[bytes]] = {}
    for name, address, protocol, slot in drawn:
        key = address + bytes((protocol, 0, 0, 0)) + bytes((0, 80, 0, 0)) + slot.to_bytes(4, "little")
        key = key[: {"eps": 16, "pods": 8, "service_ranges": 4}.get(name, 12)]
        key = key[: slot % 17] if slot % 3 == 0 else key  # in a table of another form than ours
        element = r._element(key) if slot % 5 else nest(1, attr(3, bytes((0, 0, 0, 2))))
        dumped.setdefault(name, []).append(r._message(bytes(4), [element], False).body)
    for key, value in reading.keys(IPV4, dumped).items():
        gone = slots.slots(frozenset(), value) if isinstance(key, Frontend) else None
        assert r.render(key, Change(value, gone if isinstance(key, Frontend) else None)) or value == gone
