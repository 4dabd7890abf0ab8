"""Which blocks of pools this node should take, give back, or have written down anew. Pure.

Invariants: what pods live in is kept. Once what is due has been done, nothing is due: the same choice, made again
among what is kept, keeps all of it. A block is taken where less than the low-water mark is free of what pods may ask
for, so that no ADD has to wait; as many as that needs, and none that overlaps anybody's. An empty block is given back
where the rest is enough without it, but for one spare. Nothing is due before all of the cluster's objects are known.
"""

from collections.abc import Iterable
from typing import NamedTuple

from immutables import Map
from msgspec.structs import replace

from podwire.ipam import pools
from podwire.ipam.own import own_addresses
from podwire.ipam.pools import Source
from podwire.ipam.room import free_blocks
from podwire.ipam.usage import asked_for, block_around, reserved_since, strays, uses
from podwire.model.addresses import Address, Family, Prefix, host_prefix, overlap, show_address
from podwire.model.objects import NodeKey, PodBlockKey, PodPoolKey, Value
from podwire.model.snapshot import Snapshot

LEAST, MOST = 8, 64
"""Free addresses: the bounds of the low-water mark, which is a quarter of a block in between."""


class Claim(Value, frozen=True):
    """A PodBlock that this node should have."""

    cidr: Prefix
    pool: str


class Wishes(Value, frozen=True):
    """What ADDs ask for that wait for it, or are about to come: pools by name, and fixed addresses."""

    pools: frozenset[str] = frozenset()
    fixed: frozenset[Address] = frozenset()


NO_WISHES = Wishes()


class Claims(Value, frozen=True):
    """What is due. `renew`: pods live in these, and the cluster's record lacks them, or their pool has come to reserve
    them. `conflicts`, for people: pods live where another node's block is."""

    take: tuple[Claim, ...] = ()
    give: tuple[Prefix, ...] = ()
    renew: tuple[Claim, ...] = ()
    conflicts: tuple[str, ...] = ()


NOTHING = Claims()


class _Need(NamedTuple):
    """`low` addresses of this family should be free in all blocks of these pools; `free` are so elsewhere."""

    names: tuple[str, ...]
    family: Family
    low: int
    free: int = 0


class _Held(NamedTuple):
    """A block that this node has, or takes. `turn`: its place in this node's order. `lived`: pods have addresses of
    it."""

    pool: str
    turn: int
    block: Prefix
    free: int
    lived: bool = False

    def serves(self, need: _Need) -> bool:
        return self.pool in need.names and self.block.family == need.family


def due(now: Snapshot, wishes: Wishes = NO_WISHES) -> Claims:
    """`wishes`: of ADDs; what living pods need is in the snapshot."""
    if not now.whole or now.local.key not in now.nodes:
        return NOTHING
    renew, conflicts = _renewed(now)
    singles = [claim for address in sorted(wishes.fixed) if (claim := _single(now, address)) is not None]
    unused = _unused(now, wishes)
    then = _with_singles(now, singles, unused)
    needs = _needs(then, wishes)
    mine = [it for key in sorted(now.pools) for it in pools.sources_of(now, key.name)]
    mine += [it for claim in renew if (it := _as_source(now, claim)) is not None]
    lived = _lived(now, (it.block for it in mine))
    held = [
        _Held(
            it.source.pool,
            pools.turn(now, it.source.pool, it.source.block),
            it.source.block,
            it.free,
            it.source.block in lived,
        )
        for it in uses(then, mine)
    ]
    kept = {it.block for it in _kept(now, needs, held)}
    idle = tuple(it for it in unused if it not in kept)
    if not all(map(pools.is_single, idle)):  # what goes first may make room where something better is to be had
        return Claims(tuple(singles), idle, renew, conflicts)
    taken = _taken(then, needs, held, [it.cidr for it in renew])
    kept = {it.block for it in _kept(now, needs, held, taken)}
    return Claims(
        (*(Claim(it.block, it.pool) for it in taken if it.block in kept), *singles),
        tuple(it for it in unused if it not in kept),
        renew,
        conflicts,
    )


def _kept(now: Snapshot, needs: list[_Need], held: list[_Held], taken: Iterable[_Held] = ()) -> set[_Held]:
    """Of those that are held, and of those that are taken."""
    kept = _needed(needs, (*held, *taken))
    return kept | _spares(needs, held, kept) | _with_own_address(now, held)


def _with_singles(now: Snapshot, taken: Iterable[Claim], unused: Iterable[Prefix]) -> Snapshot:
    """As it will be once these single addresses are this node's, and those given back that nobody has or asks for,
    which they are in any case: what is free then is what counts."""
    singles = now.singles
    for block in unused:
        if pools.is_single(block):
            singles = singles.delete(block.first)
    for it in taken:
        singles = singles.set(it.cidr.first, now.local.key)
    return now if singles is now.singles else replace(now, singles=singles)


def _lived(now: Snapshot, blocks: Iterable[Prefix]) -> frozenset[Prefix]:
    """In which of them addresses of pods lie, also such as are blocks of their own, or come to be: a block does not go
    because its pod's address is written down by itself."""
    return frozenset(it.source.block for it in uses(replace(now, singles=Map()), map(Source, blocks)) if it.pods)


def _as_source(now: Snapshot, claim: Claim) -> Source | None:
    """What this node can give from a block once it has it."""
    if pools.is_single(claim.cidr) or pools.why_not(now, claim.pool) is not None:
        return None
    return Source(claim.cidr, claim.pool, now.pools[PodPoolKey(claim.pool)].reserved)


def _needs(now: Snapshot, wishes: Wishes) -> list[_Need]:
    """Of pools that pods name, then of those that all pods get of: what is free there serves both."""
    found = []
    for name in sorted({*asked_for(now), *wishes.pools}):
        if pools.why_not(now, name) is None:
            found += [_Need((name,), it, _low(now, name, it)) for it in pools.families(now, name)]
    cidrs = uses(now, map(Source, now.node.pod_cidrs))
    for family in pools.families(now):
        names = tuple(it for it in pools.automatic(now) if family in pools.families(now, it))
        if names:
            elsewhere = sum(it.free for it in cidrs if it.source.block.family == family)
            found.append(_Need(names, family, _low(now, names[0], family), elsewhere))
    return found


def _low(now: Snapshot, name: str, family: Family) -> int:
    size = now.pools[PodPoolKey(name)].block_size(family)
    return min(MOST, max(LEAST, (1 << family.bits - size) // 4))


def _free(need: _Need, held: Iterable[_Held]) -> int:
    return need.free + sum(it.free for it in held if it.serves(need))


def _taken(now: Snapshot, needs: Iterable[_Need], held: Iterable[_Held], more: list[Prefix]) -> list[_Held]:
    """What it takes to meet all needs beside what is there, as far as the pools have it."""
    found: list[_Held] = []
    for need in needs:
        lack = need.low - _free(need, (*held, *found))
        for name in need.names if lack > 0 else ():
            for block, free in free_blocks(now, name, need.family, (*more, *(it.block for it in found))):
                if lack <= 0:
                    break
                found.append(_Held(name, pools.turn(now, name, block), block, free))
                lack -= free
    return found


def _needed(needs: Iterable[_Need], held: Iterable[_Held]) -> set[_Held]:
    """The fewest that meet the needs, in order: of some of them that hold all these, it is the same."""
    kept = {it for it in held if it.lived}
    empty = sorted(it for it in held if not it.lived)
    for need in needs:
        lack = need.low - _free(need, kept)
        for it in empty:
            if lack > 0 and it.free and it not in kept and it.serves(need):
                kept.add(it)
                lack -= it.free
    return kept


def _spares(needs: list[_Need], held: Iterable[_Held], kept: set[_Held]) -> set[_Held]:
    """One empty block each, where there is one. What all pods get of comes first, and serves others too."""
    found: set[_Held] = set()
    empty = sorted(it for it in held if it not in kept)
    for need in sorted(needs, key=lambda it: -len(it.names)):
        if not any(it.serves(need) for it in found):
            found.update([it for it in empty if it.free and it.serves(need)][:1])
    return found


def _with_own_address(now: Snapshot, held: Iterable[_Held]) -> set[_Held]:
    """Those of which the node's own addresses are, as long as pods live here: whoever was hidden behind one would lose
    his connections."""
    own = own_addresses(now) if now.attachments else ()
    return {it for it in held if any(address in it.block for address in own)}


def _unused(now: Snapshot, wishes: Wishes) -> tuple[Prefix, ...]:
    """The blocks that this node can give back: no pod lives there, and nobody asks for the address."""
    mine = now.blocks_of.get(now.local.key, ())
    lived = _lived(now, mine)
    wished = {host_prefix(it) for it in wishes.fixed}
    return tuple(it for it in mine if it not in lived and it not in wished)


def _single(now: Snapshot, address: Address) -> Claim | None:
    block = host_prefix(address)
    name = pools.pool_around(now, address)
    if name is None or PodBlockKey(block) in now.blocks or pools.why_not_fixed(now, address) is not None:
        return None
    return None if address in now.ledger else Claim(block, name)


def _renewed(now: Snapshot) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    """Of addresses that pods have: what the record lacks, and what it gives to others."""
    renew: set[Claim] = set()
    conflicts: list[str] = []
    for address in sorted({*strays(now), *reserved_since(now)}):
        found = block_around(now, address)
        if found is None:
            continue
        claim = Claim(*found)
        rival = _rival(now, address, claim.cidr)
        if rival is None:
            renew.add(claim)
        else:
            pod = now.attachments[now.ledger[address]].pod
            text = f"{pod}: its address {show_address(address)} is in the block {rival.cidr} of"
            conflicts.append(f"{text} {NodeKey(now.blocks[rival].node)}: start it anew")
    return tuple(sorted(renew)), tuple(conflicts)


def _rival(now: Snapshot, address: Address, cidr: Prefix) -> PodBlockKey | None:
    """Which block stands in the way of one around an address that a pod has."""
    for key in (PodBlockKey(host_prefix(address)), PodBlockKey(cidr)):
        if key in now.blocks:
            return key
    if pools.is_single(cidr):
        return None
    return next((it for it in sorted(now.blocks) if not pools.is_single(it.cidr) and overlap(it.cidr, cidr)), None)
