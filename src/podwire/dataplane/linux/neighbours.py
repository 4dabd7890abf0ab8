"""Permanent neighbours, and where VXLAN devices send frames: changes to rtnetlink messages, and dumps back. Pure.

Invariants: what a dump gives back equals what was rendered. Our neighbours are recognised by their protocol number. A
VXLAN device's entries have none: all on a device of ours are ours.
"""

from struct import pack, unpack_from

from podwire.controller.difference import Change
from podwire.dataplane.linux.rtnetlink import (
    BRIDGE,
    DELNEIGH,
    FAMILY_NUMBERS,
    NEWNEIGH,
    PERMANENT,
    PROTOCOL,
    SELF,
)
from podwire.dataplane.messages import CREATE, REPLACE, Message, attr, attrs
from podwire.model.addresses import Address, family_of
from podwire.model.network import ForwardKey, NeighbourKey


def neighbour(key: NeighbourKey, change: Change) -> list[Message]:
    gone = change.after is None
    value = change.before if gone else change.after
    head = pack("=BxHiHBB", family_of(key.address).number, 0, key.index, PERMANENT, 0, 0)
    body = head + attr(1, key.address) + attr(2, value) + attr(12, bytes((PROTOCOL,)))
    # Always in place of what is there: a packet in between leaves an entry that the kernel made by itself.
    return [Message(DELNEIGH, 0, body) if gone else Message(NEWNEIGH, CREATE | REPLACE, body)]


def forward(key: ForwardKey, change: Change) -> list[Message]:
    """For the device itself, not for a bridge over it."""
    head = pack("=BxHiHBB", BRIDGE, 0, key.index, PERMANENT, SELF, 0) + attr(2, key.mac)
    if change.after is None:
        return [Message(DELNEIGH, 0, head)]
    return [Message(NEWNEIGH, CREATE | REPLACE, head + attr(1, change.after))]


def forwards_request(index: int) -> bytes:
    return pack("=BxHiHBB", BRIDGE, 0, index, 0, 0, 0)


def forward_of(body: bytes) -> tuple[ForwardKey, bytes] | None:
    """None for what is not of a VXLAN device (linux/neighbour.h: NDA_PORT 6, NDA_VNI 7, NDA_IFINDEX 8)."""
    seen = attrs(body, 12)
    index, state, flags = unpack_from("=iHB", body, 4)
    if body[0] != BRIDGE or 2 not in seen or 9 in seen:  # NDA_MASTER: a bridge's port
        return None
    plain = state & PERMANENT and flags == SELF and not seen.keys() & {6, 7, 8}
    return ForwardKey(index, seen[2]), seen.get(1, b"") if plain else b""


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
