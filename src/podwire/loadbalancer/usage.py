"""How many addresses a pool has, and how many of them are in use. Pure."""

from collections.abc import Iterable

from podwire.loadbalancer.pools import Used, families, is_buggy
from podwire.model.addresses import FAMILIES, IPV4, Address, AddressRange, Family, family_of
from podwire.model.balancers import AddressPool
from podwire.model.objects import Value


class Usage(Value, frozen=True):
    """Of one family. `total`: that Services can get. `assigned`: that they have. `available`: that they can still get;
    less than the rest where one has what it would not get today."""

    total: int
    assigned: int
    available: int


def usage(known: Used, held: Iterable[Address]) -> dict[str, dict[Family, Usage]]:
    """Of each pool in use, in the families that it has. `held`: the addresses of all Services."""
    of: dict[tuple[str, Family], list[Address]] = {}
    for address in set(held):
        if (name := known.pool_of(address)) is not None:
            of.setdefault((name, family_of(address)), []).append(address)
    return {
        name: {
            family: _usage(pool, known.given[name], family, of.get((name, family), []))
            for family in FAMILIES
            if family in families(pool)
        }
        for name, pool in known.pools.items()
    }


def _usage(pool: AddressPool, given: Iterable[AddressRange], family: Family, held: list[Address]) -> Usage:
    ranges = [it for it in given if family_of(it.first) == family]
    total = sum(_count(it, pool.avoid_buggy) for it in ranges)
    free = total - sum(any(it in each for each in ranges) and not (pool.avoid_buggy and is_buggy(it)) for it in held)
    return Usage(total, len(held), free)


def _count(given: AddressRange, avoid_buggy: bool) -> int:
    first, last = (int.from_bytes(it, "big") for it in (given.first, given.last))
    count = last - first + 1
    if avoid_buggy and family_of(given.first) == IPV4:
        count -= sum((last - end) // 256 - (first - 1 - end) // 256 for end in (0, 255))
    return count
