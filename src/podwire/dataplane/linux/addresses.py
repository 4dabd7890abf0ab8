"""The node's own addresses, as its kernel has them: what may be the source of a route, which networks it is in, and
how large a packet its interface takes.

Invariants: an address counts once packets may bear it: of global scope, no duplicate and no longer looked for as one
(RFC 4862). Ours, of the node's blocks, do not count. What the kernel tells apart is told apart here: an interface may
have one IPv4 address in several networks at once, an IPv6 address only once.
"""

import select
from collections.abc import Iterable, Mapping
from itertools import pairwise
from struct import unpack_from
from types import MappingProxyType
from typing import NamedTuple

from podwire.dataplane import netlink
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import Notice, attrs
from podwire.ipam.blocks import FIRST_INDEX
from podwire.model.addresses import IPV4, IPV6, Address, Prefix, prefix_around

_LINKS, _ADDRESSES = (1,), (5, 9)
"""Links; IPv4 and IPv6 addresses (rtnetlink(7))."""
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _IFA_PROTO = 1, 2, 8, 11
_TENTATIVE, _DUPLICATE = 0x40, 0x08


class State(NamedTuple):
    """The node's addresses, and the networks in which it has them: a tunnel's other end is a network of one. `mtus`: by
    address the least MTU of the interfaces that have it, in bytes."""

    addresses: frozenset[Address]
    networks: frozenset[Prefix]
    mtus: frozenset[tuple[Address, int]] = frozenset()


Place = tuple[int, Prefix | None]
Held = dict[Address, dict[Place, Prefix]]
"""By address and place: the network."""
MTUs = Mapping[int, int]
"""By interface, in bytes."""
NO_MTUS: MTUs = MappingProxyType({})


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
        # First, so that nothing is missed. Of links each by itself: pods' are many, and to miss one says nothing of
        # addresses.
        self._links = netlink.Listener(netlink.ROUTE, _LINKS)
        self._told = netlink.Listener(netlink.ROUTE, _ADDRESSES)
        self._either = select.epoll()
        for listener in (self._links, self._told):
            self._either.register(listener.fileno(), select.EPOLLIN)
        self._held, self._mtus = _dump(), _measured()

    @property
    def now(self) -> State:
        """As last heard."""
        return _state(self._held, self._mtus)

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self._either.fileno()

    def states(self) -> list[State]:
        """As `heard`, of what was told since it was last asked. Raises OSError."""
        was, links = self._mtus, self._links.drain()
        self._mtus = _measured() if links is None else measured(was, links)
        notices = self._told.drain()
        return self.anew() if notices is None else heard(self._held, notices, was, self._mtus)

    def anew(self) -> list[State]:
        """Where something was missed: each of them may have been away. Raises OSError."""
        self._held, self._mtus = _dump(), _measured()
        return [State(frozenset(), self.now.networks), self.now]

    def close(self) -> None:
        self._either.close()
        self._links.close()
        self._told.close()


def heard(held: Held, notices: Iterable[Notice], was: MTUs = NO_MTUS, mtus: MTUs = NO_MTUS) -> list[State]:
    """What they have come to, which is put into `held`; and before that, where one of them was away meanwhile, those
    that were there all the while. However many notices, no more than these two. `was`, `mtus`: before and after."""
    before, away = _state(held, was), set[Address]()
    for notice in notices:
        it = parse(notice.body) if notice.kind in (rt.NEWADDR, rt.NEWADDR + 1) else None
        if it is not None:
            _put(held, it, notice.kind == rt.NEWADDR)
            if it.address not in held:
                away.add(it.address)
    now, left = _state(held, mtus), before.addresses - away
    stayed = State(left, now.networks, frozenset(it for it in now.mtus if it[0] in left))
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


def measured(was: MTUs, links: Iterable[Notice]) -> MTUs:
    found = dict(was)
    for kind, body, _ in links:
        index = unpack_from("=i", body, 4)[0]
        if body[0] != 0 or index >= FIRST_INDEX:  # what a bridge says of its ports; a link of ours
            continue
        if kind == rt.DELLINK:
            found.pop(index, None)
        elif rt.IFLA_MTU in (seen := attrs(body, 16)):
            found[index] = unpack_from("=I", seen[rt.IFLA_MTU])[0]
    return found


def _state(held: Held, mtus: MTUs) -> State:
    known = {address: [mtus[index] for index, _ in places if index in mtus] for address, places in held.items()}
    return State(
        frozenset(held),
        frozenset(network for places in held.values() for network in places.values()),
        frozenset((address, min(those)) for address, those in known.items() if those),
    )


def _measured() -> MTUs:
    there = netlink.Socket(netlink.ROUTE)
    try:
        return measured(NO_MTUS, (Notice(rt.NEWLINK, body, None) for body in there.dump(rt.GETLINK, bytes(16))))
    finally:
        there.close()


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
