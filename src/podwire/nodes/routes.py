"""The way to the other nodes' pods: transport `direct`, for nodes that share a link. Pure.

Invariants: one route for each of a node's blocks, by way of that node's first address of the block's family; which
interface that is, the kernel knows. Of two nodes that claim one block the first by name has it. A block in which this
node or its pods live leads nowhere, nor does one in which its own gateway is: such a route would lead their packets
away. The source is this node's InternalIP, whatever other networks it is in: the others know the way back. Nodes are
few: what one of them changes is decided for all.
"""

from collections.abc import Iterator
from typing import Any

from podwire.model.addresses import Address, Family, Prefix, family_of, show_address
from podwire.model.network import Route, RouteKey
from podwire.model.objects import Node, NodeKey
from podwire.model.snapshot import Snapshot, Touched


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not touched.nodes:
        return {}
    linux: dict[Any, Any] = {}
    for _, block, way in ways(now):
        if not isinstance(way, str):
            linux.setdefault(RouteKey("", block), Route(0, via=way, source=now.source(block.family)))
    return {"linux": linux}


def ways(now: Snapshot) -> Iterator[tuple[NodeKey, Prefix, Address | str]]:
    """Every block of the other nodes by their names, and its gateway, or in words why there is no route."""
    given: dict[Prefix, NodeKey] = {}
    for key in sorted(now.nodes):
        node = now.nodes[key]
        for block in node.pod_cidrs if key != now.local.key else ():
            gateway, last = gateway_to(node, block.family), block.last
            if (lost := _lost(now.node, block, last)) is not None:
                yield key, block, f"{lost} lies in it"
            elif gateway is None:
                yield key, block, f"the node has no {block.family} address to route to"
            elif gateway in now.node.addresses:
                yield key, block, f"the node's address {show_address(gateway)} is this node's too"
            elif block.first <= gateway <= last:
                yield key, block, f"the node's own address {show_address(gateway)} lies in it"
            elif given.setdefault(block, key) != key:
                yield key, block, f"node {given[block].name} has it too, and comes first"
            else:
                yield key, block, gateway


def _lost(here: Node, block: Prefix, last: Address) -> str | None:
    """What of this node a route for the block would lead away. Of a wider one than its own nothing: its pods have
    longer routes. Addresses of one family are ordered as bytes."""
    for mine in here.pod_cidrs:
        if mine.length <= block.length and len(mine.first) == len(last) and mine.first <= last <= mine.last:
            return f"this node's pod CIDR {mine}" if mine == block else f"part of this node's pod CIDR {mine}"
    for address in here.addresses:
        if len(address) == len(last) and block.first <= address <= last:
            return f"this node's address {show_address(address)}"
    return None


def gateway_to(node: Node, family: Family) -> Address | None:
    """The node's first address of that family; None: its pods of that family can't be reached."""
    return next((address for address in node.addresses if family_of(address) == family), None)
