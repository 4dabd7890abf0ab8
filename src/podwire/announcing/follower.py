"""Follows the controller, and tells those who announce what this node has to do.

Invariants: nothing is told before all of the cluster's objects are known and nftables was once in order: what an
earlier agent has announced stays as it is until then. What is told is what `decisions.py` says of the newest snapshot;
of what an event has not touched it was decided before. Deciding is sliced, and rests after each round in proportion to
what it took, so that it never holds up an ADD, and a large cluster in which always something changes costs a part of a
core; but no rest keeps clients from a node that takes over from a dead one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from podwire.announcing.addresses import addresses_of, announceable, programmed
from podwire.announcing.decisions import Around, Decision, around, decide, pod_routes
from podwire.announcing.speaker import Sessions, sessions, speaker
from podwire.controller.events import KubeStateChange
from podwire.controller.loop import Controller
from podwire.controller.transaction import Result
from podwire.model.addresses import Address
from podwire.model.announcements import Answers, Speaker
from podwire.model.objects import ServiceKey, SliceKey
from podwire.model.snapshot import Snapshot

log = logging.getLogger(__name__)

TURN = 0.005
"""Seconds of deciding between two turns of the event loop, whatever an address costs: that grows with the nodes."""
RESTS = 3
"""How many times longer than a round takes the rest after it is."""


class Follower:
    def __init__(
        self, controller: Controller, by_bgp: Callable[[Speaker | None], None], by_l2: Callable[[Answers], None]
    ) -> None:
        self._controller, self._by_bgp, self._by_l2 = controller, by_bgp, by_l2
        self.decided: dict[Address, Decision] = {}
        """Of the addresses that there is anything to announce for."""
        self.sessions = Sessions()
        self._seen: Snapshot | None = None
        self._around: Around | None = None
        self._stirred, self._urgent = asyncio.Event(), asyncio.Event()
        self._due: set[Address] | None = None
        """None: all."""

    def follow(self, result: Result) -> None:
        """An event has ended, and the snapshot knows it."""
        now, seen = self._controller.snapshot, self._seen
        if seen is None or result.touched is None or _surroundings(now) != _surroundings(seen):
            self._due = None
        elif self._due is not None:
            keys = {*result.touched.services, *_named(result, seen, now)}
            self._due.update(it for key in keys for one in (seen, now) for it in addresses_of(one, key))
        if seen is not None and _heard(now) != _heard(seen):
            self._urgent.set()
        self._seen = now
        if self._due is None or self._due:
            self._stirred.set()

    @property
    def ready(self) -> bool:
        return self._controller.snapshot.whole and "nftables" not in self._controller.unsynced

    async def run(self) -> None:
        """Never returns."""
        while True:
            self._stirred.clear()
            self._urgent.clear()
            began = time.monotonic()
            if self.ready:
                await self.once()
            took = time.monotonic() - began
            with suppress(TimeoutError):
                async with asyncio.timeout(RESTS * took):
                    await self._urgent.wait()
            await self._stirred.wait()

    async def once(self) -> None:
        """All that is due now."""
        due, self._due = self._due, set()
        try:
            await self._decide(due)
        except BaseException:
            self._due = None  # how far it came is not known
            raise

    async def _decide(self, due: set[Address] | None) -> None:
        now = self._controller.snapshot
        if due is None or self._around is None:
            self.sessions = sessions(now)
            self._around = around(now, (it.name for it in self.sessions.sessions))
            due = announceable(now)
            self.decided = {it: self.decided[it] for it in due if it in self.decided}
        bars = self._around.bars
        left = {it for it, held in self.decided.items() if held.owner and bars.get(held.owner, "gone") and it in due}
        if left:  # nobody answers for these: thousands of others can wait
            await self._decide_each(now, self._around, left)
            self._tell_l2()
        await self._decide_each(now, self._around, due - left)
        self._by_bgp(speaker(now, self.sessions.sessions, self._in_order(), pod_routes(now, self._around)))
        self._tell_l2()

    async def _decide_each(self, now: Snapshot, known: Around, due: set[Address]) -> None:
        held, turn = programmed(now), time.monotonic() + TURN
        for address in sorted(due, key=lambda it: (len(it), it)):
            if time.monotonic() > turn:
                await asyncio.sleep(0)
                turn = time.monotonic() + TURN
            decision = decide(now, known, address, held)
            if decision.services:
                self.decided[address] = decision
            else:
                self.decided.pop(address, None)

    def _tell_l2(self) -> None:
        self._by_l2({address: it.answers for address, it in self.decided.items() if it.answers is not None})

    def _in_order(self) -> Iterator[Decision]:
        return (self.decided[it] for it in sorted(self.decided, key=lambda it: (len(it), it)))


def _heard(now: Snapshot) -> tuple[frozenset[str], frozenset[str]]:
    """Which nodes answer for nothing: for what was theirs others do, and clients wait for it."""
    return now.announcing.dead, now.announcing.unready


def _surroundings(now: Snapshot) -> tuple[object, ...]:
    """What all decisions follow from: maps that are the same objects while nothing changes in them."""
    it = now.announcing
    return (
        *map(id, (it.pools, it.peers, it.bgp, it.l2, it.secrets, now.nodes, now.blocks)),
        *_heard(now),
        now.local.addresses,
    )


def _named(result: Result, before: Snapshot, now: Snapshot) -> Iterator[ServiceKey]:
    """The Services that a change of the cluster names, whether or not it changes what nftables holds."""
    if isinstance(result.event, KubeStateChange):
        for key, _ in result.event.changes:
            if isinstance(key, ServiceKey):
                yield key
            elif isinstance(key, SliceKey):
                yield from (one.slices[key].service for one in (before, now) if key in one.slices)
