"""Answers load balancers over TCP: a listener for each health check node port and address, and one for the node.

Invariants: an answer is made from the present snapshot, whatever there was when the listener was opened. What can't be
listened on is told, and tried again; nothing else waits for it. Whoever connects has one question and little time
(`connections.py`): the agent has other work, and the ports are open to the world.
"""

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from aiohttp import web

from podwire import health, httplog
from podwire.connections import BALANCERS, BriefServer
from podwire.controller.history import Record
from podwire.model.addresses import Address, family_of, parse_address, show_host_port
from podwire.model.objects import ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.services.health import Place, holder, listening
from podwire.version import version

AGAIN_SECONDS = 2.0
"""From one attempt to listen to the next."""
_ANYWHERE = frozenset((parse_address("0.0.0.0"), parse_address("::")))  # noqa: S104
_FREEBIND = {int(socket.AF_INET): (socket.IPPROTO_IP, 15), int(socket.AF_INET6): (socket.IPPROTO_IPV6, 78)}
"""By family: level and number of the option by which an address may be bound that the node has not, or not yet."""
_NAME = f"podwire/{version()}"


class Controller(Protocol):
    """What is asked of the controller."""

    unsynced: frozenset[str]
    broken: frozenset[str]

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def history(self) -> Iterable[Record]: ...
    def next_record(self) -> asyncio.Future[Record]: ...


class HealthServer:
    """`errors`: what can't be listened on, each with the object or key that wants it."""

    def __init__(
        self,
        controller: Controller,
        follows_api: bool = False,
        healthz: tuple[str, int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._controller, self._follows_api, self._clock = controller, follows_api, clock
        self._healthz = Place(parse_address(healthz[0]), healthz[1]) if healthz is not None else None
        self._open: dict[Place, asyncio.Server] = {}
        self._failed: dict[Place, str] = {}
        self._known: tuple[object, object, object] = None, None, None
        """What `_places` was made from: it is asked for at each event, and ten thousand Services may have ports."""
        self._places: dict[Place, str] = {}
        self._http = BriefServer(self._answer, BALANCERS, access_log=None, logger=httplog.log)

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(self._failed[place] for place in sorted(self._failed))

    async def run(self) -> None:
        """Listeners come and go with the Services. Until it is cancelled."""
        try:
            while True:
                told = self._controller.next_record()
                await self.adjust()
                if self._failed:
                    await asyncio.wait([told], timeout=AGAIN_SECONDS)
                    told.cancel()
                else:
                    await told
        finally:
            await self.close()

    async def adjust(self) -> None:
        """Opens what is missing, closes what nobody wants any more."""
        wanted = self._wanted()
        for place in self._open.keys() - wanted.keys():
            self._open.pop(place).close()
        self._failed = {}
        for place in sorted(wanted.keys() - self._open.keys()):
            try:
                self._open[place] = await self._listen(place)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                self._failed[place] = f"{wanted[place]}: can't listen on {show_host_port(*place)}: {reason}"

    async def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
        await self._http.shutdown(0)

    def _wanted(self) -> Mapping[Place, str]:
        """By place: who wants it, in the words that errors begin with."""
        now = self._controller.snapshot
        known = now.health_ports, now.node, now.local
        if any(one is not other for one, other in zip(known, self._known, strict=True)):
            services = listening(now)
            self._places = {p: f"{key}: spec.healthCheckNodePort {p.port}" for p, key in services.items()}
            if self._healthz is not None:
                self._places[self._healthz] = "healthz_listen"
            self._known = known
        return self._places

    async def _listen(self, place: Place) -> asyncio.Server:
        """Raises OSError."""
        listener = bind(place)
        try:
            return await asyncio.get_running_loop().create_server(self._http, sock=listener, backlog=128)
        except OSError:
            listener.close()
            raise

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        place = request.transport.get_extra_info("sockname") if request.transport is not None else None
        found = self._told(parse_address(_plain(place[0])), place[1], request.path) if place is not None else None
        if found is None:
            response = web.Response(status=404, text="not here\n")
        else:
            response = web.Response(status=found.status, headers=found.headers, body=found.body)
        response.headers["Server"] = _NAME
        return response

    def _told(self, address: Address, port: int, path: str) -> health.Answer | None:
        """None: nobody is asked there, or not for this path. A Service's port has any path, as with kube-proxy."""
        controller = self._controller
        now = controller.snapshot
        fault = health.fault(now, self._follows_api, controller.unsynced, controller.broken)
        key = self._asked(now, Place(address, port))
        if key is not None:
            return health.of_health_port(now, key, family_of(address), fault)
        if self._healthz is not None and port == self._healthz.port:
            updated = max((record.time for record in controller.history if record.error is None), default=0.0)
            return health.of_node(now, path, fault, self._clock(), updated)
        return None

    def _asked(self, now: Snapshot, place: Place) -> ServiceKey | None:
        """Whose port that is, where it is no Service's None."""
        return holder(now, place.port) if place in self._open and place != self._healthz else None


def _plain(host: str) -> str:
    """Without what a socket of both families puts before an IPv4 address (RFC 4291, 2.5.5.2), and without a scope."""
    return host.removeprefix("::ffff:").partition("%")[0]


def bind(place: Place) -> socket.socket:
    """A socket of that address alone, whether or not the node has it yet; of all addresses of both families for an
    unspecified one, as with kube-proxy. Raises OSError."""
    if place.address not in _ANYWHERE:
        return _bound(place, family_of(place.address).number)
    try:
        return _bound(Place(parse_address("::"), place.port), socket.AF_INET6)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _bound(Place(parse_address("0.0.0.0"), place.port), socket.AF_INET)  # noqa: S104 - a node without IPv6


def _bound(place: Place, family: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, place.address not in _ANYWHERE)
        if place.address not in _ANYWHERE:
            listener.setsockopt(*_FREEBIND[family], 1)
        listener.bind((socket.inet_ntop(family, place.address), place.port))
    except OSError:
        listener.close()
        raise
    return listener
