"""From the API's JSON to where packets go, held against a second telling that reads the same JSON by itself.

Invariants: the model below takes plain dicts and lists, and gives texts; it shares no code with the sources or the
services. What hypothesis makes is what an API server lets through, in all its spellings: absent, null and empty mean
the same, a list may repeat itself, an object may carry fields that nobody here knows.
"""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.controller.events import KubeStateChange
from podwire.controller.snapshot import fold
from podwire.dataplane.nftables.slots import slots
from podwire.model.addresses import parse_address, parse_prefix, show_address
from podwire.model.network import Frontend, InternalKey, Slots
from podwire.model.objects import NodeKey, Protocol
from podwire.model.snapshot import Local, Snapshot
from podwire.services.frontends import desired
from podwire.sources import kube_objects
from podwire.sources.kubernetes import translate

Raw = dict[str, Any]
NODE = "one"
NODE_IPS = {4: "192.168.0.1", 6: "fd99::1"}
REFUSED, DROPPED, NOT_OURS = "refused", "dropped", "not ours"


# --- what an API server may tell ---------------------------------------------------------------


@st.composite
def spelled(draw: st.DrawFn, **fields: st.SearchStrategy[Any]) -> Raw:
    """A mapping of which each field may be absent, or null; more often it is there."""
    found: Raw = {}
    for name, value in fields.items():
        fate = draw(st.sampled_from(("there", "there", "there", "there", "null", "absent")))
        if fate != "absent":
            found[name] = draw(value) if fate == "there" else None
    return found


NOT_OURS_TO_SERVE = ({"service.kubernetes.io/service-proxy-name": ""}, {"service.kubernetes.io/headless": ""})
LABELS = st.sampled_from((*(None, {}, {"app": "x"}) * 4, *NOT_OURS_TO_SERVE))
FAMILIES = st.sampled_from(((4,), (6,), (4, 6), (4, 6), (6, 4)))
EXTERNAL = {4: ("203.0.113.5", "203.0.113.6"), 6: ("2001:db8::5", "2001:DB8:0::6")}
PROTOCOL = st.sampled_from((*["TCP"] * 8, "UDP", "SCTP"))


@st.composite
def services(draw: st.DrawFn, number: int) -> Raw:
    families = draw(FAMILIES)
    addresses = [{4: f"10.96.0.{number}", 6: f"fd96::{number}"}[family] for family in families]
    kind = draw(st.sampled_from(("ClusterIP", "NodePort", *["LoadBalancer"] * 4, "ExternalName")))
    ips = draw(st.sampled_from((*[addresses] * 9, ["None"])))
    names = draw(st.sampled_from(("p", "p", "pq", "qpr")))
    ports = []
    for at, name in enumerate(names):
        port: Raw = {"port": 80 + at, "targetPort": draw(st.sampled_from((8080, "http", None)))}
        port |= (
            {"name": name}
            if len(names) > 1
            else draw(st.sampled_from((*[{"name": "p"}] * 4, {}, {"name": ""}, {"name": None})))
        )
        port |= draw(spelled(protocol=PROTOCOL, appProtocol=st.sampled_from(("kubernetes.io/h2c", "http"))))
        if kind in ("NodePort", "LoadBalancer"):
            port |= draw(st.sampled_from(({"nodePort": 30000 + at}, {"nodePort": 30000 + at}, {}, {"nodePort": 0})))
        ports.append(port)
    ingress = spelled(
        ip=st.sampled_from(("203.0.113.80", "2001:db8::80", "203.0.113.5")),
        ipMode=st.sampled_from(("VIP", "Proxy")),
        hostname=st.just("lb.example"),
    )
    policies = st.sampled_from(("Cluster", "Local"))
    spec = draw(
        spelled(
            externalIPs=st.lists(st.sampled_from(EXTERNAL[4] + EXTERNAL[6]), max_size=3),
            externalTrafficPolicy=policies,
            internalTrafficPolicy=policies,
            sessionAffinity=st.sampled_from(("None", "ClientIP")),
            publishNotReadyAddresses=st.booleans(),
            trafficDistribution=st.sampled_from(("PreferClose", "PreferSameNode")),
            selector=st.just({"app": "x"}),
        )
    )
    spec |= {"type": kind} if kind != "ClusterIP" or draw(st.booleans()) else {}
    spec |= {"clusterIP": ips[0], "clusterIPs": ips} if draw(st.booleans()) or len(ips) > 1 else {"clusterIP": ips[0]}
    status = draw(spelled(loadBalancer=spelled(ingress=st.lists(ingress, max_size=2))))
    created = draw(st.sampled_from(("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")))
    metadata: Raw = {"name": f"s{number}", "namespace": "default", "creationTimestamp": created, "uid": "u"}
    metadata |= draw(spelled(labels=LABELS))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {**spec, "ports": ports},
        "status": status,
    }


def endpoints(family: int) -> st.SearchStrategy[Raw]:
    """Few addresses, so that they meet: in one slice, and in several."""
    stem = {4: "10.1.{}.2", 6: "fd01:0:0:{}::2"}[family]
    hints = st.lists(st.sampled_from("ab").map(lambda zone: {"name": zone}), max_size=2)
    nodes = st.lists(st.sampled_from((NODE, "two")).map(lambda node: {"name": node}), max_size=2)
    seldom, often = st.sampled_from((False, False, False, True)), st.sampled_from((True, True, True, False))
    conditions = spelled(ready=seldom, serving=often, terminating=often)
    optional = spelled(
        conditions=conditions,
        nodeName=st.sampled_from((NODE, "two")),
        zone=st.sampled_from("ab"),
        hints=spelled(forZones=hints, forNodes=nodes),
        targetRef=st.just({"kind": "Pod", "name": "x", "namespace": "default", "uid": "u"}),
        deprecatedTopology=st.just({"a": "b"}),
    )
    addresses = st.sampled_from(range(1, 5)).map(lambda n: [stem.format(n)])
    return st.builds(lambda some, rest: {"addresses": some, **rest}, addresses, optional)


@st.composite
def slices(draw: st.DrawFn, number: int) -> Raw:
    count = draw(st.sampled_from((0, 1, 2, 3, 4)))
    family = draw(st.sampled_from((4, 4, 4, 6)))
    numbers = st.sampled_from((*({"port": 8080}, {"port": 9090}) * 4, {}, {"port": None}))
    port = st.builds(lambda one, other: one | other, numbers, spelled(protocol=PROTOCOL, appProtocol=st.just("http")))
    names = draw(st.sampled_from((("p",), ("p", None), ("q", "p"), (None, "p", "q", "r"), (), (None,))))
    ports = [{**draw(port), **({} if name is None else {"name": name})} for name in names]
    labels = {"kubernetes.io/service-name": draw(st.sampled_from((*["s1"] * 10, *["s2"] * 3, "s3", "")))} | (
        draw(LABELS) or {}
    )
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"e{number}",
            "namespace": draw(st.sampled_from((*["default"] * 15, "other"))),
            "labels": labels,
        },
        "addressType": {4: "IPv4", 6: "IPv6"}[family],
        "ports": ports or draw(st.sampled_from((None, []))),
        "endpoints": draw(st.lists(endpoints(family), min_size=count, max_size=count) if count else st.none()),
    }


def node(name: str, zone: str | None, *ranges: str) -> Raw:
    labels = {"topology.kubernetes.io/zone": zone} if zone is not None else None
    addresses = [{"type": "InternalIP", "address": ip} for ip in NODE_IPS.values()] if name == NODE else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDRs": list(ranges)},
        "status": {"addresses": [*addresses, {"type": "Hostname", "address": name}]},
    }


# --- the second telling ------------------------------------------------------------------------


def model(things: list[Raw], zone: str | None, inside: bool, to: str, protocol: str, port: int) -> str | set[str]:
    """Which backends may answer a client's first packet; `inside`: it comes from a pod or the node."""
    claims = []
    for it in things:
        if it["kind"] == "Service":
            for each, kind in named(it, to, protocol, port):
                claims.append((it["metadata"]["creationTimestamp"], it["metadata"]["name"], it, each, kind))
    if not claims:
        return NOT_OURS
    _, name, service, its_port, kind = min(claims, key=lambda claim: claim[:2])
    members = list(answering(things, name, its_port, ":" in to))
    running = {place for place, ready, serving, leaving, *_ in members if not leaving}
    members = [it for it in members if it[1] or not it[3] or it[0] not in running]
    local = service["spec"].get("internalTrafficPolicy" if kind == "cluster" else "externalTrafficPolicy") == "Local"
    everywhere, here = (
        chosen(members, zone),
        chosen([(*it[:4], it[4], [], []) for it in members if it[4] == NODE], zone),
    )
    if local and (kind == "cluster" or not inside):
        return here or (DROPPED if everywhere else REFUSED)
    return everywhere or REFUSED


def named(service: Raw, to: str, protocol: str, port: int) -> list[tuple[Raw, str]]:
    """The ports of a Service that have this address, protocol and number."""
    spec, labels = service["spec"], service["metadata"].get("labels") or {}
    ips = spec.get("clusterIPs") or [spec["clusterIP"]]
    kind = spec.get("type") or "ClusterIP"
    if any(label.startswith("service.kubernetes.io/") for label in labels) or kind == "ExternalName" or ips == ["None"]:
        return []
    same = parse_address
    families = {":" in ip for ip in ips}
    outside = list(spec.get("externalIPs") or [])
    if kind == "LoadBalancer":
        ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
        outside += [it["ip"] for it in ingress if it.get("ip") and it.get("ipMode") != "Proxy"]
    found = []
    for each in spec["ports"]:
        if (each.get("protocol") or "TCP") != protocol or (":" in to) not in families:
            continue
        if each["port"] == port and same(to) in map(same, ips):
            found.append((each, "cluster"))
        elif (each["port"] == port and same(to) in map(same, outside)) or (
            (each.get("nodePort") or 0) == port and to in NODE_IPS.values()
        ):
            found.append((each, "external"))
    return found


def answering(things: list[Raw], name: str, its_port: Raw, six: bool) -> Any:
    for it in things:
        if it["kind"] != "EndpointSlice" or (it["addressType"] == "IPv6") != six:
            continue
        labels = it["metadata"]["labels"]
        if it["metadata"]["namespace"] != "default" or labels["kubernetes.io/service-name"] != name:
            continue
        if any(label.startswith("service.kubernetes.io/") for label in labels):
            continue
        for port in it["ports"] or []:
            same = (port.get("name") or "", port.get("protocol") or "TCP")
            if same != (its_port.get("name") or "", its_port.get("protocol") or "TCP") or not port.get("port"):
                continue
            for endpoint in it["endpoints"] or []:
                says, hints = endpoint.get("conditions") or {}, endpoint.get("hints") or {}
                yield (
                    f"{endpoint['addresses'][0]} {port['port']}",
                    says.get("ready") is not False,
                    says.get("serving") is not False,
                    says.get("terminating") is True,
                    endpoint.get("nodeName"),
                    [hint["name"] for hint in hints.get("forZones") or []],
                    [hint["name"] for hint in hints.get("forNodes") or []],
                )


def chosen(members: list[Any], zone: str | None) -> set[str]:
    ready = [it for it in members if it[1]]
    if not ready:
        return {it[0] for it in members if it[2] and it[3]}
    for place, hints in ((NODE, 6), (zone, 5)):
        mine = {it[0] for it in ready if place in it[hints]}
        if mine and all(it[hints] for it in ready):
            return mine
    return {it[0] for it in ready}


# --- and the first -----------------------------------------------------------------------------

FORMS = {"Service": kube_objects.Service, "EndpointSlice": kube_objects.EndpointSlice, "Node": kube_objects.Node}


def snapshot(things: list[Raw]) -> Snapshot:
    """By the way of the API: bytes, structs, values, the fold."""
    told = [translate(msgspec.json.decode(json.dumps(it), type=FORMS[it["kind"]])) for it in things]
    assert [translate(it) for it in things] == told, "a manifest says the same"
    local = Local(NODE, service_cidrs=(parse_prefix("10.96.0.0/16"), parse_prefix("fd96::/112")))
    now, _ = fold(Snapshot(local, whole=True), KubeStateChange(tuple((it.key, it.value) for it in told)))
    return now


def programmed(held: dict[Any, Any], inside: bool, to: Frontend) -> str | set[str]:
    key = InternalKey(to) if inside and InternalKey(to) in held else to
    if key not in held:
        return NOT_OURS
    it = slots(held[key], None)
    if it.verdict is None and it.drawn is None:
        return {Slots(None, (), refused=True): REFUSED, Slots(None, (), dropped=True): DROPPED}[it]
    return {str(b) for b in it.backends if b is not None}


PLACES = ["10.96.0.1", "fd96::1", "10.96.0.2", "fd96::2", *EXTERNAL[4], *EXTERNAL[6], "203.0.113.80", "2001:db8::80"]


@settings(max_examples=500)
@given(
    st.tuples(slices(1), slices(2)) | st.tuples(slices(1), slices(2), slices(3)),
    services(1),
    st.none() | services(2),
    st.sampled_from((None, "a", "b", "c")),
    st.randoms(use_true_random=False),
)
def test_packets_go_where_the_api_s_words_say(
    parts: tuple[Raw, ...], one: Raw, other: Raw | None, zone: str | None, chance: Any
) -> None:
    things = [node(NODE, zone, "10.1.1.0/24"), node("two", "b", "10.1.2.0/24", "fd01::/48"), one, *parts]
    things += [other] if other is not None else []
    chance.shuffle(things)
    now = snapshot(things)
    assert NodeKey(NODE) in now.nodes
    held = desired(now, None)["nftables"]
    asked = [(to, port) for to in PLACES for port in (80, 81, 82)]
    asked += [(to, port) for to in NODE_IPS.values() for port in (30000, 30001, 30002)]
    for to, port in asked:
        for protocol in Protocol:
            for inside in (True, False):
                found = programmed(held, inside, Frontend(parse_address(to), protocol, port))
                wanted = model(things, zone, inside, to, protocol.name, port)
                if isinstance(wanted, set):
                    wanted = {shown(it) for it in wanted}
                assert found == wanted, (to, port, protocol, inside)


def shown(place: str) -> str:
    address, port = place.split()
    return f"[{address_of(address)}]:{port}" if ":" in address else f"{address}:{port}"


def address_of(text: str) -> str:
    return show_address(parse_address(text))
