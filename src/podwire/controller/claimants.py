"""The fold of Services and their slices: who claims which frontend. Pure.

Invariants: every index is kept by the one function that changes what it indexes. What is touched includes the other
claimants of what a Service gains or loses.
"""

from typing import Any

from immutables import Map
from msgspec.structs import replace

from podwire.model.addresses import Address, Prefix
from podwire.model.objects import BackendSlice, Service, ServiceKey, SliceKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.services.frontends import (
    NO_ADDRESSES,
    Claim,
    addresses_of,
    claims_of,
    misplaced,
    node_ports_of,
)

NO_CLAIMS: frozenset[Claim] = frozenset()


def put_service(now: Snapshot, key: ServiceKey, service: Service | None) -> tuple[Snapshot, Touched]:
    old, affinities, health_ports = now, now.affinities, now.health_ports
    for it, holds in ((now.services.get(key), False), (service, True)):
        if it is not None:
            affinities = _index(affinities, it.affinity, key, holds)
            health_ports = _index(health_ports, it.health_port, key, holds)
    now = replace(now, services=with_key(now.services, key, service), affinities=affinities, health_ports=health_ports)
    now, touched = claim(now, key, service, old)
    return now, Touched(services=frozenset(touched))


def put_slice(now: Snapshot, key: SliceKey, part: BackendSlice | None) -> tuple[Snapshot, Touched]:
    before = now.slices.get(key)
    slices_of = now.slices_of
    was, will = (None if it is None else it.service for it in (before, part))
    if was != will:
        if was is not None:
            slices_of = with_key(slices_of, was, tuple(it for it in slices_of[was] if it != key) or None)
        if will is not None:
            slices_of = slices_of.set(will, tuple(sorted((*slices_of.get(will, ()), key))))
    return (
        replace(now, slices=with_key(now.slices, key, part), slices_of=slices_of),
        Touched(services=frozenset(it for it in (was, will) if it is not None)),
    )


def concerned(now: Snapshot, moved: set[Any], node_ports: bool) -> list[ServiceKey]:
    """The Services that name an address that came to be this node's or a pod's, or no longer is; and, where the node
    ports move, those that have any."""
    bounds = [(it.first, it.last) if isinstance(it, Prefix) else (it, it) for it in sorted(moved, key=str)]
    found = []
    for name, service in now.services.items() if moved or node_ports else ():
        for address in addresses_of(service):
            if any(first <= address <= last and len(first) == len(address) for first, last in bounds):
                found.append(name)
                break
        else:
            if node_ports and any(port.node_port for port in service.ports):
                found.append(name)
    return found


def claim(now: Snapshot, key: ServiceKey, service: Service | None, old: Snapshot) -> tuple[Snapshot, set[ServiceKey]]:
    """The indexes of a Service's addresses after it, or a node, has changed; and all whom that concerns."""
    before = old.services.get(key)
    lacks = misplaced(now.homes, now.node, service) if service is not None else frozenset[Address]()
    had = (
        claims_of(before, node_ports_of(old, before), old.misplaced.get(key, NO_ADDRESSES))
        if before is not None
        else NO_CLAIMS
    )
    has = claims_of(service, node_ports_of(now, service), lacks) if service is not None else NO_CLAIMS
    claims, touched = now.claims, {key}
    alone = (key,)  # nearly all have what they claim to themselves: one tuple does for all of it
    for claim in had | has:
        rivals = claims.get(claim, alone)
        others = () if rivals == alone else tuple(it for it in rivals if it != key)
        touched.update(others)
        mine = (tuple(sorted((*others, key))) if others else alone) if claim in has else others
        claims = with_key(claims, claim, mine or None)
    return replace(now, claims=claims, misplaced=with_key(now.misplaced, key, lacks or None)), touched


def _index(
    index: Map[int, frozenset[ServiceKey]], number: int, key: ServiceKey, holds: bool
) -> Map[int, frozenset[ServiceKey]]:
    """0 is no number."""
    if not number:
        return index
    rest = index.get(number, frozenset()) - {key}
    return with_key(index, number, rest | {key} if holds else rest or None)


def with_key(map_: Map[Any, Any], key: Any, value: Any) -> Map[Any, Any]:
    """None: without the key."""
    if value is not None:
        return map_.set(key, value)
    return map_.delete(key) if key in map_ else map_
