"""Networks that belong to tenants, and what is in them. The words of the world, as in `objects.py`.

Invariants: as there. A value is what a provider has made or is to make; what a user asks for is a `NetworkRequest`. Two
tenants' values may well have the same addresses: only with its network does an address mean anything.
"""

from enum import StrEnum

from podwire.model.addresses import Address, Prefix
from podwire.model.objects import Value


class NetworkStatus(StrEnum):
    """Of a network, as its provider has it, and of the object that asks for it."""

    INITIALIZING = "Initializing"
    """Accepted, and not yet looked at."""
    ACTIVE = "Active"
    PENDING = "Pending"
    """Accepted, and its provider is at it."""
    FAILED = "Failed"
    TERMINATING = "Terminating"
    """It goes once its last pod has left."""


class LoadBalancerType(StrEnum):
    TCP = "TCP"
    UDP = "UDP"
    HTTP = "HTTP"
    HTTPS = "HTTPS"


class Affinity(StrEnum):
    """Kubernetes' spec.sessionAffinity."""

    NONE = "None"
    CLIENT_IP = "ClientIP"


class Route(Value, frozen=True):
    """Pods of the subnet send to `destination` by way of `next_hop`."""

    next_hop: Address
    destination: Prefix
    name: str = ""


class Subnet(Value, frozen=True):
    """`gateway` None: the provider chooses. `dns_servers`: what its pods ask for names."""

    name: str
    cidr: Prefix
    gateway: Address | None = None
    routes: tuple[Route, ...] = ()
    dns_servers: tuple[Address, ...] = ()
    tenant_id: str = ""
    uid: str = ""


class Network(Value, frozen=True):
    """`segment_id` 0: not given yet; which segment of the network between the nodes it is (VXLAN: VNI)."""

    name: str
    tenant_id: str = ""
    subnets: tuple[Subnet, ...] = ()
    segment_id: int = 0
    uid: str = ""
    status: NetworkStatus = NetworkStatus.INITIALIZING


class HostPort(Value, frozen=True):
    """A member of a load balancer: `target_port` of `address`, for those who ask for `service_port`."""

    address: Address
    service_port: int
    target_port: int
    name: str = ""


class LoadBalancer(Value, frozen=True):
    """`vip` None: the provider chooses. `external_ips`: where it is reached from outside of the network."""

    name: str
    tenant_id: str = ""
    type: LoadBalancerType = LoadBalancerType.TCP
    vip: Address | None = None
    external_ips: tuple[Address, ...] = ()
    subnets: tuple[Subnet, ...] = ()
    hosts: tuple[HostPort, ...] = ()
    status: str = ""
    uid: str = ""


class NetworkKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"network/{self.name}"


class SubnetRequest(Value, frozen=True):
    cidr: Prefix
    gateway: Address | None = None


class NetworkRequest(Value, frozen=True):
    """What a Network object asks for. `subnets` by name, sorted; none where `provider_network_id` names a network that
    the provider has already."""

    tenant_id: str
    subnets: tuple[tuple[str, SubnetRequest], ...] = ()
    provider_network_id: str = ""
