"""How long we wait before we undo what others' hands do again and again. No clock: times are given."""

import asyncio
from typing import Any

import pytest

from podwire.controller.difference import Change
from podwire.controller.events import Disturbed
from podwire.controller.mending import CALM, DELAYS, VAIN, Mending, Patience
from podwire.controller.transaction import Result, Step
from podwire.model.network import UpKey


@pytest.mark.parametrize(
    ("pause", "waits"),
    [
        pytest.param(0.0, DELAYS, id="at once after each: the later"),
        pytest.param(CALM / 2, DELAYS, id="soon after each: the later"),
        pytest.param(CALM * 20, (0.0,) * len(DELAYS), id="long after each: always at once"),
    ],
)
def test_the_first_comes_at_once_and_the_more_in_a_row_the_later(pause: float, waits: tuple[float, ...]) -> None:
    patience, now = Patience(), 100.0
    found = []
    for _ in DELAYS:
        now += pause
        found.append(patience.delay(now))
        now += found[-1]
        patience.mended(now)
    assert tuple(found) == waits


def test_after_the_longest_delay_calm_makes_the_next_the_first() -> None:
    patience, now = Patience(), 0.0
    for _ in range(20):
        now += patience.delay(now)
        patience.mended(now)
    assert patience.delay(now) == DELAYS[-1]
    assert patience.delay(now + CALM + DELAYS[-1]) == 0.0


def test_looking_in_vain_delays_nothing() -> None:
    patience = Patience()
    assert [patience.delay(now) for now in (0.0, 0.1, 0.2)] == [0.0] * 3


def test_looks_at_all_in_vain_grow_rarer_but_not_as_rare_as_what_is_undone() -> None:
    patience, now = Patience(), 100.0
    for _ in range(20):
        now += patience.delay(now)
        patience.looked_in_vain(now)
    assert patience.delay(now) == DELAYS[VAIN]
    patience.mended(now)
    assert patience.delay(now) == DELAYS[VAIN + 1]
    patience.looked_in_vain(now)
    assert patience.delay(now) == DELAYS[VAIN + 1]


@pytest.mark.parametrize(
    ("again", "other", "mended"),
    [
        pytest.param({UpKey("pod", 7)}, {UpKey("other", 7)}, True, id="a pod, another pod"),
        pytest.param({UpKey("pod", 7)}, {UpKey("", 7)}, True, id="a pod, the node"),
        pytest.param(None, {UpKey("other", 7)}, True, id="looks at all, a pod"),
        pytest.param(None, {UpKey("other", 7)}, False, id="looks at all in vain, a pod"),
    ],
)
async def test_who_does_it_again_and_again_makes_nobody_else_wait(
    again: set[Any] | None, other: set[Any], mended: bool
) -> None:
    told: asyncio.Queue[Disturbed] = asyncio.Queue()
    mending = Mending(told.put_nowait)
    step = Step("linux", {UpKey("pod", 7): Change(None, True)} if mended else {}, {}, 0)
    keys = None if again is None else frozenset(again)
    for _ in range(50):
        mending.ended(Result(Disturbed("linux", keys, ""), steps=(step,)))
    mending.disturbed("linux", keys, "")
    mending.disturbed("linux", frozenset(other), "")
    async with asyncio.timeout(20):
        assert (await told.get()).keys == other
    assert told.empty()
    mending.close()
