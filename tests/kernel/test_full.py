"""A map that is full costs only what doesn't fit: no other Service, no restriction, and what was there stays."""

import re
from collections.abc import Iterator

import pytest

from podwire.controller.difference import Change, Outcome, Scope
from podwire.controller.events import KubeStateChange
from podwire.controller.transaction import Capability, Transaction
from podwire.dataplane.nftables import libnftables, slots
from podwire.dataplane.nftables.driver import NFTables
from podwire.dataplane.nftables.layout import layout
from podwire.model.addresses import IPV4, IPV6, Prefix, parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import AllowedKey, Backend, Frontend, RestrictedKey, Serving
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.room import Capacity
from podwire.model.snapshot import Local, Snapshot
from podwire.services.frontends import desired
from tests.kernel.rig import Space

SOURCES = Prefix(parse_address("192.0.2.0"), 24)


@pytest.fixture
def driver(node: Space) -> Iterator[NFTables]:
    it = NFTables()
    yield it
    it.close()


def tables(**sizes: int) -> None:
    """As the driver would make them, that of IPv4 with less room."""
    text = layout(IPV4)
    for name, size in sizes.items():
        text, count = re.subn(rf"(podwire {name} {{[^}}]* size )\d+", rf"\g<1>{size}", text)
        assert count == 1
    assert libnftables.run(f"{text}\n{layout(IPV6)}") == ""


def frontend(number: int) -> Frontend:
    return Frontend(parse_address(f"10.96.0.{number}"), Protocol.TCP, 80)


def come(*counts: int, first: int = 1) -> dict[Frontend, Change]:
    """Frontends with so many backends."""
    some = [tuple(sorted(Backend(parse_address(f"10.1.1.{n}"), 80) for n in range(1, count + 1))) for count in counts]
    return {frontend(n): Change(None, slots.slots(Serving(it), None)) for n, it in enumerate(some, first)}


def held(driver: NFTables) -> set[Frontend]:
    return {key for key in driver.read(Scope(None, frozenset())) if isinstance(key, Frontend)}


@pytest.mark.parametrize(
    ("name", "size", "counts", "fit"),
    [
        pytest.param("svc", 3, (1, 1, 1, 1, 1), 3, id="verdicts"),
        pytest.param("eps", 9, (3, 3, 3, 3), 3, id="slots"),
        pytest.param("refused", 2, (0, 0, 0), 2, id="refused frontends"),
    ],
)
def test_what_does_not_fit_is_left_out_whole(
    driver: NFTables, name: str, size: int, counts: tuple[int, ...], fit: int
) -> None:
    tables(**{name: size})
    change = come(*counts)
    outcomes = driver.apply(change)
    full = {key for key, outcome in outcomes.items() if outcome.full}
    assert len(full) == len(counts) - fit
    assert held(driver) == change.keys() - full
    assert all(outcomes[key].value is None and "ENFILE" in (outcomes[key].error or "") for key in full)
    assert all(outcomes[key] == Outcome(change[key].after) for key in change.keys() - full)


def test_what_could_not_grow_holds_what_it_held_and_grows_once_there_is_room(driver: NFTables) -> None:
    tables(eps=6)
    small = come(2, 2)
    driver.apply(small)
    grown = {key: Change(small[key].after, change.after) for key, change in come(5).items()}
    outcomes = driver.apply(grown)
    assert outcomes[frontend(1)].full
    assert outcomes[frontend(1)].value == small[frontend(1)].after
    driver.apply({frontend(2): Change(small[frontend(2)].after, None)})
    assert driver.apply(grown) == {frontend(1): Outcome(grown[frontend(1)].after)}


def test_a_frontend_that_can_not_be_restricted_for_want_of_room_is_not_made(driver: NFTables) -> None:
    tables(restricted=1)
    found = come(1, 1)
    for each in tuple(found):
        found |= {RestrictedKey(each): Change(None, True)}  # type: ignore[dict-item]
        found |= {AllowedKey(each, SOURCES): Change(None, True)}  # type: ignore[dict-item]
    outcomes = driver.apply(found)
    assert {key for key, outcome in outcomes.items() if outcome.full} == {frontend(2), RestrictedKey(frontend(2))}
    assert held(driver) == {frontend(1)}


ROOM = Capacity((4, 9, 2), 8192)


def objects(number: int, backends: int, created: int, affinity: int = 0) -> tuple[tuple[ObjectKey, Object | None], ...]:
    key, port = ServiceKey("default", f"s{number}"), ServicePort("p", Protocol.TCP, 80)
    members = tuple(Member(parse_address(f"10.1.1.{n}")) for n in range(1, backends + 1))
    address = (parse_address(f"10.96.0.{number}"),)
    return (
        (key, Service((port,), address, created=f"2026-01-0{created}T00:00:00Z", affinity=affinity)),
        (SliceKey("default", f"s{number}"), BackendSlice(key, (BackendPort("p", Protocol.TCP, 80),), members)),
    )


CHANGES = (
    pytest.param([objects(1, 4, 1), objects(2, 4, 2), objects(3, 2, 3), objects(4, 1, 4)], {1, 2, 4}, id="they come"),
    pytest.param([objects(1, 4, 2), objects(2, 4, 3), objects(3, 5, 1)], {1, 3}, id="an older one comes last"),
    pytest.param([objects(1, 1, 1), objects(2, 4, 2), objects(3, 4, 3), objects(1, 3, 1)], {1, 2}, id="an older grows"),
    pytest.param([objects(1, 5, 1), objects(2, 5, 2), objects(1, 4, 1)], {1, 2}, id="an older one shrinks"),
    pytest.param([objects(n, 1, n) for n in (5, 4, 3, 2, 1)], {1, 2, 3, 4}, id="too many frontends"),
    pytest.param([objects(n, 2, n, 60) for n in (3, 2, 1)], {1, 2}, id="too many that remember"),
)


@pytest.mark.parametrize(("way", "fit"), CHANGES)
async def test_what_is_decided_for_the_room_that_there_is_always_fits(
    driver: NFTables, way: list[tuple[tuple[ObjectKey, Object | None], ...]], fit: set[int]
) -> None:
    """One after the other and all together: the kernel refuses nothing, and holds the same in the end."""
    frontends_, slots_, remembering = ROOM.units
    tables(svc=frontends_, eps=slots_, refused=frontends_, drawn=remembering, remembered=remembering)
    transaction = Transaction((Capability("services", frozenset(("nftables",)), desired),), (driver,))
    now = Snapshot(Local("one", service_cidrs=(parse_prefix("10.96.0.0/16"),), capacity=ROOM), whole=True)
    for changes in way:
        now, result = await transaction.run(now, KubeStateChange(changes))
        assert result.error is None
    assert held(driver) == {frontend(number) for number in fit}
    gone = KubeStateChange(tuple((key, None) for key in now.services))
    now, result = await transaction.run(now, gone)
    assert (result.error, held(driver)) == (None, set())
    now, result = await transaction.run(now, KubeStateChange(tuple(dict(sum(way, ())).items())))
    assert (result.error, held(driver)) == (None, {frontend(number) for number in fit})
