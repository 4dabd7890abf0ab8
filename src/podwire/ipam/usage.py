"""How full this node's blocks are, and where addresses run short. Pure.

Invariants: what is counted as free is what a pod would get, no more. Addresses run short where less than a tenth of
them is free and no further block can be had.
"""

from collections.abc import Iterable, Iterator

from podwire.ipam import blocks, pools
from podwire.ipam.pools import Source
from podwire.ipam.room import has_room
from podwire.model.addresses import Address, Family, Prefix, family_of, host_prefix, prefix_around
from podwire.model.objects import PodBlockKey, PodPoolKey, Value
from podwire.model.snapshot import Snapshot


class Use(Value, frozen=True):
    """Of one block. `pods`: how many addresses pods have of it, by whatever way; `free`: how many they can get."""

    source: Source
    capacity: int
    pods: int
    free: int


def uses(now: Snapshot, sources: Iterable[Source]) -> tuple[Use, ...]:
    """In their order. Who has an address that is a block of its own lives in that, not in the one around it."""
    sources = tuple(sources)
    wide, narrow = ([it.block for it in sources if pools.is_single(it.block) is single] for single in (False, True))
    pods = {Address(it) for it in now.ledger if isinstance(it, bytes)}
    singles = set(now.singles)
    living = _within(narrow, pods) | _within(wide, pods - singles)
    others = _within(wide, (*now.node.addresses, *singles))
    found = []
    for it in sources:
        here = living[it.block]
        free = blocks.free(it.block, here | others.get(it.block, set()), it.reserved)
        found.append(Use(it, blocks.capacity(it.block, it.reserved), len(here), free))
    return tuple(found)


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


class Shortage(Value, frozen=True):
    """`of`: the ranges and pools in question. `dry`: it has pools, and no further block of them can be had."""

    of: str
    family: str
    free: int
    most: int
    dry: bool = False

    def __str__(self) -> str:
        left = ", and no further block can be had" if self.dry else ""
        count = f"{self.free} of {self.most} are free on this node (of {self.of}){left}"
        return f"{self.family} addresses of pods run short: {count}"


def shortages(now: Snapshot, one_in: int = 10) -> tuple[Shortage, ...]:
    """Where less than that part is free: of what all pods get, and of each pool that pods have named."""
    names = [name for name in asked_for(now) if pools.why_not(now, name) is None]
    asked = ((name, family) for name in ("", *names) for family in pools.families(now, name))
    found = (_short(now, name, family, one_in) for name, family in asked)
    return tuple(it for it in found if it is not None)


def _short(now: Snapshot, name: str, family: Family, one_in: int) -> Shortage | None:
    held = [it for it in uses(now, pools.sources(now, name)) if it.source.block.family == family]
    free, most = sum(it.free for it in held), sum(it.capacity for it in held)
    asked = [it for it in ((name,) if name else pools.automatic(now)) if _has(now, it, family)]
    if free * one_in >= most > 0 or (now.local.claims_blocks and any(has_room(now, it, family) for it in asked)):
        return None
    of = ", ".join((*(str(it.source.block) for it in held if not it.source.pool), *(f"pool {it}" for it in asked)))
    return Shortage(of, family.name, free, most, bool(asked) and now.local.claims_blocks)


def _has(now: Snapshot, name: str, family: Family) -> bool:
    return any(cidr.family == family for cidr in pools.cidrs_of(now, name))


def strays(now: Snapshot) -> tuple[Address, ...]:
    """What pods of this node have, of pools, though the cluster's record gives it to nobody; sorted. Not what another
    IPAM plugin has given them."""
    if not now.pools:
        return ()
    own = set(now.own_blocks)
    lengths = {(len(it.first), it.length) for it in own}
    found = {
        it
        for it in _given(now)
        if not any(size == len(it) and prefix_around(it, length) in own for size, length in lengths)
        and pools.pool_around(now, it) is not None
    }
    return tuple(sorted(found))


def reserved_since(now: Snapshot) -> tuple[Address, ...]:
    """What pods of this node have of its blocks that their pool has come to reserve, and that is no block of this
    node's yet: a pod elsewhere that asks for it would get it, too; sorted."""
    ranges = [each for pool in now.pools.values() for each in pool.reserved]
    found = {it for it in _given(now) if any(it in each for each in ranges)} if ranges else set()
    return tuple(sorted(it for it in found if _is_reserved(now, it) and not _is_own_single(now, it)))


def _given(now: Snapshot) -> Iterator[Address]:
    """What this node itself has given to its pods."""
    return (address for it in now.attachments.values() if not it.delegated for address in it.addresses)


def _is_reserved(now: Snapshot, address: Address) -> bool:
    name = pools.pool_around(now, address)
    return name is not None and any(address in it for it in now.pools[PodPoolKey(name)].reserved)


def _is_own_single(now: Snapshot, address: Address) -> bool:
    block = now.blocks.get(PodBlockKey(host_prefix(address)))
    return block is not None and block.node == now.local.name


def block_around(now: Snapshot, address: Address) -> tuple[Prefix, str] | None:
    """Which block of which pool an address is from, whoever has that; None where it is in no pool."""
    name = pools.pool_around(now, address)
    if name is None:
        return None
    pool = now.pools[PodPoolKey(name)]
    family = family_of(address)
    return prefix_around(address, family.bits if _is_reserved(now, address) else pool.block_size(family)), name
