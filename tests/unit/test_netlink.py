"""Dumps that others' changes interrupt (NLM_F_DUMP_INTR): read again, or said to be."""

import errno
from collections import deque
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest

from podwire.dataplane import netlink
from podwire.dataplane.conntrack.driver import Conntrack
from podwire.dataplane.netlink import DONE, DUMP_INTERRUPTED, ERROR, Interrupted

MESSAGE = 0x100
Part = list[tuple[int, int, bytes]]
"""Kind, flags and body of each message of a datagram."""
GOOD: list[Part] = [[(MESSAGE, 0, b"aaaa"), (MESSAGE, 0, b"bbbb")], [(MESSAGE, 0, b"cccc"), (DONE, 0, bytes(4))]]
ON_ONE: list[Part] = [[(MESSAGE, 0, b"aaaa")], [(MESSAGE, DUMP_INTERRUPTED, b"bbbb")], [(DONE, 0, bytes(4))]]
ON_THE_END: list[Part] = [[(MESSAGE, 0, b"aaaa"), (DONE, DUMP_INTERRUPTED, bytes(4))]]


class Kernel:
    """A socket that answers each request with the next of these dumps."""

    def __init__(self, *dumps: list[Part]) -> None:
        self.dumps, self.asked = deque(dumps), 0
        self._told: deque[bytes] = deque()

    def sendto(self, data: bytes, _: Any) -> None:
        self.asked += 1
        number = data[8:12]
        for part in self.dumps.popleft():
            self._told.append(b"".join(pack("=IHH", 16 + len(b), k, f) + number + bytes(4) + b for k, f, b in part))

    def recv(self, *_: int) -> bytes:
        return self._told.popleft()

    def close(self) -> None:
        pass


def answered(*dumps: list[Part]) -> tuple[netlink.Socket, Kernel]:
    there, kernel = netlink.Socket(netlink.ROUTE, reader=True), Kernel(*dumps)
    there.close()
    there._socket = kernel  # type: ignore[assignment]
    return there, kernel


def told(there: netlink.Socket) -> list[bytes]:
    return [body for bodies in there.stream(MESSAGE, b"") for body in bodies]


@pytest.mark.parametrize("interrupted", [ON_ONE, ON_THE_END], ids=["said of a message", "said of the end"])
@pytest.mark.parametrize("times", [0, 1, 9])
def test_a_dump_is_taken_until_it_was_not_interrupted(interrupted: list[Part], times: int) -> None:
    there, kernel = answered(*[interrupted] * times, GOOD)
    assert there.dump(MESSAGE, b"") == [b"aaaa", b"bbbb", b"cccc"]
    assert kernel.asked == times + 1


def test_a_dump_that_is_always_interrupted_is_an_error() -> None:
    there, _ = answered(*[ON_ONE] * 20)
    with pytest.raises(Interrupted) as error:
        there.dump(MESSAGE, b"")
    assert error.value.errno == errno.EAGAIN


@pytest.mark.parametrize("interrupted", [ON_ONE, ON_THE_END], ids=["said of a message", "said of the end"])
def test_a_stream_says_at_its_end_that_it_was_interrupted(interrupted: list[Part]) -> None:
    there, _ = answered(interrupted, GOOD)
    seen: list[bytes] = []
    with pytest.raises(Interrupted):
        seen += (body for bodies in there.stream(MESSAGE, b"") for body in bodies)
    assert told(there) == [b"aaaa", b"bbbb", b"cccc"]


def test_another_s_late_answer_is_no_interruption() -> None:
    there, kernel = answered(GOOD)
    kernel._told.append(pack("=IHHII", 16, MESSAGE, DUMP_INTERRUPTED, 77, 0))
    assert told(there) == [b"aaaa", b"bbbb", b"cccc"]


def test_an_error_is_raised_as_it_is() -> None:
    there, _ = answered([[(ERROR, 0, pack("=i", -errno.EINVAL))]])
    with pytest.raises(OSError, match="Invalid argument"):
        told(there)


# --- tracked flows: one that is missed would go on to where nobody answers ------------------------


def tracking(monkeypatch: pytest.MonkeyPatch, *dumps: list[Part]) -> tuple[Conntrack, Kernel]:
    there, kernel = answered(*dumps)
    monkeypatch.setattr(netlink, "Socket", lambda *_: there)
    return Conntrack(), kernel


def entries(found: Conntrack, ended: Callable[[], bool] = lambda: False) -> int:
    return sum(1 for _ in found.read((), True, ended))


EMPTY: list[Part] = [[(DONE, 0, bytes(4))]]
CUT: list[Part] = [[(DONE, DUMP_INTERRUPTED, bytes(4))]]
QUERIES = 6
"""Two families, three protocols."""


@pytest.mark.parametrize("times", [1, 4])
def test_tracked_flows_are_read_again(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, kernel = tracking(monkeypatch, *[CUT] * times, *[EMPTY] * QUERIES)
    assert entries(found) == 0
    assert kernel.asked == QUERIES + times


def test_tracked_flows_that_can_t_be_read_whole_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has them looked at again later."""
    found, _ = tracking(monkeypatch, *[CUT] * 9)
    with pytest.raises(Interrupted):
        entries(found)
