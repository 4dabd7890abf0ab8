"""What is told of Services' and pods' traffic: totals as the values of the admin API. Pure.

Invariants: as for `podwire.views`: these structs are the JSON, addresses are text, everything is sorted. A Service's
sums never fall while it lives: they keep what its former frontends had.
"""

from collections.abc import Mapping

from msgspec import Struct

from podwire import views
from podwire.model.addresses import show_address
from podwire.model.network import Frontend
from podwire.model.objects import AttachmentKey, ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.pods.names import link_of
from podwire.services.frontends import of_service, owner
from podwire.statistics.counted import told
from podwire.statistics.totals import Counts, Totals


class Traffic(Struct, frozen=True):
    """Packets and bytes. Of a Service: `received` from its clients, `sent` back to them, with IP's headers, as
    netfilter sees them on this node. Of a pod: what went in and out by its interface, with Ethernet's headers."""

    received_packets: int = 0
    received_bytes: int = 0
    sent_packets: int = 0
    sent_bytes: int = 0


class FrontendStatistics(Struct, frozen=True):
    address: str
    protocol: str
    port: int
    connections: int
    traffic: Traffic | None


class ServiceStatistics(Struct, frozen=True):
    """Of what this node saw. Connections that were refused are not counted; packets and bytes only where the agent is
    told to (`service_traffic`): else `traffic` is None."""

    namespace: str
    name: str
    connections: int
    traffic: Traffic | None
    frontends: tuple[FrontendStatistics, ...]


class ServiceStatisticsList(Struct, frozen=True):
    services: tuple[ServiceStatistics, ...]


class PodStatistics(Struct, frozen=True):
    """Of one attachment; `link` is the node's end of its veth pair."""

    namespace: str
    name: str
    interface: str
    link: str
    sandbox: str
    traffic: Traffic


class PodStatisticsList(Struct, frozen=True):
    pods: tuple[PodStatistics, ...]


def service(
    now: Snapshot, key: ServiceKey, totals: Totals[Frontend, ServiceKey], sums: dict[ServiceKey, Counts], traffic: bool
) -> ServiceStatistics:
    """`sums`: `totals.of_owners()`. `traffic`: whether packets are counted.

    Raises KeyError for a Service that the snapshot has not."""
    names = {frontend for _, _, frontend in of_service(now, key) if owner(now, frontend) == key}
    connections, passed = _counted(sums.get(key), traffic)
    return ServiceStatistics(
        namespace=key.namespace,
        name=key.name,
        connections=connections,
        traffic=passed,
        frontends=tuple(_frontend(it, key, totals, traffic) for it in sorted(names, key=views.place)),
    )


def _frontend(it: Frontend, key: ServiceKey, totals: Totals[Frontend, ServiceKey], traffic: bool) -> FrontendStatistics:
    series = totals.series.get(it)
    mine = series is not None and series.owner == key
    connections, passed = _counted(series.total if series is not None and mine else None, traffic)
    return FrontendStatistics(show_address(it.address), it.protocol.name, it.port, connections, passed)


def _counted(counts: Counts | None, traffic: bool) -> tuple[int, Traffic | None]:
    connections, *passed = told(counts) if counts else (0, 0, 0, 0, 0)
    return connections, Traffic(*passed) if traffic else None


def pod(now: Snapshot, key: AttachmentKey, counted: Mapping[AttachmentKey, Counts]) -> PodStatistics:
    """Raises KeyError for an attachment that the snapshot has not."""
    it = now.attachments[key]
    return PodStatistics(
        namespace=it.pod.namespace,
        name=it.pod.name,
        interface=key.interface,
        link=link_of(key, it),
        sandbox=key.sandbox,
        traffic=Traffic(*counted.get(key, ())),
    )
