"""What users have configured for load balancers, checked: statuses that say what is wrong and how many addresses are
in use; and conditions taken off Services that are for us no more.

Invariants: all of it follows from the objects (`checks.py`, `reports.py`). What changes within a moment is told
together, and nothing is written that stands there already. What fails is tried again with growing delay, beside all
else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from podwire.clustercontroller.backoff import Backoff, Refused
from podwire.loadbalancer.allocation import Grant
from podwire.loadbalancer.checks import Problem, Seen, problems
from podwire.loadbalancer.pools import Used
from podwire.loadbalancer.reports import Report, due, news
from podwire.loadbalancer.statuses import News
from podwire.loadbalancer.usage import Usage, usage
from podwire.model.addresses import Family
from podwire.model.announcements import ConfigKey
from podwire.model.balancers import AddressPoolKey, Leftover
from podwire.model.declared import Declared
from podwire.model.objects import ServiceKey
from podwire.sources.kube_time import time_of
from podwire.sources.kube_watch import CHANCE, Chance

AT_ONCE = 8
"""Writes under way at a time."""
EVERY = 2.0
"""Seconds from one look to the next, at least."""


class Cluster(Protocol):
    """What the API last said."""

    leftovers: dict[ServiceKey, Leftover]

    @property
    def declared(self) -> Mapping[ConfigKey, Declared]: ...
    def seen(self) -> Seen: ...


class Writes(Protocol):
    async def report(self, key: ConfigKey, held: Declared, report: Report, /) -> None:
        """Raises Refused."""

    async def forget(self, key: ServiceKey, held: Leftover, /) -> None:
        """Takes our condition off. Raises Refused."""

    async def tell_of(self, key: ConfigKey, held: Declared, news: News, /) -> None:
        """Never raises."""


class Reporter:
    def __init__(self, cluster: Cluster, writes: Writes, chance: Chance = CHANCE) -> None:
        self._cluster, self._writes, self._chance = cluster, writes, chance
        self._stirred = asyncio.Event()
        self._backoff: Backoff[ConfigKey | ServiceKey] = Backoff()
        self._written: dict[ConfigKey | ServiceKey, str] = {}
        """On which version of the object: what was made of it is not seen yet."""
        self._known: Used | None = None
        self._grants: Mapping[ServiceKey, Grant] = {}
        self.problems: tuple[Problem, ...] = ()
        self.usage: Mapping[str, Mapping[Family, Usage]] = {}

    def stir(self) -> None:
        """Something has changed."""
        self._stirred.set()

    def decided(self, known: Used, grants: Mapping[ServiceKey, Grant]) -> None:
        """Who has which address. Nothing is told before that was decided once."""
        self._known, self._grants = known, grants
        self.stir()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._stirred.wait()
            await self.once()
            await self._chance.pause(EVERY)

    async def once(self) -> None:
        """All that is due now."""
        self._stirred.clear()
        if self._known is None:
            return
        there = self._cluster.declared.keys() | self._cluster.leftovers.keys()
        self._written = {key: it for key, it in self._written.items() if key in there}
        self.problems = problems(self._cluster.seen())
        self.usage = usage(self._known, (it for grant in self._grants.values() for it in grant.addresses))
        places = asyncio.Semaphore(AT_ONCE)
        works = [*self._reports(), *self._removals()]
        self._backoff.keep({key for key, _, _ in works})
        now = self._chance.clock()
        free = [it for it in works if not self._backoff.waits(it[0], it[1], now)]
        await asyncio.gather(*(self._try(places, *it) for it in free))
        self._backoff.wake(self.stir, self._chance.clock())

    def _reports(self) -> "list[_Work]":
        found: list[_Work] = []
        now = time_of(self._chance.now())
        of: dict[ConfigKey, list[Problem]] = {}
        for problem in self.problems:
            of.setdefault(problem.object, []).append(problem)
        for key, held in sorted(self._cluster.declared.items(), key=lambda it: str(it[0])):
            mine = self.usage.get(key.name, {}) if isinstance(key, AddressPoolKey) else {}
            report = due(held, of.get(key, ()), mine, now)
            if report is not None and self._written.get(key) != held.version:
                found.append((key, held.version, self._report(key, held, report)))
        return found

    def _removals(self) -> "list[_Work]":
        left = sorted(self._cluster.leftovers.items())
        return [(key, it.version, self._removal(key, it)) for key, it in left if self._written.get(key) != it.version]

    def _report(self, key: ConfigKey, held: Declared, report: Report) -> Callable[[], Awaitable[None]]:
        async def write() -> None:
            await self._writes.report(key, held, report)
            for each in news(held, report):
                await self._writes.tell_of(key, held, each)

        return write

    def _removal(self, key: ServiceKey, held: Leftover) -> Callable[[], Awaitable[None]]:
        return lambda: self._writes.forget(key, held)

    async def _try(
        self, places: asyncio.Semaphore, key: ConfigKey | ServiceKey, version: str, write: Callable[[], Awaitable[None]]
    ) -> None:
        async with places:
            try:
                await write()
            except Refused as error:
                self._backoff.failed(key, version, error, self._chance.clock())
            else:
                self._backoff.done(key)
                self._written[key] = version


_Work = tuple[ConfigKey | ServiceKey, str, Callable[[], Awaitable[None]]]
"""The object, its version, and what is to be done."""
