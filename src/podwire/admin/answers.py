"""What the admin API answers: one method for each request.

Invariants: every answer is made from one snapshot, by `podwire.views` and `podwire.explain`. One that grows with the
cluster is written in slices, or made in a thread, so that an ADD gets its turn in between.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

import msgspec
from aiohttp import web
from prometheus_client import ProcessCollector

from podwire import metrics, replies, views
from podwire.admin.announcing import Announcers
from podwire.admin.requests import number, words
from podwire.controller.difference import Difference
from podwire.controller.events import Event, Resync, ResyncReason
from podwire.controller.history import Record, record_of
from podwire.controller.tally import Tally
from podwire.controller.transaction import Result
from podwire.drift import drift
from podwire.explain.packets import explain_packet, parse_destination, parse_source
from podwire.explain.services import explain_service
from podwire.ipam.views import ipam
from podwire.model.addresses import Address
from podwire.model.network import Frontend
from podwire.model.objects import ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.replies import SLICE
from podwire.sources.pod_wishes import awaited
from podwire.statistics import answers
from podwire.statistics.answers import Statistics

MOST_RECORDS = 1000
MOST_NUMBER = 10**18
"""Of a record: more than will ever be."""
LONGEST_WAIT = 60
"""Seconds that a request for the next record may wait."""
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


class Answers:
    """One method for each request."""

    def __init__(
        self,
        controller: Controller,
        facts: Callable[[], views.Facts],
        statistics: Statistics,
        announcers: Announcers | None = None,
    ) -> None:
        self._announcers = announcers
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

    async def ipam(self, _: web.Request) -> web.Response:
        """In a thread, as a cluster may have thousands of blocks."""
        return replies.body(await asyncio.to_thread(_shown_ipam, self._controller.snapshot))

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
        source, destination = (words(request, name) for name in ("from", "to"))
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
        since = number(request, "since", 0, MOST_NUMBER)
        limit = number(request, "limit", 1, MOST_RECORDS)
        wait = number(request, "wait", 1, LONGEST_WAIT)
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
        by = self._announcers
        announced = metrics.announced(by.peers(), by.layer2()) if by is not None else ()
        return replies.exposition(request, (*told, *announced, *counted, *_PROCESS.collect()))

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


def _shown_ipam(now: Snapshot) -> bytes:
    return msgspec.json.encode(ipam(now, awaited(now)))


def _explained_service(now: Snapshot, key: ServiceKey, errors: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(explain_service(now, key, errors))


def _explained_packet(now: Snapshot, source: Address | None, to: Frontend) -> bytes:
    return msgspec.json.encode(explain_packet(now, source, to))
