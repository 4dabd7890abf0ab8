"""What this node does with the first packet of a connection. Pure.

Invariants: the verdict and the backends come from the functions that decide (`services/`), the client that a backend
sees from the rules (chains `post` and `remote` of dataplane/nftables/layout.py), and the tests send such packets.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from podwire import views
from podwire.explain.places import Places, by_vxlan, is_masqueraded, node_of, own, own_source, places, where
from podwire.explain.services import LIMITS, fitting, pods_of, show, show_frontend
from podwire.findings import no_room
from podwire.model.addresses import Address, Family, Prefix, family_of, parse_address, parse_host_port, show_address
from podwire.model.network import Backend, Frontend, InternalKey, Serving
from podwire.model.objects import AttachmentKey, PodKey, Protocol
from podwire.model.snapshot import Snapshot
from podwire.nodes.own import LOOPBACKS, gateway_to, is_own
from podwire.pods import hostports
from podwire.services.frontends import allowed_sources, owner, serving
from podwire.services.room import lacking

NODE = "node"
"""In place of a source: the node itself."""


class Verdict(Enum):
    BALANCED = "balanced"
    """It goes to one of the choices, its destination rewritten."""
    REFUSED = "refused"
    """The client is told so at once."""
    DROPPED = "dropped"
    """It vanishes: the traffic policy or the Service's source ranges say so."""
    HOST_PORT = "host port"
    """A pod has that port of the node: it goes there, its destination rewritten."""
    PASSED_ON = "passed on as it is"
    """No Service is there."""


class Choice(Struct, frozen=True):
    """One backend that may be drawn, where it is, and whom it sees as its client: None where only the kernel knows."""

    backend: str
    where: str
    client: str | None
    because: str


class PacketWhy(Struct, frozen=True):
    """`client`: the source address, None where only the kernel knows which one the node would choose; `source` says
    who that is. `service` has the destination, and `state` is what the data plane holds of that. `way` says in words
    what happens, and `notes` what limits that."""

    client: str | None
    source: str
    destination: str
    verdict: Verdict
    service: str | None
    state: views.FrontendState | None
    way: str
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]


def explain_packet(now: Snapshot, source: Address | None, to: Frontend) -> PacketWhy:
    """`source` None: the node itself, by the address that it would choose."""
    known = places(now)
    client = source if source is not None else own_source(known, to.address)
    told = where(known, source) if source is not None else "this node itself"
    shown = show_address(client) if client is not None else None
    key = owner(now, to) if to in now.claims else None
    full = no_room(now, key, to.family) if key is not None and to.family in lacking(now, key) else ""
    if key is not None and not full:
        mine = serving(now, key)
        wanted = mine.get(InternalKey(to), mine[to]) if _in_cluster(now, client) else mine[to]
        state, pods = views.state_of(now, to, mine[to]), pods_of(now, key)
        sources = allowed_sources(now, now.services[key], to)
        banned = client is not None and sources != () and not any(client in cidr for cidr in sources)
        choices = () if banned else tuple(_choice(known, client, backend, pods) for backend in fitting(wanted))
        verdict, way = _balanced(to, wanted, len(choices)) if not banned else _banned(sources)
        notes = tuple(_notes(known, client, state))
        return PacketWhy(shown, told, show_frontend(to), verdict, show(key), state, way, choices, notes)
    mapped = _mapped(known, client, to)
    if mapped is not None and not only_services(now, to.address):
        it = mapped
        return PacketWhy(shown, told, show_frontend(to), it.verdict, None, it.state, it.way, it.choices, ())
    if only_services(now, to.address) or (_is_elsewhere(now, client) and is_external_ip(now, to.address)):
        nobody = full or "no Service has this port and protocol of the address, which is only Services'"
        way = f"{nobody}; {_refusal(to.protocol)}"
        verdict = Verdict.REFUSED
    else:
        way, verdict = where(known, to.address), Verdict.PASSED_ON
        if client is not None and _goes_out(known, client, to.address):
            way += f", which sees {_uplink(now, to.family)} in the pod's place: masqueraded"
        way = f"{full}; it goes to {way}" if full else way
    held = views.FrontendState.NO_ROOM if full else None
    return PacketWhy(shown, told, show_frontend(to), verdict, show(key) if full and key else None, held, way, (), ())


class _Mapped(NamedTuple):
    verdict: Verdict
    way: str
    state: views.FrontendState | None = None
    choices: tuple[Choice, ...] = ()


def _mapped(known: Places, client: Address | None, to: Frontend) -> _Mapped | None:
    """None: no pod has that port of the node, or it is no port of the node."""
    now = known.now
    if to.address in LOOPBACKS[0] and client is not None and not is_own(now, client):
        return _Mapped(Verdict.DROPPED, "the node's loopback is reached from the node only")
    found = hostports.found(now, to) if is_own(now, to.address) else None
    if found is None:
        return None
    at, key = found
    pod, backend = now.attachments[key].pod, hostports.mapped(now.attachments[key])[at]
    choice = _choice(known, client, backend, {})
    state = views.host_port_state(now, at, backend)
    way = f"pod {pod.namespace}/{pod.name} has {show_frontend(at)}"
    return _Mapped(Verdict.HOST_PORT, way, state, (choice,))


def _balanced(to: Frontend, wanted: Serving, choices: int) -> tuple[Verdict, str]:
    if choices and wanted.heavy:
        return Verdict.BALANCED, f"one of {choices} backends, those on this node {wanted.weight} times as likely"
    if choices:
        return Verdict.BALANCED, f"one of {choices} backends, each about as likely" if choices > 1 else ONLY
    if wanted.dropped:
        return Verdict.DROPPED, "this node has no backend of it, others have, and the traffic policy is Local"
    return Verdict.REFUSED, f"no backend is ready; {_refusal(to.protocol)}"


ONLY = "the only backend"


def _banned(sources: tuple[Prefix, ...]) -> tuple[Verdict, str]:
    return Verdict.DROPPED, f"only clients in {', '.join(str(cidr) for cidr in sources)} may use it"


def _in_cluster(now: Snapshot, client: Address | None) -> bool:
    """Whether externalTrafficPolicy leaves a client alone: this node, and pods of all nodes."""
    if client is None or is_own(now, client):
        return True
    return now.is_pods(client)


def _choice(known: Places, client: Address | None, backend: Backend, pods: dict[Address, PodKey]) -> Choice:
    seen, because = seen_client(known, client, backend.address)
    place = where(known, backend.address, pods.get(backend.address))
    return Choice(str(backend), place, show_address(seen) if seen is not None else None, because)


def seen_client(known: Places, client: Address | None, backend: Address) -> tuple[Address | None, str]:
    """Whom a backend sees behind a frontend, and why; `client` None is an address of the node."""
    now, family, tunnelled = known.now, family_of(backend), by_vxlan(known, backend)
    if client is not None and client in LOOPBACKS[0] and backend in now.ledger:
        return own(now, family), "masqueraded: to the node's loopback no answer would come back"
    if client is None or (is_own(now, client) and client not in now.ledger):
        if tunnelled and client != own(now, family):
            return own(now, family), "masqueraded: the way is by VXLAN, and so must the answer's be"
        return client, "kept: the client is this node"
    if client in now.ledger:
        if client == backend:
            return own(now, family), "masqueraded: a pod that reaches itself has to be answered by way of the node"
        if not is_own(now, backend) and is_masqueraded(known, client, backend):
            return gateway_to(now.node, family), "masqueraded: the backend is outside, and knows no way to a pod"
        return client, "kept: the client is a pod of this node, the answer comes by here"
    if backend in now.ledger or is_own(now, backend):
        return client, "kept: the backend is on this node, the answer comes by here"
    uplink = own(now, family) if tunnelled else gateway_to(now.node, family)
    return uplink, "masqueraded: client and backend are both elsewhere, the answer has to come back by here"


def _goes_out(known: Places, client: Address, to: Address) -> bool:
    """Whether it leaves the node, and there gets its address."""
    return not is_own(known.now, to) and is_masqueraded(known, client, to)


def _uplink(now: Snapshot, family: Family) -> str:
    address = gateway_to(now.node, family)
    return show_address(address) if address is not None else "an address of the node"


def only_services(now: Snapshot, address: Address) -> bool:
    """Whether what no frontend takes at this address is refused, whoever sends it."""
    if any(address in cidr for cidr in now.service_ranges):
        return True
    claimed = any(address in now.services[key].cluster_ips for key in now.claims.get(address, ()))
    return claimed and address not in now.node.addresses


def is_external_ip(now: Snapshot, address: Address) -> bool:
    """Whether what no frontend takes at this address, an external IP or a load balancer's, is refused to those who send
    it from elsewhere."""
    claims = (now.services[key] for key in now.claims.get(address, ()))
    return any(address in (*it.external_ips, *it.balancer_ips) for it in claims) and not is_own(now, address)


def _is_elsewhere(now: Snapshot, client: Address | None) -> bool:
    return client is not None and client not in now.ledger and not is_own(now, client)


def _refusal(protocol: Protocol) -> str:
    return "answered by a reset" if protocol is Protocol.TCP else "answered by ICMP port unreachable"


def _notes(known: Places, client: Address | None, state: views.FrontendState) -> Iterator[str]:
    if state in LIMITS:
        yield LIMITS[state]
    decided = node_of(known, client) if client is not None else None
    if decided is not None:
        yield f"the client is on node {decided.name}: its agent decides, unless the packet was sent to this node"


# --- from words --------------------------------------------------------------------------------


def parse_destination(text: str) -> Frontend:
    """`10.96.0.10:80`, `[fd96::a]:53/UDP`. Raises ValueError with the right form."""
    place, slash, name = text.partition("/")
    try:
        address, port = parse_host_port(place)
        return Frontend(address, Protocol[name.upper()] if slash else Protocol.TCP, port)
    except (KeyError, ValueError):
        protocols = ", ".join(each.name for each in Protocol)
        raise ValueError(
            f"{text!r}: expected IP:PORT or IP:PORT/PROTOCOL, such as 10.96.0.10:80 or [fd96::a]:53/UDP, "
            f"with a protocol of {protocols}"
        ) from None


def parse_source(now: Snapshot, text: str, family: Family) -> Address | None:
    """An address, None for `node`, or that of a pod of this node (`NAMESPACE/NAME`), in the destination's family.

    Raises ValueError with the right form, LookupError where this node has no such pod.
    """
    if text == NODE:
        return None
    namespace, slash, name = text.partition("/")
    if slash and namespace and name and "/" not in name:
        return _of_pod(now, PodKey(namespace, name), family)
    try:
        address = parse_address(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected an IP address, {NODE}, or a pod of this node as NAMESPACE/NAME") from None
    if family_of(address) != family:
        raise ValueError(f"{text!r}: expected an {family} address, as the destination's")
    return address


def _of_pod(now: Snapshot, key: PodKey, family: Family) -> Address | None:
    """Of several attachments the first that is confirmed."""
    held = sorted((not it.confirmed, name) for name, it in now.attachments.items() if it.pod == key)
    pod = now.pods.get(key)
    if not held:
        if pod is not None and pod.host_network and pod.node == now.local.name:
            return None
        there = f": it is on node {pod.node}, whose agent knows" if pod is not None and pod.node else ""
        raise LookupError(f"no {key} on node {now.local.name}{there}")
    address = _first(now, (name for _, name in held), family)
    if address is None:
        raise LookupError(f"{key} has no {family} address")
    return address


def _first(now: Snapshot, keys: Iterator[AttachmentKey], family: Family) -> Address | None:
    addresses = (address for key in keys for address in now.attachments[key].addresses)
    return next((address for address in addresses if family_of(address) == family), None)
