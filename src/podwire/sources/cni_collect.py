"""GC: what nobody has any more (CNI spec 1.1.0, section 4): the attachments that a runtime does not list, and links of
ours without one.

Invariants: what came after the runtime's list is no part of it. Goes on past errors, and answers all of them.
"""

import asyncio
from typing import Protocol

from podwire.controller.events import CollectPods, Event, Resync, ResyncReason
from podwire.controller.transaction import Result

STORE, LINUX = "store", "linux"


class Controller(Protocol):
    """What is needed of the controller's loop."""

    def submit(self, event: Event) -> asyncio.Future[Result]: ...


async def collect(controller: Controller, asked: CollectPods) -> list[str]:
    """What went wrong."""
    errors = (await controller.submit(asked)).errors_without(STORE)
    swept = await controller.submit(Resync(ResyncReason.COLLECTION, drivers=frozenset((STORE, LINUX))))
    return errors + _not_swept(swept)


def _not_swept(swept: Result) -> list[str]:
    """What else a resync could not do is no concern of a GC."""
    if not swept.steps:
        return [] if swept.error is None else [swept.error]
    errors = [step.error for step in swept.steps if step.error is not None]
    for step in swept.steps:
        gone = (outcome for key, outcome in step.outcomes.items() if (it := step.difference.get(key)) and not it.after)
        errors += [outcome.error for outcome in gone if outcome.error is not None]
    return errors
