"""The cluster's controller for Prometheus. Pure.

Invariants: as in `podwire.metrics`. No label grows with the cluster but a pool's name.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from podwire.loadbalancer.allocation import Grant
from podwire.loadbalancer.checks import Problem
from podwire.loadbalancer.statuses import reason
from podwire.loadbalancer.usage import Usage
from podwire.model.addresses import Family
from podwire.model.objects import ServiceKey

MOST = 1_000_000_000
"""Addresses that are counted: more are said as so many."""
REASONS = ("Assigned", "Stale", "Incomplete", "NoAddress")
"""Of Services, as their conditions say it."""


class Seen(Struct, frozen=True):
    """What is told. `writes`: of statuses. `errors`: requests that the API refused, or did not answer."""

    version: str
    held: bool
    usage: Mapping[str, Mapping[Family, Usage]]
    grants: Mapping[ServiceKey, Grant]
    problems: Iterable[Problem]
    writes: int
    errors: int


def families(seen: Seen) -> Iterator[Metric]:
    yield InfoMetricFamily("podwire_build", "The controller's version.", {"version": seen.version})
    yield GaugeMetricFamily("podwire_controller_lease_held", "Whether this one works.", value=seen.held)
    addresses = GaugeMetricFamily(
        "podwire_address_pool_addresses",
        "Addresses of an AddressPool, at most a billion.",
        labels=("pool", "family", "state"),
    )
    for pool, of in sorted(seen.usage.items()):
        for family, it in of.items():
            for state, count in (("total", it.total), ("used", it.assigned), ("free", it.available)):
                addresses.add_metric((pool, family.name, state), min(count, MOST))
    yield addresses
    services = GaugeMetricFamily(
        "podwire_load_balancer_services", "Services of type LoadBalancer that are ours.", labels=("reason",)
    )
    said = Counter(reason(it) for it in seen.grants.values())
    for each in REASONS:
        services.add_metric((each,), said[each])
    yield services
    yield _problems(seen.problems)
    yield CounterMetricFamily("podwire_controller_writes", "Statuses of Services written.", value=seen.writes)
    yield CounterMetricFamily(
        "podwire_controller_api_errors", "Requests that the API refused or did not answer.", value=seen.errors
    )


def _problems(found: Iterable[Problem]) -> Metric:
    counted = Counter((str(it.object).partition("/")[0], it.reason) for it in found)
    told = GaugeMetricFamily(
        "podwire_configuration_problems",
        "What is wrong with pools, peers and advertisements, as their conditions say it.",
        labels=("kind", "reason"),
    )
    for labels, count in sorted(counted.items()):
        told.add_metric(labels, count)
    return told
