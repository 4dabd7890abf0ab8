"""The way of one packet: its events with what it looked like before and after each, and where the way ended. Pure.

Invariants: the kernel shows a packet at the beginning of each hook's chain, so what a chain made of it is seen at the
next one's.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from podwire.trace.events import Header, Packet, TraceEvent
from podwire.trace.table import ARRIVING, FORWARDING, LEAVING


class Fate(Enum):
    LEFT = "left the node"
    DELIVERED = "delivered to the node itself"
    STOPPED = "stopped by a rule"
    LOST = "lost from sight"
    UNSEEN = "not seen"


class Step(NamedTuple):
    """`before`: as the packet came to the event's hook; `after`: as it came to the next one, None where it came to
    none."""

    event: TraceEvent
    before: Header | None
    after: Header | None


class Way(NamedTuple):
    steps: tuple[Step, ...]
    fate: Fate

    @property
    def last(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    @property
    def routed_on(self) -> bool:
        return any(step.event.marks and step.event.chain == FORWARDING for step in self.steps)

    @property
    def header(self) -> Header | None:
        """As it was seen last."""
        return next((step.before for step in reversed(self.steps) if step.before is not None), None)


NEVER = Way((), Fate.UNSEEN)


def way(packet: Packet) -> Way:
    """What goes through lo is sent and received: it ends where it arrives."""
    found: list[Step] = []
    header: Header | None = None
    for at, event in enumerate(packet.events):
        header = event.header or header
        found.append(Step(event, header, _next(packet.events[at + 1 :])))
    return Way(tuple(found), _fate(packet.events))


def first(packets: Sequence[Packet], *, answer: bool) -> Way:
    return next((way(packet) for packet in packets if packet.answer is answer), NEVER)


def repeats(packets: Sequence[Packet]) -> int:
    """How often the request for a connection was sent again."""
    return max(0, sum(bool(p.events) and p.events[0].opens and not p.answer for p in packets) - 1)


def _next(events: Sequence[TraceEvent]) -> Header | None:
    return next((event.header for event in events if event.header is not None), None)


def _fate(events: Sequence[TraceEvent]) -> Fate:
    if not events:
        return Fate.UNSEEN
    if events[-1].stops:
        return Fate.STOPPED
    ends = {event.chain for event in events if event.marks}
    if ARRIVING in ends:
        return Fate.DELIVERED
    return Fate.LEFT if LEAVING in ends else Fate.LOST
