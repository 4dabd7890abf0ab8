"""Small worlds for hypothesis: few names and addresses, so that they meet often; and a network in memory.

`Memory` is a driver as strict as the kernel: it refuses to create what is there, to change or delete what is not, and
it fails, forgets or is full when a test tells it to.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from podwire import agent
from podwire.controller import events as e
from podwire.controller.difference import Change, Difference, Outcome, Scope
from podwire.controller.snapshot import fold
from podwire.controller.transaction import Transaction
from podwire.dataplane.linux import render as linux
from podwire.dataplane.nftables import slots as nftables
from podwire.ipam.allocation import NOTHING, Wish
from podwire.model.addresses import FAMILIES, Address, Prefix, parse_address, parse_prefix, parse_range
from podwire.model.network import Frontend, HostPortKey, InternalKey, Link, Slots
from podwire.model.objects import (
    AttachmentKey,
    BackendPort,
    BackendSlice,
    Bandwidth,
    Hints,
    HostPort,
    Member,
    Node,
    NodeKey,
    Operator,
    PodBlock,
    PodBlockKey,
    PodKey,
    PodPool,
    PodPoolKey,
    Protocol,
    Rate,
    Requirement,
    Service,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.room import Capacity
from podwire.model.snapshot import Local, Snapshot
from podwire.pods.hostports import places
from podwire.services import backends
from podwire.services.frontends import serving

CAPABILITIES = agent.CAPABILITIES
NODE = NodeKey("one")
EXTERNAL = tuple(map(parse_address, ("192.0.2.1", "192.168.0.1")))
"""The second is a node's own too."""
ZONES = tuple(((backends.ZONE, zone),) for zone in "ab")
NODES = (
    Node((parse_prefix("10.1.1.0/29"), parse_prefix("fd01::/64")), (EXTERNAL[1], parse_address("fd99::1")), ZONES[0]),
    Node((parse_prefix("10.1.2.0/28"),), (parse_address("192.168.0.2"),), ZONES[1]),
    Node(),
)
HOME = tuple(map(parse_address, ("192.168.0.1", "192.168.0.2", "fd99::1")))
"""What the node's kernel may have."""
NETWORKS = tuple(map(parse_prefix, ("192.168.0.0/24", "fd99::/64")))
"""Those that it may have these addresses in: who lives in others is reached by VXLAN."""
LOCAL = Local("one", 1500, (parse_prefix("10.96.0.0/16"),), addresses=frozenset(HOME[:1]))

BALANCER = tuple(map(parse_address, ("203.0.113.80", "2001:db8::80")))
SOURCES = tuple(
    map(parse_prefix, ("10.1.0.0/16", "10.1.1.0/24", "0.0.0.0/0", "192.168.0.1/32", "fd01::/64", "fd99::/64"))
)

capacities = st.builds(
    Capacity, st.tuples(st.integers(0, 8), st.integers(0, 12), st.integers(0, 4)), st.sampled_from((2, 8192))
)
services = st.builds(
    Service,
    ports=st.lists(
        st.builds(
            ServicePort,
            st.sampled_from("pq"),
            st.sampled_from(Protocol),
            st.integers(80, 82),
            st.sampled_from((0, 80, 30080)),
        ),
        max_size=3,
        unique_by=(lambda port: port.name, lambda port: (port.protocol, port.port)),
    ).map(tuple),
    cluster_ips=st.lists(
        st.sampled_from(("10.96.0.1", "10.96.0.2", "10.97.0.3", "fd96::1", "192.168.0.1")).map(parse_address),
        max_size=2,
        unique=True,
    ).map(tuple),
    external_ips=st.lists(st.sampled_from(EXTERNAL), max_size=1).map(tuple),
    balancer_ips=st.lists(st.sampled_from((*EXTERNAL, *BALANCER)), max_size=2, unique=True).map(tuple),
    source_ranges=st.lists(st.sampled_from(SOURCES), max_size=2).map(tuple),
    affinity=st.sampled_from((0, 0, 60)),
    external_local=st.booleans(),
    internal_local=st.booleans(),
    created=st.sampled_from(("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")),
)
members = st.builds(
    Member,
    st.sampled_from([f"10.1.{n}.2" for n in range(6)] + ["fd01::2", "fd01::3"]).map(parse_address),
    ready=st.booleans(),
    serving=st.booleans(),
    terminating=st.booleans(),
    node=st.sampled_from(("", "one", "two")),
    hints=st.builds(
        Hints,
        st.sampled_from(((), (), ("a",), ("a", "b"), ("b",))),
        st.sampled_from(((), (), ("one",), ("two",))),
    ),
)
service_keys = st.builds(ServiceKey, st.just("default"), st.sampled_from("abc"))
slices = st.builds(
    BackendSlice,
    service=service_keys,
    ports=st.lists(
        st.builds(BackendPort, st.sampled_from("pq"), st.sampled_from(Protocol), st.sampled_from((8080, 9090))),
        max_size=2,
    ).map(tuple),
    members=st.lists(members, max_size=5).map(tuple),
)
CIDRS = tuple(
    ServiceCIDR(tuple(map(parse_prefix, prefixes)))
    for prefixes in (
        ("10.96.0.0/16",),
        ("10.97.0.0/24", "fd96::/112"),
        ("10.97.0.0/16",),
        ("10.96.0.0/15", "fd96::/64"),
    )
)
"""They lie in each other, and in what `LOCAL` has."""
service_cidr_keys = st.builds(ServiceCIDRKey, st.sampled_from(("kubernetes", "more")))
POOLS = (
    PodPool((parse_prefix("10.2.0.0/24"), parse_prefix("fd02::/120")), (29, 125)),
    PodPool((parse_prefix("10.2.0.0/24"),), (29, 125), (parse_range("10.2.0.1-10.2.0.9"),)),
    PodPool((parse_prefix("10.3.0.0/24"), parse_prefix("fd03::/120")), (29, 125), auto_assign=False),
    PodPool((parse_prefix("10.2.0.0/25"),), (29, 125), (), True, (Requirement(backends.ZONE, Operator.IN, ("a",)),)),
    PodPool((parse_prefix("10.96.0.0/12"),)),
)
"""Some overlap others, or the service ranges."""
POOL_BLOCKS = tuple(
    map(parse_prefix, ("10.2.0.0/29", "10.2.0.8/29", "10.2.0.0/28", "10.2.0.9/32", "10.3.0.0/29", "fd02::/125"))
)
pool_keys = st.builds(PodPoolKey, st.sampled_from(("blue", "green")))
block_keys = st.builds(PodBlockKey, st.sampled_from(POOL_BLOCKS))
pool_blocks = st.builds(PodBlock, st.sampled_from(("one", "one", "two", "nobody")), st.sampled_from(("blue", "green")))
pool_changes = st.one_of(
    st.tuples(pool_keys, st.none() | st.sampled_from(POOLS)),
    st.tuples(block_keys, st.none() | pool_blocks),
    st.tuples(block_keys, pool_blocks),
)
changes = st.one_of(
    pool_changes,
    st.tuples(service_keys, st.none() | services),
    st.tuples(st.builds(SliceKey, st.just("default"), st.sampled_from("xyz")), st.none() | slices),
    st.tuples(st.just(NODE), st.sampled_from(NODES)),
    st.tuples(st.builds(NodeKey, st.sampled_from(("two", "three"))), st.none() | st.sampled_from(NODES)),
    st.tuples(service_cidr_keys, st.none() | st.sampled_from(CIDRS)),
)


@st.composite
def served(draw: st.DrawFn) -> tuple[tuple[Any, Any], ...]:
    """A Service and a slice that has its ports: by chance two would seldom go together."""
    key, service = draw(service_keys), draw(services.filter(lambda it: bool(it.ports and it.cluster_ips)))
    ports = tuple(BackendPort(it.name, it.protocol, draw(st.sampled_from((8080, 9090)))) for it in service.ports)
    some = tuple(draw(st.lists(members, min_size=1, max_size=5)))
    return (key, service), (SliceKey("default", draw(st.sampled_from("xyz"))), BackendSlice(key, ports, some))


kube_changes = st.builds(
    e.KubeStateChange,
    st.lists(st.one_of(changes.map(lambda it: (it,)), served()), min_size=1, max_size=4).map(
        lambda parts: tuple(change for part in parts for change in part)
    ),
)
"""Of one object only the last change of an event counts."""
attachment_keys = st.builds(AttachmentKey, st.sampled_from(["s1", "s2", "s3", "s4", "s5", "s6"]), st.just("eth0"))
HOST_PORTS = tuple(
    HostPort(address, protocol, port, 8080)
    for address in (Address(b""), *map(parse_address, ("0.0.0.0", "::", "192.168.0.1")))
    for protocol in (Protocol.TCP, Protocol.UDP)
    for port in (80, 81)
)
host_ports = st.lists(st.sampled_from(HOST_PORTS), max_size=2).filter(
    lambda them: len({at for it in them for at in places((it,), FAMILIES)}) == sum(1 + (not it.address) for it in them)
)
"""No two at one place, as a request has them."""
rates = st.none() | st.just(Rate(10**6, 10**6))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
"""Whatever somebody may write where something else is expected."""


def _add_pod(
    key: AttachmentKey, ports: list[HostPort], ingress: Rate | None, egress: Rate | None, wish: Wish = NOTHING
) -> e.AddPod:
    pod, netns, bandwidth = PodKey("default", key.sandbox), f"/run/netns/{key.sandbox}", Bandwidth(ingress, egress)
    asked = {"pool": wish.pool, "fixed": wish.fixed, "requested": wish.requested}
    return e.AddPod(key, pod, netns, host_ports=tuple(sorted(ports)), bandwidth=bandwidth, **asked)


add_pods = st.builds(_add_pod, attachment_keys, st.just([]) | host_ports, rates, rates)
wishes = st.sampled_from((NOTHING, Wish("blue"), Wish("green"), Wish("none"), Wish(fixed=(parse_address("10.2.0.9"),))))
ASKED = tuple(
    map(parse_address, ("10.1.1.1", "10.1.1.3", "10.1.1.5", "fd01::3", "10.2.0.9", "192.168.0.1", "10.9.9.9"))
)
"""What pods may ask for, or another IPAM plugin gives them: the node's own, its pods', a pool's, and nobody's."""
asked = st.lists(st.sampled_from(ASKED), min_size=1, max_size=2, unique=True).map(tuple)
wishful = st.builds(
    _add_pod, attachment_keys, st.just([]), st.none(), st.none(), wishes | asked.map(lambda them: Wish(requested=them))
)
MACS = (b"", bytes.fromhex("02005e000001"), bytes.fromhex("02005e000002"))


def _with_another_plugin(
    key: AttachmentKey, addresses: tuple[Address, ...], routes: tuple[Prefix, ...] | None, mac: bytes
) -> e.AddPod:
    pod = PodKey("default", key.sandbox)
    return e.AddPod(key, pod, f"/run/netns/{key.sandbox}", delegated=addresses, routes=routes, mac=mac)


delegated = st.builds(
    _with_another_plugin,
    attachment_keys,
    asked,
    st.none() | st.just((parse_prefix("10.0.0.0/8"),)) | st.just(()),
    st.sampled_from(MACS),
)
address_events = st.builds(
    e.NodeAddressesChanged, st.frozensets(st.sampled_from(HOME)), st.frozensets(st.sampled_from(NETWORKS))
)
pod_events = st.one_of(add_pods, attachment_keys.map(e.DeletePod))


def start(node: Node = NODES[0]) -> Snapshot:
    return fold(Snapshot(LOCAL, whole=True), e.KubeStateChange(((NODE, node),)))[0]


def reported(now: Snapshot) -> Snapshot:
    """As if nftables had done all that is wanted of it."""
    done = {
        name: Outcome(nftables.slots(value, None))
        for key in now.services
        for name, value in serving(now, key).items()
        if isinstance(name, Frontend | InternalKey)
    }
    return fold(now, e.Reported("nftables", done))[0]


class Memory:
    """A driver whose network is a dictionary. `fails(key)`: why a change of this key can't be made, or None. `most`:
    for how many frontends it has room."""

    apart = True
    slice = 2

    def __init__(self, name: str) -> None:
        self.name, self.writes = name, 0
        self.held: dict[Any, Any] = {}
        self.fails: Callable[[Any], str | None] = lambda _: None
        self.blind = False
        self.most: int | None = None

    def weight(self, change: Any) -> int:
        return len(getattr(change.after, "backends", "1")) or 1

    def rank(self, key: Any, _: Change) -> Any:
        return linux.rank(key) if self.name == "linux" else str(type(key))

    def place(self, wanted: Any, actual: Any) -> Any:
        return nftables.place(wanted, actual) if self.name == "nftables" else linux.place(wanted, actual)

    def settle(self, wanted: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Mapping[Any, Any]:
        return linux.settle(wanted, actual) if self.name == "linux" else wanted

    def read(self, scope: Scope) -> dict[Any, Any]:
        if self.blind:
            raise OSError("can't be read")
        return {key: value for key, value in self.held.items() if key in scope}

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        return {key: self._one(key, change.before, change.after) for key, change in difference.items()}

    def _one(self, key: Any, before: Any, after: Any) -> Outcome:
        reason = self.fails(key)
        if reason is None and (key in self.held) != (before is not None):
            reason = "EEXIST" if before is None else "ENOENT"
        if reason is not None:
            return Outcome(error=f"{key}: {reason}")
        if before is None and isinstance(key, Frontend) and self.frontends() == self.most:
            return Outcome(before, error=f"{key}: ENFILE", full=True)
        self.writes += 1
        if after is None:
            del self.held[key]
        else:
            self.held[key] = after
        return Outcome(after)

    def host_ports(self) -> dict[HostPortKey, Any]:
        """As the driver of nftables reads them for a store that was lost."""
        return {key: value for key, value in self.held.items() if isinstance(key, HostPortKey)}

    def frontends(self) -> int:
        return sum(isinstance(key, Frontend) for key in self.held)


def memories() -> tuple[Memory, Memory, Memory]:
    return Memory("store"), Memory("linux"), Memory("nftables")


def transaction(drivers: tuple[Memory, ...]) -> Transaction:
    return Transaction(CAPABILITIES, drivers)


def contents(drivers: tuple[Memory, ...]) -> dict[str, dict[Any, Any]]:
    """What the networks hold, but for what drivers leave as they find it."""
    return {driver.name: {key: _told(value) for key, value in driver.held.items()} for driver in drivers}


def _told(value: Any) -> Any:
    """A frontend's backends counted, since their positions may differ; a link without the setting that others in the
    plugins' chain may need."""
    if isinstance(value, Slots):
        return Counter(value.backends) - Counter((None,)), value.kind
    return replace(value, localnet=False) if isinstance(value, Link) else value
