"""The packet table: who asks whom by which way, who has to answer, and which client the answerer has to see. Pure.

Invariants: rows are a product without the impossible; what is right of a row follows from the rules below, never from
a data plane. The node whose frontend is asked, by NodePort or external IP, is always node one.

The rules, in words:
1.  A Service's packets are translated by one node: a NodePort's by the node whose address was asked; a ClusterIP's and
    an external IP's by the node on which the client is, for both are known to every node. Of a client outside it is
    the node to which its router sends them. Its answers have to come back by that node.
2.  So the client's address is hidden (masqueraded) only where the answer would not come back by itself: where neither
    the client nor the backend is on the translating node, and where a pod reaches itself, whose answer would never
    leave it. Wherever else it stays what it was.
3.  The address in its place is the translating node's: the first address of its block where the backend is on that
    node, its address on the link to the others where not.
4.  What the node itself sends has the address by which Kubernetes knows it: so a datagram server of its host network
    answers with the address that was asked, and others meet one address of a node, whatever networks it is in.
5.  A frontend without a backend is refused at once. So is what no Service has of an address that is only Services', of
    the ClusterIPs' range or an external IP, by the node that would have translated it: passed on, the packet would
    come back from the router that sends this address here, until its hops are used up. At a node's own address the
    node itself answers for such a port.
"""

from enum import Enum
from itertools import product
from typing import NamedTuple

from podwire.model.addresses import FAMILIES, IPV4, Family
from podwire.model.objects import Protocol
from tests.packets.plan import (
    EMPTY,
    ONE,
    ONE_BACKEND,
    ONE_CLIENT,
    OUTSIDE,
    TARGET_PORT,
    TWO,
    TWO_BACKEND,
    TWO_CLIENT,
    Exposed,
    Node,
    Pod,
    Station,
    home,
    is_on,
    service_of,
)


class Kind(Enum):
    """Of a frontend."""

    POD_ADDRESS = "pod-address"
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IP = "external-IP"


class Place(Enum):
    """Of the only backend."""

    LOCAL = "local"
    REMOTE = "remote"
    ITSELF = "itself"
    HOST = "host-network"
    REMOTE_HOST = "remote-host-network"


CLIENTS: dict[str, Station] = {
    "same-node": ONE_CLIENT,
    "other-node": TWO_CLIENT,
    "node-itself": ONE,
    "other-node-itself": TWO,
    "outside": OUTSIDE,
}
_BACKENDS: dict[Place, Station] = {
    Place.LOCAL: ONE_BACKEND,
    Place.REMOTE: TWO_BACKEND,
    Place.HOST: ONE,
    Place.REMOTE_HOST: TWO,
}


class Path(NamedTuple):
    """A question's way. `entry`: the node whose NodePort is asked, and to which a client outside is sent."""

    asker: Station
    kind: Kind
    family: Family
    backend: Station
    entry: Node = ONE


class Row(NamedTuple):
    client: str
    kind: Kind
    protocol: Protocol
    family: Family
    place: Place

    @property
    def id(self) -> str:
        return f"{self.client}-{self.kind.value}-{self.protocol.name}-{self.family}-{self.place.value}"

    @property
    def path(self) -> Path:
        asker = CLIENTS[self.client]
        backend = asker if self.place is Place.ITSELF else _BACKENDS[self.place]
        return Path(asker, self.kind, self.family, backend)


def rows() -> list[Row]:
    """Only pods are asked to reach themselves: for the nodes that is their host network, and outside is no backend."""
    every = (Row(*each) for each in product(CLIENTS, Kind, Protocol, FAMILIES, Place))
    return [row for row in every if row.place is not Place.ITSELF or isinstance(CLIENTS[row.client], Pod)]


def target(path: Path, service: Exposed | None = None) -> tuple[str, int]:
    """The address and port that the client asks. `service`: other than the one of the table with this backend."""
    if path.kind is Kind.POD_ADDRESS:
        return path.backend.address(path.family), TARGET_PORT
    return frontend(service or service_of(path.backend), path.kind, path.family, path.entry)


def frontend(service: Exposed, kind: Kind, family: Family, entry: Node = ONE) -> tuple[str, int]:
    match kind:
        case Kind.CLUSTER_IP:
            return service.cluster_ip(family), service.port
        case Kind.EXTERNAL_IP:
            return service.external_ip(family), service.port
        case Kind.NODE_PORT:
            return entry.address(family), service.node_port
    raise ValueError(f"{kind.value} is no frontend of a Service")


# --- what is right -----------------------------------------------------------------------------


def expected(path: Path) -> str:
    """`NAME CLIENT`: who answers, and the address of the client that it sees."""
    node = hidden_by(path)
    return f"{path.backend.name} {source(path) if node is None else masquerade(path, node)}"


def translator(path: Path) -> Node | None:
    """The node that turns the frontend into the backend (rule 1); None where the backend itself is asked."""
    match path.kind:
        case Kind.POD_ADDRESS:
            return None
        case Kind.NODE_PORT:
            return path.entry
    return home(path.asker) or path.entry


def hidden_by(path: Path) -> Node | None:
    """The node that has to put an address of its own in place of the client's (rule 2)."""
    node = translator(path)
    if path.asker == path.backend and isinstance(path.asker, Pod):
        return node
    return None if node is None or is_on(path.asker, node) or is_on(path.backend, node) else node


def masquerade(path: Path, node: Node) -> str:
    """The address that this node puts in place of the client's (rule 3)."""
    return node.own(path.family) if is_on(path.backend, node) else node.address(path.family)


def source(path: Path) -> str:
    """The address that the client's socket takes (rule 4)."""
    return path.asker.address(path.family)


# --- what is refused ---------------------------------------------------------------------------

UNKNOWN_PORT = 81
NOBODY = Exposed("nobody", 200)
"""A Service that isn't there."""


class Why(Enum):
    """There is no backend, no such port of a Service, or no Service with such an address."""

    NO_BACKEND = "no-backend"
    UNKNOWN_PORT = "unknown-port"
    UNKNOWN_ADDRESS = "unknown-address"


class Refusal(NamedTuple):
    client: str
    kind: Kind
    protocol: Protocol
    family: Family
    why: Why

    @property
    def id(self) -> str:
        return f"{self.client}-{self.kind.value}-{self.protocol.name}-{self.family}-{self.why.value}"

    @property
    def target(self) -> tuple[str, int]:
        if self.why is not Why.UNKNOWN_PORT:
            return frontend(EMPTY if self.why is Why.NO_BACKEND else NOBODY, self.kind, self.family)
        address, _ = frontend(service_of(ONE_BACKEND), self.kind, self.family)
        return address, UNKNOWN_PORT


def refusals() -> list[Refusal]:
    """Pod addresses are the pods' own to refuse. An address that no Service has is a ClusterIP by its range only.
    What a node sends to an external IP, and the router sends back, comes as from the node itself: to that the kernel
    answers no ICMP."""
    kinds = (Kind.CLUSTER_IP, Kind.NODE_PORT, Kind.EXTERNAL_IP)
    every = (Refusal(*each) for each in product(CLIENTS, kinds, Protocol, FAMILIES, Why))
    return [
        it
        for it in every
        if (it.why is not Why.UNKNOWN_ADDRESS or it.kind is Kind.CLUSTER_IP)
        and not (
            isinstance(CLIENTS[it.client], Node)
            and (it.kind, it.why, it.family) == (Kind.EXTERNAL_IP, Why.UNKNOWN_PORT, IPV4)
            and it.protocol is not Protocol.TCP
        )
    ]


def refused(asker: Station, kind: Kind, protocol: Protocol, why: Why) -> str:
    """How a socket tells it: TCP is reset, the rest gets an ICMP error. A datagram that its own node refuses to send is
    answered by EPERM; to a port that nobody has at its own address or at an external IP it is sent, and comes back."""
    sent = kind is Kind.NODE_PORT and (asker != ONE or why is Why.UNKNOWN_PORT)
    sent = sent or (kind is Kind.EXTERNAL_IP and why is Why.UNKNOWN_PORT)
    at_once = isinstance(asker, Node) and not sent and protocol is not Protocol.TCP
    return "PermissionError" if at_once else "ConnectionRefusedError"


def right(it: Row | Refusal) -> str:
    """The only right answer."""
    if isinstance(it, Row):
        return expected(it.path)
    return refused(CLIENTS[it.client], it.kind, it.protocol, it.why)
