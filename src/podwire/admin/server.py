"""Where the admin API is served: a unix socket that only the agent's user can open, and TCP for monitors.

Invariants: what is served over TCP is named in `_for_monitors` and in `podwire.statistics.answers`, nothing else is.
Every error is JSON, an unknown path's and a bug's too.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from podwire import httplog, replies, views
from podwire.admin import announcing
from podwire.admin.announcing import Announcers
from podwire.admin.answers import Answers, Controller
from podwire.admin.tracing import Trace, trace_packet
from podwire.connections import MONITORS, Answer, BriefServer
from podwire.model.text import printable
from podwire.statistics import answers
from podwire.statistics.answers import Statistics

GRACE = 1.0
"""Seconds that a stopping server waits for answers under way."""
log = logging.getLogger(__name__)


async def serve(
    path: Path,
    controller: Controller,
    facts: Callable[[], views.Facts],
    trace: Trace,
    statistics: Statistics,
    announcers: Announcers | None = None,
) -> web.AppRunner:
    """Answers once requests are served; `await runner.cleanup()` ends it and removes the socket.

    A socket that a killed agent left is replaced: the caller holds the state directory's lock. Raises OSError.
    """
    app = application(controller, facts, trace, statistics, announcers)

    async def remove(_: web.Application) -> None:
        _remove(path)

    app.on_cleanup.append(remove)
    runner = web.AppRunner(app, access_log=None, logger=httplog.log, shutdown_timeout=GRACE, handler_cancellation=True)
    await runner.setup()
    await web.SockSite(runner, bind(path)).start()
    return runner


async def serve_monitors(
    host: str,
    port: int,
    controller: Controller,
    facts: Callable[[], views.Facts],
    statistics: Statistics,
    announcers: Announcers | None = None,
) -> web.ServerRunner:
    """Answers once TCP connections are served, with what harms nobody to know. Raises OSError."""
    known = _for_monitors(Answers(controller, facts, statistics, announcers))

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
    controller: Controller,
    facts: Callable[[], views.Facts],
    trace: Trace,
    statistics: Statistics,
    announcers: Announcers | None = None,
) -> web.Application:
    app = web.Application(middlewares=[_errors_as_json])
    asked = Answers(controller, facts, statistics, announcers)
    app.on_shutdown.append(asked.stop_waiting)
    app.add_routes(
        [
            web.get("/status", asked.status),
            web.get("/services", asked.services),
            web.get("/services/{namespace}/{name}", asked.service),
            web.get("/pods", asked.pods),
            web.get("/ipam", asked.ipam),
            web.get("/interface", asked.interface),
            web.get("/explain/service/{namespace}/{name}", asked.explain_service),
            web.get("/explain/packet", asked.explain_packet),
            web.get("/history", asked.history),
            web.get("/verify", asked.verify),
            web.post("/resync", asked.resync),
            web.post("/trace", partial(trace_packet, controller, trace)),
            *answers.routes(statistics, lambda: controller.snapshot),
            *(announcing.routes(announcers) if announcers is not None else ()),
            *(web.get(path, answer) for path, answer in _for_monitors(asked).items()),
        ]
    )
    return app


def _for_monitors(asked: Answers) -> dict[str, Answer]:
    """By path."""
    return {
        "/healthz": asked.healthz,
        "/readyz": asked.readyz,
        "/metrics": asked.metrics,
        **answers.for_monitors(asked.statistics, asked.now),
    }


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
