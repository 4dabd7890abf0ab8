"""What the network should hold: the keys and values of the drivers.

Invariants: `space` names a network namespace: "" is the node's own, else it is a `Space`, a pod's. A value must be able
to say every state that a read can find, broken ones too: a state that can't be expressed reads as health.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

from podwire.model.addresses import IPV4, IPV6, Address, Family, Prefix, family_of, show_address, show_host_port
from podwire.model.objects import Protocol, Value

LOOPBACK = 1
"""The interface index of lo, in every network namespace."""
TUNNELS: dict[Family, str] = {IPV4: "podwire-vxlan", IPV6: "podwire-vxlan6"}
"""The names of the node's VXLAN devices, by the family of the addresses between which their packets go."""
TUNNEL_INDEX: dict[Family, int] = {IPV4: 0x7FFF_0004, IPV6: 0x7FFF_0006}
"""Their interface indexes: beyond those of pods' links (`ipam/blocks.py`)."""

# --- linux -------------------------------------------------------------------------------------


class Space(str):
    """A pod's network namespace. As text it is the device and inode that tell it from all others while it lives, so
    that keys are equal where the namespace is, whatever path led to it. `path` is how to get there, and no part of
    that. Where the inode isn't known it is the path alone, which no namespace that is looked at ever equals."""

    __slots__ = ("path",)
    path: str

    def __new__(cls, path: str, device: int = 0, inode: int = 0) -> Self:
        made = super().__new__(cls, f"{device}:{inode}" if inode else path)
        made.path = path
        return made


def path_of(space: str) -> str:
    return space.path if isinstance(space, Space) else space


class SysctlKey(Value, frozen=True):
    """A kernel setting of the node's namespace, by its path below /proc/sys."""

    path: str

    def __str__(self) -> str:
        return f"sysctl {self.path}"


class LinkKey(Value, frozen=True):
    """A veth pair, by the name of the node's end."""

    name: str

    def __str__(self) -> str:
        return f"link {self.name}"


class Link(Value, frozen=True):
    """A pod's veth pair. `index`, `node_mac`, `mtu`, `altnames` and `alias` are of the node's end; `space`, `inner` (an
    index), `interface` and `mac` of the pod's end: all empty where that is in a namespace that can't be looked into."""

    index: int
    node_mac: bytes
    space: str
    inner: int
    interface: str
    mac: bytes
    mtu: int
    altnames: tuple[str, ...]
    alias: str
    localnet: bool = False
    """Whether it may carry what the node's own 127.0.0.0/8 sends (ip-sysctl, route_localnet)."""
    astray: tuple[str, ...] = ()
    """What of the node's end is not as it was born: its name, or settings below net/ in /proc/sys."""


class TunnelKey(Value, frozen=True):
    """The node's VXLAN device for packets between addresses of this family; pods' own may be of either."""

    family: Family

    def __str__(self) -> str:
        return f"VXLAN device {TUNNELS[self.family]}"


class Tunnel(Value, frozen=True):
    """A VXLAN device. `local`: the source of what it sends, None: the kernel's choice. `mtu`: inside."""

    index: int
    vni: int
    port: int
    mac: bytes
    mtu: int
    local: Address | None
    odd: tuple[str, ...] = ()
    """What is not as we ever make it, and takes another device."""
    astray: tuple[str, ...] = ()
    """What can be put right: its name, or settings below net/ in /proc/sys."""


class ForwardKey(Value, frozen=True):
    """To which node's address a VXLAN device sends what is for a MAC address, for ever; the value is b"" for an entry
    that is not as we make it."""

    index: int
    mac: bytes

    def __str__(self) -> str:
        return f"forwarding of {self.mac.hex(':')} on {_named(self.index)}"


class IngressKey(Value, frozen=True):
    """That what goes to a pod by the link of this name is kept to a rate; the value is a Limit."""

    link: str

    def __str__(self) -> str:
        return f"rate of what {self.link} leads to its pod"


class EgressKey(Value, frozen=True):
    """The same of what comes from the pod."""

    link: str

    def __str__(self) -> str:
        return f"rate of what {self.link} leads from its pod"


class Limit(Value, frozen=True):
    """A token bucket (tc-tbf(8)). `index` is the link's end on the node; `rate` in bytes per second, `queue` in bytes,
    `fill` is how long the empty bucket takes to fill, in units of 64 ns. `through`: the index of the device that has
    the bucket of what comes from a pod, and its `mtu`; `lacks`: what of that is not there."""

    index: int
    rate: int
    queue: int
    fill: int
    through: int = 0
    mtu: int = 0
    lacks: tuple[str, ...] = ()


class UpKey(Value, frozen=True):
    """That an interface is up. The value is True, or for a pod's end its MTU."""

    space: str
    index: int

    def __str__(self) -> str:
        return f"{_named(self.index)} up{_within(self.space)}"


class AddressKey(Value, frozen=True):
    space: str
    index: int
    address: Address

    def __str__(self) -> str:
        return f"address {show_address(self.address)} on {_named(self.index)}{_within(self.space)}"


class RouteKey(Value, frozen=True):
    """A route of the main table (`table` 0), or of one of a pod's own. `metric` 0 is the family's default; like `tos`
    it is a part of what the kernel tells routes apart by."""

    space: str
    destination: Prefix
    metric: int = 0
    tos: int = 0
    table: int = 0

    def __str__(self) -> str:
        metric = f" metric {self.metric}" if self.metric else ""
        tos = f" tos {self.tos:#x}" if self.tos else ""
        table = f" table {self.table}" if self.table else ""
        return f"route {self.destination}{metric}{tos}{table}{_within(self.space)}"


class RuleKey(Value, frozen=True):
    """That what a pod sends from one of its addresses goes by a table of its own (ip-rule(8)); the value is its number,
    -1 for a rule that is not as we make it."""

    space: str
    address: Address
    priority: int = 1000

    def __str__(self) -> str:
        return f"rule {self.priority} from {show_address(self.address)}{_within(self.space)}"


class Route(Value, frozen=True):
    """`index` 0 with a `via`: whatever interface reaches the gateway; a read always finds a real one. `onlink`: the
    gateway is on that interface, whatever the addresses there say. `odd`: what is not as we ever make it (a blackhole,
    several next hops), in words."""

    index: int
    via: Address | None = None
    source: Address | None = None
    odd: str = ""
    onlink: bool = False


class NeighbourKey(Value, frozen=True):
    """A permanent neighbour; the value is its MAC address, b"" for one that is not permanent."""

    space: str
    index: int
    address: Address

    def __str__(self) -> str:
        return f"neighbour {show_address(self.address)} on {_named(self.index)}{_within(self.space)}"


class PodMAC(Value, frozen=True):
    """In place of a MAC address: that of the pod's end of the link of this name, which its owner may change. `born`:
    the one that it is born with."""

    link: str
    born: bytes


def _named(index: int) -> str:
    return next((TUNNELS[family] for family, its in TUNNEL_INDEX.items() if its == index), f"interface {index}")


def _within(space: str) -> str:
    return f" in {path_of(space)}" if space else ""


# --- Services ----------------------------------------------------------------------------------


class Frontend(Value, frozen=True):
    """Where clients reach a ServicePort."""

    address: Address
    protocol: Protocol
    port: int

    @property
    def family(self) -> Family:
        return family_of(self.address)

    def __str__(self) -> str:
        return f"frontend {show_host_port(self.address, self.port)}/{self.protocol.name}"


class Backend(Value, frozen=True):
    """What answers for a frontend: packets arrive with this address and port."""

    address: Address
    port: int

    def __str__(self) -> str:
        return show_host_port(self.address, self.port)


class InternalKey(Value, frozen=True):
    """A frontend as clients in the cluster find it, where others are given another list (externalTrafficPolicy Local).
    Its value is a Serving, in the kernel Slots."""

    frontend: Frontend

    @property
    def address(self) -> Address:
        return self.frontend.address

    def __str__(self) -> str:
        return f"{self.frontend} for the cluster"


class Serving(Value, frozen=True):
    """What answers for a frontend: its backends, sorted and each once.

    Without backends it is refused; `dropped`: it is passed over in silence, since others answer for it elsewhere.
    Those in `heavy` count `weight` times. `affinity`: a client keeps its backend for that many seconds, 0: not at all.
    `outside`: it is not for clients in the cluster, who have another list (`InternalKey`).
    """

    backends: tuple[Backend, ...] = ()
    dropped: bool = False
    affinity: int = 0
    heavy: frozenset[Backend] = frozenset()
    weight: int = 1
    outside: bool = False


MOST_LISTED = 16


def listed(words: Iterable[str], between: str = ", ") -> str:
    """The first few of them, and how many more there are."""
    told = list(words)
    more = len(told) - MOST_LISTED
    return between.join([*told[:MOST_LISTED], f"and {more} more"] if more > 0 else told)


def room_of(value: object) -> int:
    """How much a value takes up where it lies; None is nothing."""
    return 0 if value is None else 1 + (len(value.backends) if isinstance(value, Slots) else 0)


class Slots(NamedTuple):
    """A frontend as nftables holds it.

    `verdict` is its capacity class (1, 2, 4, 8 …), None where it has none, -1 where it is none that we give. Where
    clients are remembered for `affinity` seconds it has none, and whom nobody remembers goes to the class `drawn`;
    those in `keeps` keep the clients that are remembered with them: where it is right, all backends. Right is: as many
    slots as the class, the lower half of them full; or no class and no slots, and it stands either among the `refused`
    or among the `dropped`. `outside`: its class is not for clients in the cluster.
    """

    verdict: int | None
    backends: tuple[Backend | None, ...] = ()
    refused: bool = False
    dropped: bool = False
    affinity: int = 0
    drawn: int | None = None
    keeps: frozenset[Backend] = frozenset()
    outside: bool = False

    @property
    def kind(self) -> str:
        names = {None: "", -1: "a foreign verdict"}
        marks = [names.get(self.verdict, f"class {self.verdict}")]
        marks += [f"affinity {self.affinity} s"] * (self.affinity > 0)
        marks += [names.get(self.drawn, f"class {self.drawn} for the unknown")]
        odd = self.keeps.symmetric_difference(it for it in self.backends if it is not None and self.affinity > 0)
        marks += ["clients kept by others than answer"] * bool(odd)
        marks += ["refused"] * self.refused + ["dropped"] * self.dropped + ["for the outside"] * self.outside
        return " and ".join(mark for mark in marks if mark) or "no verdict"

    def __str__(self) -> str:
        held = listed(str(b) for b in self.backends if b is not None)
        return f"{self.kind}: {held}" if held else self.kind


class AlienKey(Value, frozen=True):
    """An element of our maps that no key of ours makes: somebody's hand. `element` is as the kernel gave it."""

    family: Family
    holder: str
    element: bytes

    def __str__(self) -> str:
        return f"foreign element {self.element.hex()} in {self.holder} ({self.family})"


class ServiceRangeKey(Value, frozen=True):
    """Addresses that are only Services', both ends included: whatever no frontend takes there is refused."""

    first: Address
    last: Address

    def __str__(self) -> str:
        first, last = show_address(self.first), show_address(self.last)
        return f"service range {first}" if first == last else f"service range {first} to {last}"


class ExternalKey(Value, frozen=True):
    """A frontend outside of the service ranges: its clients may be anywhere, so answers must come back by this node."""

    frontend: Frontend

    def __str__(self) -> str:
        return f"external {self.frontend}"


class RestrictedKey(Value, frozen=True):
    """A frontend that only some may use (loadBalancerSourceRanges): see AllowedKey."""

    frontend: Frontend

    def __str__(self) -> str:
        return f"restricted {self.frontend}"


class AllowedKey(Value, frozen=True):
    """Who may use a restricted frontend."""

    frontend: Frontend
    sources: Prefix

    def __str__(self) -> str:
        return f"{self.sources} to {self.frontend}"


class ClusterRangeKey(Value, frozen=True):
    """Addresses of the cluster's pods, of whatever node; both ends included."""

    first: Address
    last: Address

    def __str__(self) -> str:
        return f"pods of the cluster {show_address(self.first)} to {show_address(self.last)}"


class UnmasqueradedKey(Value, frozen=True):
    """Addresses to which pods go by their own address; both ends included. To all others they go by the node's."""

    first: Address
    last: Address

    def __str__(self) -> str:
        return f"not masqueraded {show_address(self.first)} to {show_address(self.last)}"


class ExternalIPKey(Value, frozen=True):
    """An external IP or load balancer's address of some Service: what comes to it from elsewhere and no frontend takes
    is refused, since passing it on would send it back to where it came from."""

    address: Address

    def __str__(self) -> str:
        return f"external IP {show_address(self.address)}"


class TunnelEndKey(Value, frozen=True):
    """An address from and to which VXLAN goes: this node's own, and those of nodes that it reaches so."""

    address: Address

    def __str__(self) -> str:
        return f"end of VXLAN {show_address(self.address)}"


class TunnelPortKey(Value, frozen=True):
    """The UDP port of this node's VXLAN device for packets between addresses of this family."""

    family: Family
    port: int

    def __str__(self) -> str:
        return f"port of VXLAN {self.port} ({self.family})"


class LocalPodKey(Value, frozen=True):
    """A pod of this node: its answers come by here, and it must see another source where it reaches itself."""

    address: Address

    def __str__(self) -> str:
        return f"local pod {show_address(self.address)}"


class RememberKey(Value, frozen=True):
    """That clients of a frontend are remembered when they connect; the value says for how many seconds, or is -1 where
    a foreign verdict stands."""

    frontend: Frontend

    def __str__(self) -> str:
        return f"memory of {self.frontend}"


class SharedKey(Value, frozen=True):
    """Under which frontend the clients of this one are remembered; the value is that Frontend, of the same protocol.
    All of one ServicePort and family share one."""

    frontend: Frontend

    def __str__(self) -> str:
        return f"shared memory of {self.frontend}"


class AffinityKey(Value, frozen=True):
    """What remembers clients for so many seconds: a map and the chains that ask and fill it. The value is False where
    they are altered."""

    family: Family
    seconds: int

    def __str__(self) -> str:
        return f"affinity of {self.seconds} s ({self.family})"


class HostPortKey(Value, frozen=True):
    """A port of the node's own that leads to a pod's; the value is that Backend. An address of all zeros stands for all
    that the node has in the family, and gives way to one that is named."""

    frontend: Frontend

    def __str__(self) -> str:
        return f"host port {show_host_port(self.frontend.address, self.frontend.port)}/{self.frontend.protocol.name}"


class HoldersKey(Value, frozen=True):
    """The maps, sets and capacity classes of one family, into which elements are put; the value is False where one is
    missing."""

    family: Family

    def __str__(self) -> str:
        return f"maps of {self.family}"


class RulesKey(Value, frozen=True):
    """The constant rules of one family; the value is False for foreign or altered ones."""

    family: Family

    def __str__(self) -> str:
        return f"rules of {self.family}"


# --- store -------------------------------------------------------------------------------------


class PodMTUKey(Value, frozen=True):
    """The MTU of pod interfaces, for a start at which the node can't tell it."""

    def __str__(self) -> str:
        return "MTU of pods"


class UnfilledKey(Value, frozen=True):
    """That the store was made anew and no resync has filled it since: what it should hold is elsewhere, or nowhere.
    Nobody ever wants it."""

    def __str__(self) -> str:
        return "mark of a store that is not filled yet"


class CursorKey(Value, frozen=True):
    """Where the next search in a block begins, so that a fresh address is not the one just released."""

    block: Prefix

    def __str__(self) -> str:
        return f"cursor of {self.block}"
