"""Health check node ports: who has which, where it listens, and how many backends it tells of. Pure.

Invariants: a port has one holder, the oldest Service that names it. It listens where node ports are, in the Service's
own families, and tells of each family apart: a load balancer that comes by IPv4 sends its clients to IPv4 backends.
Only ready backends count, as with kube-proxy (KEP-1669): where all are on their way out, they still serve who comes,
but nobody should be sent.
"""

from typing import NamedTuple

from podwire.model.addresses import Address, Family
from podwire.model.objects import ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import node_port_addresses, oldest


class Place(NamedTuple):
    """Where TCP connections are taken."""

    address: Address
    port: int


def holder(now: Snapshot, port: int) -> ServiceKey | None:
    """Of the Services that name this health check node port, the one that has it."""
    named = now.health_ports.get(port, frozenset())
    return oldest(now, named) if named else None


def places_of(now: Snapshot, key: ServiceKey) -> tuple[Place, ...]:
    """Where this Service's port listens, were it the holder."""
    service = now.services[key]
    families = {len(address) for address in service.cluster_ips}
    if not service.health_port:
        return ()
    here = node_port_addresses(now)
    return tuple(Place(address, service.health_port) for address in here if len(address) in families)


def listening(now: Snapshot) -> dict[Place, ServiceKey]:
    """Where this node listens, and for whom."""
    held = {holder(now, port) for port in now.health_ports}
    return {place: key for key in sorted(filter(None, held)) for place in places_of(now, key)}


def local_backends(now: Snapshot, key: ServiceKey, family: Family) -> int:
    """How many ready pods (addresses) of this node answer for any port of the Service."""
    service = now.services[key]
    wanted = {(port.name, port.protocol) for port in service.ports}
    slices = (now.slices[name] for name in now.slices_of.get(key, ()))
    return len(
        {
            member.address
            for part in slices
            if any((port.name, port.protocol) in wanted for port in part.ports)
            for member in part.members
            if member.ready and member.node == now.local.name and len(member.address) == family.size
        }
    )
