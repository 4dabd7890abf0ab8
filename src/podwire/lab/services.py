"""A user's Service made complete, as an API server stores it. Pure.

Invariants: what the manifest says stays; only what it leaves open is filled in, with the API's own defaults.
"""

import re
from copy import deepcopy
from typing import Any

from podwire.lab.allocation import HEADLESS, SINGLE, Held, PortKey, families_of
from podwire.lab.forms import Fields, Service, port, protocol, read
from podwire.model.addresses import Address, parse_address, show_address
from podwire.model.objects import Protocol, ServiceKey
from podwire.sources.fields import Invalid, read_address, read_each
from podwire.sources.kubernetes import translate

_HOST = re.compile(r"(?=.{1,253}\.?$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\.?")
"""A DNS name (RFC 1123), with or without its last dot."""


def read_service(data: Fields) -> Service:
    """Raises Invalid for what an agent would refuse, and for what allocation and slices could not read."""
    service = read(data, Service)
    translate(dict(data))
    if service.spec.type == "ExternalName" and not _HOST.fullmatch(service.spec.external_name or ""):
        raise Invalid("spec.externalName", f"expected a DNS name, not {service.spec.external_name!r}")
    external_ips(service)
    for position, one in enumerate(service.spec.ports or ()):  # an agent reads none of a Service that no proxy serves
        protocol(one.protocol, f"spec.ports[{position}].protocol")
        if isinstance(one.target_port, int):
            port(one.target_port, f"spec.ports[{position}].targetPort")
    return service


def external_ips(service: Service) -> list[Address]:
    """Raises Invalid."""
    return read_each("spec.externalIPs", service.spec.external_ips, read_address)


def balancer_ips(complete: Fields) -> list[Address]:
    """Of a complete object, those of its status."""
    ingress = ((complete.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return [parse_address(it["ip"]) for it in ingress]


def complete(data: Fields, service: Service, key: ServiceKey, held: Held, created: str) -> dict[str, Any]:
    """`held`: all that has been given out; `created`: RFC 3339."""
    spec: dict[str, Any] = {name: value for name, value in deepcopy(dict(data["spec"])).items() if value is not None}
    kind = spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for one in spec.get("ports") or ():
        one["protocol"] = one.get("protocol") or "TCP"
        one["targetPort"] = one.get("targetPort") or one["port"]
        number = held.node_ports.get(PortKey(key, Protocol[one["protocol"]], one["port"]))
        if number is not None:
            one["nodePort"] = number
    if kind != "ExternalName":
        families = families_of(service.spec)
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilyPolicy", SINGLE)
        spec["ipFamilies"] = [family.name for family in families]
        addresses = [held.cluster_ips[key, family] for family in families if (key, family) in held.cluster_ips]
        spec["clusterIPs"] = [show_address(address) for address in addresses] or [HEADLESS]
        spec["clusterIP"] = spec["clusterIPs"][0]
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    health = held.node_ports.get(PortKey(key, Protocol.TCP, 0))
    if health is not None:
        spec["healthCheckNodePort"] = health
    metadata = {**data["metadata"], "namespace": key.namespace, "creationTimestamp": created}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
