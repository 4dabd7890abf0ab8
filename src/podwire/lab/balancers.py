"""Addresses of load balancers, as the cluster's controller gives them. Pure.

Invariants: the controller's own functions decide (`loadbalancer/`); what was given before stands in the Services'
statuses, as in a cluster.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podwire.lab.forms import Fields
from podwire.loadbalancer.allocation import allocate
from podwire.loadbalancer.pools import used
from podwire.loadbalancer.statuses import wanted
from podwire.model.balancers import AddressPool, AddressPoolKey, Balanced, Labels
from podwire.model.objects import Namespace, NamespaceKey, ServiceKey
from podwire.sources.balancer_objects import CONDITION, BalancedService, read_service
from podwire.sources.kubernetes import translate

Ingress = tuple[tuple[str, str], ...]
"""Addresses and modes of a status."""
Status = dict[str, Any]


def statuses(
    services: Mapping[ServiceKey, Fields], others: Iterable[Fields], before: Mapping[ServiceKey, Ingress]
) -> dict[ServiceKey, Status]:
    """Of the Services (complete objects) that get any. `others`: the cluster's pools and namespaces, among more."""
    pools: dict[AddressPoolKey, AddressPool] = {}
    namespaces: dict[str, Labels] = {}
    for data in others:
        if data.get("kind") in ("AddressPool", "Namespace"):
            key, value, _ = translate(dict(data))
            if isinstance(key, AddressPoolKey) and isinstance(value, AddressPool):
                pools[key] = value
            elif isinstance(key, NamespaceKey) and isinstance(value, Namespace):
                namespaces[key.name] = value.labels
    held: dict[ServiceKey, Balanced] = {}
    for own, data in services.items():
        complete = {**data, "status": _status(before.get(own, ()))}
        _, balanced = read_service(msgspec.convert(complete, BalancedService), unclassed=True)
        if isinstance(balanced, Balanced):
            held[own] = balanced
    if not pools:
        return {}
    grants = allocate(used(pools), namespaces, {key: it.request for key, it in held.items()})
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
