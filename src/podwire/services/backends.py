"""Which members of its slices answer for a Service on this node. Pure.

Invariants: a backend counts once: slices may repeat each other, and a member that is ready in one of them is ready.
Members on their way out serve where no other does (KEP-1669), for this node and for all of them apart; but not where
their address is also one's that stays: it has been given again. Hints count where every ready member has one and this
node, or else its zone, is among them (KEP-2433, KEP-3015).
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from podwire.model.network import Backend
from podwire.model.objects import Member, Node, Protocol, ServiceKey
from podwire.model.snapshot import Snapshot

ZONE = "topology.kubernetes.io/zone"

PortKey = tuple[str, Protocol, int]
"""Name and protocol of a ServicePort, and the size of an address."""


class LeftOut(Enum):
    """Why a member of a slice is no backend."""

    NOT_READY = "not ready"
    TERMINATING = "terminating, and others are ready"
    OTHER_FAMILY = "of another address family"
    NO_SUCH_PORT = "its slice has no port of that name and protocol"
    OTHER_NODE = "on another node, and the traffic policy is Local"
    OTHER_PLACE = "kept by its hints for clients of other nodes or zones"


class Pool(NamedTuple):
    """What can answer for one ServicePort in one family, sorted: `cluster` wherever it is, `local` on this node.
    `known`: somebody answers, here or elsewhere."""

    cluster: tuple[Backend, ...]
    local: tuple[Backend, ...]
    known: bool


NOBODY = Pool((), (), False)


def zone_of(node: Node) -> str:
    """ "" where it has none."""
    return next((value for name, value in node.labels if name == ZONE), "")


def pools(now: Snapshot, key: ServiceKey, *, local: bool = True) -> dict[PortKey, Pool]:
    """Of each ServicePort and size of addresses. Without `local` nobody asks who is on this node, and none is told."""
    zone = zone_of(now.node)
    return {name: _pool(some, now.local.name, zone, local) for name, some in _parts(now, key).items()}


def staying(now: Snapshot, key: ServiceKey, name: PortKey, *, local: bool) -> tuple[Backend, ...]:
    """Who may go on with the clients that it has, whoever new clients are sent to: all that serve, on their way out or
    not, whatever the hints say. `local`: on this node alone."""
    parts = _parts(now, key).get(name, [])
    serve = [(port, [m for m in members if m.serving and not m.terminating]) for port, members in parts]
    leaving = _some((port, [m for m in members if m.serving and m.terminating]) for port, members in parts)
    found = serve + _still_theirs(leaving, parts)
    return _backends(_on(now.local.name, found) if local else found)


Part = tuple[int, Sequence[Member]]
"""Of one slice: who listens on this port."""


def _parts(now: Snapshot, key: ServiceKey) -> dict[PortKey, list[Part]]:
    parts: dict[PortKey, list[Part]] = {}
    for slice_key in now.slices_of.get(key, ()):
        part = now.slices[slice_key]
        for size, members in _by_size(part.members):
            for port in part.ports:
                parts.setdefault((port.name, port.protocol, size), []).append((port.port, members))
    return parts


def _by_size(members: Sequence[Member]) -> list[tuple[int, Sequence[Member]]]:
    """By the size of their addresses, which is one in nearly all slices."""
    sizes = {len(member.address) for member in members}
    if len(sizes) == 1:
        return [(sizes.pop(), members)]
    return [(size, [member for member in members if len(member.address) == size]) for size in sorted(sizes)]


def _pool(parts: list[Part], node: str, zone: str, local: bool) -> Pool:
    ready = _some((port, [m for m in members if m.ready]) for port, members in parts)
    leaving: list[Part] = []
    if local or not ready:
        leaving = _some((port, [m for m in members if m.serving and m.terminating]) for port, members in parts)
    leaving = _still_theirs(leaving, parts)
    here = (_on(node, ready) or _on(node, leaving)) if local else []
    cluster = leaving
    if ready:
        place = _place([member for _, members in ready for member in members], node, zone)
        cluster = (
            ready if place == NOWHERE else [(port, [m for m in members if hinted(m, place)]) for port, members in ready]
        )
    return Pool(_backends(cluster), _backends(here), bool(ready or leaving))


def _still_theirs(leaving: list[Part], parts: list[Part]) -> list[Part]:
    """Those on their way out whose address has not been given to one that stays."""
    if not leaving:
        return leaving
    stay = frozenset(_backends([(port, [m for m in members if not m.terminating]) for port, members in parts]))
    return _some((port, [m for m in members if Backend(m.address, port) not in stay]) for port, members in leaving)


def _some(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if part[1]]


def _on(node: str, parts: list[Part]) -> list[Part]:
    return _some((port, [m for m in members if m.node == node]) for port, members in parts)


def _backends(parts: list[Part]) -> tuple[Backend, ...]:
    """Sorted, each once. A tuple: sets of ten are five times as large, and all are there at once in a resync."""
    return tuple(dict.fromkeys(sorted([Backend(m.address, port) for port, members in parts for m in members])))


Place = tuple[str, str]
"""The node, or else the zone, whose hints count."""
NOWHERE: Place = ("", "")
"""No hints count."""


def _place(ready: list[Member], node: str, zone: str) -> Place:
    if all(member.hints.nodes for member in ready) and any(node in member.hints.nodes for member in ready):
        return node, ""
    if zone and all(member.hints.zones for member in ready) and any(zone in member.hints.zones for member in ready):
        return "", zone
    return NOWHERE


def hinted(member: Member, place: Place) -> bool:
    """Whether its hints leave it to clients of this place."""
    node, zone = place
    return node in member.hints.nodes if node else zone in member.hints.zones if zone else True


def left_out(member: Member, *, local: bool, node: str) -> LeftOut:
    """Why a member of the right family and port does not serve, where it does not. `local`: only this node's may."""
    if not member.ready and not (member.serving and member.terminating):
        return LeftOut.NOT_READY
    if local and member.node != node:
        return LeftOut.OTHER_NODE
    return LeftOut.OTHER_PLACE if member.ready else LeftOut.TERMINATING
