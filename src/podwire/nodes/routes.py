"""The way to the other nodes' pods: direct for nodes that share a link with this one, by VXLAN for others; or by routes
that BGP learns, which are none of ours. Pure.

Invariants: one route for each of a node's blocks. Direct ones go by way of that node's first address of the block's
family; which interface that is, the kernel knows. Of two nodes that claim one block the first by name has it. A block
in which this node or its pods live leads nowhere, nor does one in which its own gateway is: such a route would lead
their packets away. The source is what the others know the way back to: of direct routes this node's InternalIP, by
VXLAN the address of its own block. What both ends can tell alike decides, so that they decide alike: the nodes' first
InternalIPs, and whether they are in one network; never other addresses of this node, nor which of them its kernel has
at the moment. Nodes are few: what one of them changes is decided for all.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from podwire.model.addresses import (
    FAMILIES,
    IPV4,
    IPV6,
    Address,
    Family,
    Prefix,
    family_of,
    prefix_around,
    show_address,
)
from podwire.model.homes import NO_HOME, Home
from podwire.model.network import Route, RouteKey
from podwire.model.objects import Node, NodeKey
from podwire.model.snapshot import Local, Snapshot, Touched, Transport
from podwire.nodes import tunnels
from podwire.nodes.own import gateway_to


class _Here(NamedTuple):
    """This node, prepared for many questions: by family its first address; the networks in which that is, or, while it
    is away, was; and the address again where that keeps direct ways from working."""

    first: Mapping[Family, Address | None]
    around: Mapping[Family, frozenset[Prefix]]
    away: Mapping[Family, Address]


class Way(NamedTuple):
    """`address`, of the other node, is the gateway, or by VXLAN where the outer packets go. `learnt`: by BGP, which
    alone knows the gateway."""

    address: Address
    vxlan: bool = False
    learnt: bool = False


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not touched.nodes:
        return {}
    linux: dict[Any, Any] = {}
    sources = {family: now.source(family) for family in FAMILIES}
    far: list[tuple[NodeKey, Prefix, Address]] = []
    for key, block, way in ways(now):
        if isinstance(way, str):
            continue
        if way.vxlan:
            far.append((key, block, way.address))
        elif not way.learnt:
            linux[RouteKey("", block)] = Route(0, via=way.address, source=sources[block.family])
    return {"linux": linux | tunnels.wiring(now, far)}


Ways = tuple[tuple[NodeKey, Prefix, Way | str], ...]
_READ = ("local", "nodes", "blocks_of", "homes", "ledger")
"""The parts of a snapshot from which ways follow."""


class _Same:
    """One of them, equal where it is the very same object: they are large, and those of one snapshot are asked for
    again and again."""

    __slots__ = ("part",)

    def __init__(self, part: object) -> None:
        self.part = part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.part is self.part

    def __hash__(self) -> int:
        return id(self.part)


def ways(now: Snapshot) -> Ways:
    """Every block of the other nodes by their names, pod CIDRs first, and the way to it, or in words why there is
    none."""
    return _ways(*(_Same(getattr(now, name)) for name in _READ))


@lru_cache(maxsize=3)  # a change asks for those before it last, and the next one for those after it again
def _ways(*parts: _Same) -> Ways:
    """From a snapshot that has nothing else, so that nothing else can count."""
    return tuple(_each(Snapshot(**{name: it.part for name, it in zip(_READ, parts, strict=True)})))  # type: ignore[arg-type]


def _each(now: Snapshot) -> Iterator[tuple[NodeKey, Prefix, Way | str]]:
    here, lost = _here(now), _lost(now, now.home(now.local.key))
    given: dict[Prefix, NodeKey] = {}
    begins: dict[Address, NodeKey] = {}
    for key in now.inhabited:
        home = now.home(key) if key != now.local.key else NO_HOME
        to = {family: _way_to(now, here, home, family) for family in {block.family for block in home.blocks}}
        for block in home.blocks:
            if (part := lost(block, block.last)) is not None:
                yield key, block, f"{part} lies in it"
                continue
            way = to[block.family]
            if isinstance(way, str):
                yield key, block, way
            elif (why := _unfit(now, home, block, way)) is not None:
                yield key, block, why
            elif given.setdefault(block, key) != key:
                yield key, block, f"node {given[block].name} has it too, and comes first"
            elif way.vxlan and begins.setdefault(block.first, key) != key:  # it names the next hop
                yield key, block, f"one of node {begins[block.first].name}'s begins with the same address"
            elif not way.vxlan and (own := here.away.get(block.family)) is not None:
                # The block is the node's all the same, and not by VXLAN: the other end would not know of that.
                yield key, block, _away(own)
            else:
                yield key, block, way


def way_to(now: Snapshot) -> Callable[[Node, Family], Way | str]:
    """How another node's pods of a family are reached, whatever their blocks; or in words why not."""
    here = _here(now)
    return lambda node, family: _way_to(now, here, node, family)


def _here(now: Snapshot) -> _Here:
    first = {family: gateway_to(now.node, family) for family in FAMILIES}
    held = {family: networks_around(now.local, own) for family, own in first.items() if own is not None}
    former = {family_of(own): frozenset(it for it in now.local.former if own in it) for own in first.values() if own}
    auto = now.local.transport is Transport.AUTO
    away = {family: own for family, own in first.items() if auto and own and not held[family]}
    return _Here(first, {family: held[family] or former[family] for family in held}, away)


def _away(own: Address) -> str:
    return f"this node's own address {show_address(own)} is on none of its interfaces"


def _way_to(now: Snapshot, here: _Here, node: Node | Home, family: Family) -> Way | str:
    transport, gateway = now.local.transport, gateway_to(node, family)
    if not node.addresses or (transport is Transport.DIRECT and gateway is None):
        return f"the node has no {family} address to route to"
    if transport is Transport.BGP:
        return Way(gateway or node.addresses[0], learnt=True)
    if gateway is None or transport is Transport.VXLAN:
        return _by_vxlan(now, here, node, family)
    if transport is Transport.DIRECT:
        if on_link(now, gateway):
            return Way(gateway)
        return f"the node's address {show_address(gateway)} is on no link of this node, and transport is direct"
    own, around = here.first[family], here.around.get(family, frozenset())
    shared = any(gateway in network for network in around)
    if own is not None and not around:
        return _away(own)
    return Way(gateway) if shared else _by_vxlan(now, here, node, family)


def _by_vxlan(now: Snapshot, here: _Here, node: Node | Home, family: Family) -> Way | str:
    """Between the first addresses of a family of which both nodes have one."""
    ends = ((each, gateway_to(node, each)) for each in FAMILIES if here.first[each] is not None)
    outer, address = next(((each, found) for each, found in ends if found is not None), (None, None))
    if outer is None or address is None:
        return "the node and this one have no addresses of one family"
    mtu = now.tunnel_mtu(outer)
    if mtu <= 0:
        return f"the MTU of this node is not known: {now.why_no_mtu}"
    if family == IPV6 and mtu < LEAST_IPV6_MTU:
        return f"VXLAN leaves an MTU of {mtu}, and IPv6 needs {LEAST_IPV6_MTU}"
    return Way(address, vxlan=True)


LEAST_IPV6_MTU = 1280
"""RFC 8200, section 5."""


def _unfit(now: Snapshot, node: Home, block: Prefix, way: Way) -> str | None:
    """Why the other node's address is none to send to."""
    if way.address in now.node.addresses:
        return f"the node's address {show_address(way.address)} is this node's too"
    if way.address in block or (way.vxlan and any(way.address in each for each in node.blocks)):
        return f"the node's own address {show_address(way.address)} lies in it"
    if way.vxlan and (around := now.homes.block_of(way.address)) is not None:
        owner = min(now.homes.owners(around))
        whose = f"{now.home(owner).called(around)} of {owner}"
        return f"the node's address {show_address(way.address)} lies in the {whose}"
    return None


def _lost(now: Snapshot, here: Home) -> Callable[[Prefix, Address], str | None]:
    """What of this node a route for a block, by that and its last address, would lead away. Of a wider one than its own
    nothing: its pods have longer routes. Of a single address nothing but that, which is reserved: the rest of the
    pool's block is not led away. Addresses of one family are ordered as bytes."""
    cidrs, blocks = ([(it.first, it.last, it) for it in some] for some in (here.pod_cidrs, here.blocks))

    def lost(block: Prefix, last: Address) -> str | None:
        single = block.length == len(last) * 8
        if single and last in now.ledger:
            return "a pod of this node"
        for first, end, mine in cidrs if single else blocks:
            if mine.length <= block.length and len(first) == len(last) and first <= last <= end:
                return f"{'' if mine == block else 'part of '}this node's {here.called(mine)}"
        for address in here.addresses:
            if len(address) == len(last) and block.first <= address <= last:
                return f"this node's address {show_address(address)}"
        return None

    return lost


def on_link(now: Snapshot, address: Address) -> bool:
    """Whether this node reaches it without a router, by the networks in which it has addresses."""
    return bool(networks_around(now.local, address))


def networks_around(local: Local, address: Address) -> frozenset[Prefix]:
    """In which of the networks where this node has addresses it lies."""
    lengths = (length for size, length in local.forms if size == len(address))
    return local.networks & {prefix_around(address, length) for length in lengths}


def former_networks(old: Snapshot, networks: frozenset[Prefix]) -> frozenset[Prefix]:
    """Where this node's first InternalIPs were, of those that are in none of `networks`, which it has from now on. As
    long as nobody knows which addresses are the InternalIPs, all may be."""
    known = {*old.local.former, *old.local.networks}
    if not old.node.addresses:
        return frozenset(known - networks)
    found: set[Prefix] = set()
    for own in (gateway_to(old.node, family) for family in FAMILIES):
        if own is not None and not any(own in each for each in networks):
            found |= networks_around(old.local, own) or {each for each in old.local.former if own in each}
    return frozenset(found)


def underlays(now: Snapshot) -> frozenset[Family]:
    """Of which families the addresses are between which VXLAN goes, or, where transport is vxlan, will go."""
    found = {family_of(way.address) for _, _, way in ways(now) if isinstance(way, Way) and way.vxlan}
    if not found and now.local.transport is Transport.VXLAN:
        found = {IPV4 if gateway_to(now.node, IPV4) or not gateway_to(now.node, IPV6) else IPV6}
    return frozenset(found)
