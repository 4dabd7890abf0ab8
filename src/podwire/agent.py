"""A node's agent: the explicit list of what it is made of, its start and its end.

Invariants: a state directory has one agent at a time (`preflight.py`). The start folds what the store and the sources
know, then makes one resync; requests wait until then. An API server that does not answer holds that up for seconds
only: what was wired is looked after without it. The end leaves the network as it is, and working; it comes promptly,
even in the middle of a start, and with a reason where an essential task has ended (`supervision.py`).
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from podwire import logs, memory, preflight, restoring, shortages, views
from podwire.admin import server as admin
from podwire.announcers import Announcers
from podwire.cni import mark
from podwire.config import Config
from podwire.controller.events import Restored, Resync, ResyncReason, Shutdown
from podwire.controller.loop import Controller
from podwire.controller.transaction import Capability, Transaction
from podwire.dataplane.conntrack.driver import Conntrack
from podwire.dataplane.linux import sysctl
from podwire.dataplane.linux.addresses import NodeAddresses
from podwire.dataplane.linux.counters import InterfaceCounters
from podwire.dataplane.linux.driver import Linux
from podwire.dataplane.linux.mtu import default_route_mtu
from podwire.dataplane.nftables.clients import Clients
from podwire.dataplane.nftables.counting import Counting
from podwire.dataplane.nftables.driver import NFTables
from podwire.dataplane.nftables.layout import CAPACITY
from podwire.dataplane.reconciler import Reconciler
from podwire.healthserver import HealthServer
from podwire.model.kinds import Object, ObjectKey
from podwire.model.snapshot import Local, Snapshot
from podwire.model.text import printable
from podwire.nodes import ends, outside, own, routes
from podwire.pods import wiring
from podwire.preflight import CannotStart, api_of
from podwire.services import frontends
from podwire.sources import cni_ipam, cni_server, kernel_watch, kube_sessions, kube_status, node_addresses
from podwire.sources.cni_calls import CallServer
from podwire.sources.ipam_leases import Leases
from podwire.sources.kube_claims import Claimer
from podwire.sources.kube_source import KubernetesObjects
from podwire.sources.manifests import Manifests
from podwire.sources.pod_wishes import wished_of
from podwire.statistics.collector import Collector
from podwire.statistics.kept import Kept
from podwire.store.database import StoreUnusable
from podwire.store.rows import Store
from podwire.supervision import Tasks, until_lost
from podwire.trace.driver import Tracer
from podwire.version import version

log = logging.getLogger(__name__)

CAPABILITIES = (
    Capability("node", frozenset(("store", "linux", "nftables")), own.desired),
    Capability("routes", frozenset(("linux",)), routes.desired),
    Capability("tunnels", frozenset(("nftables",)), ends.desired),
    Capability("outside", frozenset(("nftables",)), outside.desired),
    Capability("services", frozenset(("nftables",)), frontends.desired),
    Capability("pods", frozenset(("store", "linux", "nftables")), wiring.desired),
)
COLLECT_DELAY = 0.05
"""Seconds that a deleted link waits for others: the kernel takes as long for one as for a hundred."""


LISTING_SECONDS = 5.0
"""How long a start waits for the API server: ten thousand Services take one or two."""


COLLECT_AT = (5_000, 2, 10)
"""So many new objects the collector waits for, so many of its looks before it looks at what the last ones left, and so
many of these before it looks at all. It goes through cold memory, a thousand objects in half a millisecond."""


LAST_EVENT_SECONDS = 2.0
"""How long an end waits for what the controller is at."""


class Ended(Exception):
    """The agent could not go on; one line says why. Nothing is lost: it may be started again at once."""


class Agent:
    """The parts, put together. All it touches in the kernel is in the network namespace in which it is made."""

    def __init__(self, config: Config, troubles: Mapping[str, str] = MappingProxyType({})) -> None:
        """`troubles`: what is wrong with the agent's own tasks, as it changes. Raises CannotStart, OSError."""
        self.config, self._troubles = config, troubles
        self.started = time.monotonic()
        self.api = api_of(config.kubernetes) if config.kubernetes is not None else None
        try:
            self.store = Store(config.database)
        except StoreUnusable as error:
            raise CannotStart(str(error)) from error
        self.linux, self.nftables = Linux(self.collect_later), NFTables(traffic=config.service_traffic)
        self.drivers = (self.store, self.linux, self.nftables)  # the order of every transaction
        network_mtu, last_mtu = default_route_mtu(), self.store.pod_mtu()
        self.addresses, weight = NodeAddresses(), config.service_local_backend_weight
        local = Local(
            config.node_name,
            config.mtu or 0,
            config.service_cidrs,
            weight,
            self.addresses.now.addresses,
            config.node_port_addresses,
            CAPACITY,
            restoring.boot_of(config.boot_id),
            self.addresses.now.networks,
            config.masquerade,
            config.non_masquerade_cidrs,
            config.transport,
            config.vxlan_vni,
            config.vxlan_port,
            fixed_mtu=config.mtu is not None,
            network_mtu=network_mtu,
            last_mtu=last_mtu,
            mtus=self.addresses.now.mtus,
            claims_blocks=self.api is not None,
            heeds_exclusion=not config.announce_excluded_nodes,
        )
        self.controller = Controller(Snapshot(local), Transaction(CAPABILITIES, self.drivers))
        self.controller.readers = partial(readers, config.service_traffic)
        self.conntrack = Conntrack()
        self.clients = Clients(self.nftables.commit)
        self.tracer = Tracer(self.nftables.commit)
        self.counting, self.interfaces = Counting(self.nftables.commit, local.boot), InterfaceCounters()
        self.statistics = Collector(
            self.controller, self.counting, self.interfaces, Kept(config.counts), config.service_traffic
        )
        self.flows = Reconciler((self.conntrack, self.clients), self.nftables.departed, self.controller)
        self.announcers = Announcers(config, self.controller)
        self.manifests = Manifests(config.manifests) if config.manifests is not None else None
        self.kubernetes, self.claimer = None, None
        if self.api is not None:
            self.kubernetes = KubernetesObjects(self.api, config.node_name)
            self.claimer = Claimer(self.api, self.controller, self.kubernetes.told)
        self.health = HealthServer(self.controller, self.api is not None, config.healthz_listen)
        self.leases = Leases(config.leases)
        self._collecting: asyncio.Task[None] | None = None
        self.restored: Restored | None = None

    def restore(self) -> None:
        """The first event: what the store remembers. Raises CannotStart."""
        try:
            boot = self.controller.snapshot.local.boot
            self.restored = restoring.restored(self.config, self.store, self.linux, self.nftables, boot)
        except OSError as error:
            raise CannotStart(str(error)) from error
        self.controller.submit(self.restored)

    def not_ready(self) -> str | None:
        """Why the node does not follow the cluster, or can attach no pod; None: it is ready. Pods come and go before
        that: STATUS (`cni_server.status`) is content with what an earlier agent was told."""
        if self.kubernetes is not None and not self.controller.snapshot.whole:
            return "; ".join(("Kubernetes API not yet listed", *self.kubernetes.errors[:1]))
        why = cni_server.status(self.controller)
        return None if why is None else why.text

    async def until_ready(self) -> None:
        while self.not_ready() is not None:
            await self.controller.next_record()

    async def leave_mark(self) -> None:
        """Once a pod can be attached, for the plugin to know while no agent answers. Raises OSError; never returns."""
        while cni_server.status(self.controller) is not None:
            await self.controller.next_record()
        mark.leave(self.config.ready_mark, self.config.boot_id)
        await asyncio.get_running_loop().create_future()

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
            writes={driver.name: driver.writes for driver in (*self.drivers, self.conntrack)},
            source_errors=self.source_errors,
        )

    @property
    def source_errors(self) -> tuple[str, ...]:
        found = (*self._troubles.values(), *self.store.troubles)
        if self.restored is not None and self.restored.rebuilt:
            count = self.restored.rebuilt
            found += (f"store: {self.config.database}: was lost: {count} attachments are taken from the kernel",)
        if self.manifests is not None:
            found += self.manifests.loaded.errors
        if self.kubernetes is not None:
            found += self.kubernetes.errors
        if self.claimer is not None:
            found += self.claimer.errors
        found += self.health.errors + self.clients.troubles + self.leases.troubles + self.announcers.errors
        return tuple(map(printable, found))

    def close(self) -> None:
        self.store.close()
        self.linux.close()
        self.addresses.close()
        self.nftables.close()
        self.conntrack.close()
        self.clients.close()
        self.tracer.close()
        self.counting.close()
        self.interfaces.close()

    def collect_later(self) -> None:
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.get_running_loop().create_task(self._collect())
            self._collecting.add_done_callback(_tell_if_failed)

    async def collected(self) -> None:
        """Waits for the deletions that go on."""
        if self._collecting is not None:
            await asyncio.wait([self._collecting])

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
async def running(config: Config, tasks: Tasks | None = None) -> AsyncIterator[Agent]:
    """An agent at work: in sync, or healing what it could not do. Raises CannotStart."""
    tasks = tasks or Tasks()
    async with AsyncExitStack() as stack:
        with tasks.at_work():
            try:
                agent = await _started(config, tasks, stack)
            except OSError as error:
                raise CannotStart(_reason(error)) from error
            yield agent


async def _started(config: Config, tasks: Tasks, stack: AsyncExitStack) -> Agent:
    """Raises CannotStart, OSError."""
    preflight.look_at_ipv6(sysctl.ROOT)
    stack.enter_context(preflight.ready(config))
    agent = Agent(config, tasks.troubles)
    stack.callback(agent.close)
    stack.push_async_callback(agent.collected)
    stack.push_async_callback(agent.statistics.settle)
    controller = agent.controller
    stack.push_async_callback(_end, controller, tasks.essential("the event loop", controller.run()))
    if agent.api is not None and agent.kubernetes is not None:
        stack.push_async_callback(agent.api.close)
        await stack.enter_async_context(agent.kubernetes.watching())
    agent.restore()
    agent.tracer.sweep()
    ahead = asyncio.create_task(asyncio.to_thread(agent.nftables.look_ahead))
    stack.push_async_callback(asyncio.wait, (ahead,))
    listed = await _first_resync(agent, ahead)
    agent.collect_later()  # what a killed agent had still to delete
    stack.push_async_callback(tasks.stop)
    stack.push_async_callback(agent.announcers.take_leave)
    await agent.health.adjust()  # a load balancer that asks meanwhile takes the node for dead
    _follow_sources(agent, tasks, listed)
    await _settle_memory()
    told = agent.statistics, agent.announcers
    runner = await admin.serve(config.admin_socket, controller, agent.facts, agent.tracer.trace, *told)
    stack.push_async_callback(runner.cleanup)
    if config.metrics_listen is not None:
        monitored = await admin.serve_monitors(*config.metrics_listen, controller, agent.facts, *told)
        stack.push_async_callback(monitored.cleanup)
    tasks.keep("the return of leases", lambda _: cni_ipam.keep_giving_back(agent.leases, controller))
    wished = wished_of(controller, agent.api, agent.claimer)
    server = await cni_server.serve(config.cni_socket, config.spool, controller, agent.leases, wished)
    stack.push_async_callback(server.stop, 1.0)
    tasks.essential("the CNI server", _served(server))
    files = (config.state_dir, config.lock, config.cni_socket, config.admin_socket)
    watch = tasks.essential("the watch over the agent's files", until_lost(files))
    stack.callback(watch.cancel)
    return agent


async def _first_resync(agent: Agent, ahead: asyncio.Task[None]) -> bool:
    """Whether the cluster's objects are known. All that it took is let go when it ends. `ahead`: what may be read
    meanwhile."""
    listed, whole = await agent.listing()
    await asyncio.wait((ahead,))  # its thread goes on where the start is given up
    ahead.result()
    startup = await agent.controller.submit(Resync(ResyncReason.STARTUP, listed, whole=whole))
    if startup.error is not None:
        log.warning("the first resync failed in part, and is tried again: %s", startup.error)
    return listed is not None


async def _settle_memory() -> None:
    """What a start has made stays, and is never looked through: what it leaves behind in cycles is a few kilobytes.
    What it has dropped is given back."""
    await asyncio.sleep(0)  # until then the loop holds what the first resync answered
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)
    gc.enable()
    memory.give_back()


def _tell_if_failed(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the deletion of links failed, and is tried again with the next one", exc_info=error)


async def _served(server: CallServer) -> str | None:
    await server.ended()
    return None


def _reason(error: OSError) -> str:
    """Some name their file in `strerror`, as only one text goes through."""
    text = error.strerror or str(error)
    return text if error.filename is None else f"{os.fsdecode(error.filename)}: {text}"


@contextmanager
def readers(traffic: bool = False) -> Iterator[tuple[Linux, NFTables]]:
    """Drivers to read with in another thread. `traffic`: as of the configuration's `service_traffic`."""
    with ExitStack() as opened:
        linux = Linux(listens=False)
        opened.callback(linux.close)
        nftables = NFTables(listens=False, traffic=traffic)
        opened.callback(nftables.close)
        yield linux, nftables


def _follow_sources(agent: Agent, tasks: Tasks, listed: bool) -> None:
    """What goes on beside the controller. `listed`: the sources' objects are in the snapshot."""
    submit, manifests, kubernetes, api = agent.controller.submit, agent.manifests, agent.kubernetes, agent.api
    claimer = agent.claimer
    for driver in (agent.linux, agent.nftables):
        tasks.keep(f"the watch of {driver.name}", partial(kernel_watch.follow, agent.controller, driver))
    if agent.config.verify_seconds:
        seconds = float(agent.config.verify_seconds)
        tasks.keep(
            "the periodic verify", partial(kernel_watch.verify, agent.controller, seconds, agent.controller.readers)
        )
    tasks.keep("the watch of the node's addresses", partial(node_addresses.follow, submit, agent.addresses))
    tasks.keep("the mark for the CNI plugin", lambda _: agent.leave_mark())
    tasks.keep("the watch over stale flows", lambda _: agent.flows.run())
    tasks.keep("the watch over pods' addresses", lambda _: shortages.tell(agent.controller))
    tasks.keep("the statistics", lambda _: agent.statistics.run())
    tasks.keep("the answers to load balancers", lambda _: agent.health.run())
    tasks.keep("what is announced", lambda _: agent.announcers.follower.run())
    tasks.keep("BGP", lambda _: agent.announcers.bgp.run())
    tasks.keep("layer 2", agent.announcers.l2.run)
    if manifests is not None:
        tasks.keep("the watch of the manifests", lambda again: manifests.run(submit, not again))
    if kubernetes is not None:
        tasks.keep("the watch of the Kubernetes API", lambda again: kubernetes.run(submit, listed and not again))
    if claimer is not None:
        tasks.keep("the claims of pools' blocks", lambda _: claimer.run())
    if api is not None and agent.config.kubernetes is not None:
        always = agent.config.kubernetes.network_condition
        name = agent.config.node_name
        sessions = kube_sessions.Sessions(
            api, name, lambda: agent.controller.snapshot.node.uid, agent.announcers.reports
        )
        tasks.keep("the BGPSessions", lambda _: sessions.run())
        tasks.keep("the node's condition", lambda _: kube_status.keep(api, name, agent.until_ready, always))


def run(config: Config) -> None:
    """Until SIGTERM or SIGINT. Raises CannotStart; Ended where an essential task has ended."""
    logs.set_up(config.log_level)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every file event
    # What a start makes stays: to look through it again and again, until it is frozen, is a tenth of its time.
    gc.disable()
    try:
        asyncio.run(_run(config))
    finally:
        gc.enable()


async def _run(config: Config) -> None:
    tasks = Tasks()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tasks.end, "")
    work = asyncio.create_task(_work(config, tasks))
    waiting: list[asyncio.Future[Any]] = [work, tasks.ended]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        notify("STOPPING=1")
        work.cancel()
        await asyncio.wait([work])
    if not work.cancelled():
        work.result()
    if why := tasks.ended.result():
        raise Ended(why)


async def _work(config: Config, tasks: Tasks) -> None:
    """Until it is cancelled."""
    async with running(config, tasks) as agent:
        log.info("node %s: %s", config.node_name, agent.not_ready() or "ready")
        notify("READY=1")
        await asyncio.get_running_loop().create_future()


def notify(state: str) -> None:
    """Tells the service manager, where there is one (sd_notify(3))."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(1.0)
                out.connect("\0" + where[1:] if where.startswith("@") else where)
                out.sendall(state.encode())
        except (OSError, ValueError) as error:
            log.warning("NOTIFY_SOCKET %s: %s is not told: %s", ascii(where), state, error)


async def _end(controller: Controller, loop: "asyncio.Task[str | None]") -> None:
    """What a long transaction has not done yet is left to the next start, as after a kill."""
    controller.submit(Shutdown())
    await asyncio.wait([loop], timeout=LAST_EVENT_SECONDS)
    loop.cancel()
    await asyncio.wait([loop])
