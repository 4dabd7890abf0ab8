"""Permanent neighbours: a change to rtnetlink messages, and their dumps back. Pure.

Invariants: what a dump gives back equals what was rendered. Ours are recognised by their protocol number.
"""

from struct import pack, unpack_from

from podwire.controller.difference import Change
from podwire.dataplane.linux.rtnetlink import (
    DELNEIGH,
    FAMILY_NUMBERS,
    NEWNEIGH,
    PERMANENT,
    PROTOCOL,
)
from podwire.dataplane.messages import CREATE, REPLACE, Message, attr, attrs
from podwire.model.addresses import Address, family_of
from podwire.model.network import NeighbourKey


def neighbour(key: NeighbourKey, change: Change) -> list[Message]:
    gone = change.after is None
    value = change.before if gone else change.after
    head = pack("=BxHiHBB", family_of(key.address).number, 0, key.index, PERMANENT, 0, 0)
    body = head + attr(1, key.address) + attr(2, value) + attr(12, bytes((PROTOCOL,)))
    # Always in place of what is there: a packet in between leaves an entry that the kernel made by itself.
    return [Message(DELNEIGH, 0, body) if gone else Message(NEWNEIGH, CREATE | REPLACE, body)]


def neighbour_of(space: str, body: bytes) -> tuple[NeighbourKey, bytes] | None:
    """One that is no longer permanent has no MAC address that counts."""
    seen = attrs(body, 12)
    if 1 not in seen or body[0] not in FAMILY_NUMBERS:
        return None
    state = unpack_from("=H", body, 8)[0]
    return (
        NeighbourKey(space, unpack_from("=i", body, 4)[0], Address(seen[1])),
        seen.get(2, b"") if state & PERMANENT else b"",
    )
