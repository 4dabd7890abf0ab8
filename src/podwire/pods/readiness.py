"""Whether this node can attach one more pod, and if not, why. Pure.

Invariants: one rule for two askers: an ADD is refused exactly where STATUS says that it would be, in the same words.
"""

from podwire.ipam import allocation
from podwire.ipam.allocation import NOTHING, Given, Obstacle, Wish, allocate
from podwire.model.addresses import Address
from podwire.model.snapshot import Snapshot


def granted(now: Snapshot, wish: Wish = NOTHING) -> Given | Obstacle:
    """What a new pod gets, or why its ADD is refused."""
    given = allocate(now, wish)
    return given if isinstance(given, Obstacle) else obstacle_beside_addresses(now) or given


def taken_over(now: Snapshot, addresses: tuple[Address, ...]) -> Given | Obstacle:
    """The same of a pod whose addresses another IPAM plugin has given."""
    if (why := obstacle_beside_addresses(now)) is not None:
        return why
    found = (allocation.not_free(now, address) for address in addresses)
    return next((it for it in found if it is not None), Given(addresses, now.cursors))


def obstacle_beside_addresses(now: Snapshot) -> Obstacle | None:
    """Why an ADD would be refused though it asks for no address of this node's."""
    if now.pod_mtu == 0:
        return Obstacle(f"the MTU of node {now.local.name} is not known: {now.why_no_mtu}")
    return None


def obstacle(now: Snapshot) -> Obstacle | None:
    """Why an ADD of a new pod that asks for nothing would be refused; None: it would get its addresses."""
    given = granted(now)
    return given if isinstance(given, Obstacle) else None
