"""Whether this node can attach one more pod, and if not, why. Pure.

Invariants: one rule for two askers: an ADD is refused exactly where STATUS says that it would be, in the same words.
"""

from podwire.ipam import blocks
from podwire.model.objects import Value
from podwire.model.snapshot import Snapshot


class Obstacle(Value, frozen=True):
    """`exhausted`: it goes away once pods do, by nothing else."""

    text: str
    exhausted: bool = False


def obstacle(now: Snapshot) -> Obstacle | None:
    """Why an ADD of a new pod would be refused; None: it would get its addresses."""
    node = now.local.name
    if not now.node.pod_cidrs:
        return Obstacle(f"node {node} has no spec.podCIDRs yet")
    if now.local.mtu == 0:
        return Obstacle(f"the MTU of node {node} is not known: no default route, and no mtu set")
    for block in now.node.pod_cidrs:
        if blocks.next_free(block, now.taken, now.cursors.get(block, 0)) is None:
            full = f"no address is free in {block}: all {blocks.capacity(block)} are in use"
            return Obstacle(full, exhausted=True)
    return None
