"""A source at work, and what it tells: for tests against API servers of any kind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from podwire.controller.events import Event, KubeStateChange, Resync
from podwire.model.kinds import Object, ObjectKey
from podwire.sources.batches import MOST_CHANGES
from podwire.sources.kube_api import Api
from podwire.sources.kube_config import Access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_source import KubernetesObjects
from podwire.sources.kube_watch import Chance

GUARD = 30.0
"""Seconds after which a test is given up: what it waits for will not come."""


class Observed(KubernetesObjects):
    """A test can wait for what it hears."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.heard: list[str] = []
        self._moved = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    def _tell(self, key: ObjectKey, before: Object | None, after: Object | None) -> None:
        super()._tell(key, before, after)
        self.heard.append(_word(key, after))
        self._moved.set()

    def _noted(self) -> None:
        super()._noted()
        self._moved.set()


class Told:
    """What the source told, and the objects that it adds up to. No event may say what is known already."""

    def __init__(self, source: Observed) -> None:
        self.source = source
        self.objects: dict[ObjectKey, Object] = {}
        self.events: list[Event] = []
        self.pauses: list[float] = []
        self.stirred = asyncio.Condition()
        self.gate, self.before_the_gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def submit(self, event: Event) -> None:
        self.before_the_gate.set()
        await self.gate.wait()
        match event:
            case Resync():
                assert event.objects is not None
                self.objects = dict(event.objects)
            case KubeStateChange(changes):
                assert changes
                assert len({key for key, _ in changes}) == len(changes) <= MOST_CHANGES
                for key, value in changes:
                    assert self.objects.get(key) != value
                    self.objects[key] = value  # type: ignore[assignment]
                    if value is None:
                        del self.objects[key]
        self.events.append(event)
        async with self.stirred:
            self.stirred.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self.stirred:
            await self.stirred.wait_for(condition)

    def changes(self) -> list[str]:
        """Each change as a word, in the order told, but for the signs of `in_step`."""
        changes = [change for event in self.events if isinstance(event, KubeStateChange) for change in event.changes]
        return [word for word in (_word(*change) for change in changes) if not is_sign(word)]


def is_sign(word: str) -> bool:
    """Of what `in_step` puts and takes away: blocks have no names."""
    return "sign-" in word or "/10.251." in word


def _word(key: ObjectKey, value: Object | None) -> str:
    return f"{'+' if value is not None else '-'}{key}"


@asynccontextmanager
async def following(*servers: str, listed: bool = True, patient: bool = True) -> AsyncIterator[Told]:
    """A source at work for node one. Pauses are noted and passed over, but, where it is `patient`, for those of
    minutes."""

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await (asyncio.Event().wait() if patient and seconds >= 60 else asyncio.sleep(0))

    pauses: list[float] = []
    async with at_work(Access(servers), Chance(pause=pause, luck=lambda: 0.5), listed) as told:
        told.pauses = pauses
        yield told


@asynccontextmanager
async def at_work(access: Access, chance: Chance, listed: bool = True, guard: float = GUARD) -> AsyncIterator[Told]:
    """`listed`: the source's objects are there from the start."""
    api = Api(access, Credentials(access))
    source = Observed(api, "one", chance)
    told = Told(source)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(guard))
        stack.push_async_callback(api.close)
        await stack.enter_async_context(source.watching())
        if listed:
            told.objects = dict(await source.listing())
        task = asyncio.create_task(source.run(told.submit, listed))
        stack.push_async_callback(_end, task)
        yield told


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
