"""What must hold of agents that claim blocks, whichever API server it is: asked of the fake one and of the real one."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

from podwire.model.addresses import parse_address, parse_prefix
from tests.unit.claiming import Agent, Dying, Server, agreed, at_work


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


async def a_node_comes_back(server: Server, directory: Path) -> None:
    """While it was away all records were wiped, and another node took what it wanted: it has what it had, but for what
    is another's now, of which it gives nothing more."""
    await server.put_node("one")
    await server.put_node("two")
    await server.put_pool("pods", "10.26.0.0/24", blockSizes={"ipv4": 28})
    async with at_work(server, "one", directory) as one:
        for number in range(30):
            assert (await one.add(f"p{number}")).error is None
        lived, pods = set(await agreed(server, one)), one.pods
    await server.wipe()
    lost = min(lived)
    await server.put_block(lost, "two", "pods")
    async with at_work(server, "one", directory) as again:
        assert again.pods == pods
        await again.until(lambda: len(again.blocks) >= 2)
        await agreed(server, again)
        rivals = {name for name, (address, *_) in pods.items() if parse_address(address) in parse_prefix(lost)}
        told = {it.partition(":")[0] for it in again.claimer.errors}
        assert told == {f"pod/default/{name}" for name in rivals} != set()
        for number in range(30, 50):
            assert (await again.add(f"p{number}")).error is None
        fresh = {address for name, (address, *_) in again.pods.items() if name not in pods}
        assert not any(parse_address(address) in parse_prefix(lost) for address in fresh)
        for name in rivals:
            await again.delete(name)
        await again.claimer.until_quiet()
        assert again.claimer.errors == ()
        assert (await server.blocks())[lost][0] == "two"


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
    a_node_comes_back,
    a_node_made_anew,
    fixed_addresses,
    killed_at_each_step,
]
