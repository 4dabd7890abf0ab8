"""Services and running pods to slices of backends, as the API writes them: discovery.k8s.io/v1. Pure.

Invariants: a slice holds one family of one Service and one set of port numbers; where a named target port means
different numbers in different pods, each set has a slice. A Service without a selector has none from here: its slices
are the user's own. Names and order follow from the content.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple

from podwire.lab.allocation import families_of, is_headless
from podwire.lab.forms import Service, ServicePort
from podwire.lab.workloads import PlannedPod
from podwire.model.addresses import Address, Family, family_of, show_address
from podwire.model.objects import Protocol

MANAGER = "podwire-lab"
DNS_PORT = 53


class RunningPod(NamedTuple):
    """A pod with its addresses. `ready`: it answers, and its node is there."""

    pod: PlannedPod
    addresses: tuple[Address, ...]
    ready: bool = True


class TargetPort(NamedTuple):
    """A ServicePort as one pod resolves it."""

    name: str
    protocol: str
    number: int


class Listen(NamedTuple):
    """A port on which a pod's program listens. `dns`: as a name server."""

    protocol: Protocol
    number: int
    dns: bool = False

    def __str__(self) -> str:
        return f"{self.number}/{self.protocol.name}"


def selected_by(service: Service, pod: PlannedPod) -> bool:
    selector = service.spec.selector or {}
    return (
        _has_backends(service)
        and (service.metadata.namespace or "default") == pod.key.namespace
        and selector.items() <= pod.labels.items()
    )


def target_ports(service: Service, pod: PlannedPod) -> tuple[TargetPort, ...]:
    """The Service's ports as this pod has them. A name that the pod doesn't know is left out, as the API does."""
    resolved = ((port, _resolve(port, pod)) for port in service.spec.ports or ())
    return tuple(TargetPort(port.name or "", port.protocol or "TCP", number) for port, number in resolved if number)


def _resolve(port: ServicePort, pod: PlannedPod) -> int:
    """0: the pod has no port of that name."""
    target = port.target_port or port.port
    if isinstance(target, int):
        return target
    named = (it for it in pod.ports if it.name == target and it.protocol.name == (port.protocol or "TCP"))
    return next((it.number for it in named), 0)


def listens_on(pod: PlannedPod, services: Iterable[Service], names: Service | None = None) -> frozenset[Listen]:
    """Where the pod's program listens: the declared ports, or without any what its Services aim at. `names`: the
    cluster DNS, whose port 53 leads to name servers."""
    aimed = (it for service in services if selected_by(service, pod) for it in target_ports(service, pod))
    ports = {(it.protocol, it.number) for it in pod.ports} or {(Protocol[it.protocol], it.number) for it in aimed}
    asked: set[tuple[Protocol, int]] = set()
    if names is not None and selected_by(names, pod):
        own = (it for it in names.spec.ports or () if it.port == DNS_PORT)
        asked = {(Protocol[it.protocol or "TCP"], _resolve(it, pod)) for it in own}
    return frozenset(Listen(*port, dns=port in asked) for port in ports)


def slices_of(service: Service, pods: Iterable[RunningPod]) -> list[dict[str, Any]]:
    """All slices of one Service. Without pods there is one with nothing in it."""
    if not _has_backends(service):
        return []
    mine = sorted((it for it in pods if selected_by(service, it.pod)), key=lambda it: it.pod.key.name)
    found = []
    for family in families_of(service.spec):
        groups: dict[tuple[TargetPort, ...], list[dict[str, Any]]] = {}
        for running in mine:
            address = next((a for a in running.addresses if family_of(a) == family), None)
            if address is not None:
                member = _member(service, running, address)
                groups.setdefault(target_ports(service, running.pod), []).append(member)
        found += [_slice(service, family, ports, members) for ports, members in sorted((groups or {(): []}).items())]
    return found


def _has_backends(service: Service) -> bool:
    return bool(service.spec.selector) and service.spec.type != "ExternalName"


def _slice(
    service: Service, family: Family, ports: tuple[TargetPort, ...], members: list[dict[str, Any]]
) -> dict[str, Any]:
    name = service.metadata.name
    digest = sha256(repr((family.name, ports)).encode()).hexdigest()[:8]
    labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": MANAGER}
    if is_headless(service.spec):
        labels["service.kubernetes.io/headless"] = ""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": service.metadata.namespace or "default",
            "name": f"{name}-{digest}",
            "labels": labels,
        },
        "addressType": family.name,
        "ports": [{"name": port.name, "protocol": port.protocol, "port": port.number} for port in ports],
        "endpoints": members,
    }


def _member(service: Service, running: RunningPod, address: Address) -> dict[str, Any]:
    pod = running.pod
    ready = running.ready or bool(service.spec.publish_not_ready_addresses)
    member: dict[str, Any] = {
        "addresses": [show_address(address)],
        "conditions": {"ready": ready, "serving": running.ready, "terminating": False},
        "nodeName": pod.node,
        "targetRef": {"kind": "Pod", "namespace": pod.key.namespace, "name": pod.key.name, "uid": pod.uid},
    }
    spec = pod.object["spec"]
    if spec.get("hostname") and spec.get("subdomain") == service.metadata.name:
        member["hostname"] = spec["hostname"]
    return member
