"""What the client was told: connected, answered, refused, nothing. Pure.

Invariants: a socket's error alone does not say who refused; the kernel's extended error does (IP_RECVERR, ip(7)).
"""

import errno
import os
from enum import Enum
from struct import Struct as Packed

from msgspec import Struct

from podwire.model.addresses import Address, show_address
from podwire.model.objects import Protocol


class Outcome(Enum):
    CONNECTED = "connected"
    ANSWERED = "answered"
    RESET = "refused by a reset"
    ICMP = "refused by ICMP"
    SILENCE = "no answer"
    NOT_PERMITTED = "not permitted"
    UNREACHABLE = "no way there"
    FAILED = "failed"


class Answer(Struct, frozen=True):
    """`detail`: what is known of it beyond the outcome, "" for nothing."""

    outcome: Outcome
    milliseconds: float
    detail: str = ""


class Icmp(Struct, frozen=True):
    """An error that came in as a packet: what it says, and who sent it."""

    meaning: str
    sender: str


_EXTENDED = Packed("=IBBBxII")
_FROM_ICMP, _FROM_ICMPV6 = 2, 3
_MEANINGS = {
    (2, 3, 0): "network unreachable",
    (2, 3, 1): "host unreachable",
    (2, 3, 2): "protocol unreachable",
    (2, 3, 3): "port unreachable",
    (2, 3, 9): "network prohibited",
    (2, 3, 10): "host prohibited",
    (2, 3, 13): "administratively prohibited",
    (3, 1, 0): "no route",
    (3, 1, 1): "administratively prohibited",
    (3, 1, 3): "address unreachable",
    (3, 1, 4): "port unreachable",
    (3, 1, 6): "rejected by a route",
}
"""By origin, type and code (RFC 792, RFC 4443)."""


def icmp(extended: bytes) -> Icmp | None:
    """From a sock_extended_err and the address behind it; None where no packet told it."""
    if len(extended) < _EXTENDED.size:
        return None
    _, origin, kind, code, _, _ = _EXTENDED.unpack_from(extended)
    if origin not in (_FROM_ICMP, _FROM_ICMPV6):
        return None
    at, size = (4, 4) if origin == _FROM_ICMP else (8, 16)
    sender = extended[_EXTENDED.size + at : _EXTENDED.size + at + size]
    told = show_address(Address(sender)) if len(sender) == size else "nobody known"
    return Icmp(_MEANINGS.get((origin, kind, code), f"type {kind} code {code}"), told)


def failed(code: int, told: Icmp | None, protocol: Protocol, milliseconds: float) -> Answer:
    """From a socket's errno."""
    if told is not None:
        return Answer(Outcome.ICMP, milliseconds, f"{told.meaning}, says {told.sender}")
    if code in (errno.ECONNREFUSED, errno.ECONNRESET) and protocol is Protocol.TCP:
        return Answer(Outcome.RESET, milliseconds)
    if code in (errno.EPERM, errno.EACCES):
        return Answer(Outcome.NOT_PERMITTED, milliseconds, "a packet filter dropped it while it was being sent")
    if code in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
        return Answer(Outcome.UNREACHABLE, milliseconds, os.strerror(code))
    return Answer(Outcome.FAILED, milliseconds, os.strerror(code) if code else "for a reason unknown")


def in_words(answer: Answer, protocol: Protocol | None) -> str:
    """One line, with the time."""
    detail = f" ({answer.detail})" if answer.detail else ""
    if answer.outcome is Outcome.SILENCE:
        why = "; of a UDP server that proves little: it need not answer such a datagram"
        return f"no answer within {answer.milliseconds / 1000:g} s{why if protocol is Protocol.UDP else ''}"
    if answer.outcome is Outcome.UNREACHABLE:
        return f"no way there{detail}"
    return f"{answer.outcome.value}{detail} after {answer.milliseconds:.1f} ms"
