"""The source of the cluster's objects from its API: all kinds watched, and their changes as events.

Invariants: nothing is told before every kind was listed once; then each event holds what changed since the last one
was done, each object once, and none that is as it was. An API server that is lost changes nothing; when it is back,
only what differs is told. The order of the kinds means nothing: a Service and its slices may come in any.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from podwire.controller.events import Event, KubeStateChange, Resync, ResyncReason
from podwire.model.kinds import Object, ObjectKey
from podwire.sources.batches import batches
from podwire.sources.kube_api import Api
from podwire.sources.kube_time import time_of
from podwire.sources.kube_watch import CHANCE, Chance, State, Watch, wrong_with
from podwire.sources.kubernetes import resources
from podwire.sources.troubles import Troubles

log = logging.getLogger(__name__)


class KubernetesObjects:
    """`watching` first; then `listing`, and `run` with what it gave."""

    def __init__(self, api: Api, node: str, chance: Chance = CHANCE) -> None:
        """`node`: only its pods are watched."""
        self._watches = [Watch(api, each, self._tell, self._noted, chance) for each in resources(node)]
        self._pending: dict[ObjectKey, tuple[Object | None, Object | None]] = {}
        """By key: the object when it was last told of, and now."""
        self._stirred = asyncio.Event()
        self._troubles = Troubles(log, "Kubernetes API: ")

    @property
    def listed(self) -> bool:
        """Whether all objects are known."""
        return all(watch.listed.is_set() for watch in self._watches)

    def told(self, key: ObjectKey) -> Object | None:
        """As the watch of its kind has it now, whether or not that was submitted yet."""
        return next((watch.objects[key] for watch in self._watches if key in watch.objects), None)

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(watch.state for watch in self._watches)

    @property
    def errors(self) -> tuple[str, ...]:
        """What is wrong now, for people: sorted, each line once."""
        lost: dict[str, float] = {}
        for state in self.states:
            if state.error:
                lost[state.error] = min(state.since, lost.get(state.error, state.since))
        told = [f"Kubernetes API: {error} (since {time_of(since)})" for error, since in lost.items()]
        wrong = (text for watch in self._watches for text in watch.wrong.values())
        return tuple(sorted((*told, *wrong)))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """As long as it is entered the API is watched; nothing is told before `listing` or `run`."""
        tasks = [asyncio.create_task(watch.run()) for watch in self._watches]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def listing(self) -> Mapping[ObjectKey, Object]:
        """All objects, once they are known. What changes later is told by `run` against these."""
        for watch in self._watches:
            await watch.listed.wait()
        self._pending.clear()
        return {key: value for watch in self._watches for key, value in watch.objects.items()}

    async def run(self, submit: Callable[[Event], Awaitable[Any]], known: bool) -> None:
        """Submits what changes, each event once the last is done. `known`: the objects of `listing` were submitted;
        else they are first. Never returns."""
        if not known:
            await submit(Resync(ResyncReason.SOURCE_RECONNECTED, await self.listing()))
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            pending, self._pending = self._pending, {}
            changes = [(key, after) for key, (before, after) in pending.items() if before != after]
            changes.sort(key=lambda change: str(change[0]))
            for part in batches(changes):
                await submit(KubeStateChange(part))

    def _tell(self, key: ObjectKey, before: Object | None, after: Object | None) -> None:
        first, _ = self._pending.get(key, (before, None))
        self._pending[key] = first, after
        self._stirred.set()

    def _noted(self) -> None:
        """Each error once, however many kinds meet it."""
        self._troubles.tell(wrong_with(self._watches))
