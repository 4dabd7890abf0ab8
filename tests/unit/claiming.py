"""Agents without a kernel that claim blocks of one API server.

Invariants: the parts are the agent's own (source, loop, store, claimer); only links and rules are left out. A scenario
is told the server by `Server`, and is run against the fake one and against the real one.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from podwire.agent import CAPABILITIES
from podwire.controller.events import AddPod, DeletePod, Resync, ResyncReason
from podwire.controller.loop import Controller
from podwire.controller.transaction import Result, Transaction
from podwire.model.addresses import show_address
from podwire.model.objects import AttachmentKey, PodKey
from podwire.model.snapshot import Local, Snapshot
from podwire.sources.kube_api import Api
from podwire.sources.kube_claims import Claimer
from podwire.sources.kube_config import Access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_source import KubernetesObjects
from podwire.sources.kube_watch import Chance
from podwire.sources.pod_wishes import wished_of
from podwire.store.rows import Store

_NUMBERS = itertools.count(1)


class Server(Protocol):
    """What a scenario does to a cluster."""

    access: Access

    async def put_node(self, name: str) -> None: ...
    async def remove_node(self, name: str) -> None:
        """With the blocks that it owns, as the garbage collector has it."""

    async def put_pool(self, name: str, *cidrs: str, **spec: Any) -> None: ...
    async def put_pod(self, name: str, node: str, **annotations: str) -> str:
        """Its uid."""

    async def remove_pod(self, name: str) -> None: ...
    async def blocks(self) -> dict[str, tuple[str, str]]:
        """By CIDR: the node, and the uid of its owner."""

    async def put_block(self, cidr: str, node: str, pool: str) -> None: ...
    async def wipe(self) -> None:
        """All PodBlocks."""


class Dying(Api):
    """Nothing is asked or heard any more once so many requests that write have begun; `after`: what was asked is done
    all the same."""

    def __init__(self, access: Access, left: int | None = None, after: bool = False) -> None:
        super().__init__(access, Credentials(access))
        self._left, self._after = left, after
        self.dead = asyncio.Event()

    async def _send(self, method: str, path: str, body: bytes, kind: str) -> bytes:
        if self._left is not None:
            self._left -= 1
        if self._left == -1:
            if self._after:
                await super()._send(method, path, body, kind)
            self.dead.set()
            await asyncio.Event().wait()
        return await super()._send(method, path, body, kind)


class Agent:
    def __init__(self, access: Access, name: str, database: Path, api: Api | None, clock: Callable[[], float]) -> None:
        self.name, self.store = name, Store(database)
        local = Local(name, 1500, claims_blocks=True)
        self.controller = Controller(Snapshot(local), Transaction(CAPABILITIES, (self.store,)))
        self.api = api or Api(access, Credentials(access))
        chance = Chance(pause=_pause, clock=clock)
        self.source = KubernetesObjects(self.api, name, chance)
        self.claimer = Claimer(self.api, self.controller, self.source.told, chance)
        self.wished = wished_of(self.controller, self.api, self.claimer)
        self.sandboxes: dict[str, AttachmentKey] = {}

    @property
    def now(self) -> Snapshot:
        return self.controller.snapshot

    @property
    def blocks(self) -> set[str]:
        return {str(it) for it in self.now.blocks_of.get(self.now.local.key, ())}

    @property
    def pods(self) -> dict[str, tuple[str, ...]]:
        """Addresses by the name of the pod."""
        return {it.pod.name: tuple(map(show_address, it.addresses)) for it in self.now.attachments.values()}

    async def add(self, pod: str, uid: str = "") -> Result:
        """Raises CniError."""
        number = next(_NUMBERS)
        key = AttachmentKey(f"{number:064x}", "eth0")
        async with self.wished(PodKey("default", pod), uid) as wish:
            event = AddPod(key, PodKey("default", pod), f"/{number}", 1, number, uid, pool=wish.pool, fixed=wish.fixed)
            result = await self.controller.submit(event)
        if result.error is None:
            self.sandboxes[pod] = key
        return result

    async def delete(self, pod: str) -> None:
        key = next(key for key, it in self.now.attachments.items() if it.pod.name == pod)
        await self.controller.submit(DeletePod(key))

    async def until(self, condition: Callable[[], bool]) -> None:
        while True:
            record = self.controller.next_record()
            if condition():
                return
            await record

    async def run(self, listed: bool) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.source.run(self.controller.submit, listed))
            group.create_task(self.claimer.run())


async def _pause(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.003))


@asynccontextmanager
async def at_work(
    server: Server,
    name: str,
    directory: Path,
    api: Api | None = None,
    whole: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Agent]:
    """Left as a killed one leaves. `whole`: its objects are known first."""
    async with AsyncExitStack() as stack:
        agent = Agent(server.access, name, directory / f"{name}.db", api, clock)
        stack.callback(agent.store.close)
        stack.push_async_callback(agent.api.close)
        loop = asyncio.create_task(agent.controller.run())
        stack.push_async_callback(_end, loop)
        await stack.enter_async_context(agent.source.watching())
        agent.controller.submit(agent.store.restored())
        objects: Mapping[Any, Any] | None = await agent.source.listing() if whole else None
        await agent.controller.submit(Resync(ResyncReason.STARTUP, objects, whole=whole))
        rest = asyncio.create_task(agent.run(whole))
        stack.push_async_callback(_end, rest)
        yield agent


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def agreed(server: Server, *agents: Agent, alone: bool = True) -> dict[str, tuple[str, str]]:
    """Once all is quiet: what the server has is what they have, and, where each is `alone` in its blocks, no address is
    anybody's twice."""
    while True:
        for it in agents:
            await it.claimer.until_quiet()
        told = await server.blocks()
        mine = {name: {cidr for cidr, (node, _) in told.items() if node == name} for name in (it.name for it in agents)}
        if all(it.claimer.quiet and it.blocks == mine[it.name] for it in agents):
            break
        await asyncio.sleep(0.01)  # a watch is behind, or has told meanwhile what makes something due
    given = [address for it in agents for addresses in it.pods.values() for address in addresses]
    assert not alone or len(given) == len(set(given))
    return told
