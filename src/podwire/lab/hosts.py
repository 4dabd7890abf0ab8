"""Names of Services for the programs in pods, in place of a cluster DNS: a hosts(5) file for each namespace. Pure.

Invariants: a name means what the cluster's DNS would answer: a Service's cluster IPs, a headless one's ready pods, a
StatefulSet's pod below its Service. A short name is of the pod's own namespace.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from podwire.lab.allocation import HEADLESS
from podwire.lab.expand import ObjectKey
from podwire.lab.forms import Fields

DOMAIN = "svc.cluster.local"
_LOCAL = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


def hosts(objects: Mapping[ObjectKey, Fields]) -> dict[str, str]:
    """The file of each namespace that has pods."""
    named = list(_named(objects.values()))
    namespaces = sorted({key.namespace for key in objects if key.kind == "Pod"})
    return {namespace: _LOCAL + "".join(_lines(named, namespace)) for namespace in namespaces}


def _named(objects: Iterable[Fields]) -> Iterator[tuple[str, str, str]]:
    """Address, name below the namespace, namespace."""
    headless = set()
    slices: list[Fields] = []
    for thing in objects:
        name, namespace = thing["metadata"]["name"], thing["metadata"].get("namespace") or "default"
        if thing["kind"] == "Service":
            addresses = thing["spec"].get("clusterIPs") or ()
            if HEADLESS in addresses:
                headless.add((namespace, name))
            yield from ((address, name, namespace) for address in addresses if address != HEADLESS)
        elif thing["kind"] == "EndpointSlice":
            slices.append(thing)
    for thing in slices:
        metadata: Mapping[str, Any] = thing["metadata"]
        name, namespace = metadata["labels"]["kubernetes.io/service-name"], metadata.get("namespace") or "default"
        if (namespace, name) in headless:
            for member in thing.get("endpoints") or ():
                if (member.get("conditions") or {}).get("ready", True):
                    yield from ((address, name, namespace) for address in member["addresses"])
                if member.get("hostname"):
                    yield from ((address, f"{member['hostname']}.{name}", namespace) for address in member["addresses"])


def _lines(named: Iterable[tuple[str, str, str]], own: str) -> Iterator[str]:
    for address, name, namespace in named:
        short = [name] if namespace == own else []
        full = [f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.{DOMAIN}"]
        yield f"{address} {' '.join(short + full)}\n"
