"""The Kubernetes API's objects, and those of Podwire's own kinds, as far as the network reads them.

Invariants: the structs hold only the fields that mean something to the network, so the same ones decode a manifest's
mapping and the API's JSON; null counts as absent, as the API server has it. What they mean is told in `kubernetes.py`;
beside it this is the only room that says Endpoint.
"""

from msgspec import Struct, field


class Wire(Struct, frozen=True, gc=False, rename="camel"):
    """The base of the API's structs. They come as trees, so the collector need not look at them."""


class NameMeta(Wire, frozen=True):
    name: str
    namespace: str | None = None


class LabelMeta(Wire, frozen=True):
    name: str
    labels: dict[str, str] | None = None


class PoolMeta(Wire, frozen=True):
    name: str
    labels: dict[str, str] | None = None
    creation_timestamp: str | None = None


class PeerMeta(Wire, frozen=True):
    name: str
    creation_timestamp: str | None = None


class ServiceMeta(Wire, frozen=True):
    name: str
    namespace: str | None = None
    labels: dict[str, str] | None = None
    creation_timestamp: str | None = None


class SliceLabels(Wire, frozen=True):
    service: str | None = field(default=None, name="kubernetes.io/service-name")
    proxy: str | None = field(default=None, name="service.kubernetes.io/service-proxy-name")
    headless: str | None = field(default=None, name="service.kubernetes.io/headless")


class SliceMeta(Wire, frozen=True):
    name: str
    namespace: str | None = None
    labels: SliceLabels | None = None


class ServicePort(Wire, frozen=True):
    port: int
    name: str | None = None
    protocol: str | None = None
    node_port: int | None = None


class ClientIPConfig(Wire, frozen=True):
    timeout_seconds: int | None = None


class SessionAffinityConfig(Wire, frozen=True):
    client_ip: ClientIPConfig | None = field(default=None, name="clientIP")


class ServiceSpec(Wire, frozen=True):
    type: str | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = field(default=None, name="clusterIPs")
    external_ips: list[str] | None = field(default=None, name="externalIPs")
    ports: list[ServicePort] | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    external_traffic_policy: str | None = None
    internal_traffic_policy: str | None = None
    load_balancer_source_ranges: list[str] | None = None
    health_check_node_port: int | None = None


class Ingress(Wire, frozen=True):
    ip: str | None = None
    ip_mode: str | None = None


class LoadBalancerStatus(Wire, frozen=True):
    ingress: list[Ingress] | None = None


class ServiceCondition(Wire, frozen=True):
    type: str
    reason: str = ""
    message: str = ""


class ServiceStatus(Wire, frozen=True):
    load_balancer: LoadBalancerStatus | None = None
    conditions: list[ServiceCondition] | None = None


ASSIGNED = "podwire.io/AddressAssigned"
"""A condition of Services: whether one has the load balancer's addresses that it asks for."""


class Service(Wire, frozen=True):
    metadata: ServiceMeta
    spec: ServiceSpec
    status: ServiceStatus | None = None


class PodSpec(Wire, frozen=True):
    node_name: str | None = None
    host_network: bool | None = None


class PodIP(Wire, frozen=True):
    ip: str


class PodStatus(Wire, frozen=True):
    phase: str | None = None
    pod_ip: str | None = field(default=None, name="podIP")
    pod_ips: list[PodIP] | None = field(default=None, name="podIPs")


class PodAnnotations(Wire, frozen=True):
    pool: str | None = field(default=None, name="podwire.io/pool")
    addresses: str | None = field(default=None, name="podwire.io/addresses")


class PodMeta(Wire, frozen=True):
    name: str
    namespace: str | None = None
    uid: str | None = None
    annotations: PodAnnotations | None = None


class Pod(Wire, frozen=True):
    metadata: PodMeta
    spec: PodSpec
    status: PodStatus | None = None


class NodeMeta(LabelMeta, frozen=True):
    deletion_timestamp: str | None = None
    uid: str | None = None


class Taint(Wire, frozen=True):
    key: str


class NodeSpec(Wire, frozen=True):
    pod_cidr: str | None = field(default=None, name="podCIDR")
    pod_cidrs: list[str] | None = field(default=None, name="podCIDRs")
    taints: list[Taint] | None = None
    unschedulable: bool | None = None


class NodeAddress(Wire, frozen=True):
    type: str
    address: str


class NodeCondition(Wire, frozen=True):
    type: str
    status: str = ""


class NodeStatus(Wire, frozen=True):
    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None


class Node(Wire, frozen=True):
    metadata: NodeMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class NamespaceAnnotations(Wire, frozen=True):
    pool: str | None = field(default=None, name="podwire.io/pool")


class NamespaceMeta(LabelMeta, frozen=True):
    annotations: NamespaceAnnotations | None = None


class Namespace(Wire, frozen=True):
    metadata: NamespaceMeta


class EndpointPort(Wire, frozen=True):
    port: int | None = None
    name: str | None = None
    protocol: str | None = None


class EndpointConditions(Wire, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(Wire, frozen=True):
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None


class ForZone(Wire, frozen=True):
    name: str


class EndpointHints(Wire, frozen=True):
    for_zones: list[ForZone] | None = None
    for_nodes: list[ForZone] | None = None


class Endpoint(Wire, frozen=True):
    addresses: list[str]
    conditions: EndpointConditions | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: ObjectReference | None = None
    hints: EndpointHints | None = None


class EndpointSlice(Wire, frozen=True):
    metadata: SliceMeta
    address_type: str
    ports: list[EndpointPort] | None = None
    endpoints: list[Endpoint] | None = None


class ServiceCIDRSpec(Wire, frozen=True):
    cidrs: list[str] | None = None


class ServiceCIDR(Wire, frozen=True):
    metadata: NameMeta
    spec: ServiceCIDRSpec


class BlockSizes(Wire, frozen=True):
    ipv4: int | None = None
    ipv6: int | None = None


class LabelRequirement(Wire, frozen=True):
    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelRequirement] | None = None


class PodPoolSpec(Wire, frozen=True):
    cidrs: list[str] | None = None
    block_sizes: BlockSizes | None = None
    reserved: list[str] | None = None
    auto_assign: bool | None = None
    node_selector: LabelSelector | None = None


class PodPool(Wire, frozen=True):
    metadata: NameMeta
    spec: PodPoolSpec


class PodBlockSpec(Wire, frozen=True):
    cidr: str
    pool: str
    node: str


class OwnerReference(Wire, frozen=True):
    kind: str | None = None
    uid: str | None = None


class OwnedMeta(Wire, frozen=True):
    name: str
    owner_references: list[OwnerReference] | None = None


class PodBlock(Wire, frozen=True):
    metadata: OwnedMeta
    spec: PodBlockSpec


POOLS = "podwire.io/v1alpha1"
