"""Services as far as they ask for a load balancer's address, and the labels of their namespaces, to the model's values.

Invariants: as in `kubernetes.py`: pure, one direction, equal meaning gives equal values. What a Service asks for in
annotations is free text: where it can't be understood that is its request's (`unclear`), so that it keeps what it has.
MetalLB's annotations mean what ours do; where both are given, ours count.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import field

from podwire.model.addresses import Address, family_of
from podwire.model.balancers import Balanced, Labels, Leftover, Request
from podwire.model.objects import NamespaceKey, ServiceKey
from podwire.sources.fields import (
    Invalid,
    read_at,
    read_each,
    read_label,
    read_labels,
    read_name,
    read_protocol,
    read_unicast,
    shown,
)
from podwire.sources.kube_objects import ASSIGNED, Ingress, LabelMeta, ServiceSpec, Wire
from podwire.sources.kubernetes import HEADLESS, cluster_ips_of

CLASS = "podwire.io/podwire"
"""spec.loadBalancerClass of the Services that are ours."""
CONDITION = ASSIGNED
ASKED, POOL, SHARING, GIVES_UP = (
    "podwire.io/load-balancer-ips",
    "podwire.io/address-pool",
    "podwire.io/allow-shared-ip",
    "podwire.io/give-up-ips",
)
_ELSEWHERE = {
    ASKED: ("metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"),
    POOL: ("metallb.io/address-pool", "metallb.universe.tf/address-pool"),
    SHARING: ("metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"),
}
Read = TypeVar("Read")


# --- the API's forms ---------------------------------------------------------------------------


class NamespaceObject(Wire, frozen=True):
    metadata: LabelMeta


class BalancedMeta(Wire, frozen=True):
    name: str
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class BalancedSpec(ServiceSpec, frozen=True):
    load_balancer_class: str | None = None
    load_balancer_ip: str | None = field(default=None, name="loadBalancerIP")
    ip_family_policy: str | None = None
    selector: dict[str, str] | None = None


class BalancedIngress(Ingress, frozen=True):
    hostname: str | None = None


class BalancedStatusOf(Wire, frozen=True):
    ingress: list[BalancedIngress] | None = None


class ServiceCondition(Wire, frozen=True):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class BalancedStatus(Wire, frozen=True):
    load_balancer: BalancedStatusOf | None = None
    conditions: list[ServiceCondition] | None = None


class BalancedService(Wire, frozen=True):
    metadata: BalancedMeta
    spec: BalancedSpec
    status: BalancedStatus | None = None


# --- Namespace ---------------------------------------------------------------------------------


def read_namespace(thing: NamespaceObject) -> tuple[NamespaceKey, Labels]:
    """Raises Invalid."""
    return NamespaceKey(read_name(thing.metadata.name, "metadata.name")), read_labels(thing.metadata.labels)


# --- Service -----------------------------------------------------------------------------------


def service_key(namespace: str, name: str) -> ServiceKey:
    """Raises Invalid."""
    return ServiceKey(read_label(namespace or "default", "metadata.namespace"), read_name(name, "metadata.name"))


def read_service(thing: BalancedService, unclassed: bool) -> tuple[ServiceKey, Balanced | Leftover | None]:
    """None: we have nothing to do with it. `unclassed`: Services without a class are ours, too. Raises Invalid."""
    meta, spec, status = thing.metadata, thing.spec, thing.status or BalancedStatus()
    key = service_key(meta.namespace or "", meta.name)
    ours = spec.load_balancer_class == CLASS or (unclassed and not spec.load_balancer_class)
    texts = cluster_ips_of(spec)
    own = next((it for it in status.conditions or () if it.type == CONDITION), None)
    if spec.type != "LoadBalancer" or not ours or texts in ([], [HEADLESS]):
        return key, Leftover(meta.resource_version or "") if own is not None else None
    families = tuple(dict.fromkeys(family_of(it) for it in read_each("spec.clusterIPs", texts, read_unicast)))
    given = (status.load_balancer.ingress if status.load_balancer is not None else None) or []
    ingress = tuple((it.ip or it.hostname or "", it.ip_mode or "VIP") for it in given)
    annotations = meta.annotations or {}
    try:
        asked, unclear = _asked(annotations, spec.load_balancer_ip), ""
    except Invalid as error:
        asked, unclear = (), str(error)
    request = Request(
        families,
        frozenset((read_protocol(port.protocol), port.port) for port in spec.ports or ()),
        spec.ip_family_policy == "RequireDualStack",
        asked,
        _annotated(annotations, POOL),
        _annotated(annotations, SHARING),
        _backends(key, spec),
        read_labels(meta.labels),
        tuple(it for it in map(_held, given) if it is not None),
        _given_up(annotations),
        meta.creation_timestamp or "",
        unclear,
    )
    condition = (own.status, own.reason, own.message) if own is not None else None
    version, uid, generation = meta.resource_version or "", meta.uid or "", meta.generation or 0
    return key, Balanced(request, version, uid, generation, ingress, condition)


def _annotated(annotations: Mapping[str, str], name: str) -> str:
    names = (name, *_ELSEWHERE.get(name, ()))
    return next((text.strip() for it in names if (text := annotations.get(it, "")).strip()), "")


def _asked(annotations: Mapping[str, str], field_: str | None) -> tuple[Address, ...]:
    """Raises Invalid."""
    texts = [it.strip() for it in _annotated(annotations, ASKED).split(",") if it.strip()]
    path = f"metadata.annotations[{ASKED}]"
    if texts and field_:
        raise Invalid(path, "expected this or spec.loadBalancerIP, not both")
    found = read_each(path, texts, read_unicast)
    if field_:
        found = [read_at("spec.loadBalancerIP", field_, read_unicast)]
    if len({len(it) for it in found}) != len(found):
        raise Invalid(path, f"expected one address of a family at most, not {shown(', '.join(texts))}")
    return tuple(sorted(found, key=len))


def _given_up(annotations: Mapping[str, str]) -> tuple[Address, ...]:
    """What can't be read is no address that it has."""
    found = (_or_none(read_unicast, it.strip()) for it in annotations.get(GIVES_UP, "").split(","))
    return tuple(sorted({it for it in found if it is not None}))


def _held(given: BalancedIngress) -> Address | None:
    """None: a name, or what is no address that anybody can have."""
    return _or_none(read_unicast, given.ip) if given.ip else None


def _or_none(read: Callable[[str], Read], text: str) -> Read | None:
    try:
        return read(text)
    except Invalid:
        return None


def _backends(key: ServiceKey, spec: BalancedSpec) -> str:
    """What tells whose pods answer where the policy is Local; one without a selector has its own."""
    if spec.external_traffic_policy != "Local":
        return ""
    selector = ",".join(f"{name}={value}" for name, value in sorted((spec.selector or {}).items()))
    return selector or str(key)
