"""Which answers the churn calls misdirected."""

import pytest

from tests.bench.churn import Asked, misdirected

CHANGES = [(0.0, 1, ("10.1.2.2", "10.1.2.3")), (10.0, 1, ("10.1.2.3",)), (12.0, 1, ("10.1.2.3", "10.1.2.4"))]


@pytest.mark.parametrize(
    ("began", "answer", "gone"),
    [
        pytest.param(5.0, "10.1.2.2", "right", id="a backend of that time"),
        pytest.param(10.9, "10.1.2.2", "right", id="one that left a moment before"),
        pytest.param(11.5, "10.1.2.2", 1.5, id="one that left long before"),
        pytest.param(13.0, "10.1.2.2", 3.0, id="one that left long before, with a change since"),
        pytest.param(13.0, "10.1.2.9", None, id="one that never was"),
        pytest.param(11.0, "10.1.2.4", None, id="one that comes only later"),
        pytest.param(11.95, "10.1.2.4", "right", id="one that comes before the answer"),
        pytest.param(13.0, "TimeoutError: timed out", "right", id="none: that is a failure"),
    ],
)
def test_an_answer(began: float, answer: str, gone: float | str | None) -> None:
    found = [seconds for _, seconds in misdirected(CHANGES, [Asked(began, began + 0.1, 1, "UDP", answer)], 1.0)]
    assert found == ([] if gone == "right" else [gone])
