"""A directory of manifests to the complete objects of a cluster: API server and controllers as one function. Pure.

Invariants: the result depends on the manifests, the number of nodes and what was given out before, not on the order of
files. A wrong manifest makes no plan at all: every mistake is one line that names file, line, object and field.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from podwire.lab.allocation import NOTHING_HELD, Claim, Held, NotFree, allocate, claim_of
from podwire.lab.balancers import Ingress, Status, ingress_of, statuses
from podwire.lab.forms import Fields, Service
from podwire.lab.services import complete, read_service
from podwire.lab.slices import RunningPod, slices_of
from podwire.lab.topology import SERVICE_RANGES, Station, labels_of, node_object, stations
from podwire.lab.workloads import PlannedPod, pods_of, replicas_of
from podwire.model.addresses import show_address
from podwire.model.objects import PodKey, Protocol, ServiceKey
from podwire.sources.fields import Invalid
from podwire.sources.kube_objects import POOLS
from podwire.sources.kubernetes import translate
from podwire.sources.near import nearest

_WORKLOADS = {
    "Pod": "v1",
    "ReplicationController": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
}
_OWN = ("PodPool", "PodBlock", "AddressPool", "BGPPeer", "BGPAdvertisement", "L2Advertisement")
_PASSED_ON = {"Namespace": "v1", "Secret": "v1", "EndpointSlice": "discovery.k8s.io/v1", **dict.fromkeys(_OWN, POOLS)}
_CLUSTERED = ("Namespace", "Node", *_OWN)
_VERSIONS = {**_WORKLOADS, **_PASSED_ON, "Service": "v1"}

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # a DNS label (RFC 1123)
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class ManifestsError(Exception):
    """All mistakes of a directory, one to a line."""


class ObjectKey(NamedTuple):
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}" if self.namespace else f"{self.kind}/{self.name}"


class Manifest(NamedTuple):
    """An object that a user has written. `where`: file and line of a field by its path (`spec.ports[0].port`)."""

    data: Fields
    where: Callable[[str], str]


class Scaled(NamedTuple):
    """A number of replicas asked for by hand; it holds until the manifest's own number (`instead_of`) changes."""

    instead_of: int
    replicas: int


class Given(NamedTuple):
    """What the next plan keeps of the last one. `created`: RFC 3339 by object."""

    held: Held = NOTHING_HELD
    created: Mapping[ObjectKey, str] = {}
    balanced: Mapping[ServiceKey, Ingress] = {}


class PlannedService(NamedTuple):
    """As the manifest has it, typed; and the complete object."""

    form: Service
    object: Fields


class Plan(NamedTuple):
    """What shall be. `workloads`: the pods of each; `declared`: the replicas that its manifest asks for, where it may
    be scaled; `notes`: a line for each thing that
    is left out here."""

    nodes: int
    pods: Mapping[PodKey, PlannedPod]
    services: Mapping[ServiceKey, PlannedService]
    passed_on: tuple[Fields, ...]
    workloads: Mapping[ObjectKey, tuple[PodKey, ...]]
    declared: Mapping[ObjectKey, int]
    notes: tuple[str, ...]
    given: Given


def expand(
    manifests: Sequence[Manifest],
    nodes: int,
    given: Given = Given(),  # noqa: B008  an immutable value
    scaled: Mapping[ObjectKey, Scaled] | None = None,
    now: str = "1970-01-01T00:00:00Z",
    system: Sequence[Manifest] = (),
) -> Plan:
    """`now`: RFC 3339, the birth of what is new. `system`: what is there unless `manifests` have another of its name.

    Raises ManifestsError.
    """
    found = _indexed(system) | _indexed(manifests)
    used = {key: found[key] for key in sorted(found) if key.kind in _VERSIONS}
    places = {node.name: labels_of(node) for node in stations(nodes)}
    read = _read(used, places, scaled or {})
    try:
        held = allocate(read.claims, given.held, SERVICE_RANGES)
    except NotFree as wrong:
        raise ManifestsError(_line(used[_service_key(wrong.key)], wrong)) from None
    created = {key: given.created.get(key, now) for key in [*used, *(_node_key(name) for name in places)]}
    services = {}
    for key, form in read.services.items():
        data, born = used[_service_key(key)].data, created[_service_key(key)]
        services[key] = PlannedService(form, complete(data, form, key, held, born))
    passed_on = tuple(used[key].data for key in used if key.kind in _PASSED_ON)
    others = (*passed_on, *(node_object(it, True, now) for it in stations(nodes)))
    balanced = statuses({key: it.object for key, it in services.items()}, others, given.balanced)
    for key, status in balanced.items():
        services[key] = services[key]._replace(object={**services[key].object, "status": status})
    declared = {key: replicas_of(used[key].data) for key in read.workloads}
    return Plan(
        nodes=nodes,
        pods=read.pods,
        services=services,
        passed_on=passed_on,
        workloads=read.workloads,
        declared={key: count for key, count in declared.items() if count is not None},
        notes=(*_unused(found), *_without_address(read, balanced), *_unanswered(read)),
        given=Given(held, created, {key: ingress_of(status) for key, status in balanced.items()}),
    )


def _indexed(manifests: Iterable[Manifest]) -> dict[ObjectKey, Manifest]:
    mistakes: list[str] = []
    found: dict[ObjectKey, Manifest] = {}
    for manifest in manifests:
        with _noting(mistakes, manifest):
            key = _key(manifest.data)
            if key in found:
                raise Invalid("metadata.name", f"is there twice; the other is at {found[key].where('')}")
            found[key] = manifest
    if mistakes:
        raise ManifestsError("\n".join(mistakes))
    return found


class _Read(NamedTuple):
    claims: dict[ServiceKey, Claim]
    services: dict[ServiceKey, Service]
    pods: dict[PodKey, PlannedPod]
    workloads: dict[ObjectKey, tuple[PodKey, ...]]


def _read(
    used: Mapping[ObjectKey, Manifest], places: Mapping[str, Mapping[str, str]], scaled: Mapping[ObjectKey, Scaled]
) -> _Read:
    mistakes: list[str] = []
    found = _Read({}, {}, {}, {})
    for key, manifest in used.items():
        with _noting(mistakes, manifest):
            if key.kind == "Service":
                own = ServiceKey(key.namespace, key.name)
                service = read_service(manifest.data)
                found.claims[own] = claim_of(own, service.spec, SERVICE_RANGES)
                found.services[own] = service
            elif key.kind in _PASSED_ON:
                translate(dict(manifest.data))
            else:
                made = {pod.key: pod for pod in pods_of(manifest.data, places, _scaled(manifest.data, scaled.get(key)))}
                for twice in made.keys() & found.pods.keys():
                    raise Invalid("metadata.name", f"makes {twice}, which another workload makes too")
                found.pods.update(made)
                found.workloads[key] = tuple(made)
    if mistakes:
        raise ManifestsError("\n".join(mistakes))
    return found


@contextmanager
def _noting(mistakes: list[str], manifest: Manifest) -> Iterator[None]:
    try:
        yield
    except Invalid as wrong:
        mistakes.append(_line(manifest, wrong))


def _line(manifest: Manifest, wrong: Invalid) -> str:
    metadata = manifest.data.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    kind = str(manifest.data.get("kind"))
    namespace = "" if kind in _CLUSTERED else str(named.get("namespace") or "default")
    key = ObjectKey(kind, namespace, str(named.get("name")))
    return f"{manifest.where(wrong.field)}: {key}: {wrong}"


def objects(
    plan: Plan,
    running: Mapping[PodKey, RunningPod],
    gone: frozenset[str] = frozenset(),
    nodes: Iterable[Station] | None = None,
) -> dict[ObjectKey, dict[str, Any]]:
    """All the cluster's objects as they are now: `running` are the pods that have their addresses, `gone` the nodes
    that are off, `nodes` where they are, if not all in their first places."""
    found: list[Fields] = [
        node_object(node, node.name not in gone, plan.given.created[_node_key(node.name)])
        for node in nodes or stations(plan.nodes)
    ]
    found += (service.object for service in plan.services.values())
    found += (_pod(pod, running.get(key)) for key, pod in plan.pods.items())
    alive = [it for key, it in sorted(running.items(), key=lambda item: _order(item[0])) if key in plan.pods]
    for service in plan.services.values():
        found += slices_of(service.form, alive)
    return {_key(data): dict(data) for data in [*found, *plan.passed_on]}


def _pod(pod: PlannedPod, running: RunningPod | None) -> dict[str, Any]:
    addresses = [{"ip": show_address(address)} for address in running.addresses] if running else []
    ready = "True" if running and running.ready else "False"
    status: dict[str, Any] = {
        "phase": "Running" if running else "Pending",
        "conditions": [{"type": "Ready", "status": ready}],
    }
    if addresses:
        status |= {"podIP": addresses[0]["ip"], "podIPs": addresses}
    return {**pod.object, "status": status}


def _scaled(workload: Fields, scaled: Scaled | None) -> int | None:
    return scaled.replicas if scaled is not None and replicas_of(workload) == scaled.instead_of else None


def _key(data: Fields) -> ObjectKey:
    kind, metadata = data.get("kind"), data.get("metadata")
    if not isinstance(kind, str) or not kind:
        raise Invalid("kind", "missing; expected the object's kind")
    if not isinstance(metadata, dict):
        raise Invalid("metadata", "missing; expected at least a name")
    name = metadata.get("name")
    clustered = kind in _CLUSTERED
    namespace = "" if clustered else metadata.get("namespace") or "default"
    version = data.get("apiVersion")
    meant = nearest(str(version), kind, ((its, each) for each, its in _VERSIONS.items()))
    if kind not in _VERSIONS and meant is not None:
        raise Invalid("kind", f"unknown: {version} {kind}; did you mean {' '.join(meant)}?")
    if kind in _VERSIONS:
        if data.get("apiVersion") != _VERSIONS[kind]:
            raise Invalid("apiVersion", f"expected {_VERSIONS[kind]} for a {kind}, not {data.get('apiVersion')!r}")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Invalid("metadata.name", f'expected lower-case letters, digits, "-" and ".", not {name!r}')
        if not clustered and (not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace)):
            raise Invalid("metadata.namespace", f'expected lower-case letters, digits and "-", not {namespace!r}')
    return ObjectKey(kind, str(namespace), str(name))


def _service_key(key: ServiceKey) -> ObjectKey:
    return ObjectKey("Service", key.namespace, key.name)


def _node_key(name: str) -> ObjectKey:
    return ObjectKey("Node", "", name)


def _unused(found: Iterable[ObjectKey]) -> tuple[str, ...]:
    kinds: dict[str, list[str]] = {}
    for key in sorted(found):
        if key.kind not in _VERSIONS:
            kinds.setdefault(key.kind, []).append(f"{key.namespace}/{key.name}".lstrip("/"))
    return tuple(f"not used here: {kind}: {', '.join(names)}" for kind, names in kinds.items())


def _without_address(read: _Read, balanced: Mapping[ServiceKey, Status]) -> tuple[str, ...]:
    balancers = [key for key, service in read.services.items() if service.spec.type == "LoadBalancer"]
    names = [f"{key.namespace}/{key.name}" for key in balancers if key not in balanced]
    lacks = [(key, it["conditions"][0]) for key, it in balanced.items() if not ingress_of(it)]
    return (
        *((f"no AddressPool gives an address (external IPs work): {', '.join(names)}",) if names else ()),
        *(f"no address for {key.namespace}/{key.name}: {it['message']}" for key, it in lacks),
    )


def _unanswered(read: _Read) -> tuple[str, ...]:
    names = [
        str(workload)
        for workload, keys in read.workloads.items()
        if any(
            port.protocol is Protocol.SCTP and read.pods[key].host_network
            for key in keys
            for port in read.pods[key].ports
        )
    ]
    return (f"no answer over SCTP at a node's own addresses: {', '.join(names)}",) if names else ()


def _order(key: PodKey) -> tuple[str, str]:
    return key.namespace, key.name
