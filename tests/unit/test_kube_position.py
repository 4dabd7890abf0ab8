"""How far a watch has come: what is asked next, after what, and how soon."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.sources.kube_position import (
    FIRST_DELAY,
    LASTING_SECONDS,
    LONGEST_ASKED,
    LONGEST_DELAY,
    PAGE,
    Age,
    Failure,
    Position,
    age,
    ended,
    failed,
    lasted,
    moved,
    paged,
    query,
)

START, WATCHING, LISTING = Position(), Position("7"), Position(token="t")


@pytest.mark.parametrize(
    ("position", "asked"),
    [
        pytest.param(START, {"limit": "500"}, id="the first page"),
        pytest.param(LISTING, {"limit": "500", "continue": "t"}, id="the next page"),
        pytest.param(Position(token="t", limit=2000), {"limit": "2000", "continue": "t"}, id="a larger page"),
        pytest.param(
            WATCHING,
            {"watch": "1", "allowWatchBookmarks": "1", "resourceVersion": "7", "timeoutSeconds": "450"},
            id="a watch from the list's version",
        ),
    ],
)
def test_what_is_asked(position: Position, asked: dict[str, str]) -> None:
    assert query(position, 0.5) == asked


def test_watches_end_at_different_times() -> None:
    assert [query(WATCHING, chance)["timeoutSeconds"] for chance in (0.0, 0.999)] == ["300", "599"]


@pytest.mark.parametrize(
    ("known", "came", "is_"),
    [
        pytest.param("7", "8", Age.NEW, id="later"),
        pytest.param("7", "7", Age.KNOWN, id="the same"),
        pytest.param("10", "9", Age.EARLIER, id="earlier, as numbers are"),
        pytest.param("9", "10", Age.NEW, id="later, as numbers are"),
        pytest.param("7", "opaque", Age.NEW, id="no number"),
        pytest.param("٧", "6", Age.NEW, id="digits of another script are no number"),
    ],
)
def test_versions_are_numbers_that_rise(known: str, came: str, is_: Age) -> None:
    assert age(Position(known), came) is is_


@pytest.mark.parametrize(
    ("position", "failure", "next_"),
    [
        pytest.param(WATCHING, Failure.LOST, Position("7", failures=1), id="a lost watch goes on where it was"),
        pytest.param(WATCHING, Failure.EXPIRED, Position(failures=1), id="an expired version: list"),
        pytest.param(WATCHING, Failure.ODD, Position(failures=1), id="what can't be: list"),
        pytest.param(LISTING, Failure.LOST, Position(token="t", failures=1), id="a lost page is asked for again"),
        pytest.param(LISTING, Failure.EXPIRED, Position(limit=1000, failures=1), id="an expired page: larger ones"),
        pytest.param(LISTING, Failure.ODD, Position(failures=1), id="a page that can't be: list anew"),
        pytest.param(START, Failure.EXPIRED, Position(failures=1), id="nothing was asked for that could expire"),
    ],
)
def test_what_follows_a_failure(position: Position, failure: Failure, next_: Position) -> None:
    assert failed(position, failure, 0.5)[0] == next_


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True), st.floats(0, 1e9))
def test_delays_grow_to_a_bound_and_never_come_before_the_server_asks(
    failures: int, chance: float, asked: float
) -> None:
    _, delay = failed(Position("7", failures=failures), Failure.LOST, chance)
    middle = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures, 30))
    assert middle / 2 <= delay <= middle * 1.5
    _, later = failed(Position("7", failures=failures), Failure.LOST, chance, asked)
    assert later == max(delay, min(asked, LONGEST_ASKED))


@given(st.sampled_from(Failure), st.integers(0, 5), st.floats(0, 1, exclude_max=True))
def test_only_a_larger_page_is_asked_for_at_once(failure: Failure, failures: int, chance: float) -> None:
    for position in (Position("7", failures=failures), Position(token="t", failures=failures), Position()):
        _, delay = failed(position, failure, chance)
        assert (delay == 0) == (bool(position.token) and failure is Failure.EXPIRED)


def test_a_list_does_not_end_a_row_of_failures_but_news_and_time_do() -> None:
    """A server whose watches all fail would be listed without a pause."""
    position = paged(paged(Position(failures=3), "9", "t"), "9", "")
    assert position == Position("9", failures=3)
    assert moved(position, "10") == Position("10")
    assert lasted(position, LASTING_SECONDS - 0.1) == position
    assert lasted(position, LASTING_SECONDS) == Position("9")


def test_a_watch_that_the_server_ends_is_opened_again_at_once_if_it_lasted() -> None:
    assert ended(Position("9", failures=3), LASTING_SECONDS, 0.5) == (Position("9"), 0.0)
    assert ended(Position("9"), 0.1, 0.5) == (Position("9", failures=1), FIRST_DELAY)


def test_a_list_ends_in_the_page_of_ordinary_size() -> None:
    position = paged(Position(limit=4000), "9", "")
    assert (position, position.watching) == (Position("9", limit=PAGE), True)
