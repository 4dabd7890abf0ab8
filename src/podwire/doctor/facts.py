"""What the doctor knows of a node when it judges: plain values, gathered by `read/`. Pure.

Invariants: a fact that could not be had is `Unseen`, with the reason. Text is as the kernel or the file has it; an
error is its words, "" for none.
"""

from collections.abc import Mapping

from msgspec import Struct

from podwire.doctor.findings import Unseen
from podwire.drift import DriftView
from podwire.model.addresses import Address, Family, Prefix
from podwire.model.snapshot import Transport
from podwire.views import StatusView


class Setup(Struct, frozen=True):
    """How the doctor was asked, and what the agent's configuration says. `config`: the file, "" for none; `error`: what
    is wrong with it. `mtu` None: detected. `vxlan`: VNI and UDP port. `container`: the node's own files and processes
    are not to be seen."""

    version: str
    now: float = 0.0
    root: bool = True
    container: bool = False
    config: str = ""
    error: str = ""
    node: str = ""
    state_dir: str = ""
    kubernetes: bool = False
    mtu: int | None = None
    transport: Transport = Transport.AUTO
    vxlan: tuple[int, int] = (28791, 4789)
    service_cidrs: tuple[Prefix, ...] = ()
    plugin: str = "/opt/cni/bin/podwire"
    conf_dir: str = "/etc/cni/net.d"


# --- the kernel --------------------------------------------------------------------------------


class Trial(Struct, frozen=True):
    """What was tried in an empty namespace: errors, "" where it worked. `rules` by family; `marks`: what did not come
    back as it was written (addresses, neighbours, routes, other names of links)."""

    rules: Mapping[str, str]
    nat: str = ""
    veth: str = ""
    marks: tuple[str, ...] = ()
    vxlan: str = ""


class Kernel(Struct, frozen=True):
    """`capabilities`: of those that an agent needs, the ones this process lacks. `libnftables`: why it can't be loaded.
    `python`: the node's own for the CNI plugin, or NATIVE where that needs none."""

    release: str
    capabilities: tuple[str, ...]
    libnftables: str
    python: str | Unseen
    trial: Trial | Unseen


# --- settings ----------------------------------------------------------------------------------


class InterfaceSettings(Struct, frozen=True):
    """Below net/ipv4/conf and net/ipv6/conf; None: there is no such setting."""

    forwarding: str | None = None
    rp_filter: str | None = None
    accept_ra: str | None = None
    disable_ipv6: str | None = None


class Assignment(Struct, frozen=True):
    """A line of sysctl.d(5) that is in force: the last one for its key."""

    file: str
    key: str
    value: str


class Settings(Struct, frozen=True):
    """`values` by path below /proc/sys; `interfaces` by name, `all` and `default` among them. `tracked`: connections of
    this namespace, and how many may be."""

    values: Mapping[str, str | None]
    interfaces: Mapping[str, InterfaceSettings]
    tracked: tuple[int, int] | None
    boot: tuple[Assignment, ...] | Unseen


# --- links, addresses, routes ------------------------------------------------------------------


class LinkFact(Struct, frozen=True):
    """`vxlan`: of a VXLAN interface its VNI and UDP port."""

    name: str
    mtu: int
    vxlan: tuple[int, int] | None = None


class AddressFact(Struct, frozen=True):
    """On an interface, with the prefix it reaches. `ours`: Podwire's mark."""

    link: str
    address: Address
    prefix: Prefix
    ours: bool


class RouteFact(Struct, frozen=True):
    """Of the main table. `learned`: by a router advertisement."""

    destination: Prefix
    link: str
    ours: bool = False
    learned: bool = False
    metric: int = 0


class Network(Struct, frozen=True):
    links: tuple[LinkFact, ...]
    addresses: tuple[AddressFact, ...]
    routes: tuple[RouteFact, ...]

    def link(self, name: str) -> LinkFact | None:
        return next((link for link in self.links if link.name == name), None)

    def default_route(self, family: Family | None = None) -> RouteFact | None:
        """The best one; IPv4 before IPv6."""
        found = [
            route
            for route in self.routes
            if route.destination.length == 0 and family in (None, route.destination.family)
        ]
        return min(found, key=lambda route: (len(route.destination.first), route.metric, route.link), default=None)


# --- packet filters ----------------------------------------------------------------------------


class Rule(Struct, frozen=True):
    """`conditions`: `in NAME`, `out NAME` (a trailing `*` for any rest), `from RANGE`, `to RANGE`, `family ip` or
    `family ip6`, and `other` for all else. `verdict`: accept, drop, reject, return, `jump NAME`, `goto NAME`, or "" for
    none that matters."""

    conditions: tuple[str, ...]
    verdict: str


class Chain(Struct, frozen=True):
    """`family`: ip, ip6 or inet. `hook`: forward, for a base chain there; else "". `policy`: accept or drop."""

    family: str
    table: str
    name: str
    hook: str = ""
    policy: str = ""
    rules: tuple[Rule, ...] = ()


class Filters(Struct, frozen=True):
    """`tables`: of nftables, as `FAMILY NAME`. `chains` with rules only for tables that have a chain at forward.
    `legacy`: chains of iptables' old form; its tables count as `FAMILY legacy:NAME`."""

    tables: tuple[str, ...]
    chains: tuple[Chain, ...]
    legacy: tuple[Chain, ...] | Unseen
    sealed: Mapping[str, bool | None]
    """By family, whether Podwire's constant rules read as this version's; None: there are none."""


# --- others ------------------------------------------------------------------------------------


class Others(Struct, frozen=True):
    """`processes`: names of programs in this network namespace. `health`: what answers as kube-proxy. `ipvs`: virtual
    servers. `programs`: BPF programs at the cgroup and at interfaces, as `PLACE: NAME`. `keeps_routes`:
    whether systemd-networkd leaves those of others; None: not said."""

    processes: frozenset[str] | Unseen
    health: str = ""
    ipvs: int = 0
    programs: tuple[str, ...] | Unseen = ()
    keeps_routes: bool | None = None


# --- the cluster -------------------------------------------------------------------------------


class Server(Struct, frozen=True):
    """`error`: why it gave no good answer. `status` 0: it gave none. `expires` and `clock` in seconds since the epoch:
    its certificate's end, and its Date."""

    address: str
    error: str = ""
    status: int = 0
    expires: float | None = None
    clock: float | None = None


class Right(Struct, frozen=True):
    """What an agent does with the API. `vital`: nothing works without it."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    vital: bool = True

    def __str__(self) -> str:
        whole = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {whole}{f'.{self.group}' if self.group else ''}"


class Api(Struct, frozen=True):
    """`error`: the access itself is not right. `client`: the end of our own certificate."""

    error: str = ""
    servers: tuple[Server, ...] = ()
    client: float | None = None
    refused: tuple[Right, ...] | Unseen = ()


class NodeFact(Struct, frozen=True):
    """`pool_blocks`: what it has of pools, sorted."""

    pod_cidrs: tuple[Prefix, ...]
    addresses: tuple[Address, ...]
    pool_blocks: tuple[Prefix, ...] = ()

    @property
    def blocks(self) -> tuple[Prefix, ...]:
        return (*self.pod_cidrs, *self.pool_blocks)


class Cluster(Struct, frozen=True):
    """From wherever the agent has its objects. `service_cidrs`: of the cluster and of the configuration. `pools`: the
    ranges of PodPools by name; none where only the name is known."""

    nodes: Mapping[str, NodeFact]
    service_cidrs: tuple[Prefix, ...] = ()
    pools: Mapping[str, tuple[Prefix, ...]] = {}


# --- CNI ---------------------------------------------------------------------------------------


NATIVE = "native"
"""In the place of an interpreter."""


class Plugin(Struct, frozen=True):
    """The executable. `interpreter`: of its first line, "" where there is none to be found, NATIVE where it needs none.
    `missing`: files that should be beside it. `same`: as this version would install it. `socket`, `spool`: its
    settings; `error`: why they can't be read."""

    there: bool
    executable: bool = False
    interpreter: str = ""
    missing: tuple[str, ...] = ()
    same: bool = True
    socket: str = ""
    spool: str = ""
    error: str = ""
    loopback: bool = True


class Conflist(Struct, frozen=True):
    """A file of the runtime's directory, as far as it could be read. `types`: of its plugins."""

    name: str
    types: tuple[str, ...] = ()
    error: str = ""


class Cni(Struct, frozen=True):
    """`conflists`: in the order of a runtime, None where there is no such directory. `answers` by command: the plugin's
    socket said so, "" where all is well. `spool`: DELs that wait, and those that could not be read."""

    plugin: Plugin | Unseen
    conflists: tuple[Conflist, ...] | Unseen | None
    answers: Mapping[str, str] | Unseen
    spool: tuple[int, int] | Unseen = (0, 0)


# --- the agent ---------------------------------------------------------------------------------


class Agent(Struct, frozen=True):
    """`failures`: the last events that ended in an error, in words. `drift` Unseen: it could not be asked for."""

    status: StatusView
    failures: tuple[str, ...] = ()
    drift: tuple[DriftView, ...] | Unseen = ()


class Absent(Struct, frozen=True):
    """No agent answers. `refused`: there may be one that we may not ask."""

    why: str
    refused: bool = False


class Disk(Struct, frozen=True):
    """Of the state directory. `free`: bytes; `writable`: its file system is."""

    there: bool
    free: int = 0
    writable: bool = True


class Facts(Struct, frozen=True):
    setup: Setup
    kernel: Kernel
    settings: Settings
    network: Network
    filters: Filters | Unseen
    others: Others
    api: Api | Unseen
    cluster: Cluster | Unseen
    cni: Cni
    agent: Agent | Absent
    disk: Disk | Unseen

    @property
    def installed(self) -> bool:
        """Whether something of Podwire is on the node already."""
        if isinstance(self.agent, Agent):
            return True
        plugin, conflists = self.cni.plugin, self.cni.conflists
        return (isinstance(plugin, Plugin) and plugin.there) or (
            isinstance(conflists, tuple) and any(it.types[:1] == ("podwire",) for it in conflists)
        )

    @property
    def blocks(self) -> tuple[Prefix, ...]:
        """The node's own pod ranges, as far as known."""
        if isinstance(self.cluster, Cluster) and self.setup.node in self.cluster.nodes:
            return self.cluster.nodes[self.setup.node].blocks
        return ()

    @property
    def families(self) -> frozenset[Family]:
        """Of the node's pods and of the Services, as far as known."""
        ranges = self.cluster.service_cidrs if isinstance(self.cluster, Cluster) else self.setup.service_cidrs
        return frozenset(range_.family for range_ in (*self.blocks, *ranges))
