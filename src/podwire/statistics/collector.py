"""Reads what the kernel counts, when somebody asks and now and then, and adds it up.

Invariants: nothing is counted here. The kernel is read in a thread, at most a fifth of the time however many ask, and
to the end whoever stops waiting; what is read is added up there, too. What was told last is known to the next agent
(`kept.py`); where it is not, all begins at zero: a sum that fell to anything else would be taken for so much traffic.
What counted a frontend is deleted once no Service claims it, and all Services are known.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from podwire.model.network import Frontend
from podwire.model.objects import AttachmentKey
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import owner
from podwire.statistics.counted import COUNTS
from podwire.statistics.kept import ServiceTotals
from podwire.statistics.totals import Counts, add, nothing

SHARE = 4.0
"""A reading is new enough for whoever asks for so many times as long as it took."""
PERIOD = 60.0
"""Seconds between two readings that nobody asked for: what one Service had is not told of the next one with its
address, nor lost with it."""
SLICE = 200
"""Frontends forgotten between two turns of the event loop: about three milliseconds."""
log = logging.getLogger(__name__)

PodCounts = Mapping[AttachmentKey, Counts]
Told = TypeVar("Told")


class Controller(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...
    def settled(self) -> AbstractAsyncContextManager[Snapshot]: ...


class Frontends(Protocol):
    """As `podwire.dataplane.nftables.counting.Counting`."""

    def identity(self) -> str: ...
    def read(self) -> Mapping[Frontend, Counts]: ...
    def forget(self, frontends: Iterable[Frontend]) -> None: ...


class Memory(Protocol):
    """As `podwire.statistics.kept.Kept`."""

    def recall(self, counters: str) -> ServiceTotals | None: ...
    def keep(self, counters: str, totals: ServiceTotals, unread: Container[Frontend]) -> None: ...


class Interfaces(Protocol):
    """As `podwire.dataplane.linux.counters.InterfaceCounters`."""

    def read(self) -> Mapping[int, Counts]: ...


class Shared(Generic[Told]):
    """One reading for all who ask at about the same time."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, Told]]) -> None:
        self._read = read
        self._old = 0.0
        """When the last reading will be too old, by the loop's clock."""
        self.task: asyncio.Task[Told] | None = None

    async def get(self) -> Told:
        """Raises OSError where the kernel can't be read."""
        if self.task is None or (self.task.done() and asyncio.get_running_loop().time() >= self._old):
            self.task = asyncio.create_task(self._timed())
            self.task.add_done_callback(_seen)  # whoever asked may have gone
        return await asyncio.shield(self.task)

    async def _timed(self) -> Told:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            return await self._read()
        finally:
            self._old = clock() + SHARE * (clock() - began)


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class Collector:
    def __init__(
        self,
        controller: Controller,
        frontends: Frontends,
        interfaces: Interfaces,
        memory: Memory,
        traffic: bool = True,
    ) -> None:
        """`traffic`: whether the kernel counts packets of Services, not their connections alone."""
        self.traffic = traffic
        self._controller, self._frontends, self._interfaces = controller, frontends, interfaces
        self._memory = memory
        self._of_services: ServiceTotals | None = None
        self._services, self._pods = Shared(self.read_services), Shared(self.read_pods)

    async def services(self) -> ServiceTotals:
        """By frontend, as `counted.COUNTS`. Raises OSError."""
        return await self._services.get()

    async def pods(self) -> PodCounts:
        """By attachment: packets and bytes that the pod received, packets and bytes that it sent. Raises OSError."""
        return await self._pods.get()

    async def run(self) -> None:
        """Until cancelled."""
        failed = False
        while True:
            try:
                await self.services()
                await self.pods()
                failed = False
            except OSError as error:
                if not failed:
                    log.warning("statistics can't be read: %s", error)
                failed = True
            await asyncio.sleep(PERIOD)

    async def settle(self) -> None:
        """Waits for the readings that go on: they use what is about to be closed."""
        going = [it.task for it in (self._services, self._pods) if it.task is not None]
        if going:
            await asyncio.wait(going)

    async def read_services(self) -> ServiceTotals:
        """A new reading, however old the last one is. Not while another goes on. Raises OSError."""
        totals, strangers = await asyncio.to_thread(self._add_up)
        await self._forget(strangers)
        return totals

    async def read_pods(self) -> PodCounts:
        """As `read_services`. Not added up: a link that was made anew counts from zero."""
        read = await asyncio.to_thread(self._interfaces.read)
        now = self._controller.snapshot.attachments
        return {key: _of_pod(read[it.index]) for key, it in now.items() if it.index in read}

    def _add_up(self) -> tuple[ServiceTotals, list[Frontend]]:
        """In a thread; and what nobody claims, sorted, once all Services are known."""
        counters = self._frontends.identity()
        read = self._frontends.read()
        now, before = self._controller.snapshot, self._of_services
        if before is None:
            before = self._memory.recall(counters) or nothing(COUNTS)
            before = before._replace(nobodys={it: c for it, c in read.items() if it not in before.series})
        known = before.series
        owners = {it: owner(now, it) for it in known.keys() | read.keys() if it in now.claims}
        if not now.whole:
            owners = {it: series.owner for it, series in known.items()} | owners
        totals = add(before, read, owners, now.services if now.whole else _Everybody())
        self._memory.keep(counters, totals, totals.series.keys() - read.keys())
        self._of_services = totals
        return totals, sorted(read.keys() - owners.keys()) if now.whole else []

    async def _forget(self, strangers: Iterable[Frontend]) -> None:
        """Those that are still nobody's, in slices, while no transaction goes on."""
        left = iter(strangers)
        while some := list(islice(left, SLICE)):
            async with self._controller.settled() as now:
                forgotten = {it for it in some if it not in now.claims}
                self._frontends.forget(sorted(forgotten))
            if (held := self._of_services) is not None:  # whoever comes by them has what counts from zero
                left_over = {it: counts for it, counts in held.nobodys.items() if it not in forgotten}
                self._of_services = held._replace(nobodys=left_over)
            await asyncio.sleep(0)


class _Everybody:
    """Of whom it isn't known yet whether they live."""

    def __contains__(self, _: object) -> bool:
        return True


def _of_pod(interface: Counts) -> Counts:
    """What the node's end of a link received is what the pod sent."""
    received_packets, sent_packets, received_bytes, sent_bytes = interface
    return sent_packets, sent_bytes, received_packets, received_bytes
