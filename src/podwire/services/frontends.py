"""Services and their slices to frontends with what answers for them. Pure.

Invariants: a frontend has one owner, the oldest Service that claims it (creation time, then name); the others are told
so by `explain`. A Service's frontends exist with or without backends: without, they are refused, or dropped where the
traffic policy leaves them to other nodes. Pods of all nodes, and this node itself, find all backends whatever
externalTrafficPolicy says; to this node another one comes from outside. For whom the data plane has no room
(`room.py`) nothing is programmed in that family but what refuses.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Any

from podwire.model.addresses import FAMILIES, Address, Prefix, disjoint, family_of, host_prefix
from podwire.model.homes import Homes
from podwire.model.network import (
    AffinityKey,
    AllowedKey,
    Backend,
    ClusterRangeKey,
    ExternalIPKey,
    ExternalKey,
    Frontend,
    InternalKey,
    RememberKey,
    RestrictedKey,
    ServiceRangeKey,
    Serving,
    SharedKey,
)
from podwire.model.objects import Node, Service, ServiceKey, ServicePort
from podwire.model.room import Ranked
from podwire.model.snapshot import Snapshot, Touched
from podwire.services.backends import NOBODY, Pool, pools

Claim = Frontend | Address
"""What a Service claims: a frontend, or all of a cluster IP, external IP or load balancer's address."""


class Kind(Enum):
    """Which part of a Service a frontend is."""

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    NODE_PORT = "node port"
    BALANCER = "load balancer"


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not (touched.services or touched.nodes or touched.ranges):
        return {}
    keys: Iterable[ServiceKey] = now.services if touched is None else sorted(touched.services)
    found: dict[Any, Any] = {}
    ranges = now.service_ranges
    for key in keys:
        service = now.services.get(key)
        if service is not None:
            found |= _of_service(now, key, service, ranges)
    if touched is None or touched.services:
        found |= {AffinityKey(family, seconds): True for seconds in sorted(now.affinities) for family in FAMILIES}
    if touched is None or touched.ranges:
        found |= {ServiceRangeKey(cidr.first, cidr.last): True for cidr in ranges}
    if touched is None or touched.nodes:
        found |= {ClusterRangeKey(cidr.first, cidr.last): True for cidr in now.pod_ranges}
    return {"nftables": found}


def _of_service(now: Snapshot, key: ServiceKey, service: Service, ranges: tuple[Prefix, ...]) -> dict[Any, Any]:
    """`ranges`: the snapshot's service ranges."""
    served = serving(now, key)
    if key in now.room.left_out:
        lacks_room = now.room.left_out[key]
        served = {name: value for name, value in served.items() if family_of(name.address) not in lacks_room}
    mine = [frontend for frontend in served if isinstance(frontend, Frontend)]
    found: dict[Any, Any] = {**served}
    lacks = now.misplaced.get(key, frozenset())
    cluster_ips = [it for it in service.cluster_ips if it not in lacks]
    found |= {ExternalKey(f): True for f in mine if f.address not in cluster_ips}
    alone = [it for it in cluster_ips if not any(it in cidr for cidr in ranges)]
    found |= {ServiceRangeKey(it, it): True for it in alone}
    found |= {ExternalIPKey(it): True for it in (*service.external_ips, *service.balancer_ips) if it not in lacks}
    shared = remembered_as(now, key, mine) if service.affinity else {}
    for frontend in mine:
        if service.affinity and (served[frontend].backends or InternalKey(frontend) in served):
            found[RememberKey(frontend)] = service.affinity
            found[SharedKey(frontend)] = shared[frontend]
        sources = allowed_sources(now, service, frontend)
        if sources:
            found |= {RestrictedKey(frontend): True} | {AllowedKey(frontend, cidr): True for cidr in sources}
    return found


def remembered_as(now: Snapshot, key: ServiceKey, mine: Collection[Frontend]) -> dict[Frontend, Frontend]:
    """Under which of its frontends each one's clients are remembered: the first of the same ServicePort and family,
    cluster IPs first. So a client keeps its backend whatever address it comes by."""
    ports = {frontend: (port, len(frontend.address)) for port, _, frontend in of_service(now, key) if frontend in mine}
    first: dict[tuple[ServicePort, int], Frontend] = {}
    return {frontend: first.setdefault(port, frontend) for frontend, port in ports.items()}


def allowed_sources(now: Snapshot, service: Service, frontend: Frontend) -> tuple[Prefix, ...]:
    """Who may use one of its frontends, nothing: everybody. It is for the load balancer's addresses only, and in a
    family without ranges everybody may come, as with kube-proxy.

    As there, too: where this node may come, so may what is sent from the address itself. A node that has the load
    balancer's address on one of its interfaces reaches it from there.
    """
    if frontend.address not in service.balancer_ips:
        return ()
    ranges = [cidr for cidr in service.source_ranges if cidr.family == frontend.family]
    if any(address in cidr for cidr in ranges for address in now.node.addresses):
        ranges.append(host_prefix(frontend.address))
    return disjoint(ranges)


def frontends(now: Snapshot, key: ServiceKey) -> dict[Frontend, Serving]:
    """The frontends that this Service owns, and what answers there: for clients in the cluster see `serving`."""
    return {name: value for name, value in serving(now, key).items() if isinstance(name, Frontend)}


def serving(now: Snapshot, key: ServiceKey) -> dict[Frontend | InternalKey, Serving]:
    """The frontends that this Service owns, and beside them those that clients in the cluster find otherwise."""
    service = now.services.get(key)
    if service is None:
        return {}
    who_is_here = service.external_local or service.internal_local or now.local.local_weight > 1
    known = pools(now, key, local=who_is_here)
    found: dict[Frontend | InternalKey, Serving] = {}
    for port, kind, frontend in of_service(now, key):
        if owner(now, frontend) == key:
            pool = known.get((port.name, port.protocol, len(frontend.address)), NOBODY)
            local = is_local(service, kind)
            found.pop(InternalKey(frontend), None)  # of two ports with one frontend the later has it
            two = bool(local and kind is not Kind.CLUSTER_IP and pool.cluster)
            found[frontend] = _served(now, service, pool, local, outside=two)
            if two:
                found[InternalKey(frontend)] = _served(now, service, pool, local=False)
    return found


def is_local(service: Service, kind: Kind) -> bool:
    """Whether only this node's backends may answer there."""
    return service.internal_local if kind is Kind.CLUSTER_IP else service.external_local


def _served(now: Snapshot, service: Service, pool: Pool, local: bool, outside: bool = False) -> Serving:
    backends, weight = pool.local if local else pool.cluster, now.local.local_weight
    heavy = frozenset(pool.local).intersection(backends) if weight > 1 and not local else NO_BACKENDS
    dropped = local and pool.known and not backends
    return Serving(backends, dropped, service.affinity, heavy, weight if heavy else 1, outside)


NO_BACKENDS: frozenset[Backend] = frozenset()
NO_ADDRESSES: frozenset[Address] = frozenset()


def claimed(now: Snapshot, key: ServiceKey) -> frozenset[Frontend]:
    """The frontends that a Service may have on this node, whether or not it gets them."""
    return frozenset(frontend for _, _, frontend in of_service(now, key))


def claims_of(service: Service, node_ports: Iterable[Address], misplaced: frozenset[Address]) -> frozenset[Claim]:
    """All that another Service could claim too: what becomes of it depends on both. `node_ports`: where these are."""
    frontends = {frontend for _, _, frontend in _named(service, node_ports, misplaced)}
    return frozenset(frontends | set(addresses_of(service)) - misplaced)


def addresses_of(service: Service) -> tuple[Address, ...]:
    """All that it names."""
    return (*service.cluster_ips, *service.external_ips, *service.balancer_ips)


def misplaced(homes: Homes, here: Node, service: Service) -> frozenset[Address]:
    """The addresses that a Service names and can't have, since somebody would be shut off by it.

    A cluster IP is only its Service's, so it can't be this node's. An external IP or a load balancer's address may well
    be (it takes one port of the node), but none can be a pod's. What another node claims counts for nothing.
    """
    cluster = (it for it in service.cluster_ips if it in here.addresses or homes.block_of(it) is not None)
    outside = (*service.external_ips, *service.balancer_ips)
    external = (it for it in outside if it not in here.addresses and homes.block_of(it) is not None)
    return frozenset((*cluster, *external))


def node_port_addresses(now: Snapshot) -> tuple[Address, ...]:
    """Where node ports are (kube-proxy's nodePortAddresses): what the node's interfaces have in the ranges that were
    configured, else the first InternalIP of each family (KEP-3866, "primary")."""
    if now.local.node_ports is not None:
        return now.local.ported
    found: dict[int, Address] = {}
    for address in now.node.addresses:
        found.setdefault(len(address), address)
    return tuple(found.values())


def node_ports_of(now: Snapshot, service: Service) -> tuple[Address, ...]:
    """Where its node ports are, if it has any."""
    return node_port_addresses(now) if any(port.node_port for port in service.ports) else ()


def of_service(now: Snapshot, key: ServiceKey) -> Iterator[tuple[ServicePort, Kind, Frontend]]:
    """Its frontends on this node, port by port. Raises KeyError for a Service that there is not."""
    service = now.services[key]
    return _named(service, node_ports_of(now, service), now.misplaced.get(key, NO_ADDRESSES))


def _named(
    service: Service, node_ports: Iterable[Address], misplaced: frozenset[Address]
) -> Iterator[tuple[ServicePort, Kind, Frontend]]:
    families = {len(address) for address in service.cluster_ips}
    kinds = (
        (Kind.CLUSTER_IP, service.cluster_ips),
        (Kind.EXTERNAL_IP, service.external_ips),
        (Kind.BALANCER, service.balancer_ips),
    )
    for port in service.ports:
        for kind, addresses in kinds:
            for address in addresses:
                if address not in misplaced:
                    yield port, kind, Frontend(address, port.protocol, port.port)
        if port.node_port and families:
            for address in node_ports:
                if len(address) in families:
                    yield port, Kind.NODE_PORT, Frontend(address, port.protocol, port.node_port)


def owner(now: Snapshot, frontend: Frontend) -> ServiceKey:
    """The oldest of those that claim it. Raises KeyError where none does."""
    return oldest(now, now.claims[frontend])


def oldest(now: Snapshot, rivals: Collection[ServiceKey]) -> ServiceKey:
    """Who has what several Services name."""
    if len(rivals) == 1:
        return next(iter(rivals))
    return min(rivals, key=lambda key: by_age(now.services[key].created, key))


def by_age(created: str, key: ServiceKey) -> Ranked:
    """Of Services the least is the oldest: by creation time, then name."""
    return created, key.namespace, key.name
