"""Which blocks of a pool nobody has. Pure.

Invariants: a block overlaps no other block of whatever node, but single addresses, and holds at least one address that
a pod can have. Each node looks from a place of its own in the pool, which follows from its name, so that two seldom
want the same. However large a pool is, as many steps lead to the next free block as there are blocks and reserved
ranges.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from podwire.ipam import blocks
from podwire.ipam.pools import begin, cidrs_of, is_single
from podwire.model.addresses import Address, Family, Prefix
from podwire.model.objects import PodPool, PodPoolKey
from podwire.model.snapshot import Snapshot

Interval = tuple[int, int]
"""Of addresses, as numbers; both ends included."""


def has_room(now: Snapshot, name: str, family: Family) -> bool:
    return next(free_blocks(now, name, family), None) is not None


def count_free(now: Snapshot, name: str, family: Family) -> int:
    """How many blocks of a pool overlap nobody's, whether or not they are reserved."""
    pool, count = now.pools.get(PodPoolKey(name)), 0
    for cidr in cidrs_of(now, name) if pool is not None else ():
        if pool is None or cidr.family != family:
            continue
        base, bits = int.from_bytes(cidr.first, "big"), family.bits - pool.block_size(family)
        most, begin = cidr.count >> bits, 0
        for first, last in _occupied(now, family, ()):
            start, end = max(begin, first - base >> bits), min(most, (last - base >> bits) + 1)
            count += max(0, min(start, most) - begin)
            begin = max(begin, min(end, most))
        count += most - begin
    return count


def free_blocks(now: Snapshot, name: str, family: Family, more: Iterable[Prefix] = ()) -> Iterator[tuple[Prefix, int]]:
    """In the order in which this node takes them, each with the pods that it can hold. `more`: what is taken beside
    what the snapshot says."""
    pool = now.pools.get(PodPoolKey(name))
    cidrs = [it for it in cidrs_of(now, name) if it.family == family]
    if pool is None or not cidrs:
        return
    occupied, held = _occupied(now, family, more), _held(now, family)
    length = pool.block_size(family)
    counts = [1 << length - cidr.length for cidr in cidrs]
    start, at = begin(now, sum(counts)), 0
    while start >= counts[at]:
        start -= counts[at]
        at += 1
    turn = [(cidrs[at], start, counts[at])]
    turn += [(cidrs[n % len(cidrs)], 0, counts[n % len(cidrs)]) for n in range(at + 1, at + len(cidrs))]
    turn += [(cidrs[at], 0, start)]
    for cidr, first, end in turn:
        for block in _free(cidr, length, first, end, occupied, pool):
            here = held[bisect_left(held, block.first) : bisect_right(held, block.last)]
            if free := blocks.free(block, here, pool.reserved):
                yield block, free


def _free(
    cidr: Prefix, length: int, number: int, end: int, occupied: list[Interval], pool: PodPool
) -> Iterator[Prefix]:
    """Of a range, the blocks from one number on that are not reserved whole."""
    base, bits = int.from_bytes(cidr.first, "big"), cidr.family.bits - length
    for first, last in (*occupied, (base + (end << bits), -1)):
        while number < end and base + (number + 1 << bits) - 1 < first:
            block = Prefix(Address((base + (number << bits)).to_bytes(len(cidr.first), "big")), length)
            if blocks.capacity(block, pool.reserved):
                yield block
                number += 1
            else:
                number = max(number + 1, _behind(block, pool, base, bits))
        number = max(number, (last - base >> bits) + 1)


def _behind(block: Prefix, pool: PodPool, base: int, bits: int) -> int:
    """The number of the block in which the reserved range ends that begins in this one or before it."""
    last = max(
        (int.from_bytes(it.last, "big") for it in pool.reserved if _reaches(it.first, it.last, block)), default=0
    )
    return last - base >> bits


def _reaches(first: Address, last: Address, block: Prefix) -> bool:
    return len(first) == len(block.first) and first <= block.last and block.first <= last


def _occupied(now: Snapshot, family: Family, more: Iterable[Prefix]) -> list[Interval]:
    """Sorted by where they begin: the blocks of this family, of any node and pool."""
    taken = (it.cidr for it in now.blocks if it.cidr.family == family and not is_single(it.cidr))
    mine = (it for it in more if it.family == family)
    return sorted((int.from_bytes(it.first, "big"), int.from_bytes(it.last, "big")) for it in (*taken, *mine))


def _held(now: Snapshot, family: Family) -> list[Address]:
    """The addresses that somebody has, or that are blocks of their own; sorted."""
    pods = (Address(it) for it in now.ledger if isinstance(it, bytes))
    return sorted({it for it in (*now.singles, *pods, *now.node.addresses) if len(it) == family.size})
