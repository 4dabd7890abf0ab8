"""Which addresses may have to be announced, and whether the data plane holds them. Pure.

Invariants: an address that no advertisement can be for is not gone through, so that a cluster of ten thousand cluster
IPs costs nothing where only load balancers' addresses are announced.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial

from podwire import views
from podwire.announcing.decisions import Decision, Programmed, around, decide
from podwire.announcing.speaker import sessions
from podwire.model.addresses import Address
from podwire.model.announcements import Kind
from podwire.model.network import Frontend
from podwire.model.objects import ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import owner, serving


def addresses_of(now: Snapshot, key: ServiceKey) -> Iterable[Address]:
    it = now.services.get(key)
    return _of(it.balancer_ips, it.external_ips, it.cluster_ips, _kinds(now)) if it is not None else ()


def announceable(now: Snapshot) -> set[Address]:
    """All addresses of Services that may have to be announced."""
    kinds = _kinds(now)
    return {
        address
        for it in now.services.values()
        for address in _of(it.balancer_ips, it.external_ips, it.cluster_ips, kinds)
    }


def _of(
    balancer: tuple[Address, ...], external: tuple[Address, ...], cluster: tuple[Address, ...], kinds: frozenset[Kind]
) -> Iterable[Address]:
    yield from balancer
    if Kind.EXTERNAL_IP in kinds:
        yield from external
    if Kind.CLUSTER_IP in kinds:
        yield from cluster


def _kinds(now: Snapshot) -> frozenset[Kind]:
    """What any advertisement is for: addresses that none is for are not gone through."""
    return frozenset(kind for ad in now.announcing.bgp.values() for kind in ad.kinds)


def programmed(now: Snapshot) -> Programmed:
    """Whether nftables holds what clients of a frontend need. What answers is derived once for all frontends of a
    Service that are asked of in a row: some have hundreds of ports."""
    serving_of = lru_cache(maxsize=1)(partial(serving, now))

    def holds(frontend: Frontend) -> bool:
        wanted = serving_of(owner(now, frontend)).get(frontend)
        return wanted is not None and views.state_of(now, frontend, wanted) not in _LACKS

    return holds


_LACKS = {views.FrontendState.PENDING, views.FrontendState.FAILED, views.FrontendState.NO_ROOM}


def decisions(now: Snapshot, holds: Programmed | None = None) -> Mapping[Address, Decision]:
    """All of them, from a snapshot alone. `holds` None: as nftables has reported."""
    mine = sessions(now).sessions
    known = around(now, (it.name for it in mine))
    held = holds or programmed(now)
    return {it: decide(now, known, it, held) for it in sorted(announceable(now))}
