"""Connections of a listening socket, as asyncio's own transports, and sooner: whoever sends as it connects is heard in
the turn of the event loop in which it comes. asyncio's have three turns first, a twentieth of an ADD.

Invariants: what a protocol is told comes in asyncio's order: made, data, lost, once each but data; nothing after
`lost`, and `lost` never from within a call of the protocol's own. What was written goes before a close, and nothing
after an abort. One connection is taken in a turn, so that newcomers get theirs behind whoever was there. Where no file
is left for one they wait.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

HIGH, LOW = 1 << 16, 1 << 14
"""Bytes that wait to be taken: above the one a protocol is told to pause, below the other to go on."""
RETRY = 1.0
"""Seconds until newcomers are taken again, where no file was left."""
_PART = 1 << 18
log = logging.getLogger(__name__)


class Door:
    """Takes whoever comes, until it is closed. The socket, which listens and does not block, is its own from now on."""

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._loop, self._listening, self._protocol = asyncio.get_running_loop(), listening, protocol
        self._later: asyncio.TimerHandle | None = None
        self._open()

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _open(self) -> None:
        self._loop.add_reader(self._listening, self._take)

    def _take(self) -> None:
        try:
            there, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("a connection can't be taken now: %s", error.strerror)
            self._loop.remove_reader(self._listening)
            self._later = self._loop.call_later(RETRY, self._open)
            return
        Connection(self._loop, there, self._protocol())


class Connection(asyncio.Transport):
    def __init__(self, loop: asyncio.AbstractEventLoop, there: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        there.setblocking(False)
        self._loop, self._there, self._protocol = loop, there, protocol
        self._unsent = bytearray()
        self._reads, self._full, self._closing, self._gone = False, False, False, False
        protocol.connection_made(self)
        self.resume_reading()
        if self._reads:
            self._read()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._there)

    def resume_reading(self) -> None:
        if not (self._reads or self._closing):
            self._reads = True
            self._loop.add_reader(self._there, self._read)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        waits = bool(self._unsent)
        self._unsent += data
        if not waits:
            self._send()
            if self._unsent and not self._gone:
                self._loop.add_writer(self._there, self._send)
        if len(self._unsent) > HIGH and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Once what was written has gone."""
        self.pause_reading()
        self._closing = True
        if not self._unsent:
            self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _read(self) -> None:
        try:
            data = self._there.recv(_PART)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if not data:
            self.close()
            return
        try:
            self._protocol.data_received(data)
        except Exception as error:
            log.exception("internal error with what a connection said")
            self._end(error)

    def _send(self) -> None:
        try:
            sent = self._there.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._there)
            if self._closing:
                self._end(None)
        if self._full and len(self._unsent) <= LOW:
            self._full = False
            self._protocol.resume_writing()

    def _end(self, why: Exception | None) -> None:
        self._closing = True
        self._unsent.clear()
        if not self._gone:
            self._gone = True
            self._loop.remove_reader(self._there)
            self._loop.remove_writer(self._there)
            self._loop.call_soon(self._lost, why)

    def _lost(self, why: Exception | None) -> None:
        self._there.close()
        self._protocol.connection_lost(why)
