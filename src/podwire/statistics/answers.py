"""The admin API's answers about traffic.

Invariants: as for `podwire.admin`. What is told of each Service or pod for Prometheus is made in a thread: of ten
thousand Services it takes half a second.

    GET  /statistics/services, /statistics/services/NAMESPACE/NAME      by Service and frontend
    GET  /statistics/pods                                               by pod interface
    GET  /metrics/services, /metrics/pods                               the same for Prometheus

The last two may be had over TCP too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web
from prometheus_client.core import Metric

from podwire import replies
from podwire.connections import Answer
from podwire.model.snapshot import Snapshot
from podwire.statistics import families, views
from podwire.statistics.collector import PodCounts
from podwire.statistics.kept import ServiceTotals
from podwire.views import attachment_keys, service_keys

log = logging.getLogger(__name__)


class Statistics(Protocol):
    """As `podwire.statistics.collector.Collector`. Both raise OSError where the kernel can't be read."""

    @property
    def traffic(self) -> bool: ...
    async def services(self) -> ServiceTotals: ...
    async def pods(self) -> PodCounts: ...


Now = Callable[[], Snapshot]


def routes(statistics: Statistics, now: Now) -> list[web.RouteDef]:
    async def services(request: web.Request) -> web.StreamResponse:
        async with _readable():
            totals = await statistics.services()
        sums, seen = await asyncio.to_thread(totals.of_owners), now()
        return await replies.stream(
            request,
            "services",
            (views.service(seen, key, totals, sums, statistics.traffic) for key in service_keys(seen)),
        )

    async def service(request: web.Request) -> web.Response:
        """A list of one, so that readers know one form."""
        async with _readable():
            totals = await statistics.services()
        sums, seen = await asyncio.to_thread(totals.of_owners), now()
        key = replies.service_asked(request, seen)
        told = views.service(seen, key, totals, sums, statistics.traffic)
        return replies.json(views.ServiceStatisticsList((told,)))

    async def pods(request: web.Request) -> web.StreamResponse:
        async with _readable():
            counted = await statistics.pods()
        seen = now()
        return await replies.stream(request, "pods", (views.pod(seen, key, counted) for key in attachment_keys(seen)))

    return [
        web.get("/statistics/services", services),
        web.get("/statistics/services/{namespace}/{name}", service),
        web.get("/statistics/pods", pods),
    ]


def for_monitors(statistics: Statistics, now: Now) -> dict[str, Answer]:
    """By path. One text is made at a time: whoever asks, in however many connections, takes one thread."""
    one_by_one = asyncio.Lock()

    async def services(request: web.BaseRequest) -> web.Response:
        async with _readable():
            totals = await statistics.services()
        seen = now()

        def told() -> web.Response:
            sums = totals.of_owners()
            mine = ((key, sums[key]) for key in service_keys(seen) if key in sums)
            return replies.exposition(request, families.services(mine, statistics.traffic))

        async with one_by_one:
            making = asyncio.ensure_future(asyncio.to_thread(told))
            try:
                return await asyncio.shield(making)
            finally:  # who asked may have gone
                await asyncio.wait([making])

    async def pods(request: web.BaseRequest) -> web.Response:
        async with _readable():
            counted = await statistics.pods()
        seen = now()
        listed = [views.pod(seen, key, counted) for key in attachment_keys(seen)]
        return replies.exposition(request, families.pods(listed))

    return {"/metrics/services": services, "/metrics/pods": pods}


async def of_node(statistics: Statistics) -> Iterable[Metric]:
    """The node's sums; nothing where the kernel can't be read: all other metrics are told in any case."""
    try:
        return families.node(await statistics.services(), statistics.traffic)
    except OSError as error:
        log.warning("statistics can't be read: %s", error)
        return ()


@asynccontextmanager
async def _readable() -> AsyncIterator[None]:
    try:
        yield
    except OSError as error:
        raise web.HTTPInternalServerError(text=f"the kernel's counters can't be read: {error}") from None
