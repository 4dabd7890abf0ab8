"""What a node's BGP speaker has to do: its sessions, and who is told which route. Pure.

Invariants: of two peers at one address the older has a session (creation time, then name), the other is told why not:
speakers know a peer by its address, whatever the port. A peer whose password can't be found has none: a session
without one would be refused, or worse, made.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256

from podwire.announcing.decisions import Decision, both
from podwire.loadbalancer.pools import is_selected
from podwire.model.addresses import FAMILIES, IPV4, Address, Prefix, show_address
from podwire.model.announcements import BGPPeer, BGPPeerKey, Session, Speaker, Told, oldest_first
from podwire.model.objects import Value
from podwire.model.snapshot import Snapshot


class Sessions(Value, frozen=True):
    """Of this node, by name; and of the peers that have none, why: since something is wrong, or since they are for
    other nodes."""

    sessions: tuple[Session, ...] = ()
    unfit: tuple[tuple[BGPPeerKey, str], ...] = ()
    elsewhere: tuple[tuple[BGPPeerKey, str], ...] = ()


def sessions(now: Snapshot) -> Sessions:
    found: dict[Address, Session] = {}
    unfit: list[tuple[BGPPeerKey, str]] = []
    elsewhere: list[tuple[BGPPeerKey, str]] = []
    for key, peer in oldest_first(now.announcing.peers):
        password = now.announcing.password(peer.password) if peer.password is not None else ""
        if not is_selected(peer.node_selectors, now.node.labels):
            elsewhere.append((key, f"its spec.nodeSelectors do not select node {now.local.name}"))
        elif peer.address in now.node.addresses:
            elsewhere.append((key, f"{show_address(peer.address)} is this node's own address"))
        elif (first := found.get(peer.address)) is not None:
            unfit.append((key, f"bgppeer/{first.name} has {show_address(peer.address)} already"))
        elif password is None:
            unfit.append((key, f"there is no {peer.password} in Podwire's namespace (spec.passwordSecret)"))
        else:
            found[peer.address] = _session(key, peer, password)
    return Sessions(tuple(sorted(found.values(), key=lambda it: it.name)), tuple(unfit), tuple(elsewhere))


def _session(key: BGPPeerKey, it: BGPPeer, password: str) -> Session:
    return Session(
        key.name,
        it.address,
        it.asn,
        it.my_asn,
        it.port,
        it.source,
        password,
        it.hold,
        it.keepalive,
        it.connect,
        it.multihop,
        it.bfd,
        it.graceful_restart,
        it.restart,
        it.families,
        it.receives,
    )


def speaker(
    now: Snapshot, mine: tuple[Session, ...], decided: Iterable[Decision], own: Iterable[tuple[Prefix, Told]]
) -> Speaker | None:
    """None: it has nobody to talk to. `own`: the routes to this node's pods."""
    if not mine:
        return None
    hops = (now.source(family) or _first(now, family.size) for family in FAMILIES)
    return Speaker(
        _asn(mine), router_id(now, mine), tuple(it for it in hops if it is not None), mine, routes(decided, own)
    )


def _asn(mine: tuple[Session, ...]) -> int:
    """The speaker's own, of several that peers name. A session within an AS can be had by a speaker of that AS alone;
    to a router of another one a node can be in whichever it expects."""
    inner = (it.local_asn for it in mine if it.asn == it.local_asn)
    return next(inner, mine[0].local_asn)


def routes(decided: Iterable[Decision], own: Iterable[tuple[Prefix, Told]]) -> Mapping[Prefix, Told]:
    """A route that several addresses lie in has the attributes of all their routes."""
    found: dict[Prefix, Told] = dict(own)
    for decision in decided:
        for prefix, told in decision.routes:
            held = found.get(prefix)
            found[prefix] = told if held is None or held == told else _together(held, told)
    return found


def _together(one: Told, other: Told) -> Told:
    found = dict(one)
    for peer, attributes in other:
        # Which of two comes first is decided by value, not by who was decided first.
        held = found.get(peer)
        found[peer] = attributes if held is None else both(*sorted((held, attributes), key=repr))
    return tuple(sorted(found.items()))


def _first(now: Snapshot, size: int) -> Address | None:
    return next((it for it in now.node.addresses if len(it) == size), None)


def router_id(now: Snapshot, mine: Iterable[Session]) -> Address:
    """As a peer says, the oldest first; else the node's own IPv4 address; a node without one has a number of its name
    (RFC 6286: any four bytes that no neighbour has)."""
    names = {it.name for it in mine}
    said = [it.router_id for key, it in oldest_first(now.announcing.peers) if key.name in names]
    first = next((it for it in (*said, _first(now, IPV4.size)) if it is not None), None)
    if first is not None:
        return first
    digest = sha256(now.local.name.encode()).digest()
    return Address(bytes((1 + digest[0] % 223, *digest[1:4])))
