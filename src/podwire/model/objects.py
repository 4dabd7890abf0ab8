"""What the cluster's objects mean to the network: the words of the world, free of any API's form.

Invariants: all values are frozen and hashable. A key names an object (`ServiceKey`), the value beside it says what it
holds and never repeats the key. Only `sources/` knows how Kubernetes spells these.
"""

from enum import IntEnum, StrEnum

from msgspec import Struct

from podwire.model.addresses import IPV4, Address, AddressRange, Family, Prefix


class Value(Struct, frozen=True, order=True, gc=False):
    """The base of all values. `gc=False`: they hold no cycles, and a hundred thousand of them are common."""


class Protocol(IntEnum):
    """IP protocol numbers (IANA)."""

    TCP = 6
    UDP = 17
    SCTP = 132


# --- keys --------------------------------------------------------------------------------------


class NamespaceKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"namespace/{self.name}"


class NodeKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"node/{self.name}"


class PodKey(Value, frozen=True):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"pod/{self.namespace}/{self.name}"


class ServiceKey(Value, frozen=True):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"service/{self.namespace}/{self.name}"


class SliceKey(Value, frozen=True):
    """A slice of a Service's backends, by its own name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"slice/{self.namespace}/{self.name}"


class ServiceCIDRKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"servicecidr/{self.name}"


class PodPoolKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"podpool/{self.name}"


class PodBlockKey(Value, frozen=True):
    """There is one block of a CIDR at most: its object's name is made of it."""

    cidr: Prefix

    def __str__(self) -> str:
        return f"podblock/{self.cidr}"


class AttachmentKey(Value, frozen=True):
    """One interface of one pod sandbox: (CNI_CONTAINERID, CNI_IFNAME)."""

    sandbox: str
    interface: str

    def __str__(self) -> str:
        return f"attachment/{self.sandbox}/{self.interface}"


# --- values ------------------------------------------------------------------------------------


class Namespace(Value, frozen=True):
    """`pool`: the PodPool that its pods ask for where they name none themselves, "": none."""

    labels: tuple[tuple[str, str], ...] = ()
    pool: str = ""


class Node(Value, frozen=True):
    """`pod_cidrs`: Node.spec.podCIDRs. `addresses`: its InternalIPs in the order the object gives them. `leaving`: it
    is being deleted, or the cluster autoscaler is about to (KEP-3836). `uid`: another one where the object was made
    anew, "" in manifests. `ready`: its condition Ready, where it has one; `unavailable`: NetworkUnavailable.
    `cordoned`: no new pods come to it, as where somebody has drained it."""

    pod_cidrs: tuple[Prefix, ...] = ()
    addresses: tuple[Address, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    leaving: bool = False
    uid: str = ""
    ready: bool = True
    unavailable: bool = False
    cordoned: bool = False


class Pod(Value, frozen=True):
    """`uid`: of this very pod, which may have the name of an earlier one. `pool` and `fixed`: the PodPool and the
    addresses that it asks for, as its annotations say; "": none."""

    node: str = ""
    addresses: tuple[Address, ...] = ()
    host_network: bool = False
    uid: str = ""
    pool: str = ""
    fixed: str = ""


class ServicePort(Value, frozen=True):
    """`name` ties it to the ports of the slices; `node_port` 0: none."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0


class Service(Value, frozen=True):
    """A Service that has addresses of its own; a headless or ExternalName one has none, nor ports.

    `created` is the object's creationTimestamp (RFC 3339, so text order is time order): of two Services that claim
    one frontend the older has it. `balancer_ips`: those of status.loadBalancer.ingress that packets reach as they are
    (ipMode VIP, KEP-1860). `source_ranges`: who may use these. `affinity`: for how many seconds after its last new
    connection a client keeps its backend, 0: not at all. `external_local`, `internal_local`: the traffic policies.
    `health_port`: where load balancers ask each node by HTTP whether it has backends (healthCheckNodePort), 0: nowhere.
    `labels` are the object's, sorted. `assigned`: what the cluster's controller says of its load balancer's addresses,
    "" nothing.
    """

    ports: tuple[ServicePort, ...]
    cluster_ips: tuple[Address, ...] = ()
    external_ips: tuple[Address, ...] = ()
    created: str = ""
    balancer_ips: tuple[Address, ...] = ()
    source_ranges: tuple[Prefix, ...] = ()
    affinity: int = 0
    external_local: bool = False
    internal_local: bool = False
    health_port: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    assigned: str = ""


class BackendPort(Value, frozen=True):
    """A port that all members of a slice listen on; `name` is that of the ServicePort."""

    name: str
    protocol: Protocol
    port: int


class Hints(Value, frozen=True):
    """Whose clients a member should serve: those of these zones and nodes, both sorted."""

    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


NO_HINTS = Hints()


class Member(Value, frozen=True):
    """One pod (or other host) in a slice. Its first address is the one that serves (EndpointSlice API). `pod`: its
    namespace and name with a slash between; "" where it is none, or not told.
    """

    address: Address
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""
    zone: str = ""
    pod: str = ""
    hints: Hints = NO_HINTS

    @property
    def target(self) -> PodKey | None:
        return PodKey(*self.pod.split("/", 1)) if self.pod else None


class BackendSlice(Value, frozen=True):
    service: ServiceKey
    ports: tuple[BackendPort, ...]
    members: tuple[Member, ...]


class ServiceCIDR(Value, frozen=True):
    """Ranges from which cluster IPs are given; those of several objects may overlap (KEP-1880)."""

    prefixes: tuple[Prefix, ...]


class Operator(StrEnum):
    """Of a requirement on labels (Kubernetes API, LabelSelectorRequirement)."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Value, frozen=True):
    """What labels must be like. `values`, sorted: of the first two operators only."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def is_met(self, labels: tuple[tuple[str, str], ...]) -> bool:
        value = next((value for key, value in labels if key == self.key), None)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None


class PodPool(Value, frozen=True):
    """Ranges that pods get addresses from, beside their node's podCIDRs. Nodes take blocks of it, of these lengths.
    `reserved`: what no pod gets that does not ask for it, sorted. `auto_assign`: pods that name no pool get of it too.
    `node_selector`: all of these must be met by the labels of a node whose pods get of it."""

    cidrs: tuple[Prefix, ...]
    block_sizes: tuple[int, int] = (26, 122)
    """Prefix lengths, IPv4's and IPv6's."""
    reserved: tuple[AddressRange, ...] = ()
    auto_assign: bool = True
    node_selector: tuple[Requirement, ...] = ()

    def block_size(self, family: Family) -> int:
        return self.block_sizes[0 if family == IPV4 else 1]

    def is_for(self, node: Node) -> bool:
        return all(it.is_met(node.labels) for it in self.node_selector)


class PodBlock(Value, frozen=True):
    """A part of a pool that a node has; both by name. One of a single address is for a pod that asks for that. `owner`:
    the uid of the Node with which the record goes, "" where it goes with none."""

    node: str
    pool: str
    owner: str = ""


class Rate(Value, frozen=True):
    """Bits per second, and how many bits may come at once."""

    rate: int
    burst: int


class Bandwidth(Value, frozen=True):
    """To which rates a pod's traffic is kept (CNI conventions, "bandwidth"): what it receives, and what it sends. None:
    to no rate."""

    ingress: Rate | None = None
    egress: Rate | None = None


NO_BANDWIDTH = Bandwidth()


class HostPort(Value, frozen=True):
    """A port of the node that leads to one of a pod's (CNI conventions, "portMappings"). `address` is the node's, all
    zeros: all of that family, b"": all of both. `target` is the pod's port."""

    address: Address
    protocol: Protocol
    port: int
    target: int


class Attachment(Value, frozen=True):
    """One pod interface as this node has given it.

    `netns` is the path of the pod's network namespace ("" where it is not known any more), `device` and `inode` tell
    which namespace the path led to (stat(2); 0 in the rows of older versions). `index` is the interface index of the
    node's end (allocated like an address), `confirmed` false until all of it was made: a start releases what is not.
    `uid` is the pod's in Kubernetes, `network` the name of the CNI configuration (both "" where not told, and in the
    rows of older versions). Of two attachments the later has the greater `serial`. `link` is the name of the node's end
    ("" in the rows of older versions: `pods/names.py`). `boot` is the ID of the boot in which it was made ("" in
    the rows of older versions). `host_ports`, sorted: none in the rows of older versions.
    `bandwidth`: nor any rates; `shaper` is the index of the device that keeps to what it sends, 0: none.
    `pool` is the PodPool that was asked for, "": none. `mac`: of the pod's end, b"": what follows from the link's name.
    `delegated`: another IPAM plugin has given the addresses. `routes`: where the pod sends by it, None: everywhere.
    """

    pod: PodKey
    netns: str
    addresses: tuple[Address, ...]
    index: int
    confirmed: bool = False
    device: int = 0
    inode: int = 0
    uid: str = ""
    network: str = ""
    serial: int = 0
    link: str = ""
    boot: str = ""
    host_ports: tuple[HostPort, ...] = ()
    bandwidth: Bandwidth = NO_BANDWIDTH
    shaper: int = 0
    pool: str = ""
    mac: bytes = b""
    delegated: bool = False
    routes: tuple[Prefix, ...] | None = None
