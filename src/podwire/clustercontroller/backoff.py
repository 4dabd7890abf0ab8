"""What has failed, and when it is tried again.

Invariants: whatever fails again waits twice as long as before, up to a minute, or as long as the API says. One that was
refused because its object has changed is tried as soon as another version is seen.
"""

import asyncio
import logging
from collections.abc import Callable, Container
from typing import Generic, NamedTuple, TypeVar

from podwire.sources.kube_api import ApiError

log = logging.getLogger(__name__)

FIRST_DELAY, LONGEST_DELAY = 0.5, 60.0
"""Seconds before a write that failed is tried again."""
Key = TypeVar("Key")


class Refused(Exception):
    """A write that was not done. `changed`: the object is another one by now, or gone. `later`: for so many seconds
    nobody should try again."""

    def __init__(self, why: str, *, changed: bool = False, later: float = 0.0) -> None:
        super().__init__(why)
        self.changed, self.later = changed, later


def refused(error: ApiError) -> Refused:
    return Refused(str(error), changed=error.status in (404, 409), later=error.retry_after)


class _Failure(NamedTuple):
    """Of tries in a row. `until`: by whoever's clock; another version of the object is waited for no longer if
    `changed`."""

    times: int
    until: float
    version: str
    changed: bool


class Backoff(Generic[Key]):
    def __init__(self) -> None:
        self._failures: dict[Key, _Failure] = {}
        self._alarm: asyncio.TimerHandle | None = None

    def failed(self, key: Key, version: str, error: Refused, now: float) -> None:
        """`version`: of the object, that it was tried on. Logged the first time."""
        before = self._failures.get(key)
        times = before.times if before is not None else 0
        if not error.changed and not times:
            log.warning("%s: it can't be written, and is tried again: %s", key, error)
        delay = min(LONGEST_DELAY, max(error.later, FIRST_DELAY * 2 ** min(times, 10)))
        self._failures[key] = _Failure(times + 1, now + delay, version, error.changed)

    def done(self, key: Key) -> None:
        self._failures.pop(key, None)

    def keep(self, keys: Container[Key]) -> None:
        """The others have nothing to be tried any more."""
        self._failures = {key: it for key, it in self._failures.items() if key in keys}

    def waits(self, key: Key, version: str, now: float) -> bool:
        """Whether it is too early to try again."""
        it = self._failures.get(key)
        return it is not None and now < it.until and not (it.changed and it.version != version)

    def wake(self, call: Callable[[], None], now: float) -> None:
        """Calls once the first of them may be tried again, in place of what was to be called before."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._failures:
            seconds = max(0.0, min(it.until for it in self._failures.values()) - now)
            self._alarm = asyncio.get_running_loop().call_later(seconds, call)
