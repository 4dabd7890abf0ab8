"""Whether this node can attach one more pod, and if not, why. Pure.

Invariants: one rule for two askers: an ADD is refused exactly where STATUS says that it would be, in the same words.
"""

from podwire.ipam.allocation import NOTHING, Given, Obstacle, Wish, allocate
from podwire.model.snapshot import Snapshot


def granted(now: Snapshot, wish: Wish = NOTHING) -> Given | Obstacle:
    """What a new pod gets, or why its ADD is refused."""
    given = allocate(now, wish)
    if isinstance(given, Given) and now.pod_mtu == 0:
        return Obstacle(f"the MTU of node {now.local.name} is not known: {now.why_no_mtu}")
    return given


def obstacle(now: Snapshot) -> Obstacle | None:
    """Why an ADD of a new pod that asks for nothing would be refused; None: it would get its addresses."""
    given = granted(now)
    return given if isinstance(given, Obstacle) else None
