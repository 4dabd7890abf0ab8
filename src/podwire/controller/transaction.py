"""One event through the network: update, resync and revert are the same steps with another scope.

Invariants: decide for the old and the new snapshot, take the actual state, apply the difference driver by driver in the
order given (backwards for what goes), fold what the drivers report. An update takes the actual from the last reports;
resync and revert read. A key whose change failed is UNKNOWN and read before its next change. An unexpected failure is
read again and tried once more. A driver that raises has failed for every key it was given, no more. What a resync at
run time reads and thinks, whose size is the cluster's, goes on in a thread, so that the event loop serves others
meanwhile; what is changed is changed in slices, as ever.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from podwire.controller.difference import Desired, Difference, Driver, Outcome, Scope, difference, gives_room, scope_of
from podwire.controller.events import (
    AddPod,
    Disturbed,
    Event,
    FlowsReconciled,
    OnFailure,
    PodWired,
    Refusal,
    Reported,
    Resync,
    ResyncReason,
)
from podwire.controller.slicing import slices
from podwire.controller.snapshot import fold
from podwire.model.network import UnfilledKey
from podwire.model.objects import AttachmentKey, Value
from podwire.model.snapshot import EVERYTHING, UNKNOWN, Snapshot, Touched

log = logging.getLogger(__name__)

_OWN = (AttachmentKey, UnfilledKey)
"""Keys, all of the store, that no object of the cluster asks for: attachments come and go by CNI alone. The row of one
that is gone must not wait for the API: its address may be given meanwhile, and a start would find it with two."""

_ROWS = frozenset(("store",))
"""What a confirmation asks: it is in the attachment's row, and changes nothing else."""
Found = TypeVar("Found")
Parts = tuple[tuple[str, Desired], ...]
"""What each capability wants."""


async def _beside(apart: bool, work: Callable[[], Found]) -> Found:
    """In a thread, if so wished: snapshots never change, and nobody else uses the drivers meanwhile."""
    return await asyncio.to_thread(work) if apart else work()


class Capability(NamedTuple):
    """A pure decision: from a snapshot and what was touched (None: everything) to what the drivers should hold.
    `drivers`: those that it ever decides for; where only others are asked, it need not be."""

    name: str
    drivers: frozenset[str]
    desired: Callable[[Snapshot, Touched | None], Desired]


class Step(NamedTuple):
    """What one driver was given and answered. `error`: it could not even be asked."""

    driver: str
    difference: Difference
    outcomes: dict[Any, Outcome]
    writes: int
    wanted: int = 0
    """How many keys of its scope should be there."""
    error: str | None = None

    def errors(self) -> list[str]:
        """The first is the cause; drivers answer in the order of their work."""
        found = [outcome.error for outcome in self.outcomes.values() if outcome.error is not None]
        return [self.error, *found] if self.error is not None else found

    def made_room(self) -> bool:
        """Whether anything of the driver's went, or became less."""
        return any(gives_room(self.difference[key]) for key, it in self.outcomes.items() if key in self.difference)

    def worked(self) -> bool:
        """Whether anything of what should be there is: a single refused key is not a broken driver."""
        refused = sum(outcome.error is not None for outcome in self.outcomes.values())
        return self.error is None and (refused == 0 or refused < self.wanted)


class Result(Value, frozen=True):
    """How an event ended. `error` None: as wanted. `decided`: what each capability wanted, after and before.
    `touched`: whom it concerned, None: everybody."""

    event: Event
    steps: tuple[Step, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    refusal: Refusal | None = None
    reverted: bool = False
    decided: tuple[tuple[str, Desired], ...] = ()
    touched: Touched | None = Touched()

    @property
    def false_alarm(self) -> bool:
        """Whether others seemed to have changed something, and all was as wanted: no news."""
        changed = any(step.difference for step in self.steps)
        return isinstance(self.event, Disturbed) and self.error is None and not changed

    def error_without(self, driver: str) -> str | None:
        """The first of `errors_without`."""
        return next(iter(self.errors_without(driver)), None)

    def errors_without(self, driver: str) -> list[str]:
        """What went wrong beside this driver's errors, and beside what is gone for ever: another interface in the same
        namespace may be, too."""
        if not self.steps:
            return [] if self.error is None else [self.error]
        found: list[str] = []
        for step in self.steps:
            if step.driver != driver:
                found += [step.error] if step.error is not None else []
                found += [it.error for it in step.outcomes.values() if it.error is not None and not it.gone]
        return found

    def unsettled(self) -> frozenset[str]:
        """The drivers that failed in something, or want to be read again; but not for what is gone for ever, or has no
        room."""
        return frozenset(
            step.driver
            for step in self.steps
            if step.error is not None
            or any(o.again or (o.error is not None and not o.gone and not o.full) for o in step.outcomes.values())
        )


def merge(parts: Iterable[tuple[str, Desired]]) -> Desired:
    """All parts together; of a key that two capabilities want, the first has its way."""
    merged: Desired = {}
    for _, part in parts:
        for driver, wanted in part.items():
            into = merged.setdefault(driver, {})
            for key, value in wanted.items():
                into.setdefault(key, value)
    return merged


class Transaction:
    def __init__(self, capabilities: Sequence[Capability], drivers: Sequence[Driver]) -> None:
        self.capabilities, self.drivers = capabilities, drivers

    def decide(self, now: Snapshot, touched: Touched | None, only: frozenset[str] | None = None) -> Parts:
        """`only`: what is decided for other drivers is of no use (None: all are asked)."""
        asked = (it for it in self.capabilities if only is None or it.drivers & only)
        return tuple((capability.name, capability.desired(now, touched)) for capability in asked)

    async def run(self, old: Snapshot, event: Event) -> tuple[Snapshot, Result]:
        """Raises Refused, with nothing changed, where the fold can't grant the event."""
        started = time.perf_counter()
        new, touched = fold(old, event)
        if isinstance(event, FlowsReconciled):  # it was done by a driver with a pace of its own
            return new, Result(event, error=event.error)
        apart = isinstance(event, Resync) and event.reason is not ResyncReason.STARTUP

        def deciding() -> tuple[Parts, Parts, Desired, dict[str, Scope]]:
            only = _only(event)
            after = self.decide(new, touched, only)
            before = self.decide(old, touched, only) if touched is not EVERYTHING else ()
            wanted = merge(after)
            return after, before, wanted, self._scopes(event, (wanted, merge(before)), touched, new.whole)

        decided, before, wanted, scopes = await _beside(apart, deciding)
        undo = event.on_failure is OnFailure.REVERT
        new, steps = await self._reconcile(
            new,
            wanted,
            scopes,
            fresh=touched is EVERYTHING
            or isinstance(event, Disturbed)
            or (isinstance(event, AddPod) and event.key in old.attachments),
            backwards=event.on_failure is OnFailure.IGNORE,
            stop=undo,
            apart=apart,
        )
        error = next((text for step in steps for text in step.errors()), None)
        clean = False
        if error is not None and undo:
            new, undone = await self._revert(old, new, touched, scopes, steps)
            clean = not any(step.errors() for step in undone)
            steps += undone
        # What can't be written down is not tried: the driver that comes first is the store.
        refusal = Refusal.NOT_STORED if undo and _failed(steps) == self.drivers[0].name else None
        seconds = time.perf_counter() - started
        return new, Result(event, tuple(steps), seconds, error, refusal, clean, decided + before, touched)

    async def _revert(
        self, old: Snapshot, new: Snapshot, touched: Touched | None, scopes: Mapping[str, Scope], steps: Sequence[Step]
    ) -> tuple[Snapshot, list[Step]]:
        """Back to the old snapshot, but with what was learnt of the network. Where the store has taken the cursors,
        they stay: an address that could not be had is not tried again at once."""
        known = old if steps[0].errors() else replace(old, cursors=new.cursors)
        for step in steps:
            known, _ = fold(known, Reported(step.driver, step.outcomes))
        reached = {step.driver for step in steps}
        scopes = {name: scope for name, scope in scopes.items() if name in reached}
        wanted = merge(self.decide(known, touched))
        return await self._reconcile(known, wanted, scopes, fresh=True, backwards=True, stop=False)

    def read(self, driver: str, keys: Iterable[Any]) -> dict[Any, Any]:
        """What a driver's network holds of these keys, without a look into the pods. Raises OSError."""
        one = next(each for each in self.drivers if each.name == driver)
        return one.read(Scope(dict.fromkeys(keys).keys(), frozenset()))

    def drift(self, now: Snapshot, touched: Touched | None = EVERYTHING) -> dict[str, Difference]:
        """What a resync would do, by driver, but for what has no room; touches nothing. `touched`: only what these
        objects want, and only that is read. Raises OSError where a driver can't read."""
        wanted = merge(self.decide(now, touched, frozenset(driver.name for driver in self.drivers)))
        found: dict[str, Difference] = {}
        for driver in self.drivers:
            mine = wanted.get(driver.name, {})
            if not mine and touched is not EVERYTHING:
                continue
            scope = scope_of(mine, everything=touched is EVERYTHING)
            actual = driver.read(scope)
            changes = _due(now, scope, difference(driver.settle(mine, actual), actual, driver.place))
            waiting = now.waiting.get(driver.name, frozenset())
            known: Mapping[Any, Any] = now.programmed.get(driver.name, {})
            found[driver.name] = {
                key: change for key, change in changes.items() if key not in waiting or change.before != known.get(key)
            }
        return found

    def _scopes(self, event: Event, parts: Iterable[Desired], touched: Touched | None, whole: bool) -> dict[str, Scope]:
        only = _only(event)
        seen: frozenset[Any] = frozenset()
        # Sweep only once in sync: what nobody wants may be wanted by an object that isn't known yet.
        if isinstance(event, Disturbed) and whole and touched is not EVERYTHING:
            seen = event.keys or seen
        found: dict[str, Scope] = {}
        for driver in self.drivers:
            if only is None or driver.name in only:
                keys = [key for part in parts for key in part.get(driver.name, ())] + sorted(seen, key=str)
                if keys or touched is EVERYTHING:
                    found[driver.name] = scope_of(keys, everything=touched is EVERYTHING)
        return found

    async def _reconcile(
        self,
        now: Snapshot,
        wanted: Desired,
        scopes: Mapping[str, Scope],
        *,
        fresh: bool,
        backwards: bool,
        stop: bool,
        apart: bool = False,
    ) -> tuple[Snapshot, list[Step]]:
        steps: list[Step] = []
        for driver in reversed(self.drivers) if backwards else self.drivers:
            if driver.name in scopes:
                mine, scope = wanted.get(driver.name, {}), scopes[driver.name]
                now, step = await _one_driver(driver, now, mine, scope, fresh, apart and driver.apart)
                steps.append(step)
                if stop and step.errors():
                    break
        return now, steps


def _only(event: Event) -> frozenset[str] | None:
    """The drivers that it asks; None: all."""
    match event:
        case Resync(drivers=drivers):
            return drivers
        case Disturbed(driver):
            return frozenset((driver,))
        case PodWired():
            return _ROWS
    return None


def _failed(steps: Iterable[Step]) -> str | None:
    """The driver that failed first."""
    return next((step.driver for step in steps if step.errors()), None)


async def _one_driver(
    driver: Driver, now: Snapshot, mine: dict[Any, Any], scope: Scope, fresh: bool, apart: bool
) -> tuple[Snapshot, Step]:
    before = driver.writes
    known = now
    programmed: Mapping[Any, Any] = now.programmed.get(driver.name, {})
    changes: Difference = {}

    def looking() -> tuple[dict[Any, Any], bool, Mapping[Any, Any], Difference]:
        actual, is_fresh = _actual(driver, programmed, scope, fresh)
        settled = driver.settle(mine, actual)
        return actual, is_fresh, settled, _due(known, scope, difference(settled, actual, driver.place))

    def knowing(report: Mapping[Any, Outcome]) -> Snapshot:
        return fold(known, Reported(driver.name, report))[0]

    try:
        actual, seen, settled, changes = await _beside(apart, looking)
        outcomes = await _apply(driver, changes)
        outcomes |= await _apply(driver, _crowded_out(changes, outcomes))
        disturbed = any(outcome.again for outcome in outcomes.values())
        outcomes |= await _retry(driver, settled, scope, outcomes)
        if disturbed or any(outcome.again for outcome in outcomes.values()):
            seen, actual = True, driver.read(scope)
            settled = driver.settle(mine, actual)
            outcomes |= await _apply(driver, _due(now, scope, difference(settled, actual, driver.place)))
    except Exception as error:  # whatever it is, it must not cost the other drivers, or the event, their turn
        level = logging.WARNING if isinstance(error, OSError) else logging.ERROR
        log.log(level, "driver %s failed", driver.name, exc_info=error)
        what = str(error) if isinstance(error, OSError) else f"internal error: {error!r}"
        touched = changes.keys() if scope.keys is None else scope.keys
        failed = {key: Outcome(error=f"{driver.name}: {what}") for key in touched}
        now, _ = fold(now, Reported(driver.name, failed))
        return now, Step(driver.name, changes, failed, driver.writes - before, len(mine), f"{driver.name}: {what}")
    report = outcomes
    if seen:  # what was read and found right, or found absent, is knowledge too
        absent = (programmed.keys() if scope.keys is None else scope.keys) - actual.keys()
        report = {key: Outcome(actual.get(key)) for key in (*actual, *absent)} | outcomes
    now = await _beside(apart, lambda: knowing(report))
    return now, Step(driver.name, changes, outcomes, driver.writes - before, len(mine))


def _crowded_out(changes: Difference, outcomes: Mapping[Any, Outcome]) -> Difference:
    """What had no room before the rest of the same difference made some."""
    full = [key for key, it in outcomes.items() if it.full]
    if not full or not any(gives_room(changes[key]) for key, it in outcomes.items() if it.error is None):
        return {}
    return {key: changes[key] for key in full}


def _due(now: Snapshot, scope: Scope, changes: Difference) -> Difference:
    """Sweep only once in sync: what nobody wants may be wanted by an object that isn't known yet."""
    if scope.keys is not None or now.whole:
        return changes
    return {key: it for key, it in changes.items() if it.after is not None or isinstance(key, _OWN)}


def _actual(driver: Driver, programmed: Mapping[Any, Any], scope: Scope, fresh: bool) -> tuple[dict[Any, Any], bool]:
    """As last reported, unless a fresh look is asked for or the last report was a failure; and whether it is fresh."""
    if not fresh and scope.keys is not None:
        known = {key: programmed[key] for key in scope.keys if key in programmed}
        if not any(value is UNKNOWN for value in known.values()):
            return known, False
    return driver.read(scope), True


async def _retry(
    driver: Driver, mine: Mapping[Any, Any], scope: Scope, outcomes: Mapping[Any, Outcome]
) -> dict[Any, Outcome]:
    """The network isn't what was believed: look again at what failed, once."""
    failed = {
        key: None for key, it in outcomes.items() if it.error is not None and not (it.gone or it.later or it.full)
    }.keys()
    if not failed:
        return {}
    try:
        seen = driver.read(Scope(failed, scope.spaces))
    except OSError:
        return {}
    again = difference({key: mine[key] for key in failed if key in mine}, seen, driver.place)
    return {key: Outcome(seen.get(key)) for key in failed} | await _apply(driver, again)


async def _apply(driver: Driver, changes: Difference) -> dict[Any, Outcome]:
    """In slices, where the driver allows: everybody else gets a turn in between."""
    if not changes:
        return {}
    if driver.slice == 0:
        return _apply_slice(driver, changes)
    outcomes: dict[Any, Outcome] = {}
    ordered = sorted(changes.items(), key=lambda item: driver.rank(*item))
    for part in slices(ordered, lambda item: driver.weight(item[1]), driver.slice):
        if outcomes:
            await asyncio.sleep(0)
        outcomes |= _apply_slice(driver, dict(part))
    return outcomes


def _apply_slice(driver: Driver, changes: Difference) -> dict[Any, Outcome]:
    try:
        return driver.apply(changes)
    except OSError as error:
        return {key: Outcome(error=f"{driver.name}: {error}") for key in changes}
