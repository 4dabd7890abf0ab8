"""That addresses of pods run short, in the log: once when it comes, and when it is over.

Invariants: what is told is what `podwire status` shows; nothing is told twice. Only what may change it is looked at,
and no more often than every `REST` seconds: a look goes through all pods' addresses, and an ADD must not wait for it.
"""

import asyncio
import logging
from typing import Any, NoReturn, Protocol

from podwire.ipam.usage import shortages
from podwire.model.snapshot import Snapshot

OVER = 5
"""One in so many has to be free again until a shortage is over."""
REST = 1.0
"""Seconds after a look."""
log = logging.getLogger(__name__)


class Controller(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...

    def next_of_pods(self) -> asyncio.Future[Any]:
        """Done when the next event has ended that may concern pods."""


async def tell(controller: Controller, rest: float = REST) -> NoReturn:
    """Never returns."""
    told: dict[tuple[str, str], str] = {}
    before: tuple[object, ...] = ()
    while True:
        ended, now = controller.next_of_pods(), controller.snapshot
        seen = now.ledger, now.nodes, now.pools, now.blocks
        if len(before) != len(seen) or any(one is not other for one, other in zip(before, seen, strict=True)):
            before, told = seen, _told(now, told)
            await asyncio.sleep(rest)
        await ended


def _told(now: Snapshot, told: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """By what is short, and the family: the line. While not all is known nothing comes and nothing goes."""
    if not now.whole:
        return told
    short = {(it.of, it.family): str(it) for it in shortages(now)}
    still = {key for it in shortages(now, OVER) if (key := (it.of, it.family)) in told}
    for key in sorted(short.keys() - told.keys()):
        log.warning("%s", short[key])
    for key in sorted(told.keys() - short.keys() - still):
        log.info("no longer: %s", told[key])
    return {key: told.get(key) or short[key] for key in short.keys() | still}
