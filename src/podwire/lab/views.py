"""A lab as those who ask see it: frozen values. Pure.

Invariants: names are those that a user types; addresses are text.
"""

from msgspec import Struct


class NodeView(Struct, frozen=True):
    """`agent`: how it is, in words; `pid` None where it doesn't run. `space`: the namespace's name. `link`:
    which one of the fabric's."""

    name: str
    on: bool
    agent: str
    pid: int | None
    addresses: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    space: str
    pods: int
    admin_socket: str
    link: int = 0


class PodView(Struct, frozen=True):
    """`problem` "": it runs. `workload`: KIND/NAMESPACE/NAME. `ports` as `80/TCP`, those of the node that lead to it as
    `8080/TCP to 80`, with an address before it where it has one. `space`: the namespace's name. `subdomain`: the
    Service of its namespace below which it has a name, `hostname`."""

    namespace: str
    name: str
    workload: str
    node: str
    addresses: tuple[str, ...]
    ports: tuple[str, ...]
    space: str
    problem: str = ""
    hostname: str = ""
    subdomain: str = ""
    host_ports: tuple[str, ...] = ()


class BalancerView(Struct, frozen=True):
    """An address of a load balancer. `owner`: the node that answers for it by ARP or neighbour discovery, "" nobody;
    `routes`: the nodes that tell routers of it."""

    address: str
    owner: str = ""
    routes: tuple[str, ...] = ()


class ServiceView(Struct, frozen=True):
    """`ports` as `80/TCP`, `80:30123/TCP` with a node port; `families`: IPv4, IPv6; `backends`: pods, as
    namespace/name, that serve it. `local`: whoever is outside of the cluster reaches those alone that are on the node
    that its packets come to."""

    namespace: str
    name: str
    type: str
    families: tuple[str, ...]
    cluster_ips: tuple[str, ...]
    external_ips: tuple[str, ...]
    ports: tuple[str, ...]
    backends: tuple[str, ...]
    balancers: tuple[BalancerView, ...] = ()
    local: bool = False

    @property
    def balancer_ips(self) -> tuple[str, ...]:
        return tuple(it.address for it in self.balancers)


class WorkloadView(Struct, frozen=True):
    name: str
    pods: int
    running: int


class ClientView(Struct, frozen=True):
    """`behind`: the router, not on the fabric."""

    name: str
    addresses: tuple[str, ...]
    space: str
    behind: bool = False


class LabView(Struct, frozen=True):
    """`error`: what is wrong with the manifests as they are now; the lab stays as they were before."""

    name: str
    manifests: str
    nodes: tuple[NodeView, ...]
    services: tuple[ServiceView, ...]
    workloads: tuple[WorkloadView, ...]
    pods: tuple[PodView, ...]
    clients: tuple[ClientView, ...]
    notes: tuple[str, ...]
    error: str
    problems: tuple[str, ...]
    transport: str = "auto"
    router: str = ""
    """What it is, "" where there is none."""
