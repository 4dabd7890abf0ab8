"""The state of one node as one immutable value, and which part of it an event has touched.

Invariants: nothing here changes in place; the fold (`controller/snapshot.py`) makes the next one. Whatever a decision
reads is in here, allocation and what the drivers last reported included, so that the same snapshot always gives the
same network. Indexes (`homes` to `host_ports`) are derived: they never say what the values do not.
"""

from collections.abc import Container, Iterator
from enum import Enum
from typing import Any

from immutables import Map
from msgspec import Struct
from msgspec.structs import force_setattr

from podwire.model.addresses import IPV4, IPV6, Address, Family, Prefix, disjoint, family_of, show_address
from podwire.model.announcements import Announcing
from podwire.model.homes import Home, Homes, in_range
from podwire.model.network import Frontend
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    BackendSlice,
    Namespace,
    NamespaceKey,
    Node,
    NodeKey,
    Pod,
    PodBlock,
    PodBlockKey,
    PodKey,
    PodPool,
    PodPoolKey,
    Service,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
    SliceKey,
    Value,
)
from podwire.model.room import Capacity, Room


class Transport(Enum):
    """How packets come to other nodes' pods."""

    DIRECT = "direct"
    """By the nodes' own networks: only to nodes on a link with this one."""
    VXLAN = "vxlan"
    """In packets between the nodes (RFC 7348)."""
    AUTO = "auto"
    """Direct to nodes on a link with this one, by VXLAN to all others."""
    BGP = "bgp"
    """By routes that the BGP speaker learns from its peers (BGPPeer's spec.receive)."""


VXLAN_OVERHEAD: dict[Family, int] = {IPV4: 50, IPV6: 70}
"""Bytes that VXLAN adds, by the family of the outer addresses: IP 20 or 40, UDP 8, VXLAN 8, Ethernet 14 (RFC 7348)."""


class Local(Value, frozen=True):
    """What this agent is told of its own node. `mtu` (bytes) is that of pod interfaces where nobody knows better, 0:
    nobody says; `service_cidrs` are beside those of the ServiceCIDR objects (`Snapshot.service_ranges`). A
    backend on this node gets `local_weight` times as many of this node's connections as one elsewhere. `addresses` are
    those that the node's kernel has, but for the ones of its blocks. `node_ports`: in which ranges one of these has
    node ports; None: the node's first InternalIP of each family has. `capacity`: of the data plane for Services; None:
    it has no end. `boot`: the ID of the kernel's boot."""

    name: str
    mtu: int = 0
    service_cidrs: tuple[Prefix, ...] = ()
    local_weight: int = 1
    addresses: frozenset[Address] = frozenset()
    node_ports: tuple[Prefix, ...] | None = None
    capacity: Capacity | None = None
    boot: str = ""
    networks: frozenset[Prefix] = frozenset()
    """Those that the node's kernel has an address of: who is in them is reached without a router."""
    masquerade: bool = True
    """Whether what pods send out of the cluster bears the node's address."""
    unmasqueraded: tuple[Prefix, ...] = ()
    """Destinations outside of the cluster to which it does not."""
    transport: Transport = Transport.AUTO
    vxlan_vni: int = 28791
    vxlan_port: int = 4789
    fixed_mtu: bool = False
    """Whether `mtu` is what somebody has set; else pods have that of the node's own network."""
    network_mtu: int = 0
    """Bytes: of the interface with the default route at the start, 0: there was none."""
    mtus: frozenset[tuple[Address, int]] | None = None
    """By address of the node: bytes that its interface takes; None: nobody has looked. Of its InternalIPs also while
    they are away."""
    last_mtu: int = 0
    """What an earlier agent gave to pods, until all nodes are known; 0: nobody knows."""
    claims_blocks: bool = False
    """Whether the agent asks an API server for blocks of pools; else the node has those that it is told of."""
    heeds_exclusion: bool = True
    """Whether a node with the label node.kubernetes.io/exclude-from-external-load-balancers announces nothing."""
    former: frozenset[Prefix] = frozenset()
    """Networks in which the node's InternalIPs were, while its kernel has them not."""
    forms: frozenset[tuple[int, int]] = frozenset()
    """Derived from `networks`, of which there may be thousands: bytes of an address, and length."""
    ported: tuple[Address, ...] = ()
    """Derived: those of `addresses` that are in the ranges of `node_ports`, in order."""

    def __post_init__(self) -> None:
        within = (it for it in self.addresses if any(it in cidr for cidr in self.node_ports or ()))
        force_setattr(self, "forms", frozenset((len(it.first), it.length) for it in self.networks))
        force_setattr(self, "ported", tuple(sorted(within, key=lambda each: (len(each), each))))

    @property
    def key(self) -> NodeKey:
        return NodeKey(self.name)


class Touched(Value, frozen=True):
    """The objects whose consequences an event may change. `ranges`: the service ranges may be
    others. `rows`: attachments of which what is written down may change, and nothing else."""

    services: frozenset[ServiceKey] = frozenset()
    attachments: frozenset[AttachmentKey] = frozenset()
    nodes: frozenset[NodeKey] = frozenset()
    ranges: bool = False
    rows: frozenset[AttachmentKey] = frozenset()


EVERYTHING = None
"""In place of a Touched: all objects, and whatever else the network holds of ours."""

UNKNOWN: Any = object()
"""In place of a programmed value: the last change of this key failed, so it is read before the next one."""


_NO_NODE = Node()


class _Either:
    def __init__(self, *several: Container[Any]) -> None:
        self._several = several

    def __contains__(self, item: object) -> bool:
        return any(item in each for each in self._several)


class Snapshot(Struct, frozen=True):
    local: Local
    namespaces: Map[NamespaceKey, Namespace] = Map()
    nodes: Map[NodeKey, Node] = Map()
    pods: Map[PodKey, Pod] = Map()
    services: Map[ServiceKey, Service] = Map()
    slices: Map[SliceKey, BackendSlice] = Map()
    service_cidrs: Map[ServiceCIDRKey, ServiceCIDR] = Map()
    pools: Map[PodPoolKey, PodPool] = Map()
    blocks: Map[PodBlockKey, PodBlock] = Map()
    """Of all nodes."""
    attachments: Map[AttachmentKey, Attachment] = Map()
    announcing: Announcing = Announcing()

    whole: bool = False
    """Whether all of the cluster's objects were listed since the start. Until then nothing is removed for being
    wanted by nobody: it may be wanted by an object that isn't known yet."""

    blocks_of: Map[NodeKey, tuple[Prefix, ...]] = Map()
    """Blocks of pools by the node that has them, sorted."""
    singles: Map[Address, NodeKey] = Map()
    """By address that is a block of its own: the node that has it."""
    homes: Homes = Homes()
    """Whose an address or a block is."""
    unfit_pools: Map[PodPoolKey, str] = Map()
    """The pools that are not used, each with the reason (`ipam/pools.py`)."""
    contested: frozenset[Prefix] = frozenset()
    """This node's blocks of which another node has a part, or that are a part of another node's."""
    crowded: Map[Prefix, frozenset[NodeKey]] = Map()
    """By service range that was told: the nodes that live in it, this one by address or block, others by block."""
    underlays: frozenset[Family] = frozenset()
    """Of which families the addresses are between which VXLAN goes (`nodes/routes.py`)."""
    slices_of: Map[ServiceKey, tuple[SliceKey, ...]] = Map()
    """Sorted."""
    claims: Map[Frontend | Address, tuple[ServiceKey, ...]] = Map()
    """Which Services may have a frontend, a cluster IP or an external IP, sorted; more than one is a conflict that
    `services/` settles."""
    misplaced: Map[ServiceKey, frozenset[Address]] = Map()
    """By Service: those of its addresses that it can't have, since this node or some node's pods live there."""

    affinities: Map[int, frozenset[ServiceKey]] = Map()
    """By seconds: the Services that remember their clients for so long."""

    health_ports: Map[int, frozenset[ServiceKey]] = Map()
    """By health check node port: the Services that name it."""

    room: Room = Room()
    """For which Services the data plane has room."""

    ledger: Map[Address | int, AttachmentKey] = Map()
    """Pod addresses and interface indexes in use."""
    housed: Map[str, frozenset[AttachmentKey]] = Map()
    """By pods' network namespace, and by the path that led to it: who is attached there."""
    links: Map[str, AttachmentKey] = Map()
    """By the name of its end on the node: whose a link is."""
    attached: Map[PodKey, frozenset[AttachmentKey]] = Map()
    """By pod: its attachments, in whatever sandboxes."""
    host_ports: Map[Frontend, frozenset[AttachmentKey]] = Map()
    """By port of the node, with an address of all zeros for all that it has: whose it is. Several are sandboxes of one
    pod, one after the other."""
    serial: int = 0
    """The greatest that an attachment ever had."""
    cursors: Map[Prefix, int] = Map()
    """By block: where the next search for an address begins."""

    programmed: Map[str, Map[Any, Any]] = Map()
    """Driver → key → value, as last reported (or UNKNOWN)."""
    waiting: Map[str, frozenset[Any]] = Map()
    """By driver: the keys for which there was no room when they were last tried. What they hold is known."""

    @property
    def node(self) -> Node:
        """This node as the cluster knows it; an empty one until it does."""
        return self.nodes.get(self.local.key, _NO_NODE)

    def source(self, family: Family) -> Address | None:
        """The address that the node goes by, for what it sends to pods and Services: its first InternalIP of the
        family that its kernel has. Others are no source that a route can have."""
        own = (address for address in self.node.addresses if family_of(address) == family)
        return next((address for address in own if address in self.local.addresses), None)

    def network_mtu(self, *families: Family) -> int:
        """Of the node's own network (of these families, or of all), in bytes: the least of the interfaces with its
        first InternalIPs, since by these it is reached; 0 while none of them has ever been seen. A node without any
        has that of its default route."""
        local = self.local
        first: dict[Family, Address] = {}
        for address in self.node.addresses:
            first.setdefault(family_of(address), address)
        own = {address for family, address in first.items() if not families or family in families}
        if local.mtus is None or not own:
            return local.network_mtu
        return min((mtu for address, mtu in local.mtus if address in own), default=0)

    @property
    def why_no_mtu(self) -> str:
        """Why the MTU of the node's network is not known, where it isn't."""
        if self.local.mtus is None or not self.node.addresses:
            return "no default route, and no mtu set"
        own = ", ".join(map(show_address, self.node.addresses))
        return f"no interface has the node's address {own}, and no mtu is set"

    @property
    def pod_mtu(self) -> int:
        """Of pod interfaces, in bytes, 0 while it isn't known: with room for VXLAN where anything goes by it."""
        local = self.local
        if local.fixed_mtu:
            return local.mtu
        own = self.network_mtu() or local.mtu or local.last_mtu
        found = min((own, *map(self.tunnel_mtu, self.underlays))) if own else 0
        return min(found, local.last_mtu) if local.last_mtu and not self.whole else found

    def tunnel_mtu(self, outer: Family) -> int:
        """Of what goes by VXLAN between addresses of that family, in bytes; 0 while it isn't known. Where nobody knows
        that of the node's network, what is set for pods is trusted, or what they had."""
        own = self.network_mtu(outer)
        return max(0, own - VXLAN_OVERHEAD[outer]) if own else self.local.mtu or self.local.last_mtu

    @property
    def taken(self) -> Container[Address]:
        """The addresses that some pod of this node or the node itself has, or that are blocks of their own. Not those
        of other nodes: one that claims this node's block would leave its pods none."""
        if not self.singles:
            return _Either(self.ledger, self.node.addresses)
        return _Either(self.ledger, self.node.addresses, self.singles)

    def home(self, key: NodeKey) -> Home:
        node = self.nodes.get(key, _NO_NODE)
        return Home(node.addresses, node.pod_cidrs, self.blocks_of.get(key, ()))

    @property
    def own_blocks(self) -> tuple[Prefix, ...]:
        """All ranges in which this node's pods may live: its pod CIDRs, then its blocks of pools."""
        return (*self.node.pod_cidrs, *self.blocks_of.get(self.local.key, ()))

    @property
    def inhabited(self) -> tuple[NodeKey, ...]:
        """The nodes that are known, or have blocks; sorted."""
        return tuple(sorted({*self.nodes, *self.blocks_of}))

    @property
    def pod_ranges(self) -> tuple[Prefix, ...]:
        """Where the cluster's pods live, without overlaps: pod CIDRs and blocks of all nodes, and the pools from which
        these come, so that a new block seldom changes it."""
        cidrs = (cidr for node in self.nodes.values() for cidr in node.pod_cidrs)
        return disjoint((*cidrs, *self._used_pools, *(key.cidr for key in self.blocks)))

    def is_pods(self, address: Address) -> bool:
        """Whether it is in `pod_ranges`."""
        return self.homes.block_of(address) is not None or any(address in cidr for cidr in self._used_pools)

    @property
    def _used_pools(self) -> Iterator[Prefix]:
        return (cidr for key, it in self.pools.items() if key not in self.unfit_pools for cidr in it.cidrs)

    @property
    def service_ranges(self) -> tuple[Prefix, ...]:
        """Addresses that are only Services': those of the configuration and of all ServiceCIDRs, without overlaps, and
        without those in which this node or any node's pods live: they would be refused there."""
        return disjoint(prefix for prefix in self.told_ranges if prefix not in self.crowded)

    @property
    def told_ranges(self) -> tuple[Prefix, ...]:
        told = (prefix for cidr in self.service_cidrs.values() for prefix in cidr.prefixes)
        return (*self.local.service_cidrs, *told)

    @property
    def unfit_ranges(self) -> tuple[str, ...]:
        """The ranges that are left out, each with the reason."""
        return tuple(f"service range {prefix} is not used: {self._first_in(prefix)}" for prefix in sorted(self.crowded))

    def _first_in(self, prefix: Prefix) -> str:
        """This node before all others."""
        key = min(self.crowded[prefix], key=lambda each: (each != self.local.key, each))
        whose = "the node's" if key == self.local.key else f"node {key.name}'s"
        return f"{whose} {in_range(self.home(key), prefix, key == self.local.key)} lies in it"
