"""gRPC's unary calls of one method on a unix socket: HTTP/2 (RFC 9113) as far as that takes.

Invariants: a call is handed over once its whole message has come, and answered once, with a message or a status that
is an error. Headers are never read, since there is one method and nothing is negotiated: so nothing of HPACK's state
is needed. What a client may send is bounded (`largest` for a message, `STREAMS` calls at a time on a connection, those
included that it has given up); who breaks the protocol loses its connection, and nobody else notices. What is sent
obeys the client's windows, and whoever does not read what it is told is not listened to meanwhile. Others get their
turn after some frames of one. Whoever goes away ends nothing that it has asked for.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from podwire.cni import shim
from podwire.sources.unix_connections import Door

Call = Callable[[bytes], Awaitable[bytes]]
"""From a request's message to the answer's."""

STREAMS = 100
"""Calls at a time on one connection."""
BACKLOG = 1024
"""Connections that wait for their turn: a node that starts has all its pods' plugins come at once."""
CONNECTIONS, IDLE = 400, 10.0
"""Where there are more, those go that have asked for nothing in so many seconds, oldest first: they would take the
files that the agent may open, of which there are 1024 where nobody says more."""
TURN = 500
"""Frames of one connection between two turns of the event loop: about two milliseconds of the smallest."""
UNIMPLEMENTED, RESOURCE_EXHAUSTED, INTERNAL = 12, 8, 13
"""Statuses of gRPC (doc/statuscodes.md)."""
_CONTINUATION, _INITIAL_WINDOW, _MAX_STREAMS = 9, b"\0\4", b"\0\3"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = 9
_OPENING = shim.frame(
    shim.SETTINGS, 0, 0, _MAX_STREAMS + STREAMS.to_bytes(4, "big") + _INITIAL_WINDOW + shim.MOST.to_bytes(4, "big")
) + shim.frame(shim.WINDOW_UPDATE, 0, 0, (shim.MOST - shim.WINDOW).to_bytes(4, "big"))
_RESPONSE = b"\x88" + shim.header(b"content-type", b"application/grpc")  # :status 200 (RFC 7541, appendix A)
_DONE = shim.header(b"grpc-status", b"0")
log = logging.getLogger(__name__)


class _Broken(Exception):
    """The client does not speak HTTP/2 as it should."""


class _Stream:
    """One call: what has come of it, and of its answer what the client has not made room for yet."""

    def __init__(self, window: int) -> None:
        self.body, self.whole = bytearray(), False
        self.window, self.unsent = window, b""
        self.answered = False


class CallServer:
    def __init__(self, call: Call, largest: int) -> None:
        self._call, self._largest = call, largest
        self._connections: dict[_Connection, None] = {}
        """Oldest first."""
        self._calls: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._door: Door | None = None
        self._path = Path()

    async def listen(self, path: Path) -> None:
        """Only root may speak. Raises OSError where there can't be such a socket."""
        there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            there.bind(str(path))
            there.listen(BACKLOG)
        except OSError as error:
            there.close()
            raise OSError(f"{path}: {error.strerror or error}") from None
        finally:
            os.umask(before)
        self._door, self._path = Door(there, self._connection), path

    async def ended(self) -> None:
        """Returns once it has been stopped."""
        await self._ended.wait()

    async def stop(self, grace: float | None) -> None:
        """No new call; `grace`: seconds for those under way (None: none), which are then given up."""
        if self._door is not None:
            self._door.close()
            self._door = None
            self._path.unlink(missing_ok=True)
        if self._calls and grace is not None:
            await asyncio.wait(self._calls, timeout=grace)
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        for connection in tuple(self._connections):
            connection.close()
        self._ended.set()

    def _connection(self) -> "_Connection":
        return _Connection(self._hand_over, self._connections, self._largest)

    def _hand_over(self, message: bytes, answer: Callable[[bytes], None]) -> None:
        task = asyncio.create_task(self._carry_out(message, answer))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _carry_out(self, message: bytes, answer: Callable[[bytes], None]) -> None:
        try:
            said = await self._call(message)
        except Exception:
            log.exception("internal error in a call")
            answer(_status(INTERNAL))
        else:
            answer(b"\0" + len(said).to_bytes(4, "big") + said)


class _Connection(asyncio.Protocol):
    def __init__(
        self,
        hand_over: Callable[[bytes, Callable[[bytes], None]], None],
        all_of_them: "dict[_Connection, None]",
        largest: int,
    ) -> None:
        self._hand_over, self._all, self._largest = hand_over, all_of_them, largest
        self._transport: asyncio.Transport | None = None
        self._held, self._greeted, self._continues = bytearray(), False, False
        self._unsaid = b""
        """What waits for an answer to be said with it."""
        self._streams: dict[int, _Stream] = {}
        self._given_up = 0
        """Calls under way for whose answer nobody waits any more."""
        self._newest = 0
        self._unread = False
        """Whether the client does not read what it is told."""
        self._loop, self._heard = asyncio.get_running_loop(), 0.0
        self._next: asyncio.Handle | None = None
        self._window = self._initial = shim.WINDOW

    # --- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._heard = self._loop.time()
        self._all[self] = None
        if len(self._all) > CONNECTIONS:
            self._make_room()
            self._loop.call_later(IDLE, self._make_room)  # where no file is left no newcomer would come to do it

    def _make_room(self) -> None:
        """Idle connections go, oldest first, until there are no more than there may be."""
        for one in [it for it in self._all if it.idle][: max(0, len(self._all) - CONNECTIONS)]:
            one.drop()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it went doesn't matter
        self._transport = None
        self._streams.clear()
        self._all.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._held += data
        self._heard = self._loop.time()
        self._go_on()

    def pause_writing(self) -> None:
        self._unread = True

    def resume_writing(self) -> None:
        self._unread = False
        self._go_on()

    @property
    def idle(self) -> bool:
        """Whether nothing that it has asked for is to be done, nor has been for long."""
        return not (self._streams or self._given_up) and self._loop.time() - self._heard >= IDLE

    def _go_on(self) -> None:
        """With what is held; nothing more is read before all of it is taken, and its answers are."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._transport is None or self._transport.is_closing() or self._unread:
            return
        opens, out = not self._greeted, bytearray()
        try:
            left = self._take_some(out)
        except _Broken as error:
            log.warning("a connection to the CNI socket is closed: %s", error)
            out += shim.frame(shim.GOAWAY, 0, 0, self._newest.to_bytes(4, "big") + b"\0\0\0\1")  # PROTOCOL_ERROR
            self._write(out)
            self._streams.clear()
            self.close()
            return
        if opens and not left and self._only_waits():
            self._unsaid = bytes(out)
        else:
            self._write(out)
        if left and not self._unread:
            self._next = self._loop.call_soon(self._go_on)
        if left or self._unread:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _only_waits(self) -> bool:
        """Whether one whole call is all that was said, as a plugin says it: it would be woken twice if what HTTP/2 owes
        it were not said with the answer. Who goes on speaking is told at once."""
        stream = self._streams.get(self._newest)
        return stream is not None and len(self._streams) == 1 == self._newest and stream.whole and not stream.answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Whatever it has not been told yet."""
        self._all.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def _write(self, out: bytes | bytearray) -> None:
        """With what was not said yet."""
        if (out or self._unsaid) and self._transport is not None:
            self._transport.write(self._unsaid + out)
        self._unsaid = b""

    # --- what comes ----------------------------------------------------------------------------

    def _take_some(self, out: bytearray) -> bool:
        """Whether there may be more, after as many frames as one may have taken at a time. Raises _Broken. `out` gets
        what is to be said."""
        held, at = self._held, 0
        if not self._greeted:
            if not _PREFACE.startswith(held[: len(_PREFACE)]):
                raise _Broken("no HTTP/2")
            if len(held) < len(_PREFACE):
                return False
            at, self._greeted = len(_PREFACE), True
            out += _OPENING
        taken = 0
        while len(held) - at >= _HEAD and taken < TURN:
            size, kind = int.from_bytes(held[at : at + 3], "big"), held[at + 3]
            if not shim.fits(kind, size):
                raise _Broken(f"a frame of type {kind} has {size} bytes")
            if len(held) - at < _HEAD + size:
                break
            flags, number = held[at + 4], int.from_bytes(held[at + 5 : at + _HEAD], "big") & shim.MOST
            self._take(kind, flags, number, bytes(held[at + _HEAD : at + _HEAD + size]), out)
            at, taken = at + _HEAD + size, taken + 1
        del held[:at]
        return taken == TURN

    def _take(self, kind: int, flags: int, number: int, payload: bytes, out: bytearray) -> None:
        if self._continues != (kind == _CONTINUATION):
            raise _Broken("a block of headers is cut off")
        if kind in (shim.HEADERS, _CONTINUATION):
            self._continues = not flags & shim.END_HEADERS
        if kind == shim.HEADERS:
            self._headers(number, flags, out)
        elif kind == shim.DATA:
            self._data(number, flags, payload, out)
        elif kind == shim.SETTINGS and not flags & shim.ACK:
            self._settings(payload, out)
        elif kind == shim.PING and not flags & shim.ACK:
            out += shim.frame(shim.PING, shim.ACK, 0, payload)
        elif kind == shim.WINDOW_UPDATE:
            self._more_room(number, int.from_bytes(payload, "big") & shim.MOST, out)
        elif kind == shim.RST_STREAM:
            self._give_up(number)

    def _give_up(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        self._given_up += stream is not None and stream.whole and not stream.answered

    def _headers(self, number: int, flags: int, out: bytearray) -> None:
        """Of a new call; or behind its data, as its end."""
        stream = self._streams.get(number)
        if stream is None and number > self._newest and number % 2:
            self._newest = number
            if len(self._streams) + self._given_up >= STREAMS:
                out += shim.frame(shim.RST_STREAM, 0, number, b"\0\0\0\7")  # REFUSED_STREAM
                return
            stream = self._streams[number] = _Stream(self._initial)
        elif stream is None and (number == 0 or number % 2 == 0):
            raise _Broken("headers of no stream")
        if stream is not None and flags & shim.END_STREAM:
            self._ended(number, stream, out)

    def _data(self, number: int, flags: int, payload: bytes, out: bytearray) -> None:
        if number == 0 or number > self._newest:
            raise _Broken("data of no stream")
        if payload:  # whosever it is: of the connection's window there is always as much as at its start
            out += shim.frame(shim.WINDOW_UPDATE, 0, 0, len(payload).to_bytes(4, "big"))
        stream = self._streams.get(number)
        if stream is None or stream.whole:  # it was given up
            return
        try:
            stream.body += shim.unpadded(payload) if flags & shim.PADDED else payload
        except ValueError as error:
            raise _Broken("a frame is padded with more than it has") from error
        if len(stream.body) > self._largest + 5:
            self._answer(number, stream, _status(RESOURCE_EXHAUSTED), out)
        elif flags & shim.END_STREAM:
            self._ended(number, stream, out)

    def _ended(self, number: int, stream: _Stream, out: bytearray) -> None:
        """The call is whole."""
        if stream.whole:
            return
        stream.whole = True
        body, stream.body = bytes(stream.body), bytearray()
        if len(body) < 5 or int.from_bytes(body[1:5], "big") != len(body) - 5:
            self._answer(number, stream, _status(INTERNAL), out)
        elif body[0]:
            self._answer(number, stream, _status(UNIMPLEMENTED), out)  # compressed, which nobody has offered
        else:
            self._hand_over(body[5:], lambda said: self._answer_later(number, stream, said))

    def _settings(self, payload: bytes, out: bytearray) -> None:
        before = self._initial
        for at in range(0, len(payload), 6):
            if payload[at : at + 2] == _INITIAL_WINDOW:
                self._initial = int.from_bytes(payload[at + 2 : at + 6], "big")
        for stream in self._streams.values():  # it moves open windows too (RFC 9113, 6.9.2)
            stream.window += self._initial - before
        out += shim.frame(shim.SETTINGS, shim.ACK, 0, b"")
        self._send(out)

    def _more_room(self, number: int, size: int, out: bytearray) -> None:
        if number == 0:
            self._window += size
        elif number in self._streams:
            self._streams[number].window += size
        self._send(out)

    # --- what goes -----------------------------------------------------------------------------

    def _answer_later(self, number: int, stream: _Stream, said: bytes) -> None:
        if self._streams.get(number) is stream:
            out = bytearray()
            self._answer(number, stream, said, out)
            self._write(out)
        else:
            self._given_up -= 1

    def _answer(self, number: int, stream: _Stream, said: "bytes | _Status", out: bytearray) -> None:
        """`said`: a message with gRPC's head, or a status that is an error."""
        if isinstance(said, _Status):
            flags = shim.END_HEADERS | shim.END_STREAM
            out += shim.frame(shim.HEADERS, flags, number, _RESPONSE + shim.header(b"grpc-status", said))
            self._forget(number, stream, out)
            return
        out += shim.frame(shim.HEADERS, shim.END_HEADERS, number, _RESPONSE)
        stream.unsent, stream.answered = said, True
        self._send(out)

    def _send(self, out: bytearray) -> None:
        """Of the answers as much as the client takes now; the first come first."""
        for number, stream in tuple(self._streams.items()):
            while stream.unsent and (size := min(self._window, stream.window, shim.FRAME)) > 0:
                part, stream.unsent = stream.unsent[:size], stream.unsent[size:]
                self._window, stream.window = self._window - len(part), stream.window - len(part)
                out += shim.frame(shim.DATA, 0, number, part)
            if stream.answered and not stream.unsent:
                out += shim.frame(shim.HEADERS, shim.END_HEADERS | shim.END_STREAM, number, _DONE)
                self._forget(number, stream, out)

    def _forget(self, number: int, stream: _Stream, out: bytearray) -> None:
        del self._streams[number]
        if not stream.whole:  # what still comes of it is of no use (RFC 9113, 8.1)
            out += shim.frame(shim.RST_STREAM, 0, number, b"\0\0\0\0")


class _Status(bytes):
    """A status of gRPC, as text."""


def _status(code: int) -> _Status:
    return _Status(str(code).encode())
