"""The fold of the cluster's objects, and which Services, nodes and ranges it concerns. Pure.

Invariants: every index is kept by the one function that changes what it indexes. What is touched includes the objects
that gain or lose by the change (the other claimants of a frontend, whoever named an address that is a node's now, who
gets room in the data plane or loses it). Services and slices have a room of their own (`claimants.py`).
"""

from collections.abc import Iterable
from typing import Any

from immutables import Map
from msgspec.structs import replace

from podwire.controller.claimants import claim, concerned, put_service, put_slice, with_key
from podwire.ipam import pools
from podwire.ipam.own import own_addresses
from podwire.model.addresses import FAMILIES, Address, Prefix, overlap
from podwire.model.announcements import (
    Announcing,
    BGPAdvertisement,
    BGPAdvertisementKey,
    BGPPeer,
    BGPPeerKey,
    L2Advertisement,
    L2AdvertisementKey,
    Secret,
    SecretKey,
)
from podwire.model.balancers import AddressPool, AddressPoolKey
from podwire.model.homes import Home, Homes, in_range
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
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
)
from podwire.model.room import Room
from podwire.model.snapshot import Snapshot, Touched
from podwire.nodes.routes import former_networks, underlays
from podwire.services.backends import zone_of
from podwire.services.frontends import node_port_addresses
from podwire.services.room import shared_out

NOTHING = Touched()


def changed(now: Snapshot, changes: Iterable[tuple[ObjectKey, Object | None]]) -> tuple[Snapshot, Touched]:
    """Nodes and their blocks first and together: where they live decides what Services can have. Then the service
    ranges, of which all Services are asked whether they lie in them. Which pools are used follows from all of these."""
    old = now
    homes: list[tuple[ObjectKey, Object | None]] = []
    cidrs: list[tuple[ObjectKey, Object | None]] = []
    others: list[tuple[ObjectKey, Object | None]] = []
    for key, value in changes:
        of = homes if isinstance(key, NodeKey | PodBlockKey) else cidrs if isinstance(key, ServiceCIDRKey) else others
        of.append((key, value))
    now, touched = _put_homes(now, homes)
    services, ranges = set(touched.services), touched.ranges
    for key, value in (*cidrs, *others):
        if value != _held(now, key):
            now, more = _put(now, key, value)
            services |= more.services
            ranges |= more.ranges
    now, nodes = _pooled(old, now)
    now, moved = shared_out(now, services)
    return now, Touched(frozenset(services | moved), touched.attachments, touched.nodes | nodes, ranges)


def _pooled(old: Snapshot, now: Snapshot) -> tuple[Snapshot, frozenset[NodeKey]]:
    """Which pools are used, and whom it concerns where others are."""
    if not (now.pools or old.pools):
        return now, frozenset()
    if any(before is not after for before, after in zip(_around_pools(old), _around_pools(now), strict=True)):
        now = replace(now, unfit_pools=pools.unfit(now))
    same = old.pools == now.pools and old.unfit_pools == now.unfit_pools
    return now, frozenset() if same else frozenset((now.local.key,))


def _around_pools(it: Snapshot) -> tuple[object, ...]:
    """What decides whether pools are used."""
    return it.pools, it.nodes, it.service_cidrs


def rehomed(before: Snapshot, now: Snapshot) -> Touched:
    """All routes have the node's address as their source: what is touched where that is another one."""
    if all(before.source(family) == now.source(family) for family in FAMILIES):
        return NOTHING
    return Touched(attachments=frozenset(now.attachments), nodes=frozenset((now.local.key,)))


def remeasured(before: Snapshot, now: Snapshot) -> tuple[Snapshot, Touched]:
    """Other nodes, or other networks of this one: what goes by VXLAN may need other room in pods' packets."""
    now = replace(now, underlays=underlays(now))
    nodes = frozenset((now.local.key,))
    if now.pod_mtu != before.pod_mtu:
        return now, Touched(attachments=frozenset(now.attachments), nodes=nodes)
    tunnels = any(now.tunnel_mtu(family) != before.tunnel_mtu(family) for family in now.underlays)
    return now, Touched(nodes=nodes) if tunnels else NOTHING


def listed(now: Snapshot, objects: Iterable[tuple[ObjectKey, Object]]) -> Snapshot:
    """All of the cluster's objects anew."""
    empty: Snapshot = replace(
        now,
        namespaces=Map(),
        nodes=Map(),
        pods=Map(),
        services=Map(),
        slices=Map(),
        service_cidrs=Map(),
        pools=Map(),
        blocks=Map(),
        blocks_of=Map(),
        singles=Map(),
        homes=Homes(),
        unfit_pools=Map(),
        contested=frozenset(),
        crowded=Map(),
        slices_of=Map(),
        claims=Map(),
        misplaced=Map(),
        affinities=Map(),
        health_ports=Map(),
        room=Room(),
        underlays=frozenset(),
        announcing=Announcing(dead=now.announcing.dead, unready=now.announcing.unready),
    )
    return changed(empty, objects)[0]


def _held(now: Snapshot, key: ObjectKey) -> Object | None:
    match key:
        case ServiceKey():
            return now.services.get(key)
        case SliceKey():
            return now.slices.get(key)
        case NodeKey():
            return now.nodes.get(key)
        case PodKey():
            return now.pods.get(key)
        case NamespaceKey():
            return now.namespaces.get(key)
        case ServiceCIDRKey():
            return now.service_cidrs.get(key)
        case PodPoolKey():
            return now.pools.get(key)
        case PodBlockKey():
            return now.blocks.get(key)
        case AddressPoolKey():
            return now.announcing.pools.get(key)
        case BGPPeerKey():
            return now.announcing.peers.get(key)
        case BGPAdvertisementKey():
            return now.announcing.bgp.get(key)
        case L2AdvertisementKey():
            return now.announcing.l2.get(key)
        case SecretKey():
            return now.announcing.secrets.get(key)


def _put(now: Snapshot, key: ObjectKey, value: Object | None) -> tuple[Snapshot, Touched]:
    match key, value:
        case ServiceKey(), (Service() | None):
            return put_service(now, key, value)
        case SliceKey(), (BackendSlice() | None):
            return put_slice(now, key, value)
        case PodKey(), (Pod() | None):
            return replace(now, pods=with_key(now.pods, key, value)), NOTHING
        case NamespaceKey(), (Namespace() | None):
            return replace(now, namespaces=with_key(now.namespaces, key, value)), NOTHING
        case ServiceCIDRKey(), (ServiceCIDR() | None):
            return _put_service_cidr(now, key, value)
        case PodPoolKey(), (PodPool() | None):
            return replace(now, pools=with_key(now.pools, key, value)), NOTHING
    return replace(now, announcing=_announcing(now.announcing, key, value)), NOTHING


def _announcing(it: Announcing, key: ObjectKey, value: Object | None) -> Announcing:
    """Whoever announces looks at all of it anew where any of it has changed."""
    match key, value:
        case AddressPoolKey(), (AddressPool() | None):
            return replace(it, pools=with_key(it.pools, key, value))
        case BGPPeerKey(), (BGPPeer() | None):
            return replace(it, peers=with_key(it.peers, key, value))
        case BGPAdvertisementKey(), (BGPAdvertisement() | None):
            return replace(it, bgp=with_key(it.bgp, key, value))
        case L2AdvertisementKey(), (L2Advertisement() | None):
            return replace(it, l2=with_key(it.l2, key, value))
        case SecretKey(), (Secret() | None):
            return replace(it, secrets=with_key(it.secrets, key, value))
    raise TypeError(f"{key}: {value!r}")


def _put_homes(now: Snapshot, told: list[tuple[ObjectKey, Object | None]]) -> tuple[Snapshot, Touched]:
    """Nodes and blocks of pools. This node's addresses are where node ports are, and no Service can have what is its or
    any node's pods'."""
    if not told:
        return now, NOTHING
    old, keys = now, set[NodeKey]()
    for key, value in told:
        if value == _held(now, key):
            continue
        match key, value:
            case NodeKey(), (Node() | None):
                keys.add(key)
                now = replace(now, nodes=with_key(now.nodes, key, value))
            case PodBlockKey(), (PodBlock() | None):
                keys.update(NodeKey(it.node) for it in (now.blocks.get(key), value) if it is not None)
                now = _put_block(now, key, value)
            case _:
                raise TypeError(f"{key}: {value!r}")
    homes, crowded, moved = now.homes, now.crowded, set[Any]()
    for key in sorted(keys):
        before, after = old.home(key), now.home(key)
        homes = homes.moved(key, before, after)
        crowded = _crowded(crowded, now, key, after)
        moved |= {*before.blocks} ^ {*after.blocks}
        if key == now.local.key:
            moved |= {*before.addresses} ^ {*after.addresses}
    now = replace(now, homes=homes, crowded=crowded)
    now = replace(now, contested=_contested(old, now, moved))
    services = _moved(now, old.service_ranges)
    if zone_of(now.node) != zone_of(old.node):  # whose hints count
        services |= set(now.services)
    for name in concerned(now, moved, node_port_addresses(now) != node_port_addresses(old)):
        now, rivals = claim(now, name, now.services[name], old)
        services |= rivals
    if now.node.addresses != old.node.addresses:  # who may come from where this node may
        services |= {name for name, it in now.services.items() if it.source_ranges and it.balancer_ips}
    if own_addresses(now) != own_addresses(old):
        keys.add(now.local.key)
    ranges = now.service_ranges != old.service_ranges
    now, more = remeasured(old, now)
    wired = rehomed(old, now).attachments | more.attachments
    return now, Touched(frozenset(services), wired, frozenset(keys) | more.nodes, ranges)


def _put_block(now: Snapshot, key: PodBlockKey, block: PodBlock | None) -> Snapshot:
    before, blocks_of = now.blocks.get(key), now.blocks_of
    was, will = (None if it is None else NodeKey(it.node) for it in (before, block))
    if was != will:
        if was is not None:
            blocks_of = with_key(blocks_of, was, tuple(it for it in blocks_of[was] if it != key.cidr) or None)
        if will is not None:
            blocks_of = blocks_of.set(will, tuple(sorted((*blocks_of.get(will, ()), key.cidr))))
    singles = with_key(now.singles, key.cidr.first, will) if pools.is_single(key.cidr) else now.singles
    return replace(now, blocks=with_key(now.blocks, key, block), blocks_of=blocks_of, singles=singles)


def _contested(old: Snapshot, now: Snapshot, moved: set[Any]) -> frozenset[Prefix]:
    """Asked of all nodes only where one came to live in a block of this node, or left it."""
    mine = now.blocks_of.get(now.local.key, ())
    if mine == old.blocks_of.get(now.local.key, ()):
        changed = [it for it in moved if isinstance(it, Prefix)]
        if not any(overlap(it, own) for it in changed for own in mine):
            return now.contested
    return pools.contested(now)


def addressed(
    old: Snapshot,
    addresses: frozenset[Address],
    networks: frozenset[Prefix],
    mtus: frozenset[tuple[Address, int]] | None,
) -> tuple[Snapshot, Touched]:
    """The node's kernel has these addresses now: routes have others as their source, Services with node ports claim
    others, and pods' packets may have other sizes."""
    former, measured = former_networks(old, networks), _measured(old, mtus)
    now = replace(old, local=replace(old.local, addresses=addresses, networks=networks, former=former, mtus=measured))
    touched: set[ServiceKey] = set()
    for name in concerned(now, set(), node_port_addresses(now) != node_port_addresses(old)):
        now, rivals = claim(now, name, now.services[name], old)
        touched |= rivals
    now, moved = shared_out(now, touched)
    now, more = remeasured(old, now)
    rewired = rehomed(old, now)
    found = replace(more, attachments=more.attachments | rewired.attachments)
    if networks != old.local.networks or rewired.nodes:  # who is reached by his own pods' addresses
        found = replace(found, nodes=frozenset((now.local.key,)))
    return now, replace(found, services=frozenset(touched | moved))


def _measured(old: Snapshot, mtus: frozenset[tuple[Address, int]] | None) -> frozenset[tuple[Address, int]] | None:
    """With what was known of InternalIPs that are away. As long as nobody knows which these are, all may be."""
    if mtus is None:
        return old.local.mtus
    seen, known = {address for address, _ in mtus}, old.node.addresses
    return mtus | {it for it in old.local.mtus or () if it[0] not in seen and (not known or it[0] in known)}


def _crowded(
    found: Map[Prefix, frozenset[NodeKey]], now: Snapshot, key: NodeKey, home: Home
) -> Map[Prefix, frozenset[NodeKey]]:
    for prefix in now.told_ranges:
        others = found.get(prefix, frozenset()) - {key}
        found = with_key(
            found, prefix, (others | {key} if in_range(home, prefix, key == now.local.key) else others) or None
        )
    return found


def _put_service_cidr(now: Snapshot, key: ServiceCIDRKey, cidr: ServiceCIDR | None) -> tuple[Snapshot, Touched]:
    before = now.service_ranges
    now = replace(now, service_cidrs=with_key(now.service_cidrs, key, cidr))
    crowded: Map[Prefix, frozenset[NodeKey]] = Map()
    for name in now.inhabited:
        crowded = _crowded(crowded, now, name, now.home(name))
    now = replace(now, crowded=crowded)
    return now, Touched(services=frozenset(_moved(now, before)), ranges=True)


def _moved(now: Snapshot, before: tuple[Prefix, ...]) -> set[ServiceKey]:
    """The Services whose cluster IPs came to lie in a service range, or no longer do."""
    after = now.service_ranges
    if after == before:
        return set()
    return {
        name
        for name, service in now.services.items()
        if any(_within(address, before) != _within(address, after) for address in service.cluster_ips)
    }


def _within(address: Address, ranges: tuple[Prefix, ...]) -> bool:
    return any(address in prefix for prefix in ranges)
