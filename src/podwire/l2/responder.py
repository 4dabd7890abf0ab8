"""Answers for addresses on the node's interfaces, and tells the links where they are.

Invariants: an address is answered for wherever it is wanted and can be, and nowhere else, as of the last notice of the
kernel. Each (address, interface) that is new, or whose interface is back or has another MAC address, is announced at
once and again for five seconds (RFC 5227, RFC 4861): a switch or host may have missed the first. Where another host
claims an address of ours it is announced again, every ten seconds at most: a node that was cut off claims what it took
for its own, and ceases once it hears of us. For the same reason an interface that comes back rests for a moment.
"""

import time
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from selectors import EVENT_READ, BaseSelector

from msgspec import Struct

from podwire.dataplane import netlink
from podwire.dataplane.linux.rtnetlink import DELLINK, GETLINK, NEWLINK
from podwire.dataplane.messages import Notice
from podwire.l2.channel import Answered
from podwire.l2.interfaces import Interface, interface_of
from podwire.l2.wire import Wire
from podwire.model.addresses import Address

_LINKS = (1,)
AGAIN, TIMES = 1.1, 5
"""Seconds between announcements, and how many there are."""
_AT_ONCE = 200
"""Announcements of one pass: heartbeats and requests must not wait for a thousand of them."""
ALSO_SECONDS = 10.0
"""How long it is told that another host has claimed an address, and the time between two defences of it (RFC 5227,
section 1.1)."""
_DEFENCES = 3
SETTLE = 0.6
"""Seconds that an interface rests which comes back: two heartbeats, which say who lives."""


class _Since(Struct):
    began: float
    requests: int = 0
    also: bytes = b""
    claimed: float = 0.0
    defended: float = -ALSO_SECONDS


class Responder:
    """Of the namespace of the thread that makes it. Raises OSError."""

    def __init__(self, selector: BaseSelector) -> None:
        self._selector = selector
        self._wanted: Mapping[Address, tuple[str, ...]] = {}
        self._since: dict[Address, _Since] = {}
        self._wires: dict[int, Wire] = {}
        self._due: list[tuple[float, Address, int, int]] = []
        """Heap: when, what, on which interface, which time it is."""
        self._resting: dict[int, float] = {}
        """By interface: until when."""
        self._links = netlink.Listener(netlink.ROUTE, _LINKS)  # first, so that nothing is missed
        self._interfaces = _dump()
        self._report: tuple[dict[bytes, Answered], tuple[str, ...]] | None = None
        """The last one, None where there is news."""
        selector.register(self._links, EVENT_READ, self._hear)

    def want(self, answers: Mapping[Address, tuple[str, ...]]) -> None:
        self._wanted = answers
        now = time.time()
        self._since = {address: self._since.get(address) or _Since(now) for address in answers}
        self._adjust()

    def due(self) -> float | None:
        """When there is something to do (time.monotonic)."""
        return min((*self._resting.values(), *(self._due[0][:1] if self._due else ())), default=None)

    def work(self, now: float) -> None:
        """What is due."""
        rested = [index for index, until in self._resting.items() if until <= now]
        for index in rested:
            del self._resting[index]
        if rested:
            self._adjust()
        for _ in range(_AT_ONCE):
            if not self._due or self._due[0][0] > now:
                return
            _, address, index, count = heappop(self._due)
            wire = self._wires.get(index)
            if wire is None or address not in wire.served:
                continue
            wire.announce(address)
            if count < TIMES:
                heappush(self._due, (now + AGAIN, address, index, count + 1))

    def report(self) -> tuple[dict[bytes, Answered], tuple[str, ...]]:
        """Each address, and what is wrong with interfaces."""
        if self._report is None or any(it.also for it in self._report[0].values()):
            self._report = self._answers(), self._troubles()
        return self._report

    def mend(self) -> None:
        """What could not be done on an interface is tried again."""
        if self._troubles():
            self._adjust()

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._selector.unregister(self._links)
        self._links.close()

    def _troubles(self) -> tuple[str, ...]:
        return tuple(sorted(wire.trouble for wire in self._wires.values() if wire.trouble))

    def _answers(self) -> dict[bytes, Answered]:
        now, by_name = time.time(), {it.name: it for it in self._interfaces.values()}
        where: dict[Address, list[str]] = {}
        for wire in self._wires.values():
            for address in wire.served:
                where.setdefault(address, []).append(wire.interface.name)
        found = {}
        for address, names in sorted(self._wanted.items()):
            it = self._since[address]
            also = it.also.hex(":") if now - it.claimed < ALSO_SECONDS else ""
            unable = tuple(_unable(name, by_name.get(name)) for name in names if name not in where.get(address, ()))
            found[bytes(address)] = Answered(tuple(sorted(where.get(address, ()))), it.began, it.requests, also, unable)
        return found

    def _hear(self) -> None:
        notices = self._links.drain()
        found = _dump() if notices is None else _heard(self._interfaces, notices)
        if found != self._interfaces:
            for index, interface in found.items():
                before = self._interfaces.get(index)
                if not interface.unable and (before is None or before.unable):
                    self._resting[index] = time.monotonic() + SETTLE
            self._interfaces = found
            self._adjust()

    def _adjust(self) -> None:
        able = {it.index: it for it in self._interfaces.values() if not it.unable and it.index not in self._resting}
        for index, wire in list(self._wires.items()):
            if able.get(index) != wire.interface:
                self._wires.pop(index).close()
        now = time.monotonic()
        everywhere = frozenset(address for address, names in self._wanted.items() if not names)
        for index, interface in sorted(able.items()):
            named = (address for address, names in self._wanted.items() if interface.name in names)
            addresses = everywhere.union(named)
            if index not in self._wires:
                if not addresses:
                    continue
                self._wires[index] = Wire(interface, self._selector, self._heed)
            wire = self._wires[index]
            before = wire.served
            wire.serve(addresses)
            for address in sorted(addresses - before):
                heappush(self._due, (now, address, index, 1))
        self._report = None

    def _heed(self, index: int, address: Address, claimed_by: bytes | None) -> None:
        it = self._since[address]
        if claimed_by is None:
            it.requests += 1
        elif all(claimed_by != other.interface.mac for other in self._wires.values()):  # two of ours on one link
            it.also, it.claimed, now = claimed_by, time.time(), time.monotonic()
            if now >= it.defended + ALSO_SECONDS:
                it.defended = now
                heappush(self._due, (now + AGAIN, address, index, TIMES + 1 - _DEFENCES))
        self._report = None


def _unable(name: str, interface: Interface | None) -> str:
    return f"interface {name}: {interface.unable or 'not yet' if interface else 'not on this node'}"


def _heard(was: Mapping[int, Interface], notices: Iterable[Notice]) -> dict[int, Interface]:
    found = dict(was)
    for kind, body, _ in notices:
        interface = interface_of(body) if kind in (NEWLINK, DELLINK) else None
        if interface is not None and kind == NEWLINK:
            found[interface.index] = interface
        elif interface is not None:
            found.pop(interface.index, None)
    return found


def _dump() -> dict[int, Interface]:
    there = netlink.Socket(netlink.ROUTE)
    try:
        return _heard({}, (Notice(NEWLINK, body, None) for body in there.dump(GETLINK, bytes(16))))
    finally:
        there.close()
