"""When to mend what others' hands have changed: at once the first time, the later the more often in a row.

Invariants: each pod's namespace has a patience of its own, so that a pod that does it again and again makes nobody else
wait; so has the node's, and so have the looks at all that a driver holds. Of each at most one event is due; what is
disturbed until then joins it. Only what was really mended counts, so that others' work beside ours, which we look at in
vain, delays nothing; but a look at all costs so much that in a row even vain ones grow rarer.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from podwire.controller.events import Disturbed
from podwire.controller.transaction import Result

DELAYS = (0.0, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Seconds before each mending in a row; the last one repeats."""
VAIN = 3
"""How far in the row looks at all in vain come: one every two seconds."""
CALM = 10.0
"""Seconds without any, beyond the last delay, after which the next is the first again."""


class Whose(NamedTuple):
    """`space` None: all that the driver holds."""

    driver: str
    space: str | None


class Patience:
    """With somebody who does it again and again. Times are in seconds, of one clock. Pure."""

    def __init__(self) -> None:
        self._row = 0
        self._calm = 0.0

    def mended(self, now: float) -> None:
        self._count(now, len(DELAYS))

    def looked_in_vain(self, now: float) -> None:
        self._count(now, VAIN)

    def is_calm(self, now: float) -> bool:
        return now >= self._calm

    def delay(self, now: float) -> float:
        return self._delay() if now < self._calm else 0.0

    def _count(self, now: float, most: int) -> None:
        self._row = max(self._row, min(self._row + 1, most)) if now < self._calm else 1
        self._calm = now + CALM + self._delay()

    def _delay(self) -> float:
        return DELAYS[min(self._row, len(DELAYS) - 1)]


class Mending:
    def __init__(self, submit: Callable[[Disturbed], object]) -> None:
        self._submit = submit
        self._patience: dict[Whose, Patience] = {}
        self._due: dict[Whose, tuple[frozenset[Any] | None, asyncio.TimerHandle]] = {}

    def disturbed(self, driver: str, keys: frozenset[Any] | None, by: str) -> None:
        """`keys` None: any of that driver's."""
        if keys is None:
            self._disturbed(Whose(driver, None), None, by)
            return
        spaces: dict[str, set[Any]] = {}
        for key in keys:
            spaces.setdefault(getattr(key, "space", ""), set()).add(key)
        for space, some in sorted(spaces.items()):
            self._disturbed(Whose(driver, space), frozenset(some), by)

    def ended(self, result: Result) -> None:
        """Counts what was mended."""
        event = result.event
        if not isinstance(event, Disturbed):
            return
        now = asyncio.get_running_loop().time()
        self._patience = {whose: it for whose, it in self._patience.items() if not it.is_calm(now)}
        spaces = {None} if event.keys is None else {getattr(key, "space", "") for key in event.keys}
        mended = any(step.difference for step in result.steps)
        for whose in (Whose(event.driver, space) for space in spaces):
            if mended:
                self._patience.setdefault(whose, Patience()).mended(now)
            elif whose.space is None:
                self._patience.setdefault(whose, Patience()).looked_in_vain(now)

    def close(self) -> None:
        for _, timer in self._due.values():
            timer.cancel()

    def _disturbed(self, whose: Whose, keys: frozenset[Any] | None, by: str) -> None:
        loop = asyncio.get_running_loop()
        before, timer = self._due.get(whose, (frozenset(), None))
        if timer is not None:
            timer.cancel()
            at = timer.when()
        else:
            patience = self._patience.get(whose)
            at = loop.time() + (patience.delay(loop.time()) if patience is not None else 0.0)
        keys = None if keys is None or before is None else keys | before
        self._due[whose] = keys, loop.call_at(at, self._mend, whose, Disturbed(whose.driver, keys, by))

    def _mend(self, whose: Whose, event: Disturbed) -> None:
        del self._due[whose]
        self._submit(event)
