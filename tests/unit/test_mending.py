"""How long we wait before we undo what others' hands do again and again. No clock: times are given."""

import pytest

from podwire.controller.mending import CALM, DELAYS, Patience


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
