"""Load balancers' addresses one Service at a time, for whoever has Services of its own to look after: they are handed
over as they come, change and go, and each is answered with what is to be done next.

Invariants: who gets what is the same decision as the controller's own (`allocation.py`), over all Services that are
known, so neither their order nor how often one is handed over means anything. Nothing is given before all are known
(`mark_synced`). Of the same Service's events, however many, the newest state alone is looked at. What fails is tried
again with growing delay; what has no address waits for a change and not for a time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from podwire.clustercontroller.allocator import Tell, Write
from podwire.clustercontroller.backoff import Backoff, Refused
from podwire.loadbalancer.allocation import Grant, allocate
from podwire.loadbalancer.others import NOBODYS, Taken
from podwire.loadbalancer.pools import Pools, used
from podwire.loadbalancer.statuses import due, news
from podwire.model.balancers import Balanced, Labels, Request
from podwire.model.objects import ServiceKey
from podwire.sources.balancer_objects import BalancedService, read_service, service_key
from podwire.sources.fields import Invalid, invalid
from podwire.sources.kube_watch import CHANCE, Chance

log = logging.getLogger(__name__)
Thing = Mapping[str, Any]
"""A Service or an EndpointSlice in the API's form."""


class SyncState(Enum):
    SUCCESS = "success"
    """Nothing is left to do."""
    ERROR = "error"
    """To be tried again."""
    REPROCESS_ALL = "reprocess all"
    """Done; others may get now what they could not."""


class Controller:
    """`pools`, `namespaces` and `taken`, which no pool gives: as they are now. `write`, `tell`: as of the allocator."""

    def __init__(
        self,
        pools: Callable[[], Pools],
        namespaces: Callable[[], Mapping[str, Labels]],
        write: Write,
        tell: Tell,
        unclassed: bool = True,
        taken: Callable[[], Taken] = lambda: NOBODYS,
    ) -> None:
        self._pools, self._namespaces, self._write, self._tell = pools, namespaces, write, tell
        self._taken = taken
        self._unclassed, self._synced = unclassed, False
        self._known: dict[ServiceKey, Balanced] = {}
        self._given: dict[ServiceKey, Balanced] = {}
        """By Service: what was handed over when it was last written."""
        self._grants: dict[ServiceKey, Grant] | None = None
        """None: to be decided anew. What we write ourselves changes nobody's."""
        self._around: object = None
        """The pools, namespaces and what is taken, from which they were decided."""

    def mark_synced(self) -> None:
        """All Services were handed over once: those that need an address may get one."""
        self._synced = True

    async def set_balancer(self, name: str, service: Thing | None, slices: Iterable[Thing] = ()) -> SyncState:
        """`name`: NAMESPACE/NAME. None: it has gone. `slices`: its EndpointSlices; an address is given whether or not
        anybody answers there. A Service in which something is wrong keeps what it has, and that is logged."""
        del slices
        key = service_key(*name.split("/", 1))
        before = self._known.get(key)
        try:
            held = _read(service, self._unclassed) if service is not None else None
        except Invalid as error:
            log.warning("%s: %s", key, error)
            return SyncState.SUCCESS
        if held is None:
            self._given.pop(key, None)
            if self._known.pop(key, None) is not None:
                self._grants = None
            return SyncState.REPROCESS_ALL if before is not None and before.request.holds else SyncState.SUCCESS
        if held != self._given.get(key):  # else it is as it was before our own write
            if before is None or before.request != held.request:
                self._grants = None
            self._known[key] = held
            self._given.pop(key, None)
        if not self._synced:
            return SyncState.SUCCESS if held.request.holds else SyncState.ERROR
        return await self._settle(key, before)

    async def _settle(self, key: ServiceKey, before: Balanced | None) -> SyncState:
        held = self._known[key]
        grant = (await self._decided())[key]
        status = due(held, grant, bool(self._pools()))
        if status is not None:
            try:
                self._known[key] = await self._write(key, held, status)
            except Refused as error:
                log.info("%s: %s", key, error)
                return SyncState.ERROR
            self._given[key] = held
            for each in news(held, grant):
                await self._tell(key, held, each)
            if grant.lost:
                return SyncState.REPROCESS_ALL
        others = before is not None and _ties(before.request) != _ties(held.request)
        return SyncState.REPROCESS_ALL if others else SyncState.SUCCESS

    async def _decided(self) -> dict[ServiceKey, Grant]:
        """For all, once for whatever has changed."""
        around = self._pools(), self._namespaces(), self._taken()
        if self._grants is None or self._around != around:
            requests = {key: it.request for key, it in self._known.items()}
            self._grants = await asyncio.to_thread(allocate, used(around[0], around[2]), around[1], requests)
            self._around = around
        return self._grants


def _read(service: Thing, unclassed: bool) -> Balanced | None:
    """Raises Invalid."""
    try:
        _, held = read_service(msgspec.convert(service, BalancedService), unclassed)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    return held if isinstance(held, Balanced) else None


def _ties(request: Request) -> tuple[object, ...]:
    """Who else may have its addresses follows from these."""
    return request.sharing, request.backends, request.ports, request.holds


class Manager:
    """`service`: the newest state of one by NAMESPACE/NAME, None: it has gone. `names`: of all."""

    def __init__(
        self,
        controller: Controller,
        service: Callable[[str], Thing | None],
        names: Callable[[], Iterable[str]],
        chance: Chance = CHANCE,
    ) -> None:
        self._controller, self._service, self._names, self._chance = controller, service, names, chance
        self._queue: dict[str, None] = {}
        self._backoff: Backoff[str] = Backoff()
        self._stirred = asyncio.Event()
        self._to_sync = False

    def mark_synced(self) -> None:
        """All Services are known: `names` has them."""
        self._to_sync = True
        self.reprocess_all()

    def reprocess_all(self) -> None:
        """Pools or namespaces have changed, or an address is free."""
        for name in sorted(self._names()):
            self._add(name)

    def on_add_service(self, service: Thing) -> None:
        self._add(_name(service))

    def on_update_service(self, old: Thing, new: Thing) -> None:
        if old != new:
            self._add(_name(new))

    def on_delete_service(self, service: Thing) -> None:
        self._add(_name(service))

    def _add(self, name: str) -> None:
        self._queue[name] = None
        self._stirred.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self.once()
            await self._stirred.wait()

    async def once(self) -> None:
        """All that is in the queue, but what is tried again later."""
        self._stirred.clear()
        if self._to_sync:
            self._to_sync = False
            for each in sorted(self._names()):
                await self._controller.set_balancer(each, self._service(each))
            self._controller.mark_synced()
            self._backoff.keep(())  # who waited for this waits no longer
        while (name := self._next()) is not None:
            del self._queue[name]
            service = self._service(name)
            state = await self._controller.set_balancer(name, service)
            if state is SyncState.ERROR:
                not_yet = Refused("it is to be tried again", changed=True)
                self._backoff.failed(name, _version(service), not_yet, self._chance.clock())
                self._queue[name] = None
            else:
                self._backoff.done(name)
            if state is SyncState.REPROCESS_ALL:
                self.reprocess_all()
        self._backoff.wake(self._stirred.set, self._chance.clock())

    def _next(self) -> str | None:
        now = self._chance.clock()
        for name in self._queue:
            if not self._backoff.waits(name, _version(self._service(name)), now):
                return name
        return None


def _name(service: Thing) -> str:
    about = service["metadata"]
    return f"{about.get('namespace') or 'default'}/{about['name']}"


def _version(service: Thing | None) -> str:
    return str(service["metadata"].get("resourceVersion", "")) if service is not None else ""
