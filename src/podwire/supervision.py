"""An agent's tasks: what must not end, and what is started again when it does.

Invariants: no task ends unseen. With an essential one the agent ends, says why and is started anew by whoever looks
after it (systemd, Kubernetes); a kept one is started again, later each time, and people are told of it meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podwire.store.database import identity

log = logging.getLogger(__name__)

AGAIN_SECONDS = (0.5, 5.0, 30.0)
"""Before each start in a row; the last one repeats."""
SETTLED_SECONDS = 60.0
"""So long a task must have gone on before its last end is no longer told."""
LOOK_SECONDS = 2.0


class Tasks:
    """`ended`: why the agent can't go on, or "" where it was told to end. `troubles`: by task, what people are told."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.troubles: dict[str, str] = {}
        self._kept: list[asyncio.Task[None]] = []
        self._over = False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Essential tasks that end later end in good order."""
        try:
            yield
        finally:
            self._over = True

    def end(self, why: str) -> None:
        """The first reason counts."""
        if not self.ended.done():
            self.ended.set_result(why)

    def essential(self, name: str, work: Coroutine[Any, Any, str | None]) -> "asyncio.Task[str | None]":
        """`work` may return why it has ended."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._essential_ended)
        return task

    def keep(self, name: str, start: Callable[[bool], Coroutine[Any, Any, None]]) -> None:
        """`start` is told whether it is started again. Until `stop`."""
        self._kept.append(asyncio.create_task(self._keep(name, start), name=name))

    async def stop(self) -> None:
        """Of the kept ones."""
        kept, self._kept = self._kept, []
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)

    def _essential_ended(self, task: "asyncio.Task[str | None]") -> None:
        if self._over:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("%s has ended", task.get_name(), exc_info=error)
        why = f"internal error: {error!r}" if error is not None else "cancelled" if task.cancelled() else task.result()
        self.end(f"{task.get_name()} has ended" + (f": {why}" if why else ""))

    async def _keep(self, name: str, start: Callable[[bool], Coroutine[Any, Any, None]]) -> None:
        failures = 0
        while True:
            settled = asyncio.get_running_loop().call_later(SETTLED_SECONDS, self.troubles.pop, name, None)
            try:
                await start(failures > 0)
                why = "without a reason"
            except Exception as error:
                log.exception("%s has ended, and is started again", name)
                why = f"internal error: {error!r}"
            finally:
                settled.cancel()
            failures = failures + 1 if name in self.troubles else 1
            self.troubles[name] = f"{name} has ended, and is started again: {why}"
            await asyncio.sleep(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS)) - 1])


def until_lost(paths: Iterable[Path]) -> Coroutine[Any, Any, str]:
    """Returns, once awaited, which of the paths no longer leads to the file that it leads to now. By looking: a
    directory in which a database lies would tell of every write."""
    return _until_lost({path: identity(path) for path in paths})


async def _until_lost(known: Mapping[Path, tuple[int, int] | None]) -> str:
    while True:
        for path, before in known.items():
            if before is None or identity(path) != before:
                return f"{path} was removed or replaced"
        await asyncio.sleep(LOOK_SECONDS)
