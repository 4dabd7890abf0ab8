"""Connections of a listening socket: what a protocol is told and in which order, and who waits for whom."""

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.sources import unix_connections
from podwire.sources.unix_connections import HIGH, Door


class Told(asyncio.Protocol):
    """What a protocol was told, in words."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.made: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        self.heard = asyncio.Event()
        self.went_on = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.made = transport
        self.words.append("made")

    def data_received(self, data: bytes) -> None:
        self.words.append(data.decode())
        self.heard.set()
        if data == b"bug":
            raise KeyError("bug")

    def pause_writing(self) -> None:
        self.words.append("full")

    def resume_writing(self) -> None:
        self.words.append("goes on")
        self.went_on.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.words.append("lost" if exc is None else f"lost: {type(exc).__name__}")
        self.lost.set()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as it:
        it.bind(str(tmp_path / "s"))
        it.listen()
        yield it


def caller(listening: socket.socket) -> socket.socket:
    it = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    it.settimeout(10.0)
    it.connect(listening.getsockname())
    return it


async def test_who_sends_as_it_connects_is_heard_in_the_same_turn(listening: socket.socket) -> None:
    told = Told()
    with caller(listening) as it:
        it.sendall(b"hello")
        door = Door(listening, lambda: told)
        await asyncio.sleep(0)  # until the loop has looked
        await asyncio.sleep(0)
        assert told.words == ["made", "hello"]
        it.sendall(b"more")
        told.heard.clear()
        await told.heard.wait()
    await told.lost.wait()
    assert told.words == ["made", "hello", "more", "lost"]
    door.close()


async def test_a_bug_ends_its_connection_alone(listening: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    both = [Told(), Told()]
    coming = iter(both)
    door = Door(listening, lambda: next(coming))
    with caller(listening) as it, caller(listening) as other:
        it.sendall(b"bug")
        await both[0].lost.wait()
        assert it.recv(1) == b""
        other.sendall(b"fine")
        await both[1].heard.wait()
    await both[1].lost.wait()
    assert [each.words for each in both] == [["made", "bug", "lost: KeyError"], ["made", "fine", "lost"]]
    assert "internal error" in caplog.text
    door.close()


@pytest.mark.parametrize(("ends", "arrives"), [("close", True), ("abort", False)])
async def test_what_was_written_goes_before_a_close_and_not_after_an_abort(
    listening: socket.socket, ends: str, arrives: bool
) -> None:
    told, size = Told(), 4 << 20
    door = Door(listening, lambda: told)
    with caller(listening) as it:
        it.sendall(b"go")
        await told.heard.wait()
        assert told.made is not None
        told.made.write(bytes(size))
        getattr(told.made, ends)()
        told.made.write(b"of no use")
        found = 0
        while part := await asyncio.to_thread(it.recv, 1 << 16):
            found += len(part)
        assert (found == size) == arrives
        await told.lost.wait()
    assert told.words == ["made", "go", "full", *(["goes on"] if arrives else []), "lost"]
    door.close()


async def test_who_does_not_listen_is_waited_for(listening: socket.socket) -> None:
    told = Told()
    door = Door(listening, lambda: told)
    with caller(listening) as it:
        it.sendall(b"go")
        await told.heard.wait()
        assert told.made is not None
        told.made.write(bytes(HIGH))
        told.made.pause_reading()
        it.sendall(b"more")
        told.made.write(bytes(8 * HIGH))
        assert told.words == ["made", "go", "full"]
        found = 0
        while found < 9 * HIGH:
            found += len(await asyncio.to_thread(it.recv, HIGH))
        await told.went_on.wait()
        told.heard.clear()
        told.made.resume_reading()
        await told.heard.wait()
        assert told.words == ["made", "go", "full", "goes on", "more"]
    await told.lost.wait()
    door.close()


async def test_newcomers_wait_where_no_file_is_left(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        """A listening socket of a process that has all the files that it may have."""

        tries = 0

        def fileno(self) -> int:
            return listening.fileno()

        def accept(self) -> tuple[socket.socket, object]:
            self.tries += 1
            if self.tries == 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return listening.accept()

        def close(self) -> None:
            listening.close()

    monkeypatch.setattr(unix_connections, "RETRY", 0.0)
    told = Told()
    door = Door(Full(), lambda: told)  # type: ignore[arg-type]
    with caller(listening) as it:
        it.sendall(b"hello")
        await told.heard.wait()
    await told.lost.wait()
    assert caplog.text.count("can't be taken now: Too many open files") == 1
    door.close()
