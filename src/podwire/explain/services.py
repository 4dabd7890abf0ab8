"""Why a Service is as it is: each frontend, its backends and where they are, and what was left out. Pure.

Invariants: every answer is made by the very functions that decide (`services/`, the slots of `dataplane/nftables`),
from one snapshot; the state is what the data plane last reported.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from podwire import health, views
from podwire.dataplane.nftables.layout import CLASSES
from podwire.dataplane.nftables.slots import slots
from podwire.explain.announcing import AnnouncedWhy, announced
from podwire.explain.places import Places, places, where
from podwire.findings import misplaced, no_room
from podwire.model.addresses import FAMILIES, Address, family_of, show_address, show_host_port
from podwire.model.network import Backend, Frontend, InternalKey, Serving
from podwire.model.objects import BackendSlice, Member, PodKey, Service, ServiceKey, ServicePort, SliceKey
from podwire.model.snapshot import Snapshot
from podwire.services.backends import LeftOut, left_out
from podwire.services.frontends import (
    Kind,
    allowed_sources,
    claimed,
    is_local,
    node_port_addresses,
    of_service,
    owner,
    serving,
)
from podwire.services.room import lacking

LIMITS = {
    views.FrontendState.PENDING: "nftables does not hold all of this yet: until then it is as it was before",
    views.FrontendState.FAILED: "the last change of nftables failed (see podwire history): it is read again soon",
    views.FrontendState.NO_ROOM: "nftables has no room for all of this: see podwire status",
}
"""What a frontend's state means for all that is said of it."""
TOO_MANY = f"beyond the {CLASSES[-1]} backends that a frontend can have"


class LeftOutView(Struct, frozen=True):
    """A member of a slice that is no backend of this frontend, and why."""

    member: str
    pod: str | None
    slice: str
    reason: str


class BackendWhere(Struct, frozen=True):
    backend: str
    where: str


class FrontendWhy(Struct, frozen=True):
    """`port`: the ServicePort's name. `owner`: who has this frontend instead; None: it is this Service's, and `state`
    says what the data plane holds of it. `cluster`: the backends that clients in the cluster find instead, None: the
    same. `rules`: what else is decided there, in words."""

    frontend: str
    kind: str
    port: str
    owner: str | None
    state: views.FrontendState | None
    backends: tuple[BackendWhere, ...]
    left_out: tuple[LeftOutView, ...]
    cluster: tuple[BackendWhere, ...] | None = None
    rules: tuple[str, ...] = ()


class ServiceWhy(Struct, frozen=True):
    service: str
    frontends: tuple[FrontendWhy, ...]
    notes: tuple[str, ...]
    health: tuple[str, ...] = ()
    """What becomes of its health check node port, in words."""
    assigned: str = ""
    """What the cluster's controller says of its load balancer's addresses."""
    announced: tuple[AnnouncedWhy, ...] = ()


def explain_service(now: Snapshot, key: ServiceKey, errors: Iterable[str] = ()) -> ServiceWhy:
    """`errors` of the sources: those of the Service and its slices are told too. Raises LookupError for what neither
    a Service nor a slice names."""
    it = now.services.get(key)
    heads = tuple(f"{name}: " for name in (key, *now.slices_of.get(key, ())))
    wrong = tuple(error for error in errors if error.startswith(heads))
    if it is None:
        return ServiceWhy(show(key), (), (_only_slices(now, key), *wrong))
    known, mine = places(now), serving(now, key)
    # Of two ports with one frontend the later has it, as in `serving`.
    named = list(of_service(now, key))
    ports = {frontend: port for port, _, frontend in named}
    told = tuple(
        _frontend(known, key, port, kind, frontend, mine if ports[frontend] is port else None)
        for port, kind, frontend in named
    )
    limits = (LIMITS[state] for state in LIMITS if any(it.state is state for it in told))
    notes = (*_notes(now, key, it), *limits, *wrong)
    return ServiceWhy(show(key), told, notes, health.in_words(now, key), it.assigned, announced(now, key))


def show(key: ServiceKey | SliceKey | PodKey) -> str:
    return f"{key.namespace}/{key.name}"


def show_frontend(it: Frontend) -> str:
    return f"{show_host_port(it.address, it.port)}/{it.protocol.name}"


def fitting(wanted: Serving) -> list[Backend]:
    """Those that get a slot, sorted."""
    return sorted({backend for backend in slots(wanted, None).backends if backend is not None})


def pods_of(now: Snapshot, key: ServiceKey) -> dict[Address, PodKey]:
    """Which pods the slices of a Service name."""
    return {member.address: member.target for _, _, member in _members(now, key) if member.target is not None}


# --- one frontend ------------------------------------------------------------------------------


def _frontend(
    known: Places,
    key: ServiceKey,
    port: ServicePort,
    kind: Kind,
    frontend: Frontend,
    mine: dict[Frontend | InternalKey, Serving] | None,
) -> FrontendWhy:
    """`mine` None: another port of the same Service has it."""
    now = known.now
    first = owner(now, frontend)
    name = show_frontend(frontend)
    if first != key or mine is None:
        has = show(first) if first != key else f"another port of {show(key)}"
        return FrontendWhy(name, kind.value, port.name, has, None, (), ())
    it, wanted, inside = now.services[key], mine[frontend], mine.get(InternalKey(frontend))
    held, pods = fitting(wanted), pods_of(now, key)

    def shown(some: Iterable[Backend]) -> tuple[BackendWhere, ...]:
        return tuple(BackendWhere(str(b), where(known, b.address, pods.get(b.address))) for b in some)

    return FrontendWhy(
        frontend=name,
        kind=kind.value,
        port=port.name,
        owner=None,
        state=views.state_of(now, frontend, wanted),
        backends=shown(held),
        left_out=tuple(_left_out(now, key, port, frontend, frozenset(held), is_local(it, kind))),
        cluster=shown(fitting(inside)) if inside is not None else None,
        rules=tuple(_rules(now, it, frontend, wanted)),
    )


def _rules(now: Snapshot, it: Service, frontend: Frontend, wanted: Serving) -> Iterator[str]:
    if wanted.dropped:
        yield "this node has no backend of it, others have, and the traffic policy is Local: packets are dropped"
    if wanted.heavy:
        yield f"backends on this node get {wanted.weight} times as many connections"
    sources = allowed_sources(now, it, frontend)
    if sources:
        yield f"only for clients in {', '.join(str(cidr) for cidr in sources)}: packets of others are dropped"


def _left_out(
    now: Snapshot, key: ServiceKey, port: ServicePort, frontend: Frontend, held: frozenset[Backend], local: bool
) -> Iterator[LeftOutView]:
    """A pod that serves by another slice is not left out, nor is one whose address of another family serves there."""
    serving = {backend.address for backend in held}
    families = {each.family for each in claimed(now, key)}
    for slice_key, part, member in _members(now, key):
        family = family_of(member.address)
        if member.address in serving or (family != frontend.family and family in families):
            continue
        reason = _reason(now, part, member, port, frontend, local, len(held))
        yield LeftOutView(show_address(member.address), member.pod or None, show(slice_key), reason)


def _reason(
    now: Snapshot, part: BackendSlice, member: Member, port: ServicePort, frontend: Frontend, local: bool, count: int
) -> str:
    if family_of(member.address) != frontend.family:
        return LeftOut.OTHER_FAMILY.value
    if not any((each.name, each.protocol) == (port.name, port.protocol) for each in part.ports):
        return LeftOut.NO_SUCH_PORT.value
    if count == CLASSES[-1] and left_out(member, local=local, node=now.local.name) is LeftOut.OTHER_PLACE:
        return TOO_MANY
    return left_out(member, local=local, node=now.local.name).value


def _members(now: Snapshot, key: ServiceKey) -> Iterator[tuple[SliceKey, BackendSlice, Member]]:
    for slice_key in sorted(now.slices_of.get(key, ())):
        part = now.slices[slice_key]
        for member in part.members:
            yield slice_key, part, member


# --- the whole Service -------------------------------------------------------------------------


def _only_slices(now: Snapshot, key: ServiceKey) -> str:
    named = sorted(now.slices_of.get(key, ()))
    if not named:
        elsewhere = sorted(show(other) for other in now.services if other.name == key.name)
        there = f"; there is {', '.join(elsewhere)}" if elsewhere else ""
        raise LookupError(f"no {key} on this node{there}")
    slices = "slice" if len(named) == 1 else "slices"
    return f"no Service of that name is known, though {slices} {_listed(named)} is for it: nothing is programmed"


def _notes(now: Snapshot, key: ServiceKey, it: Service) -> Iterator[str]:
    yield from sorted(misplaced(now, address) for address in now.misplaced.get(key, ()))
    yield from (no_room(now, key, family) for family in sorted(lacking(now, key)))
    if not it.cluster_ips:
        yield "it has no cluster IP (headless or ExternalName): there is nothing to program, DNS answers for it"
    elif not it.ports:
        yield "it has no ports: there is nothing to program"
    wanted = {frontend.family for frontend in claimed(now, key)}
    members = {family_of(member.address) for _, _, member in _members(now, key)}
    if wanted and not now.slices_of.get(key):
        yield "it has no EndpointSlice: all of its frontends are refused"
    elif wanted - members:
        families = ", ".join(str(family) for family in FAMILIES if family in wanted - members)
        yield f"its EndpointSlices have no {families} members: such frontends are refused"
    here = {family_of(address) for address in node_port_addresses(now)}
    lacks = "InternalIP" if now.local.node_ports is None else "address in the ranges of node_port_addresses"
    for family in FAMILIES:
        wants = any(port.node_port for port in it.ports) and any(family_of(a) == family for a in it.cluster_ips)
        if wants and family not in here:
            yield f"node {now.local.name} has no {family} {lacks}: there are no node ports of that family"


def _listed(keys: Iterable[SliceKey]) -> str:
    return ", ".join(show(key) for key in keys)
