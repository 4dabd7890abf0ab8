"""Who is who in the cluster of the packet table: names and addresses. Pure.

Invariants: a node's number says all of its addresses, and a pod's number its address in the node's block, so whatever
wires a pod is told beforehand which addresses it has to have.
"""

from enum import Enum
from typing import NamedTuple

from podwire.ipam.blocks import own_address
from podwire.model.addresses import IPV4, IPV6, Family, Prefix, parse_prefix, show_address

FABRIC = {IPV4: parse_prefix("192.0.2.0/24"), IPV6: parse_prefix("fd00:2::/64")}
"""The link that nodes and the client outside share."""
POD_RANGE = {IPV4: parse_prefix("10.1.0.0/16"), IPV6: parse_prefix("fd01::/48")}
SERVICE_RANGE = {IPV4: parse_prefix("10.96.0.0/16"), IPV6: parse_prefix("fd00:96::/112")}
EXTERNAL_RANGE = {IPV4: parse_prefix("198.51.100.0/24"), IPV6: parse_prefix("fd00:100::/112")}
BALANCER_RANGE = {IPV4: parse_prefix("203.0.113.0/24"), IPV6: parse_prefix("fd00:203::/112")}
_BLOCK_LENGTH = {IPV4: 24, IPV6: 64}
_ROUTER = 254
TARGET_PORT, OTHER_TARGET_PORT = 8080, 8081


class Node(NamedTuple):
    """`moved`: its address has changed to another of the same link."""

    name: str
    number: int
    moved: bool = False

    def address(self, family: Family) -> str:
        """On the fabric."""
        return nth(FABRIC[family], self.number + (100 if self.moved else 0))

    def block(self, family: Family) -> Prefix:
        bits = family.bits - _BLOCK_LENGTH[family]
        return Prefix(POD_RANGE[family].nth(self.number << bits), _BLOCK_LENGTH[family])

    def own(self, family: Family) -> str:
        """The first address of its block, which the node keeps for itself."""
        own = own_address(self.block(family), ())
        assert own is not None
        return show_address(own)

    @property
    def zone(self) -> str:
        """It has one to itself."""
        return f"zone-{self.name}"


class Pod(NamedTuple):
    name: str
    node: Node
    number: int

    def address(self, family: Family) -> str:
        return nth(self.node.block(family), self.number)


class Outside(NamedTuple):
    """A machine beside the cluster."""

    name: str
    number: int

    def address(self, family: Family) -> str:
        return nth(FABRIC[family], self.number)


Station = Node | Pod | Outside

ONE, TWO, THREE = Node("one", 1), Node("two", 2), Node("three", 3)
ONE_CLIENT, ONE_BACKEND = Pod("one-client", ONE, 2), Pod("one-backend", ONE, 3)
TWO_CLIENT, TWO_BACKEND = Pod("two-client", TWO, 2), Pod("two-backend", TWO, 3)
PODS = (ONE_CLIENT, ONE_BACKEND, TWO_CLIENT, TWO_BACKEND)
"""Of each node in the order of their numbers, as an agent gives them addresses."""
OUTSIDE, PROXY = Outside("outside", 200), Outside("proxy", 201)
"""A client, and a load balancer that takes connections itself (ipMode Proxy)."""


def nth(block: Prefix, number: int) -> str:
    return show_address(block.nth(number))


def router(family: Family) -> str:
    """The nodes' default gateway. It knows the way to the external IPs, and no pod."""
    return nth(FABRIC[family], _ROUTER)


def home(station: Station) -> Node | None:
    """The node on which it is; a node is on itself."""
    match station:
        case Node():
            return station
        case Pod():
            return station.node
    return None


def is_on(station: Station, node: Node) -> bool:
    """Whatever address the node has."""
    found = home(station)
    return found is not None and found.number == node.number


class State(Enum):
    """Of a member of a slice: is it ready, does it serve, is it terminating (KEP-1669)?"""

    READY = True, True, False
    LEAVING = False, True, True
    GONE = False, False, True
    UNREADY = False, False, False
    PUBLISHED = True, False, False
    """The Service publishes addresses that are not ready (publishNotReadyAddresses)."""


class Backend(NamedTuple):
    """`for_nodes`, `for_zones`: its hints."""

    station: Station
    state: State = State.READY
    port: int = TARGET_PORT
    for_nodes: tuple[str, ...] = ()
    for_zones: tuple[str, ...] = ()


class Exposed(NamedTuple):
    """A Service by its number: its addresses, its backends, and what else it says.

    `external_local`, `internal_local`: its traffic policies. `sources`: loadBalancerSourceRanges. `node_ports`: whether
    it has any (allocateLoadBalancerNodePorts). `proxied`: its load balancer has the address itself (ipMode Proxy).
    """

    name: str
    number: int
    backends: tuple[Backend, ...] = ()
    external_local: bool = False
    internal_local: bool = False
    sources: tuple[str, ...] = ()
    node_ports: bool = True
    proxied: bool = False

    def cluster_ip(self, family: Family) -> str:
        return nth(SERVICE_RANGE[family], self.number)

    def external_ip(self, family: Family) -> str:
        return nth(EXTERNAL_RANGE[family], self.number)

    def balancer_ip(self, family: Family) -> str:
        """The address that its load balancer has given it."""
        return PROXY.address(family) if self.proxied else nth(BALANCER_RANGE[family], self.number)

    @property
    def port(self) -> int:
        """Where nobody translates it the load balancer itself answers."""
        return TARGET_PORT if self.proxied else 80

    @property
    def node_port(self) -> int:
        return 30000 + self.number

    @property
    def health_port(self) -> int:
        return 31000 + self.number

    def to(self, *stations: Station) -> "Exposed":
        """With other backends."""
        return self._replace(backends=tuple(Backend(it) for it in stations))


EMPTY = Exposed("empty", 90)
STATIONS: tuple[Station, ...] = (*PODS, ONE, TWO)
"""Those that may be backends."""
SERVICES = tuple(Exposed(f"to-{it.name}", number).to(it) for number, it in enumerate(STATIONS, start=10))
LOCAL_SERVICES = tuple(
    it._replace(name=f"local-{it.name}", number=it.number + 10, external_local=True, internal_local=True)
    for it in SERVICES
)


def service_of(backend: Station, local: bool = False) -> Exposed:
    """The one with this backend only. `local`: its traffic policies are."""
    return next(it for it in (LOCAL_SERVICES if local else SERVICES) if it.backends[0].station == backend)
