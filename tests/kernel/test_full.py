"""A map that is full costs only what doesn't fit: no other Service, no restriction, and what was there stays."""

import re
from collections.abc import Iterator

import pytest

from podwire.controller.difference import Change, Outcome, Scope
from podwire.dataplane.nftables import libnftables, slots
from podwire.dataplane.nftables.driver import NFTables
from podwire.dataplane.nftables.layout import layout
from podwire.model.addresses import IPV4, Prefix, parse_address
from podwire.model.network import AllowedKey, Backend, Frontend, RestrictedKey, Serving
from podwire.model.objects import Protocol
from tests.kernel.rig import Space

SOURCES = Prefix(parse_address("192.0.2.0"), 24)


@pytest.fixture
def driver(node: Space) -> Iterator[NFTables]:
    it = NFTables()
    yield it
    it.close()


def table(**sizes: int) -> None:
    """As the driver would make it, with less room."""
    text = layout(IPV4)
    for name, size in sizes.items():
        text, count = re.subn(rf"(podwire {name} {{[^}}]* size )\d+", rf"\g<1>{size}", text)
        assert count == 1
    assert libnftables.run(text) == ""


def frontend(number: int) -> Frontend:
    return Frontend(parse_address(f"10.96.0.{number}"), Protocol.TCP, 80)


def come(*counts: int, first: int = 1) -> dict[Frontend, Change]:
    """Frontends with so many backends."""
    some = [frozenset(Backend(parse_address(f"10.1.1.{n}"), 80) for n in range(1, count + 1)) for count in counts]
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
    table(**{name: size})
    change = come(*counts)
    outcomes = driver.apply(change)
    full = {key for key, outcome in outcomes.items() if outcome.full}
    assert len(full) == len(counts) - fit
    assert held(driver) == change.keys() - full
    assert all(outcomes[key].value is None and "ENFILE" in (outcomes[key].error or "") for key in full)
    assert all(outcomes[key] == Outcome(change[key].after) for key in change.keys() - full)


def test_what_could_not_grow_holds_what_it_held_and_grows_once_there_is_room(driver: NFTables) -> None:
    table(eps=6)
    small = come(2, 2)
    driver.apply(small)
    grown = {key: Change(small[key].after, change.after) for key, change in come(5).items()}
    outcomes = driver.apply(grown)
    assert outcomes[frontend(1)].full
    assert outcomes[frontend(1)].value == small[frontend(1)].after
    driver.apply({frontend(2): Change(small[frontend(2)].after, None)})
    assert driver.apply(grown) == {frontend(1): Outcome(grown[frontend(1)].after)}


def test_a_frontend_that_can_not_be_restricted_for_want_of_room_is_not_made(driver: NFTables) -> None:
    table(restricted=1)
    found = come(1, 1)
    for each in tuple(found):
        found |= {RestrictedKey(each): Change(None, True)}  # type: ignore[dict-item]
        found |= {AllowedKey(each, SOURCES): Change(None, True)}  # type: ignore[dict-item]
    outcomes = driver.apply(found)
    assert {key for key, outcome in outcomes.items() if outcome.full} == {frontend(2), RestrictedKey(frontend(2))}
    assert held(driver) == {frontend(1)}
