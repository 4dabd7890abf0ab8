"""The way to the other nodes' pods: transport `direct`, for nodes that share a link. Pure.

Invariants: one route for each of a node's blocks, by way of that node's first address of the block's family; which
interface that is, the kernel knows. Of two nodes that claim one block the first by name has it; this node's own
blocks are never given away. Nodes are few: what one of them changes is decided for all.
"""

from typing import Any

from podwire.model.addresses import Address, Family, family_of
from podwire.model.network import Route, RouteKey
from podwire.model.objects import Node
from podwire.model.snapshot import Snapshot, Touched


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not touched.nodes:
        return {}
    own = frozenset(now.node.pod_cidrs)
    linux: dict[Any, Any] = {}
    for key in sorted(now.nodes):
        node = now.nodes[key]
        if key == now.local.key:
            continue
        for block in node.pod_cidrs:
            gateway = gateway_to(node, block.family)
            if gateway is not None and block not in own:
                linux.setdefault(RouteKey("", block), Route(0, via=gateway))
    return {"linux": linux}


def gateway_to(node: Node, family: Family) -> Address | None:
    """The node's first address of that family; None: its pods of that family can't be reached."""
    return next((address for address in node.addresses if family_of(address) == family), None)
