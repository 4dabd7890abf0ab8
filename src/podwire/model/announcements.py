"""How the network around the cluster learns the way to its addresses: by BGP, and by ARP and NDP (layer 2). What is
configured, and what one node has to do.

Invariants: as in `objects.py`. Configuration says nothing of nodes but by selectors; what a node has to do (`Speaker`,
`Answers`) is decided from it and all else that is known (`loadbalancer/announcing.py`), and holds no reasons.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from immutables import Map
from msgspec import Struct

from podwire.model.addresses import FAMILIES, Address, Family, Prefix
from podwire.model.balancers import AddressPool, AddressPoolKey
from podwire.model.objects import Requirement, Value

Selector = tuple[Requirement, ...]
"""All of these must be met."""


class BGPPeerKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"bgppeer/{self.name}"


class BGPAdvertisementKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"bgpadvertisement/{self.name}"


class L2AdvertisementKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"l2advertisement/{self.name}"


NAMESPACE = "podwire"
"""Podwire's own, in which the Secrets are that peers name."""


class SecretKey(Value, frozen=True):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"secret/{self.namespace}/{self.name}"


class Secret(Value, frozen=True):
    """Its items, sorted, as far as they can be passwords of sessions."""

    items: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return "Secret(...)"


class PasswordKey(Value, frozen=True):
    """An item of a Secret in Podwire's own namespace."""

    secret: str
    item: str

    def __str__(self) -> str:
        return f"secret/{self.secret}[{self.item}]"


class BFD(Value, frozen=True):
    """Bidirectional Forwarding Detection (RFC 5880, 5881, 5883): milliseconds, and how many may be missed."""

    receive: int = 300
    transmit: int = 300
    multiplier: int = 3


class BGPPeer(Value, frozen=True):
    """A router that nodes have a session with. Times in seconds. `my_asn`: the nodes' AS number towards it. `source`:
    the node's address of the session, None: the route's. `router_id`: the node's, None: its first IPv4 InternalIP.
    `hold` 0: no keepalives. `multihop`: it is not on a link of the node. `families`: which routes the session carries.
    `receives`: which of its routes the node takes into its kernel: these and longer ones, none where there are none.
    `node_selectors`: for nodes that one of these selects; where there is none, for all. `created`: the object's
    creationTimestamp, RFC 3339."""

    address: Address
    asn: int
    my_asn: int
    port: int = 179
    source: Address | None = None
    router_id: Address | None = None
    hold: int = 90
    keepalive: int = 30
    connect: int = 10
    multihop: bool = False
    password: PasswordKey | None = None
    bfd: BFD | None = None
    graceful_restart: bool = True
    restart: int = 120
    """How long the peer keeps our routes after the session was lost (RFC 4724)."""
    families: tuple[Family, ...] = FAMILIES
    receives: tuple[Prefix, ...] = ()
    node_selectors: tuple[Selector, ...] = ()
    created: str = ""


def oldest_first(peers: Mapping[BGPPeerKey, BGPPeer]) -> list[tuple[BGPPeerKey, BGPPeer]]:
    """By creation time, then name: of two that fight the first has it, and a new one takes nothing from one in use."""
    return sorted(peers.items(), key=lambda it: (it[1].created, it[0]))


class Attributes(Value, frozen=True):
    """Of a route (RFC 4271, 1997, 8092). `communities` are `64512:100` or well-known names as `no-export`, `large` ones
    `64512:1:2`, both sorted. `local_pref`: None, the router's default."""

    communities: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    local_pref: int | None = None


class Kind(StrEnum):
    """What is advertised."""

    LOAD_BALANCER_IP = "LoadBalancerIP"
    EXTERNAL_IP = "ExternalIP"
    CLUSTER_IP = "ClusterIP"
    POD_CIDR = "PodCIDR"


class Choice(Value, frozen=True):
    """Which addresses, from which nodes. Of each of the three pairs: where all are empty, all. A pool is chosen by name
    or by its labels; pools count for LoadBalancerIP alone, Services' selectors for all but PodCIDR."""

    pools: tuple[str, ...] = ()
    pool_selectors: tuple[Selector, ...] = ()
    service_selectors: tuple[Selector, ...] = ()
    node_selectors: tuple[Selector, ...] = ()


class BGPAdvertisement(Value, frozen=True):
    """`peers`: to these by name, to all where there are none. `lengths`: of the routes that addresses are told in,
    IPv4's and IPv6's."""

    choice: Choice = Choice()
    peers: tuple[str, ...] = ()
    attributes: Attributes = Attributes()
    lengths: tuple[int, int] = (32, 128)
    kinds: tuple[Kind, ...] = (Kind.LOAD_BALANCER_IP,)


class L2Advertisement(Value, frozen=True):
    """`interfaces`: by name, on whichever the node has of them; where there are none, on all that can."""

    choice: Choice = Choice()
    interfaces: tuple[str, ...] = ()


ConfigKey = AddressPoolKey | BGPPeerKey | BGPAdvertisementKey | L2AdvertisementKey
"""Of what users write for load balancers."""
Configured = AddressPool | BGPPeer | BGPAdvertisement | L2Advertisement
AnnouncingKey = ConfigKey | SecretKey
AnnouncingObject = Configured | Secret


class Announcing(Struct, frozen=True):
    """What is configured. `dead` and `unready`: the nodes, by name, of which that is heard (`Liveness`)."""

    pools: Map[AddressPoolKey, AddressPool] = Map()
    peers: Map[BGPPeerKey, BGPPeer] = Map()
    bgp: Map[BGPAdvertisementKey, BGPAdvertisement] = Map()
    l2: Map[L2AdvertisementKey, L2Advertisement] = Map()
    secrets: Map[SecretKey, Secret] = Map()
    dead: frozenset[str] = frozenset()
    unready: frozenset[str] = frozenset()

    def password(self, key: PasswordKey) -> str | None:
        """None: there is none of that name."""
        items = self.secrets.get(SecretKey(NAMESPACE, key.secret), Secret()).items
        return next((text for name, text in items if name == key.item), None)


class Session(Value, frozen=True):
    """A node's side of a session with a router. `local_asn`: ours towards it. `password` "": none. The rest as in
    BGPPeer."""

    name: str
    address: Address
    asn: int
    local_asn: int
    port: int = 179
    source: Address | None = None
    password: str = ""
    hold: int = 90
    keepalive: int = 30
    connect: int = 10
    multihop: bool = False
    bfd: BFD | None = None
    graceful_restart: bool = True
    restart: int = 120
    families: tuple[Family, ...] = FAMILIES
    receives: tuple[Prefix, ...] = ()

    def __repr__(self) -> str:
        return f"Session({self.name})"


Told = tuple[tuple[str, Attributes], ...]
"""By name of the session, sorted: with which attributes a route is told there."""


class Speaker(NamedTuple):
    """All that a node's BGP speaker should do. `next_hops`: the node's own address of each family, for routes of the
    other family than the session's own. Routes whose sessions lack their family are not told there."""

    asn: int
    router_id: Address
    next_hops: tuple[Address, ...]
    sessions: tuple[Session, ...]
    routes: Mapping[Prefix, Told]


Answers = Mapping[Address, tuple[str, ...]]
"""By address that this node answers for by ARP or NDP: on which interfaces, (): on all that can."""


class SessionReport(Value, frozen=True):
    """What became of a session, for the cluster to see. `state` is RFC 4271's, or `Unknown`. `since`: seconds of the
    epoch. `error`: why it is not up, "" where it is. `received` and `sent`: prefixes of each family."""

    state: str
    since: float | None = None
    error: str = ""
    received: tuple[tuple[str, int], ...] = ()
    sent: tuple[tuple[str, int], ...] = ()


class Liveness(StrEnum):
    """What a node's own heartbeats say of it as one that answers by ARP and NDP (`l2/`)."""

    ALIVE = "alive"
    """It is heard, and answers for what it is to."""
    UNREADY = "unready"
    """It is heard, and does not answer: it isn't in sync yet, or is on its way out."""
    DEAD = "dead"
    """It was heard, and is no more."""
    UNKNOWN = "unknown"
    """It was never heard: nothing can be said, as where a firewall is between, or its agent has no heartbeats."""
