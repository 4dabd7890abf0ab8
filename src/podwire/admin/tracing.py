"""The admin API's one request that sends something: a trace.

Invariant: nothing that it makes outlives it, nor the client that asked for it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from podwire import replies
from podwire.admin.answers import Controller
from podwire.admin.requests import words
from podwire.model.snapshot import Snapshot
from podwire.trace.asked import Asked, asked, seconds
from podwire.trace.driver import Busy
from podwire.trace.views import TraceView

Trace = Callable[[Snapshot, Asked, float, bool], Awaitable[TraceView]]
"""As `podwire.trace.driver.Tracer.trace`."""


async def trace_packet(controller: Controller, trace: Trace, request: web.Request) -> web.Response:
    """Cancelled when the client goes, as all that is asked here."""
    now = controller.snapshot
    source, destination = (words(request, name) for name in ("from", "to"))
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
