"""Where the controller says over TCP whether it lives, and its metrics.

Invariants: whoever connects has one question and half a minute (`connections.py`). One that waits for the Lease is as
healthy as the one that has it: it is there to take over.
"""

import os
from collections.abc import Callable

from aiohttp import web
from prometheus_client import ProcessCollector

from podwire import httplog, replies
from podwire.clustercontroller.metrics import Seen, families
from podwire.connections import MONITORS, BriefServer
from podwire.healthserver import bind
from podwire.model.addresses import Address, show_host_port
from podwire.model.text import printable
from podwire.services.health import Place

_PROCESS = ProcessCollector(registry=None)
GRACE = 1.0
"""Seconds that a stopping server waits for answers under way."""


async def serve(place: tuple[Address, int], fault: Callable[[], str], seen: Callable[[], Seen]) -> web.ServerRunner:
    """Answers once connections are taken. `fault`: why it is not healthy, "": it is. Raises OSError."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return replies.json({"error": printable(f"no {request.method} {request.path}")}, 405)
        if request.path == "/healthz":
            why = fault()
            return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")
        if request.path == "/metrics":
            return replies.exposition(request, (*families(seen()), *_PROCESS.collect()))
        return replies.json({"error": printable(f"no {request.method} {request.path}")}, 404)

    server = BriefServer(answer, MONITORS, access_log=None, logger=httplog.log, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=GRACE)
    await runner.setup()
    try:
        await web.SockSite(runner, bind(Place(*place)), backlog=16).start()
    except OSError as error:
        await runner.cleanup()
        why = os.strerror(error.errno or 0)
        raise OSError(error.errno, f"--metrics-listen {show_host_port(*place)}: {why}") from None
    return runner
