"""The cluster of the packet table as Kubernetes has it: Nodes, Services, EndpointSlices. Pure.

Invariants: the same objects go to every plane, in the API's own form. Each Service has its backends for all three
protocols and both families; its ports have one number. A slice is of one family and one target port.
"""

from collections.abc import Iterable
from typing import Any

from podwire.model.addresses import FAMILIES, Family
from podwire.model.objects import Protocol
from tests.packets.plan import TARGET_PORT, Backend, Exposed, Node, State, home

Object = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"


def objects(nodes: Iterable[Node], services: Iterable[Exposed]) -> list[Object]:
    found = [node_object(node) for node in nodes]
    for service in services:
        found += [service_object(service), *slice_objects(service)]
    return found


def node_object(node: Node) -> Object:
    blocks = [str(node.block(family)) for family in FAMILIES]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {ZONE: node.zone}},
        "spec": {"podCIDR": blocks[0], "podCIDRs": blocks},
        "status": {"addresses": [{"type": "InternalIP", "address": node.address(family)} for family in FAMILIES]},
    }


def service_object(service: Exposed) -> Object:
    cluster_ips = [service.cluster_ip(family) for family in FAMILIES]
    mode = "Proxy" if service.proxied else "VIP"
    ingress = [{"ip": service.balancer_ip(family), "ipMode": mode} for family in FAMILIES]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service.name, "namespace": "default"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "externalIPs": [service.external_ip(family) for family in FAMILIES],
            "ipFamilyPolicy": "RequireDualStack",
            "ipFamilies": [family.name for family in FAMILIES],
            "externalTrafficPolicy": _policy(service.external_local),
            "internalTrafficPolicy": _policy(service.internal_local),
            "loadBalancerSourceRanges": list(service.sources),
            "allocateLoadBalancerNodePorts": service.node_ports,
            "publishNotReadyAddresses": any(it.state is State.PUBLISHED for it in service.backends),
            **({"healthCheckNodePort": service.health_port} if service.external_local else {}),
            "ports": [
                {
                    "name": protocol.name.lower(),
                    "protocol": protocol.name,
                    "port": service.port,
                    "targetPort": "web",
                    **({"nodePort": service.node_port} if service.node_ports else {}),
                }
                for protocol in Protocol
            ],
        },
        "status": {"loadBalancer": {"ingress": ingress}},
    }


def _policy(local: bool) -> str:
    return "Local" if local else "Cluster"


def slice_objects(service: Exposed) -> list[Object]:
    """For each family one of each target port, and an empty one where there is no backend."""
    ports = sorted({it.port for it in service.backends}) or [TARGET_PORT]
    return [_slice(service, family, port) for family in FAMILIES for port in ports]


def _slice(service: Exposed, family: Family, port: int) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service.name}-{family.name.lower()}-{port}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service.name},
        },
        "addressType": family.name,
        "ports": [{"name": it.name.lower(), "protocol": it.name, "port": port} for it in Protocol],
        "endpoints": [_member(it, family) for it in service.backends if it.port == port],
    }


def _member(backend: Backend, family: Family) -> Object:
    node = home(backend.station)
    assert node is not None, f"{backend.station.name} is on no node"
    ready, serving, terminating = backend.state.value
    hints = {
        "forNodes": [{"name": name} for name in backend.for_nodes],
        "forZones": [{"name": name} for name in backend.for_zones],
    }
    return {
        "addresses": [backend.station.address(family)],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "nodeName": node.name,
        "zone": node.zone,
        **({"hints": hints} if any(hints.values()) else {}),
    }
