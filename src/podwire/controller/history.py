"""What happened, in words: a bounded list of records, one for each event. Pure.

Invariants: a record is made from the result alone; its changes are told by the capability that wanted them
("leftovers" for what nobody wants and a resync found). Long lists are cut, and say so. What can't be told is a record
too, that says so.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from podwire.controller.difference import Change
from podwire.controller.events import FlowsReconciled
from podwire.controller.mended import strays
from podwire.controller.transaction import Result
from podwire.model.addresses import Address, show_address
from podwire.model.network import TUNNEL_INDEX, Backend, Route, Serving, Slots, listed
from podwire.model.objects import Value

MOST_RECORDS = 1000
MOST_LINES = 20
LEFTOVERS = "leftovers"
_NOBODYS = LEFTOVERS, None


class Record(Value, frozen=True):
    """`time` is in seconds since the epoch, `operations` counts writes by driver."""

    number: int
    time: float
    event: str
    changes: dict[str, tuple[str, ...]]
    operations: dict[str, int]
    milliseconds: float
    error: str | None


class History:
    """The last records, oldest first. Numbers go on rising when old ones are dropped."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._records: deque[Record] = deque(maxlen=most)
        self._count = 0

    def add(self, result: Result, now: float) -> Record:
        self._count += 1
        try:
            record = record_of(result, self._count, now)
        except Exception as error:  # a bug: what happened has happened, and who waits for it is told
            said = f"internal error: can't be told: {error!r}" + (f"; {result.error}" if result.error else "")
            record = Record(self._count, now, type(result.event).__name__, {}, {}, round(result.seconds * 1e3, 3), said)
        self._records.append(record)
        return record

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def record_of(result: Result, number: int, now: float) -> Record:
    operations: dict[str, int] = {}
    for step in result.steps:
        if step.writes:
            operations[step.driver] = operations.get(step.driver, 0) + step.writes
    if isinstance(result.event, FlowsReconciled) and result.event.deleted:
        operations["conntrack"] = sum(count for _, count in result.event.deleted)
    error = result.error
    if error is not None and result.reverted:
        error += " (reverted)"
    return Record(
        number, now, str(result.event), changes_in_words(result), operations, round(result.seconds * 1e3, 3), error
    )


def changes_in_words(result: Result) -> dict[str, tuple[str, ...]]:
    lines: dict[str, list[str]] = {}
    more: dict[str, int] = {}
    for step in result.steps:
        parts = [(name, part[step.driver]) for name, part in result.decided if step.driver in part]
        for key, change in step.difference.items():
            owner, wanted = next(((name, part[key]) for name, part in parts if key in part), _NOBODYS)
            told = lines.setdefault(owner, [])
            if len(told) < MOST_LINES:
                told.append(words(key, change) + _cut(wanted, change.after))
            else:
                more[owner] = more.get(owner, 0) + 1
    if isinstance(result.event, FlowsReconciled):
        told = [
            f"{frontend}: {count} stale flow{'s' * (count != 1)} deleted" for frontend, count in result.event.deleted
        ]
        if told:
            lines["services"] = told[:MOST_LINES]
        if len(told) > MOST_LINES:
            more["services"] = len(told) - MOST_LINES
    for owner, count in more.items():
        lines[owner].append(f"and {count} more")
    return {owner: tuple(told) for owner, told in lines.items()}


def _cut(wanted: Any, after: Any) -> str:
    """Where not all backends are in force, that."""
    if not isinstance(wanted, Serving) or not isinstance(after, Slots):
        return ""
    held = len(set(after.backends) - {None})
    return f" (of {len(wanted.backends)} backends {held} are in force)" if held < len(wanted.backends) else ""


def _alike(one: Slots, other: Slots) -> bool:
    """Whether they are of one kind, as nearly all changes leave it: soon seen where no clients are remembered."""
    return one[:1] + one[2:] == other[:1] + other[2:] and not (one.affinity or one.keeps)


def words(key: object, change: Change) -> str:
    """One change, in one line."""
    before, after = change
    if isinstance(after, Slots) and isinstance(before, Slots):
        old, new = set(before.backends) - {None}, set(after.backends) - {None}
        came, went = (sorted(map(str, some)) for some in (new - old, old - new))
        told = [listed((f"{sign}{b}" for b in some), " ") for sign, some in (("+", came), ("-", went)) if some]
        if not told or not (_alike(before, after) or before.kind == after.kind):
            told.append(after.kind)
        return f"{key}: {' '.join(told)}"
    if before is None:
        return f"{key} added" + (f" ({after})" if isinstance(after, Slots | Backend) else "")
    if after is None:
        return f"{key} removed"
    if names := list(strays(change)):
        return f"{key} changed: put right {listed(names)}"
    was, now = _value(before), _value(after)
    return f"{key} changed: {was} → {now}" if was and now and was != now else f"{key} changed"


def _value(value: object) -> str:
    """ "" for what has no short words. Of a route to another node the way."""
    match value:
        case str() | int() | Backend():
            return str(value)
        case bytes() if len(value) in (4, 16):
            return show_address(Address(value))
        case Route(index=index) if index in TUNNEL_INDEX.values():
            return "by VXLAN"
        case Route(via=via) if via is not None:
            return f"by way of {show_address(via)}"
    return ""
