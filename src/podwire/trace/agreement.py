"""Whether what happened is what explain said, and where it differs. Pure.

Invariants: explain speaks of what this node does. That nobody answers at the other end is no difference.
"""

from collections.abc import Iterator

from msgspec import Struct

from podwire.explain.packets import PacketWhy, Verdict
from podwire.trace.rules import Stop
from podwire.trace.steps import Fate


class Happened(Struct, frozen=True):
    """`told`: the fate in words. `stop`: what a rule of ours did, None where none did or it is not known; `foreign`:
    a rule of others stopped it; `back`: one stopped its answer, in words. `server`: where the packet went, `client`:
    whom that saw, None where not known."""

    fate: Fate
    told: str
    stop: Stop | None
    foreign: bool
    server: str | None
    client: str | None
    tracked: bool
    back: str = ""


_STOPS = {Verdict.REFUSED: Stop.REFUSED, Verdict.DROPPED: Stop.DROPPED}


def differences(why: PacketWhy, it: Happened) -> Iterator[str]:
    """None: they agree."""
    said = f"explain says {why.verdict.value}"
    if it.fate in (Fate.UNSEEN, Fate.LOST):
        yield f"{said}, which is about a packet that gets there; {it.told}"
    elif it.foreign:
        yield f"{said} and knows nothing of others' rules; it was {it.told}"
    elif why.verdict in _STOPS:
        if it.fate is not Fate.STOPPED:
            yield f"{said}; it {it.told}, to {it.server}"
        elif it.stop is not None and it.stop is not _STOPS[why.verdict]:
            yield f"{said}; it was {it.told}"
    elif it.fate is Fate.STOPPED:
        yield f"{said}; it was {it.told}"
    elif why.verdict in (Verdict.BALANCED, Verdict.HOST_PORT):
        yield from _balanced(why, it)
    elif it.server is not None and it.server != why.destination.rpartition("/")[0]:
        yield f"{said}; it was sent to {it.server} instead"
    if it.back:
        yield f"explain knows nothing of others' rules; the answer was {it.back}"


def _balanced(why: PacketWhy, it: Happened) -> Iterator[str]:
    choice = next((each for each in why.choices if each.backend == it.server), None)
    if choice is None:
        yield f"explain says one of {', '.join(each.backend for each in why.choices)}; it went to {it.server}"
    elif it.tracked and choice.client is not None and choice.client != it.client:
        yield f"explain says that {choice.backend} sees {choice.client}; it sees {it.client}"
