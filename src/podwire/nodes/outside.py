"""By whose address pods go out of the cluster: the node's, since outside nobody knows the way to a pod. Pure.

Invariants: pods of all nodes see each other by their own addresses. Of nodes only those on a link with this one do too:
their answers come back by the route that they have to the pod's block, without a router in between; and of
what another node says of itself nothing beyond that link is heeded. Whoever doesn't want any of it has one range, all.
"""

from typing import Any

from podwire.model.addresses import FAMILIES, Address, Prefix, disjoint, family_of, prefix_around
from podwire.model.network import UnmasqueradedKey
from podwire.model.snapshot import Snapshot, Touched


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not touched.nodes:
        return {}
    return {"nftables": {UnmasqueradedKey(each.first, each.last): True for each in unmasqueraded(now)}}


def unmasqueraded(now: Snapshot) -> tuple[Prefix, ...]:
    """Where pods' addresses are kept, without overlaps."""
    if not now.local.masquerade:
        return tuple(Prefix(Address(bytes(family.size)), 0) for family in FAMILIES)
    nodes = now.nodes.values()
    neighbours = (address for node in nodes for address in node.addresses if on_link(now, address))
    return disjoint(
        (
            *now.local.unmasqueraded,
            *(block for node in nodes for block in node.pod_cidrs),
            *(Prefix(address, family_of(address).bits) for address in neighbours),
        )
    )


def on_link(now: Snapshot, address: Address) -> bool:
    """Whether this node reaches it without a router, by the networks in which it has addresses."""
    lengths = (length for size, length in now.local.forms if size == len(address))
    return any(prefix_around(address, length) in now.local.networks for length in lengths)


def is_masqueraded(now: Snapshot, client: Address, to: Address) -> bool:
    """Whether a packet of a pod of this node, as it leaves the node, gets the node's address."""
    return client in now.ledger and not any(to in kept for kept in unmasqueraded(now))
