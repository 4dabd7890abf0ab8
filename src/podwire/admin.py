"""The admin API: JSON over HTTP on a unix socket that only the agent's user can open.

Invariants: every answer is made from one snapshot, by `views.py`. An answer that grows with the cluster is written in
slices, so that an ADD gets its turn in between. Every error is JSON too: `{"error": one line}`. Only POST changes
anything: a resync by an event that the controller handles like any other, a trace nothing that outlives it.

    GET  /status                                 the node, its ranges, counts, what is wrong
    GET  /services, /services/NAMESPACE/NAME     frontends, backends, what the data plane holds of them
    GET  /pods                                   attachments
    GET  /interface?namespace=NAMESPACE&pod=NAME&interface=NAME
                                                 what leads to a pod: the node's end of its link
    GET  /explain/service/NAMESPACE/NAME         each frontend, its backends and where they are, what is left out
    GET  /explain/packet?from=SOURCE&to=IP:PORT/PROTOCOL
                                                 what this node does with such a packet
    GET  /history?since=NUMBER&limit=NUMBER      transactions, oldest first; with wait=SECONDS it waits for the next
    GET  /verify                                 what the network holds otherwise than it should; touches nothing
    POST /resync                                 read everything, and make it right
    POST /trace?from=SOURCE&to=IP:PORT/PROTOCOL&timeout=SECONDS
                                                 sends such a packet, and tells its way; ends when the client goes
    GET  /healthz, /readyz                       200, or 503 with the reason
    GET  /metrics                                for Prometheus, in its own form

The last three may be had over TCP too; nothing else is, but for what `podwire.statistics.answers` adds.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import ProcessCollector

from podwire import httplog, metrics, replies, views
from podwire.connections import MONITORS, Answer, BriefServer
from podwire.controller.difference import Difference
from podwire.controller.events import Event, Resync, ResyncReason
from podwire.controller.history import Record, record_of
from podwire.controller.tally import Tally
from podwire.controller.transaction import Result
from podwire.drift import drift
from podwire.explain.packets import explain_packet, parse_destination, parse_source
from podwire.explain.services import explain_service
from podwire.model.addresses import Address
from podwire.model.network import Frontend
from podwire.model.objects import ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.model.text import printable
from podwire.replies import SLICE
from podwire.statistics import answers
from podwire.statistics.answers import Statistics
from podwire.trace.asked import Asked, asked, seconds
from podwire.trace.driver import Busy
from podwire.trace.views import TraceView

MOST_RECORDS = 1000
MOST_NUMBER = 10**18
"""Of a record: more than will ever be."""
LONGEST_WAIT = 60
"""Seconds that a request for the next record may wait."""
LONGEST_SHOWN = 40
"""Characters of what was wrong in a request."""
GRACE = 1.0
"""Seconds that a stopping server waits for answers under way."""
log = logging.getLogger(__name__)
_PROCESS = ProcessCollector(registry=None)


class Controller(Protocol):
    """What the API asks of the controller. `verify` raises OSError where the network can't be read."""

    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def history(self) -> Iterable[Record]: ...
    @property
    def tally(self) -> Tally: ...
    async def verify(self) -> dict[str, Difference]: ...
    def next_record(self) -> asyncio.Future[Record]: ...
    def submit(self, event: Event) -> asyncio.Future[Result]: ...


Trace = Callable[[Snapshot, Asked, float, bool], Awaitable[TraceView]]
"""As `podwire.trace.driver.Tracer.trace`."""


async def serve(
    path: Path, controller: Controller, facts: Callable[[], views.Facts], trace: Trace, statistics: Statistics
) -> web.AppRunner:
    """Answers once requests are served; `await runner.cleanup()` ends it and removes the socket.

    A socket that a killed agent left is replaced: the caller holds the state directory's lock. Raises OSError.
    """
    app = application(controller, facts, trace, statistics)

    async def remove(_: web.Application) -> None:
        _remove(path)

    app.on_cleanup.append(remove)
    runner = web.AppRunner(app, access_log=None, logger=httplog.log, shutdown_timeout=GRACE, handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, bind(path)).start()
    return runner


async def serve_monitors(
    host: str, port: int, controller: Controller, facts: Callable[[], views.Facts], statistics: Statistics
) -> web.ServerRunner:
    """Answers once TCP connections are served, with what harms nobody to know. Raises OSError."""
    known = _for_monitors(Answers(controller, facts, statistics))

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked = known.get(request.path)
        if asked is None or request.method not in ("GET", "HEAD"):
            text = f"this API has no {request.method} {request.path}"
            return replies.json({"error": printable(text)}, 404 if asked is None else 405)
        return await _error_as_json(request, asked)

    server = BriefServer(answer, MONITORS, access_log=None, logger=httplog.log, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=GRACE)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise OSError(error.errno, f"metrics_listen {place}: {os.strerror(error.errno or 0)}") from None
    return runner


def _remove(path: Path) -> None:
    """Of a socket only: a file of another kind is nobody's leftover."""
    if path.is_socket():
        path.unlink(missing_ok=True)


def bind(path: Path) -> socket.socket:
    """A socket of mode 0600, in place of one that is there. Raises OSError, naming the path."""
    _remove(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before bind: the file is born with the mode of its socket, so nobody slips in between (unix(7)).
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{path}: {os.strerror(error.errno or 0)}") from None
    return listener


def application(
    controller: Controller, facts: Callable[[], views.Facts], trace: Trace, statistics: Statistics
) -> web.Application:
    app = web.Application(middlewares=[_errors_as_json])
    asked = Answers(controller, facts, statistics)
    app.on_shutdown.append(asked.stop_waiting)
    app.add_routes(
        [
            web.get("/status", asked.status),
            web.get("/services", asked.services),
            web.get("/services/{namespace}/{name}", asked.service),
            web.get("/pods", asked.pods),
            web.get("/interface", asked.interface),
            web.get("/explain/service/{namespace}/{name}", asked.explain_service),
            web.get("/explain/packet", asked.explain_packet),
            web.get("/history", asked.history),
            web.get("/verify", asked.verify),
            web.post("/resync", asked.resync),
            web.post("/trace", partial(_trace, controller, trace)),
            *answers.routes(statistics, lambda: controller.snapshot),
            *(web.get(path, answer) for path, answer in _for_monitors(asked).items()),
        ]
    )
    return app


def _for_monitors(asked: "Answers") -> dict[str, Answer]:
    """By path."""
    return {
        "/healthz": asked.healthz,
        "/readyz": asked.readyz,
        "/metrics": asked.metrics,
        **answers.for_monitors(asked.statistics, asked.now),
    }


class Answers:
    """One method for each request."""

    def __init__(self, controller: Controller, facts: Callable[[], views.Facts], statistics: Statistics) -> None:
        self._controller, self._facts, self.statistics = controller, facts, statistics
        self._waiting: set[asyncio.Future[Record]] = set()
        self._counted: tuple[Snapshot | None, Counter[views.FrontendState]] = None, Counter()

    def now(self) -> Snapshot:
        return self._controller.snapshot

    async def status(self, _: web.Request) -> web.Response:
        return replies.json(views.status(self._controller.snapshot, self._facts()))

    async def services(self, request: web.Request) -> web.StreamResponse:
        now = self._controller.snapshot
        return await replies.stream(request, "services", (views.service(now, key) for key in views.service_keys(now)))

    async def service(self, request: web.Request) -> web.Response:
        """A list of one, so that readers know one form."""
        now = self._controller.snapshot
        key = replies.service_asked(request, now)
        return replies.json(views.ServiceList((views.service(now, key),)))

    async def pods(self, request: web.Request) -> web.StreamResponse:
        now = self._controller.snapshot
        return await replies.stream(request, "pods", (views.pod(now, key) for key in views.attachment_keys(now)))

    async def interface(self, request: web.Request) -> web.Response:
        namespace, pod = request.query.get("namespace", ""), request.query.get("pod", "")
        if not pod:
            raise web.HTTPBadRequest(text="pod: missing; expected namespace=NAMESPACE&pod=NAME")
        try:
            name = request.query.get("interface")
            return replies.json(views.interface(self._controller.snapshot, namespace, pod, name))
        except LookupError as error:
            raise web.HTTPNotFound(text=str(error)) from None

    async def explain_service(self, request: web.Request) -> web.Response:
        """In a thread, as a Service may have thousands of backends."""
        key = ServiceKey(request.match_info["namespace"], request.match_info["name"])
        try:
            now, errors = self._controller.snapshot, self._facts().source_errors
            return replies.body(await asyncio.to_thread(_explained_service, now, key, errors))
        except LookupError as error:
            raise web.HTTPNotFound(text=str(error)) from None

    async def explain_packet(self, request: web.Request) -> web.Response:
        now = self._controller.snapshot
        source, destination = (_words(request, name) for name in ("from", "to"))
        try:
            to = parse_destination(destination)
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"to: {error}") from None
        try:
            client = parse_source(now, source, to.family)
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"from: {error}") from None
        except LookupError as error:
            raise web.HTTPNotFound(text=str(error)) from None
        return replies.body(await asyncio.to_thread(_explained_packet, now, client, to))

    async def history(self, request: web.Request) -> web.Response:
        since = _number(request, "since", 0, MOST_NUMBER)
        limit = _number(request, "limit", 1, MOST_RECORDS)
        wait = _number(request, "wait", 1, LONGEST_WAIT)
        if wait is not None:
            if since is None:
                raise web.HTTPBadRequest(text="wait: expected since=NUMBER beside it")
            await self._something_after(since, wait)
        return replies.json(views.history(self._controller.history, since, MOST_RECORDS if limit is None else limit))

    async def _something_after(self, since: int, seconds: float) -> None:
        """Returns at once where there is such a record already."""
        if any(record.number > since for record in self._controller.history):
            return
        reader = self._controller.next_record()
        self._waiting.add(reader)
        try:
            await asyncio.wait([reader], timeout=seconds)
        finally:
            self._waiting.discard(reader)
            reader.cancel()

    async def stop_waiting(self, _: web.Application) -> None:
        """An agent that ends is not held up by its readers."""
        for reader in self._waiting:
            reader.cancel()

    async def verify(self, request: web.Request) -> web.StreamResponse:
        try:
            found = await self._controller.verify()
        except OSError as error:
            raise web.HTTPInternalServerError(text=f"the network can't be read: {error}") from None
        return await replies.stream(request, "drift", drift(found))

    async def resync(self, _: web.Request) -> web.Response:
        result = await self._controller.submit(Resync(ResyncReason.ON_DEMAND))
        return replies.json(views.resynced(record_of(result, 0, 0.0)))

    async def healthz(self, _: web.BaseRequest) -> web.Response:
        """That this is answered at all says that the event loop turns."""
        return replies.json({"healthy": True})

    async def readyz(self, _: web.BaseRequest) -> web.Response:
        reason = self._facts().not_ready
        return replies.json({"ready": reason is None, "not_ready": reason}, 200 if reason is None else 503)

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        now, facts = self._controller.snapshot, self._facts()
        told = metrics.families(views.status(now, facts), await self._states(now), self._controller.tally)
        counted = await answers.of_node(self.statistics)
        return replies.exposition(request, (*told, *counted, *_PROCESS.collect()))

    async def _states(self, now: Snapshot) -> Counter[views.FrontendState]:
        """In slices, and not again while nothing has happened: of ten thousand Services it costs 0.2 s."""
        if self._counted[0] is not now:
            states: Counter[views.FrontendState] = Counter()
            keys = iter(now.services)
            while part := tuple(islice(keys, SLICE)):
                states += metrics.states(now, part)
                await asyncio.sleep(0)
            self._counted = now, states
        return self._counted[1]


async def _trace(controller: Controller, trace: Trace, request: web.Request) -> web.Response:
    """Cancelled when the client goes, as all that is asked here."""
    now = controller.snapshot
    source, destination = (_words(request, name) for name in ("from", "to"))
    try:
        patience = seconds(request.query.get("timeout"))
        what = await asyncio.to_thread(asked, now, source, destination)
        return replies.json(await trace(now, what, patience, request.query.get("rules") == "all"))
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    except LookupError as error:
        raise web.HTTPNotFound(text=str(error)) from None
    except Busy as error:
        raise web.HTTPConflict(text=str(error)) from None
    except OSError as error:
        raise web.HTTPInternalServerError(text=f"the packet can't be traced: {error.strerror or error}") from None


def _explained_service(now: Snapshot, key: ServiceKey, errors: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(explain_service(now, key, errors))


def _explained_packet(now: Snapshot, source: Address | None, to: Frontend) -> bytes:
    return msgspec.json.encode(explain_packet(now, source, to))


def _words(request: web.Request, name: str) -> str:
    text = request.query.get(name)
    if not text:
        form = "an IP address, node, or a pod as NAMESPACE/NAME" if name == "from" else "IP:PORT or IP:PORT/PROTOCOL"
        raise web.HTTPBadRequest(text=f"{name}: missing; expected {form}")
    return text


def _number(request: web.Request, name: str, least: int, most: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not digits or not least <= int(text) <= most:
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        raise web.HTTPBadRequest(text=f"{name}: expected a whole number from {least} to {most}; found {shown!r}")
    return int(text)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            if request.match_info.http_exception is None:
                raise
            text = f"this API has no {request.method} {request.path}"
            return replies.json({"error": printable(text)}, error.status)

    return await _error_as_json(request, answer)


async def _error_as_json(request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
    try:
        return await answer(request)
    except web.HTTPException as error:
        return replies.json({"error": printable(error.text or error.reason)}, error.status)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception as error:  # a bug: it is told in the form of all errors, where nothing was answered yet
        log.exception("%s %s", request.method, request.path)
        return replies.json({"error": printable(f"internal error: {error!r}")}, web.HTTPInternalServerError.status_code)
