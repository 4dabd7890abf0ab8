"""Which Services the data plane has room for. Pure.

Invariants: the older comes first (creation time, then name), and whoever still fits gets in, for each family by itself:
so the choice depends on the Services alone, never on the order in which they came. While all fit, however much they
could need, one change costs the same whatever the number of Services. Else it costs as much as are left out.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import lru_cache
from operator import add, sub
from typing import NamedTuple

from immutables import Map
from msgspec.structs import replace

from podwire.model.addresses import FAMILIES, IPV4, IPV6, Address, Family
from podwire.model.network import Frontend, Serving
from podwire.model.objects import Service, ServiceKey
from podwire.model.room import NOTHING, UNITS, Capacity, Need, Room, fits, part
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import by_age, node_ports_of, serving


def shared_out(now: Snapshot, touched: Iterable[ServiceKey]) -> tuple[Snapshot, frozenset[ServiceKey]]:
    """Who has room, after these Services have changed; and for whom that is another answer than before."""
    capacity, before = now.local.capacity, now.room
    if capacity is None:
        return now, frozenset()
    touched = frozenset(touched)
    bounds, bound = _summed(before.bounds, before.bound, ((key, most(now, key, capacity)) for key in touched))
    all_fit = fits(bound, capacity.whole)
    if all_fit and bounds is before.bounds:  # so they did before
        return now, frozenset()
    room = Room(bounds, bound)
    if not all_fit:
        was_near = not fits(before.bound, capacity.whole)
        room = _counted(now, before if was_near else room, touched if was_near else now.services, capacity)
        if room.needs is not before.needs or room.ranked is not before.ranked:
            room = replace(room, left_out=_left_out(room, capacity))
        room = replace(room, bounds=bounds, bound=bound)
    was, will = before.left_out, room.left_out
    moved = frozenset(key for key in {*was, *will} if was.get(key) != will.get(key))
    return replace(now, room=room), moved


def lacking(now: Snapshot, key: ServiceKey) -> frozenset[Family]:
    """The families in which there is no room for a Service."""
    return now.room.left_out.get(key, frozenset())


class Lack(NamedTuple):
    """Of what there is too little, and how much there is."""

    unit: str
    most: int


def lack(now: Snapshot, key: ServiceKey, family: Family) -> Lack:
    """Why a Service is left out: the first unit of which it needs some and all need too much."""
    capacity = now.local.capacity
    assert capacity is not None
    needs, all_ = part(now.room.needs[key], family), part(now.room.need, family)
    short = [
        Lack(unit, limit)
        for unit, mine, wanted, limit in zip(UNITS, needs, all_, capacity.units, strict=True)
        if mine and wanted > limit
    ]
    return short[0]


def need(now: Snapshot, key: ServiceKey, capacity: Capacity) -> Need:
    """What it takes up, if there is room."""
    found = dict.fromkeys(FAMILIES, (0, 0, 0))
    for name, wanted in serving(now, key).items():
        it = name if isinstance(name, Frontend) else name.frontend
        is_frontend = name is it
        one = (int(is_frontend), _slots(wanted, capacity), int(is_frontend and wanted.affinity > 0))
        frontends, slots, remembering = map(add, found[it.family], one)
        found[it.family] = frontends, slots, remembering
    return _same(sum(found.values(), ()))


def most(now: Snapshot, key: ServiceKey, capacity: Capacity) -> Need:
    """What it takes up at most: as if all members of its slices were ready, and answered wherever they may."""
    service = now.services.get(key)
    if service is None:
        return NOTHING
    short = whole = 0
    for slice_key in now.slices_of.get(key, ()):
        it = now.slices[slice_key]
        alike = 1 + len(it.ports) - len({(port.name, port.protocol) for port in it.ports}) if len(it.ports) > 1 else 1
        short += alike * [len(member.address) for member in it.members].count(IPV4.size)
        whole += alike * len(it.members)
    outside = (*service.external_ips, *service.balancer_ips)
    found: Need = ()
    for family, count in ((IPV4, short), (IPV6, whole - short)):
        inside = len(service.ports) * _of(family, service.cluster_ips)
        external = len(service.ports) * _of(family, outside)
        if inside:
            external += _node_ports(now, service, family)
        lists = inside + external * (2 if service.external_local else 1)
        slots = lists * min(count * now.local.local_weight, capacity.backends)
        found += (inside + external, slots, inside + external if service.affinity else 0)
    return _same(found)


def _of(family: Family, addresses: tuple[Address, ...]) -> int:
    """How many are of that family."""
    return [len(address) for address in addresses].count(family.size) if addresses else 0


def _node_ports(now: Snapshot, service: Service, family: Family) -> int:
    """How many frontends they make."""
    places = _of(family, node_ports_of(now, service))
    return places and places * sum(port.node_port != 0 for port in service.ports)


@lru_cache(maxsize=1024)
def _same(need: Need) -> Need:
    """Most Services need as much as others: once is enough to remember."""
    return need


def _slots(wanted: Serving, capacity: Capacity) -> int:
    """Where not all have as many as they should, each has one."""
    count = len(wanted.backends) + len(wanted.heavy) * (wanted.weight - 1)
    return count if count <= capacity.backends else min(len(wanted.backends), capacity.backends)


def _summed(
    held: Map[ServiceKey, Need], total: Need, changed: Iterable[tuple[ServiceKey, Need]]
) -> tuple[Map[ServiceKey, Need], Need]:
    """Each key is once among the changed."""
    changes = [(key, before, it) for key, it in changed if (before := held.get(key, NOTHING)) != it]
    if not changes:
        return held, total
    known = held.mutate()
    more, less = [total], [NOTHING]
    for key, before, it in changes:
        more.append(it)
        less.append(before)
        if it != NOTHING:
            known[key] = it
        else:
            del known[key]
    return known.finish(), tuple(map(sub, map(sum, zip(*more, strict=True)), map(sum, zip(*less, strict=True))))


def _counted(now: Snapshot, room: Room, touched: Iterable[ServiceKey], capacity: Capacity) -> Room:
    """What all need, after these have changed, and how they follow each other."""
    keys = sorted(touched)
    needs, total = _summed(room.needs, room.need, ((key, need(now, key, capacity)) for key in keys))
    ages = room.ages.mutate()
    moved = {key: now.services[key].created if key in needs else None for key in keys}
    moved = {key: created for key, created in moved.items() if created != ages.get(key)}
    if not moved:
        return replace(room, needs=needs, need=total)
    ranked = list(room.ranked)
    for key in moved:
        before = ages.pop(key, None)
        if before is not None:
            del ranked[bisect_left(ranked, by_age(before, key))]
    come = sorted(by_age(created, key) for key, created in moved.items() if created is not None)
    ages.update({key: created for key, created in moved.items() if created is not None})
    for each in come if ranked else ():
        insort(ranked, each)
    return replace(room, needs=needs, need=total, ages=ages.finish(), ranked=tuple(ranked or come))


def _left_out(room: Room, capacity: Capacity) -> Map[ServiceKey, frozenset[Family]]:
    found: dict[ServiceKey, frozenset[Family]] = {}
    for family in FAMILIES:
        for key in _left_out_of(room, family, capacity.units):
            found[key] = found.get(key, frozenset()) | {family}
    return Map(found)


def _left_out_of(room: Room, family: Family, limits: Need) -> list[ServiceKey]:
    """The youngest give way until the rest fits; of those, the oldest first, come back who fit beside the rest."""
    held = part(room.need, family)
    away: list[tuple[ServiceKey, Need]] = []
    for _, namespace, name in reversed(room.ranked):
        over = [index for index, (some, limit) in enumerate(zip(held, limits, strict=True)) if some > limit]
        if not over:
            break
        key = ServiceKey(namespace, name)
        mine = part(room.needs[key], family)
        if any(mine[index] for index in over):
            away.append((key, mine))
            held = tuple(map(sub, held, mine))
    left: list[ServiceKey] = []
    for key, mine in reversed(away):
        together = tuple(map(add, held, mine))
        if fits(together, limits):
            held = together
        else:
            left.append(key)
    return left
