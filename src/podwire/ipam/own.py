"""The node's own addresses for pods: one of each family. Pure.

Invariants: it is of the first pod CIDR, or of the first block of the pools, in the order in which this node takes them,
so that a further block seldom changes it. Each block keeps one free for it, whether or not it is there now. One alone
is what the kernel can put in a client's place: of several, which it takes would be its choice.
"""

from collections.abc import Iterator

from podwire.ipam import pools
from podwire.ipam.blocks import own_address
from podwire.ipam.pools import Source
from podwire.model.addresses import FAMILIES, Address, Family
from podwire.model.snapshot import Snapshot


def own_addresses(now: Snapshot) -> tuple[Address, ...]:
    """No pod has them, and no node is reached by them; at most one of each family."""
    found = (own_address_of(now, family) for family in FAMILIES)
    return tuple(address for address in found if address is not None)


def own_address_of(now: Snapshot, family: Family) -> Address | None:
    taken = now.taken
    mine = (it for it in _ranges(now) if it.block.family == family)
    found = (own_address(it.block, taken, it.reserved) for it in mine)
    return next((address for address in found if address is not None), None)


def _ranges(now: Snapshot) -> Iterator[Source]:
    """Those that pods get of first, and last the blocks that are no longer given from."""
    yield from map(Source, now.node.pod_cidrs)
    mine = now.blocks_of.get(now.local.key, ())
    if mine:
        yield from pools.sources(now)[len(now.node.pod_cidrs) :]
        yield from (it for it in pools.all_sources(now) if it.pool)
        rest = (it for it in mine if not pools.is_single(it) and it not in now.contested)
        yield from (Source(it, reserved=pools.reserved_in(now, it)) for it in rest)
