"""What others do to the node's network, by whatever tool: the kernel tells, and the controller looks at it.

Invariants: a look comes at least every `POLL` seconds, whatever was told, and never more often than the transactions
let it: it waits for the one at work, whose own changes are told too. Many changes in a row are one look.
"""

import asyncio

from podwire.controller.difference import Watched
from podwire.controller.loop import Controller

SETTLE = 0.05
"""Seconds from the first notice to the look: a command by hand often makes several changes."""
POLL = 1.0
"""Seconds after which it is looked without a notice: one may have been missed."""


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
        if told.is_set():
            await asyncio.sleep(SETTLE)
        await controller.look(driver)
