"""A node's agent: the explicit list of what it is made of, its start and its end.

Invariants: a state directory has one agent at a time (a lock says so). The start folds what the store and the sources
know, then makes one resync; requests wait until then. An API server that does not answer holds that up for seconds
only: what was wired is looked after without it. The end leaves the network as it is, and working.
"""

import asyncio
import fcntl
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Any

from podwire import admin, views
from podwire.config import Config
from podwire.controller.difference import Scope
from podwire.controller.events import Restored, Resync, ResyncReason, Shutdown
from podwire.controller.loop import Controller
from podwire.controller.transaction import Capability, Transaction
from podwire.dataplane.linux import rebuild
from podwire.dataplane.linux.driver import Linux
from podwire.dataplane.linux.mtu import default_route_mtu
from podwire.dataplane.nftables.driver import NFTables
from podwire.model.objects import Object, ObjectKey
from podwire.model.snapshot import Local, Snapshot
from podwire.nodes import own, routes
from podwire.pods import wiring
from podwire.services import frontends
from podwire.sources import cni_server, kube_status
from podwire.sources.kube_api import Api
from podwire.sources.kube_config import KubeConfigError, read_access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_source import KubernetesObjects
from podwire.sources.manifests import Manifests
from podwire.store.rows import Store, StoreUnusable
from podwire.version import version

log = logging.getLogger(__name__)

CAPABILITIES = (
    Capability("node", own.desired),
    Capability("routes", routes.desired),
    Capability("services", frontends.desired),
    Capability("pods", wiring.desired),
)
COLLECT_DELAY = 0.05
"""Seconds that a deleted link waits for others: the kernel takes as long for one as for a hundred."""


LISTING_SECONDS = 5.0
"""How long a start waits for the API server: ten thousand Services take one or two."""


class CannotStart(Exception):
    """The agent can't run here; one line says why."""


class Agent:
    """The parts, put together. All it touches in the kernel is in the network namespace in which it is made."""

    def __init__(self, config: Config) -> None:
        """Raises CannotStart."""
        self.config = config
        self.started = time.monotonic()
        self.api = _api(config)
        try:
            self.store = Store(config.database)
        except StoreUnusable as error:
            raise CannotStart(str(error)) from error
        self.linux, self.nftables = Linux(self.collect_later), NFTables()
        self.drivers = (self.store, self.linux, self.nftables)  # the order of every transaction
        mtu = config.mtu if config.mtu is not None else default_route_mtu()
        local = Local(config.node_name, mtu, config.service_cidrs)
        self.controller = Controller(Snapshot(local), Transaction(CAPABILITIES, self.drivers))
        self.manifests = Manifests(config.manifests) if config.manifests is not None else None
        self.kubernetes = KubernetesObjects(self.api, config.node_name) if self.api is not None else None
        self._collecting: asyncio.Task[None] | None = None

    def restore(self) -> None:
        """The first event: what the store remembers. Raises CannotStart."""
        try:
            attachments, cursors = self.store.restored()
            if self.store.fresh:
                attachments = rebuild.attachments(self.linux.read(Scope(None, frozenset())))
        except OSError as error:
            raise CannotStart(str(error)) from error
        if self.store.fresh and attachments:
            log.warning(
                "the store is new, and %d pods live: what it should know is taken from the kernel", len(attachments)
            )
        self.controller.submit(Restored(attachments, cursors))

    def not_ready(self) -> str | None:
        """Why no pod can be attached; None: the node is ready."""
        now = self.controller.snapshot
        if self.controller.unsynced:
            return f"not yet in sync: {', '.join(sorted(self.controller.unsynced))}"
        if self.kubernetes is not None and not now.whole:
            return "; ".join(("Kubernetes API not yet listed", *self.kubernetes.errors[:1]))
        if not now.node.pod_cidrs:
            return f"node {now.local.name} has no spec.podCIDRs"
        if now.local.mtu == 0:
            return "the MTU of pods is not known: there is no default route, and no mtu is set"
        return None

    async def until_ready(self) -> None:
        while self.not_ready() is not None:
            await self.controller.next_record()

    async def listing(self) -> tuple[Mapping[ObjectKey, Object] | None, bool]:
        """The cluster's objects as the sources know them at the start, and whether these are all."""
        if self.manifests is not None:
            return await self.manifests.listing(), not self.manifests.loaded.errors
        if self.kubernetes is not None:
            try:
                async with asyncio.timeout(LISTING_SECONDS):
                    return await self.kubernetes.listing(), True
            except TimeoutError:
                log.warning("the API server has not told all objects within %g s: on without it", LISTING_SECONDS)
        return None, False

    def facts(self) -> views.Facts:
        return views.Facts(
            version=version(),
            not_ready=self.not_ready(),
            uptime=time.monotonic() - self.started,
            writes={driver.name: driver.writes for driver in self.drivers},
            source_errors=self.source_errors,
        )

    @property
    def source_errors(self) -> tuple[str, ...]:
        found = self.controller.snapshot.unfit_ranges
        if self.manifests is not None:
            return found + self.manifests.loaded.errors
        return found + self.kubernetes.errors if self.kubernetes is not None else found

    def close(self) -> None:
        self.store.close()
        self.linux.close()
        self.nftables.close()

    def collect_later(self) -> None:
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        """Until none is left: more may come while a deletion goes on."""
        while names := self.linux.doomed:
            await asyncio.sleep(COLLECT_DELAY)
            try:
                await asyncio.to_thread(self.linux.delete_doomed)
            except OSError as error:
                log.warning("%s", error)
                return
            self.linux.forget_doomed(names)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Agent]:
    """An agent at work: in sync, or healing what it could not do. Raises CannotStart."""
    async with AsyncExitStack() as stack:
        _make_state_dir(config)
        stack.enter_context(_locked(config.lock))
        stack.enter_context(_alone())
        agent = Agent(config)
        stack.callback(agent.close)
        controller = agent.controller
        loop = asyncio.create_task(controller.run())
        stack.push_async_callback(_end, controller, loop)
        if agent.api is not None and agent.kubernetes is not None:
            stack.push_async_callback(agent.api.close)
            await stack.enter_async_context(agent.kubernetes.watching())
        agent.restore()
        listed, whole = await agent.listing()
        startup = await controller.submit(Resync(ResyncReason.STARTUP, listed, whole=whole))
        if startup.error is not None:
            log.warning("the first resync failed in part, and is tried again: %s", startup.error)
        agent.collect_later()  # what a killed agent had still to delete
        for work in _background(agent, listed is not None):
            task = asyncio.create_task(work)
            task.add_done_callback(_tell_if_failed)
            stack.push_async_callback(_cancel, task)
        gc.collect()
        gc.freeze()
        try:
            runner = await admin.serve(config.admin_socket, controller, agent.facts)
            stack.push_async_callback(runner.cleanup)
            if config.metrics_listen is not None:
                monitored = await admin.serve_monitors(*config.metrics_listen, controller, agent.facts)
                stack.push_async_callback(monitored.cleanup)
            server = await cni_server.serve(config.cni_socket, config.spool, controller, agent.not_ready)
            stack.push_async_callback(server.stop, 1.0)
        except OSError as error:
            raise CannotStart(error.strerror or str(error)) from error
        yield agent


def _api(config: Config) -> Api | None:
    """Raises CannotStart."""
    if config.kubernetes is None:
        return None
    try:
        access = read_access(config.kubernetes, os.environ)
    except KubeConfigError as error:
        raise CannotStart(str(error)) from error
    return Api(access, Credentials(access))


def _background(agent: Agent, listed: bool) -> Iterator[Coroutine[Any, Any, None]]:
    """What goes on beside the controller. `listed`: the sources' objects are in the snapshot."""
    submit = agent.controller.submit
    if agent.manifests is not None:
        yield agent.manifests.run(submit)
    if agent.kubernetes is not None:
        yield agent.kubernetes.run(submit, listed)
    if agent.api is not None and agent.config.kubernetes is not None:
        always = agent.config.kubernetes.network_condition
        yield kube_status.keep(agent.api, agent.config.node_name, agent.until_ready, always)


def _tell_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the agent has ended: changes are no longer followed", exc_info=error)


def run(config: Config) -> None:
    """Until SIGTERM or SIGINT. Raises CannotStart."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True
    )
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every file event
    asyncio.run(_run(config))


async def _run(config: Config) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with running(config) as agent:
        log.info("node %s: %s", config.node_name, agent.not_ready() or "ready")
        notify("READY=1")
        await stopped.wait()
        notify("STOPPING=1")


def notify(state: str) -> None:
    """Tells the service manager, where there is one (sd_notify(3))."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.connect("\0" + where[1:] if where.startswith("@") else where)
            out.sendall(state.encode())


async def _end(controller: Controller, loop: asyncio.Task[None]) -> None:
    await controller.submit(Shutdown())
    await loop


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _make_state_dir(config: Config) -> None:
    try:
        config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStart(f"{config.state_dir}: {error.strerror}") from error


def _alone() -> socket.socket:
    """A name that one socket can have in a network namespace (unix(7), abstract). Raises CannotStart where another
    agent, of whatever state directory, looks after this one."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        held.bind("\0podwire-agent")
    except OSError:
        held.close()
        raise CannotStart("another agent looks after this network namespace, with another state_dir") from None
    return held


def _locked(path: Path) -> IO[str]:
    """The lock, open; closing it gives it back. Raises CannotStart where another agent has it."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise CannotStart(f"{path}: another agent (process {holder}) runs on this state directory") from None
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
