"""A short soak; the long one is `make soak`."""

from tests.kernel.soak import soak


def test_random_calls_of_many_callers_and_a_killed_agent_leave_nothing() -> None:
    books = soak(300, 5, 16, "a short one")
    assert books.faults == []
    for what in ("ADD done", "CHECK done", "DEL done", "GC done", "STATUS done"):
        assert books.done.get(what), books.done
