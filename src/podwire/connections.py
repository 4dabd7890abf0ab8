"""Whom an HTTP server that is open to the world listens to, and how long.

Invariants: a newcomer is always taken; where there are too many connections the oldest goes for it, of the newcomer's
own address where that has too many. One whose question has come goes last, until all of its answer is sent. None lasts
longer than its seconds, whatever it sends, and each has one question.
"""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from aiohttp import web


class Limits(NamedTuple):
    """`seconds`: from a connection to its end. `most_of_one`: connections of one address."""

    seconds: float
    most: int
    most_of_one: int


BALANCERS = Limits(seconds=2.0, most=400, most_of_one=64)
"""Time for a question whose packet was lost once (RFC 6298, 2.1: a second), and for an answer that is made at once. Of
one address: more than a load balancer has under way between a connection and its question."""
MONITORS = Limits(seconds=30.0, most=32, most_of_one=16)
"""Three times as long as Prometheus waits, unless told otherwise; an answer may be some megabytes."""
Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BriefServer(web.Server):
    def __init__(self, answer: Answer, limits: Limits, **options: Any) -> None:
        # Without lingering: whoever goes on sending after its answer holds nothing.
        super().__init__(self._answered, lingering_time=0, **options)
        self._answer, self._limits = answer, limits
        self._asked: set[web.RequestHandler] = set()
        """Whose question was taken: until they are lost, since an answer of megabytes is long under way."""
        self._by_source: dict[str, dict[web.RequestHandler, asyncio.Transport]] = {}
        self._all: dict[web.RequestHandler, tuple[str, asyncio.Transport, asyncio.TimerHandle]] = {}
        """Both: oldest first."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        source = _source(transport)
        own = self._by_source.get(source, {})
        if len(own) >= self._limits.most_of_one:
            self._end(self._victim(own.items()))
        elif len(self._all) >= self._limits.most:
            self._end(self._victim((one, known[1]) for one, known in self._all.items()))
        timer = asyncio.get_running_loop().call_later(self._limits.seconds, self._end, handler)
        self._by_source.setdefault(source, {})[handler] = transport
        self._all[handler] = source, transport, timer

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._forget(handler)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.protocol in self._all:  # else it has gone meanwhile, and nobody would forget it
            self._asked.add(request.protocol)
        response = await self._answer(request)
        response.force_close()
        return response

    def _end(self, handler: web.RequestHandler) -> None:
        known = self._all.get(handler)
        self._forget(handler)
        if known is not None:
            known[1].abort()

    def _forget(self, handler: web.RequestHandler) -> None:
        known = self._all.pop(handler, None)
        if known is None:
            return
        source, _, timer = known
        timer.cancel()
        self._asked.discard(handler)
        del self._by_source[source][handler]
        if not self._by_source[source]:
            del self._by_source[source]

    def _victim(self, some: Iterable[tuple[web.RequestHandler, asyncio.Transport]]) -> web.RequestHandler:
        """Of some, oldest first: the first that has no answer to come, else the first."""
        first = None
        for handler, transport in some:
            if handler not in self._asked and not _unread(transport):
                return handler
            first = first or handler
        assert first is not None
        return first


def _source(transport: asyncio.Transport) -> str:
    """Empty where the other end has gone already."""
    name = transport.get_extra_info("peername")
    return name[0].removeprefix("::ffff:").partition("%")[0] if name else ""


def _unread(transport: asyncio.Transport) -> bool:
    """Whether something has come that is not read yet (tcp(7), SIOCINQ)."""
    if transport.is_closing():
        return False
    held = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
    return bool(struct.unpack("i", held)[0])
