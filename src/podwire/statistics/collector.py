"""Reads what the kernel counts, when somebody asks and now and then, and adds it up.

Invariants: nothing is counted here. The kernel is read in a thread, at most a fifth of the time however many ask, and
to the end whoever stops waiting. What counted a frontend is deleted once no Service claims it, and all Services are
known.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from podwire.model.network import Frontend
from podwire.model.objects import AttachmentKey, ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import owner
from podwire.statistics.totals import Counts, Totals, add, nothing

SHARE = 4.0
"""A reading is new enough for whoever asks for so many times as long as it took."""
PERIOD = 60.0
"""Seconds between two readings that nobody asked for: what one Service had is not told of the next one with its
address, nor lost with it."""
SLICE = 200
"""Frontends forgotten between two turns of the event loop: about three milliseconds."""
log = logging.getLogger(__name__)

ServiceTotals = Totals[Frontend, ServiceKey]
PodTotals = Totals[AttachmentKey, AttachmentKey]
Told = TypeVar("Told")


class Controller(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...
    def settled(self) -> AbstractAsyncContextManager[Snapshot]: ...


class Frontends(Protocol):
    """As `podwire.dataplane.nftables.counting.Counting`."""

    def read(self) -> Mapping[Frontend, Counts]: ...
    def forget(self, frontends: Iterable[Frontend]) -> None: ...


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
    def __init__(self, controller: Controller, frontends: Frontends, interfaces: Interfaces) -> None:
        self._controller, self._frontends, self._interfaces = controller, frontends, interfaces
        self._of_services: ServiceTotals = nothing(5)
        self._of_pods: PodTotals = nothing(4)
        self._services, self._pods = Shared(self.read_services), Shared(self.read_pods)

    async def services(self) -> ServiceTotals:
        """By frontend: connections, packets and bytes from clients, packets and bytes to them. Raises OSError."""
        return await self._services.get()

    async def pods(self) -> PodTotals:
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
        read = await asyncio.to_thread(self._frontends.read)
        now, before = self._controller.snapshot, self._of_services
        known = before.series
        owners = {it: owner(now, it) for it in known.keys() | read.keys() if it in now.claims}
        if not now.whole:
            owners = {it: series.owner for it, series in known.items()} | owners
        self._of_services = add(before, read, owners, now.services if now.whole else _Everybody())
        if now.whole:
            await self._forget(read.keys() - owners.keys())
        return self._of_services

    async def read_pods(self) -> PodTotals:
        """As `read_services`."""
        read = await asyncio.to_thread(self._interfaces.read)
        now = self._controller.snapshot.attachments
        found = {key: _of_pod(read[it.index]) for key, it in now.items() if it.index in read}
        self._of_pods = add(self._of_pods, found, {key: key for key in now}, now)
        return self._of_pods

    async def _forget(self, strangers: Iterable[Frontend]) -> None:
        """Those that are still nobody's, while no transaction goes on."""
        left = iter(sorted(strangers))
        while some := list(islice(left, SLICE)):
            async with self._controller.settled() as now:
                self._frontends.forget(it for it in some if it not in now.claims)
            await asyncio.sleep(0)


class _Everybody:
    """Of whom it isn't known yet whether they live."""

    def __contains__(self, _: object) -> bool:
        return True


def _of_pod(interface: Counts) -> Counts:
    """What the node's end of a link received is what the pod sent."""
    received_packets, sent_packets, received_bytes, sent_bytes = interface
    return sent_packets, sent_bytes, received_packets, received_bytes
