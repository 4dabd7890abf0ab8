"""By whose address pods go out of the cluster: the node's, since outside nobody knows the way to a pod. Pure.

Invariants: pods see each other by their own addresses where there is a way between them: those of this node, whatever
block theirs is, and other nodes' in blocks that `routes` leads to. A block without a route is no pods' as far as this
node can tell, however wide it is: kept for it, pods would lose the way out. Of nodes only those on a link with this one
see pods too, where the way is direct: their answers come back by the route that they have to the pod's block, without a
router in between; and of what another node says of itself nothing beyond that link is heeded. Whoever doesn't want any
of it has one range, all.
"""

from collections.abc import Callable
from typing import Any

from podwire.model.addresses import FAMILIES, Address, Family, Prefix, disjoint, family_of, host_prefix
from podwire.model.network import UnmasqueradedKey
from podwire.model.objects import Node
from podwire.model.snapshot import Snapshot, Touched
from podwire.nodes.routes import Way, on_link, way_to, ways


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not touched.nodes:
        return {}
    return {"nftables": {UnmasqueradedKey(each.first, each.last): True for each in unmasqueraded(now)}}


def unmasqueraded(now: Snapshot) -> tuple[Prefix, ...]:
    """Where pods' addresses are kept, without overlaps; beside this node's own pods."""
    if not now.local.masquerade:
        return tuple(Prefix(Address(bytes(family.size)), 0) for family in FAMILIES)
    to, nodes = way_to(now), now.nodes.values()
    neighbours = (it for node in nodes for it in node.addresses if on_link(now, it) and _comes_back(to, node, it))
    return disjoint(
        (
            *now.local.unmasqueraded,
            *now.own_blocks,
            *(block for _, block, way in ways(now) if not isinstance(way, str)),
            *(host_prefix(address) for address in neighbours),
        )
    )


def _comes_back(to: Callable[[Node, Family], Way | str], node: Node, address: Address) -> bool:
    """Whether a node on a link with this one answers a pod from that address without VXLAN in between."""
    way = to(node, family_of(address))
    return isinstance(way, Way) and not way.vxlan
