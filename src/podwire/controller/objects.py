"""The fold of the cluster's objects, and which Services, nodes and ranges it concerns. Pure.

Invariants: every index is kept by the one function that changes what it indexes. What is touched includes the objects
that gain or lose by the change (the other claimants of a frontend, whoever named an address that is a node's now, who
gets room in the data plane or loses it).
"""

from collections.abc import Iterable
from typing import Any

from immutables import Map
from msgspec.structs import replace

from podwire.ipam import pools
from podwire.ipam.own import own_addresses
from podwire.model.addresses import FAMILIES, Address, Prefix, overlap
from podwire.model.homes import Home, Homes, in_range
from podwire.model.objects import (
    BackendSlice,
    Namespace,
    NamespaceKey,
    Node,
    NodeKey,
    Object,
    ObjectKey,
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
from podwire.services.frontends import (
    NO_ADDRESSES,
    Claim,
    addresses_of,
    claims_of,
    misplaced,
    node_port_addresses,
    node_ports_of,
)
from podwire.services.room import shared_out

NOTHING = Touched()
NO_CLAIMS: frozenset[Claim] = frozenset()


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


def _put(now: Snapshot, key: ObjectKey, value: Object | None) -> tuple[Snapshot, Touched]:
    match key, value:
        case ServiceKey(), (Service() | None):
            return _put_service(now, key, value)
        case SliceKey(), (BackendSlice() | None):
            return _put_slice(now, key, value)
        case PodKey(), (Pod() | None):
            return replace(now, pods=_set(now.pods, key, value)), NOTHING
        case NamespaceKey(), (Namespace() | None):
            return replace(now, namespaces=_set(now.namespaces, key, value)), NOTHING
        case ServiceCIDRKey(), (ServiceCIDR() | None):
            return _put_service_cidr(now, key, value)
        case PodPoolKey(), (PodPool() | None):
            return replace(now, pools=_set(now.pools, key, value)), NOTHING
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
                now = replace(now, nodes=_set(now.nodes, key, value))
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
    for name in _concerned(now, moved, node_port_addresses(now) != node_port_addresses(old)):
        now, rivals = _claim(now, name, now.services[name], old)
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
            blocks_of = _set(blocks_of, was, tuple(it for it in blocks_of[was] if it != key.cidr) or None)
        if will is not None:
            blocks_of = blocks_of.set(will, tuple(sorted((*blocks_of.get(will, ()), key.cidr))))
    singles = _set(now.singles, key.cidr.first, will) if pools.is_single(key.cidr) else now.singles
    return replace(now, blocks=_set(now.blocks, key, block), blocks_of=blocks_of, singles=singles)


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
    for name in _concerned(now, set(), node_port_addresses(now) != node_port_addresses(old)):
        now, rivals = _claim(now, name, now.services[name], old)
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
        found = _set(
            found, prefix, (others | {key} if in_range(home, prefix, key == now.local.key) else others) or None
        )
    return found


def _concerned(now: Snapshot, moved: set[Any], node_ports: bool) -> list[ServiceKey]:
    """The Services that name an address that came to be this node's or a pod's, or no longer is; and, where the node
    ports move, those that have any."""
    bounds = [(it.first, it.last) if isinstance(it, Prefix) else (it, it) for it in sorted(moved, key=str)]
    found = []
    for name, service in now.services.items() if moved or node_ports else ():
        for address in addresses_of(service):
            if any(first <= address <= last and len(first) == len(address) for first, last in bounds):
                found.append(name)
                break
        else:
            if node_ports and any(port.node_port for port in service.ports):
                found.append(name)
    return found


def _put_service_cidr(now: Snapshot, key: ServiceCIDRKey, cidr: ServiceCIDR | None) -> tuple[Snapshot, Touched]:
    before = now.service_ranges
    now = replace(now, service_cidrs=_set(now.service_cidrs, key, cidr))
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


def _put_service(now: Snapshot, key: ServiceKey, service: Service | None) -> tuple[Snapshot, Touched]:
    old, affinities, health_ports = now, now.affinities, now.health_ports
    for it, holds in ((now.services.get(key), False), (service, True)):
        if it is not None:
            affinities = _index(affinities, it.affinity, key, holds)
            health_ports = _index(health_ports, it.health_port, key, holds)
    now = replace(now, services=_set(now.services, key, service), affinities=affinities, health_ports=health_ports)
    now, touched = _claim(now, key, service, old)
    return now, Touched(services=frozenset(touched))


def _index(
    index: Map[int, frozenset[ServiceKey]], number: int, key: ServiceKey, holds: bool
) -> Map[int, frozenset[ServiceKey]]:
    """0 is no number."""
    if not number:
        return index
    rest = index.get(number, frozenset()) - {key}
    return _set(index, number, rest | {key} if holds else rest or None)


def _claim(now: Snapshot, key: ServiceKey, service: Service | None, old: Snapshot) -> tuple[Snapshot, set[ServiceKey]]:
    """The indexes of a Service's addresses after it, or a node, has changed; and all whom that concerns."""
    before = old.services.get(key)
    lacks = misplaced(now.homes, now.node, service) if service is not None else frozenset[Address]()
    had = (
        claims_of(before, node_ports_of(old, before), old.misplaced.get(key, NO_ADDRESSES))
        if before is not None
        else NO_CLAIMS
    )
    has = claims_of(service, node_ports_of(now, service), lacks) if service is not None else NO_CLAIMS
    claims, touched = now.claims, {key}
    alone = (key,)  # nearly all have what they claim to themselves: one tuple does for all of it
    for claim in had | has:
        rivals = claims.get(claim, alone)
        others = () if rivals == alone else tuple(it for it in rivals if it != key)
        touched.update(others)
        mine = (tuple(sorted((*others, key))) if others else alone) if claim in has else others
        claims = _set(claims, claim, mine or None)
    return replace(now, claims=claims, misplaced=_set(now.misplaced, key, lacks or None)), touched


def _put_slice(now: Snapshot, key: SliceKey, part: BackendSlice | None) -> tuple[Snapshot, Touched]:
    before = now.slices.get(key)
    slices_of = now.slices_of
    was, will = (None if it is None else it.service for it in (before, part))
    if was != will:
        if was is not None:
            slices_of = _set(slices_of, was, tuple(it for it in slices_of[was] if it != key) or None)
        if will is not None:
            slices_of = slices_of.set(will, tuple(sorted((*slices_of.get(will, ()), key))))
    return (
        replace(now, slices=_set(now.slices, key, part), slices_of=slices_of),
        Touched(services=frozenset(it for it in (was, will) if it is not None)),
    )


def _set(map_: Map[Any, Any], key: Any, value: Any) -> Map[Any, Any]:
    """None: without the key."""
    if value is not None:
        return map_.set(key, value)
    return map_.delete(key) if key in map_ else map_
