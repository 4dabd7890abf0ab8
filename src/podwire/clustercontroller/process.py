"""The controller's process: who works, and until when.

Invariants: one works at a time, whoever holds the Lease; one that loses it ends at once, and starts again as one that
waits. It holds no state: everything is in the API's objects, which are listed once it holds the Lease, so that all that
the last holder has written is among them, however late a watch would have told.
"""

import asyncio
import logging
import os
import signal
import socket
from typing import NamedTuple

from podwire import logs
from podwire.clustercontroller.allocator import Allocator
from podwire.clustercontroller.backoff import Refused
from podwire.clustercontroller.importer import Importer
from podwire.clustercontroller.metrics import Seen
from podwire.clustercontroller.monitor import serve
from podwire.clustercontroller.objects import Objects
from podwire.clustercontroller.reporter import Reporter
from podwire.clustercontroller.writer import NAME, Writer
from podwire.config import Kubernetes
from podwire.loadbalancer.reports import Report
from podwire.loadbalancer.statuses import News, Status
from podwire.model.addresses import Address
from podwire.model.announcements import ConfigKey
from podwire.model.balancers import Balanced, Leftover
from podwire.model.declared import Declared
from podwire.model.objects import ServiceKey
from podwire.preflight import CannotStart, api_of
from podwire.sources.kube_api import Api
from podwire.sources.kube_watch import CHANCE, Chance
from podwire.sources.lease import Lease, Lost
from podwire.version import version

log = logging.getLogger(__name__)


class Settings(NamedTuple):
    """`unclassed`: Services without a class are ours, too. `namespace`: where the Lease is."""

    kubernetes: Kubernetes = Kubernetes()
    unclassed: bool = True
    namespace: str = "podwire"
    identity: str = ""
    listen: tuple[Address, int] | None = None
    """Where health and metrics are told, over TCP."""
    metallb: str = ""
    """The namespace of MetalLB, whose objects are followed; "": they are not."""


class Controller:
    def __init__(self, api: Api, settings: Settings, chance: Chance = CHANCE) -> None:
        self._api, self._at_work = api, False
        identity = settings.identity or f"{socket.gethostname()}_{os.getpid()}"
        self._settings = settings._replace(identity=identity)
        unclassed = settings.unclassed
        self.objects = Objects(api, unclassed, self._stir, self._stir_reports, chance)
        self._writer = Writer(api, unclassed, identity, chance)
        self.reporter = Reporter(self.objects, self, chance)
        self.allocator = Allocator(self.objects, self._write, self._writer.tell, chance, self.reporter.decided)
        self.lease = Lease(api, settings.namespace, NAME, identity, chance)
        self.importer: Importer | None = None
        if settings.metallb:
            self.importer = Importer(api, self.objects, settings.metallb, self._check, chance)

    def _stir(self) -> None:
        self.allocator.stir()

    def _stir_reports(self) -> None:
        self.reporter.stir()
        if self.importer is not None:
            self.importer.stir()

    async def _write(self, key: ServiceKey, held: Balanced, status: Status) -> Balanced:
        """Raises Refused, also once the lease may be somebody else's: whoever was halted learns of that later."""
        self._check()
        return await self._writer.write(key, held, status)

    async def report(self, key: ConfigKey, held: Declared, report: Report) -> None:
        """As `_write`."""
        self._check()
        await self._writer.report(key, held, report)

    async def forget(self, key: ServiceKey, held: Leftover) -> None:
        """As `_write`."""
        self._check()
        await self._writer.forget(key, held)

    async def tell_of(self, key: ConfigKey, held: Declared, news: News) -> None:
        await self._writer.tell_of(key, held, news)

    def _check(self) -> None:
        if not self.lease.held:
            raise Refused("the lease was not renewed in time")

    async def run(self) -> None:
        """Until cancelled. Raises Lost once another may work in our place."""
        log.info("waiting for the lease %s in namespace %s", NAME, self._settings.namespace)
        await self.lease.acquire()
        log.info("at work as %s", self._settings.identity)
        self._at_work = True
        holding = asyncio.create_task(self.lease.hold())
        works = [self.objects.run(), self._allocate(), self.reporter.run()]
        if self.importer is not None:
            works.append(self.importer.run())
        tasks = [holding, *map(asyncio.create_task, works)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            lost, *_ = await asyncio.gather(*tasks, return_exceptions=True)
            if not isinstance(lost, Lost):
                await self.lease.release()
        for task in tasks:
            if not task.cancelled():
                task.result()

    def fault(self) -> str:
        """Why it is not healthy; "": it is."""
        return "the lease was not renewed in time" if self._at_work and not self.lease.held else ""

    def told(self) -> Seen:
        grants, problems = self.allocator.grants, self.reporter.problems
        held = self._at_work and self.lease.held
        return Seen(version(), held, self.reporter.usage, grants, problems, self.allocator.written, self._api.errors)

    async def _allocate(self) -> None:
        """Never returns."""
        await self.objects.watched()
        await self.allocator.run()


def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises CannotStart; Lost where the lease was."""
    logs.set_up("info")
    asyncio.run(_run(api_of(settings.kubernetes), settings))


async def _run(api: Api, settings: Settings) -> None:
    controller = Controller(api, settings)
    monitor = None
    if settings.listen is not None:
        try:
            monitor = await serve(settings.listen, controller.fault, controller.told)
        except OSError as error:
            await api.close()
            raise CannotStart(error.strerror) from None
    work = asyncio.create_task(controller.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()
    finally:
        if monitor is not None:
            await monitor.cleanup()
        await api.close()
