"""Statistics in Prometheus' form. Pure.

Invariants: the node's sums are a fixed number of series; where packets of Services are not counted no series says that
there were none. What is told of each Service or pod has a path of its own, and only of those that had traffic on this
node; their labels are names that Kubernetes gives once at a time, and a pod's
link, since two sandboxes of a name may live at once.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from podwire.model.network import Frontend
from podwire.model.objects import ServiceKey
from podwire.statistics.counted import told
from podwire.statistics.totals import Counts, Totals
from podwire.statistics.views import PodStatistics

_SERVICE = (
    ("connections", "Connections that clients began{}."),
    ("received_packets", "Packets from clients{}."),
    ("received_bytes", "Bytes from clients{}, with IP's headers."),
    ("sent_packets", "Packets back to clients{}."),
    ("sent_bytes", "Bytes back to clients{}, with IP's headers."),
)
_POD = (
    ("received_packets", "Packets to a pod's interface."),
    ("received_bytes", "Bytes to a pod's interface, with Ethernet's headers."),
    ("sent_packets", "Packets from a pod's interface."),
    ("sent_bytes", "Bytes from a pod's interface, with Ethernet's headers."),
)


def node(totals: Totals[Frontend, ServiceKey], traffic: bool) -> Iterator[Metric]:
    """Of all Services together, those that are gone too. `traffic`: whether packets are counted, too."""
    for (name, words), count in zip(_told_of(traffic), told(totals.whole), strict=False):
        yield CounterMetricFamily(f"podwire_services_{name}", words.format(" of all Services"), value=count)


def _told_of(traffic: bool) -> tuple[tuple[str, str], ...]:
    return _SERVICE if traffic else _SERVICE[:1]


def services(sums: Iterable[tuple[ServiceKey, Counts]], traffic: bool) -> Iterator[Metric]:
    """Of those that had any traffic."""
    used = [(it, told(counts)) for it, counts in sums if any(counts)]
    for at, (name, words) in enumerate(_told_of(traffic)):
        family = CounterMetricFamily(
            f"podwire_service_{name}", words.format(" of a Service"), labels=("namespace", "service")
        )
        for it, counts in used:
            family.add_metric((it.namespace, it.name), counts[at])
        yield family


def pods(seen: Iterable[PodStatistics]) -> Iterator[Metric]:
    held = list(seen)
    for name, words in _POD:
        family = CounterMetricFamily(f"podwire_pod_{name}", words, labels=("namespace", "pod", "interface", "link"))
        for it in held:
            family.add_metric((it.namespace, it.name, it.interface, it.link), getattr(it.traffic, name))
        yield family
