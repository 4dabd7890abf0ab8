"""Kubernetes objects to the model's values.

Invariants: pure, and one direction: the API's spelling (`kube_objects.py`) stops here. Equal meaning gives equal
values: what has no order is sorted and free of duplicates. A wrong field raises `Invalid` and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from sys import intern
from typing import Any, NamedTuple

import msgspec

from podwire.model import objects
from podwire.model.addresses import IPV4, IPV6, Address, Family, Prefix, family_of
from podwire.model.announcements import NAMESPACE, Secret
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
    NamespaceKey,
    NodeKey,
    PodBlockKey,
    PodKey,
    PodPoolKey,
    ServiceCIDRKey,
    ServiceKey,
    SliceKey,
)
from podwire.sources.address_pools import AddressPoolObject, pool_key
from podwire.sources.address_pools import read_pool as read_address_pool
from podwire.sources.announcer_objects import (
    BGPAdvertisementObject,
    BGPPeerObject,
    L2AdvertisementObject,
    bgp_advertisement_key,
    l2_advertisement_key,
    peer_key,
    read_bgp_advertisement,
    read_l2_advertisement,
    read_peer,
)
from podwire.sources.fields import (
    Invalid,
    Unfit,
    check_distinct,
    invalid,
    one_per_family,
    read_address,
    read_at,
    read_each,
    read_either,
    read_label,
    read_labels,
    read_name,
    read_one_of,
    read_port,
    read_prefix,
    read_protocol,
    read_sources,
    read_time,
    read_unicast,
    shown,
)
from podwire.sources.kinds import KINDS, Announcer, Kind
from podwire.sources.kube_objects import (
    ASSIGNED,
    POOLS,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Ingress,
    Namespace,
    NamespaceAnnotations,
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    Pod,
    PodAnnotations,
    PodBlock,
    PodPool,
    PodStatus,
    Service,
    ServiceCIDR,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from podwire.sources.passwords import SecretObject, read_secret, secret_key
from podwire.sources.pod_pools import block_key, read_block, read_pool
from podwire.sources.unknown_fields import check_fields


class Translated(NamedTuple):
    """`value` None: the object means nothing to the network, and `ignored` says why."""

    key: ObjectKey
    value: Object | None
    ignored: str = ""


class Resource(NamedTuple):
    """Where the API lists and watches a kind. `key`: from namespace and name. `selection`: which of its objects count.

    `read`: what an object means; None: what it means to an agent. `optional`: an API server that has no such kind is
    whole without it, and is asked again after `absent_seconds`.
    """

    name: str
    path: str
    form: type[Any]
    key: Callable[[str, str], Any]
    selection: Mapping[str, str] = {}
    optional: bool = False
    absent_seconds: float = 300.0
    read: Callable[[Any, list[Invalid]], tuple[Any, Any]] | None = None


_AGAIN = 60.0
"""Seconds. Podwire's own kinds come when somebody applies their definitions, and may go again."""


def resources(node: str) -> tuple[Resource, ...]:
    """All that the agent of a node must know."""
    on_node = {"fieldSelector": f"spec.nodeName={node}"}
    of_services = {"labelSelector": "kubernetes.io/service-name"}
    return (
        Resource("nodes", "/api/v1/nodes", Node, lambda _, name: NodeKey(name)),
        Resource("namespaces", "/api/v1/namespaces", Namespace, lambda _, name: NamespaceKey(name)),
        Resource("pods", "/api/v1/pods", Pod, PodKey, on_node),
        Resource("services", "/api/v1/services", Service, ServiceKey),
        Resource("endpointslices", "/apis/discovery.k8s.io/v1/endpointslices", EndpointSlice, SliceKey, of_services),
        Resource(
            "servicecidrs",
            "/apis/networking.k8s.io/v1/servicecidrs",
            ServiceCIDR,
            lambda _, name: ServiceCIDRKey(name),
            optional=True,  # since Kubernetes 1.33
        ),
        Resource("podpools", f"/apis/{POOLS}/podpools", PodPool, _pool_key, {}, True, _AGAIN),
        Resource("podblocks", f"/apis/{POOLS}/podblocks", PodBlock, _block_key, {}, True, _AGAIN),
        *(
            Resource(name, f"/apis/{POOLS}/{name}", form, key, {}, True, _AGAIN)
            for name, form, key in (
                ("addresspools", AddressPoolObject, pool_key),
                ("bgppeers", BGPPeerObject, peer_key),
                ("bgpadvertisements", BGPAdvertisementObject, bgp_advertisement_key),
                ("l2advertisements", L2AdvertisementObject, l2_advertisement_key),
            )
        ),
        # In our own namespace alone, and without them where nobody has given us that right.
        Resource("secrets", f"/api/v1/namespaces/{NAMESPACE}/secrets", SecretObject, secret_key, {}, True, _AGAIN),
    )


def _pool_key(_: str, name: str) -> PodPoolKey:
    return PodPoolKey(name)


def _block_key(_: str, name: str) -> PodBlockKey:
    return block_key(name)


# --- the door ----------------------------------------------------------------------------------


def translate(thing: Kind | dict[str, Any], left_out: list[Invalid] | None = None) -> Translated:
    """What an object, or a mapping in its form with apiVersion and kind, means to the network. Raises Invalid.

    What is Unfit (addresses that nobody can have, members that can't be read) is wrong like anything else; but where
    `left_out` is given, it takes the errors, and the object is read without.
    """
    if isinstance(thing, dict):
        thing = _convert(thing)
    match thing:
        case EndpointSlice():
            return _slice(thing, left_out)
        case Service():
            return _service(thing, left_out)
        case Pod():
            return Translated(key_of(thing), _pod(thing))
        case Node():
            return Translated(key_of(thing), _node(thing, left_out))
        case Namespace():
            return Translated(key_of(thing), _namespace_value(thing))
        case ServiceCIDR():
            return Translated(key_of(thing), _service_cidr(thing, left_out))
        case PodPool():
            return Translated(key_of(thing), read_pool(thing))
        case PodBlock():
            return Translated(key_of(thing), read_block(thing))
        case AddressPoolObject():
            return Translated(*read_address_pool(thing))
        case BGPPeerObject():
            return Translated(*read_peer(thing))
        case BGPAdvertisementObject():
            return Translated(*read_bgp_advertisement(thing))
        case L2AdvertisementObject():
            return Translated(*read_l2_advertisement(thing))
        case SecretObject():
            return _secret(thing)


def key_of(thing: Kind) -> ObjectKey:
    """The key alone, as for an object that has gone. Raises Invalid for a name that no object can have."""
    name = read_name(thing.metadata.name, "metadata.name")
    if isinstance(thing, Node):
        return NodeKey(intern(name))
    if isinstance(thing, Namespace):
        return NamespaceKey(intern(name))
    if isinstance(thing, ServiceCIDR):
        return ServiceCIDRKey(name)
    if isinstance(thing, PodPool):
        return PodPoolKey(name)
    if isinstance(thing, PodBlock):
        return block_key(name)
    if isinstance(thing, AddressPoolObject | BGPPeerObject | BGPAdvertisementObject | L2AdvertisementObject):
        return _ANNOUNCING[type(thing)]("", name)
    if isinstance(thing, SecretObject):
        return secret_key(thing.metadata.namespace or "default", name)
    namespace = _namespace(thing)
    if isinstance(thing, EndpointSlice):
        return SliceKey(namespace, name)
    if isinstance(thing, Service):
        return ServiceKey(namespace, intern(name))
    return PodKey(namespace, name)


_ANNOUNCING: dict[type[Announcer], Callable[[str, str], ObjectKey]] = {
    AddressPoolObject: pool_key,
    BGPPeerObject: peer_key,
    BGPAdvertisementObject: bgp_advertisement_key,
    L2AdvertisementObject: l2_advertisement_key,
}


def _secret(thing: SecretObject) -> Translated:
    """Of Podwire's own namespace; what is no password there is nobody's mistake until a peer names it."""
    key = key_of(thing)
    if (thing.metadata.namespace or "default") != NAMESPACE:
        return Translated(key, None, f"it is not in namespace {NAMESPACE}")
    unfit: list[Invalid] = []
    return Translated(key, Secret(tuple((it.item, text) for it, text in read_secret(thing, unfit).items())))


def _namespace(thing: Service | Pod | EndpointSlice) -> str:
    return read_label(thing.metadata.namespace or "default", "metadata.namespace")


def _convert(data: dict[str, Any]) -> Kind:
    version, kind = data.get("apiVersion"), data.get("kind")
    form = KINDS.get((version, kind)) if isinstance(version, str) and isinstance(kind, str) else None
    if form is None:
        known = ", ".join(f"{v} {k}" for v, k in KINDS)
        raise Invalid("kind", f"expected one of {known}, not {shown(version)} {shown(kind)}")
    try:
        thing = msgspec.convert(data, type=form)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    if version == POOLS:
        check_fields(data, form)
    return thing


# --- Service -----------------------------------------------------------------------------------

_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
HEADLESS = "None"


def _service(thing: Service, left_out: list[Invalid] | None) -> Translated:
    """The rules: Kubernetes API, ServiceSpec."""
    key, spec = key_of(thing), thing.spec
    labels = thing.metadata.labels or {}
    if reason := _not_ours(labels.get(_OTHER_PROXY), labels.get(_NO_PROXY)):
        return Translated(key, None, reason)
    kind = spec.type or "ClusterIP"
    if kind not in _SERVICE_TYPES:
        raise Invalid("spec.type", f"expected one of {', '.join(_SERVICE_TYPES)}, not {shown(kind)}")
    created = read_time(thing.metadata.creation_timestamp, "metadata.creationTimestamp")
    if kind == "ExternalName" or cluster_ips_of(spec) == [HEADLESS]:
        # No proxy serves it, whatever else it says: ports and addresses of what it was before may still stand there.
        return Translated(key, objects.Service((), created=created))
    ports = _service_ports(spec.ports or [], kind)
    external_ips = tuple(sorted(set(read_each("spec.externalIPs", spec.external_ips, read_unicast, left_out))))
    single, several = ("spec.clusterIP", spec.cluster_ip), ("spec.clusterIPs", spec.cluster_ips)
    cluster_ips = read_either(single, several, one_per_family(read_unicast, family_of), left_out)
    if not ports:
        raise Invalid("spec.ports", "expected at least one port")
    balanced = kind == "LoadBalancer"
    external_local = read_one_of(spec.external_traffic_policy, "spec.externalTrafficPolicy", _POLICIES) == "Local"
    internal_local = read_one_of(spec.internal_traffic_policy, "spec.internalTrafficPolicy", _POLICIES) == "Local"
    sources = read_each("spec.loadBalancerSourceRanges", spec.load_balancer_source_ranges, read_sources)
    health_port = (
        read_port(spec.health_check_node_port, "spec.healthCheckNodePort") if spec.health_check_node_port else 0
    )
    it = objects.Service(
        ports,
        tuple(cluster_ips),
        _of_its_families(external_ips, cluster_ips),
        created,
        balancer_ips=_of_its_families(_balancer_ips(thing.status, left_out), cluster_ips) if balanced else (),
        source_ranges=tuple(sorted(set(sources))) if balanced else (),
        affinity=_affinity(spec),
        external_local=external_local,
        internal_local=internal_local,
        health_port=health_port if balanced and external_local else 0,
        labels=read_labels(labels),
        assigned=_assigned(thing.status) if balanced else "",
    )
    return Translated(key, it)


def _assigned(status: ServiceStatus | None) -> str:
    conditions = (status.conditions if status is not None else None) or ()
    return next((f"{it.reason}: {it.message}" for it in conditions if it.type == ASSIGNED), "")


def _of_its_families(addresses: tuple[Address, ...], cluster_ips: Sequence[Address]) -> tuple[Address, ...]:
    """As with kube-proxy: a Service is served in the families of its cluster IPs, whatever else stands there."""
    families = {len(it) for it in cluster_ips}
    return tuple(it for it in addresses if not families or len(it) in families)


def cluster_ips_of(spec: ServiceSpec) -> list[str]:
    return spec.cluster_ips or ([spec.cluster_ip] if spec.cluster_ip else [])


_POLICIES = ("Cluster", "Local")
_LONGEST_AFFINITY = 86_400
_AFFINITY = 10_800


def _affinity(spec: ServiceSpec) -> int:
    """Seconds; 0: none."""
    if read_one_of(spec.session_affinity, "spec.sessionAffinity", ("None", "ClientIP")) == "None":
        return 0
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config is not None and config.client_ip is not None else None
    if seconds is None:
        return _AFFINITY
    if not 1 <= seconds <= _LONGEST_AFFINITY:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        raise Invalid(path, f"expected seconds from 1 to {_LONGEST_AFFINITY}, not {shown(seconds)}")
    return seconds


def _balancer_ips(status: ServiceStatus | None, left_out: list[Invalid] | None) -> tuple[Address, ...]:
    ingress = status.load_balancer.ingress if status is not None and status.load_balancer is not None else None
    read = read_each("status.loadBalancer.ingress", ingress, _balancer_ip, left_out)
    return tuple(sorted({address for address in read if address is not None}))


def _balancer_ip(given: Ingress) -> Address | None:
    """Where packets come as they are (KEP-1860): of mode Proxy the load balancer rewrites them. None too for a name."""
    direct = read_one_of(given.ip_mode, "ipMode", ("VIP", "Proxy")) == "VIP"
    return read_at("ip", given.ip, read_unicast) if direct and given.ip else None


def _service_ports(given: list[ServicePort], kind: str) -> tuple[objects.ServicePort, ...]:
    ports = read_each("spec.ports", given, _service_port)
    for number, port in enumerate(ports):
        if port.node_port and kind not in ("NodePort", "LoadBalancer"):
            raise Invalid(f"spec.ports[{number}].nodePort", f"expected type NodePort or LoadBalancer, not {kind}")
        if not port.name and len(ports) > 1:
            raise Invalid(f"spec.ports[{number}].name", "missing: each of several ports needs its own")
    check_distinct("spec.ports", "name", [port.name for port in ports])
    check_distinct("spec.ports", "port", [f"{port.port}/{port.protocol.name}" for port in ports])
    node_ports = [f"{port.node_port}/{port.protocol.name}" if port.node_port else "" for port in ports]
    check_distinct("spec.ports", "nodePort", node_ports)
    return tuple(sorted(ports, key=lambda port: (port.protocol, port.port)))


def _service_port(given: ServicePort) -> objects.ServicePort:
    name = read_label(given.name, "name") if given.name else ""
    node_port = read_port(given.node_port, "nodePort") if given.node_port else 0
    return objects.ServicePort(name, read_protocol(given.protocol), read_port(given.port, "port"), node_port)


_OTHER_PROXY, _NO_PROXY = "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"


def _not_ours(proxy: str | None, headless: str | None) -> str:
    """Whom a proxy must leave alone, whatever the label's value: KEP-2447, and kube-proxy for the second."""
    if proxy is not None:
        return f"another proxy serves it (label {_OTHER_PROXY})"
    return f"it is headless (label {_NO_PROXY})" if headless is not None else ""


# --- EndpointSlice -----------------------------------------------------------------------------

_FAMILY = {"IPv4": IPV4, "IPv6": IPV6}
_by_address = attrgetter("address")


def _slice(thing: EndpointSlice, left_out: list[Invalid] | None) -> Translated:
    """The rules: Kubernetes API, EndpointSlice v1."""
    key, labels, namespace = key_of(thing), thing.metadata.labels, _namespace(thing)
    if thing.address_type == "FQDN":
        return Translated(key, None, "its addresses are names (addressType FQDN)")
    family = _FAMILY.get(thing.address_type)
    if family is None:
        raise Invalid("addressType", f"expected IPv4, IPv6 or FQDN, not {shown(thing.address_type)}")
    if labels is None or not labels.service:
        return Translated(key, None, "it belongs to no Service (label kubernetes.io/service-name)")
    if reason := _not_ours(labels.proxy, labels.headless):
        return Translated(key, None, reason)
    ports = _backend_ports(thing.ports)
    read = partial(_member, family, namespace)
    members = read_each("endpoints", thing.endpoints, read, left_out)
    service = ServiceKey(namespace, intern(labels.service))
    return Translated(key, objects.BackendSlice(service, ports, _ordered(members)))


def _backend_ports(given: list[EndpointPort] | None) -> tuple[objects.BackendPort, ...]:
    """A port without a number stands for all ports: no frontend can be tied to it."""
    ports = read_each("ports", given, _backend_port)
    check_distinct("ports", "name", [port.name or "the empty name" for port in ports])
    return tuple(sorted((port for port in ports if port.port), key=attrgetter("name")))


def _backend_port(given: EndpointPort) -> objects.BackendPort:
    name = read_label(given.name, "name") if given.name else ""
    port = 0 if given.port is None else read_port(given.port, "port")
    return objects.BackendPort(name, read_protocol(given.protocol), port)


def _member(family: Family, namespace: str, endpoint: Endpoint) -> objects.Member:
    """Raises Unfit: others serve without it."""
    address = _serving_address(family, endpoint.addresses)
    ready, serving, terminating = True, True, False
    if (conditions := endpoint.conditions) is not None:
        ready = conditions.ready is not False
        serving = conditions.serving is not False
        terminating = conditions.terminating is True
    pod, reference = "", endpoint.target_ref
    if reference is not None and reference.kind == "Pod" and reference.name:
        pod = f"{reference.namespace or namespace}/{reference.name}"
    node, zone = intern(endpoint.node_name or ""), intern(endpoint.zone or "")
    if endpoint.hints is None:
        return objects.Member(address, ready, serving, terminating, node, zone, pod)
    zones, nodes = (
        tuple(sorted({intern(each.name) for each in some or ()}))
        for some in (endpoint.hints.for_zones, endpoint.hints.for_nodes)
    )
    return objects.Member(address, ready, serving, terminating, node, zone, pod, _same(objects.Hints(zones, nodes)))


@lru_cache(maxsize=1024)
def _same(hints: objects.Hints) -> objects.Hints:
    """Members of a zone have the same: once is enough to remember."""
    return hints


def _serving_address(family: Family, given: list[str]) -> Address:
    """All must be right; the first is the one that serves. Raises Unfit."""
    first: Address | None = None
    for number, text in enumerate(given):
        try:
            address = read_unicast(text, family)
        except Invalid as wrong:
            raise wrong.within(f"addresses[{number}]").dispensable() from None
        first = first or address
    if first is None:
        raise Unfit("addresses", "expected at least one address")
    return first


def _ordered(members: list[objects.Member]) -> tuple[objects.Member, ...]:
    members.sort(key=_by_address)
    if len({member.address for member in members}) < len(members):
        members = sorted(set(members), key=lambda member: (member.address, msgspec.json.encode(member)))
    return tuple(members)


# --- Namespace, Pod, Node and ServiceCIDR ------------------------------------------------------


def _namespace_value(thing: Namespace) -> objects.Namespace:
    annotations = thing.metadata.annotations or NamespaceAnnotations()
    return objects.Namespace(read_labels(thing.metadata.labels), annotations.pool or "")


_ENDED = ("Succeeded", "Failed")


def _pod(thing: Pod) -> objects.Pod:
    """The order of addresses stays: the first is the primary one. A pod that has ended no longer owns its own."""
    spec, status = thing.spec, thing.status or PodStatus()
    ips = [each.ip for each in status.pod_ips or []]
    addresses = read_either(("status.podIP", status.pod_ip), ("status.podIPs", ips), read_address, item="ip")
    if status.phase in _ENDED:
        addresses = []
    asked = thing.metadata.annotations or PodAnnotations()
    if status.phase in _ENDED:  # and asks for nothing more
        asked = PodAnnotations()
    return objects.Pod(
        intern(spec.node_name or ""),
        tuple(dict.fromkeys(addresses)),
        spec.host_network is True,
        thing.metadata.uid or "",
        asked.pool or "",
        asked.addresses or "",  # read when it is attached: whoever asked wrongly is told there
    )


def _node(thing: Node, left_out: list[Invalid] | None) -> objects.Node:
    spec, status = thing.spec or NodeSpec(), thing.status or NodeStatus()
    single, several = ("spec.podCIDR", spec.pod_cidr), ("spec.podCIDRs", spec.pod_cidrs)
    ranges = read_either(single, several, one_per_family(read_prefix, _family_of_range), left_out)
    addresses = read_each("status.addresses", status.addresses, _internal, left_out)
    own = tuple(dict.fromkeys(each for each in addresses if each is not None))
    doomed = any(taint.key == _TO_BE_DELETED for taint in spec.taints or [])
    leaving = doomed or thing.metadata.deletion_timestamp is not None
    said = {it.type: it.status for it in status.conditions or ()}
    return objects.Node(
        tuple(ranges),
        own,
        read_labels(thing.metadata.labels),
        leaving,
        thing.metadata.uid or "",
        ready=said.get("Ready", "True") == "True",
        unavailable=said.get("NetworkUnavailable") == "True",
        cordoned=spec.unschedulable is True,
    )


_TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
"""The taint of a node that the cluster autoscaler is about to delete: load balancers should leave it (KEP-3836)."""


def _service_cidr(thing: ServiceCIDR, left_out: list[Invalid] | None) -> objects.ServiceCIDR:
    """In force until the object has gone: one that is being deleted may still be that of a Service (KEP-1880)."""
    prefixes = read_each("spec.cidrs", thing.spec.cidrs, one_per_family(read_prefix, _family_of_range), left_out)
    if not prefixes and not left_out:
        raise Invalid("spec.cidrs", "expected at least one address range")
    return objects.ServiceCIDR(tuple(prefixes))


def _family_of_range(prefix: Prefix) -> Family:
    return prefix.family


def _internal(given: NodeAddress) -> Address | None:
    """Other types may be names. No API server checks the text: one that is no address must not cost the node."""
    if given.type != "InternalIP":
        return None
    try:
        return read_at("address", given.address, read_unicast)
    except Invalid as wrong:
        raise wrong.dispensable() from None
