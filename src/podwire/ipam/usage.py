"""How full this node's blocks are, and where addresses run short. Pure.

Invariants: what is counted as free is what a pod would get, no more. Addresses run short where less than a tenth of
them is free and no further block can be had.
"""

from collections.abc import Iterable, Iterator

from podwire.ipam import blocks, pools
from podwire.ipam.pools import Source
from podwire.ipam.room import has_room
from podwire.model.addresses import Address, Family, Prefix, family_of, prefix_around
from podwire.model.objects import PodPoolKey, Value
from podwire.model.snapshot import Snapshot


class Use(Value, frozen=True):
    """Of one block. `pods`: how many addresses pods have of it, by whatever way; `free`: how many they can get."""

    source: Source
    capacity: int
    pods: int
    free: int


def uses(now: Snapshot, sources: Iterable[Source]) -> tuple[Use, ...]:
    """In their order."""
    sources = tuple(sources)
    around = [it.block for it in sources]
    living = _within(around, (Address(it) for it in now.ledger if isinstance(it, bytes)))
    singles = (key.cidr.first for key in now.blocks if pools.is_single(key.cidr))
    others = _within(around, (*now.node.addresses, *singles))
    return tuple(
        Use(
            it,
            blocks.capacity(it.block, it.reserved),
            len(living[it.block]),
            blocks.free(it.block, living[it.block] | others[it.block], it.reserved),
        )
        for it in sources
    )


def _within(around: Iterable[Prefix], addresses: Iterable[Address]) -> dict[Prefix, set[Address]]:
    found: dict[Prefix, set[Address]] = {it: set() for it in around}
    lengths = {(len(it.first), it.length) for it in found}
    for address in addresses:
        for size, length in lengths:
            if size == len(address) and (block := prefix_around(address, length)) in found:
                found[block].add(address)
    return found


def asked_for(now: Snapshot) -> tuple[str, ...]:
    """The pools that living pods have named; sorted."""
    return tuple(sorted({it.pool for it in now.attachments.values() if it.pool}))


def shortages(now: Snapshot) -> tuple[str, ...]:
    """For whoever looks after the node: one line for each family of what all pods get, and of each pool in use."""
    names = [name for name in asked_for(now) if pools.why_not(now, name) is None]
    return tuple(
        line for name in ("", *names) for family in pools.families(now, name) for line in _short(now, name, family)
    )


def _short(now: Snapshot, name: str, family: Family) -> Iterator[str]:
    held = [it for it in uses(now, pools.sources(now, name)) if it.source.block.family == family]
    free, most = sum(it.free for it in held), sum(it.capacity for it in held)
    asked = [it for it in ((name,) if name else pools.automatic(now)) if _has(now, it, family)]
    if free * 10 >= most > 0 or (now.local.claims_blocks and any(has_room(now, it, family) for it in asked)):
        return
    of = ", ".join((*(str(it.source.block) for it in held if not it.source.pool), *(f"pool {it}" for it in asked)))
    left = ", and no further block can be had" if asked and now.local.claims_blocks else ""
    yield f"{family} addresses of pods run short: {free} of {most} are free on this node (of {of}){left}"


def _has(now: Snapshot, name: str, family: Family) -> bool:
    return any(cidr.family == family for cidr in pools.cidrs_of(now, name))


def strays(now: Snapshot) -> tuple[Address, ...]:
    """What pods of this node have, of pools, though the cluster's record gives it to nobody; sorted. Not what another
    IPAM plugin has given them."""
    if not now.pools:
        return ()
    own = set(now.own_blocks)
    lengths = {(len(it.first), it.length) for it in own}
    held = (address for it in now.attachments.values() if not it.delegated for address in it.addresses)
    found = {
        it
        for it in held
        if not any(size == len(it) and prefix_around(it, length) in own for size, length in lengths)
        and pools.pool_around(now, it) is not None
    }
    return tuple(sorted(found))


def block_around(now: Snapshot, address: Address) -> tuple[Prefix, str] | None:
    """Which block of which pool an address is from, whoever has that; None where it is in no pool."""
    name = pools.pool_around(now, address)
    if name is None:
        return None
    pool = now.pools[PodPoolKey(name)]
    family = family_of(address)
    reserved = any(address in it for it in pool.reserved)
    return prefix_around(address, family.bits if reserved else pool.block_size(family)), name
