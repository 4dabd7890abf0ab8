"""New connections to Services whose backends change all the time find a backend, and one that is still there.

Invariants: the agent is a process that watches an API server; `tests/bench/churn.py` does the same for longer.
"""

from tests.bench.churn import churn, is_answer, misdirected

LATE = 10.0
"""Seconds after which a change must have come through: a limit against hanging, never a measure."""


def test_no_new_connection_fails_or_goes_to_a_backend_that_has_left() -> None:
    told, asked = churn(services=30, rate=40, seconds=15, connections=300)
    assert len(told["changes"]) == 30 + 600
    assert {it.protocol for it in asked if is_answer(it)} == {"TCP", "UDP"}
    assert [it for it in asked if not is_answer(it)] == []
    assert list(misdirected(told["changes"], asked, LATE)) == []
    assert told["drift"] == ""
