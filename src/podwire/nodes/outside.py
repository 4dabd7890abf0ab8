"""By whose address pods go out of the cluster: the node's, since outside nobody knows the way to a pod. Pure.

Invariants: pods see each other by their own addresses where there is a way between them: those of this node, whatever
block theirs is, and other nodes' in blocks that `routes` leads to. A block without a route is no pods' as far as this
node can tell, however wide it is: kept for it, pods would lose the way out. Of nodes only those on a link with this one
see pods too: their answers come back by the route that they have to the pod's block, without a router in between; and
of what another node says of itself nothing beyond that link is heeded. Whoever doesn't want any of it has one range,
all.
"""

from typing import Any

from podwire.model.addresses import FAMILIES, Address, Prefix, disjoint, family_of, prefix_around
from podwire.model.network import UnmasqueradedKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.nodes.routes import ways


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not touched.nodes:
        return {}
    return {"nftables": {UnmasqueradedKey(each.first, each.last): True for each in unmasqueraded(now)}}


def unmasqueraded(now: Snapshot) -> tuple[Prefix, ...]:
    """Where pods' addresses are kept, without overlaps; beside this node's own pods."""
    if not now.local.masquerade:
        return tuple(Prefix(Address(bytes(family.size)), 0) for family in FAMILIES)
    nodes = now.nodes.values()
    neighbours = (address for node in nodes for address in node.addresses if on_link(now, address))
    return disjoint(
        (
            *now.local.unmasqueraded,
            *now.node.pod_cidrs,
            *(block for _, block, way in ways(now) if not isinstance(way, str)),
            *(Prefix(address, family_of(address).bits) for address in neighbours),
        )
    )


def on_link(now: Snapshot, address: Address) -> bool:
    """Whether this node reaches it without a router, by the networks in which it has addresses."""
    lengths = (length for size, length in now.local.forms if size == len(address))
    return any(prefix_around(address, length) in now.local.networks for length in lengths)
