"""Keeps what the kernel remembers in step with the Services: looks for stale flows after changes, and deletes them.

Invariants: a look comes after the change is in nftables, so that a flow whose entry is deleted is drawn anew; and once
more a moment later, since a packet on its way through the old rules may have made its entry behind the first look's
back. Many changes in a burst share a look, the more so where all are TCP's. What is remembered is read in a thread;
what is found there is judged again, by what nftables then holds, before it is deleted. However much changes at once,
the event loop waits for a slice of it. A failure is told once, and tried again until it works; what fails in one memory
is no reason not to look at the others. Flows that stay with a backend that gets no new ones are looked at again once
that serves no more, which changes nothing in nftables. What an earlier agent was killed over is noted in the kernel: a
look at everything is at that too, and a note is forgotten once its frontend has been looked at twice.
"""

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from time import thread_time
from typing import Any, Protocol, TypeVar

from podwire.controller.difference import Change, Outcome
from podwire.controller.events import FlowsReconciled, Resync
from podwire.controller.loop import Controller
from podwire.controller.transaction import Result, Step
from podwire.model.addresses import Address, Prefix
from podwire.model.network import Backend, Frontend, HostPortKey, InternalKey
from podwire.model.snapshot import UNKNOWN, Snapshot
from podwire.nodes.own import is_own
from podwire.pods.hostports import answers
from podwire.services.stale import NONE, Flow, is_inside, is_patient, lasting, lost, stale, watched

log = logging.getLogger(__name__)

AGAIN = 0.5
"""Seconds until the second look: a packet needs microseconds from the map to its entry."""
REST, SHARE = 0.5, 4.0
"""After a look: at least so many seconds, and so many times the processor's time that it took. A walk over connection
tracking costs the machine's table, 7 ms of an empty one: among steady changes nothing else would cost as much."""
PATIENCE = 2.0
"""The same of looks for TCP alone, until others are due: what may be stale there is a SYN that nobody has answered,
whose client asks again after 1, 3 and 7 seconds (RFC 6298)."""
RETRY_DELAYS = (1.0, 5.0, 30.0)
"""Seconds after each failure in a row; the last one repeats."""
SLICE = 500
"""Entries deleted between two turns of the event loop: about three milliseconds."""


TAKEN = 500
"""Keys of a change that are gone through between two turns of the event loop: about five milliseconds. A hundred
thousand at once would be a second or more."""
FORGOTTEN = 200
"""Frontends whose notes are deleted between two turns of the event loop."""

Made = TypeVar("Made")
Key = TypeVar("Key")
Told = TypeVar("Told")


class Entry(Protocol):
    @property
    def flow(self) -> Flow: ...

    @property
    def others(self) -> tuple[Flow, ...]:
        """What the entry stands for besides: it is stale only where all are."""


class Memory(Protocol):
    """Where the kernel remembers whom it has sent where: connection tracking, the maps of session affinity."""

    @property
    def name(self) -> str: ...

    @property
    def lasting(self) -> bool:
        """Whether what it remembers of a backend holds for as long as that serves, though nobody new is sent there."""

    def read(self, frontends: Mapping[Frontend, Any], everything: bool, ended: Callable[[], bool]) -> Iterator[Any]:
        """The entries of these frontends, or of all; others may be among them. In a thread, until `ended`. Raises
        OSError."""

    def delete(self, entries: Sequence[Any]) -> tuple[Sequence[Entry], OSError | None]:
        """Those that were deleted, and why one could not be."""


class Notes(Protocol):
    """Frontends that nobody answers any more, as `podwire.dataplane.nftables.departed.Departed`."""

    @property
    def open(self) -> Collection[Frontend]: ...
    def read(self) -> Mapping[Frontend, frozenset[Backend]]: ...
    def recall(self, notes: Mapping[Frontend, frozenset[Backend]]) -> None: ...
    def forget(self, frontends: Iterable[Frontend]) -> None: ...


Lasting = dict[tuple[Frontend, bool], frozenset[Backend]]
"""By frontend, and whether its clients are in the cluster: backends that keep flows and get no new ones."""


class Work:
    """What to look at. `former`: changed frontends, with the backends that they lost. `everything`: all others too.
    `patient`: it may wait a little."""

    def __init__(self) -> None:
        self.former: dict[Frontend, frozenset[Backend]] = {}
        self.everything, self._patient = False, True

    @property
    def patient(self) -> bool:
        return self._patient and not self.everything

    def __bool__(self) -> bool:
        return bool(self.former) or self.everything

    def add(self, frontend: Frontend, gone: frozenset[Backend]) -> None:
        self._patient = self._patient and is_patient(frontend)
        self.former[frontend] = self.former.get(frontend, NONE) | gone if gone else self.former.get(frontend, NONE)

    def merge(self, other: "Work") -> None:
        """The smaller one is gone through."""
        self.everything, self._patient = self.everything or other.everything, self._patient and other._patient
        small, large = sorted((self.former, other.former), key=len)
        self.former = dict(large)
        for frontend, gone in small.items():
            self.add(frontend, gone)


class Reconciler:
    def __init__(self, memories: Sequence[Memory], notes: Notes, controller: Controller) -> None:
        self._memories, self._notes, self._controller = memories, notes, controller
        self._fresh, self._repeated, self._waiting = Work(), Work(), Work()
        self._wake, self._hurry, self._ended = asyncio.Event(), asyncio.Event(), threading.Event()
        self._told: deque[tuple[Step, bool]] = deque()
        """Changes of many keys that have not been gone through yet; and whether everything is looked at anyway."""
        self._second: list[Work] = []
        """What has been looked at once, and will be again."""
        self._failures, self._cost = 0, 0.0
        self._doubtful: set[Frontend] = set()
        """Those of which a change has failed, until they are known again."""
        self._lasting: Lasting = {}
        self._compared = controller.snapshot
        """Until when it is known that they serve."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.looks = 0
        """Since the start: how often all that is remembered of something was read."""
        controller.followers.append(self.follow)

    async def until_quiet(self) -> None:
        """All that was told has been looked at twice; what failed is not waited for."""
        await self._quiet.wait()

    def follow(self, result: Result) -> None:
        """What an event changed in nftables."""
        for step in result.steps:
            if step.driver != "nftables":
                continue
            everything = isinstance(result.event, Resync) and step.error is None
            self._fresh.everything = self._fresh.everything or everything
            if len(step.outcomes) + len(step.difference) > TAKEN:
                self._told.append((step, everything))
            else:
                self._doubt(step.outcomes.items())
                self._add(step.difference.items(), everything)
        for frontend in [it for it in self._waiting.former if not self._is_unknown(it)]:
            self._fresh.add(frontend, self._waiting.former.pop(frontend))
        if self._fresh or self._told:
            self._look_soon()
        if self._lasting and not self._is_compared():
            self._look_soon()
            self._hurry.set()

    def _is_compared(self) -> bool:
        now, then = self._controller.snapshot, self._compared
        return now.services is then.services and now.slices is then.slices

    def _doubt(self, outcomes: Iterable[tuple[Any, Outcome]]) -> None:
        failed = (watched(key) for key, outcome in outcomes if outcome.error is not None)
        self._doubtful.update(frontend for frontend in failed if frontend is not None)

    def _add(self, changes: Iterable[tuple[Any, Change]], everything: bool) -> None:
        """What comes needs no word of its own where everything is looked at."""
        for key, change in changes:
            if everything and change.before is None:
                continue
            frontend, gone = watched(key), lost(change.before, change.after)
            if frontend is not None and gone is not None:
                self._fresh.add(frontend, gone)

    async def _take(self) -> None:
        """Goes through what was told, however much that is."""
        while self._told:
            step, everything = self._told[0]
            for outcomes in _parts(step.outcomes):
                self._doubt(outcomes)
                await asyncio.sleep(0)
            for changes in _parts(step.difference):
                self._add(changes, everything)
                await asyncio.sleep(0)
            self._told.popleft()

    async def _compare(self) -> None:
        """Whom nobody serves any more is looked at."""
        now = self._compared = self._controller.snapshot
        for some in _parts(self._lasting):
            for (frontend, inside), backends in some:
                gone = backends - lasting(now, frontend, inside)
                if gone:
                    self._fresh.add(frontend, gone)
                    self._lasting.pop((frontend, inside))  # those that are left the look finds again
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Until cancelled."""
        self._ended.clear()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._hurry.clear()
                await self._take()
                compares = bool(self._lasting) and not self._is_compared()
                if compares:
                    await self._compare()
                looks = bool(self._fresh or self._repeated)
                if looks:
                    await self._look()
                await self._forget()
                if not (self._second or self._wake.is_set()):
                    self._quiet.set()
                if looks or compares:
                    await self._rest()
        finally:
            self._ended.set()

    async def _rest(self) -> None:
        rest = max(REST, SHARE * self._cost)
        await asyncio.sleep(rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE - rest):
                await self._hurry.wait()

    async def _look(self) -> None:
        """One look at all that is due."""
        first, due = self._fresh, self._repeated
        self._fresh, self._repeated = Work(), Work()
        due.merge(first)
        later = asyncio.get_running_loop().call_later
        deleted: Counter[Frontend] = Counter()
        failed = ""
        self.looks, self._cost = self.looks + 1, 0.0
        try:
            if first.everything:
                try:
                    noted = await self._recall()
                    first.merge(noted)
                    due.merge(noted)
                except OSError as error:
                    failed = f"nftables: {error}"
            for memory in self._memories:
                try:
                    await self._delete(memory, await self._read(memory, due), due, deleted)
                except OSError as error:
                    failed = failed or f"{memory.name}: {error}"
        except Exception:
            self._fresh.merge(due)
            self._wake.set()
            raise
        if failed:
            self._fresh.merge(due)
            later(RETRY_DELAYS[min(self._failures, len(RETRY_DELAYS) - 1)], self._look_soon)
            self._failures += 1
            self._tell(deleted, failed if self._failures == 1 else None)
        else:
            self._failures = 0
            if first:
                self._second.append(first)
                later(AGAIN, self._repeat, first)
            self._keep_unknown(due)
            self._tell(deleted, None)

    def _keep_unknown(self, work: Work) -> None:
        """Nothing is known of a frontend whose change failed, until a later event has read it. A start's work names all
        there are: they are not gone through here, where the event loop waits."""
        self._doubtful = {frontend for frontend in self._doubtful if self._is_unknown(frontend)}
        for frontend in sorted(self._doubtful & work.former.keys()):
            self._waiting.add(frontend, work.former[frontend])

    def _is_unknown(self, frontend: Frontend) -> bool:
        held, _ = _in_force(self._controller.snapshot)
        return UNKNOWN in [held.get(key) for key in (frontend, InternalKey(frontend), HostPortKey(frontend))]

    def _repeat(self, work: Work) -> None:
        self._second.remove(work)
        self._repeated.merge(work)
        self._look_soon()

    def _look_soon(self) -> None:
        self._quiet.clear()
        self._wake.set()
        if self._told or not (self._fresh.patient and self._repeated.patient):
            self._hurry.set()

    async def _recall(self) -> Work:
        """What an earlier agent has noted, and may not have looked at. Raises OSError."""
        found, notes = Work(), await self._apart(self._notes.read)
        for some in _parts(notes):
            self._notes.recall(dict(some))
            for frontend, gone in some:
                found.add(frontend, gone)
            await asyncio.sleep(0)
        return found

    async def _forget(self) -> None:
        """The notes of what is not to be looked at any more."""
        noted = list(self._notes.open)
        for at in range(0, len(noted), FORGOTTEN):
            async with self._controller.settled():
                if self._told:
                    return
                works = (self._fresh, self._repeated, self._waiting, *self._second)
                due = [work.former for work in works] + [{frontend for frontend, _ in self._lasting}]
                some = noted[at : at + FORGOTTEN]
                self._notes.forget([it for it in some if not any(it in each for each in due)])
            await asyncio.sleep(0)

    async def _read(self, memory: Memory, work: Work) -> list[Entry]:
        """The stale entries."""
        now = self._controller.snapshot
        found, kept = await self._apart(lambda: self._stale_entries(memory, work, now))
        if kept and not self._lasting:
            self._compared = now
        for at, backends in kept.items():
            self._lasting[at] = self._lasting.get(at, NONE) | backends
        return found

    async def _apart(self, read: Callable[[], Made]) -> Made:
        """In a thread, which works on sockets of this object, so that it has to end before anything else does."""
        reading = asyncio.ensure_future(asyncio.to_thread(read))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            self._ended.set()
            await asyncio.wait([reading])
            raise

    def _stale_entries(self, memory: Memory, work: Work, now: Snapshot) -> tuple[list[Entry], Lasting]:
        began = thread_time()
        kept: Lasting = {}
        judged = _judge(now, work, memory.lasting, kept)
        found = [
            entry
            for entry in memory.read(work.former, work.everything, self._ended.is_set)
            if _all_stale(entry, judged)
        ]
        self._cost += thread_time() - began
        return found, kept

    async def _delete(self, memory: Memory, found: list[Entry], work: Work, deleted: Counter[Frontend]) -> None:
        """Adds what was deleted to `deleted`. Raises OSError."""
        for at in range(0, len(found), SLICE):
            async with self._controller.settled() as now:
                judged = _judge(now, work, memory.lasting, {})
                still = [it for it in found[at : at + SLICE] if _all_stale(it, judged)]
                done, error = memory.delete(still)
            deleted.update(entry.flow.to for entry in done)
            if error is not None:
                raise error
            await asyncio.sleep(0)

    def _tell(self, deleted: Counter[Frontend], error: str | None) -> None:
        if deleted or error is not None:
            self._controller.submit(FlowsReconciled(tuple(sorted(deleted.items())), error))


def _parts(told: Mapping[Key, Told]) -> Iterator[list[tuple[Key, Told]]]:
    left = iter(told.items())
    while some := list(islice(left, TAKEN)):
        yield some


def _judge(now: Snapshot, work: Work, lasts: bool, kept: Lasting) -> Callable[[Flow], bool]:
    """Whether a flow is stale. `lasts`: it may stay with a backend that serves still; then that is put into `kept`."""
    held, ranges = _in_force(now)
    inside, mapping = partial(is_inside, now), partial(is_mapped, now)
    serving = cache(partial(lasting, now))

    def judged(flow: Flow) -> bool:
        if not stale(flow, held, work.former, ranges, inside, mapping):
            return False
        at = flow.to, inside(flow.client)
        if not lasts or flow.answers not in serving(*at):
            return True
        kept[at] = kept.get(at, NONE) | {flow.answers}
        return False

    return judged


def _all_stale(entry: Entry, judged: Callable[[Flow], bool]) -> bool:
    return judged(entry.flow) and all(map(judged, entry.others))


def _in_force(now: Snapshot) -> tuple[Mapping[Any, Any], tuple[Prefix, ...]]:
    """What nftables holds, and where nothing but frontends can be."""
    return now.programmed.get("nftables", {}), now.service_ranges if now.whole else ()


def is_mapped(now: Snapshot, address: Address) -> bool:
    """Whether the host ports at all addresses of the node are at this one."""
    return is_own(now, address) and answers(address)
