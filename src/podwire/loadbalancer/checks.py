"""What is wrong with what users have configured for load balancers, as far as several objects have to be looked at for
it. Pure.

Invariants: a problem says what becomes of it, and that is what the other rooms do: of two that fight the older has it
(pools, peers) or the first by name (preferences). Nothing here keeps anything from working: an object is `refused`
where another rule, named beside it, keeps all of it from being used; all else goes on as far as it can.
"""

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from podwire.loadbalancer import pools
from podwire.loadbalancer.others import NOBODYS, Taken
from podwire.loadbalancer.pools import Pools, Used, any_met
from podwire.model.addresses import FAMILIES, Address, family_of, joined, prefix_around, show_address
from podwire.model.announcements import (
    BGPAdvertisement,
    BGPAdvertisementKey,
    BGPPeer,
    BGPPeerKey,
    Choice,
    ConfigKey,
    Kind,
    L2Advertisement,
    L2AdvertisementKey,
    Selector,
    oldest_first,
)
from podwire.model.balancers import AddressPool, AddressPoolKey, AnnouncedBy, Labels
from podwire.model.network import listed
from podwire.model.objects import Node, NodeKey, Operator, Requirement, ServiceKey, Value

MOST_NAMED = 8
"""Of what is alike, in one message."""
BGP = Mapping[BGPAdvertisementKey, BGPAdvertisement]
L2 = Mapping[L2AdvertisementKey, L2Advertisement]


class Problem(Value, frozen=True):
    """`field`: its path in the object. `reason`: one word, for machines. `refused`: nothing of the object is used."""

    object: ConfigKey
    field: str
    reason: str
    message: str
    refused: bool = False


class Seen(NamedTuple):
    """All that is looked at. `taken`: the addresses of nodes, pods and cluster IPs. `secrets`: the items of those in
    Podwire's own namespace, by name; None: they are not known. `services`: labels of those that have a load balancer's
    address, or ask for one."""

    pools: Pools = {}
    peers: Mapping[BGPPeerKey, BGPPeer] = {}
    bgp: BGP = {}
    l2: L2 = {}
    nodes: Mapping[NodeKey, Node] = {}
    taken: Taken = NOBODYS
    secrets: Mapping[str, Set[str]] | None = {}
    services: Mapping[ServiceKey, Labels] = {}


def problems(seen: Seen) -> tuple[Problem, ...]:
    """By object, what refuses it first."""
    at = _Around(seen, pools.used(seen.pools, seen.taken), _Nodes(seen.nodes))
    found = [*_of_pools(at), *_of_peers(at), *_of_bgp(at), *_of_l2(at)]
    return tuple(sorted(found, key=lambda it: (str(it.object), not it.refused, it.field, it.reason, it.message)))


class _Nodes:
    """Which nodes selectors select, by an index of their labels: there may be thousands of them, and many selectors."""

    def __init__(self, nodes: Mapping[NodeKey, Node]) -> None:
        self._all = frozenset(nodes)
        self._of: dict[str, dict[str, set[NodeKey]]] = {}
        """By label, and by its value."""
        self._found: dict[tuple[Selector, ...], frozenset[NodeKey]] = {}
        for key, node in nodes.items():
            for name, value in node.labels:
                self._of.setdefault(name, {}).setdefault(value, set()).add(key)

    def selected(self, selectors: tuple[Selector, ...]) -> frozenset[NodeKey]:
        """By one of them; where there is none, all."""
        if not selectors:
            return self._all
        if selectors not in self._found:
            each = (self._all.intersection(*map(self._meeting, it)) for it in selectors)
            self._found[selectors] = frozenset().union(*each)
        return self._found[selectors]

    def _meeting(self, it: Requirement) -> Set[NodeKey]:
        values = self._of.get(it.key, {})
        match it.operator:
            case Operator.IN:
                return set().union(*(values.get(value, ()) for value in it.values))
            case Operator.NOT_IN:
                return self._all.difference(*(values.get(value, ()) for value in it.values))
            case Operator.EXISTS:
                return set().union(*values.values())
            case Operator.DOES_NOT_EXIST:
                return self._all.difference(*values.values())


class _Around(NamedTuple):
    seen: Seen
    used: Used
    known: _Nodes

    def nodes(self, selectors: tuple[Selector, ...]) -> frozenset[NodeKey]:
        """Those that one of them selects; where there is none, all."""
        return self.known.selected(selectors)

    def chosen(self, choice: Choice) -> list[str]:
        """The pools in use that an advertisement is for, by whatever these may be announced."""
        return [name for name, pool in self.used.pools.items() if pools.chooses(choice, name, pool)]


# --- pools -------------------------------------------------------------------------------------


def _of_pools(at: _Around) -> Iterator[Problem]:
    for key, why in at.used.unfit.items():
        yield Problem(key, "spec.addresses", "Overlap", f"the pool is not used: {why}", refused=True)
    announced = {
        (name, by)
        for by, ads in ((AnnouncedBy.BGP, at.seen.bgp.values()), (AnnouncedBy.L2, at.seen.l2.values()))
        for it in ads
        for name in at.chosen(it.choice)
        if isinstance(it, L2Advertisement) or Kind.LOAD_BALANCER_IP in it.kinds
    }
    for name, pool in sorted(at.used.pools.items()):
        key = AddressPoolKey(name)
        parts = [part for each in pool.ranges for part in at.used.taken.within(each)]
        if parts:
            told = [f"{_range(it.first, it.last)} is {whose}" for it, whose in parts]
            yield Problem(key, "spec.addresses", "AddressesTaken", f"it does not give what others have: {_some(told)}")
        if (at.seen.bgp or at.seen.l2) and not any((name, by) in announced for by in pool.announce):
            yield Problem(key, "spec.announce", "NotAnnounced", f"no {_kinds(pool)} chooses the pool")


def _kinds(pool: AddressPool) -> str:
    return " or ".join(f"{by.value}Advertisement" for by in pool.announce)


def _range(first: Address, last: Address) -> str:
    return show_address(first) if first == last else f"{show_address(first)}-{show_address(last)}"


def _some(told: list[str]) -> str:
    more = f"; and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return "; ".join(told[:MOST_NAMED]) + more


# --- peers -------------------------------------------------------------------------------------


def _of_peers(at: _Around) -> Iterator[Problem]:
    for key, peer in sorted(at.seen.peers.items()):
        if (missing := _secret(at, key, peer)) is not None:
            yield missing
        yield from _rivals(at, key, peer)
        mine = at.nodes(peer.node_selectors)
        if at.seen.nodes and not mine:
            yield Problem(key, "spec.nodeSelectors", "NoNode", "no node has a session: none is selected")
        if peer.router_id is not None and len(mine) > 1:
            words = (
                f"{len(mine)} nodes call themselves {show_address(peer.router_id)}; expected one of its own for each"
            )
            yield Problem(key, "spec.routerID", "SharedRouterID", words)
        if not peer.receives and not any(_tells(it, key.name) for it in at.seen.bgp.values()):
            yield Problem(key, "", "NoAdvertisement", "nothing is told to it: no BGPAdvertisement is for this peer")


def _tells(ad: BGPAdvertisement, peer: str) -> bool:
    return not ad.peers or peer in ad.peers


def _secret(at: _Around, key: BGPPeerKey, peer: BGPPeer) -> Problem | None:
    if peer.password is None or at.seen.secrets is None:
        return None
    items = at.seen.secrets.get(peer.password.secret)
    if items is None:
        words = f"no node has a session: namespace podwire has no Secret {peer.password.secret}"
        return Problem(key, "spec.passwordSecret.name", "SecretMissing", words, refused=True)
    if peer.password.item not in items:
        words = f"no node has a session: Secret {peer.password.secret} has no password at {peer.password.item}"
        return Problem(key, "spec.passwordSecret.key", "SecretMissing", words, refused=True)
    return None


def _rivals(at: _Around, key: BGPPeerKey, peer: BGPPeer) -> Iterator[Problem]:
    """Those that are older and have the same address, or call a node something else."""
    mine = at.nodes(peer.node_selectors)
    lost: set[NodeKey] = set()
    first: BGPPeerKey | None = None
    for other, its in oldest_first(at.seen.peers):
        if other == key:
            break
        both = mine & at.nodes(its.node_selectors) if _secret(at, other, its) is None else set()
        if both and its.address == peer.address:
            first = first or other
            lost |= both
        if both and None not in (its.router_id, peer.router_id) and its.router_id != peer.router_id:
            yield Problem(key, "spec.routerID", "RouterIDConflict", f"that of {other} is used, which comes first")
    if first is not None:
        where = "" if lost == mine else f" on {len(lost)} of its {len(mine)} nodes"
        words = f"no session{where}: {first}, which comes first, has the same address"
        yield Problem(key, "spec.peerAddress", "PeerConflict", words, refused=lost == mine)


# --- advertisements ----------------------------------------------------------------------------


def _of_l2(at: _Around) -> Iterator[Problem]:
    for key, ad in sorted(at.seen.l2.items()):
        yield from _choice(at, key, ad.choice, AnnouncedBy.L2)


def _choice(at: _Around, key: ConfigKey, choice: Choice, by: AnnouncedBy) -> Iterator[Problem]:
    unknown = [it for it in choice.pools if AddressPoolKey(it) not in at.seen.pools]
    if unknown:
        yield Problem(key, "spec.addressPools", "UnknownPool", f"there is no AddressPool {listed(unknown, ' or ')}")
    for name in choice.pools:
        if (why := at.used.unfit.get(AddressPoolKey(name))) is not None:
            yield Problem(key, "spec.addressPools", "PoolNotUsed", f"pool {name} is not used: {why}")
        elif name in at.used.pools and by not in at.used.pools[name].announce:
            words = f"pool {name} is not announced by {by.value} (its spec.announce)"
            yield Problem(key, "spec.addressPools", "PoolNotAnnounced", words)
    if choice.pool_selectors and not choice.pools and not at.chosen(choice):
        yield Problem(key, "spec.addressPoolSelectors", "NoPool", "no AddressPool that is used is selected")
    if at.seen.nodes and not at.nodes(choice.node_selectors):
        yield Problem(key, "spec.nodeSelectors", "NoNode", "no node is selected")


def _of_bgp(at: _Around) -> Iterator[Problem]:
    for key, ad in sorted(at.seen.bgp.items()):
        if Kind.LOAD_BALANCER_IP in ad.kinds:
            yield from _choice(at, key, ad.choice, AnnouncedBy.BGP)
            yield from _width(at, key, ad)
        elif ad.choice.pools or ad.choice.pool_selectors:
            words = f"pools count for {Kind.LOAD_BALANCER_IP.value} alone, which spec.advertise does not name"
            yield Problem(key, "spec.addressPools", "PoolsUnused", words)
        unknown = [it for it in ad.peers if BGPPeerKey(it) not in at.seen.peers]
        if unknown:
            yield Problem(key, "spec.peers", "UnknownPeer", f"there is no BGPPeer {listed(unknown, ' or ')}")
        elif not at.seen.peers:
            yield Problem(key, "spec.peers", "NoPeer", "there is no BGPPeer")
        yield from _preference(at, key, ad)


def _width(at: _Around, key: BGPAdvertisementKey, ad: BGPAdvertisement) -> Iterator[Problem]:
    for family, length, name in zip(FAMILIES, ad.lengths, ("", "V6"), strict=True):
        for pool in at.chosen(ad.choice) if length < family.bits else ():
            whole = [it for it in joined(at.used.pools[pool].ranges) if family_of(it.first) == family]
            around = (prefix_around(end, length) for each in whole for end in (each.first, each.last))
            wide = next((p for p in around if not any(p.first in it and p.last in it for it in whole)), None)
            if wide is not None:
                words = f"{wide}, as its addresses are told, has others than those of pool {pool}"
                yield Problem(key, f"spec.aggregationLength{name}", "WiderThanPool", words)


def _preference(at: _Around, key: BGPAdvertisementKey, ad: BGPAdvertisement) -> Iterator[Problem]:
    """Local preferences are told to peers of one's own AS alone (RFC 4271, 5.1.5); for one route there is one."""
    if ad.attributes.local_pref is None:
        return
    inner = _inner(at, ad)
    if at.seen.peers and not inner:
        words = "it is told to no peer: none that the advertisement is for is of the nodes' own AS"
        yield Problem(key, "spec.localPref", "LocalPrefUnused", words)
    for other, its in sorted(at.seen.bgp.items()):
        if other == key:
            return
        theirs = its.attributes.local_pref
        peers = sorted(inner & _inner(at, its))
        if theirs not in (None, ad.attributes.local_pref) and peers and _meet(at, ad, its):
            words = f"{other}, which comes first, has {theirs} for some of its routes to {listed(peers)}: that is told"
            yield Problem(key, "spec.localPref", "LocalPrefConflict", words)


def _inner(at: _Around, ad: BGPAdvertisement) -> set[str]:
    """The names of the peers that it is for, of these those of the nodes' own AS."""
    return {key.name for key, it in at.seen.peers.items() if it.asn == it.my_asn and _tells(ad, key.name)}


def _meet(at: _Around, one: BGPAdvertisement, other: BGPAdvertisement) -> bool:
    """Whether both may be for the same route."""
    if not at.nodes(one.choice.node_selectors) & at.nodes(other.choice.node_selectors):
        return False
    kinds = set(one.kinds) & set(other.kinds)
    if Kind.POD_CIDR in kinds:
        return True
    if not _services_of_both(at, one.choice, other.choice):
        return False
    if kinds & {Kind.EXTERNAL_IP, Kind.CLUSTER_IP} and any(map(int.__eq__, one.lengths, other.lengths)):
        return True
    shared = set(at.chosen(one.choice)) & set(at.chosen(other.choice)) if Kind.LOAD_BALANCER_IP in kinds else set()
    equal = {it for it, mine, its in zip(FAMILIES, one.lengths, other.lengths, strict=True) if mine == its}
    return any(equal & pools.families(at.used.pools[name]) for name in shared)


def _services_of_both(at: _Around, one: Choice, other: Choice) -> bool:
    """Where one of the two does not restrict Services, those that the other selects are of both."""
    both = [it.service_selectors for it in (one, other) if it.service_selectors]
    return len(both) < 2 or any(all(any_met(each, labels) for each in both) for labels in at.seen.services.values())
