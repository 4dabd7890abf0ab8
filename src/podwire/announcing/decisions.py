"""What becomes of an address: by which routes and to whom this node tells it, and which node answers for it. Pure.

Invariants: a decision follows from one snapshot alone and is made address by address, so that one changed Service costs
one decision; what all of them share (`Around`) is derived anew whenever nodes or configuration change. Each says why
not where something is not announced. A node's own address is never announced, whoever has it for a Service's: packets
for the node would come to others. An address that several Services share is announced for each of them, and its
routes have the attributes of all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from podwire.announcing.nodes import bars, with_backends
from podwire.loadbalancer import pools
from podwire.loadbalancer.election import owner as elected
from podwire.loadbalancer.pools import Used, chooses, is_selected
from podwire.model.addresses import IPV4, Address, Prefix, family_of, prefix_around
from podwire.model.announcements import (
    Attributes,
    BGPAdvertisement,
    Kind,
    L2Advertisement,
    Told,
)
from podwire.model.balancers import AddressPoolKey, AnnouncedBy
from podwire.model.network import Frontend
from podwire.model.objects import Service, ServiceKey, Value
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import Kind as Part
from podwire.services.frontends import is_local, owner


class Decision(Value, frozen=True):
    """Of one address. `services`: whose it is, as far as they have backends. `pool`: "" where it is of none. `routes`:
    of this node. `owner`: the node that answers by ARP or NDP, "" nobody. `answers`: this node does, on these
    interfaces, (): on all; None: it does not. `no_routes`, `no_answers`: why."""

    services: tuple[ServiceKey, ...] = ()
    pool: str = ""
    routes: tuple[tuple[Prefix, Told], ...] = ()
    owner: str = ""
    answers: tuple[str, ...] | None = None
    no_routes: str = ""
    no_answers: str = ""


NEVER_BY_L2 = "only addresses of load balancers are announced by L2"

BGPNamed = tuple[str, BGPAdvertisement]
L2Named = tuple[str, L2Advertisement]


class Around(NamedTuple):
    """`others`: of the own addresses of nodes and BGPPeers, whose each is, in words. `bars`: by node, why it announces
    nothing. `bgp`, `l2`: by pool, and "" for what is of none, what chooses it, by name. `nodes`: by L2Advertisement,
    the nodes that it chooses. `peers`: the sessions that this node has."""

    used: Used
    others: Mapping[Address, str]
    bars: Mapping[str, str]
    bgp: Mapping[str, tuple[BGPNamed, ...]]
    l2: Mapping[str, tuple[L2Named, ...]]
    nodes: Mapping[str, frozenset[str]]
    peers: tuple[str, ...]


def around(now: Snapshot, peers: Iterable[str]) -> Around:
    """`peers`: the names of this node's sessions."""
    it = now.announcing
    used = pools.used(it.pools)
    labels = now.node.labels
    bgp = [(key.name, ad) for key, ad in sorted(it.bgp.items()) if is_selected(ad.choice.node_selectors, labels)]
    l2 = [(key.name, ad) for key, ad in sorted(it.l2.items())]
    fit = {name: it.pools[AddressPoolKey(name)] for name in used.pools}
    by_pool: dict[str, tuple[BGPNamed, ...]] = {"": tuple(bgp)}
    by_pool |= {
        name: tuple(each for each in bgp if AnnouncedBy.BGP in pool.announce and chooses(each[1].choice, name, pool))
        for name, pool in fit.items()
    }
    return Around(
        used,
        {
            **{peer.address: f"that of {key}" for key, peer in sorted(it.peers.items(), reverse=True)},
            **{
                address: f"an address of node {key.name} itself"
                for key, node in sorted(now.nodes.items(), reverse=True)
                for address in node.addresses
            },
        },
        bars(now),
        by_pool,
        {
            name: tuple(each for each in l2 if AnnouncedBy.L2 in pool.announce and chooses(each[1].choice, name, pool))
            for name, pool in fit.items()
        },
        {
            name: frozenset(
                key.name for key, node in now.nodes.items() if is_selected(ad.choice.node_selectors, node.labels)
            )
            for name, ad in l2
        },
        tuple(sorted(peers)),
    )


# --- one address -------------------------------------------------------------------------------


class _Claim(NamedTuple):
    """A Service's right to an address, and what there is to announce for it. `nodes`: those with backends, where no
    others may; None: all may."""

    key: ServiceKey
    service: Service
    kind: Kind
    nodes: frozenset[str] | None


Programmed = Callable[[Frontend], bool]
"""Whether the data plane holds a frontend as it should."""


def decide(now: Snapshot, known: Around, address: Address, programmed: Programmed) -> Decision:
    claims, why = _claims(now, address)
    pool = known.used.pool_of(address) or ""
    if not claims:
        return Decision(pool=pool, no_routes=why, no_answers=why)
    here = now.local.name
    services = tuple(dict.fromkeys(it.key for it in claims))
    if (whose := known.others.get(address)) is not None:
        why = f"it is {whose}"
        return Decision(services, pool, no_routes=why, no_answers=why)
    held = all(programmed(it) for it in _frontends(now, services, address))
    late = "" if held else "nftables does not hold all of it yet"
    bar = known.bars.get(here, "there is no such Node")
    routes, no_routes = _routes(now, known, address, pool, claims)
    routes, no_routes = ((), bar or late) if routes and (bar or late) else (routes, no_routes)
    owner_, interfaces, no_answers = _owner(known, address, pool, claims)
    answers = interfaces if owner_ == here and held else None
    if owner_ == here and not held:
        no_answers = late
    return Decision(services, pool, routes, owner_, answers, no_routes, no_answers)


def _claims(now: Snapshot, address: Address) -> tuple[list[_Claim], str]:
    """Of those who name it, by name; and why there is none."""
    found: list[_Claim] = []
    why = "no Service has it"
    for key in now.claims.get(address, ()):
        service, family = now.services[key], family_of(address)
        if not _frontends(now, (key,), address):
            why = f"another Service has all ports of {key} there"
            continue
        parts = (
            (Part.BALANCER, Kind.LOAD_BALANCER_IP, service.balancer_ips),
            (Part.EXTERNAL_IP, Kind.EXTERNAL_IP, service.external_ips),
            (Part.CLUSTER_IP, Kind.CLUSTER_IP, service.cluster_ips),
        )
        serving = with_backends(now, key, family)
        for part, kind, addresses in parts:
            if address in addresses and serving:
                found.append(_Claim(key, service, kind, serving if is_local(service, part) else None))
            elif address in addresses:
                why = f"{key} has no backends"
    return found, "" if found else why


def _frontends(now: Snapshot, keys: Iterable[ServiceKey], address: Address) -> list[Frontend]:
    """Those of these Services at that address that are theirs."""
    found = [(key, Frontend(address, port.protocol, port.port)) for key in keys for port in now.services[key].ports]
    return [it for key, it in found if it in now.claims and owner(now, it) == key]


# --- by routes ---------------------------------------------------------------------------------


def _routes(
    now: Snapshot, known: Around, address: Address, pool: str, claims: list[_Claim]
) -> tuple[tuple[tuple[Prefix, Told], ...], str]:
    told: dict[Prefix, list[BGPNamed]] = {}
    why = ""
    for claim in claims:
        mine = list(_advertised(known, pool, claim))
        if not mine:
            why = why or _no_advertisement(known, pool, claim, "BGPAdvertisement", AnnouncedBy.BGP)
        elif claim.nodes is not None and now.local.name not in claim.nodes:
            why = why or f"{claim.key} has no backend on this node, and its traffic policy is Local"
        else:
            for each in mine:
                told.setdefault(_prefix(address, each[1]), []).append(each)
    if told and not known.peers:
        return (), "this node has no BGPPeer"
    found = {prefix: merged(ads, known.peers) for prefix, ads in told.items()}
    routes = tuple((prefix, found[prefix]) for prefix in sorted(found) if found[prefix])
    if not routes and told:
        why = "no BGPPeer of this node is among those of its BGPAdvertisements (spec.peers)"
    return routes, "" if routes else why


def _advertised(known: Around, pool: str, claim: _Claim) -> Iterator[BGPNamed]:
    """Which advertisements are for a Service's address. Pools count for what comes from pools alone."""
    balanced = claim.kind is Kind.LOAD_BALANCER_IP
    if balanced and not pool:
        return
    for name, ad in known.bgp.get(pool if balanced else "", ()):
        if claim.kind in ad.kinds and is_selected(ad.choice.service_selectors, claim.service.labels):
            yield name, ad


def _no_advertisement(known: Around, pool: str, claim: _Claim, kind: str, by: AnnouncedBy) -> str:
    if claim.kind is not Kind.LOAD_BALANCER_IP:
        return f"no {kind} advertises {claim.kind}s of {claim.key} from this node"
    if not pool:
        return "it is in no AddressPool that is used"
    if by not in known.used.pools[pool].announce:
        return f"pool {pool} is not announced by {by} (spec.announce)"
    return f"no {kind} chooses pool {pool}, {claim.key} and this node"


def _prefix(address: Address, ad: BGPAdvertisement) -> Prefix:
    return prefix_around(address, ad.lengths[0 if family_of(address) == IPV4 else 1])


def merged(ads: Iterable[BGPNamed], peers: Iterable[str]) -> Told:
    """One route by several advertisements: communities of all; of local preferences that of the first by name."""
    found: dict[str, Attributes] = {}
    for _, ad in sorted(dict(ads).items()):
        for peer in peers:
            if not ad.peers or peer in ad.peers:
                found[peer] = both(found[peer], ad.attributes) if peer in found else ad.attributes
    return tuple(sorted(found.items()))


def both(first: Attributes, other: Attributes) -> Attributes:
    return Attributes(
        tuple(sorted({*first.communities, *other.communities})),
        tuple(sorted({*first.large, *other.large})),
        first.local_pref if first.local_pref is not None else other.local_pref,
    )


def pod_routes(now: Snapshot, known: Around) -> tuple[tuple[Prefix, Told], ...]:
    """Where this node's pods live, as far as that is advertised."""
    if known.bars.get(now.local.name, "there is no such Node"):
        return ()
    ads = [each for each in known.bgp[""] if Kind.POD_CIDR in each[1].kinds]
    told = merged(ads, known.peers)
    return tuple((prefix, told) for prefix in sorted(set(now.own_blocks))) if told else ()


# --- by ARP and NDP ----------------------------------------------------------------------------


def _owner(known: Around, address: Address, pool: str, claims: list[_Claim]) -> tuple[str, tuple[str, ...], str]:
    """Who answers, on which interfaces, and why nobody or another does."""
    each_may: list[frozenset[str]] = []
    interfaces: set[str] = set()
    everywhere, why = False, ""
    for claim in claims:
        if claim.kind is not Kind.LOAD_BALANCER_IP:
            why = why or NEVER_BY_L2
            continue
        mine = [
            (name, ad)
            for name, ad in known.l2.get(pool, ())
            if is_selected(ad.choice.service_selectors, claim.service.labels)
        ]
        if not mine:
            why = why or _no_advertisement(known, pool, claim, "L2Advertisement", AnnouncedBy.L2)
            continue
        chosen = frozenset().union(*(known.nodes[name] for name, _ in mine))
        each_may.append(chosen if claim.nodes is None else chosen & claim.nodes)
        interfaces.update(name for _, ad in mine for name in ad.interfaces)
        everywhere = everywhere or not all(ad.interfaces for _, ad in mine)
    may = frozenset().union(*each_may)
    fit = {name for name in may if known.bars.get(name, "unknown") == ""}
    # Where Services share it, a node that can serve all of them goes before those that would drop packets for some.
    winner = elected(address, sorted(fit.intersection(*each_may) or fit))
    if winner is not None:
        return winner, () if everywhere else tuple(sorted(interfaces)), ""
    if may:
        return "", (), f"no node that may is fit: {_bars(known, sorted(may))}"
    return "", (), why or "no node that its L2Advertisements choose has a backend, and its traffic policy is Local"


def _bars(known: Around, names: list[str]) -> str:
    shown = [f"node {name}: {known.bars.get(name, 'unknown')}" for name in names[:3]]
    return "; ".join(shown) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")
