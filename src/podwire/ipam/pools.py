"""Which pools are used, and which of their blocks this node gives addresses from. Pure.

Invariants: where a pool lies in what is somebody else's already (a node's pod CIDRs or this node's addresses, a service
range, another pool that is in use), it is not used: no block is taken and no address given of it, and pods that have
some keep them. Of two pools the first by name is used. Of two nodes' blocks that overlap neither is given from, since
nobody knows whose the addresses are. A block of a single address is for a pod that asks for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha1

from immutables import Map

from podwire.model.addresses import Address, AddressRange, Family, Prefix, overlap, show_address
from podwire.model.homes import Home, in_range
from podwire.model.objects import PodBlockKey, PodPool, PodPoolKey, Value
from podwire.model.snapshot import Snapshot


class Source(Value, frozen=True):
    """A range that a pod may get an address from. `pool` is a PodPool's name, "" for a pod CIDR."""

    block: Prefix
    pool: str = ""
    reserved: tuple[AddressRange, ...] = ()


def unfit(now: Snapshot) -> Map[PodPoolKey, str]:
    """The pools that are not used, and why."""
    found: dict[PodPoolKey, str] = {}
    used: list[tuple[PodPoolKey, PodPool]] = []
    homes = [(key, Home(it.addresses, it.pod_cidrs)) for key, it in sorted(now.nodes.items())] if now.pools else []
    for key in sorted(now.pools):
        pool = now.pools[key]
        why = _in_the_way(now, pool, used)
        for node, home in homes if why is None else ():
            lies = (in_range(home, cidr, node == now.local.key) for cidr in pool.cidrs)
            if (part := next((it for it in lies if it is not None), None)) is not None:
                whose = "this node's" if node == now.local.key else f"node {node.name}'s"
                why = f"it overlaps {whose} {part}"
                break
        if why is None:
            used.append((key, pool))
        else:
            found[key] = why
    return Map(found)


def _in_the_way(now: Snapshot, pool: PodPool, used: Iterable[tuple[PodPoolKey, PodPool]]) -> str | None:
    for key, other in used:
        for cidr in pool.cidrs:
            if (theirs := next((it for it in other.cidrs if overlap(it, cidr)), None)) is not None:
                return f"{cidr} overlaps {theirs} of pool {key.name}, which comes first"
    for told in sorted(now.told_ranges):
        if any(overlap(told, cidr) for cidr in pool.cidrs):
            return f"it overlaps the service range {told}"
    return None


def contested(now: Snapshot) -> frozenset[Prefix]:
    """This node's blocks of pools that overlap what another node has."""
    mine = [it for it in now.blocks_of.get(now.local.key, ()) if not is_single(it)]
    if not mine:
        return frozenset()
    others = (it for key in now.inhabited if key != now.local.key for it in now.home(key).blocks if not is_single(it))
    found: set[Prefix] = set()
    for other in others:
        found.update(it for it in mine if overlap(it, other))
    return frozenset(found)


def is_single(block: Prefix) -> bool:
    return block.length == block.family.bits


def is_here(now: Snapshot, pool: PodPool) -> bool:
    """Whether pods of this node get addresses of it."""
    return pool.is_for(now.node)


def why_not(now: Snapshot, name: str) -> str | None:
    """Why no pod of this node can have addresses of a pool; None: it can."""
    key = PodPoolKey(name)
    pool = now.pools.get(key)
    if pool is None:
        return f"there is no PodPool {name}"
    if key in now.unfit_pools:
        return f"pool {name} is not used: {now.unfit_pools[key]}"
    return None if is_here(now, pool) else f"pool {name} is not for node {now.local.name}, by its spec.nodeSelector"


def automatic(now: Snapshot) -> tuple[str, ...]:
    """The pools of which this node's pods get addresses though they name none, in the order in which they are asked."""
    return tuple(key.name for key in sorted(now.pools) if now.pools[key].auto_assign and why_not(now, key.name) is None)


def why_not_fixed(now: Snapshot, address: Address) -> str | None:
    """Why no pod of this node can ask for an address; None: it can, once the address is a block of this node."""
    text = show_address(address)
    name = pool_around(now, address)
    if name is None:
        return f"{text} is in no pool"
    if (why := why_not(now, name)) is not None:
        return f"{text}: {why}"
    if any(address in it for it in now.pools[PodPoolKey(name)].reserved):
        return None
    return f"{text} is none of the addresses that pool {name} reserves (spec.reserved)"


def pool_around(now: Snapshot, address: Address) -> str | None:
    """The pool in which an address lies: of several the first that is used."""
    around = (key for key in sorted(now.pools) if any(address in cidr for cidr in now.pools[key].cidrs))
    return next((key.name for key in sorted(around, key=lambda it: (it in now.unfit_pools, it))), None)


def own_of(now: Snapshot, name: str) -> tuple[Prefix, ...]:
    """This node's blocks of a pool, single addresses too; sorted."""
    mine = now.blocks_of.get(now.local.key, ())
    return tuple(it for it in mine if now.blocks[PodBlockKey(it)].pool == name)


def sources_of(now: Snapshot, name: str) -> tuple[Source, ...]:
    """The blocks of a pool that this node gives addresses from."""
    mine = (block for block in own_of(now, name) if not is_single(block))
    found = (Source(it, name, reserved_in(now, it)) for it in mine if why_idle(now, it) is None)
    return tuple(sorted(found, key=lambda it: (turn(now, it.pool, it.block), it)))


def turn(now: Snapshot, name: str, block: Prefix) -> int:
    """Where a block comes in the order in which this node takes those of a pool, which begins at a place of its own:
    what it has taken first it fills first, and gives back last."""
    pool = now.pools[PodPoolKey(name)]
    length, before, place = pool.block_size(block.family), 0, 0
    for cidr in (it for it in pool.cidrs if it.family == block.family):
        if block.first in cidr:
            distance = int.from_bytes(block.first, "big") - int.from_bytes(cidr.first, "big")
            place = before + (distance >> block.family.bits - length)
        before += 1 << length - cidr.length
    return (place - begin(now, before)) % before if before else 0


def begin(now: Snapshot, count: int) -> int:
    """The number of the block, of so many, at which this node begins to look for free ones."""
    return int.from_bytes(sha1(now.local.name.encode(), usedforsecurity=False).digest()[:8], "big") % count


def why_idle(now: Snapshot, block: Prefix) -> str | None:
    """Why no pod gets addresses of a block of this node's; None: they do."""
    name = now.blocks[PodBlockKey(block)].pool
    if (why := why_not(now, name)) is not None:
        return why
    if not any(block.first in cidr and block.length >= cidr.length for cidr in now.pools[PodPoolKey(name)].cidrs):
        return f"pool {name} does not hold it"
    return "another node has a part of it, or it is a part of another node's" if block in now.contested else None


def sources(now: Snapshot, pool: str = "") -> tuple[Source, ...]:
    """Where a pod gets addresses, the first that has one free: of a pool that it names, else of the pod CIDRs and the
    pools for all."""
    if pool:
        return sources_of(now, pool)
    return (*map(Source, now.node.pod_cidrs), *(it for name in automatic(now) for it in sources_of(now, name)))


def families(now: Snapshot, pool: str = "") -> tuple[Family, ...]:
    """Of which a pod gets an address each, its first one first."""
    names: Sequence[str] = (pool,) if pool else automatic(now)
    cidrs: Iterator[Prefix] = (cidr for name in names if (it := now.pools.get(PodPoolKey(name))) for cidr in it.cidrs)
    own = () if pool else now.node.pod_cidrs
    return tuple(dict.fromkeys(it.family for it in (*own, *cidrs)))


def all_sources(now: Snapshot) -> tuple[Source, ...]:
    """Of pods of this node, whatever they ask for."""
    return (*map(Source, now.node.pod_cidrs), *(it for key in sorted(now.pools) for it in sources_of(now, key.name)))


def cidrs_of(now: Snapshot, name: str) -> tuple[Prefix, ...]:
    pool = now.pools.get(PodPoolKey(name))
    return pool.cidrs if pool is not None else ()


def reserved_in(now: Snapshot, block: Prefix) -> tuple[AddressRange, ...]:
    """What of one of this node's blocks is given to nobody by itself."""
    held = now.blocks.get(PodBlockKey(block))
    pool = now.pools.get(PodPoolKey(held.pool)) if held is not None else None
    return pool.reserved if pool is not None else ()
