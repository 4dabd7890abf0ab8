"""Wherever changes are cut into slices, nobody reaches a frontend who may not: before, after, and at every cut."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controller.difference import Change, Difference, Outcome, difference
from podwire.controller.events import Refused
from podwire.controller.snapshot import fold
from podwire.controller.transaction import _apply
from podwire.dataplane.nftables import render as r
from podwire.dataplane.nftables.driver import NFTables
from podwire.dataplane.nftables.slots import place
from podwire.model.addresses import Address, parse_address, parse_prefix
from podwire.model.network import (
    AffinityKey,
    AllowedKey,
    Backend,
    ExternalKey,
    Frontend,
    InternalKey,
    RememberKey,
    RestrictedKey,
    SharedKey,
    Slots,
)
from podwire.model.objects import Protocol
from podwire.services.frontends import desired
from tests.unit import world

CLIENTS = tuple(map(parse_address, ("10.1.1.2", "10.1.2.2", "203.0.113.5", "fd01::2", "2001:db8::5")))
IT = Frontend(parse_address("203.0.113.80"), Protocol.TCP, 80)
ONE, OTHER = (Slots(1, (Backend(parse_address(address), 8080),)) for address in ("10.1.1.2", "10.1.2.2"))
RANGES = tuple(AllowedKey(IT, parse_prefix(cidr)) for cidr in ("203.0.113.0/24", "10.1.0.0/16"))


class Cut(NFTables):
    """Keeps what is in force at each cut."""

    def __init__(self, held: dict[Any, Any], most: int) -> None:
        self.slice = most
        self.cuts = [dict(held)]

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        held = dict(self.cuts[-1])
        for key, change in difference.items():
            assert held.get(key) == change.before
            held.pop(key, None)
            if change.after is not None:
                held[key] = change.after
        self.cuts.append(held)
        return {key: Outcome(change.after) for key, change in difference.items()}


async def cuts(before: dict[Any, Any], after: dict[Any, Any], most: int) -> list[dict[Any, Any]]:
    driver = Cut(before, most)
    await _apply(driver, difference(after, before, lambda wanted, _: wanted))
    assert driver.cuts[-1] == after
    return driver.cuts


def reached(held: dict[Any, Any], client: Address, to: Frontend) -> set[tuple[Any, Any]]:
    """The lists of backends that are open to a client."""
    ranges = [key.sources for key in held if isinstance(key, AllowedKey) and key.frontend == to]
    if RestrictedKey(to) in held and not any(client in cidr for cidr in ranges):
        return set()
    return {(key, held[key]) for key in (to, InternalKey(to)) if key in held}


def closed(found: list[dict[Any, Any]]) -> None:
    before, after = found[0], found[-1]
    for to in {key for held in found for key in held if isinstance(key, Frontend)}:
        for client in (each for each in CLIENTS if len(each) == len(to.address)):
            may = reached(before, client, to) | reached(after, client, to)
            for held in found:
                assert reached(held, client, to) <= may, f"{client} reaches {to}"


def placed(now: Any) -> dict[Any, Any]:
    return {key: place(value, None) for key, value in desired(now, None)["nftables"].items()}


@given(st.lists(world.kube_changes, min_size=1, max_size=12), st.integers(0, 11), st.integers(1, 6))
async def test_no_cut_opens_a_frontend_to_who_may_not_use_it(events: list[Any], since: int, most: int) -> None:
    """Between any two clusters, one of which the other has become."""
    now = world.start()
    befores = [placed(now)]
    for event in events:
        with suppress(Refused):
            now, _ = fold(now, event)
        befores.append(placed(now))
    closed(await cuts(befores[min(since, len(befores) - 1)], befores[-1], most))
    closed(await cuts(befores[-1], befores[min(since, len(befores) - 1)], most))


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((), (RestrictedKey(IT), IT, RANGES[0]), id="comes"),
        pytest.param((RestrictedKey(IT), IT, RANGES[0]), (), id="goes"),
        pytest.param((RestrictedKey(IT), IT, InternalKey(IT), RANGES[0]), (), id="goes with the cluster's list"),
        pytest.param((IT,), (RestrictedKey(IT), IT, RANGES[0]), id="is restricted"),
        pytest.param((RestrictedKey(IT), IT, RANGES[0]), (IT,), id="is opened"),
        pytest.param((RestrictedKey(IT), IT, RANGES[0]), (RestrictedKey(IT), IT, RANGES[1]), id="for others"),
    ],
)
@pytest.mark.parametrize("same", [True, False], ids=["the same backend", "another's"])
async def test_a_restriction_surrounds_its_frontend(
    before: tuple[Any, ...], after: tuple[Any, ...], most: int, same: bool
) -> None:
    def held(keys: tuple[Any, ...], backends: Slots) -> dict[Any, Any]:
        return {key: backends if isinstance(key, Frontend | InternalKey) else True for key in keys}

    closed(await cuts(held(before, ONE), held(after, ONE if same else OTHER), most))


@pytest.mark.parametrize(
    "needed",
    [
        pytest.param(RestrictedKey(IT), id="who is restricted"),
        pytest.param(ExternalKey(IT), id="whose clients are hidden"),
        pytest.param(InternalKey(IT), id="where the cluster's clients go"),
        pytest.param(RememberKey(IT), id="whose clients are remembered"),
        pytest.param(SharedKey(IT), id="with whose its clients are remembered"),
        pytest.param(AffinityKey(4, 60), id="what remembers them"),
    ],
)
def test_what_a_frontend_needs_comes_before_it_and_goes_after_it(needed: Any) -> None:
    comes, goes = Change(None, ONE), Change(ONE, None)
    assert r.rank(needed, Change(None, True)) < r.rank(IT, comes)
    assert r.rank(IT, goes) < r.rank(needed, Change(True, None))
