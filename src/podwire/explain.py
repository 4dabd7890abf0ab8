"""Why the network does what it does, in words: of a Service, or of one packet. Pure.

Invariants: every answer is made by the very functions that decide (`services/`, `nodes/`, `pods/`), from one snapshot.
What only the kernel knows (a node's further addresses, foreign routes) is said to be its own.
"""

from collections.abc import Iterator

from msgspec import Struct

from podwire.ipam.blocks import own_address
from podwire.model.addresses import Address, Family, family_of, parse_address, show_address, show_host_port
from podwire.model.network import Backend, Frontend
from podwire.model.objects import AttachmentKey, PodKey, Protocol, Service, ServiceKey, ServicePort
from podwire.model.snapshot import Snapshot
from podwire.nodes.routes import gateway_to
from podwire.pods.wiring import interface_name
from podwire.services.frontends import LeftOut, frontends, left_out, of_port, owner

# --- a Service ---------------------------------------------------------------------------------


class LeftOutView(Struct, frozen=True):
    """A member of a slice that is no backend of this frontend, and why."""

    member: str
    slice: str
    reason: str


class BackendWhere(Struct, frozen=True):
    backend: str
    where: str


class FrontendWhy(Struct, frozen=True):
    """`owner`: namespace/name of the Service that has this frontend instead, because it is older; None: this one."""

    frontend: str
    kind: str
    port_name: str
    owner: str | None
    backends: tuple[BackendWhere, ...]
    left_out: tuple[LeftOutView, ...]
    refused: bool


class ServiceWhy(Struct, frozen=True):
    service: str
    frontends: tuple[FrontendWhy, ...]
    notes: tuple[str, ...]


def service(now: Snapshot, key: ServiceKey) -> ServiceWhy:
    """Raises KeyError for a Service that the snapshot has not."""
    it = now.services[key]
    mine = frontends(now, key)
    told = tuple(
        _frontend(now, key, port, kind.value, frontend, mine.get(frontend))
        for port in it.ports
        for kind, frontend in of_port(it, port, now.node)
    )
    return ServiceWhy(f"{key.namespace}/{key.name}", told, tuple(_notes(now, key, it)))


def _frontend(
    now: Snapshot,
    key: ServiceKey,
    port: ServicePort,
    kind: str,
    frontend: Frontend,
    backends: frozenset[Backend] | None,
) -> FrontendWhy:
    first = owner(now, frontend)
    return FrontendWhy(
        frontend=_at(frontend),
        kind=kind,
        port_name=port.name,
        owner=None if first == key else f"{first.namespace}/{first.name}",
        backends=tuple(BackendWhere(str(b), where(now, b.address)) for b in sorted(backends or ())),
        left_out=tuple(_left_out(now, key, port, frontend.family)),
        refused=backends is not None and not backends,
    )


def _left_out(now: Snapshot, key: ServiceKey, port: ServicePort, family: Family) -> Iterator[LeftOutView]:
    for slice_key in sorted(now.slices_of.get(key, ())):
        part = now.slices[slice_key]
        has_port = any((p.name, p.protocol) == (port.name, port.protocol) for p in part.ports)
        for member in sorted(part.members):
            reason = left_out(member)
            if family_of(member.address) != family:
                reason = LeftOut.OTHER_FAMILY
            elif not has_port:
                reason = LeftOut.NO_SUCH_PORT
            if reason is not None:
                name = f"{slice_key.namespace}/{slice_key.name}"
                yield LeftOutView(show_address(member.address), name, reason.value)


def _notes(now: Snapshot, key: ServiceKey, it: Service) -> Iterator[str]:
    if not it.cluster_ips:
        yield "it has no cluster IP (headless or ExternalName): there is nothing to program, DNS answers for it"
    if not now.slices_of.get(key):
        yield "it has no EndpointSlice: every frontend is refused"
    if any(port.node_port for port in it.ports) and not now.node.addresses:
        yield f"node {now.local.name} has no InternalIP yet: node ports are nowhere"


# --- a packet ----------------------------------------------------------------------------------


class Choice(Struct, frozen=True):
    """One backend that may be drawn, where it is, and whom it sees as its client."""

    backend: str
    where: str
    client: str
    because: str


class PacketWhy(Struct, frozen=True):
    """`verdict`: "balanced" among `choices`, "refused", or "passed on" as it is, by `way`."""

    source: str
    destination: str
    service: str | None
    verdict: str
    way: str
    choices: tuple[Choice, ...]


def packet(now: Snapshot, source: Address | None, to: Frontend) -> PacketWhy:
    """What this node does with a first packet. `source` None: the node itself, by the address that it would choose."""
    client = source if source is not None else _own_source(now, to.address)
    told_source = where(now, client) if source is not None else f"this node, as {show_address(client)}"
    claimants = now.claims.get(to)
    if claimants:
        key = owner(now, to)
        backends = sorted(frontends(now, key)[to])
        choices = tuple(_choice(now, client, backend) for backend in backends)
        verdict = "balanced" if choices else "refused"
        way = f"one of {len(choices)} backends, each as likely" if choices else "no backend is ready"
        return PacketWhy(told_source, _at(to), f"{key.namespace}/{key.name}", verdict, way, choices)
    if _only_services(now, to.address):
        way = "the address is a Service's, and no Service has this port and protocol there"
        return PacketWhy(told_source, _at(to), None, "refused", way, ())
    return PacketWhy(told_source, _at(to), None, "passed on", where(now, to.address), ())


def _choice(now: Snapshot, client: Address, backend: Backend) -> Choice:
    seen, because = seen_client(now, client, backend.address)
    return Choice(str(backend), where(now, backend.address), show_address(seen), because)


def seen_client(now: Snapshot, client: Address, backend: Address) -> tuple[Address, str]:
    """Whom a backend sees behind a frontend (chains `post` and `remote` of dataplane/nftables/layout.py), and why."""
    if client == backend and client in now.ledger:
        return _own(now, family_of(client)), "masqueraded: a pod that reaches itself must answer by way of the node"
    if client in now.ledger:
        return client, "kept: the client is a pod of this node, the answer comes by here"
    if _is_own(now, client):
        return client, "kept: the client is this node"
    if backend in now.ledger or _is_own(now, backend):
        return client, "kept: the backend is on this node, the answer comes by here"
    uplink = gateway_to(now.node, family_of(client))
    return uplink or client, "masqueraded: client and backend are both elsewhere, the answer must come back by here"


def where(now: Snapshot, address: Address) -> str:
    """What is at that address, as far as this node knows, and how it gets there."""
    holder = now.ledger.get(address)
    if isinstance(holder, AttachmentKey):
        return f"{_pod(now.attachments[holder].pod)} on this node, by {interface_name(holder)}"
    if _is_own(now, address):
        return "this node itself"
    for key in sorted(now.nodes):
        node = now.nodes[key]
        if address in node.addresses:
            return f"node {key.name} itself"
        if key != now.local.key and any(address in block for block in node.pod_cidrs):
            gateway = gateway_to(node, family_of(address))
            way = f"by way of {show_address(gateway)}" if gateway is not None else "which has no address to route to"
            return f"a pod of node {key.name}, {way}"
    if any(address in block for block in now.node.pod_cidrs):
        return "an address of this node's pods that no pod has"
    return f"{show_address(address)}, outside of the cluster, by the node's own routes"


def _pod(key: PodKey) -> str:
    return f"pod {key.namespace}/{key.name}"


def _only_services(now: Snapshot, address: Address) -> bool:
    return any(address in cidr for cidr in now.service_ranges) or address in now.claims


def _is_own(now: Snapshot, address: Address) -> bool:
    return address in now.node.addresses or any(address == own_address(block) for block in now.node.pod_cidrs)


def _own(now: Snapshot, family: Family) -> Address:
    """The node's address of its first block of that family."""
    return next((own_address(b) for b in now.node.pod_cidrs if b.family == family), Address(bytes(family.size)))


def _own_source(now: Snapshot, to: Address) -> Address:
    family = family_of(to)
    if to in now.node.addresses:
        return to
    if any(to in cidr for cidr in now.service_ranges) or to in now.ledger:
        return _own(now, family)
    return gateway_to(now.node, family) or _own(now, family)


def _at(frontend: Frontend) -> str:
    return f"{show_host_port(frontend.address, frontend.port)}/{frontend.protocol.name}"


def parse_destination(text: str) -> Frontend:
    """`10.96.0.10:80`, `[fd96::a]:53/UDP`. Raises ValueError with the right form."""
    form = f"{text!r}: expected IP:PORT or IP:PORT/PROTOCOL, an IPv6 address in brackets, such as [fd96::a]:53/UDP"
    place, slash, name = text.partition("/")
    host, colon, port = place.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not colon or not 1 <= number <= 65535 or (":" in host) != bracketed:
        raise ValueError(form)
    try:
        protocol = Protocol[name.upper()] if slash else Protocol.TCP
        return Frontend(parse_address(host.strip("[]")), protocol, number)
    except (KeyError, ValueError):
        raise ValueError(form) from None
