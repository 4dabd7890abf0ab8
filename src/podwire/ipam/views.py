"""This node's addresses for people and programs: pods' ranges, the pools, and what is due. Pure.

Invariants: these structs are the admin API's JSON, field by field; addresses and ranges are text. Everything is sorted.
"""

from msgspec import Struct

from podwire.ipam import pools, room
from podwire.ipam.claims import NO_WISHES, Claim, Wishes, due
from podwire.ipam.pools import Source
from podwire.ipam.usage import shortages, uses
from podwire.model.addresses import FAMILIES
from podwire.model.objects import PodBlockKey, PodPoolKey
from podwire.model.snapshot import Snapshot

MANY = 1_000_000_000
"""The most that is told of anything: JSON's numbers hold no more than IPv6 has."""


class PoolUse(Struct, frozen=True):
    """Of the blocks that this node gives from. `pool` "": the pod CIDRs. `free` stops at a billion (`MANY`)."""

    pool: str
    family: str
    blocks: int
    used: int
    free: int


class OwnBlock(Struct, frozen=True):
    """A range of this node. `pool` "": a pod CIDR. `single`: an address for the pod that asks for it. `idle`: why pods
    get no address of it, None: they do."""

    range: str
    pool: str
    used: int
    free: int
    single: bool = False
    idle: str | None = None


class PoolView(Struct, frozen=True):
    """`unused`: why no pod of this node gets addresses of it. `blocks`: how many of it are taken, by so many `nodes`;
    `left`: how many are free, by family; a billion at most (`MANY`)."""

    name: str
    cidrs: tuple[str, ...]
    reserved: tuple[str, ...]
    auto_assign: bool
    unused: str | None
    blocks: int
    nodes: int
    left: dict[str, int]


class IpamView(Struct, frozen=True):
    """`take`, `give`, `renew`: blocks that are due to be taken, given back, or written down again; `short`: where
    addresses run short."""

    node: str
    blocks: tuple[OwnBlock, ...]
    pools: tuple[PoolView, ...]
    take: tuple[str, ...] = ()
    give: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()
    short: tuple[str, ...] = ()


def ipam(now: Snapshot, wishes: Wishes = NO_WISHES) -> IpamView:
    """`wishes`: what the node's pods ask for, whether they are attached or about to be."""
    claims = due(now, wishes) if now.local.claims_blocks else None
    return IpamView(
        now.local.name,
        _blocks(now),
        tuple(_pool(now, key) for key in sorted(now.pools)),
        _shown(claims.take) if claims else (),
        tuple(map(str, claims.give)) if claims else (),
        _shown(claims.renew) if claims else (),
        tuple(map(str, shortages(now))),
    )


def pool_uses(now: Snapshot) -> tuple[PoolUse, ...]:
    held: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for it in uses(now, pools.all_sources(now)):
        held.setdefault((it.source.pool, len(it.source.block.first)), []).append((it.pods, it.free))
    names = {family.size: family.name for family in FAMILIES}
    return tuple(
        PoolUse(pool, names[size], len(some), sum(it[0] for it in some), min(MANY, sum(it[1] for it in some)))
        for (pool, size), some in sorted(held.items())
    )


def _blocks(now: Snapshot) -> tuple[OwnBlock, ...]:
    cidrs = uses(now, map(Source, now.node.pod_cidrs))
    found = [OwnBlock(str(it.source.block), "", it.pods, min(MANY, it.free)) for it in cidrs]
    mine = now.blocks_of.get(now.local.key, ())
    for name in sorted({now.blocks[key].pool for key in map(PodBlockKey, mine)}):
        own = pools.own_of(now, name)
        for it in uses(now, (Source(block, name, pools.reserved_in(now, block)) for block in own)):
            block = it.source.block
            idle = pools.why_idle(now, block)
            free = 0 if idle else min(MANY, it.free)
            found.append(OwnBlock(str(block), name, it.pods, free, pools.is_single(block), idle))
    return tuple(found)


def _pool(now: Snapshot, key: PodPoolKey) -> PoolView:
    pool = now.pools[key]
    taken = [it for it in now.blocks.values() if it.pool == key.name]
    families = dict.fromkeys(cidr.family for cidr in pool.cidrs)
    return PoolView(
        key.name,
        tuple(map(str, pool.cidrs)),
        tuple(map(str, pool.reserved)),
        pool.auto_assign,
        pools.why_not(now, key.name),
        len(taken),
        len({it.node for it in taken}),
        {family.name: min(MANY, room.count_free(now, key.name, family)) for family in families},
    )


def _shown(claims: tuple[Claim, ...]) -> tuple[str, ...]:
    return tuple(f"{it.cidr} of pool {it.pool}" for it in claims)
