"""The fields of manifests that the lab reads, typed: the shape is checked once, at the door. Pure.

Invariants: null counts as absent, as the API server has it. Fields that nothing here reads are not listed, and may
hold anything.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from podwire.model.addresses import parse_address, show_address
from podwire.model.objects import Protocol
from podwire.sources.fields import Invalid, invalid

T = TypeVar("T", bound="Form")
Fields = Mapping[str, Any]
"""An object of the API as it was decoded."""


class Form(Struct, frozen=True, rename="camel"):
    pass


class Metadata(Form, frozen=True):
    name: str
    namespace: str | None = None
    labels: dict[str, str] | None = None


class Expression(Form, frozen=True):
    key: str
    operator: str
    values: list[str] | None = None


class Selector(Form, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class ContainerPort(Form, frozen=True):
    container_port: int
    name: str | None = None
    protocol: str | None = None
    host_port: int | None = None
    host_ip: str | None = field(default=None, name="hostIP")


class Container(Form, frozen=True):
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class PodSpec(Form, frozen=True):
    containers: list[Container]
    init_containers: list[Container] | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    host_network: bool | None = None


class Pod(Form, frozen=True):
    metadata: Metadata
    spec: PodSpec


class TemplateMetadata(Form, frozen=True):
    labels: dict[str, str] | None = None


class Template(Form, frozen=True):
    spec: PodSpec
    metadata: TemplateMetadata | None = None


class Ordinals(Form, frozen=True):
    start: int = 0


class WorkloadSpec(Form, frozen=True):
    template: Template
    selector: Selector | None = None
    replicas: int | None = None
    ordinals: Ordinals | None = None
    service_name: str | None = None


class Workload(Form, frozen=True):
    metadata: Metadata
    spec: WorkloadSpec


class ControllerSpec(Form, frozen=True):
    """The older ReplicationController's: its selector is labels alone, the template's own where it has none."""

    template: Template
    selector: dict[str, str] | None = None
    replicas: int | None = None


class Controller(Form, frozen=True):
    metadata: Metadata
    spec: ControllerSpec


class ServicePort(Form, frozen=True):
    port: int
    name: str | None = None
    protocol: str | None = None
    target_port: int | str | None = None
    node_port: int | None = None


class ServiceSpec(Form, frozen=True):
    type: str | None = None
    selector: dict[str, str] | None = None
    ports: list[ServicePort] | None = None
    ip_family_policy: str | None = None
    ip_families: list[str] | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = field(default=None, name="clusterIPs")
    external_ips: list[str] | None = field(default=None, name="externalIPs")
    external_traffic_policy: str | None = None
    allocate_load_balancer_node_ports: bool | None = None
    health_check_node_port: int | None = None
    publish_not_ready_addresses: bool | None = None
    external_name: str | None = None


class Service(Form, frozen=True):
    metadata: Metadata
    spec: ServiceSpec


def read(data: Fields, form: type[T]) -> T:
    """Raises Invalid."""
    try:
        return msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def protocol(name: str | None, path: str) -> Protocol:
    """TCP where nothing is said. Raises Invalid."""
    try:
        return Protocol[name or "TCP"]
    except KeyError:
        raise Invalid(path, f"expected TCP, UDP or SCTP, not {name!r}") from None


def address(text: str | None, path: str) -> str:
    """ "" where nothing is said. Raises Invalid."""
    if not text:
        return ""
    try:
        return show_address(parse_address(text))
    except ValueError:
        raise Invalid(path, f"expected an IP address, not {text!r}") from None


def port(number: int, path: str) -> int:
    """Raises Invalid."""
    if not 1 <= number <= 65535:
        raise Invalid(path, f"expected 1 to 65535, not {number}")
    return number
