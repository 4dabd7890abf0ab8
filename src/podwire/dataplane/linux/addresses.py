"""The node's own addresses, as its kernel has them: what may be the source of a route, and which networks it is in.

Invariants: an address counts once packets may bear it: of global scope, no duplicate and no longer looked for as one
(RFC 4862). Ours, of the node's blocks, do not count. What the kernel tells apart is told apart here: an interface may
have one IPv4 address in several networks at once, an IPv6 address only once.
"""

from struct import unpack_from
from typing import NamedTuple

from podwire.dataplane import netlink
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import attrs
from podwire.model.addresses import IPV4, IPV6, Address, Prefix, prefix_around

_GROUPS = (5, 9)
"""IPv4 and IPv6 addresses (rtnetlink(7))."""
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_PROTO = 1, 2, 8, 11
_TENTATIVE, _DUPLICATE = 0x40, 0x08


class State(NamedTuple):
    """The node's addresses, and the networks in which it has them: a tunnel's other end is a network of one."""

    addresses: frozenset[Address]
    networks: frozenset[Prefix]


Key = tuple[int, Address, Prefix | None]


class Assigned(NamedTuple):
    """An address of the interface with that index, the network in which it has it, and whether that counts."""

    interface: int
    address: Address
    network: Prefix
    counts: bool

    @property
    def key(self) -> Key:
        """What the kernel has only once. An IPv6 address may get another network (its other end's) in place of its
        old one."""
        return self.interface, self.address, self.network if len(self.address) == IPV4.size else None


class NodeAddresses:
    """Of the namespace of the thread that makes it. Raises OSError."""

    def __init__(self) -> None:
        self._told = netlink.Listener(netlink.ROUTE, _GROUPS)  # first, so that nothing is missed
        self._held = _dump()

    @property
    def now(self) -> State:
        """As last heard."""
        held = self._held.values()
        return State(frozenset(each.address for each in held), frozenset(each.network for each in held))

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
                it = parse(notice.body)
                if it is not None and it.counts and notice.kind == rt.NEWADDR:
                    self._held[it.key] = it
                elif it is not None:
                    self._held.pop(it.key, None)
                if self.now != before:
                    found.append(self.now)
        return found

    def anew(self) -> list[State]:
        """Where something was missed: each of them may have been away. Raises OSError."""
        self._held = _dump()
        return [State(frozenset(), frozenset()), self.now]

    def close(self) -> None:
        self._told.close()


def _dump() -> dict[Key, Assigned]:
    there = netlink.Socket(netlink.ROUTE)
    try:
        told = map(parse, there.dump(rt.GETADDR, bytes(8)))
        return {it.key: it for it in told if it is not None and it.counts}
    finally:
        there.close()


def parse(body: bytes) -> Assigned | None:
    """Of a notice's body (rtnetlink(7), struct ifaddrmsg) or a dump's; None: neither IPv4 nor IPv6."""
    length, flags, scope, interface = body[1], body[2], body[3], unpack_from("=I", body, 4)[0]
    seen = attrs(body, 8)
    if _IFA_FLAGS in seen:
        flags = unpack_from("=I", seen[_IFA_FLAGS])[0]
    usable = scope == rt.UNIVERSE and not flags & (_TENTATIVE | _DUPLICATE)
    ours = seen.get(_IFA_PROTO) == bytes((rt.PROTOCOL,))
    address = Address(seen.get(_IFA_LOCAL, seen.get(_IFA_ADDRESS, b"")))
    if len(address) not in (IPV4.size, IPV6.size):
        return None
    network = prefix_around(Address(seen.get(_IFA_ADDRESS, address)), length)
    return Assigned(interface, address, network, usable and not ours)
