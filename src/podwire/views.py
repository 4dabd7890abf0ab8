"""What an agent shows of itself: a snapshot turned into the values of the admin API. Pure.

Invariants: these structs are the API's JSON, field by field; whoever asks decodes into the same ones. Addresses, ranges
and keys are text, in the form that other tools print. Everything is sorted. What a Service or pod holds in the network
is what the drivers last reported, never a guess: see `FrontendState` and `PodState`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from immutables import Map
from msgspec import Struct

from podwire.controller.history import Record
from podwire.dataplane.nftables.layout import MOST_BACKENDS
from podwire.dataplane.nftables.slots import slots
from podwire.findings import findings
from podwire.ipam.pools import Source
from podwire.ipam.usage import uses
from podwire.ipam.views import MANY, PoolUse, pool_uses
from podwire.model.addresses import show_address
from podwire.model.network import Backend, Frontend, HostPortKey, Serving, Slots
from podwire.model.objects import Attachment, AttachmentKey, NodeKey, PodKey, ServiceKey
from podwire.model.snapshot import UNKNOWN, Snapshot
from podwire.nodes.routes import ways
from podwire.pods import hostports
from podwire.pods.lookup import get_interface_name, interfaces_of
from podwire.pods.names import link_of, mac_of
from podwire.pods.wiring import leads, wiring
from podwire.services.frontends import claimed, frontends, owner
from podwire.services.room import lacking

# --- status ------------------------------------------------------------------------------------


class Facts(Struct, frozen=True):
    """What the agent knows beside its snapshot. `not_ready` None: it is; `uptime` in seconds."""

    version: str
    not_ready: str | None
    uptime: float
    writes: Mapping[str, int]
    source_errors: tuple[str, ...] = ()


class BlockView(Struct, frozen=True):
    """A range that pods of this node get addresses from. `free` stops at a billion (`MANY`)."""

    range: str
    used: int
    free: int


class StatusView(Struct, frozen=True):
    """`not_ready` says why `ready` is false. `mtu` 0: not known yet. `unknown` counts, by driver, the keys whose last
    change failed; `writes`, by driver, the writes to kernel or disk since the start; `others` the other nodes that have
    pods, by the way to them; `pools` what pods get addresses of, the pod CIDRs too."""

    node: str
    version: str
    ready: bool
    not_ready: str | None
    uptime: float
    mtu: int
    pod_cidrs: tuple[BlockView, ...]
    service_cidrs: tuple[str, ...]
    counts: dict[str, int]
    writes: dict[str, int]
    unknown: dict[str, int]
    source_errors: tuple[str, ...]
    others: dict[str, int] = {}
    pools: tuple[PoolUse, ...] = ()


def status(now: Snapshot, facts: Facts) -> StatusView:
    return StatusView(
        node=now.local.name,
        version=facts.version,
        ready=facts.not_ready is None,
        not_ready=facts.not_ready,
        uptime=facts.uptime,
        mtu=now.pod_mtu,
        pod_cidrs=_blocks(now),
        service_cidrs=tuple(str(block) for block in now.service_ranges),
        counts={
            "nodes": len(now.nodes),
            "namespaces": len(now.namespaces),
            "pods": len(now.pods),
            "services": len(now.services),
            "slices": len(now.slices),
            "frontends": sum(isinstance(claim, Frontend) for claim in now.claims),
            "attachments": len(now.attachments),
        },
        writes=dict(sorted(facts.writes.items())),
        unknown={
            driver: sum(value is UNKNOWN for value in held.values()) for driver, held in sorted(now.programmed.items())
        },
        source_errors=tuple(dict.fromkeys((*findings(now), *facts.source_errors))),
        others=_others(now),
        pools=pool_uses(now),
    )


def _others(now: Snapshot) -> dict[str, int]:
    """Whoever is reached by several ways is counted once, in this order."""
    kinds = ("by VXLAN", "direct", "not reached", "by BGP")
    best: dict[NodeKey, int] = {}
    for key, _, way in ways(now):
        kind = 2 if isinstance(way, str) else 0 if way.vxlan else 3 if way.learnt else 1
        best[key] = min(kind, best.get(key, kind))
    counts = Counter(best.values())
    return {kinds[kind]: counts[kind] for kind in (1, 3, 0, 2) if counts[kind]}


def _blocks(now: Snapshot) -> tuple[BlockView, ...]:
    held = uses(now, map(Source, now.node.pod_cidrs))
    return tuple(BlockView(str(it.source.block), it.pods, min(MANY, it.free)) for it in held)


# --- Services ----------------------------------------------------------------------------------


class FrontendState(Enum):
    PROGRAMMED = "programmed"
    """The data plane holds the backends that the Service has."""
    REFUSED = "refused"
    """The Service has no backend: clients are told so."""
    DROPPED = "dropped"
    """The traffic policy leaves it to other nodes, which have backends: here packets to it vanish."""
    PENDING = "pending"
    """The data plane does not hold it, or not yet as it should be."""
    FAILED = "failed"
    """The last change failed: what the data plane holds is unknown until it is read again."""
    NO_ROOM = "no room"
    """The data plane is full: there is nothing of it there, or not all."""


class BackendView(Struct, frozen=True):
    address: str
    port: int


class FrontendView(Struct, frozen=True):
    """`backends` are in force; `beyond` counts those that are not, since a frontend can't have so many."""

    address: str
    protocol: str
    port: int
    state: FrontendState
    backends: tuple[BackendView, ...]
    beyond: int = 0


class ConflictView(Struct, frozen=True):
    """A frontend that several Services claim, as namespace/name; the `owner` has it."""

    address: str
    protocol: str
    port: int
    owner: str
    claimants: tuple[str, ...]


class ServiceView(Struct, frozen=True):
    namespace: str
    name: str
    frontends: tuple[FrontendView, ...]
    conflicts: tuple[ConflictView, ...]


class ServiceList(Struct, frozen=True):
    services: tuple[ServiceView, ...]


def service_keys(now: Snapshot) -> list[ServiceKey]:
    return sorted(now.services, key=lambda key: (key.namespace, key.name))


def service(now: Snapshot, key: ServiceKey) -> ServiceView:
    """Raises KeyError for a Service that the snapshot has not."""
    names = claimed(now, key)
    return ServiceView(
        namespace=key.namespace,
        name=key.name,
        frontends=tuple(
            _frontend(now, frontend, wanted)
            for frontend, wanted in sorted(frontends(now, key).items(), key=lambda item: place(item[0]))
        ),
        conflicts=tuple(
            _conflict(now, frontend) for frontend in sorted(names, key=place) if len(now.claims[frontend]) > 1
        ),
    )


def _frontend(now: Snapshot, frontend: Frontend, wanted: Serving) -> FrontendView:
    return FrontendView(
        address=show_address(frontend.address),
        protocol=frontend.protocol.name,
        port=frontend.port,
        state=state_of(now, frontend, wanted),
        backends=tuple(
            BackendView(show_address(backend.address), backend.port) for backend in wanted.backends[:MOST_BACKENDS]
        ),
        beyond=max(0, len(wanted.backends) - MOST_BACKENDS),
    )


def state_of(now: Snapshot, frontend: Frontend, wanted: Serving) -> FrontendState:
    state = frontend_state(wanted, _reported(now, "nftables").get(frontend))
    return FrontendState.NO_ROOM if state is FrontendState.PENDING and _lacks_room(now, frontend) else state


def _lacks_room(now: Snapshot, frontend: Frontend) -> bool:
    """It was left out, or else the kernel would not have it."""
    if frontend in now.waiting.get("nftables", ()):
        return True
    return frontend in now.claims and frontend.family in lacking(now, owner(now, frontend))


def frontend_state(wanted: Serving, held: Any) -> FrontendState:
    """`held` as nftables reported it: Slots, UNKNOWN, or None where it holds nothing. Right is what a resync would
    leave as it is: of too many backends, those that get slots."""
    if held is UNKNOWN:
        return FrontendState.FAILED
    if not isinstance(held, Slots) or slots(wanted, held) != held:
        return FrontendState.PENDING
    if wanted.backends:
        return FrontendState.PROGRAMMED
    return FrontendState.DROPPED if wanted.dropped else FrontendState.REFUSED


def _conflict(now: Snapshot, frontend: Frontend) -> ConflictView:
    first = owner(now, frontend)
    return ConflictView(
        address=show_address(frontend.address),
        protocol=frontend.protocol.name,
        port=frontend.port,
        owner=f"{first.namespace}/{first.name}",
        claimants=tuple(sorted(f"{key.namespace}/{key.name}" for key in now.claims[frontend])),
    )


def place(frontend: Frontend) -> tuple[int, bytes, int, int]:
    """IPv4 first, then by address, port, protocol."""
    return len(frontend.address), frontend.address, frontend.port, frontend.protocol


# --- pods --------------------------------------------------------------------------------------


class PodState(Enum):
    WIRED = "wired"
    """Every link, address, route and neighbour of it was reported as made."""
    PENDING = "pending"
    """Something is still to be made, or the answer to the runtime is not yet recorded."""
    FAILED = "failed"
    """The last change of some part failed: what the kernel holds is unknown until it is read again."""


class HostPortView(Struct, frozen=True):
    """A port of the node that leads to one of a pod's; an `address` of all zeros: all that the node has."""

    address: str
    protocol: str
    port: int
    pod_port: int
    state: FrontendState


class PodView(Struct, frozen=True):
    """One attachment. `link` is the node's end of its veth pair, `index` that end's interface index. What it receives
    and sends is kept to these rates, in bits per second; 0: to none. `mac`: with which its interface was born.
    `delegated`: another IPAM plugin has given the addresses."""

    namespace: str
    name: str
    state: PodState
    addresses: tuple[str, ...]
    link: str
    index: int
    sandbox: str
    interface: str
    netns: str
    host_ports: tuple[HostPortView, ...] = ()
    ingress_rate: int = 0
    egress_rate: int = 0
    mac: str = ""
    delegated: bool = False


class PodList(Struct, frozen=True):
    pods: tuple[PodView, ...]


class InterfaceView(Struct, frozen=True):
    """`name` is the node's end of the link that leads to the pod: of the first of its interfaces. These are of the
    pod's newest sandbox, in the order in which they came."""

    namespace: str
    pod: str
    name: str
    interfaces: tuple[PodView, ...]


def interface(now: Snapshot, namespace: str, pod_name: str, asked: str | None) -> InterfaceView:
    """Of all of a pod's interfaces, or of the one that is `asked` for. Raises LookupError, which says what there is."""
    key = PodKey(namespace, pod_name)
    there = interfaces_of(now, key)
    name = get_interface_name(now, namespace, pod_name, asked)
    if name is None:
        told = now.pods.get(key)
        why = "it has the node's own network" if told is not None and told.host_network else "none is attached here"
        if there:
            why = f"it has {', '.join(each.interface for each in there)}"
        what = "interface" if asked is None else f"interface {asked}"
        raise LookupError(f"no {what} of {key} on node {now.local.name}: {why}")
    chosen = tuple(pod(now, each) for each in there if asked in (None, each.interface))
    return InterfaceView(namespace, pod_name, name, chosen)


def attachment_keys(now: Snapshot) -> list[AttachmentKey]:
    held = now.attachments
    return sorted(held, key=lambda key: (held[key].pod.namespace, held[key].pod.name, key.sandbox, key.interface))


def pod(now: Snapshot, key: AttachmentKey) -> PodView:
    """Raises KeyError for an attachment that the snapshot has not."""
    it = now.attachments[key]
    return PodView(
        namespace=it.pod.namespace,
        name=it.pod.name,
        state=pod_state(now, key, it),
        addresses=tuple(show_address(address) for address in it.addresses),
        link=link_of(key, it),
        index=it.index,
        sandbox=key.sandbox,
        interface=key.interface,
        netns=it.netns,
        ingress_rate=it.bandwidth.ingress.rate if it.bandwidth.ingress is not None else 0,
        egress_rate=it.bandwidth.egress.rate if it.bandwidth.egress is not None else 0,
        mac=mac_of(key, it).hex(":"),
        delegated=it.delegated,
        host_ports=tuple(_host_port(now, at, it) for at, it in sorted(hostports.mapped(it).items())),
    )


def _host_port(now: Snapshot, at: Frontend, to: Backend) -> HostPortView:
    return HostPortView(show_address(at.address), at.protocol.name, at.port, to.port, host_port_state(now, at, to))


def host_port_state(now: Snapshot, at: Frontend, to: Backend) -> FrontendState:
    """What nftables holds of a port of the node that is to lead to a pod's."""
    held = _reported(now, "nftables").get(HostPortKey(at))
    if held is UNKNOWN:
        return FrontendState.FAILED
    return FrontendState.PROGRAMMED if held == to else FrontendState.PENDING


def pod_state(now: Snapshot, key: AttachmentKey, it: Attachment) -> PodState:
    held = _reported(now, "linux")
    parts = [held.get(part) for part in wiring(key, it, now.pod_mtu, leading=leads(now, key))]
    if UNKNOWN in parts:
        return PodState.FAILED
    return PodState.PENDING if None in parts or not it.confirmed else PodState.WIRED


def _reported(now: Snapshot, driver: str) -> Mapping[Any, Any]:
    return now.programmed.get(driver, Map())


# --- history -----------------------------------------------------------------------------------


class HistoryView(Struct, frozen=True):
    """`oldest` is the number of the first record that is still remembered, 0 where there is none: a reader that asks
    for what followed an older one has missed some."""

    oldest: int
    records: tuple[Record, ...]


def history(records: Iterable[Record], since: int | None, limit: int) -> HistoryView:
    """The first `limit` records after number `since`; without a `since` the newest ones. Oldest first."""
    held = list(records)
    wanted = held[max(0, len(held) - limit) :] if since is None else [r for r in held if r.number > since][:limit]
    return HistoryView(held[0].number if held else 0, tuple(wanted))


class ResyncView(Struct, frozen=True):
    """How a resync ended: `changes` in words by capability, `operations` counted by driver."""

    error: str | None
    changes: dict[str, tuple[str, ...]]
    operations: dict[str, int]
    milliseconds: float


def resynced(record: Record) -> ResyncView:
    return ResyncView(record.error, record.changes, record.operations, record.milliseconds)
