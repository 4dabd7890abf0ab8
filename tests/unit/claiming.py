"""Agents without a kernel that claim blocks of one API server, and what must hold whichever server that is.

Invariants: the parts are the agent's own (source, loop, store, claimer); only links and rules are left out. A scenario
is told the server by `Server`, and is run against the fake one and against the real one.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
    await asyncio.sleep(min(seconds, 0.02))


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


async def agreed(server: Server, *agents: Agent) -> dict[str, tuple[str, str]]:
    """Once all is quiet: what the server has is what they have, and no address is anybody's twice."""
    while True:
        for it in agents:
            await it.claimer.until_quiet()
        told = await server.blocks()
        mine = {name: {cidr for cidr, (node, _) in told.items() if node == name} for name in (it.name for it in agents)}
        if all(it.blocks == mine[it.name] for it in agents):
            break
        await asyncio.sleep(0.01)  # a watch is behind
    given = [address for it in agents for addresses in it.pods.values() for address in addresses]
    assert len(given) == len(set(given))
    return told


# --- what must hold ------------------------------------------------------------------------------


async def race_for_the_last_block(server: Server, directory: Path) -> None:
    """One of two has it; the other says what there is no more of, and has it once it is given back."""
    await server.put_node("one")
    await server.put_node("two")
    async with at_work(server, "one", directory) as one, at_work(server, "two", directory) as two:
        await server.put_pool("only", "10.20.0.0/26")
        for agent in (one, two):
            await agent.until(lambda: bool(agent.now.blocks))  # noqa: B023 - awaited at once
        told = await agreed(server, one, two)
        assert set(told) == {"10.20.0.0/26"}
        winner, loser = (one, two) if told["10.20.0.0/26"][0] == "one" else (two, one)
        assert (await winner.add("a")).error is None
        refused = await loser.add("b")
        assert refused.error is not None
        assert "pool only: this node has no IPv4 block of it, and no block of it is left" in refused.error
        await server.remove_node(winner.name)
        await loser.until(lambda: loser.blocks == {"10.20.0.0/26"})
        assert (await loser.add("b")).error is None
        assert loser.pods["b"] == ("10.20.0.2",)


async def wiped_records(server: Server, directory: Path) -> None:
    """All records go under two agents: blocks in which pods live are theirs again, and pods are as they were."""
    await server.put_node("one")
    await server.put_node("two")
    await server.put_pool("small", "10.21.0.0/24", "fd00:21::/120", blockSizes={"ipv4": 28, "ipv6": 124})
    async with at_work(server, "one", directory) as one, at_work(server, "two", directory) as two:
        for number in range(20):
            for agent in (one, two):
                result = await agent.add(f"p{number}")
                assert result.error is None, result.error
        before = await agreed(server, one, two)
        pods = one.pods, two.pods
        lived = {
            str(block): agent.name
            for agent in (one, two)
            for block in agent.now.blocks_of[agent.now.local.key]
            for it in agent.now.attachments.values()
            if any(address in block for address in it.addresses)
        }
        assert len(lived) >= 8
        await server.wipe()
        await one.until(lambda: set(lived) <= {str(it.cidr) for it in one.now.blocks})
        after = await agreed(server, one, two)
        assert {cidr: after[cidr][0] for cidr in lived} == lived
        assert {cidr: after[cidr] for cidr in lived} == {cidr: before[cidr] for cidr in lived}
        assert (one.pods, two.pods) == pods
        assert (await one.add("more")).error is None


async def a_node_made_anew(server: Server, directory: Path) -> None:
    """Its blocks go with the new object, whether they were there or gone; its pods are as they were."""
    await server.put_node("one")
    await server.put_pool("pods", "10.22.0.0/16")
    async with at_work(server, "one", directory) as one:
        assert (await one.add("a")).error is None
        (first,) = {uid for _, uid in (await agreed(server, one)).values()}
        await server.remove_node("one")
        await one.until(lambda: not one.now.nodes and not one.now.blocks)
        await server.put_node("one")
        await one.until(lambda: bool(one.blocks))
        (second,) = {uid for _, uid in (await agreed(server, one)).values()}
        assert first != second
        assert one.pods == {"a": ("10.22.0.2",)} or len(one.pods) == 1
        address = one.pods["a"]
    async with at_work(server, "one", directory) as again:  # and one that was away then
        assert again.pods["a"] == address
        await agreed(server, again)


async def fixed_addresses(server: Server, directory: Path) -> None:
    """They are this node's before the ADD is answered, and nobody's once pod and sandbox have gone."""
    await server.put_node("one")
    await server.put_node("two")
    await server.put_pool(
        "web", "10.23.0.0/24", "fd00:23::/112", reserved=["10.23.0.240/28", "fd00:23::f0-fd00:23::ff"], autoAssign=False
    )
    both = {"podwire.io/addresses": "10.23.0.241, fd00:23::f1"}
    async with at_work(server, "one", directory) as one, at_work(server, "two", directory) as two:
        uid = await server.put_pod("db", "one", **both)
        assert (await one.add("db", uid)).error is None
        assert set(one.pods["db"]) == {"10.23.0.241", "fd00:23::f1"}
        told = await agreed(server, one, two)
        assert {cidr: node for cidr, (node, _) in told.items()} == {"10.23.0.241/32": "one", "fd00:23::f1/128": "one"}
        await server.put_pod("other", "two", **both)
        refused = await two.add("other")
        assert refused.error == "10.23.0.241 is node one's, by its PodBlock"
        await one.delete("db")  # its sandbox is made anew: the addresses stay its
        assert set(await agreed(server, one, two)) == set(told)
        assert (await one.add("db", uid)).error is None
        await one.delete("db")
        await server.remove_pod("db")
        await two.until(lambda: {"10.23.0.241/32", "fd00:23::f1/128"} <= two.blocks)
        assert (await two.add("other")).error is None
        assert {node for node, _ in (await agreed(server, one, two)).values()} == {"two"}


async def killed_at_each_step(server: Server, directory: Path) -> None:
    """Whenever an agent dies, its successor has what it had, and nothing is left that nobody uses."""
    await server.put_node("one")
    await server.put_pool("web", "10.24.0.0/24", blockSizes={"ipv4": 28}, reserved=["10.24.0.240/28"])
    uid = await server.put_pod("db", "one", **{"podwire.io/addresses": "10.24.0.241"})

    async def work(agent: Agent) -> None:
        for number in range(30):
            if f"p{number}" not in agent.pods:
                await agent.add(f"p{number}")
        if "db" not in agent.pods:
            await agent.add("db", uid)
        await agent.delete("db")
        for number in range(30):
            await agent.delete(f"p{number}")
        await agent.claimer.until_quiet()

    for after in (False, True):
        for count in itertools.count():
            where = directory / f"{after}-{count}"
            where.mkdir()
            await server.wipe()
            if await _survived(server, where, Dying(server.access, count, after), work):
                assert count >= 5, "a DELETE is among them"
                break


async def _survived(server: Server, where: Path, api: Dying, work: Callable[[Agent], Awaitable[None]]) -> bool:
    """Whether all was done before it died; if not, what its successor finds is as it should be."""
    async with at_work(server, "one", where, api) as agent:
        done = asyncio.ensure_future(work(agent))
        dead = asyncio.ensure_future(api.dead.wait())
        await asyncio.wait((done, dead), return_when=asyncio.FIRST_COMPLETED)
        survived, pods = done.done(), agent.pods
        for task in (done, dead):
            task.cancel()
        await asyncio.wait((done, dead))
        if survived:
            done.result()
    async with at_work(server, "one", where) as again:
        assert again.pods.items() >= pods.items()
        await agreed(server, again)
        for name in again.pods:
            await again.delete(name)
        left = await agreed(server, again)
        assert len([it for it in left if it != "10.24.0.241/32"]) <= 2, "the least, and one to spare"
    return survived


SCENARIOS = [
    race_for_the_last_block,
    wiped_records,
    a_node_made_anew,
    fixed_addresses,
    killed_at_each_step,
]
