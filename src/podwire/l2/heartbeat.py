"""Heartbeats between the nodes: sockets around `beats.py` and `liveness.py`.

Invariants: one datagram each interval to each other node, from our InternalIP to its, of the first family that both
have: a node's name counts only from an address that its object has. What is no heartbeat of the cluster's is counted
and changes nothing. An address that the node hasn't yet is no failure: it is spoken from once it is there.
"""

import socket
from collections import Counter
from collections.abc import Mapping
from selectors import EVENT_READ, BaseSelector

from podwire.l2 import beats
from podwire.l2.beats import Beat, Ignored
from podwire.l2.liveness import Peers
from podwire.model.addresses import IPV6, Address, family_of, parse_address, show_address, show_host_port
from podwire.model.announcements import Liveness

_IP_FREEBIND, _IPV6_FREEBIND = 15, 78
_MOST = 500
"""Datagrams of one look."""
_RECEIVE = 1 << 20
"""Bytes that may wait in a socket: what came while we were held up says who lives."""


class Heartbeats:
    """`incarnation`: a number that rises from one process of the node to the next."""

    def __init__(self, node: str, port: int, key: bytes, incarnation: int, selector: BaseSelector) -> None:
        self.ready = False
        self.ignored: Counter[str] = Counter()
        self._node, self._port, self._key, self._incarnation = node, port, key, incarnation
        self._selector = selector
        self._sequence = 0
        self._peers = Peers(node)
        self._sockets: dict[Address, socket.socket] = {}
        self._ways: dict[str, tuple[Address, str]] = {}
        """By node: from which address, to which."""
        self._troubles: dict[Address, str] = {}
        self._unreachable: tuple[str, ...] = ()
        self._deaf: tuple[str, ...] = ()

    @property
    def troubles(self) -> tuple[str, ...]:
        return (*(text for _, text in sorted(self._troubles.items())), *self._unreachable, *self._deaf)

    def know(self, addresses: Mapping[str, tuple[Address, ...]], known: Mapping[str, Liveness], now: float) -> None:
        """The cluster's nodes, this one included."""
        own = addresses.get(self._node, ())
        others = {name: those for name, those in addresses.items() if name != self._node}
        for address in self._sockets.keys() - set(own):
            self._close(address)
        self._troubles = {}
        for address in own:
            if address not in self._sockets:
                self._open(address)
        ways = {name: _way(own, those) for name, those in sorted(others.items())}
        self._ways = {name: way for name, way in ways.items() if way is not None}
        self._unreachable = tuple(
            f"node {name}: has no InternalIP of a family in which this node has one: no heartbeats go there"
            for name, way in ways.items()
            if way is None
        )
        self._peers.know(others, known, now)

    def mend(self) -> None:
        """What could not be opened is tried again."""
        for address in list(self._troubles):
            self._troubles.pop(address)
            self._open(address)

    def send(self, now: float) -> None:
        self._sequence += 1
        beat = Beat(self._node, self._incarnation, self._sequence, self.ready, self._peers.missed(now))
        datagram = beats.pack(beat, self._key)
        for source, to in self._ways.values():
            by = self._sockets.get(source)
            try:
                if by is not None:
                    by.sendto(datagram, (to, self._port))
            except OSError:
                continue  # no route or no address as yet, or a refusal that a dead node's host has sent

    def hear(self, now: float) -> None:
        """All that has come."""
        for by in self._sockets.values():
            for _ in range(_MOST):
                try:
                    data, source = by.recvfrom(2 * beats.MOST)
                except BlockingIOError:
                    break
                except OSError:  # what became of something sent
                    continue
                try:
                    beat = beats.parse(data, self._key)
                    self._peers.hear(beat, parse_address(source[0].partition("%")[0]), now)
                except Ignored as why:
                    self.ignored[str(why)] += 1

    def judge(self, now: float) -> dict[str, Liveness]:
        self._deaf = tuple(
            f"node {name}: is heard and does not hear this one, so that both answer for the same addresses: expected"
            f" that UDP port {self._port} is open there"
            for name in self._peers.deaf(now)
        )
        return self._peers.judge(now)

    def close(self) -> None:
        for address in list(self._sockets):
            self._close(address)

    def _open(self, address: Address) -> None:
        family = family_of(address)
        made = socket.socket(family.number, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if family is IPV6:
                made.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
            else:
                made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE)
            made.bind((show_address(address), self._port))
        except OSError as error:
            made.close()
            self._troubles[address] = f"heartbeats at UDP {show_host_port(address, self._port)}: {error.strerror}"
            return
        self._sockets[address] = made
        self._selector.register(made, EVENT_READ, None)

    def _close(self, address: Address) -> None:
        held = self._sockets.pop(address)
        self._selector.unregister(held)
        held.close()


def _way(own: tuple[Address, ...], others: tuple[Address, ...]) -> tuple[Address, str] | None:
    """The first of the node's addresses that has a family of ours, from our first of it."""
    for to in others:
        for source in own:
            if len(source) == len(to):
                return source, show_address(to)
    return None
