"""Addresses of load balancers, as the cluster's controller gives them. Pure.

Invariants: the controller's own functions decide (`loadbalancer/`); what was given before stands in the Services'
statuses, as in a cluster.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podwire.lab.forms import Fields
from podwire.lab.topology import SERVICE_RANGES
from podwire.loadbalancer.allocation import allocate
from podwire.loadbalancer.others import taken
from podwire.loadbalancer.pools import used
from podwire.loadbalancer.statuses import wanted
from podwire.model.balancers import AddressPoolKey, Balanced
from podwire.model.objects import (
    NamespaceKey,
    NodeKey,
    PodBlockKey,
    PodPoolKey,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
)
from podwire.sources.balancer_objects import CONDITION, BalancedService, read_service
from podwire.sources.kubernetes import translate

Ingress = tuple[tuple[str, str], ...]
"""Addresses and modes of a status."""
Status = dict[str, Any]


_KINDS = ("AddressPool", "Namespace", "Node", "PodPool", "PodBlock")


def statuses(
    services: Mapping[ServiceKey, Fields], others: Iterable[Fields], before: Mapping[ServiceKey, Ingress]
) -> dict[ServiceKey, Status]:
    """Of the Services (complete objects) that get any. `others`: the cluster's pools, namespaces and nodes, among
    more."""
    there = [translate(dict(data))[:2] for data in others if data.get("kind") in _KINDS]

    def of(kind: type[object]) -> dict[Any, Any]:
        return {key: it for key, it in there if isinstance(key, kind) and it is not None}

    pools = of(AddressPoolKey)
    namespaces = {key.name: it.labels for key, it in of(NamespaceKey).items()}
    ranges = {ServiceCIDRKey("kubernetes"): ServiceCIDR(tuple(SERVICE_RANGES.values()))}
    others_have = taken(of(NodeKey), of(PodPoolKey), of(PodBlockKey), ranges)
    held: dict[ServiceKey, Balanced] = {}
    for own, data in services.items():
        complete = {**data, "status": _status(before.get(own, ()))}
        _, balanced = read_service(msgspec.convert(complete, BalancedService), unclassed=True)
        if isinstance(balanced, Balanced):
            held[own] = balanced
    if not pools:
        return {}
    grants = allocate(used(pools, others_have), namespaces, {key: it.request for key, it in held.items()})
    found = {}
    for key, grant in grants.items():
        status = wanted(held[key], grant)
        word, reason, message = status.condition
        condition = {"type": CONDITION, "status": word, "reason": reason, "message": message}
        found[key] = _status(status.ingress) | {"conditions": [condition]}
    return found


def ingress_of(status: Status) -> Ingress:
    return tuple((it["ip"], it["ipMode"]) for it in status["loadBalancer"]["ingress"])


def _status(ingress: Ingress) -> Status:
    return {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": mode} for ip, mode in ingress]}}
