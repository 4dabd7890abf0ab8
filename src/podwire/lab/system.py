"""What every cluster has before its user's first manifest: the cluster DNS. Pure.

Invariants: these are manifests as a user could write them, and take the same way as a user's; an object of the same
name in the user's own replaces them.
"""

from podwire.lab.expand import Manifest, ObjectKey
from podwire.lab.forms import Fields
from podwire.lab.slices import DNS_PORT
from podwire.lab.topology import SERVICE_RANGES
from podwire.model.addresses import show_address

DNS_SERVICE = ObjectKey("Service", "kube-system", "kube-dns")
"""Whoever is behind this Service answers as a name server, whatever else its manifest says."""
_DNS_NUMBER = 10
_LABELS = {"k8s-app": "kube-dns"}
_METADATA = {"name": DNS_SERVICE.name, "namespace": DNS_SERVICE.namespace, "labels": _LABELS}
_PORTS = {"dns": "UDP", "dns-tcp": "TCP"}

_SERVICE: Fields = {
    "selector": _LABELS,
    "ipFamilyPolicy": "PreferDualStack",
    "clusterIPs": [show_address(range_.nth(_DNS_NUMBER)) for range_ in SERVICE_RANGES.values()],
    "ports": [{"name": name, "port": DNS_PORT, "protocol": protocol} for name, protocol in _PORTS.items()],
}
_CONTAINER: Fields = {
    "name": "dns",
    "ports": [{"name": name, "containerPort": DNS_PORT, "protocol": protocol} for name, protocol in _PORTS.items()],
}
_DEPLOYMENT: Fields = {
    "replicas": 2,
    "selector": {"matchLabels": _LABELS},
    "template": {"metadata": {"labels": _LABELS}, "spec": {"containers": [_CONTAINER]}},
}
SYSTEM = tuple(
    Manifest({"apiVersion": version, "kind": kind, "metadata": _METADATA, "spec": spec}, lambda _: "the lab's own")
    for version, kind, spec in (("v1", "Service", _SERVICE), ("apps/v1", "Deployment", _DEPLOYMENT))
)
