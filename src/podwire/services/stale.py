"""Which tracked flows go where their Service, or a host port, no longer sends anybody. Pure.

Connection tracking draws a flow's backend once and keeps it while packets come: for UDP and SCTP as long as the client
keeps its socket, so such an entry has to be deleted when its backend goes. An established TCP connection is never
touched: it ends with its backend, in order (KEP-1669).

Invariants: a flow is a Service's only where its client's destination is a frontend, in force or just removed, or lies
in a range that is only Services'. What is in force is what nftables was last reported to hold; where that is unknown,
nothing is stale. Where clients in the cluster have a list of their own, each flow is judged by that of its own client.
A flow of datagrams stays with a backend that gets no new ones (it is on its way out, or kept for others by its hints)
for as long as that serves, as with kube-proxy (pkg/proxy/conntrack: "Changes to the service should not affect existing
flows"); but not where a traffic policy has come to leave it out.
A host port's are the flows to it at an address of the node at which no Service has it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from podwire.model.addresses import FAMILIES, Address, Prefix, parse_prefix
from podwire.model.network import Backend, Frontend, HostPortKey, InternalKey, Slots
from podwire.model.objects import Protocol, Value
from podwire.model.snapshot import UNKNOWN, Snapshot
from podwire.services.backends import staying
from podwire.services.frontends import Kind, is_local, of_service, owner

NONE: frozenset[Backend] = frozenset()


class Flow(Value, frozen=True):
    """One entry of connection tracking: where its client sends to, from where the answers come, and who the client is.
    The first two are equal where no destination was rewritten."""

    to: Frontend
    answers: Backend
    client: Address


def backends(held: Any) -> frozenset[Backend]:
    """Of a frontend or a host port as nftables reported it."""
    if isinstance(held, Backend):
        return frozenset((held,))
    return frozenset(it for it in held.backends if it is not None) if isinstance(held, Slots) else NONE


def frontend_of(key: Any) -> Frontend | None:
    """Whose list of backends lies under that key of nftables; None: it is something else."""
    return key.frontend if isinstance(key, InternalKey) else key if isinstance(key, Frontend) else None


def watched(key: Any) -> Frontend | None:
    """The same, and a host port's place, which has an address of all zeros where it is at all that the node has."""
    return key.frontend if isinstance(key, HostPortKey) else frontend_of(key)


def lost(before: Any, after: Any) -> frozenset[Backend] | None:
    """The backends that a frontend or a host port lost by a change; None where the change leaves no flow stale."""
    had, has = backends(before), backends(after)
    gone = had - has
    return gone if gone or (has and not had) or (seconds(after) and not seconds(before)) else None


def is_patient(frontend: Frontend) -> bool:
    """Whether what may be stale is only what a client waits for anyway: of TCP a SYN that nobody has answered, or whom
    session affinity remembers for nothing."""
    return frontend.protocol is Protocol.TCP


def seconds(held: Any) -> int:
    """For how long a frontend's clients are remembered, as nftables reported it. While they were not, nobody looked
    after the entries that were left."""
    return held.affinity if isinstance(held, Slots) else 0


def stale(
    flow: Flow,
    held: Mapping[Any, Any],
    former: Mapping[Frontend, frozenset[Backend]],
    ranges: tuple[Prefix, ...],
    inside: Callable[[Address], bool],
    mapping: Callable[[Address], bool] = lambda _: False,
) -> bool:
    """`held`: what nftables was last reported to hold. `former`: the backends that changed frontends had, needed for
    those that are gone. `ranges`: where only frontends are; empty while these are not all known. `inside`: whether a
    client finds the list for the cluster, where there is one. `mapping`: whether host ports are at an address."""
    now, theirs = held.get(flow.to), held.get(InternalKey(flow.to))
    if now is UNKNOWN or theirs is UNKNOWN:
        return False
    untouched = flow.answers.port == flow.to.port and flow.answers.address == flow.to.address
    if now is not None:
        serving = backends(now if theirs is None or not inside(flow.client) else theirs)
        # Without a backend it is refused, whatever was there before it; a flow that never was the Service's goes on.
        return flow.answers not in serving if serving else not untouched
    everywhere = Frontend(_ZEROS[len(flow.to.address)], flow.to.protocol, flow.to.port)
    mapped = held.get(HostPortKey(flow.to)) or held.get(HostPortKey(everywhere))
    if mapped is UNKNOWN:
        return False
    if mapped is not None and mapping(flow.to.address):
        return bool(flow.answers != mapped)
    return not untouched and (
        any(flow.answers in former.get(at, NONE) for at in (flow.to, everywhere))
        or any(flow.to.address in prefix for prefix in ranges)
    )


def lasting(now: Snapshot, frontend: Frontend, inside: bool) -> frozenset[Backend]:
    """The backends with which flows of such clients to that frontend may stay, whether or not new ones are sent there.
    Of TCP none: what may be stale there is no connection yet."""
    if is_patient(frontend) or frontend not in now.claims:
        return NONE
    key = owner(now, frontend)
    port, kind = [(port, kind) for port, kind, it in of_service(now, key) if it == frontend][-1]
    local = is_local(now.services[key], kind) and (kind is Kind.CLUSTER_IP or not inside)
    return frozenset(staying(now, key, (port.name, port.protocol, len(frontend.address)), local=local))


def is_inside(now: Snapshot, client: Address) -> bool:
    """Whether the rules lead a client to the list for the cluster: pods, and the node itself."""
    own = client in now.local.addresses or client in now.node.addresses or client in _LOOPBACK[len(client)]
    return own or now.homes.block_of(client) is not None


_ZEROS = {family.size: Address(bytes(family.size)) for family in FAMILIES}
_LOOPBACK = {4: parse_prefix("127.0.0.0/8"), 16: parse_prefix("::1/128")}
