"""How many events of which kind ended how, and how long they took, since the start. Pure.

Invariants: kinds are the events' classes and outcomes are few, so that what grows with the cluster never becomes a
label. Counts only rise. An event that never ran (a refused request) has no duration.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from podwire.controller.events import Disturbed, FlowsReconciled, Resync, ResyncReason
from podwire.controller.mended import kinds
from podwire.controller.transaction import Result

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds, each the upper bound of a bucket: from one changed backend to a full load of a big cluster."""
DONE, REVERTED, REFUSED, FAILED = "done", "reverted", "refused", "failed"


class Durations:
    """`counts`: how many were at most each bound and more than the one before; the last: more than all bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds


class Tally:
    def __init__(self) -> None:
        self._events: Counter[tuple[str, str]] = Counter()
        self._durations: dict[str, Durations] = {}
        self.healings = 0
        self.flows_deleted: Counter[str] = Counter()
        """By protocol: entries of connection tracking whose flows were stale."""
        self.mended: Counter[tuple[str, str]] = Counter()
        """By driver and what it was (`mended.py`): what others had changed and was put right."""

    @property
    def events(self) -> Mapping[tuple[str, str], int]:
        """By kind of event and outcome."""
        return self._events

    @property
    def durations(self) -> Mapping[str, Durations]:
        """By kind of event."""
        return self._durations

    def add(self, result: Result) -> None:
        kind = type(result.event).__name__
        self._events[kind, outcome_of(result)] += 1
        if result.seconds:
            self._durations.setdefault(kind, Durations()).add(result.seconds)
        if isinstance(result.event, Resync) and result.event.reason is ResyncReason.HEALING:
            self.healings += 1
        if isinstance(result.event, Disturbed):
            for step in result.steps:
                for key, change in step.difference.items():
                    if (outcome := step.outcomes.get(key)) is not None and outcome.error is None:
                        self.mended.update((step.driver, what) for what in kinds(key, change))
        if isinstance(result.event, FlowsReconciled):
            for frontend, count in result.event.deleted:
                self.flows_deleted[frontend.protocol.name] += count


def outcome_of(result: Result) -> str:
    """`reverted`: it failed, and all is as it was before; `refused`: it could not be granted, and nothing was tried."""
    if result.error is None:
        return DONE
    if result.refusal is not None:
        return REFUSED
    return REVERTED if result.reverted else FAILED
