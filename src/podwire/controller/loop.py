"""The one event loop: events in, one transaction each, follow-up events first; history and healing.

Invariants: one transaction at a time; a follow-up overtakes what waits. An ADD is answered once its row is confirmed;
where that fails it is undone whole. A failure that was not reverted leads to one healing resync of the drivers that
failed, with growing delay. Nothing that goes wrong in an event ends the loop, nor what is done beside it: telling,
counting, healing. Every event is answered. That comes before the answer; only an ADD that was granted is answered
first, since a pod waits for it, and whoever reads history or counts finds it there all the same.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from msgspec.structs import replace

from podwire import memory
from podwire.controller.difference import Difference, Driver, Watched
from podwire.controller.events import (
    AddPod,
    DeletePod,
    Disturbed,
    Event,
    KubeStateChange,
    PodWired,
    Refusal,
    Refused,
    Resync,
    ResyncReason,
    RoomMade,
    SandboxGone,
    SandboxReplaced,
    SandboxUnseen,
    Shutdown,
)
from podwire.controller.history import History, Record
from podwire.controller.mending import Mending
from podwire.controller.tally import Tally
from podwire.controller.transaction import Result, Transaction
from podwire.model.network import LinkKey, Space
from podwire.model.objects import AttachmentKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.pods import hostports
from podwire.pods.lookup import predecessors, replaced
from podwire.pods.names import link_of

log = logging.getLogger(__name__)

HEALING_DELAYS = (0.1, 0.5, 2.0, 10.0, 60.0)
"""Seconds before each healing in a row; the last one repeats."""
ROOM_DELAY = 0.5
"""Seconds from something's going until what found no room is tried again."""

Answer = asyncio.Future[Result]


def _guarded(beside: Callable[[Result], None], result: Result) -> None:
    """What is done beside an event may fail; that costs nobody but itself."""
    try:
        beside(result)
    except Exception:
        log.exception("internal error beside %s", type(result.event).__name__)


def _one_more(
    readers: list[asyncio.Future[Record]],
) -> tuple[asyncio.Future[Record], list[asyncio.Future[Record]]]:
    """A new one, and all that wait."""
    reader: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
    return reader, [*(each for each in readers if not each.done()), reader]  # some have stopped waiting


class Controller:
    def __init__(self, snapshot: Snapshot, transaction: Transaction, clock: Callable[[], float] = time.time) -> None:
        self.snapshot = snapshot
        self._tally, self._history = Tally(), History()
        self._left: deque[Result] = deque()
        """Of which what is done beside an event has yet to be done."""
        self.unsynced = frozenset(driver.name for driver in transaction.drivers)
        """The drivers that no resync since the start has brought to work."""
        self.broken: frozenset[str] = frozenset()
        """The drivers that could not work at all when they last should have, and no resync since has mended that."""
        self.followers: list[Callable[[Result], None]] = []
        """Told of each event that ended, once the snapshot knows it: for drivers with a pace of their own."""
        self._transaction, self._clock = transaction, clock
        self.readers: Callable[[], AbstractContextManager[Sequence[Driver]]] = self._in_use
        """Opens drivers that only read, and that nobody else uses."""
        self._requests: deque[tuple[Event, Answer]] = deque()
        self._follow_ups: deque[tuple[Event, Answer]] = deque()
        self._readers: list[asyncio.Future[Record]] = []
        self._readers_of_pods: list[asyncio.Future[Record]] = []
        self._wake = asyncio.Event()
        self._network = asyncio.Lock()
        self._failures: dict[str, int] = {}
        self._healing: dict[str, asyncio.TimerHandle] = {}
        self._roomy: dict[str, asyncio.TimerHandle] = {}
        self._mending = Mending(self.submit)

    def submit(self, event: Event) -> Answer:
        """The answer is always a Result; an error is in it, not raised."""
        return self._queue(self._requests, event, asyncio.get_running_loop().create_future())

    @property
    def history(self) -> History:
        self._do_beside()
        return self._history

    @property
    def tally(self) -> Tally:
        self._do_beside()
        return self._tally

    async def verify(self) -> dict[str, Difference]:
        """What differs from what should be, by driver; touches nothing. Raises OSError where it can't be read.

        The drivers are read apart, by sockets of their own; transactions wait only where something seems to differ,
        which may have been one at work.
        """
        rest = [driver for driver in self._transaction.drivers if not driver.apart]
        with self.readers() as drivers:
            found = await asyncio.to_thread(self.verify_apart, drivers)
            async with self._network:
                if any(found.values()):
                    found = await asyncio.to_thread(self.verify_apart, drivers)
                found = self.verify_apart(rest) | found
        return {driver.name: found[driver.name] for driver in self._transaction.drivers if found.get(driver.name)}

    async def check(self, touched: Touched) -> dict[str, Difference]:
        """As `verify`, of what these objects want alone: others' pods are not looked into. Raises OSError."""
        async with self._network:
            return self._transaction.drift(self.snapshot, touched)

    @contextmanager
    def _in_use(self) -> Iterator[Sequence[Driver]]:
        yield [driver for driver in self._transaction.drivers if driver.apart]

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[Snapshot]:
        """No transaction goes on meanwhile: the network holds what the snapshot says. To be left soon."""
        async with self._network:
            yield self.snapshot

    async def look(self, driver: Watched) -> None:
        """Whether others have changed what the driver looks after; if so it is mended soon. Between transactions."""
        async with self._network:
            keys = driver.changed(self.snapshot.programmed.get(driver.name, {}))
        if keys is None or keys:
            self.disturbed(driver.name, keys, driver.by)

    def disturbed(self, driver: str, keys: frozenset[Any] | None, by: str = "") -> None:
        """Others have changed these keys, or may have (None: any of that driver's): they are mended soon."""
        self._mending.disturbed(driver, keys, by)

    def verify_apart(self, drivers: Sequence[Driver]) -> dict[str, Difference]:
        """As `verify`, for a thread of its own: with drivers that nobody else uses, and while transactions go on. So
        what they are about to change counts as drift too. Raises OSError."""
        found = Transaction(self._transaction.capabilities, drivers).drift(self.snapshot)
        memory.give_back()  # it has held all that there is, and what it wants, twice
        return found

    def next_record(self) -> asyncio.Future[Record]:
        """The record of the next event that ends."""
        reader, self._readers = _one_more(self._readers)
        return reader

    def next_of_pods(self) -> asyncio.Future[Record]:
        """That of the next one that may concern pods, nodes or pools: not of Services alone, as most events are."""
        reader, self._readers_of_pods = _one_more(self._readers_of_pods)
        return reader

    async def run(self) -> None:
        """Until the Shutdown event."""
        while True:
            while not (self._follow_ups or self._requests):
                self._wake.clear()
                await self._wake.wait()
            if await self._next_one():
                return

    async def _next_one(self) -> bool:
        """One event; whether it was the last. What it came to is let go with it: a start's is as much as all that it
        made."""
        event, answer = (self._follow_ups or self._requests).popleft()
        result = await self._handle(event)
        self._left.append(result)
        granted = isinstance(event, AddPod | PodWired) and result.error is None
        if not granted:
            self._do_beside()
        self._answer(result, answer)
        if granted and not self._follow_ups:
            await asyncio.sleep(0)  # who waits for the ADD goes on first
            self._do_beside()
        if not isinstance(event, Shutdown):
            return False
        self._mending.close()
        for timer in (*self._healing.values(), *self._roomy.values()):
            timer.cancel()
        return True

    def _queue(self, queue: deque[tuple[Event, Answer]], event: Event, answer: Answer) -> Answer:
        queue.append((event, answer))
        self._wake.set()
        return answer

    async def _handle(self, event: Event) -> Result:
        try:
            async with self._network:
                self.snapshot, result = await self._transaction.run(self.snapshot, event)
        except Refused as refused:
            result = Result(event, error=str(refused), refusal=refused.refusal)
        except Exception as error:  # a bug: the snapshot stays, and the loop goes on
            log.exception("%s failed", event)
            result = Result(event, error=f"internal error: {error!r}")
        return result

    def _do_beside(self) -> None:
        while self._left:
            result = self._left.popleft()
            for beside in (
                self._tell,
                self._count,
                *self.followers,
                self._heal_later,
                self._room_made,
                self._mending.ended,
            ):
                _guarded(beside, result)

    def _tell(self, result: Result) -> None:
        if result.false_alarm:
            return
        record = self._history.add(result, self._clock())
        readers, self._readers = self._readers, []
        if not (isinstance(result.event, KubeStateChange) and result.event.of_services_alone):
            readers, self._readers_of_pods = readers + self._readers_of_pods, []
        for reader in readers:
            if not reader.done():
                reader.set_result(record)
        level = logging.WARNING if record.error else logging.DEBUG
        log.log(level, "#%d %s %s", record.number, record.event, record.error or "")

    def _count(self, result: Result) -> None:
        self._tally.add(result)

    def _answer(self, result: Result, answer: Answer) -> None:
        try:
            waits = self._follow_up(result, answer)
        except Exception as error:
            log.exception("internal error in what follows %s", type(result.event).__name__)
            result, waits = replace(result, error=result.error or f"internal error: {error!r}"), False
        if not waits and not answer.done():
            answer.set_result(result)

    def _follow_up(self, result: Result, answer: Answer) -> bool:
        """Whether the answer waits for another event."""
        match result.event:
            case AddPod(key) if result.error is None:
                # Confirmed before it is answered: killed in between, a repeated ADD or a DEL finds the pod;
                # the other way round, a start would release a pod that lives.
                self._queue(self._follow_ups, PodWired(key), answer)
                self._displace(result.event)
                return True
            case AddPod(again=False) if result.refusal in (
                None,
                Refusal.OCCUPIED,
                Refusal.EXHAUSTED,
                Refusal.PORT_TAKEN,
            ):
                if self._make_room(result.event, result.refusal):
                    self._requests.appendleft((replace(result.event, again=True), answer))
                    return True
            case PodWired(key) if result.error is not None:
                return self._after(self._next(DeletePod(key)), result, answer)
            case PodWired(key):
                # Only now: until here a failure leaves the pod what it had.
                former = self._replaced(key)
                if former:
                    return self._after(self._next(SandboxReplaced(former)), result, answer)
            case Resync() | Disturbed():
                unseen, gone = self._lost(result)
                if unseen:
                    self._next(SandboxUnseen(unseen))
                if gone:
                    self._next(SandboxGone(gone))
        return False

    def _after(self, other: Answer, result: Result, answer: Answer) -> bool:
        """True: this is the answer once the other event has ended, however."""
        other.add_done_callback(lambda _: None if answer.done() else answer.set_result(result))
        return True

    def _replaced(self, key: AttachmentKey) -> frozenset[AttachmentKey]:
        """Whose place a new sandbox has taken; with them what is dead, whoever's it was."""
        now, it = self.snapshot, self.snapshot.attachments[key]
        same = replaced(now, key, it.pod, it.uid)
        others = predecessors(now, key, it.pod) - same
        return same | (self._dead(others) if others else others)

    def _next(self, event: Event) -> Answer:
        return self._queue(self._follow_ups, event, asyncio.get_running_loop().create_future())

    def _displace(self, added: AddPod) -> bool:
        """Whoever came by the same path before has lost it: the path leads to another namespace now. Whether there was
        anybody else."""
        space, housed = Space(added.netns, added.device, added.inode), self.snapshot.housed
        former = housed.get(added.netns, frozenset()) - housed.get(space, frozenset()) - {added.key}
        dead = self._dead(former)
        if former - dead:
            self._next(SandboxUnseen(former - dead))
        if dead:
            self._next(SandboxGone(dead))
        return bool(former)

    def _make_room(self, refused: AddPod, refusal: Refusal | None) -> bool:
        """Whether something dead stood in the way of an ADD; it is on its way out then. No refusal: a driver failed, as
        at another interface of a sandbox whose path leads to a new namespace."""
        if refusal is None:
            return self._displace(refused)
        now = self.snapshot
        if refusal is Refusal.PORT_TAKEN:  # by another pod: the same one's old sandbox is in nobody's way
            taken = hostports.rivals(now, refused.key, refused.pod, refused.uid, refused.host_ports)
            return self._look_after(frozenset(taken.values()))
        former = replaced(now, refused.key, refused.pod, refused.uid)
        if refusal is Refusal.OCCUPIED:
            former &= now.housed.get(Space(refused.netns, refused.device, refused.inode), frozenset())
        if former:  # it has ended, or there would be no other sandbox
            self._next(SandboxReplaced(former))
            return True
        if refusal is Refusal.EXHAUSTED:
            return self._look_after(frozenset(now.attachments))
        space = Space(refused.netns, refused.device, refused.inode)
        dead = self._dead(now.housed.get(space, frozenset()) - {refused.key})
        if dead:
            self._next(SandboxGone(dead))
        return bool(dead)

    def _look_after(self, keys: frozenset[AttachmentKey]) -> bool:
        """Whether any of these are dead: they are on their way out then. Where only a link was deleted it is made
        again."""
        dead = self._dead(keys)
        if dead:
            self._next(Resync(ResyncReason.HEALING, drivers=frozenset(("linux",))))
        return bool(dead)

    def _dead(self, keys: frozenset[AttachmentKey]) -> frozenset[AttachmentKey]:
        """Those without a link. A namespace takes its links with it, and its inode may be another's at once."""
        links = {LinkKey(link_of(key, self.snapshot.attachments[key])): key for key in sorted(keys)}
        try:
            held = self._transaction.read("linux", links) if links else {}
        except OSError as error:  # whether they live isn't known: so they do
            log.warning("links can't be read: %s", error)
            return frozenset()
        return frozenset(key for link, key in links.items() if link not in held)

    def _lost(self, result: Result) -> tuple[frozenset[AttachmentKey], frozenset[AttachmentKey]]:
        """To whose namespace no path leads any more: of those whose link lives on, and of the rest. While a link lives,
        so does its namespace, by whatever holds it (network_namespaces(7)), and only the path is lost."""
        lives = {
            key.name: step.difference[key].before is not None
            for step in result.steps
            for key, outcome in step.outcomes.items()
            if isinstance(key, LinkKey) and outcome.gone and key in step.difference
        }
        names = self.snapshot.links
        lost = {names[name]: alive for name, alive in lives.items() if name in names}
        return frozenset(key for key in lost if lost[key]), frozenset(key for key in lost if not lost[key])

    def _heal_later(self, result: Result) -> None:
        """Each driver that failed is read and mended later; the more often in a row, the later."""
        self.broken |= {step.driver for step in result.steps if step.error is not None}
        if isinstance(result.event, Resync):
            worked = {step.driver for step in result.steps if step.worked()}
            self.unsynced -= worked
            self.broken = self.broken - worked | {step.driver for step in result.steps} - worked
            for step in result.steps:
                if step.driver not in result.unsettled():
                    self._failures.pop(step.driver, None)
        for driver in sorted(result.unsettled()):
            if driver not in self._healing:
                failures = self._failures.get(driver, 0)
                self._failures[driver] = failures + 1
                delay = HEALING_DELAYS[min(failures, len(HEALING_DELAYS) - 1)]
                self._healing[driver] = asyncio.get_running_loop().call_later(delay, self._heal, driver)

    def _room_made(self, result: Result) -> None:
        """What found no room is tried again soon after something else went; all that goes until then counts once."""
        for step in result.steps:
            if step.driver in self.snapshot.waiting and step.made_room() and step.driver not in self._roomy:
                timer = asyncio.get_running_loop().call_later(ROOM_DELAY, self._try_again, step.driver)
                self._roomy[step.driver] = timer

    def _try_again(self, driver: str) -> None:
        del self._roomy[driver]
        self.submit(RoomMade(driver))

    def _heal(self, driver: str) -> None:
        del self._healing[driver]
        self.submit(Resync(ResyncReason.HEALING, drivers=frozenset((driver,))))
