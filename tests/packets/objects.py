"""The cluster of the packet table as Kubernetes has it: Nodes, Services, EndpointSlices. Pure.

Invariants: the same objects go to every plane, in the API's own form. Each Service has one backend, or none, for all
three protocols and both families; its ports have one number.
"""

from collections.abc import Iterable
from typing import Any

from podwire.model.addresses import FAMILIES, Family
from podwire.model.objects import Protocol
from tests.packets.plan import EMPTY, SERVICES, TARGET_PORT, Exposed, Node, home

Object = dict[str, Any]


def objects(nodes: Iterable[Node], services: Iterable[Exposed] = (*SERVICES, EMPTY)) -> list[Object]:
    found = [node_object(node) for node in nodes]
    for service in services:
        found += [service_object(service), *(slice_object(service, family) for family in FAMILIES)]
    return found


def node_object(node: Node) -> Object:
    blocks = [str(node.block(family)) for family in FAMILIES]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name},
        "spec": {"podCIDR": blocks[0], "podCIDRs": blocks},
        "status": {"addresses": [{"type": "InternalIP", "address": node.address(family)} for family in FAMILIES]},
    }


def service_object(service: Exposed) -> Object:
    cluster_ips = [service.cluster_ip(family) for family in FAMILIES]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service.name, "namespace": "default"},
        "spec": {
            "type": "NodePort",
            "clusterIP": cluster_ips[0],
            "clusterIPs": cluster_ips,
            "externalIPs": [service.external_ip(family) for family in FAMILIES],
            "ipFamilyPolicy": "RequireDualStack",
            "ipFamilies": [family.name for family in FAMILIES],
            "ports": [
                {
                    "name": protocol.name.lower(),
                    "protocol": protocol.name,
                    "port": service.port,
                    "targetPort": TARGET_PORT,
                    "nodePort": service.node_port,
                }
                for protocol in Protocol
            ],
        },
    }


def slice_object(service: Exposed, family: Family) -> Object:
    members: list[Object] = []
    if service.backend is not None:
        node = home(service.backend)
        at_node = {"nodeName": node.name} if node is not None else {}
        members.append({"addresses": [service.backend.address(family)], "conditions": {"ready": True}, **at_node})
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service.name}-{family.name.lower()}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service.name},
        },
        "addressType": family.name,
        "ports": [{"name": it.name.lower(), "protocol": it.name, "port": TARGET_PORT} for it in Protocol],
        "endpoints": members,
    }
