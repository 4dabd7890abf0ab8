"""The node's own addresses, as its kernel has them: what may be the source of a route.

Invariants: an address counts once packets may bear it: of global scope, no duplicate and no longer looked for as one
(RFC 4862). Ours, of the node's blocks, do not count.
"""

from struct import unpack_from

from podwire.dataplane import netlink
from podwire.dataplane.linux import render as r
from podwire.dataplane.messages import attrs
from podwire.model.addresses import Address

_GROUPS = (5, 9)
"""IPv4 and IPv6 addresses (rtnetlink(7))."""
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_PROTO = 1, 2, 8, 11
_TENTATIVE, _DUPLICATE = 0x40, 0x08


class NodeAddresses:
    """Of the namespace of the thread that makes it. Raises OSError."""

    def __init__(self) -> None:
        self._told = netlink.Listener(netlink.ROUTE, _GROUPS)  # first, so that nothing is missed
        self._held = _dump()

    @property
    def now(self) -> frozenset[Address]:
        """As last heard."""
        return frozenset(address for _, address in self._held)

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self._told.fileno()

    def states(self) -> list[frozenset[Address]]:
        """What they were, one state after the other, since it was last asked. Raises OSError."""
        notices = self._told.drain()
        if notices is None:
            return self.anew()
        found = []
        for notice in notices:
            if notice.kind in (r.NEWADDR, r.NEWADDR + 1):
                before = self.now
                index, address, usable = parse(notice.body)
                (self._held.add if usable and notice.kind == r.NEWADDR else self._held.discard)((index, address))
                if self.now != before:
                    found.append(self.now)
        return found

    def anew(self) -> list[frozenset[Address]]:
        """Where something was missed: each of them may have been away. Raises OSError."""
        self._held = _dump()
        return [frozenset(), self.now]

    def close(self) -> None:
        self._told.close()


def _dump() -> set[tuple[int, Address]]:
    there = netlink.Socket(netlink.ROUTE)
    try:
        told = map(parse, there.dump(r.GETADDR, bytes(8)))
        return {(index, address) for index, address, usable in told if usable}
    finally:
        there.close()


def parse(body: bytes) -> tuple[int, Address, bool]:
    """Interface, address, and whether it counts; of a notice's body (rtnetlink(7), struct ifaddrmsg) or a dump's."""
    flags, scope, index = body[2], body[3], unpack_from("=I", body, 4)[0]
    seen = attrs(body, 8)
    if _IFA_FLAGS in seen:
        flags = unpack_from("=I", seen[_IFA_FLAGS])[0]
    usable = scope == r.UNIVERSE and not flags & (_TENTATIVE | _DUPLICATE)
    ours = seen.get(_IFA_PROTO) == bytes((r.PROTOCOL,))
    address = Address(seen.get(_IFA_LOCAL, seen.get(_IFA_ADDRESS, b"")))
    return index, address, usable and not ours and len(address) in (4, 16)
