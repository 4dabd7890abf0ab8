"""Which pools are used, for which Services, and in which order. Pure.

Invariants: of two pools that overlap the older is used (creation time, then name), the other not: an address has one
pool. So a new one takes nothing from one in use. What is a node's, a pod's or a cluster IP no pool gives, whatever
its ranges say. Whatever a Service holds of a pool that is not used, or no longer there, it keeps.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from podwire.loadbalancer.others import NOBODYS, Taken
from podwire.model.addresses import IPV4, Address, AddressRange, Family, family_of
from podwire.model.announcements import Choice, Selector
from podwire.model.balancers import AddressPool, AddressPoolKey, Labels, Request
from podwire.model.objects import ServiceKey

Pools = Mapping[AddressPoolKey, AddressPool]
Namespaces = Mapping[str, Labels]
"""The labels of each."""


class Used(NamedTuple):
    """The pools in use by name, why the others are not, and whose each address is. `given`: of each pool what it gives.
    `taken`: what none does."""

    pools: dict[str, AddressPool]
    unfit: dict[AddressPoolKey, str]
    starts: list[tuple[int, Address]]
    """Of all ranges of pools in use, sorted, by the family's size."""
    ranges: list[tuple[str, AddressRange]]
    """Beside each start, with the pool's name."""
    given: dict[str, tuple[AddressRange, ...]]
    taken: Taken

    def pool_of(self, address: Address) -> str | None:
        at = bisect_right(self.starts, (len(address), address)) - 1
        return self.ranges[at][0] if at >= 0 and address in self.ranges[at][1] else None


def used(pools: Pools, taken: Taken = NOBODYS) -> Used:
    held: list[tuple[tuple[int, Address], str, AddressRange]] = []
    fit: dict[str, AddressPool] = {}
    unfit: dict[AddressPoolKey, str] = {}
    for key in sorted(pools, key=lambda it: (pools[it].created, it)):
        why = next((f"{each} overlaps {its} of pool {of}" for each, its, of in _overlaps(pools[key], held)), None)
        if why is not None:
            unfit[key] = f"{why}, which comes first"
            continue
        fit[key.name] = pools[key]
        held += [((len(each.first), each.first), key.name, each) for each in pools[key].ranges]
        held.sort()
    fit = dict(sorted(fit.items()))
    given = {name: tuple(part for it in pool.ranges for part in taken.without(it)) for name, pool in fit.items()}
    return Used(fit, dict(sorted(unfit.items())), [it[0] for it in held], [it[1:] for it in held], given, taken)


def _overlaps(
    pool: AddressPool, held: list[tuple[tuple[int, Address], str, AddressRange]]
) -> Iterator[tuple[AddressRange, AddressRange, str]]:
    """What of the pool lies in what others have: its range, theirs, and theirs pool's name."""
    for each in pool.ranges:
        at = bisect_right(held, ((len(each.last), each.last),), key=lambda it: (it[0],)) - 1
        if at >= 0 and len(held[at][2].first) == len(each.first) and held[at][2].last >= each.first:
            yield each, held[at][2], held[at][1]


def why_not(pool: AddressPool, key: ServiceKey, request: Request, namespaces: Namespaces) -> str | None:
    """Why a pool is not for a Service; None: it is. A selector that selects nothing lets nobody in."""
    if pool.namespaces or pool.namespace_selectors:
        labels = namespaces.get(key.namespace, ())
        if key.namespace not in pool.namespaces and not any_met(pool.namespace_selectors, labels):
            return "it is not for this namespace (spec.namespaces, spec.namespaceSelectors)"
    if not is_selected(pool.service_selectors, request.labels):
        return "it is not for Services with these labels (spec.serviceSelectors)"
    return None


def any_met(selectors: tuple[Selector, ...], labels: Labels) -> bool:
    """Whether one of these selects what has such labels; where there is none, nothing is."""
    return any(all(it.is_met(labels) for it in each) for each in selectors)


def is_selected(selectors: tuple[Selector, ...], labels: Labels) -> bool:
    """Whether one of these selects what has such labels; where there is none, all do."""
    return not selectors or any_met(selectors, labels)


def chooses(choice: Choice, name: str, pool: AddressPool) -> bool:
    """Whether an advertisement is for a pool; where it says nothing of pools, it is for all."""
    if not choice.pools and not choice.pool_selectors:
        return True
    return name in choice.pools or any_met(choice.pool_selectors, pool.labels)


def automatic(at: Used, key: ServiceKey, request: Request, namespaces: Namespaces) -> list[str]:
    """The pools of which a Service gets an address that asks for none, in their order: those that choose it, by
    priority and name, then those for all."""
    mine = [name for name, it in at.pools.items() if it.auto_assign and why_not(it, key, request, namespaces) is None]
    return sorted(mine, key=lambda name: _place(name, at.pools[name]))


def _place(name: str, pool: AddressPool) -> tuple[bool, bool, int, str]:
    return not pool.chooses, pool.priority == 0, pool.priority, name


def families(pool: AddressPool) -> frozenset[Family]:
    return frozenset(family_of(each.first) for each in pool.ranges)


def is_buggy(address: Address) -> bool:
    return family_of(address) == IPV4 and address[-1] in (0, 255)
