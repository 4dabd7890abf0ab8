"""What Kubernetes objects mean to the network, and which error each wrong field gives."""

import contextlib
import ipaddress
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.model.addresses import parse_address, parse_prefix, show_address
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Hints,
    Member,
    Namespace,
    NamespaceKey,
    Node,
    NodeKey,
    Pod,
    PodKey,
    Protocol,
    Service,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.sources import kube_objects
from podwire.sources.fields import Invalid
from podwire.sources.kinds import KINDS
from podwire.sources.kubernetes import key_of, translate

TCP, UDP, SCTP = Protocol.TCP, Protocol.UDP, Protocol.SCTP
FOUR, OTHER, SIX = parse_address("10.0.0.1"), parse_address("10.0.0.2"), parse_address("fd00::1")
HTTP = {"name": "http", "port": 80}
OWNED = {"kubernetes.io/service-name": "web"}


def service(spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", **metadata}, "spec": spec}


def slice_(endpoints: Any = None, ports: Any = None, address_type: str = "IPv4", **metadata: Any) -> dict[str, Any]:
    metadata = {"name": "web-1", "labels": OWNED, **metadata}
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata}
    return {**kind, "addressType": address_type, "ports": ports, "endpoints": endpoints}


def pod(spec: Any, status: Any = None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": status}


def node(spec: Any = None, status: Any = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", **metadata}, "spec": spec, "status": status}


def service_cidr(ranges: Any) -> dict[str, Any]:
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}}
    return {**kind, "spec": {"cidrs": ranges}}


# --- Service -----------------------------------------------------------------------------------

PORTS = (ServicePort("http", TCP, 80),)
DUAL = {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd96::1"]}


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param(
            {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]},
            Service((ServicePort("", TCP, 80),), (FOUR,)),
            id="clusterIP alone, a port without name and protocol",
        ),
        pytest.param(
            {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ports": [HTTP]},
            Service(PORTS, (FOUR, SIX)),
            id="clusterIPs, the first of which clusterIP repeats",
        ),
        pytest.param({"clusterIP": "None", "ports": [HTTP]}, Service(()), id="headless by clusterIP"),
        pytest.param(
            {"clusterIPs": ["None"], "externalIPs": ["10.0.0.2"]},
            Service(()),
            id="headless: no ports needed, and no external address served",
        ),
        pytest.param({"ports": [HTTP]}, Service(PORTS), id="no address yet"),
        pytest.param({"clusterIP": "", "clusterIPs": None, "ports": [HTTP]}, Service(PORTS), id="empty and null"),
        pytest.param(
            {"type": "ExternalName", "externalName": "example.com", "ports": [HTTP], "externalIPs": ["10.0.0.2"]},
            Service(()),
            id="ExternalName: nothing is served",
        ),
        pytest.param(
            {
                "type": "NodePort",
                "clusterIP": "10.0.0.1",
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053},
                    {"name": "s", "port": 9, "protocol": "SCTP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "nodePort": 30053},
                    {"name": "http", "port": 8},
                ],
            },
            Service(
                (
                    ServicePort("http", TCP, 8),
                    ServicePort("dns-tcp", TCP, 53, 30053),
                    ServicePort("dns", UDP, 53, 30053),
                    ServicePort("s", SCTP, 9),
                ),
                (FOUR,),
            ),
            id="ports sorted by protocol and number; one number of two protocols",
        ),
        pytest.param(
            {**DUAL, "ports": [HTTP], "externalIPs": ["fd00::1", "10.0.0.2", "10.0.0.2"]},
            Service(PORTS, (FOUR, parse_address("fd96::1")), (OTHER, SIX)),
            id="externalIPs sorted, each once",
        ),
        pytest.param(
            {"clusterIP": "10.0.0.1", "ports": [HTTP], "externalIPs": ["fd00::1", "10.0.0.2"]},
            Service(PORTS, (FOUR,), (OTHER,)),
            id="externalIPs of a family that it has",
        ),
        pytest.param(
            {"clusterIP": "::ffff:10.0.0.1", "ports": [HTTP]},
            Service(PORTS, (FOUR,)),
            id="an IPv4-mapped address is the IPv4 address",
        ),
    ],
)
def test_service(spec: Any, value: Service) -> None:
    assert translate(service(spec)) == (ServiceKey("default", "web"), value, "")


def test_service_namespace_and_age() -> None:
    key, value, _ = translate(service({"ports": [HTTP]}, namespace="a", creationTimestamp="2024-05-01T12:00:00Z"))
    assert (key, value) == (ServiceKey("a", "web"), Service(PORTS, created="2024-05-01T12:00:00Z"))


LEFT_OVER: dict[str, dict[str, Any]] = {
    "node port": {"ports": [{**HTTP, "nodePort": 30080}]},
    "ports without names": {"ports": [{"port": 80}, {"port": 81}]},
    "one port twice": {"ports": [HTTP, {"name": "b", "port": 80}]},
    "no ports": {"ports": []},
    "protocol of another proxy": {"ports": [{**HTTP, "protocol": "QUIC"}]},
    "external IP that nobody can have": {"ports": [HTTP], "externalIPs": ["127.0.0.1"]},
    "external IP that is none": {"ports": [HTTP], "externalIPs": ["x"]},
}
UNSERVED: dict[str, tuple[dict[str, Any], Service | None]] = {
    "ExternalName": (service({"type": "ExternalName", "externalName": "example.com"}), Service(())),
    "ExternalName that was headless": (service({"type": "ExternalName", "clusterIP": "None"}), Service(())),
    "headless": (service({"clusterIP": "None", "clusterIPs": ["None"]}), Service(())),
    "another proxy's": (service({}, labels={"service.kubernetes.io/service-proxy-name": "other"}), None),
    "headless by label": (service({}, labels={"service.kubernetes.io/headless": ""}), None),
}


@pytest.mark.parametrize("left_over", LEFT_OVER)
@pytest.mark.parametrize("kind", UNSERVED)
def test_what_no_proxy_serves_is_read_whatever_stands_in_what_would_be_served(kind: str, left_over: str) -> None:
    thing, value = UNSERVED[kind]
    left_out: list[Invalid] = []
    changed = {**thing, "spec": {**LEFT_OVER[left_over], **thing["spec"]}}
    assert translate(changed, left_out)[:2] == (ServiceKey("default", "web"), value)
    assert translate(changed) == translate(thing)
    assert not left_out


@pytest.mark.parametrize(
    "labels", [{}, {**OWNED, "service.kubernetes.io/service-proxy-name": "other"}], ids=["nobody's", "another proxy's"]
)
def test_a_slice_for_no_service_of_ours_is_ignored_whatever_it_lists(labels: dict[str, str]) -> None:
    left_out: list[Invalid] = []
    endpoints = [{"addresses": [text]} for text in ("x", "127.0.0.1", "fd00::1")]
    assert translate(slice_(endpoints, [HTTP, HTTP], labels=labels), left_out).value is None
    assert not left_out


@pytest.mark.parametrize("label", ["service-proxy-name", "headless"])
@pytest.mark.parametrize(
    "make", [lambda labels: service({"ports": [HTTP]}, labels=labels), lambda labels: slice_(labels=labels)]
)
def test_what_a_label_keeps_from_proxies_is_ignored(label: str, make: Any) -> None:
    _, value, ignored = translate(make({**OWNED, f"service.kubernetes.io/{label}": ""}))
    assert value is None
    assert label in ignored


SERVICE_ERRORS = [
    ({"ports": [{"port": 0}]}, "spec.ports[0].port", "expected 1 to 65535, not 0"),
    ({"ports": [HTTP, {"name": "b", "port": 65536}]}, "spec.ports[1].port", "expected 1 to 65535, not 65536"),
    ({"ports": [{"port": 1 << 80_000}]}, "spec.ports[0].port", "not a number of more than 64 bits"),
    ({"ports": [{"port": "80"}]}, "spec.ports[0].port", "expected a whole number, not text"),
    ({"ports": [{"port": True}]}, "spec.ports[0].port", "expected a whole number, not true or false"),
    ({"ports": [{"name": "a"}]}, "spec.ports[0].port", "missing"),
    ({"ports": [{**HTTP, "protocol": "tcp"}]}, "spec.ports[0].protocol", "expected TCP, UDP or SCTP, not 'tcp'"),
    ({"ports": [{"name": "A_b", "port": 1}]}, "spec.ports[0].name", "expected at most 63 of a-z, 0-9 and -"),
    ({"ports": [HTTP, {"port": 81}]}, "spec.ports[1].name", "missing: each of several ports needs its own"),
    ({"ports": [HTTP, {"name": "http", "port": 81}]}, "spec.ports[1].name", "http is already that of spec.ports[0]"),
    ({"ports": [HTTP, {"name": "b", "port": 80}]}, "spec.ports[1].port", "80/TCP is already that of spec.ports[0]"),
    ({"ports": [{**HTTP, "nodePort": 70000}]}, "spec.ports[0].nodePort", "expected 1 to 65535, not 70000"),
    ({"ports": [{**HTTP, "nodePort": 30000}]}, "spec.ports[0].nodePort", "expected type NodePort or LoadBalancer"),
    (
        {"type": "NodePort", "ports": [{**HTTP, "nodePort": 3}, {"name": "b", "port": 8, "nodePort": 3}]},
        "spec.ports[1].nodePort",
        "3/TCP is already that of spec.ports[0]",
    ),
    ({"ports": []}, "spec.ports", "expected at least one port"),
    ({"ports": {}}, "spec.ports", "expected a list, not a mapping"),
    ({"ports": [None]}, "spec.ports[0]", "expected a mapping, not null"),
    ({"type": "Cluster", "ports": [HTTP]}, "spec.type", "expected one of ClusterIP, NodePort"),
    ({"clusterIP": "10.0.0.256", "ports": [HTTP]}, "spec.clusterIP", "expected an IP address, not '10.0.0.256'"),
    ({"clusterIPs": ["10.0.0.1", "x"], "ports": [HTTP]}, "spec.clusterIPs[1]", "expected an IP address, not 'x'"),
    ({"clusterIPs": ["10.0.0.1", "10.0.0.2"], "ports": [HTTP]}, "spec.clusterIPs[1]", "at most one of each family"),
    ({"clusterIPs": ["10.0.0.1", "None"], "ports": [HTTP]}, "spec.clusterIPs[1]", "expected an IP address"),
    (
        {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"], "ports": [HTTP]},
        "spec.clusterIP",
        "expected the same as spec.clusterIPs[0], '10.0.0.2', not '10.0.0.1'",
    ),
    ({"externalIPs": ["10.0.0.1/32"], "ports": [HTTP]}, "spec.externalIPs[0]", "expected an IP address"),
]


@pytest.mark.parametrize(
    ("spec", "field", "message"), SERVICE_ERRORS, ids=[f"{e[1]} {e[2][:30]}" for e in SERVICE_ERRORS]
)
def test_wrong_service(spec: Any, field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        translate(service(spec))
    assert caught.value.field == field
    assert message in caught.value.message
    assert str(caught.value) == f"{caught.value.field}: {caught.value.message}"


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        pytest.param({"metadata": {}}, "metadata.name", "missing", id="no name"),
        pytest.param({"metadata": {"name": ""}}, "metadata.name", "expected at most 253", id="empty name"),
        pytest.param({"metadata": {"name": "A"}}, "metadata.name", "not 'A'", id="capital name"),
        pytest.param({"metadata": {"name": "a" * 300}}, "metadata.name", "expected at most 253", id="long name"),
        pytest.param({"metadata": {"name": "a\n"}}, "metadata.name", "expected at most 253", id="a newline in a name"),
        pytest.param(
            {"metadata": {"name": "a", "namespace": "a.b"}}, "metadata.namespace", "at most 63", id="namespace"
        ),
        pytest.param({"metadata": {"name": "a", "labels": []}}, "metadata.labels", "expected a mapping", id="labels"),
        pytest.param(
            {"metadata": {"name": "a", "creationTimestamp": "2024-05-01"}},
            "metadata.creationTimestamp",
            "expected the form 2006-01-02T15:04:05Z, not '2024-05-01'",
            id="time",
        ),
        pytest.param({"spec": None}, "spec", "expected a mapping, not null", id="no spec"),
        pytest.param({"kind": "Deployment"}, "kind", "not 'v1' 'Deployment'", id="unknown kind"),
        pytest.param({"kind": []}, "kind", "not 'v1' []", id="kind of a wrong type"),
    ],
)
def test_wrong_object(change: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        translate({**service({"ports": [HTTP]}), **change})
    assert caught.value.field == field
    assert message in caught.value.message


# --- EndpointSlice -----------------------------------------------------------------------------


def members_of(*endpoints: Any, address_type: str = "IPv4") -> tuple[Member, ...]:
    _, value, _ = translate(slice_(list(endpoints), address_type=address_type))
    assert isinstance(value, BackendSlice)
    return value.members


def test_slice() -> None:
    full = {
        "addresses": ["10.0.0.1", "10.0.0.9"],
        "nodeName": "n1",
        "zone": "z1",
        "targetRef": {"kind": "Pod", "name": "web-a", "namespace": "a"},
        "hints": {"forZones": [{"name": "z1"}]},
    }
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    assert translate(slice_([full], ports, namespace="a")) == (
        SliceKey("a", "web-1"),
        BackendSlice(
            ServiceKey("a", "web"),
            (BackendPort("dns", UDP, 53), BackendPort("http", TCP, 8080)),
            (Member(FOUR, node="n1", zone="z1", pod="a/web-a", hints=Hints(("z1",))),),
        ),
        "",
    )


@pytest.mark.parametrize(
    ("conditions", "ready", "serving", "terminating"),
    [
        pytest.param(None, True, True, False, id="none: ready"),
        pytest.param({}, True, True, False, id="all unknown: ready"),
        pytest.param({"ready": None, "serving": None, "terminating": None}, True, True, False, id="null: ready"),
        pytest.param({"ready": False}, False, True, False, id="serving, where nothing else is said"),
        pytest.param({"ready": False, "terminating": True}, False, True, True, id="serves its last, unless it says no"),
        pytest.param({"ready": False, "serving": True, "terminating": True}, False, True, True, id="serves its last"),
        pytest.param({"serving": False}, True, False, False, id="serving said on its own"),
    ],
)
def test_conditions(conditions: Any, ready: bool, serving: bool, terminating: bool) -> None:
    (member,) = members_of({"addresses": ["10.0.0.1"], "conditions": conditions})
    assert (member.ready, member.serving, member.terminating) == (ready, serving, terminating)


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        pytest.param({"kind": "Pod", "name": "a"}, PodKey("default", "a"), id="the slice's namespace"),
        pytest.param({"kind": "Pod"}, None, id="no name"),
        pytest.param({"kind": "Node", "name": "a"}, None, id="not a pod"),
        pytest.param(None, None, id="null"),
    ],
)
def test_target(reference: Any, target: PodKey | None) -> None:
    (member,) = members_of({"addresses": ["10.0.0.1"], "targetRef": reference})
    assert member.target == target


def test_members_are_sorted_and_each_is_there_once() -> None:
    one, other, same = ({"addresses": [text]} for text in ("10.0.0.1", "10.0.0.2", "10.0.0.1"))
    elsewhere = {**one, "nodeName": "n2"}
    assert members_of(other, one, same) == (Member(FOUR), Member(OTHER))
    assert members_of(elsewhere, other, one, same) == members_of(one, elsewhere, other)
    assert len(members_of(one, elsewhere)) == 2


@pytest.mark.parametrize(
    ("ports", "value"),
    [
        pytest.param(None, (), id="null"),
        pytest.param([{"port": 80}], (BackendPort("", TCP, 80),), id="without name and protocol"),
        pytest.param([{"name": "all"}, HTTP], (BackendPort("http", TCP, 80),), id="a port for all ports is left out"),
        pytest.param(
            [{"name": "b", "port": 80}, {"name": "a", "port": 80}],
            (BackendPort("a", TCP, 80), BackendPort("b", TCP, 80)),
            id="sorted by name; one number under two names",
        ),
    ],
)
def test_slice_ports(ports: Any, value: tuple[BackendPort, ...]) -> None:
    _, translated, _ = translate(slice_([], ports))
    assert isinstance(translated, BackendSlice)
    assert translated.ports == value


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        pytest.param(slice_(labels=None), "belongs to no Service", id="no labels"),
        pytest.param(slice_(labels={"a": "b"}), "belongs to no Service", id="no owner"),
        pytest.param(slice_([{"addresses": ["example.com"]}], address_type="FQDN"), "names", id="FQDN"),
    ],
)
def test_ignored_slices(thing: dict[str, Any], reason: str) -> None:
    key, value, ignored = translate(thing)
    assert (key, value) == (SliceKey("default", "web-1"), None)
    assert reason in ignored


@pytest.mark.parametrize(
    ("thing", "field", "message"),
    [
        pytest.param(slice_(address_type="ipv4"), "addressType", "expected IPv4, IPv6 or FQDN", id="address type"),
        pytest.param(slice_([{"addresses": []}]), "endpoints[0].addresses", "at least one", id="no address"),
        pytest.param(slice_([{}]), "endpoints[0].addresses", "missing", id="addresses missing"),
        pytest.param(
            slice_([{"addresses": ["10.0.0.1"]}, {"addresses": ["fd00::1"]}]),
            "endpoints[1].addresses[0]",
            "expected an IPv4 address, not 'fd00::1'",
            id="IPv6 among IPv4",
        ),
        pytest.param(
            slice_([{"addresses": ["10.0.0.1"]}], address_type="IPv6"),
            "endpoints[0].addresses[0]",
            "expected an IPv6 address, not '10.0.0.1'",
            id="IPv4 among IPv6",
        ),
        pytest.param(
            slice_([{"addresses": ["10.0.0.1", "x"]}]), "endpoints[0].addresses[1]", "IP address", id="a second address"
        ),
        pytest.param(slice_([], [{"port": -1}]), "ports[0].port", "expected 1 to 65535", id="port"),
        pytest.param(slice_([], [HTTP, HTTP]), "ports[1].name", "http is already that of ports[0]", id="name twice"),
        pytest.param(slice_([], [{"port": 1}, {"port": 2}]), "ports[1].name", "the empty name", id="no name twice"),
        pytest.param(
            slice_([{"addresses": ["10.0.0.1"], "conditions": {"ready": "yes"}}]),
            "endpoints[0].conditions.ready",
            "expected true or false, not text",
            id="condition",
        ),
    ],
)
def test_wrong_slice(thing: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        translate(thing)
    assert caught.value.field == field
    assert message in caught.value.message


SPECIAL = {
    "0.0.0.0": "unspecified",
    "127.9.9.9": "loopback",
    "169.254.1.1": "link-local",
    "224.0.0.7": "multicast",
    "239.255.255.255": "multicast",
    "255.255.255.255": "broadcast",
    "::": "unspecified",
    "::1": "loopback",
    "fe80::1": "link-local",
    "febf::1": "link-local",
    "ff02::5": "multicast",
    "ff0e::1": "multicast",
}
FIT = {4: "10.0.0.9", 6: "fd00::9"}
Place = Callable[[list[str], int], dict[str, Any]]
PLACES: dict[str, tuple[Place, str]] = {
    "cluster IP": (lambda ips, _: service({"clusterIPs": ips[:1], "ports": [HTTP]}), "spec.clusterIPs[0]"),
    "single cluster IP": (lambda ips, _: service({"clusterIP": ips[0], "ports": [HTTP]}), "spec.clusterIP"),
    "external IP": (
        lambda ips, _: service({**DUAL, "ports": [HTTP], "externalIPs": ips}),
        "spec.externalIPs[0]",
    ),
    "load balancer's address": (
        lambda ips, _: {
            **service({"type": "LoadBalancer", **DUAL, "ports": [HTTP]}),
            "status": {"loadBalancer": {"ingress": [{"ip": ip} for ip in ips]}},
        },
        "status.loadBalancer.ingress[0].ip",
    ),
    "backend": (
        lambda ips, version: slice_([{"addresses": [ip]} for ip in ips], address_type=f"IPv{version}"),
        "endpoints[0].addresses[0]",
    ),
    "address of a node": (
        lambda ips, _: node({}, {"addresses": [{"type": "InternalIP", "address": ip} for ip in ips]}),
        "status.addresses[0].address",
    ),
}


def _addresses(value: Any) -> list[str]:
    match value:
        case Service():
            return [show_address(address) for address in (*value.external_ips, *value.balancer_ips, *value.cluster_ips)]
        case Node():
            return [show_address(address) for address in value.addresses]
    return [show_address(member.address) for member in value.members]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("text", SPECIAL)
def test_an_address_that_no_host_can_have_is_an_error_and_left_out_of_what_the_api_says(text: str, where: str) -> None:
    version = 6 if ":" in text else 4
    make, field = PLACES[where]
    thing = make([text, FIT[version]], version)
    with pytest.raises(Invalid) as caught:
        translate(thing)
    assert caught.value.field == field
    assert caught.value.message == f"expected an address that a host can have, not {text!r}, which is {SPECIAL[text]}"
    left_out: list[Invalid] = []
    _, value, _ = translate(thing, left_out)
    assert [str(each) for each in left_out] == [str(caught.value)]
    rest = {"cluster IP": [], "single cluster IP": [], "external IP": [FIT[version], *DUAL["clusterIPs"]]}
    rest["load balancer's address"] = rest["external IP"]
    assert _addresses(value) == rest.get(where, [FIT[version]])


@pytest.mark.parametrize(
    ("thing", "left", "field"),
    [
        pytest.param(
            {
                **service({"type": "LoadBalancer", "ports": [HTTP]}),
                "status": {
                    "loadBalancer": {
                        "ingress": [
                            {"ip": "192.0.2.1", "ipMode": "Proxy"},
                            {"hostname": "a.example"},
                            {"ip": "127.0.0.1"},
                            {"ip": "x"},
                        ]
                    }
                },
            },
            ["status.loadBalancer.ingress[2].ip"],
            "status.loadBalancer.ingress[3].ip",
            id="load balancer's addresses after one that is rewritten and a name",
        ),
        pytest.param(
            service({"clusterIPs": ["127.0.0.1", "10.0.0.1", "10.0.0.2"], "ports": [HTTP]}),
            ["spec.clusterIPs[0]"],
            "spec.clusterIPs[2]",
            id="a cluster IP of the same family after one that is left out",
        ),
        pytest.param(
            node({"podCIDRs": ["ff00::/64", "10.1.0.0/24", "127.0.0.0/8", "10.2.0.0/24"]}),
            ["spec.podCIDRs[0]", "spec.podCIDRs[2]"],
            "spec.podCIDRs[3]",
            id="a pod range of the same family after two that are left out",
        ),
        pytest.param(
            service_cidr(["127.0.0.0/8", "fd00::/112", "fd01::/112"]),
            ["spec.cidrs[0]"],
            "spec.cidrs[2]",
            id="a service range of the same family after one that is left out",
        ),
        pytest.param(
            node({}, {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "::1"}]}),
            ["status.addresses[1].address"],
            None,
            id="a node's address after one of another type",
        ),
        pytest.param(
            pod({}, {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "x"}]}), [], "status.podIPs[1].ip", id="a pod's address"
        ),
    ],
)
def test_an_error_names_the_place_in_the_object_whatever_before_it_counts(
    thing: dict[str, Any], left: list[str], field: str | None
) -> None:
    left_out: list[Invalid] = []
    wrong = None
    try:
        translate(thing, left_out)
    except Invalid as error:
        wrong = error.field
    assert ([each.field for each in left_out], wrong) == (left, field)


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("0.0.0.0/0", "unspecified addresses (0.0.0.0/32)"),
        ("127.0.0.0/8", "loopback addresses (127.0.0.0/8)"),
        ("127.1.0.0/16", "loopback addresses (127.0.0.0/8)"),
        ("169.254.1.0/24", "link-local addresses (169.254.0.0/16)"),
        ("128.0.0.0/1", "link-local addresses (169.254.0.0/16)"),
        ("224.0.0.0/4", "multicast addresses (224.0.0.0/4)"),
        ("255.255.255.0/24", "broadcast addresses (255.255.255.255/32)"),
        ("::/0", "unspecified addresses (::/128)"),
        ("::1/128", "loopback addresses (::1/128)"),
        ("fe80::/64", "link-local addresses (fe80::/10)"),
        ("ff02::/64", "multicast addresses (ff00::/8)"),
        ("::ffff:10.1.1.0/120", "IPv4-mapped addresses (::ffff:0.0.0.0/96)"),
    ],
)
@pytest.mark.parametrize("field", ["spec.podCIDRs[0]", "spec.cidrs[0]"])
def test_a_range_of_such_addresses_too(text: str, others: str, field: str) -> None:
    fit = "10.1.0.0/24" if ":" in text else "fd01::/64"
    thing = node({"podCIDRs": [text, fit]}) if field.startswith("spec.pod") else service_cidr([text, fit])
    with pytest.raises(Invalid) as caught:
        translate(thing)
    assert (caught.value.field, caught.value.message) == (field, f"expected a range without {others}, not {text!r}")
    left_out: list[Invalid] = []
    _, value, _ = translate(thing, left_out)
    assert [str(each) for each in left_out] == [str(caught.value)]
    assert value in (Node((parse_prefix(fit),)), ServiceCIDR((parse_prefix(fit),)))


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.1",
        "126.0.0.1",
        "128.0.0.1",
        "169.253.1.1",
        "223.255.255.255",
        "240.0.0.1",
        "255.255.255.254",
        "::2",
        "fe7f::1",
        "fec0::1",
        "fdff::1",
        "64:ff9b::1",
    ],
)
def test_addresses_next_to_special_ones_serve(text: str) -> None:
    (member,) = members_of({"addresses": [text]}, address_type="IPv6" if ":" in text else "IPv4")
    assert member.address == parse_address(text)


def test_an_ipv4_mapped_address_is_judged_as_the_ipv4_address() -> None:
    with pytest.raises(Invalid, match="which is loopback"):
        translate(service({"clusterIP": "::ffff:127.0.0.1", "ports": [HTTP]}))


# --- addresses as older API servers have stored them -------------------------------------------

STORED: dict[str, Callable[[str], dict[str, Any]]] = {
    "clusterIP": lambda ip: service({"clusterIP": ip, "ports": [HTTP]}),
    "clusterIPs": lambda ip: service({"clusterIP": ip, "clusterIPs": [ip], "ports": [HTTP]}),
    "externalIPs": lambda ip: service({**DUAL, "ports": [HTTP], "externalIPs": [ip]}),
    "ingress": lambda ip: PLACES["load balancer's address"][0]([ip], 4),
    "endpoints": lambda ip: PLACES["backend"][0]([ip], 6 if ":" in ip else 4),
    "InternalIP": lambda ip: PLACES["address of a node"][0]([ip], 4),
    "podIP": lambda ip: pod({}, {"podIP": ip}),
    "podIPs": lambda ip: pod({}, {"podIP": ip, "podIPs": [{"ip": ip}]}),
}
STORED_RANGES: dict[str, Callable[[str], dict[str, Any]]] = {
    "podCIDR": lambda range_: node({"podCIDR": range_}),
    "podCIDRs": lambda range_: node({"podCIDR": range_, "podCIDRs": [range_]}),
    "cidrs": lambda range_: service_cidr([range_]),
    "loadBalancerSourceRanges": lambda range_: service(
        {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [HTTP], "loadBalancerSourceRanges": [range_]}
    ),
}


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("192.0.2.010", "192.0.2.10"),
        ("010.001.01.02", "10.1.1.2"),
        ("10.0.00.000008", "10.0.0.8"),
        ("2001:0db8::00001:000010", "2001:db8::1:10"),
        ("64:ff9b::010.1.1.02", "64:ff9b::a01:102"),
    ],
)
@pytest.mark.parametrize("field", STORED)
def test_leading_zeros_change_no_address(field: str, text: str, plain: str) -> None:
    assert translate(STORED[field](text)) == translate(STORED[field](plain))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("010.0.0.0/8", "10.0.0.0/8"),
        ("10.01.1.0/024", "10.1.1.0/24"),
        ("10.1.1.7/24", "10.1.1.0/24"),
        ("10.1.255.255/17", "10.1.128.0/17"),
        ("fd01:0000:00000::0007/064", "fd01::/64"),
        ("2001:db8:ffff::1/33", "2001:db8:8000::/33"),
    ],
)
@pytest.mark.parametrize("field", STORED_RANGES)
def test_leading_zeros_and_host_bits_change_no_range(field: str, text: str, plain: str) -> None:
    assert translate(STORED_RANGES[field](text)) == translate(STORED_RANGES[field](plain))


def _with_zeros(text: str, zeros: list[int]) -> str:
    """That many before each number; the empty group of `::` stays empty."""
    separator = ":" if ":" in text else "."
    numbers = zip(text.split(separator), zeros, strict=False)
    return separator.join("0" * count + number if number else "" for number, count in numbers)


ZEROS = st.lists(st.integers(0, 5), min_size=9, max_size=9)


@settings(deadline=None)
@given(st.ip_addresses(), ZEROS, st.sampled_from(sorted(STORED)))
def test_whatever_zeros_lead_the_numbers_it_is_the_same_address(address: Any, zeros: list[int], field: str) -> None:
    plain, stored = str(address), _with_zeros(str(address), zeros)
    assert translate(STORED[field](stored), []) == translate(STORED[field](plain), [])


@settings(deadline=None)
@given(st.ip_addresses(), st.integers(0, 128), ZEROS)
def test_whatever_zeros_and_host_bits_it_is_the_network_around(address: Any, length: int, zeros: list[int]) -> None:
    length = min(length, address.max_prefixlen)
    network = ipaddress.ip_network((address, length), strict=False)
    value = translate(STORED_RANGES["loadBalancerSourceRanges"](f"{_with_zeros(str(address), zeros)}/{length}")).value
    assert isinstance(value, Service)
    assert value.source_ranges == (parse_prefix(str(network)),)


@pytest.mark.parametrize(
    "text",
    ["010", "10.1.1", "10.1.1.0256", "10.1.1.1.01", "10.1.1.0x1", "0x0a.1.1.1", "10.1.1.0a", "10..1.01", "::01::"],
)
@pytest.mark.parametrize("field", ["externalIPs", "podIP", "InternalIP"])
def test_what_is_no_address_stays_none_whatever_its_zeros(field: str, text: str) -> None:
    with pytest.raises(Invalid, match="expected an IP address"):
        translate(STORED[field](text))


@pytest.mark.parametrize(
    ("addresses", "field"),
    [
        pytest.param(["10.1.1.256"], "addresses[0]", id="no address"),
        pytest.param(["web.example"], "addresses[0]", id="a name"),
        pytest.param(["fd00::1"], "addresses[0]", id="another family's"),
        pytest.param(["10.0.0.1", "x"], "addresses[1]", id="a second one that is none"),
        pytest.param([], "addresses", id="none at all"),
    ],
)
def test_a_member_that_can_t_be_read_is_left_out_alone(addresses: list[str], field: str) -> None:
    left_out: list[Invalid] = []
    value = translate(slice_([{"addresses": addresses}, {"addresses": ["10.0.0.2"]}]), left_out).value
    assert isinstance(value, BackendSlice)
    assert value.members == (Member(OTHER),)
    assert [each.field for each in left_out] == [f"endpoints[0].{field}"]


def test_a_node_s_address_that_can_t_be_read_is_left_out_alone() -> None:
    left_out: list[Invalid] = []
    thing = STORED["InternalIP"]("n.example")
    thing["status"]["addresses"].append({"type": "InternalIP", "address": "10.0.0.1"})
    assert translate(thing, left_out).value == Node((), (FOUR,))
    assert [each.field for each in left_out] == ["status.addresses[0].address"]


# --- Pod, Node, Namespace ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "status", "value"),
    [
        pytest.param({}, None, Pod(), id="not scheduled"),
        pytest.param(
            {"nodeName": "n"},
            {"podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]},
            Pod("n", (SIX, FOUR)),
            id="the primary address stays first",
        ),
        pytest.param({"hostNetwork": True}, {"podIP": "10.0.0.1"}, Pod("", (FOUR,), True), id="podIP, host network"),
        pytest.param(
            {"nodeName": "n"},
            {"phase": "Succeeded", "podIP": "10.0.0.1"},
            Pod("n"),
            id="the address of a pod that has ended may be another's",
        ),
    ],
)
def test_pod(spec: Any, status: Any, value: Pod) -> None:
    assert translate(pod(spec, status)) == (PodKey("default", "p"), value, "")


@pytest.mark.parametrize(
    ("phase", "asked"),
    [("Pending", ("web", "10.1.3.4, fd00::4")), ("Running", ("web", "10.1.3.4, fd00::4")), ("Succeeded", ("", ""))],
)
def test_what_a_pod_asks_for_stays_as_it_stands_until_it_has_ended(phase: str, asked: tuple[str, str]) -> None:
    """What is wrong with it is told when it is attached."""
    annotations = {"podwire.io/pool": "web", "podwire.io/addresses": "10.1.3.4, fd00::4", "other": "x"}
    thing = pod({"nodeName": "n"}, {"phase": phase})
    thing["metadata"] |= {"uid": "u", "annotations": annotations}
    assert translate(thing).value == Pod("n", uid="u", pool=asked[0], fixed=asked[1])


def test_a_namespace_asks_for_its_pods() -> None:
    thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"a": "b"}}}
    assert translate(thing).value == Namespace((("a", "b"),))
    thing["metadata"]["annotations"] = {"podwire.io/pool": "web", "podwire.io/addresses": "10.1.3.4"}  # type: ignore[index]
    assert translate(thing).value == Namespace((("a", "b"),), "web")


@pytest.mark.parametrize(
    ("spec", "status", "value"),
    [
        pytest.param(None, None, Node(), id="nothing known"),
        pytest.param({"podCIDR": "10.1.0.0/24"}, None, Node((parse_prefix("10.1.0.0/24"),)), id="podCIDR alone"),
        pytest.param(
            {"podCIDR": "fd00::/64", "podCIDRs": ["fd00::/64", "10.1.0.0/24"]},
            None,
            Node((parse_prefix("fd00::/64"), parse_prefix("10.1.0.0/24"))),
            id="podCIDRs, the primary family first",
        ),
        pytest.param(
            {},
            {
                "addresses": [
                    {"type": "Hostname", "address": "n.example"},
                    {"type": "InternalIP", "address": "10.0.0.2"},
                    {"type": "ExternalIP", "address": "192.0.2.1"},
                    {"type": "InternalIP", "address": "10.0.0.1"},
                    {"type": "InternalIP", "address": "10.0.0.2"},
                ]
            },
            Node((), (OTHER, FOUR)),
            id="InternalIPs in their order, each once",
        ),
    ],
)
def test_node(spec: Any, status: Any, value: Node) -> None:
    assert translate(node(spec, status)) == (NodeKey("n"), value, "")


@pytest.mark.parametrize(
    ("spec", "metadata", "leaving"),
    [
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, {}, True),
        ({"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}, {}, False),
        ({"taints": None}, {}, False),
        ({}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, True),
    ],
    ids=["about to be deleted", "another taint", "no taints", "being deleted"],
)
def test_a_node_that_load_balancers_should_leave(spec: Any, metadata: Any, leaving: bool) -> None:
    _, value, _ = translate(node(spec, **metadata))
    assert value == Node(leaving=leaving)


@pytest.mark.parametrize(("spec", "cordoned"), [({"unschedulable": True}, True), ({"unschedulable": False}, False)])
def test_a_cordoned_node(spec: Any, cordoned: bool) -> None:
    _, value, _ = translate(node(spec))
    assert value == Node(cordoned=cordoned)


def test_labels_are_sorted() -> None:
    labels = {"b": "2", "a": "1"}
    _, value, _ = translate(node(labels=labels, namespace="not meant for nodes"))
    assert value == Node(labels=(("a", "1"), ("b", "2")))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": labels}}
    assert translate(namespace) == (NamespaceKey("a"), Namespace((("a", "1"), ("b", "2"))), "")


@pytest.mark.parametrize(
    ("thing", "field", "message"),
    [
        pytest.param(
            node({"podCIDRs": ["10.1.0.0"]}), "spec.podCIDRs[0]", "expected an address range such as", id="no length"
        ),
        pytest.param(
            node({"podCIDRs": ["10.1.0.0/24", "10.2.0.0/24"]}),
            "spec.podCIDRs[1]",
            "at most one of each",
            id="two of one",
        ),
        pytest.param(
            node({}, {"addresses": [{"type": "InternalIP", "address": "n.example"}]}),
            "status.addresses[0].address",
            "expected an IP address, not 'n.example'",
            id="a name as InternalIP",
        ),
        pytest.param(node(labels={"a": 1}), "metadata.labels", "expected text, not a whole number", id="label"),
        pytest.param(node(labels={1: "a"}), "metadata.labels", "as keys, expected text", id="label's key"),
        pytest.param(pod({}, {"podIPs": [{"ip": "x"}]}), "status.podIPs[0].ip", "IP address, not 'x'", id="podIPs"),
        pytest.param(pod(None), "spec", "expected a mapping, not null", id="pod without spec"),
    ],
)
def test_wrong_pod_or_node(thing: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        translate(thing)
    assert caught.value.field == field
    assert message in caught.value.message


# --- ServiceCIDR -------------------------------------------------------------------------------


def test_service_cidr() -> None:
    ranges = ("10.96.0.0/16", "fd96::/112")
    key, value, _ = translate(service_cidr(ranges))
    assert key == ServiceCIDRKey("kubernetes")
    assert value == ServiceCIDR(tuple(map(parse_prefix, ranges)))


@pytest.mark.parametrize(
    ("ranges", "field", "message"),
    [
        pytest.param(None, "spec.cidrs", "at least one address range", id="null"),
        pytest.param(["10.96.0.0"], "spec.cidrs[0]", "expected an address range", id="an address"),
        pytest.param(["10.96.0.0/16", "10.97.0.0/16"], "spec.cidrs[1]", "a second IPv4 one", id="two of one family"),
    ],
)
def test_wrong_service_cidr(ranges: Any, field: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        translate(service_cidr(ranges))
    assert caught.value.field == field
    assert message in caught.value.message


# --- any object --------------------------------------------------------------------------------

EXAMPLES = [
    service({"clusterIP": "10.0.0.1", "ports": [HTTP], "selector": {"app": "web"}}, uid="x", managedFields=[{"a": 1}]),
    slice_([{"addresses": ["10.0.0.1"], "nodeName": "n"}], [HTTP]),
    pod({"nodeName": "n", "containers": []}, {"podIP": "10.0.0.1"}),
    node({"podCIDR": "10.1.0.0/24"}, {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}),
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}},
    service_cidr(["10.96.0.0/16"]),
]


@pytest.mark.parametrize("thing", EXAMPLES, ids=lambda thing: thing["kind"])
def test_the_api_s_json_means_the_same_as_the_mapping(thing: dict[str, Any]) -> None:
    decoded = msgspec.json.decode(json.dumps(thing), type=KINDS[thing["apiVersion"], thing["kind"]])
    assert translate(decoded) == translate(thing)
    assert key_of(decoded) == translate(thing).key


def test_null_lists_of_the_api_are_empty() -> None:
    raw = json.dumps(slice_(None, None, namespace="a"))
    assert '"endpoints": null' in raw
    _, value, _ = translate(msgspec.json.decode(raw, type=kube_objects.EndpointSlice))
    assert value == BackendSlice(ServiceKey("a", "web"), (), ())


def test_names_that_recur_are_held_once() -> None:
    raw = json.dumps(slice_([{"addresses": ["10.0.0.1"], "nodeName": "node-with-a-name", "zone": "zone-with-a-name"}]))
    first, second = (translate(msgspec.json.decode(raw, type=kube_objects.EndpointSlice)).value for _ in range(2))
    assert isinstance(first, BackendSlice)
    assert isinstance(second, BackendSlice)
    assert first.members[0].node is second.members[0].node
    assert first.members[0].zone is second.members[0].zone


MEMBERS = st.fixed_dictionaries(
    {"addresses": st.sampled_from([["10.0.0.1"], ["10.0.0.2"], ["10.0.0.3"]])},
    optional={
        "nodeName": st.sampled_from(["a", "b", None]),
        "conditions": st.fixed_dictionaries({}, optional={"ready": st.booleans(), "serving": st.booleans()}),
        "targetRef": st.sampled_from([None, {"kind": "Pod", "name": "a"}, {"kind": "Pod", "name": "b"}]),
    },
)


@settings(deadline=None)
@given(st.lists(MEMBERS, max_size=6), st.randoms(use_true_random=False))
def test_order_and_repetition_mean_nothing_in_a_slice(endpoints: list[Any], chance: Any) -> None:
    mixed = endpoints + endpoints[:2]
    chance.shuffle(mixed)
    assert translate(slice_(mixed)) == translate(slice_(endpoints))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["10.0.0.1", "None"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _places(thing: Any) -> list[tuple[Any, Any]]:
    items = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    return [place for key, value in items for place in [(thing, key), *_places(value)]]


@settings(deadline=None)
@given(st.sampled_from(EXAMPLES), st.data())
def test_whatever_stands_in_a_field_only_invalid_is_raised(example: Any, data: st.DataObject) -> None:
    thing = json.loads(json.dumps(example))
    holder, key = data.draw(st.sampled_from(_places(thing)))
    holder[key] = data.draw(ANYTHING)
    with contextlib.suppress(Invalid):
        translate(thing)
