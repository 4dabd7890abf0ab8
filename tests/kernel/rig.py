"""A node at work in the test's own process: the agent's parts without its sources, pods that answer, and clients.

Invariants: everything is in namespaces of this test. `dump` is what other tools see of the node: two equal dumps mean
that nothing was left behind.
"""

import asyncio
import itertools
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from podwire.agent import Agent
from podwire.config import Config
from podwire.controller.events import AddPod, DeletePod, KubeStateChange, Resync, ResyncReason, Shutdown
from podwire.controller.transaction import Result
from podwire.dataplane import netlink
from podwire.model.addresses import Prefix, parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
    NO_BANDWIDTH,
    AttachmentKey,
    BackendPort,
    BackendSlice,
    Bandwidth,
    HostPort,
    Member,
    Node,
    NodeKey,
    PodKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.preflight import lock_of
from podwire.sources import kernel_watch, node_addresses

NODE = NodeKey("one")
SERVICE_CIDRS = (parse_prefix("10.96.0.0/16"), parse_prefix("fd00:96::/112"))
NODE_OBJECT = Node((parse_prefix("10.1.1.0/24"), parse_prefix("fd01::/64")))
TARGET_PORT = 8080
_NUMBERS = itertools.count()


class Space:
    """A named network namespace."""

    def __init__(self, name: str) -> None:
        self.name, self.path = name, f"/run/netns/{name}"


def identity(path: str) -> tuple[int, int]:
    """Device and inode of what a path leads to."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


MakeSpace = Callable[[str], Space]


@contextmanager
def spaces() -> Iterator[MakeSpace]:
    """Makes namespaces whose names nobody else has; all are removed at the end."""
    made: list[Space] = []

    def make(label: str) -> Space:
        space = Space(f"pwt{os.getpid()}-{next(_NUMBERS)}-{label}")
        sh("ip", "netns", "add", space.name)
        made.append(space)
        return space

    try:
        yield make
    finally:
        for space in made:
            if os.path.exists(space.path):
                lock_of(Path(space.path)).unlink(missing_ok=True)  # a killed agent's
                sh("ip", "netns", "del", space.name)


@contextmanager
def entered(space: Space) -> Iterator[None]:
    """This thread in that namespace."""
    with open(space.path) as there, netlink.inside(there.fileno()):
        yield


def service(
    name: str, number: int, backends: tuple[str, ...], protocol: Protocol = Protocol.TCP, port: int = 80
) -> dict[ObjectKey, Object]:
    """A Service at 10.96.0.NUMBER and fd00:96::NUMBER, and one slice with its backends."""
    key = ServiceKey("default", name)
    addresses = (parse_address(f"10.96.0.{number}"), parse_address(f"fd00:96::{number:x}"))
    members = tuple(Member(parse_address(address)) for address in backends)
    return {
        key: Service((ServicePort("p", protocol, port),), addresses),
        SliceKey("default", f"{name}-1"): BackendSlice(key, (BackendPort("p", protocol, TARGET_PORT),), members),
    }


class Rig:
    def __init__(self, directory: Path, make_space: MakeSpace) -> None:
        self.directory, self.make_space = directory, make_space
        self.pods: dict[str, Space] = {}
        self.agent: Agent | None = None
        self.boot_id = Path("/proc/sys/kernel/random/boot_id")
        self._loop: asyncio.Task[None] | None = None
        self._flows: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []

    @property
    def running(self) -> Agent:
        assert self.agent is not None
        return self.agent

    async def start(
        self,
        objects: Mapping[ObjectKey, Object] | None = None,
        mtu: int | None = 1500,
        local_weight: int = 1,
        node_ports: tuple[Prefix, ...] | None = None,
        **settings: Any,
    ) -> Result:
        """Makes the parts and resyncs, as a new process would. `settings`: more of the configuration."""
        self._make(mtu, local_weight, node_ports, **settings)
        return await self.running.controller.submit(Resync(ResyncReason.STARTUP, self.listed(objects or {})))

    async def start_alone(self) -> Result:
        """As `start`, while nobody tells of the cluster's objects."""
        self._make()
        return await self.running.controller.submit(Resync(ResyncReason.STARTUP, whole=False))

    def listed(self, objects: Mapping[ObjectKey, Object]) -> dict[ObjectKey, Object]:
        return {NODE: NODE_OBJECT} | dict(objects)

    def _make(
        self,
        mtu: int | None = 1500,
        local_weight: int = 1,
        node_ports: tuple[Prefix, ...] | None = None,
        **settings: Any,
    ) -> None:
        self.agent = Agent(
            Config(
                "one",
                self.directory,
                service_cidrs=SERVICE_CIDRS,
                mtu=mtu,
                service_local_backend_weight=local_weight,
                node_port_addresses=node_ports,
                **settings,
                boot_id=self.boot_id,
            )
        )
        self._loop = asyncio.create_task(self.agent.controller.run())
        self._flows = asyncio.create_task(self.agent.flows.run())
        self.agent.restore()

    def watch(self) -> None:
        """As a running agent does: what others' hands do is noticed."""
        controller = self.running.controller
        for driver in (self.running.linux, self.running.nftables):
            self._watching.append(asyncio.create_task(kernel_watch.follow(controller, driver)))
        follow = node_addresses.follow(controller.submit, self.running.addresses)
        self._watching.append(asyncio.create_task(follow))

    async def kill(self) -> None:
        """In the middle of what it is at."""
        tasks = [task for task in (self._loop, self._flows, *self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.running.close()
        self.agent = self._loop = self._flows = None
        self._watching.clear()

    async def stop(self) -> None:
        """As a killed process: nothing is tidied up. But what it is at is done."""
        while self._watching:
            watching = self._watching.pop()
            watching.cancel()
            await asyncio.wait([watching])
        if self.agent is not None and self._loop is not None and self._flows is not None:
            self._flows.cancel()
            await asyncio.wait([self._flows])
            await self.agent.controller.submit(Shutdown())
            await self._loop
            self.agent.close()
            self.agent = self._loop = None

    async def add(
        self,
        pod: str,
        netns: str | None = None,
        sandbox: str | None = None,
        host_ports: tuple[HostPort, ...] = (),
        uid: str = "",
        bandwidth: Bandwidth = NO_BANDWIDTH,
    ) -> Result:
        if netns is None:
            netns = self.space(pod).path
        there = identity(netns)
        key = self.key(pod, sandbox)
        controller = self.running.controller
        result = await controller.submit(
            AddPod(key, PodKey("default", pod), netns, *there, uid=uid, host_ports=host_ports, bandwidth=bandwidth)
        )
        # It is answered before anybody is told of it; whoever looks at the tally sees that done.
        assert controller.tally
        return result

    async def delete(self, pod: str, sandbox: str | None = None) -> Result:
        return await self.running.controller.submit(DeletePod(self.key(pod, sandbox)))

    async def change(self, *changes: tuple[ObjectKey, Object | None]) -> Result:
        return await self.running.controller.submit(KubeStateChange(changes))

    async def resync(self) -> Result:
        return await self.running.controller.submit(Resync(ResyncReason.ON_DEMAND))

    async def drift(self) -> list[str]:
        found = await self.running.controller.verify()
        return sorted(str(key) for keys in found.values() for key in keys)

    async def history_has(self, event: str) -> None:
        """Waits until such an event has ended."""
        controller = self.running.controller
        while all(record.event != event for record in controller.history):
            await controller.next_record()

    async def nobody_forgets(self) -> None:
        """What the kernel remembers stays from now on: nobody looks after it."""
        await self.running.flows.until_quiet()
        assert self._flows is not None
        self._flows.cancel()
        await asyncio.wait([self._flows])

    async def forgotten(self) -> None:
        """Waits until what the kernel remembered of backends that are gone has been deleted."""
        controller = self.running.controller
        while not any(record.event.startswith("FlowsReconciled") for record in controller.history):
            await controller.next_record()

    def key(self, pod: str, sandbox: str | None = None) -> AttachmentKey:
        return AttachmentKey(sandbox or f"sandbox-{pod}", "eth0")

    def space(self, pod: str) -> Space:
        if pod not in self.pods:
            self.pods[pod] = self.make_space(pod)
        return self.pods[pod]

    def writes(self) -> dict[str, int]:
        return {driver.name: driver.writes for driver in self.running.drivers}

    def rows(self) -> int:
        return int(self.sql("SELECT count(*) FROM attachment")[0][0])

    def sql(self, command: str) -> list[Any]:
        """By the agent's own connection to its store."""
        with self.running.store.database.used() as db:
            return db.execute(command).fetchall()

    async def start_with_pods(
        self,
        *pods: str,
        objects: Mapping[ObjectKey, Object] | None = None,
        local_weight: int = 1,
        node_ports: tuple[Prefix, ...] | None = None,
        **settings: Any,
    ) -> None:
        """Pods in this order get .2, .3 … and ::2, ::3 …; all of them answer. `settings`: of the configuration."""
        assert (await self.start(objects, local_weight=local_weight, node_ports=node_ports, **settings)).error is None
        for pod in pods:
            assert (await self.add(pod)).error is None
            respond(self.space(pod), pod)


def sh(*command: str) -> str:
    """What a program prints. Blocks: the node's own work must not go on in between."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def by_hand(line: str) -> None:
    """A line of shell, as an administrator types it."""
    subprocess.run(line, shell=True, check=True)


def dump() -> str:
    """The node as other tools see it: elements, interfaces, routes, permanent neighbours."""
    maps = (("map", "svc"), ("map", "eps"), ("set", "refused"), ("set", "external"), ("set", "pods"))
    parts = [sh("nft", "list", kind, family, "podwire", name) for family in ("ip", "ip6") for kind, name in maps]
    parts.append(" ".join(line.split(":")[1] for line in sh("ip", "-o", "link").splitlines()))
    parts += [sh("ip", *what) for what in (("-4", "route"), ("-6", "route"), ("neigh", "show", "nud", "permanent"))]
    return "\n".join(parts).replace(" linkdown", "")  # the kernel tells of a new link's carrier in its own time


def in_space(space: Space | None, family: socket.AddressFamily, kind: socket.SocketKind) -> socket.socket:
    if space is None:
        return socket.socket(family, kind)
    with open(space.path) as there, netlink.inside(there.fileno()):
        return socket.socket(family, kind)


_STOPS: list[Callable[[], None]] = []


def respond(space: Space, name: str, port: int = TARGET_PORT, at: tuple[str, str] = ("0.0.0.0", "::")) -> None:
    """TCP and UDP of both families, until `silence`: answers with the pod's name and the client that it saw. `at`: an
    address of IPv4, and one of IPv6; from others than the kernel would choose a datagram is answered so only."""
    wake, stop = socket.socketpair()
    bound = [wake]
    for family, address in zip((socket.AF_INET, socket.AF_INET6), at, strict=True):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            one = in_space(space, family, kind)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address, port))
            if kind == socket.SOCK_STREAM:
                one.listen(1000)
            bound.append(one)
    thread = threading.Thread(target=_answer, args=(name, wake, bound), daemon=True)
    thread.start()

    def end() -> None:
        stop.close()
        thread.join()

    _STOPS.append(end)


def responders() -> int:
    """How many there are: those that came before a test are not the test's."""
    return len(_STOPS)


def silence(but_first: int = 0) -> None:
    """Ends all responders, and with them what held their namespaces. `but_first`: so many, the oldest, go on."""
    while len(_STOPS) > but_first:
        _STOPS.pop()()


def _answer(name: str, wake: socket.socket, bound: list[socket.socket]) -> None:
    with selectors.DefaultSelector() as waiting, ExitStack() as opened:
        for held in bound:
            opened.enter_context(held)
            waiting.register(held, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is wake:
                    return
                if one.type == socket.SOCK_STREAM:
                    connection, client = one.accept()
                    with connection:
                        connection.sendall(f"{name} {client[0]}".encode())
                else:
                    _, client = one.recvfrom(100)
                    one.sendto(f"{name} {client[0]}".encode(), client)


def ask(
    space: Space | None,
    to: str,
    port: int = 80,
    protocol: Protocol = Protocol.TCP,
    patience: float = 3,
    source: int = 0,
) -> str:
    """`NAME CLIENT` of who answers, or the name of the error. `space` None: the node itself. `patience` in seconds.
    `source`: the client's port, 0: any."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    kind = socket.SOCK_DGRAM if protocol is Protocol.UDP else socket.SOCK_STREAM
    with in_space(space, family, kind) as client:
        client.settimeout(patience)
        if source:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # though the last connection is just over
            client.bind(("", source))
        try:
            client.connect((to, port))
            if kind == socket.SOCK_DGRAM:
                client.send(b"?")
            return client.recv(100).decode()
        except OSError as error:
            return type(error).__name__
