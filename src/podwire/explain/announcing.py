"""Why an address is announced, by whom and to whom, and who does not and why. Pure.

Invariants: every answer is made by the functions that decide (`announcing/`), from one snapshot, asked once for each
node as if it were this one. What other nodes' data planes hold nobody here knows: they are taken to be in order.
"""

from collections.abc import Iterable, Iterator, Set

from msgspec import Struct
from msgspec.structs import replace

from podwire.announcing.addresses import addresses_of, programmed
from podwire.announcing.decisions import Decision, around, decide
from podwire.announcing.speaker import sessions
from podwire.model.addresses import Prefix, show_address
from podwire.model.announcements import Attributes, Session, Told
from podwire.model.network import Frontend
from podwire.model.objects import NodeKey, ServiceKey
from podwire.model.snapshot import Snapshot

MOST = 20
"""Nodes of which each is told by itself."""


class NodeWhy(Struct, frozen=True):
    """What one node tells by BGP: `routes`, each as `PREFIX to PEER, ATTRIBUTES`; `why` where it tells none."""

    node: str
    routes: tuple[str, ...]
    why: str


class AnnouncedWhy(Struct, frozen=True):
    """`pool` "": of none. `bgp`: what each node tells, this one first. `others`: how many nodes are not told here.
    `owner`: who answers for the address by ARP or NDP, "" nobody: `l2` says why, or where."""

    address: str
    pool: str
    bgp: tuple[NodeWhy, ...]
    others: int
    owner: str
    l2: str


def announced(now: Snapshot, key: ServiceKey) -> tuple[AnnouncedWhy, ...]:
    """Of each address that the world may learn of: those of load balancers, and others that an advertisement may be
    for."""
    addresses = tuple(dict.fromkeys(addresses_of(now, key)))
    if not addresses:
        return ()
    names = sorted((name for name in now.nodes if name != now.local.key), key=lambda it: it.name)
    seen = {it: _as(now, it.name) for it in (now.local.key, *names[: MOST - 1])}
    mine = {it: sessions(one).sessions for it, one in seen.items()}
    shared = {it: around(one, (each.name for each in mine[it])) for it, one in seen.items()}
    found, held = [], programmed(now)
    for address in addresses:
        decided = {
            it: decide(one, shared[it], address, held if it == now.local.key else _in_order) for it, one in seen.items()
        }
        here = decided[now.local.key]
        bgp = tuple(_node(it, one, mine[it]) for it, one in decided.items())
        rest = len(names) + 1 - len(seen)
        found.append(AnnouncedWhy(show_address(address), here.pool, bgp, rest, here.owner, _l2(now, here)))
    return tuple(found)


def _in_order(_: Frontend) -> bool:
    """What another node's data plane holds."""
    return True


def _as(now: Snapshot, name: str) -> Snapshot:
    return now if name == now.local.name else replace(now, local=replace(now.local, name=name))


def _node(key: NodeKey, it: Decision, mine: Iterable[Session]) -> NodeWhy:
    inner = {each.name for each in mine if each.asn == each.local_asn}
    lines = tuple(line for prefix, told in it.routes for line in _routes(prefix, told, inner))
    return NodeWhy(key.name, lines, it.no_routes)


def _routes(prefix: Prefix, told: Told, inner: Set[str]) -> Iterator[str]:
    """A local preference goes to no router of another AS (RFC 4271, section 5.1.5)."""
    for peer, attributes in told:
        goes = attributes if peer in inner else replace(attributes, local_pref=None)
        yield f"{prefix} to {peer}{''.join(f', {it}' for it in shown(goes))}"


def shown(it: Attributes) -> Iterator[str]:
    if it.communities or it.large:
        yield f"communities {' '.join((*it.communities, *it.large))}"
    if it.local_pref is not None:
        yield f"local preference {it.local_pref}"


def _l2(now: Snapshot, it: Decision) -> str:
    if it.owner == now.local.name and it.answers:
        return f"on {', '.join(it.answers)}"
    return it.no_answers
