"""Three nodes and one small pool, and whatever may happen: in the end they agree, and no address is anybody's twice.

But for where records were lost: a block in which pods live may be another node's before it is written down anew.
"""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit import kube_records
from tests.unit.claiming import Agent, agreed, at_work
from tests.unit.claiming_fake import Fake, served
from tests.unit.kube_fake import FakeApi, answering, hanging_up, node, saying
from tests.unit.test_kube_claims import done_and_lost

NODES = ("one", "two", "three")
FAULTS = (
    answering(500, "InternalError"),
    answering(403, "Forbidden"),
    answering(409, "AlreadyExists"),
    answering(404, "NotFound"),
    hanging_up(),
    hanging_up(b'{"metadata":'),
    saying(b"{}"),
    "done and lost",
)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(NODES), st.integers(1, 12)),
    st.tuples(st.just("delete"), st.sampled_from(NODES), st.integers(1, 12)),
    st.tuples(st.just("fault"), st.sampled_from(("post", "get", "delete")), st.sampled_from(FAULTS)),
    st.tuples(st.just("deaf"), st.sampled_from(("list", "watch")), st.sampled_from(FAULTS[:2] + FAULTS[4:7])),
    st.tuples(st.just("kill"), st.sampled_from(NODES), st.just(0)),
    st.tuples(st.just("wipe"), st.just(""), st.just(0)),
    st.tuples(st.just("anew"), st.sampled_from(NODES), st.just(0)),
    st.tuples(st.just("turn"), st.just(""), st.integers(1, 60)),
)


class Cluster:
    def __init__(self, fake: FakeApi, server: Fake, directory: Path) -> None:
        self.fake, self.server, self.directory = fake, server, directory
        self.agents: dict[str, Agent] = {}
        self._stacks: dict[str, AsyncExitStack] = {}
        self._count, self.lost = 0, False

    async def start(self, name: str) -> None:
        self._stacks[name] = stack = AsyncExitStack()
        working = at_work(self.server, name, self.directory, clock=lambda: time.monotonic() * 1000)
        self.agents[name] = await stack.enter_async_context(working)

    async def kill(self, name: str) -> None:
        await self._stacks.pop(name).aclose()

    async def end(self) -> None:
        for name in list(self._stacks):
            await self.kill(name)

    async def take(self, step: tuple[str, str, Any]) -> None:
        match step:
            case ("add", name, count):
                for _ in range(count):
                    self._count += 1
                    await self.agents[name].add(f"p{self._count}")  # some find no block, or no API server
            case ("delete", name, count):
                for pod in sorted(self.agents[name].pods)[:count]:
                    await self.agents[name].delete(pod)
            case ("fault", verb, "done and lost"):
                if verb != "get":
                    self.fake.faults[verb, "podblocks"].append(done_and_lost(verb))
            case ("fault" | "deaf", verb, fault):
                self.fake.faults[verb, "podblocks"].append(fault)
            case ("kill", name, _):
                pods = self.agents[name].pods
                await self.kill(name)
                await self.start(name)
                assert self.agents[name].pods == pods
            case ("turn", _, count):
                for _ in range(count):
                    await asyncio.sleep(0)
            case ("wipe", _, _):
                self.lost = True
                await self.server.wipe()
            case ("anew", name, _):
                self.lost = True
                await self.server.remove_node(name)
                await self.server.put_node(name)
        self.no_address_twice()

    def no_address_twice(self) -> None:
        if self.lost:  # another node may be quicker to take a block than this one to write it down anew
            return
        given = [address for it in self.agents.values() for addresses in it.pods.values() for address in addresses]
        assert len(given) == len(set(given))


async def _any_way(way: list[tuple[str, str, Any]], directory: Path) -> None:
    fake = FakeApi()
    for name in NODES:
        fake.put("nodes", node(name))
    fake.put("podpools", kube_records.pool("pods", "10.1.0.0/25", blockSizes={"ipv4": 28}))
    async with served(fake) as server:
        cluster = Cluster(fake, server, directory)
        try:
            for name in NODES:
                await cluster.start(name)
            for step in way:
                await cluster.take(step)
            fake.faults.clear()
            await agreed(server, *cluster.agents.values(), alone=not cluster.lost)
            for it in cluster.agents.values():
                for pod in it.pods:
                    await it.delete(pod)
            left = await agreed(server, *cluster.agents.values())
            owners = {name: it.now.node.uid for name, it in cluster.agents.items()}
            assert all(owner == owners[name] for name, owner in left.values())
            assert len(left) <= 2 * len(NODES), "what each needs, and one to spare"
        finally:
            await cluster.end()


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, max_size=20))
def test_whatever_happens_they_agree_in_the_end(way: list[tuple[str, str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_any_way(way, Path(directory)))
