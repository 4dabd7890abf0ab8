"""Workloads to Pods, each on its node. Pure.

Invariants: no rollout: what the manifests say is what there is, at once. A pod's name, node and uid follow from its
workload alone, so a change elsewhere moves nobody, and another number of replicas keeps the pods that stay. A pod
whose uid has changed is another pod under the same name.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from podwire.lab.forms import (
    ContainerPort,
    Controller,
    Expression,
    Fields,
    Pod,
    PodSpec,
    Selector,
    Workload,
    WorkloadSpec,
    address,
    port,
    protocol,
    read,
)
from podwire.model.objects import PodKey, Protocol
from podwire.sources.fields import Invalid

Places = Mapping[str, Mapping[str, str]]
"""The nodes in order, with their labels."""

_SAFE = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names, as Kubernetes has them: no vowels, so no words."""


class NamedPort(NamedTuple):
    """A port that a container declares."""

    name: str
    protocol: Protocol
    number: int


class HostPort(NamedTuple):
    """A port of the node that leads to a container's `target`; `address` "": at all that the node has."""

    address: str
    protocol: Protocol
    number: int
    target: int

    def __str__(self) -> str:
        where = f"[{self.address}]:" if ":" in self.address else f"{self.address}:" if self.address else ""
        return f"{where}{self.number}/{self.protocol.name} to {self.target}"


class PlannedPod(NamedTuple):
    """A pod as it shall be. `node` "": no node will have it. `object` is the API's, without a status."""

    key: PodKey
    node: str
    uid: str
    labels: Mapping[str, str]
    ports: tuple[NamedPort, ...]
    host_network: bool
    object: Fields
    host_ports: tuple[HostPort, ...] = ()


class _Origin(NamedTuple):
    """What the pods of one workload have in common."""

    data: Fields
    key: PodKey
    """The workload's own namespace and name."""
    spec: PodSpec
    labels: dict[str, str]


def pods_of(data: Fields, places: Places, replicas: int | None = None) -> list[PlannedPod]:
    """The pods of one workload object; `replicas` in place of its own. Raises Invalid."""
    if data["kind"] == "Pod":
        return [_bare(data, places)]
    workload = _workload(data)
    metadata, template = workload.metadata, workload.spec.template
    labels = (template.metadata.labels if template.metadata else None) or {}
    origin = _Origin(data, PodKey(metadata.namespace or "default", metadata.name), template.spec, labels)
    count = replicas if replicas is not None else _replicas(workload)
    return list(_EXPANSIONS[data["kind"]](origin, workload, places, count))


def replicas_of(data: Fields) -> int | None:
    """How many pods the manifest asks for; None where that is not a number's to say. Raises Invalid."""
    return _replicas(_workload(data)) if data["kind"] in SCALABLE else None


def _bare(data: Fields, places: Places) -> PlannedPod:
    pod = read(data, Pod)
    key = PodKey(pod.metadata.namespace or "default", pod.metadata.name)
    return _pod(key, _choose(pod.spec, places, str(key), 0), data["metadata"], data["spec"], pod.spec, "spec")


def _deployment(origin: _Origin, _: Workload, places: Places, count: int) -> Iterator[PlannedPod]:
    digest = _word(json.dumps(origin.data["spec"]["template"], sort_keys=True, default=str), 10)
    for number in range(count):
        name = f"{origin.key.name}-{digest}-{_word(f'{digest}/{number}', 5)}"
        yield _nth(origin, name, places, number, {"pod-template-hash": digest})


def _replica_set(origin: _Origin, _: Workload, places: Places, count: int) -> Iterator[PlannedPod]:
    for number in range(count):
        yield _nth(origin, f"{origin.key.name}-{_word(f'{origin.key}/{number}', 5)}", places, number, {})


def _stateful_set(origin: _Origin, workload: Workload, places: Places, count: int) -> Iterator[PlannedPod]:
    start = workload.spec.ordinals.start if workload.spec.ordinals else 0
    for number in range(start, start + count):
        name = f"{origin.key.name}-{number}"
        labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(number)}
        yield _nth(
            origin, name, places, number, labels, {"hostname": name, "subdomain": workload.spec.service_name or ""}
        )


def _daemon_set(origin: _Origin, _: Workload, places: Places, __: int) -> Iterator[PlannedPod]:
    for node in _candidates(origin.spec, places):
        yield _nth(origin, f"{origin.key.name}-{_word(f'{origin.key}/{node}', 5)}", {node: places[node]}, 0, {})


_EXPANSIONS: dict[str, Callable[[_Origin, Workload, Places, int], Iterator[PlannedPod]]] = {
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "ReplicationController": _replica_set,
    "StatefulSet": _stateful_set,
    "DaemonSet": _daemon_set,
}
SCALABLE = frozenset(_EXPANSIONS) - {"DaemonSet"}


def _nth(
    origin: _Origin, name: str, places: Places, number: int, labels: Mapping[str, str], more: Fields | None = None
) -> PlannedPod:
    template, owner = origin.data["spec"]["template"], origin.data
    metadata = {
        **(template.get("metadata") or {}),
        "labels": {**origin.labels, **labels},
        "ownerReferences": [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": origin.key.name,
                "controller": True,
            }
        ],
    }
    node = _choose(origin.spec, places, f"{owner['kind']}/{origin.key}", number)
    key = PodKey(origin.key.namespace, name)
    return _pod(key, node, metadata, {**template["spec"], **(more or {})}, origin.spec, "spec.template.spec")


def _pod(key: PodKey, node: str, metadata: Fields, spec: Fields, form: PodSpec, path: str) -> PlannedPod:
    identity = json.dumps([key.namespace, key.name, node, spec], sort_keys=True, default=str)
    uid = str(UUID(bytes=sha256(identity.encode()).digest()[:16], version=4))
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "namespace": key.namespace, "name": key.name, "uid": uid},
        "spec": {**spec, **({"nodeName": node} if node else {})},
    }
    labels = metadata.get("labels") or {}
    ports, mapped = _ports(form, path)
    # On the host's network a container's port is the node's own.
    host_ports = () if form.host_network else tuple(sorted(mapped))
    return PlannedPod(key, node, uid, labels, tuple(ports), bool(form.host_network), body, host_ports)


def _ports(spec: PodSpec, path: str) -> tuple[Iterable[NamedPort], Iterable[HostPort]]:
    """What the containers declare, sidecars (KEP-753) included; a doubled one is listed once. And the node's ports that
    lead there."""
    found: dict[NamedPort, None] = {}
    mapped: dict[HostPort, None] = {}
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers or [])):
        for number, container in enumerate(containers):
            for position, one in enumerate(container.ports or ()):
                own = f"{path}.{field}[{number}].ports[{position}]"
                declared = NamedPort(
                    one.name or "",
                    protocol(one.protocol, f"{own}.protocol"),
                    port(one.container_port, f"{own}.containerPort"),
                )
                at = _host_port(one, declared, own)
                if field == "containers" or container.restart_policy == "Always":
                    found[declared] = None
                    mapped |= {} if at is None else {at: None}
    return found, mapped


def _host_port(one: ContainerPort, declared: NamedPort, path: str) -> HostPort | None:
    """0 is none, as in the API."""
    where = address(one.host_ip, f"{path}.hostIP")
    if not one.host_port:
        return None
    return HostPort(where, declared.protocol, port(one.host_port, f"{path}.hostPort"), declared.number)


def _choose(spec: PodSpec, places: Places, workload: str, number: int) -> str:
    """In turn, beginning at a node that the workload's name hashes to: one workload spreads, and many do."""
    candidates = _candidates(spec, places)
    return candidates[(_number(workload) + number) % len(candidates)] if candidates else ""


def _candidates(spec: PodSpec, places: Places) -> list[str]:
    wanted = (spec.node_selector or {}).items()
    return [name for name, labels in places.items() if spec.node_name in (None, "", name) and wanted <= labels.items()]


def _workload(data: Fields) -> Workload:
    """The typed form, once its selector is right. Raises Invalid."""
    if data["kind"] != "ReplicationController":
        return _selecting(read(data, Workload))
    it = read(data, Controller)
    own = it.spec.template.metadata
    labels = it.spec.selector or (own.labels if own else None)
    return _selecting(Workload(it.metadata, WorkloadSpec(it.spec.template, Selector(labels), it.spec.replicas)))


def _selecting(workload: Workload) -> Workload:
    selector, template = workload.spec.selector, workload.spec.template
    labels = (template.metadata.labels if template.metadata else None) or {}
    if selector is None or not (selector.match_labels or selector.match_expressions):
        raise Invalid("spec.selector", "missing; expected matchLabels that the template's labels satisfy")
    if not selects(selector, labels):
        raise Invalid("spec.selector", "does not select the template's own labels (spec.template.metadata.labels)")
    return workload


def _replicas(workload: Workload) -> int:
    count = workload.spec.replicas if workload.spec.replicas is not None else 1
    if count < 0:
        raise Invalid("spec.replicas", f"expected a whole number from 0, not {count}")
    return count


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """A LabelSelector of the API: matchLabels and matchExpressions, all of them. Raises Invalid."""
    expressions = [_holds(one, labels) for one in selector.match_expressions or ()]
    return (selector.match_labels or {}).items() <= labels.items() and all(expressions)


def _holds(one: Expression, labels: Mapping[str, str]) -> bool:
    match one.operator:
        case "In":
            return labels.get(one.key) in (one.values or ())
        case "NotIn":
            return labels.get(one.key) not in (one.values or ())
        case "Exists":
            return one.key in labels
        case "DoesNotExist":
            return one.key not in labels
        case operator:
            known = "In, NotIn, Exists or DoesNotExist"
            raise Invalid("spec.selector.matchExpressions", f"expected operator {known}, not {operator!r}")


def _word(text: str, length: int) -> str:
    number = _number(text)
    letters = []
    for _ in range(length):
        number, letter = divmod(number, len(_SAFE))
        letters.append(_SAFE[letter])
    return "".join(letters)


def _number(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")
