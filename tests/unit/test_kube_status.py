"""The node's condition: set where somebody waits for it, tried again where that fails, and never in the way."""

import asyncio
from typing import Any

import pytest

from podwire.sources.kube_api import Api
from podwire.sources.kube_config import Access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_status import AGAIN_SECONDS, Condition, Node, NodeStatus, is_due, keep
from podwire.sources.kube_watch import Chance
from tests.unit.kube_fake import FakeApi, answering, hanging_up

NOW = 1795975200.0
UNAVAILABLE = {"type": "NetworkUnavailable", "status": "True"}
READY = {"type": "Ready", "status": "True"}


def node(*conditions: tuple[str, str]) -> Node:
    return Node(NodeStatus([Condition(*each) for each in conditions]))


@pytest.mark.parametrize(
    ("node", "asked", "always"),
    [
        pytest.param(node(("NetworkUnavailable", "True")), True, True, id="True"),
        pytest.param(node(("NetworkUnavailable", "Unknown")), True, True, id="Unknown"),
        pytest.param(node(("NetworkUnavailable", "False")), False, False, id="False already"),
        pytest.param(node(("Ready", "True")), False, True, id="nobody asked"),
        pytest.param(Node(), False, True, id="no status yet"),
    ],
)
def test_when_the_condition_is_due(node: Node, asked: bool, always: bool) -> None:
    assert (is_due(node, always=False), is_due(node, always=True)) == (asked, always)


class Keeping:
    """The task at work until it has nothing to do for minutes."""

    def __init__(self, fake: FakeApi, always: bool = False) -> None:
        self.fake, self.always = fake, always
        self.pauses: list[float] = []
        self.ready, self.idle = asyncio.Event(), asyncio.Event()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if seconds == AGAIN_SECONDS:
            self.idle.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def until_ready(self) -> None:
        await self.ready.wait()

    async def __call__(self) -> list[dict[str, Any]]:
        async with self.fake.served() as server:
            access = Access((server,))
            api = Api(access, Credentials(access))
            chance = Chance(self.pause, lambda: 0.5, now=lambda: NOW)
            task = asyncio.create_task(keep(api, "one", self.until_ready, self.always, chance))
            async with asyncio.timeout(30):
                await self.idle.wait()
            task.cancel()
            await asyncio.wait([task])
            await api.close()
        return self.fake.conditions


async def test_a_condition_that_others_set_becomes_false() -> None:
    fake = FakeApi()
    fake.conditions = [READY, UNAVAILABLE]
    keeping = Keeping(fake)
    keeping.ready.set()
    conditions = await keeping()
    assert conditions[0] == READY
    assert {**conditions[1], "message": ""} == {
        "type": "NetworkUnavailable",
        "status": "False",
        "reason": "PodwireIsReady",
        "message": "",
        "lastHeartbeatTime": "2026-11-29T18:00:00Z",
        "lastTransitionTime": "2026-11-29T18:00:00Z",
    }


@pytest.mark.parametrize(("always", "count"), [(False, 1), (True, 2)], ids=["nobody asked", "the configuration asks"])
async def test_a_condition_is_made_only_where_it_is_wanted(always: bool, count: int) -> None:
    fake = FakeApi()
    fake.conditions = [READY]
    keeping = Keeping(fake, always)
    keeping.ready.set()
    assert len(await keeping()) == count
    assert [verb for verb, _, _ in fake.asked] == ["get", "patch"][:count]


async def test_failures_are_tried_again_with_growing_delay() -> None:
    fake = FakeApi()
    fake.conditions = [UNAVAILABLE]
    fake.faults["get", "nodes"].extend([answering(500), hanging_up(b"{")])
    fake.faults["patch", "nodes"].append(answering(403, "Forbidden"))
    keeping = Keeping(fake)
    keeping.ready.set()
    assert [each["status"] for each in await keeping()] == ["False"]
    assert keeping.pauses == [0.2, 0.4, 0.8, AGAIN_SECONDS]


async def test_nothing_is_said_before_the_node_is_ready() -> None:
    fake = FakeApi()
    fake.conditions = [UNAVAILABLE]
    keeping = Keeping(fake)
    at_work = asyncio.create_task(keeping())
    async with fake.served() as server:  # a request of another: time has passed
        access = Access((server,))
        api = Api(access, Credentials(access))
        await api.get("/api/v1/nodes", {"limit": "1"})
        await api.close()
    assert [verb for verb, _, _ in fake.asked] == ["list"]
    keeping.ready.set()
    await at_work
    assert [verb for verb, _, _ in fake.asked] == ["list", "get", "patch"]
