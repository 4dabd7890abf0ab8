"""Services and their slices to frontends with their backends. Pure.

Invariants: a frontend has one owner, the oldest Service that claims it (creation time, then name); the others are told
so by `explain`. A Service's frontends exist with or without backends: without, they are refused. Backends are a set:
slices may repeat each other.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from podwire.model.addresses import Address
from podwire.model.network import Backend, ExternalIPKey, ExternalKey, Frontend, ServiceRangeKey
from podwire.model.objects import Member, Node, Protocol, Service, ServiceKey, ServicePort
from podwire.model.snapshot import Snapshot, Touched

Claim = Frontend | Address
"""What a Service claims: a frontend, or all of a cluster IP or external IP."""


class Kind(Enum):
    """Which part of a Service a frontend is."""

    CLUSTER_IP = "cluster IP"
    EXTERNAL_IP = "external IP"
    NODE_PORT = "node port"


class LeftOut(Enum):
    """Why a member of a slice is no backend."""

    NOT_READY = "not ready"
    OTHER_FAMILY = "of another address family"
    NO_SUCH_PORT = "its slice has no port of that name and protocol"


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    keys: Iterable[ServiceKey] = now.services if touched is None else sorted(touched.services)
    found: dict[Any, Any] = {}
    ranges = now.service_ranges
    for key in keys:
        service = now.services.get(key)
        if service is not None:
            mine = frontends(now, key)
            found |= mine
            found |= {ExternalKey(f): True for f in mine if f.address not in service.cluster_ips}
            own = now.node.addresses  # a Service there must not shut the node
            alone = [a for a in service.cluster_ips if a not in own and not any(a in cidr for cidr in ranges)]
            found |= {ServiceRangeKey(a, a): True for a in alone}
            found |= {ExternalIPKey(a): True for a in service.external_ips}
    if touched is None or touched.ranges:
        found |= {ServiceRangeKey(cidr.first, cidr.last): True for cidr in ranges}
    return {"nftables": found}


def frontends(now: Snapshot, key: ServiceKey) -> dict[Frontend, frozenset[Backend]]:
    """The frontends that this Service owns."""
    service = now.services.get(key)
    if service is None:
        return {}
    serving = _serving(now, key)
    found: dict[Frontend, frozenset[Backend]] = {}
    for port in service.ports:
        for _, frontend in of_port(service, port, now.node):
            if owner(now, frontend) == key:
                backends = serving.get((port.name, port.protocol, len(frontend.address)), ())
                found[frontend] = frozenset(backends)
    return found


def _serving(now: Snapshot, key: ServiceKey) -> dict[tuple[str, Protocol, int], set[Backend]]:
    """By name and protocol of the ServicePort, and the size of an address."""
    found: dict[tuple[str, Protocol, int], set[Backend]] = {}
    for slice_key in now.slices_of.get(key, ()):
        part = now.slices[slice_key]
        ready = [member.address for member in part.members if left_out(member) is None]
        for port in part.ports:
            for address in ready:
                into = found.setdefault((port.name, port.protocol, len(address)), set())
                into.add(Backend(address, port.port))
    return found


def left_out(member: Member) -> LeftOut | None:
    """None: it serves."""
    return None if member.ready else LeftOut.NOT_READY


def claimed(service: Service, node: Node) -> frozenset[Frontend]:
    """The frontends that a Service names on this node, whether or not it gets them."""
    return frozenset(frontend for port in service.ports for _, frontend in of_port(service, port, node))


def claims_of(service: Service, node: Node) -> frozenset[Claim]:
    """All that another Service could claim too: what becomes of it depends on both."""
    return claimed(service, node) | {*service.cluster_ips, *service.external_ips}


def node_port_addresses(node: Node) -> tuple[Address, ...]:
    """Where node ports are: the first address of each family (KEP-3866, nodePortAddresses "primary")."""
    found: dict[int, Address] = {}
    for address in node.addresses:
        found.setdefault(len(address), address)
    return tuple(found.values())


def of_port(service: Service, port: ServicePort, node: Node) -> Iterator[tuple[Kind, Frontend]]:
    """The frontends of one ServicePort on this node."""
    for address in service.cluster_ips:
        yield Kind.CLUSTER_IP, Frontend(address, port.protocol, port.port)
    for address in service.external_ips:
        yield Kind.EXTERNAL_IP, Frontend(address, port.protocol, port.port)
    if port.node_port and service.cluster_ips:
        families = {len(address) for address in service.cluster_ips}
        for address in node_port_addresses(node):
            if len(address) in families:
                yield Kind.NODE_PORT, Frontend(address, port.protocol, port.node_port)


def owner(now: Snapshot, frontend: Frontend) -> ServiceKey:
    """The oldest of those that claim it. Raises KeyError where none does."""
    claimants = now.claims[frontend]
    if len(claimants) == 1:
        return next(iter(claimants))
    return min(claimants, key=lambda key: (now.services[key].created, key.namespace, key.name))
