"""What the doctor says: one finding for each thing it looked at. Pure.

Invariants: a check's name never changes its meaning, since programs ask for it. What could not be looked into is said
so (`Unseen`) and is never taken for health or for a fault.
"""

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct


class State(Enum):
    """From good to bad."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing to do, or nothing could be seen."""
    WARNING = "warning"
    """Podwire works, but something may go wrong or get lost."""
    WRONG = "wrong"
    """This keeps Podwire, or a part of it, from working."""


class Unseen(Struct, frozen=True):
    """A fact that could not be had, and why, in words that can stand after "not looked into: "."""

    why: str


class Judgement(Struct, frozen=True):
    """What a check found in one place. `fix`: a command, or what else to do; "" for nothing."""

    state: State
    seen: str
    fix: str = ""


class Finding(Struct, frozen=True):
    """`name` of the check, `seen` what was found, `why` it matters, `fix` what to do ("" for nothing)."""

    name: str
    state: State
    seen: str
    why: str
    fix: str


class Report(Struct, frozen=True):
    """`node`: its name, "" where no configuration says it. `counts`: findings by state."""

    node: str
    version: str
    counts: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; warnings don't count."""
        return not self.counts[State.WRONG.value]


def report(node: str, version: str, findings: Iterable[Finding]) -> Report:
    held = tuple(findings)
    counts = {state.value: sum(it.state is state for it in held) for state in State}
    return Report(node, version, counts, held)


def ok(seen: str) -> Judgement:
    return Judgement(State.OK, seen)


def note(seen: str, fix: str = "") -> Judgement:
    return Judgement(State.NOTE, seen, fix)


def warning(seen: str, fix: str) -> Judgement:
    return Judgement(State.WARNING, seen, fix)


def wrong(seen: str, fix: str) -> Judgement:
    return Judgement(State.WRONG, seen, fix)


def unseen(fact: Unseen) -> Judgement:
    return note(f"not looked into: {fact.why}")
