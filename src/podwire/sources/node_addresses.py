"""The node's own addresses as they come and go: the routes to pods and Services have one of them as their source.

Invariants: that an address was away is told, also when it is back already: with an IPv4 address the kernel takes away
every route that has it as its source, and one that came back at once must not look as if it had stayed. What happened
since the last look is told at once, however much it was.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from podwire.controller.events import Event, NodeAddressesChanged
from podwire.model.addresses import Address, Prefix

State = tuple[frozenset[Address], frozenset[Prefix], frozenset[tuple[Address, int]]]
"""Addresses, their networks, and by address the MTU of its interface in bytes."""


class Watched(Protocol):
    """`dataplane/linux/addresses.py`."""

    def fileno(self) -> int: ...

    def states(self) -> Sequence[State]: ...

    def anew(self) -> Sequence[State]: ...


async def follow(submit: Callable[[Event], Awaitable[Any]], watched: Watched, again: bool = False) -> None:
    """Until it is cancelled. `again`: after a failure, in which anything may have been missed."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    states = watched.anew() if again else watched.states()
    loop.add_reader(watched.fileno(), told.set)
    try:
        while True:
            for state in states:
                await submit(NodeAddressesChanged(*state))
            await told.wait()
            told.clear()
            states = watched.states()
    finally:
        loop.remove_reader(watched.fileno())
