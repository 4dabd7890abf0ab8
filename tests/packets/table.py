"""The packet table: who asks whom by which way, who has to answer, and which client the answerer has to see. Pure.

Invariants: rows are a product without the impossible; what is right of a row follows from the rules below, never from
a data plane. The node whose frontend is asked, by NodePort, external IP or the load balancer's, is always node one.
This file holds the Services with one backend and rules 1 to 4, `refusals.py` rule 5, `terms.py` rules 6 to 10.

The rules, in words:
1.  A Service's packets are translated by one node: a NodePort's by the node whose address was asked; those of all its
    other addresses by the node on which the client is, for they are known to every node. Of a client outside it is
    the node to which its router sends them. Its answers have to come back by that node.
2.  So the client's address is hidden (masqueraded) only where the answer would not come back by itself: where neither
    the client nor the backend is on the translating node, and where a pod reaches itself, whose answer would never
    leave it. A machine beside the cluster knows no way to a pod, so what a pod sends there is hidden too. Wherever else
    it stays what it was.
3.  The address in its place is the translating node's: the first address of its block where the backend is on that
    node, its address on the link to the others where not.
4.  What the node itself sends has the address by which Kubernetes knows it: so a datagram server of its host network
    answers with the address that was asked, and others meet one address of a node, whatever networks it is in.
5.  A frontend without a backend is refused at once. So is what no Service has of an address that is only Services', of
    the ClusterIPs' range, an external IP or a load balancer's, by the node that would have translated it: passed on,
    the packet would come back from the router that sends this address here, until its hops are used up. At a node's
    own address the node itself answers for such a port.
6.  A Service whose policy is Local is answered by backends on the translating node only. internalTrafficPolicy is the
    ClusterIP's, whoever asks. externalTrafficPolicy is that of all other frontends, and only for who comes from
    outside: pods of any node, and what the translating node itself sends, find all backends. Another node that asks a
    NodePort comes from outside (the API: clients that ask a NodePort may have to heed the policy in picking a node).
7.  Of the backends that policy leaves, those that are ready answer, published ones among them; where none is, those
    that are terminating and still serve (KEP-1669).
8.  Where every ready backend has a hint for nodes, and some for the translating one, those answer; else the same of
    zones (KEP-3015, KEP-2433). A Local policy knows no hints.
9.  Where a Local policy leaves no backend and other nodes have some, the packet vanishes: the client is to come by
    another way. Where nobody answers anywhere it is refused as in rule 5.
10. loadBalancerSourceRanges are for the load balancer's addresses only. In a family that has some, packets of any other
    client vanish, before all else. An address that the load balancer keeps to itself (ipMode Proxy, KEP-1860) is no
    frontend, nor is the node port of a Service that has none.
"""

from enum import Enum
from itertools import product
from typing import NamedTuple

from podwire.model.addresses import FAMILIES, Family
from podwire.model.objects import Protocol
from tests.packets.plan import (
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
    Outside,
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
    LOAD_BALANCER_IP = "load-balancer-IP"


FRONTENDS = tuple(it for it in Kind if it is not Kind.POD_ADDRESS)
LED_HERE = (Kind.EXTERNAL_IP, Kind.LOAD_BALANCER_IP)
"""Addresses of no machine, for which a router has a way to a node."""


class Policy(Enum):
    """Both of a Service's traffic policies."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


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
    policy: Policy = Policy.CLUSTER

    @property
    def id(self) -> str:
        named = f"{self.client}-{self.kind.value}-{self.protocol.name}-{self.family}-{self.place.value}"
        return named if self.policy is Policy.CLUSTER else f"{named}-{self.policy.value}"

    @property
    def path(self) -> Path:
        asker = CLIENTS[self.client]
        backend = asker if self.place is Place.ITSELF else _BACKENDS[self.place]
        return Path(asker, self.kind, self.family, backend)

    @property
    def service(self) -> Exposed:
        return service_of(self.path.backend, self.policy is Policy.LOCAL)


def rows() -> list[Row]:
    """Only pods are asked to reach themselves: for the nodes that is their host network, and outside is no backend."""
    every = (Row(*each) for each in product(CLIENTS, Kind, Protocol, FAMILIES, Place, Policy))
    return [
        row
        for row in every
        if (row.place is not Place.ITSELF or isinstance(CLIENTS[row.client], Pod))
        and (row.kind is not Kind.POD_ADDRESS or row.policy is Policy.CLUSTER)
    ]


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
        case Kind.LOAD_BALANCER_IP:
            return service.balancer_ip(family), service.port
        case Kind.NODE_PORT:
            return entry.address(family), service.node_port
    raise ValueError(f"{kind.value} is no frontend of a Service")


# --- what is right -----------------------------------------------------------------------------


def expected(path: Path) -> str:
    """`NAME CLIENT`: who answers, and the address of the client that it sees."""
    return f"{path.backend.name} {seen(path)}"


def seen(path: Path) -> str:
    """The address that the backend sees as its client's."""
    node = hidden_by(path)
    return source(path) if node is None else masquerade(path, node)


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
    if isinstance(path.asker, Pod) and (path.asker == path.backend or isinstance(path.backend, Outside)):
        return node
    return None if node is None or is_on(path.asker, node) or is_on(path.backend, node) else node


def masquerade(path: Path, node: Node) -> str:
    """The address that this node puts in place of the client's (rule 3)."""
    return node.own(path.family) if is_on(path.backend, node) else node.address(path.family)


def source(path: Path) -> str:
    """The address that the client's socket takes (rule 4)."""
    return path.asker.address(path.family)
