"""The agent's metrics in Prometheus' form. Pure.

Invariants: everything is made from what the other views show; there is no registry, and nothing is counted here. Names
follow Prometheus' conventions: base units, `_total` for what only rises. No label grows with the cluster.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from podwire.announcing.views import ESTABLISHED, NO_SESSION, L2View, PeerView
from podwire.controller.tally import BOUNDS, Tally
from podwire.model.announcements import Liveness
from podwire.model.objects import Protocol, ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import frontends
from podwire.views import FrontendState, StatusView, state_of


class Families(NamedTuple):
    """What an encoder takes."""

    collected: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.collected


def exposition(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """The text and its content type, in the best form of those that an Accept header names."""
    encode, content_type = choose_encoder(accept)
    return encode(Families(tuple(families))), content_type


def states(now: Snapshot, services: Iterable[ServiceKey]) -> Counter[FrontendState]:
    """How many frontends of these Services are in which state."""
    return Counter(state_of(now, it, wanted) for key in services for it, wanted in frontends(now, key).items())


def families(seen: StatusView, states: Mapping[FrontendState, int], tally: Tally) -> Iterator[Metric]:
    yield InfoMetricFamily("podwire_build", "The agent's version.", {"version": seen.version})
    yield _gauge("podwire_ready", "Whether the cluster is followed, and pods can be attached.", seen.ready)
    yield _gauge("podwire_attachments", "Pod interfaces on this node.", seen.counts["attachments"])
    yield _gauge("podwire_services", "Services that the agent knows.", seen.counts["services"])
    blocks = GaugeMetricFamily(
        "podwire_block_addresses", "Pod addresses of a block, at most a billion.", labels=("block", "state")
    )
    for block in seen.pod_cidrs:
        blocks.add_metric((block.range, "used"), block.used)
        blocks.add_metric((block.range, "free"), block.free)
    yield blocks
    yield from _pools(seen)
    held = GaugeMetricFamily("podwire_frontends", "Frontends, by what the data plane holds of them.", labels=("state",))
    for state in FrontendState:
        held.add_metric((state.value,), states.get(state, 0))
    yield held
    yield _gauge("podwire_source_errors", "Objects or files that could not be read.", len(seen.source_errors))
    yield from _drivers(seen)
    yield from _events(tally)


def _pools(seen: StatusView) -> Iterator[Metric]:
    """A PodPool's name has no capitals: the pod CIDRs have one that is nobody's."""
    addresses = GaugeMetricFamily(
        "podwire_ipam_addresses",
        "Pod addresses of this node's blocks, at most a billion.",
        labels=("pool", "family", "state"),
    )
    blocks = GaugeMetricFamily(
        "podwire_ipam_blocks", "Blocks that this node gives addresses from.", labels=("pool", "family")
    )
    for it in seen.pools:
        labels = it.pool or "podCIDRs", it.family
        addresses.add_metric((*labels, "used"), it.used)
        addresses.add_metric((*labels, "free"), it.free)
        blocks.add_metric(labels, it.blocks)
    yield addresses
    yield blocks


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=value)


def _drivers(seen: StatusView) -> Iterator[Metric]:
    writes = CounterMetricFamily("podwire_driver_writes", "Writes to kernel or disk.", labels=("driver",))
    unknown = GaugeMetricFamily("podwire_driver_unknown_keys", "Keys whose last change failed.", labels=("driver",))
    for driver, count in seen.writes.items():
        writes.add_metric((driver,), count)
        unknown.add_metric((driver,), seen.unknown.get(driver, 0))
    yield writes
    yield unknown


def announced(peers: Iterable[PeerView], l2: L2View) -> Iterator[Metric]:
    up = GaugeMetricFamily("podwire_bgp_session_up", "Whether a BGP session is established.", labels=("peer",))
    prefixes = GaugeMetricFamily(
        "podwire_bgp_prefixes", "Routes of a session, by direction.", labels=("peer", "family", "direction")
    )
    for peer in peers:
        if peer.state != NO_SESSION:
            up.add_metric((peer.peer,), peer.state == ESTABLISHED)
            for direction, some in (("sent", peer.sent), ("received", peer.received)):
                for family, count in sorted(some.items()):
                    prefixes.add_metric((peer.peer, family, direction), count)
    yield up
    yield prefixes
    answered = sum(it.since is not None for it in l2.addresses)
    yield _gauge("podwire_l2_addresses", "Addresses that this node answers for by ARP and NDP.", answered)
    nodes = GaugeMetricFamily("podwire_l2_nodes", "Other nodes, by what is heard of them.", labels=("state",))
    heard = Counter(l2.nodes.values())
    for state in Liveness:
        nodes.add_metric((state.value,), heard[state.value])
    yield nodes


def _events(tally: Tally) -> Iterator[Metric]:
    events = CounterMetricFamily("podwire_events", "Events that ended, by outcome.", labels=("event", "outcome"))
    for (event, outcome), count in sorted(tally.events.items()):
        events.add_metric((event, outcome), count)
    yield events
    seconds = HistogramMetricFamily("podwire_event_seconds", "From fold to last outcome.", labels=("event",))
    for event, durations in sorted(tally.durations.items()):
        bounds = (*map(str, BOUNDS), "+Inf")
        seconds.add_metric((event,), tuple(zip(bounds, accumulate(durations.counts), strict=True)), durations.sum)
    yield seconds
    flows = CounterMetricFamily(
        "podwire_conntrack_deleted", "Entries of connection tracking deleted for being stale.", labels=("protocol",)
    )
    for protocol in Protocol:
        flows.add_metric((protocol.name,), tally.flows_deleted[protocol.name])
    yield flows
    mended = CounterMetricFamily(
        "podwire_mended", "What others had changed and was put right, by what it was.", labels=("driver", "what")
    )
    for (driver, what), count in sorted(tally.mended.items()):
        mended.add_metric((driver, what), count)
    yield mended
    yield CounterMetricFamily("podwire_healing", "Resyncs that were made to heal a failure.", value=tally.healings)
