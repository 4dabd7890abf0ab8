"""The node's own addresses, as its kernel has them: what may be the source of a route, and which networks it is in.

Invariants: an address counts once packets may bear it: of global scope, no duplicate and no longer looked for as one
(RFC 4862). Ours, of the node's blocks, do not count.
"""

from struct import unpack_from
from typing import NamedTuple

from podwire.dataplane import netlink
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import attrs
from podwire.model.addresses import Address, Prefix, prefix_around

_GROUPS = (5, 9)
"""IPv4 and IPv6 addresses (rtnetlink(7))."""
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_PROTO = 1, 2, 8, 11
_TENTATIVE, _DUPLICATE = 0x40, 0x08


class State(NamedTuple):
    """The node's addresses, and the networks in which it has them: a tunnel's other end is a network of one."""

    addresses: frozenset[Address]
    networks: frozenset[Prefix]


class NodeAddresses:
    """Of the namespace of the thread that makes it. Raises OSError."""

    def __init__(self) -> None:
        self._told = netlink.Listener(netlink.ROUTE, _GROUPS)  # first, so that nothing is missed
        self._held = _dump()

    @property
    def now(self) -> State:
        """As last heard."""
        return State(frozenset(address for _, address in self._held), frozenset(self._held.values()))

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self._told.fileno()

    def states(self) -> list[State]:
        """What they were, one state after the other, since it was last asked. Raises OSError."""
        notices = self._told.drain()
        if notices is None:
            return self.anew()
        found = []
        for notice in notices:
            if notice.kind in (rt.NEWADDR, rt.NEWADDR + 1):
                before = self.now
                index, address, network = parse(notice.body)
                if network is not None and notice.kind == rt.NEWADDR:
                    self._held[index, address] = network
                else:
                    self._held.pop((index, address), None)
                if self.now != before:
                    found.append(self.now)
        return found

    def anew(self) -> list[State]:
        """Where something was missed: each of them may have been away. Raises OSError."""
        self._held = _dump()
        return [State(frozenset(), frozenset()), self.now]

    def close(self) -> None:
        self._told.close()


def _dump() -> dict[tuple[int, Address], Prefix]:
    there = netlink.Socket(netlink.ROUTE)
    try:
        told = map(parse, there.dump(rt.GETADDR, bytes(8)))
        return {(index, address): network for index, address, network in told if network is not None}
    finally:
        there.close()


def parse(body: bytes) -> tuple[int, Address, Prefix | None]:
    """Interface, address, and its network, None where it doesn't count; of a notice's body (rtnetlink(7), struct
    ifaddrmsg) or a dump's."""
    length, flags, scope, index = body[1], body[2], body[3], unpack_from("=I", body, 4)[0]
    seen = attrs(body, 8)
    if _IFA_FLAGS in seen:
        flags = unpack_from("=I", seen[_IFA_FLAGS])[0]
    usable = scope == rt.UNIVERSE and not flags & (_TENTATIVE | _DUPLICATE)
    ours = seen.get(_IFA_PROTO) == bytes((rt.PROTOCOL,))
    address = Address(seen.get(_IFA_LOCAL, seen.get(_IFA_ADDRESS, b"")))
    if not usable or ours or len(address) not in (4, 16):
        return index, address, None
    return index, address, prefix_around(Address(seen.get(_IFA_ADDRESS, address)), length)
