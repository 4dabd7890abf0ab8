"""What is at an address, as far as this node knows, and how it gets there. Pure.

Invariants: ways to other nodes' pods are those that `nodes/routes.py` decides, the longest prefix first as in the
kernel. What only the kernel knows (foreign routes, further addresses of the node) is said to be the node's own.
"""

from collections.abc import Container, Mapping
from typing import NamedTuple

from podwire import views
from podwire.ipam.own import own_address_of
from podwire.ipam.pools import pool_around
from podwire.model.addresses import (
    Address,
    Family,
    Prefix,
    family_of,
    parse_address,
    prefix_around,
    show_address,
)
from podwire.model.objects import AttachmentKey, NodeKey, PodKey
from podwire.model.snapshot import Snapshot
from podwire.nodes import routes
from podwire.nodes.outside import unmasqueraded
from podwire.nodes.own import LOOPBACKS, gateway_to, is_own
from podwire.pods.names import link_of


class Places(NamedTuple):
    """A snapshot, prepared for many questions. `nodes`: who has an address; `routed`: by block whose it is and the way;
    `stranded`: blocks that no route leads to, each with its node and the reason; `kept`: where pods' own addresses are
    seen; `lengths`: of all these ranges, the longest first."""

    now: Snapshot
    nodes: Mapping[Address, NodeKey]
    routed: Mapping[Prefix, tuple[NodeKey, routes.Way]]
    stranded: Mapping[Prefix, tuple[NodeKey, str]]
    kept: Container[Prefix]
    lengths: tuple[int, ...]


def places(now: Snapshot) -> Places:
    routed: dict[Prefix, tuple[NodeKey, routes.Way]] = {}
    stranded: dict[Prefix, tuple[NodeKey, str]] = {}
    for key, block, way in routes.ways(now):
        if isinstance(way, str):
            stranded.setdefault(block, (key, way))
        else:
            routed[block] = key, way
    stranded = {block: why for block, why in stranded.items() if block not in routed}
    nodes: dict[Address, NodeKey] = {}
    for key in sorted(now.nodes):
        for address in now.nodes[key].addresses:
            nodes.setdefault(address, key)
    kept = frozenset(unmasqueraded(now))
    lengths = sorted({block.length for block in (*routed, *stranded, *kept)}, reverse=True)
    return Places(now, nodes, routed, stranded, kept, tuple(lengths))


def where(known: Places, address: Address, pod: PodKey | None = None) -> str:
    """`pod`: which one is there, where a slice says so."""
    now = known.now
    holder = now.ledger.get(address)
    if holder is not None:
        return _attached(now, holder)
    if is_own(now, address):
        return "this node itself"
    if address in known.nodes:
        return f"node {known.nodes[address].name} itself"
    told = f"pod {pod.namespace}/{pod.name}" if pod is not None else "a pod"
    block = _around(known, known.routed, address)
    if block is not None:
        key, way = known.routed[block]
        by = f"by VXLAN to node {key.name} ({{}})" if way.vxlan else "by way of {}"
        by = "by a route that BGP learns" if way.learnt else by
        return f"{told} of node {key.name}, {by.format(show_address(way.address))}"
    if any(address in block for block in now.own_blocks):
        return "an address of this node's pods that no pod has"
    block = _around(known, known.stranded, address)
    if block is not None:
        key, reason = known.stranded[block]
        return f"{told} of node {key.name}, to which there is no route: {reason}"
    if now.pools and (name := pool_around(now, address)) is not None:
        return f"an address of pool {name}, in a block that no node has"
    return "outside of the cluster, by the node's own routes"


def _attached(now: Snapshot, key: AttachmentKey) -> str:
    it = now.attachments[key]
    state = views.pod_state(now, key, it)
    unready = "" if state is views.PodState.WIRED else f", {state.value}"
    return f"pod {it.pod.namespace}/{it.pod.name} on this node, by {link_of(key, it)}{unready}"


def node_of(known: Places, address: Address) -> NodeKey | None:
    """The other node that has the address, itself or as one of its pods'."""
    if address in known.now.ledger or is_own(known.now, address):
        return None
    block = _around(known, known.routed, address)
    return known.routed[block][0] if block is not None else known.nodes.get(address)


def by_vxlan(known: Places, address: Address) -> bool:
    """Whether what this node sends there goes by VXLAN."""
    block = None if address in known.now.ledger or is_own(known.now, address) else _around(known, known.routed, address)
    return block is not None and known.routed[block][1].vxlan


def is_masqueraded(known: Places, client: Address, to: Address) -> bool:
    """Whether a packet of a pod of this node, as it leaves the node, gets the node's address."""
    ledger = known.now.ledger
    return client in ledger and to not in ledger and _around(known, known.kept, to) is None


def _around(known: Places, blocks: Container[Prefix], address: Address) -> Prefix | None:
    """The longest of these blocks that the address is in."""
    bits = family_of(address).bits
    around = (prefix_around(address, length) for length in known.lengths if length <= bits)
    return next((block for block in around if block in blocks), None)


# --- this node ---------------------------------------------------------------------------------


def own(now: Snapshot, family: Family) -> Address | None:
    """The node's address on lo, of that family."""
    return own_address_of(now, family)


def own_source(known: Places, to: Address) -> Address | None:
    """Which address this node's own sockets choose towards another; None where only the kernel knows.

    An address of the node is reached from itself. The routes to Services and pods have the node's InternalIP as their
    source; where its kernel has none, those to Services have the address of the node's block, and so has the kernel's
    own choice for pods behind links without addresses (inet_select_addr; RFC 6724 for IPv6), and so have the routes by
    VXLAN. All else leaves by the uplink.
    """
    now, family = known.now, family_of(to)
    if any(to in loopback for loopback in LOOPBACKS):
        return parse_address("127.0.0.1" if len(to) == 4 else "::1")
    if is_own(now, to):
        return to
    if to in now.ledger or any(to in cidr for cidr in now.service_ranges):
        return now.source(family) or own(now, family) or gateway_to(now.node, family)
    if by_vxlan(known, to):
        return own(now, family)
    return gateway_to(now.node, family) or own(now, family)
