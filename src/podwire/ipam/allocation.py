"""Which addresses a pod gets, or why none. Pure.

Invariants: one rule for two askers: an ADD is refused exactly where STATUS says that it would be, in the same words. A
pod gets one address of each family, or none at all. What it asks for by name it gets or is refused; nothing else is
given in its place. Nothing is asked of anybody here: where a block has yet to be taken of a pool, that is what is said.
"""

from collections.abc import Iterator
from typing import NamedTuple

from immutables import Map

from podwire.ipam import blocks, pools
from podwire.ipam.pools import Source
from podwire.ipam.room import has_room
from podwire.model.addresses import Address, Family, Prefix, family_of, host_prefix, show_address
from podwire.model.objects import PodBlockKey, Value
from podwire.model.snapshot import Snapshot


class Wish(Value, frozen=True):
    """What a pod asks for. `pool`: a PodPool's name, "": none. `fixed`: addresses, which are blocks of their own.
    `requested`: addresses of those that this node gives."""

    pool: str = ""
    fixed: tuple[Address, ...] = ()
    requested: tuple[Address, ...] = ()


NOTHING = Wish()


class Obstacle(Value, frozen=True):
    """Why nothing is given. `exhausted`: it goes away once pods do, by nothing else. `wrong`: what was asked for can't
    be had, as things stand."""

    text: str
    exhausted: bool = False
    wrong: bool = False


class Given(NamedTuple):
    """`cursors`: those of the blocks that this node has, behind what was given."""

    addresses: tuple[Address, ...]
    cursors: Map[Prefix, int]


def allocate(now: Snapshot, wish: Wish = NOTHING) -> Given | Obstacle:
    """An address of each family."""
    if wish.pool and (why := pools.why_not(now, wish.pool)) is not None:
        return Obstacle(why)
    addresses: dict[Family, tuple[Address, ...]] = {}
    for address in (*wish.fixed, *wish.requested):
        obstacle = _unfit(now, address) if address in wish.fixed else _not_here(now, address, wish.pool)
        if obstacle is not None:
            return obstacle
        addresses[family_of(address)] = tuple(dict.fromkeys((*addresses.get(family_of(address), ()), address)))
    own = pools.sources(now, wish.pool)
    kept = {it.block for it in pools.all_sources(now)}
    cursors = Map({block: cursor for block, cursor in now.cursors.items() if block in kept})
    families = pools.families(now, wish.pool)
    if not (families or addresses):
        return Obstacle(_nowhere(now))
    for family in families:
        if family in addresses:
            continue
        here = [it for it in own if it.block.family == family]
        found = next(_free(now, here), None)
        if found is None:
            return _full(now, wish.pool, family, here)
        block, free, cursor = found
        addresses[family], cursors = (free,), cursors.set(block, cursor)
    return Given(tuple(each for it in dict.fromkeys((*families, *addresses)) for each in addresses[it]), cursors)


def _free(now: Snapshot, here: list[Source]) -> Iterator[tuple[Prefix, Address, int]]:
    for it in here:
        free = blocks.next_free(it.block, now.taken, now.cursors.get(it.block, 0), it.reserved)
        if free is not None:
            yield it.block, *free


def _unfit(now: Snapshot, address: Address) -> Obstacle | None:
    """Of a fixed address. Whose it is, the cluster's record says; what the node itself or its pods have is theirs."""
    if (obstacle := _given_to(now, address)) is not None:
        return obstacle
    text = show_address(address)
    record = now.blocks.get(PodBlockKey(host_prefix(address)))
    if record is not None and record.node != now.local.name:
        return Obstacle(f"{text} is node {record.node}'s, by its PodBlock")
    if record is None and (why := pools.why_not_fixed(now, address)) is not None:
        return Obstacle(why)
    if record is None and now.local.claims_blocks:
        return Obstacle(f"{text} is being taken for this node")
    if record is None:
        return Obstacle(f"{text} is not this node's: it has no PodBlock of it")
    return Obstacle(f"{text} is an address of this node") if address in now.node.addresses else None


def not_free(now: Snapshot, address: Address) -> Obstacle | None:
    """Who else has an address that a pod is to have, wherever it comes from; None: nobody on this node."""
    if (obstacle := _given_to(now, address)) is not None:
        return obstacle
    own = (blocks.own_address(it.block, now.taken, it.reserved) for it in pools.all_sources(now))
    if address in now.node.addresses or address in now.local.addresses or address in own:
        return Obstacle(f"{show_address(address)} is an address of this node", wrong=True)
    return None


def _given_to(now: Snapshot, address: Address) -> Obstacle | None:
    """Which pod of this node has it."""
    held = now.ledger.get(address)
    if held is None:
        return None
    pod, text = now.attachments[held].pod, show_address(address)
    return Obstacle(f"{text} is given to pod {pod.namespace}/{pod.name} (sandbox {held.sandbox})", exhausted=True)


def _not_here(now: Snapshot, address: Address, pool: str) -> Obstacle | None:
    """Why a pod can't have an address that a runtime asks for; None: it can."""
    here = pools.sources(now, pool) if pool else pools.all_sources(now)
    if not here:
        return Obstacle(_nowhere(now))
    text, within = show_address(address), next((it for it in here if address in it.block), None)
    if within is None:
        ranges = ", ".join(str(it.block) for it in here)
        return Obstacle(f"{text} is in none of the ranges that this node gives addresses of: {ranges}", wrong=True)
    if any(address in it for it in within.reserved):
        return Obstacle(f"{text} is reserved in pool {within.pool}", wrong=True)
    if not blocks.is_a_pods(within.block, address):
        return Obstacle(f"{text} is at an end of {within.block}, where no pod has its address", wrong=True)
    return not_free(now, address)


def _nowhere(now: Snapshot) -> str:
    beside = ", and no PodPool is for it" if now.pools else ""
    return f"node {now.local.name} has no spec.podCIDRs yet{beside}"


def _full(now: Snapshot, pool: str, family: Family, here: list[Source]) -> Obstacle:
    """Of this family nothing is free, in any of these blocks."""
    names = (pool,) if pool else pools.automatic(now)
    asked = [name for name in names if any(it.family == family for it in pools.cidrs_of(now, name))]
    if now.local.claims_blocks and (name := next((it for it in asked if has_room(now, it, family)), None)) is not None:
        return Obstacle(f"no {family} address is free: a block of pool {name} is being taken for this node")
    cidrs = [it for it in here if not it.pool]
    told = [f"no address is free in {it.block}: all {blocks.capacity(it.block)} are in use" for it in cidrs]
    for name in asked:
        mine = [it for it in here if it.pool == name]
        most = sum(blocks.capacity(it.block, it.reserved) for it in mine)
        several = f"{len(mine)} {family} block{'' if len(mine) == 1 else 's'}"
        left = ", and no block of it is left" if now.local.claims_blocks else ""
        has = f"all {most} of this node's {several} are in use" if mine else f"this node has no {family} block of it"
        told.append(f"no {family} address is free in pool {name}: {has}{left}")
    return Obstacle("; ".join(told), exhausted=True)
