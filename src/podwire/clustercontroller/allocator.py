"""The allocation of load balancers' addresses at work: objects in, statuses out.

Invariants: nothing is given before all objects are known. All of it follows from the objects (`allocation.py`); what is
remembered beside them is only what was written and is not yet seen again. A status is written on the version that it
was decided on: where the object has changed since, it is decided anew. What fails is tried again with growing delay,
whatever else changes meanwhile; what hangs holds up no later change of others, and has the addresses that it was to be
given as long as it does. Changes that come together are decided once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from podwire.clustercontroller.backoff import Backoff, Refused
from podwire.loadbalancer.allocation import Grant, allocate
from podwire.loadbalancer.others import Taken
from podwire.loadbalancer.pools import Pools, Used, used
from podwire.loadbalancer.statuses import News, Status, due, news
from podwire.model.balancers import AddressPoolKey, Balanced, Labels
from podwire.model.objects import ServiceKey
from podwire.sources.kube_watch import CHANCE, Chance

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Writes under way at a time."""
PATIENCE = 2.0
"""Seconds that the writes of one decision are waited for before the next."""
RESTS = 3
"""How many times longer than a decision takes the rest after it is, if anything has changed by then: so that a large
cluster in which always something changes takes a quarter of a core."""


class Cluster(Protocol):
    """What the API last said."""

    @property
    def pools(self) -> Pools: ...
    @property
    def namespaces(self) -> Mapping[str, Labels]: ...
    @property
    def services(self) -> Mapping[ServiceKey, Balanced]: ...
    @property
    def taken(self) -> Taken: ...


Write = Callable[[ServiceKey, Balanced, Status], Awaitable[Balanced]]
"""Answers with the object as it is now. Raises Refused."""
Tell = Callable[[ServiceKey, Balanced, News], Awaitable[None]]
"""Never raises."""

Decided = Callable[[Used, Mapping[ServiceKey, Grant]], None]


class Allocator:
    def __init__(
        self, cluster: Cluster, write: Write, tell: Tell, chance: Chance = CHANCE, decided: Decided = lambda *_: None
    ) -> None:
        """`decided`: who gets what is known anew."""
        self._cluster, self._write, self._tell, self._decided = cluster, write, tell, decided
        self._clock, self._pause = chance.clock, chance.pause
        self._took = 0.0
        """By the last decision, in seconds."""
        self._stirred = asyncio.Event()
        self._written: dict[ServiceKey, tuple[Balanced, Balanced]] = {}
        """By Service: what was last seen before a write, and what the write made of it."""
        self._under_way: dict[ServiceKey, tuple[asyncio.Task[None], Grant]] = {}
        self._backoff: Backoff[ServiceKey] = Backoff()
        self._unfit: Mapping[AddressPoolKey, str] = {}
        self.grants: Mapping[ServiceKey, Grant] = {}
        """As last decided."""
        self.written = 0

    def stir(self) -> None:
        """Something has changed."""
        self._stirred.set()

    def services(self) -> dict[ServiceKey, Balanced]:
        """As the API last said, or as we have written them since, or are about to."""
        seen = self._cluster.services
        self._written = {key: it for key, it in self._written.items() if seen.get(key) == it[0]}
        found = {key: self._written[key][1] if key in self._written else it for key, it in seen.items()}
        for key, (_, grant) in self._under_way.items():
            if (held := found.get(key)) is not None:
                found[key] = replace(held, request=replace(held.request, holds=grant.addresses))
        return found

    async def run(self) -> None:
        """Never returns."""
        try:
            while True:
                await self.once()
                ended = self._clock()
                await self._stirred.wait()
                if (rest := ended + RESTS * self._took - self._clock()) > 0:
                    await self._pause(rest)
        finally:
            writes = [task for task, _ in self._under_way.values()]
            for task in writes:
                task.cancel()
            await asyncio.gather(*writes, return_exceptions=True)

    async def once(self) -> None:
        """All that is due now, but what hangs."""
        self._stirred.clear()
        self._collect()
        began = self._clock()
        services = self.services()
        requests = {key: it.request for key, it in services.items()}
        pools, namespaces = self._cluster.pools, self._cluster.namespaces
        known = used(pools, self._cluster.taken)
        self._note(known.unfit)
        # Of ten thousand Services it takes a tenth of a second; all of it is values that never change.
        self.grants = await asyncio.to_thread(allocate, known, namespaces, requests)
        self._decided(known, self.grants)
        wanted = {key: due(services[key], self.grants[key], bool(pools)) for key in sorted(services)}
        self._backoff.keep({key for key, status in wanted.items() if status is not None})
        self._took = self._clock() - began
        places = asyncio.Semaphore(AT_ONCE)
        works = [
            self._start(places, key, services[key], status, self.grants[key])
            for key, status in wanted.items()
            if status is not None
            and key not in self._under_way
            and not self._backoff.waits(key, services[key].version, self._clock())
        ]
        if works:
            _, late = await asyncio.wait(works, timeout=PATIENCE)
            for task in late:  # what changes meanwhile is left alone until it ends
                task.add_done_callback(lambda _: self.stir())
        self._collect()
        self._backoff.wake(self.stir, self._clock())

    def _note(self, unfit: Mapping[AddressPoolKey, str]) -> None:
        """Each pool that is not used, once."""
        for key, why in unfit.items():
            if self._unfit.get(key) != why:
                log.warning("%s is not used: %s", key, why)
        self._unfit = unfit

    def _collect(self) -> None:
        """What has ended. Raises what no write may raise."""
        for key, (task, _) in list(self._under_way.items()):
            if task.done():
                del self._under_way[key]
                task.result()

    def _start(
        self, places: asyncio.Semaphore, key: ServiceKey, held: Balanced, status: Status, grant: Grant
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._settle(places, key, held, status, grant))
        self._under_way[key] = task, grant
        return task

    async def _settle(
        self, places: asyncio.Semaphore, key: ServiceKey, held: Balanced, status: Status, grant: Grant
    ) -> None:
        async with places:
            seen = self._cluster.services.get(key)
            if seen is None:
                return
            try:
                after = await self._write(key, held, status)
            except Refused as error:
                self._backoff.failed(key, held.version, error, self._clock())
                return
            self._backoff.done(key)
            self.written += 1
            self._written[key] = seen, after
            for each in news(held, grant):
                await self._tell(key, held, each)
