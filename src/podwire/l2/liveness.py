"""Which nodes live, by what is heard of them. Pure: time is an argument, in seconds.

Invariants: a node's silence counts only while we were awake to hear it. Our own delay, of a busy or a halted machine,
makes nobody dead. A node of which nothing was ever heard is dead where a node that lives says so; else nothing is known
of it.
"""

from collections.abc import Mapping

from msgspec import Struct

from podwire.l2.beats import INTERVAL, Beat, Ignored
from podwire.model.addresses import Address
from podwire.model.announcements import Liveness

MISSED = 3
"""So many heartbeats in a row make a node dead."""
SILENCE = MISSED * INTERVAL + INTERVAL / 3
"""Seconds of it; a third of an interval is what the last of them may be late."""
TICK = 0.1
"""Seconds from one look to the next."""


class Awake:
    """A clock that stands still while its owner does not look at it for long."""

    def __init__(self, now: float) -> None:
        self.seconds, self._last = 0.0, now
        self.late = 0.0
        """How long the longest pause was, beyond what it should be at most."""

    def look(self, now: float) -> float:
        passed, self._last = now - self._last, now
        self.seconds += min(passed, 2 * TICK)
        self.late = max(self.late, passed - TICK)
        return self.seconds


class _Peer(Struct):
    addresses: frozenset[Address]
    heard: float | None = None
    """When, of the clock that is awake."""
    last: tuple[int, int] = (0, 0)
    """Incarnation and sequence."""
    ready: bool = False
    dead: tuple[str, ...] = ()
    deaf: float | None = None
    """Since when it says that it hears us no more, of the same clock."""


class Peers:
    """The other nodes. `own`: the name of this one."""

    def __init__(self, own: str = "") -> None:
        self._own = own
        self._peers: dict[str, _Peer] = {}

    def know(self, addresses: Mapping[str, tuple[Address, ...]], known: Mapping[str, Liveness], now: float) -> None:
        """These nodes and no other. `known`: what an earlier process has found of those that are new here."""
        found = {}
        for name, those in addresses.items():
            peer = self._peers.get(name)
            if peer is None:
                was = known.get(name, Liveness.UNKNOWN)
                silent = 2 * SILENCE if was is Liveness.DEAD else 0
                heard = None if was is Liveness.UNKNOWN else now - silent
                peer = _Peer(frozenset(), heard, ready=was is Liveness.ALIVE)
            peer.addresses = frozenset(those)
            found[name] = peer
        self._peers = found

    def hear(self, beat: Beat, source: Address, now: float) -> None:
        """Raises Ignored."""
        peer = self._peers.get(beat.node)
        if peer is None:
            raise Ignored("of no node of the cluster")
        if source not in peer.addresses:
            raise Ignored("from an address that is not the node's")
        numbers = beat.incarnation, beat.sequence
        # A clock that was set back gives a lower incarnation: it is heard once the node would be dead.
        if numbers <= peer.last and not self._silent(peer, now):
            raise Ignored("an older one")
        peer.heard, peer.last, peer.ready, peer.dead = now, numbers, beat.ready, beat.dead
        if self._own not in beat.dead:
            peer.deaf = None
        elif peer.deaf is None:
            peer.deaf = now

    def judge(self, now: float) -> dict[str, Liveness]:
        """Of every node, sorted by name."""
        said = {name for peer in self._peers.values() if not self._silent(peer, now) for name in peer.dead}
        return {name: self._judged(self._peers[name], name in said, now) for name in sorted(self._peers)}

    def _judged(self, peer: _Peer, said_dead: bool, now: float) -> Liveness:
        if peer.heard is None:
            return Liveness.DEAD if said_dead else Liveness.UNKNOWN
        if self._silent(peer, now):
            return Liveness.DEAD
        return Liveness.ALIVE if peer.ready else Liveness.UNREADY

    def missed(self, now: float) -> tuple[str, ...]:
        """Whom we have heard ourselves, and hear no more; sorted."""
        return tuple(
            name for name, peer in sorted(self._peers.items()) if peer.heard is not None and self._silent(peer, now)
        )

    def deaf(self, now: float) -> tuple[str, ...]:
        """Whom we hear, and who have not heard us for long, as they say; sorted."""
        return tuple(
            name
            for name, peer in sorted(self._peers.items())
            if peer.deaf is not None and now - peer.deaf > SILENCE and not self._silent(peer, now)
        )

    @staticmethod
    def _silent(peer: _Peer, now: float) -> bool:
        return peer.heard is None or now - peer.heard > SILENCE
