"""The node's own addresses, as its kernel has them: what may be the source of a route, and which networks it is in.

Invariants: an address counts once packets may bear it: of global scope, no duplicate and no longer looked for as one
(RFC 4862). Ours, of the node's blocks, do not count. What the kernel tells apart is told apart here: an interface may
have one IPv4 address in several networks at once, an IPv6 address only once.
"""

from collections.abc import Iterable
from itertools import pairwise
from struct import unpack_from
from typing import NamedTuple

from podwire.dataplane import netlink
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import Notice, attrs
from podwire.model.addresses import IPV4, IPV6, Address, Prefix, prefix_around

_GROUPS = (5, 9)
"""IPv4 and IPv6 addresses (rtnetlink(7))."""
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_PROTO = 1, 2, 8, 11
_TENTATIVE, _DUPLICATE = 0x40, 0x08


class State(NamedTuple):
    """The node's addresses, and the networks in which it has them: a tunnel's other end is a network of one."""

    addresses: frozenset[Address]
    networks: frozenset[Prefix]


Place = tuple[int, Prefix | None]
Held = dict[Address, dict[Place, Prefix]]
"""By address and place: the network."""


class Assigned(NamedTuple):
    """An address of the interface with that index, the network in which it has it, and whether that counts."""

    interface: int
    address: Address
    network: Prefix
    counts: bool

    @property
    def place(self) -> Place:
        """Where the kernel has the address only once. An IPv6 address may get another network (its other end's) in
        place of its old one."""
        return self.interface, self.network if len(self.address) == IPV4.size else None


class NodeAddresses:
    """Of the namespace of the thread that makes it. Raises OSError."""

    def __init__(self) -> None:
        self._told = netlink.Listener(netlink.ROUTE, _GROUPS)  # first, so that nothing is missed
        self._held = _dump()

    @property
    def now(self) -> State:
        """As last heard."""
        return _state(self._held)

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self._told.fileno()

    def states(self) -> list[State]:
        """As `heard`, of what was told since it was last asked. Raises OSError."""
        notices = self._told.drain()
        return self.anew() if notices is None else heard(self._held, notices)

    def anew(self) -> list[State]:
        """Where something was missed: each of them may have been away. Raises OSError."""
        self._held = _dump()
        return [State(frozenset(), self.now.networks), self.now]

    def close(self) -> None:
        self._told.close()


def heard(held: Held, notices: Iterable[Notice]) -> list[State]:
    """What they have come to, which is put into `held`; and before that, where one of them was away meanwhile, those
    that were there all the while. However many notices, no more than these two."""
    before, away = _state(held), set[Address]()
    for notice in notices:
        it = parse(notice.body) if notice.kind in (rt.NEWADDR, rt.NEWADDR + 1) else None
        if it is not None:
            _put(held, it, notice.kind == rt.NEWADDR)
            if it.address not in held:
                away.add(it.address)
    now = _state(held)
    stayed = State(before.addresses - away, now.networks)
    steps = (before, stayed, now) if stayed.addresses != before.addresses else (before, now)
    return [after for earlier, after in pairwise(steps) if after != earlier]


def _put(held: Held, it: Assigned, there: bool) -> None:
    places = held.setdefault(it.address, {})
    if there and it.counts:
        places[it.place] = it.network
    else:
        places.pop(it.place, None)
    if not places:
        del held[it.address]


def _state(held: Held) -> State:
    return State(frozenset(held), frozenset(network for places in held.values() for network in places.values()))


def _dump() -> Held:
    there, held = netlink.Socket(netlink.ROUTE), Held()
    try:
        for it in map(parse, there.dump(rt.GETADDR, bytes(8))):
            if it is not None:
                _put(held, it, True)
        return held
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
