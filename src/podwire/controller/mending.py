"""When to mend what others' hands have changed: at once the first time, the later the more often in a row.

Invariants: of a driver at most one such event is due; what is disturbed until then joins it. Only what was really
mended counts, so that others' work beside ours, which we look at in vain, delays nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from podwire.controller.events import Disturbed
from podwire.controller.transaction import Result

DELAYS = (0.0, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Seconds before each mending in a row; the last one repeats."""
CALM = 10.0
"""Seconds without any, beyond the last delay, after which the next is the first again."""


class Patience:
    """With somebody who does it again and again. Times are in seconds, of one clock. Pure."""

    def __init__(self) -> None:
        self._row = 0
        self._calm = 0.0

    def mended(self, now: float) -> None:
        self._row = self._row + 1 if now < self._calm else 1
        self._calm = now + CALM + self._delay()

    def delay(self, now: float) -> float:
        return self._delay() if now < self._calm else 0.0

    def _delay(self) -> float:
        return DELAYS[min(self._row, len(DELAYS) - 1)]


class Mending:
    def __init__(self, submit: Callable[[Disturbed], object]) -> None:
        self._submit = submit
        self._patience: dict[str, Patience] = {}
        self._due: dict[str, tuple[frozenset[Any] | None, asyncio.TimerHandle]] = {}

    def disturbed(self, driver: str, keys: frozenset[Any] | None, by: str) -> None:
        """`keys` None: any of that driver's."""
        loop = asyncio.get_running_loop()
        before, timer = self._due.get(driver, (frozenset(), None))
        if timer is not None:
            timer.cancel()
            at = timer.when()
        else:
            at = loop.time() + self._patience.setdefault(driver, Patience()).delay(loop.time())
        keys = None if keys is None or before is None else keys | before
        self._due[driver] = keys, loop.call_at(at, self._mend, Disturbed(driver, keys, by))

    def ended(self, result: Result) -> None:
        """Counts what was mended."""
        event = result.event
        if isinstance(event, Disturbed) and any(step.difference for step in result.steps):
            self._patience.setdefault(event.driver, Patience()).mended(asyncio.get_running_loop().time())

    def close(self) -> None:
        for _, timer in self._due.values():
            timer.cancel()

    def _mend(self, event: Disturbed) -> None:
        del self._due[event.driver]
        self._submit(event)
