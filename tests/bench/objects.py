"""The objects of a cluster as its API has them: one node, Services, and a slice of backends for each.

Invariants: slices are as large as a real controller's (2.3 KB with ten backends). Nothing depends on chance but the
address that a change brings, and that on its number alone.
"""

from typing import Any

Thing = dict[str, Any]
NODE, NAMESPACE = "one", "default"
BLOCK, CLUSTER, SERVICES = "10.1.1.0/24", "10.0.0.0/10", "10.96.0.0/12"
BACKENDS, PORT, TARGET = 10, 80, 8080
CHANGED = 7
"""Which of a slice's backends is replaced by changes."""


def service_name(number: int) -> str:
    return f"service-{number}"


def service_address(number: int) -> str:
    return f"10.{96 + (number + 256 >> 16)}.{number + 256 >> 8 & 255}.{number & 255}"


def backend_address(service: int, backend: int) -> str:
    """Elsewhere: none of them is in the node's own block."""
    number = service * BACKENDS + backend
    return f"10.{2 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


def changed_address(change: int) -> str:
    """Another one for each change."""
    return f"10.60.{change // 250 % 250}.{change % 250 + 1}"


def node() -> Thing:
    return {
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}},
        "spec": {"podCIDR": BLOCK, "podCIDRs": [BLOCK]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.50.1"}]},
    }


def service_cidr() -> Thing:
    return {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": [SERVICES]}}


def service(number: int, affinity: bool = False) -> Thing:
    address = service_address(number)
    remembers = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
    }
    return {
        "metadata": {
            "name": service_name(number),
            "namespace": NAMESPACE,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": service_name(number)},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"port": PORT, "protocol": "TCP", "targetPort": TARGET}],
            "selector": {"app": service_name(number)},
            **(remembers if affinity else {"sessionAffinity": "None"}),
        },
        "status": {"loadBalancer": {}},
    }


def slice_of(number: int, addresses: list[str], on: str = "") -> Thing:
    """`on`: the node of all of them; each has one of its own where there is none."""
    name = service_name(number)
    fields = {"f:addressType": {}, "f:endpoints": {}, "f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:ports": {}}
    managed = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "discovery.k8s.io/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": f"uid-{name}", "controller": True}
    members = [
        {
            "addresses": [address],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": on or f"node-{at}",
            "zone": "zone-a",
            "targetRef": {
                "kind": "Pod",
                "namespace": NAMESPACE,
                "name": f"{name}-5d4f8c7b9-{at:05}",
                "uid": f"00000000-0000-4000-8000-{number:06}{at:06}",
            },
        }
        for at, address in enumerate(addresses)
    ]
    return {
        "metadata": {
            "name": f"{name}-abcde",
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": name, "app": name},
            "managedFields": [managed],
            "ownerReferences": [owner],
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": TARGET, "protocol": "TCP"}],
        "endpoints": members,
    }


def backends(number: int, change: int | None = None) -> list[str]:
    """Of a Service; with the address that this change has brought."""
    found = [backend_address(number, at) for at in range(BACKENDS)]
    if change is not None:
        found[CHANGED] = changed_address(change)
    return found
