"""What the status of an object of Podwire's own kinds should say, and what is news. Pure.

Invariants: as in `statuses.py`: a status that says already what it should is not written. Conditions of others stay as
they are. A condition's time is that of its last change of status (API conventions).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from podwire.loadbalancer.checks import Problem
from podwire.loadbalancer.statuses import NORMAL, WARNING, News, cut
from podwire.loadbalancer.usage import Usage
from podwire.model.addresses import FAMILIES, Family
from podwire.model.declared import Condition, Counts, Declared

ACCEPTED, COMPLETE = "Accepted", "Complete"
"""Whether it is used at all; and whether all that it says is done."""


class Report(NamedTuple):
    """`conditions`: all of them. `counts`: of IPv4 and IPv6."""

    conditions: tuple[Condition, ...]
    counts: tuple[Counts | None, Counts | None]


def due(held: Declared, found: Iterable[Problem], usage: Mapping[Family, Usage], now: str) -> Report | None:
    """What is to be written at the time `now`; None: its status is as it should be."""
    problems = [("", "Invalid", held.wrong, True)] if held.value is None else []
    problems += [(it.field, it.reason, it.message, it.refused) for it in found]
    words = cut("; ".join(f"{field}: {message}" if field else message for field, _, message, _ in problems))
    refusing = next((reason for _, reason, _, refused in problems if refused), None)
    accepted = ("False", refusing, words) if refusing else ("True", ACCEPTED, "")
    complete = ("False", problems[0][1], words) if problems else ("True", COMPLETE, "")
    wanted = ((ACCEPTED, accepted), (COMPLETE, complete))
    own = tuple(_condition(held, type_, said, now) for type_, said in wanted)
    others = tuple(it for it in held.conditions if it.type not in (ACCEPTED, COMPLETE))
    counts = tuple(_counts(usage.get(family)) for family in FAMILIES)
    report = Report((*others, *own), (counts[0], counts[1]))
    before = Report(tuple(sorted(held.conditions)), held.counts)
    return None if report._replace(conditions=tuple(sorted(report.conditions))) == before else report


def _condition(held: Declared, type_: str, said: tuple[str, str, str], now: str) -> Condition:
    before = next((it for it in held.conditions if it.type == type_), None)
    since = before.since if before is not None and before.status == said[0] and before.since else now
    return Condition(type_, *said, since, held.generation)


def _counts(usage: Usage | None) -> Counts | None:
    return Counts(str(usage.total), usage.assigned, str(usage.available)) if usage is not None else None


def news(held: Declared, report: Report) -> list[News]:
    """An Event where something is wrong, or is something else, or nothing any more."""
    before, after = (_complete(it) for it in (held.conditions, report.conditions))
    if after is None or (before is not None and before[:3] == after[:3]):
        return []
    status, reason, message = after
    if status == "False":
        return [News(WARNING, reason, message)]
    return [News(NORMAL, reason, "all that it says is done")] if before is not None and before[0] == "False" else []


def _complete(conditions: Iterable[Condition]) -> tuple[str, str, str] | None:
    return next(((it.status, it.reason, it.message) for it in conditions if it.type == COMPLETE), None)
