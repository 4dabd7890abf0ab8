"""The allocation of load balancers' addresses at work: objects in, statuses out.

Invariants: nothing is given before all objects are known. All of it follows from the objects (`allocation.py`); what is
remembered beside them is only what was written and is not yet seen again. A status is written on the version that it
was decided on: where the object has changed since, it is decided anew. What fails is tried again with growing delay,
and holds up nobody else. Changes that come together are decided once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from podwire.loadbalancer.allocation import Grant, allocate
from podwire.loadbalancer.pools import Pools
from podwire.loadbalancer.statuses import News, Status, due, news
from podwire.model.balancers import Balanced, Labels
from podwire.model.objects import ServiceKey

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Writes under way at a time."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 60.0
"""Seconds before a write that failed is tried again."""


class Cluster(Protocol):
    """What the API last said."""

    @property
    def pools(self) -> Pools: ...
    @property
    def namespaces(self) -> Mapping[str, Labels]: ...
    @property
    def services(self) -> Mapping[ServiceKey, Balanced]: ...


class Refused(Exception):
    """A write that was not done. `changed`: the object is another one by now, or gone."""

    def __init__(self, why: str, *, changed: bool = False) -> None:
        super().__init__(why)
        self.changed = changed


Write = Callable[[ServiceKey, Balanced, Status], Awaitable[Balanced]]
"""Answers with the object as it is now. Raises Refused."""
Tell = Callable[[ServiceKey, Balanced, News], Awaitable[None]]
"""Never raises."""


class Allocator:
    def __init__(self, cluster: Cluster, write: Write, tell: Tell) -> None:
        self._cluster, self._write, self._tell = cluster, write, tell
        self._stirred = asyncio.Event()
        self._written: dict[ServiceKey, tuple[Balanced, Balanced]] = {}
        """By Service: what was last seen before a write, and what the write made of it."""
        self._failures: dict[ServiceKey, int] = {}
        self.grants: Mapping[ServiceKey, Grant] = {}
        self.written = 0

    def stir(self) -> None:
        """Something has changed."""
        self._stirred.set()

    def services(self) -> dict[ServiceKey, Balanced]:
        """As the API last said, or as we have written them since."""
        seen = self._cluster.services
        self._written = {key: it for key, it in self._written.items() if seen.get(key) == it[0]}
        return {key: self._written[key][1] if key in self._written else it for key, it in seen.items()}

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self.once()
            await self._stirred.wait()

    async def once(self) -> None:
        """All that is due now."""
        self._stirred.clear()
        services = self.services()
        requests = {key: it.request for key, it in services.items()}
        pools, namespaces = self._cluster.pools, self._cluster.namespaces
        # Of ten thousand Services it takes a tenth of a second; all of it is values that never change.
        self.grants = await asyncio.to_thread(allocate, pools, namespaces, requests)
        self._failures = {key: n for key, n in self._failures.items() if key in services}
        # Without a pool such Services are somebody else's, or nobody's.
        wanted = ((key, due(services[key], self.grants[key])) for key in sorted(services) if pools)
        places = asyncio.Semaphore(AT_ONCE)
        works = [self._settle(places, key, services[key], status) for key, status in wanted if status is not None]
        await asyncio.gather(*works)

    async def _settle(self, places: asyncio.Semaphore, key: ServiceKey, held: Balanced, status: Status) -> None:
        async with places:
            seen = self._cluster.services.get(key)
            if seen is None:
                return
            try:
                after = await self._write(key, held, status)
            except Refused as error:
                self._later(key, error)
                return
            self._failures.pop(key, None)
            self.written += 1
            self._written[key] = seen, after
            for each in news(held, self.grants[key]):
                await self._tell(key, held, each)

    def _later(self, key: ServiceKey, error: Refused) -> None:
        """What has changed comes again by itself: its event stirs us."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        if not error.changed and not failures:
            log.warning("%s: its status can't be written, and is tried again: %s", key, error)
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures, 10))
        asyncio.get_running_loop().call_later(delay, self.stir)
