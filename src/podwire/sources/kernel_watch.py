"""What others do to the node's network, by whatever tool: the kernel tells, and the controller looks at it.

Invariants: a look comes at least every `POLL` seconds, whatever was told, and never more often than the transactions
let it: it waits for the one at work, whose own changes are told too. Many changes in a row are one look; very many are
several, with a turn for all others in between.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from podwire.controller.difference import Difference, Driver, Watched
from podwire.controller.loop import Controller

SETTLE = 0.05
"""Seconds from the first notice to the look: a command by hand often makes several changes."""
POLL = 1.0
"""Seconds after which it is looked without a notice: one may have been missed."""

Readers = Callable[[], AbstractContextManager[Sequence[Driver]]]
"""Makes drivers that are only read, and closes them."""
log = logging.getLogger(__name__)


async def verify(controller: Controller, seconds: float, readers: Readers, _: bool = False) -> None:
    """Every so many seconds all is read, and mended where it is not as it should be: what no notice told. In a thread
    of its own, so that nobody waits for it. Until it is cancelled."""

    def look() -> dict[str, Difference]:
        with readers() as drivers:
            return controller.verify_apart(drivers)

    while True:
        await asyncio.sleep(seconds)
        try:
            found = await asyncio.to_thread(look)
            # Twice: what a transaction was about to change is right by then.
            again = await asyncio.to_thread(look) if any(found.values()) else {}
        except OSError as error:
            log.warning("the periodic verify could not read: %s", error)
            continue
        for driver, keys in again.items():
            if lasting := keys.keys() & found[driver].keys():
                controller.disturbed(driver, frozenset(lasting))


async def follow(controller: Controller, driver: Watched, again: bool = False) -> None:
    """Until it is cancelled. `again`: after a failure, in which anything may have been missed."""
    if again:
        controller.disturbed(driver.name, None)
    loop = asyncio.get_running_loop()
    while True:
        told = asyncio.Event()
        loop.add_reader(driver.fileno(), told.set)
        try:
            async with asyncio.timeout(POLL):
                await told.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(driver.fileno())
        if told.is_set() and not driver.behind:
            await asyncio.sleep(SETTLE)
        await controller.look(driver)
