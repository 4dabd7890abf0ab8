"""Tenants' networks to the protocol's messages, and back. Pure.

Invariants: what is sent and read back is equal. What can't be read is a ProviderError that names the field; an address
that is not there is the empty text.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from podwire.model.addresses import Address, parse_address, parse_prefix, show_address
from podwire.model.tenants import (
    HostPort,
    LoadBalancer,
    LoadBalancerType,
    Network,
    NetworkStatus,
    Route,
    Subnet,
)
from podwire.tenants.provider import ProviderError
from podwire.tenants.remote import types_pb2 as pb

Read = TypeVar("Read")


# --- out ---------------------------------------------------------------------------------------


def show(address: Address | None) -> str:
    return show_address(address) if address is not None else ""


def write_network(it: Network) -> pb.Network:
    return pb.Network(
        name=it.name,
        uid=it.uid,
        tenantID=it.tenant_id,
        segmentID=it.segment_id,
        subnets=map(_write_subnet, it.subnets),
        status=it.status.value,
    )


def _write_subnet(it: Subnet) -> pb.Subnet:
    return pb.Subnet(
        name=it.name,
        uid=it.uid,
        cidr=str(it.cidr),
        gateway=show(it.gateway),
        tenantid=it.tenant_id,
        dnsservers=map(show_address, it.dns_servers),
        routes=(
            pb.Route(name=each.name, nexthop=show(each.next_hop), destinationCIDR=str(each.destination))
            for each in it.routes
        ),
    )


def write_host(it: HostPort) -> pb.HostPort:
    return pb.HostPort(name=it.name, ipaddress=show(it.address), servicePort=it.service_port, targetPort=it.target_port)


def write_balancer(it: LoadBalancer) -> pb.LoadBalancer:
    return pb.LoadBalancer(
        name=it.name,
        uid=it.uid,
        vip=show(it.vip),
        loadBalanceType=it.type.value,
        status=it.status,
        tenantID=it.tenant_id,
        externalIPs=map(show_address, it.external_ips),
        subnets=map(_write_subnet, it.subnets),
        hosts=map(write_host, it.hosts),
    )


# --- in ----------------------------------------------------------------------------------------


def _at(field: str, read: Callable[[str], Read], text: str) -> Read:
    try:
        return read(text)
    except ValueError:
        raise ProviderError(f"{field}: can't be read: {text[:100]!r}") from None


def read_address(field: str, text: str) -> Address:
    """Raises ProviderError."""
    return _at(field, parse_address, text)


def _perhaps(field: str, text: str) -> Address | None:
    return read_address(field, text) if text else None


def read_addresses(field: str, texts: Iterable[str]) -> tuple[Address, ...]:
    """Raises ProviderError."""
    return tuple(read_address(field, text) for text in texts)


def read_network(it: pb.Network) -> Network:
    """Raises ProviderError."""
    return Network(
        it.name,
        it.tenantID,
        tuple(map(_read_subnet, it.subnets)),
        it.segmentID,
        it.uid,
        _at("network.status", NetworkStatus, it.status) if it.status else NetworkStatus.INITIALIZING,
    )


def _read_subnet(it: pb.Subnet) -> Subnet:
    where = f"subnet {it.name}"
    return Subnet(
        it.name,
        _at(f"{where}.cidr", parse_prefix, it.cidr),
        _perhaps(f"{where}.gateway", it.gateway),
        tuple(
            Route(
                read_address(f"{where}.routes.nexthop", each.nexthop),
                _at(f"{where}.routes.destinationCIDR", parse_prefix, each.destinationCIDR),
                each.name,
            )
            for each in it.routes
        ),
        read_addresses(f"{where}.dnsservers", it.dnsservers),
        it.tenantid,
        it.uid,
    )


def read_host(it: pb.HostPort) -> HostPort:
    """Raises ProviderError."""
    return HostPort(read_address("hosts.ipaddress", it.ipaddress), it.servicePort, it.targetPort, it.name)


def read_balancer(it: pb.LoadBalancer) -> LoadBalancer:
    """Raises ProviderError."""
    kind = it.loadBalanceType
    return LoadBalancer(
        it.name,
        it.tenantID,
        _at("loadBalancer.loadBalanceType", LoadBalancerType, kind) if kind else LoadBalancerType.TCP,
        _perhaps("loadBalancer.vip", it.vip),
        read_addresses("loadBalancer.externalIPs", it.externalIPs),
        tuple(map(_read_subnet, it.subnets)),
        tuple(map(read_host, it.hosts)),
        it.status,
        it.uid,
    )
