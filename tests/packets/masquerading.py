"""Who is masqueraded when: the packet table as one table for people. Pure.

Invariants: every cell is what all rows of it say, whatever protocol and family; docs/masquerading.md is kept in step by
a test.
"""

from itertools import product

from podwire.model.addresses import FAMILIES
from podwire.model.objects import Protocol
from tests.packets.plan import ONE, TWO
from tests.packets.questions import right
from tests.packets.table import CLIENTS, FRONTENDS, Kind, Place, Policy, Row, rows, source

_CLIENTS = {
    "same-node": "pod of A",
    "other-node": "pod of B",
    "node-itself": "node A",
    "other-node-itself": "node B",
    "outside": "outside",
}
_FRONTENDS = {
    Kind.POD_ADDRESS: "pod address",
    Kind.CLUSTER_IP: "ClusterIP",
    Kind.NODE_PORT: "NodePort of A",
    Kind.EXTERNAL_IP: "external IP",
    Kind.LOAD_BALANCER_IP: "load balancer's IP",
}
_PLACES = {
    Place.LOCAL: "pod of A",
    Place.REMOTE: "pod of B",
    Place.ITSELF: "the client itself",
    Place.HOST: "host network of A",
    Place.REMOTE_HOST: "host network of B",
}
NOTHING = "–"


def table() -> str:
    """Of Markdown. Frontends, and then policies, that make no difference to a client share a line."""
    head = ["client", "frontend", "policy", *(f"to: {name}" for name in _PLACES.values())]
    lines = [head, ["---"] * len(head)]
    for client in CLIENTS:
        lines.append([_CLIENTS[client], _FRONTENDS[Kind.POD_ADDRESS], NOTHING, *_cells(client, Kind.POD_ADDRESS)])
        for policies, kinds, cells in _grouped(client):
            frontends = ", ".join(_FRONTENDS[kind] for kind in kinds)
            lines.append([_CLIENTS[client], frontends, ", ".join(it.value for it in policies), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


Cells = tuple[str, ...]


def _grouped(client: str) -> list[tuple[list[Policy], tuple[Kind, ...], Cells]]:
    found: dict[tuple[tuple[Kind, ...], Cells], list[Policy]] = {}
    for policy in Policy:
        alike: dict[Cells, list[Kind]] = {}
        for kind in FRONTENDS:
            alike.setdefault(_cells(client, kind, policy), []).append(kind)
        for cells, kinds in alike.items():
            found.setdefault((tuple(kinds), cells), []).append(policy)
    return [(policies, kinds, cells) for (kinds, cells), policies in found.items()]


def _cells(client: str, kind: Kind, policy: Policy = Policy.CLUSTER) -> Cells:
    return tuple(_cell(client, kind, place, policy) for place in _PLACES)


def _cell(client: str, kind: Kind, place: Place, policy: Policy) -> str:
    asked = (Row(client, kind, *each, place, policy) for each in product(Protocol, FAMILIES))
    said = {_said(it) if it in _ROWS else NOTHING for it in asked}
    assert len(said) == 1, f"{client}, {kind}, {place}, {policy}: {said}"
    return said.pop()


_ROWS = frozenset(rows())


def _said(it: Row) -> str:
    """What becomes of the client's address."""
    _, _, client = right(it).partition(" ")
    named = {node.address(it.family): f"InternalIP of {letter}" for node, letter in ((ONE, "A"), (TWO, "B"))}
    named |= {node.own(it.family): f"first of {letter}'s block" for node, letter in ((ONE, "A"), (TWO, "B"))}
    return "*dropped*" if not client else "kept" if client == source(it.path) else f"**{named[client]}**"
