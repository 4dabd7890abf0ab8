"""What a Service's status should say of its addresses, and what is news. Pure.

Invariants: a status that says already what it should is not written, so what it should say is what the API keeps of it.
What stands there of somebody else's (a name, an address of no pool with its mode) is left as it is by who has no
address to give.
"""

from typing import NamedTuple

from podwire.loadbalancer.allocation import Grant
from podwire.model.addresses import show_address
from podwire.model.balancers import Balanced

VIP = "VIP"
"""Packets come with the address as their destination (KEP-1860)."""
NORMAL, WARNING = "Normal", "Warning"
LONGEST_MESSAGE = 32768
"""Characters of a condition's message (Kubernetes API, meta/v1 Condition)."""


class Status(NamedTuple):
    """`ingress`: addresses with their modes. `condition`: status, reason, message."""

    ingress: tuple[tuple[str, str], ...]
    condition: tuple[str, str, str]


class News(NamedTuple):
    """An Event for people: its type, reason and message."""

    type: str
    reason: str
    message: str


def wanted(held: Balanced, grant: Grant) -> Status:
    nothing_ours = not grant.pool and not grant.lost
    ingress = held.ingress if nothing_ours else tuple((show_address(it), VIP) for it in grant.addresses)
    return Status(ingress, _condition(grant))


def due(held: Balanced, grant: Grant, pools: bool = True) -> Status | None:
    """None: its status is as it should be. `pools`: there are any. Where there are none it is somebody else's, or
    nobody's; but whoever was told anything before is told what became of it."""
    if not pools and held.condition is None:
        return None
    status = wanted(held, grant)
    return None if (held.ingress, held.condition) == status else status


def _condition(grant: Grant) -> tuple[str, str, str]:
    status, word, message = _told(grant)
    return status, word, cut(message)


def cut(message: str) -> str:
    """As much of it as a condition can have."""
    return message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 3]}..."


def reason(grant: Grant) -> str:
    """The condition's."""
    return _told(grant)[1]


def _told(grant: Grant) -> tuple[str, str, str]:
    of = f" of pool {grant.pool}" if grant.pool else ""
    has = " and ".join(map(show_address, grant.addresses))
    stale = "; ".join(f"{show_address(it)} is kept, though {why}" for it, why in grant.stale)
    if not grant.addresses:
        return "False", "NoAddress", grant.why
    if grant.why:
        return "False", "Incomplete", f"{has}{of}; {grant.why}"
    if stale:
        return "True", "Stale", stale
    return "True", "Assigned", f"{has}{of}"


def news(held: Balanced, grant: Grant) -> list[News]:
    """What is told once, with the status that is written."""
    before, (status, word, message) = held.condition, _condition(grant)
    found = [News(WARNING, "AddressLost", f"{show_address(address)}: {why}") for address, why in grant.lost]
    new = [it for it in grant.addresses if it not in held.request.holds]
    if new:
        found.append(News(NORMAL, "AddressAssigned", f"{' and '.join(map(show_address, new))} of pool {grant.pool}"))
    if word != "Assigned" and before != (status, word, message):
        found.append(News(WARNING, f"Address{word}" if word != "NoAddress" else word, message))
    return found
