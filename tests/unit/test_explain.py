"""What `podwire explain` says: of Services, of packets, and of where things are."""

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire import views
from podwire.controller.difference import Outcome
from podwire.controller.events import AddPod, KubeStateChange, PodWired, Refused, Reported, Resync, ResyncReason
from podwire.controller.snapshot import fold
from podwire.dataplane.nftables.layout import MOST_BACKENDS
from podwire.dataplane.nftables.slots import place
from podwire.explain.packets import NODE, Verdict, explain_packet, parse_destination, parse_source
from podwire.explain.places import places, where
from podwire.explain.services import LIMITS, TOO_MANY, FrontendWhy, LeftOutView, explain_service
from podwire.findings import findings
from podwire.model.addresses import IPV4, IPV6, Address, parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Frontend
from podwire.model.objects import (
    AttachmentKey,
    BackendPort,
    BackendSlice,
    Member,
    Node,
    NodeKey,
    Pod,
    PodKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.snapshot import Local, Snapshot
from podwire.pods.names import interface_name
from podwire.pods.wiring import wiring
from podwire.services.frontends import frontends, owner
from podwire.views import FrontendState
from tests.unit import world

A, B = (AttachmentKey(f"sandbox-{name}", "eth0") for name in "ab")
A_HERE, B_HERE = (f"pod shop/{name} on this node, by {interface_name(key)}" for name, key in (("a", A), ("b", B)))
HTTP, DNS = ServicePort("http", Protocol.TCP, 80, 30080), ServicePort("dns", Protocol.UDP, 53)


def key(name: str) -> ServiceKey:
    return ServiceKey("shop", name)


def service(
    number: int, *ports: ServicePort, external: tuple[str, ...] = (), created: str = "2026-01-01T00:00:00Z"
) -> Service:
    """At 10.96.0.NUMBER and fd96::NUMBER."""
    addresses = parse_address(f"10.96.0.{number}"), parse_address(f"fd96::{number:x}")
    return Service(ports or (HTTP,), addresses, tuple(map(parse_address, external)), created)


def slice_of(name: str, *members: str | Member, port: BackendPort | None = None) -> BackendSlice:
    every = tuple(each if isinstance(each, Member) else Member(parse_address(each)) for each in members)
    return BackendSlice(key(name), (port or BackendPort("http", Protocol.TCP, 8080),), every)


def member(address: str, pod: str, *, ready: bool = True) -> Member:
    return Member(parse_address(address), ready, pod=f"shop/{pod}")


OBJECTS: dict[ObjectKey, Object] = {
    NodeKey("one"): Node(
        (parse_prefix("10.1.1.0/24"), parse_prefix("fd01::/64")), (parse_address("192.0.2.1"), parse_address("fd99::1"))
    ),
    NodeKey("two"): Node((parse_prefix("10.1.2.0/24"), parse_prefix("fd02::/64")), (parse_address("192.0.2.2"),)),
    key("web"): service(1),
    SliceKey("shop", "web-4"): slice_of(
        "web", "10.1.1.2", member("10.1.2.9", "far"), "192.0.2.2", member("10.1.1.7", "slow", ready=False)
    ),
    SliceKey("shop", "web-6"): slice_of("web", "fd01::2", "fd02::9"),
    key("newer"): service(1, ServicePort("web", Protocol.TCP, 80), created="2026-02-01T00:00:00Z"),
    key("empty"): service(3, ServicePort("http", Protocol.TCP, 80)),
    key("dns"): service(4, DNS, external=("198.51.100.4",)),
    SliceKey("shop", "dns-4"): slice_of("dns", "10.1.2.9", port=BackendPort("dns", Protocol.UDP, 53)),
    SliceKey("shop", "alone-1"): slice_of("alone", "10.1.1.2"),
    PodKey("shop", "far"): Pod("two", (parse_address("10.1.2.9"),)),
    PodKey("shop", "agent"): Pod("one", (parse_address("192.0.2.1"),), host_network=True),
}


def world_of(objects: dict[ObjectKey, Object]) -> Snapshot:
    """Pod a is 10.1.1.2 and fd01::2, b the next; all that nftables and linux should hold was reported."""
    ranges, link = tuple(map(parse_prefix, ("10.96.0.0/16", "fd96::/112"))), parse_prefix("192.0.2.0/24")
    now = Snapshot(Local("one", 1450, ranges, networks=frozenset((link,))))
    adds = [AddPod(each, PodKey("shop", each.sandbox[-1]), f"/run/netns/{each.sandbox}") for each in (A, B)]
    for event in (Resync(ResyncReason.STARTUP, objects), *adds, PodWired(A), PodWired(B)):
        now, _ = fold(now, event)
    return reported(now)


def reported(now: Snapshot) -> Snapshot:
    held = {f: Outcome(place(b, None)) for name in now.services for f, b in frontends(now, name).items()}
    links = {part: Outcome(it) for name in (A, B) for part, it in wiring(name, now.attachments[name], 1450).items()}
    for driver, outcomes in (("nftables", held), ("linux", links)):
        now, _ = fold(now, Reported(driver, outcomes))
    return now


NOW = world_of(OBJECTS)


def changed(**objects: Object | None) -> Snapshot:
    """The Services of these names changed, and nothing of it reported."""
    now, _ = fold(NOW, KubeStateChange(tuple((key(name), value) for name, value in objects.items())))
    return now


def named(why: Any, frontend: str) -> FrontendWhy:
    return next(it for it in why.frontends if it.frontend == frontend)


# --- where -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "words"),
    [
        pytest.param("10.1.1.2", A_HERE, id="a pod of this node"),
        pytest.param("fd01::2", A_HERE, id="its other address"),
        pytest.param("10.1.1.1", "this node itself", id="this node's address of a block"),
        pytest.param("192.0.2.1", "this node itself", id="this node's InternalIP"),
        pytest.param("127.0.0.53", "this node itself", id="a loopback address"),
        pytest.param("192.0.2.2", "node two itself", id="another node"),
        pytest.param("10.1.2.9", "a pod of node two, by way of 192.0.2.2", id="a pod of another node"),
        pytest.param(
            "fd02::9",
            "a pod of node two, by VXLAN to node two (192.0.2.2)",
            id="a pod of another node, by VXLAN",
        ),
        pytest.param("10.1.1.200", "an address of this node's pods that no pod has", id="a free address"),
        pytest.param("203.0.113.5", "outside of the cluster, by the node's own routes", id="outside"),
    ],
)
def test_where_an_address_is(address: str, words: str) -> None:
    assert where(places(NOW), parse_address(address)) == words


def test_of_overlapping_blocks_the_longest_has_an_address_as_in_the_kernel() -> None:
    wide = Node((parse_prefix("10.1.0.0/16"),), (parse_address("192.0.2.3"),))
    known = places(world_of({**OBJECTS, NodeKey("three"): wide}))
    assert where(known, parse_address("10.1.2.9")) == "a pod of node two, by way of 192.0.2.2"
    assert where(known, parse_address("10.1.3.9")) == "a pod of node three, by way of 192.0.2.3"
    assert where(known, parse_address("10.1.1.200")) == "a pod of node three, by way of 192.0.2.3"


def test_a_pod_that_is_not_wired_yet_is_told_so() -> None:
    now = replace(NOW, programmed=NOW.programmed.delete("linux"))
    assert where(places(now), parse_address("10.1.1.2")) == f"{A_HERE}, pending"


# --- Services ----------------------------------------------------------------------------------


def test_each_frontend_has_its_kind_its_state_and_its_backends_with_their_places() -> None:
    why = explain_service(NOW, key("web"))
    assert [(it.frontend, it.kind, it.port, it.owner, it.state) for it in why.frontends] == [
        ("10.96.0.1:80/TCP", "cluster IP", "http", None, FrontendState.PROGRAMMED),
        ("[fd96::1]:80/TCP", "cluster IP", "http", None, FrontendState.PROGRAMMED),
        ("192.0.2.1:30080/TCP", "node port", "http", None, FrontendState.PROGRAMMED),
        ("[fd99::1]:30080/TCP", "node port", "http", None, FrontendState.PROGRAMMED),
    ]
    assert [(it.backend, it.where) for it in why.frontends[0].backends] == [
        ("10.1.1.2:8080", A_HERE),
        ("10.1.2.9:8080", "pod shop/far of node two, by way of 192.0.2.2"),
        ("192.0.2.2:8080", "node two itself"),
    ]
    assert why.notes == ()


def test_an_external_ip_is_a_frontend_too() -> None:
    assert named(explain_service(NOW, key("dns")), "198.51.100.4:53/UDP").kind == "external IP"


def test_of_two_claimants_the_younger_is_told_who_has_the_frontend() -> None:
    lost = FrontendWhy("10.96.0.1:80/TCP", "cluster IP", "web", "shop/web", None, (), ())
    assert explain_service(NOW, key("newer")).frontends[0] == lost
    assert explain_service(NOW, key("web")).frontends[0].owner is None


def test_of_two_ports_with_one_frontend_the_later_has_it() -> None:
    it = service(1, HTTP, ServicePort("high", Protocol.TCP, 30080), external=("192.0.2.1",))
    why = explain_service(changed(web=it), key("web"))
    first, second = (each for each in why.frontends if each.frontend == "192.0.2.1:30080/TCP")
    assert (first.port, first.owner) == ("http", "another port of shop/web")
    assert (second.port, second.owner) == ("high", None)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        pytest.param(slice_of("web", member("10.1.1.9", "p", ready=False)), "not ready", id="not ready"),
        pytest.param(
            slice_of("web", member("10.1.1.9", "p"), port=BackendPort("other", Protocol.TCP, 8080)),
            "its slice has no port of that name and protocol",
            id="a port of another name",
        ),
        pytest.param(
            slice_of("web", member("10.1.1.9", "p"), port=BackendPort("http", Protocol.UDP, 8080)),
            "its slice has no port of that name and protocol",
            id="a port of another protocol",
        ),
    ],
)
def test_why_a_member_is_left_out(part: BackendSlice, reason: str) -> None:
    now, _ = fold(NOW, KubeStateChange(((SliceKey("shop", "web-7"), part),)))
    left = LeftOutView("10.1.1.9", "shop/p", "shop/web-7", reason)
    assert left in named(explain_service(now, key("web")), "10.96.0.1:80/TCP").left_out
    assert left not in named(explain_service(now, key("web")), "[fd96::1]:80/TCP").left_out  # not its family


def test_a_member_of_a_family_that_the_service_has_not_is_left_out() -> None:
    it = replace(service(1), cluster_ips=(parse_address("10.96.0.1"),))
    left = named(explain_service(changed(web=it), key("web")), "10.96.0.1:80/TCP").left_out
    assert [(out.member, out.reason) for out in left if ":" in out.member] == [
        ("fd01::2", "of another address family"),
        ("fd02::9", "of another address family"),
    ]


def test_a_member_that_serves_by_another_slice_is_not_left_out() -> None:
    part = slice_of("web", member("10.1.1.2", "a", ready=False))
    now, _ = fold(NOW, KubeStateChange(((SliceKey("shop", "web-7"), part),)))
    left = named(explain_service(now, key("web")), "10.96.0.1:80/TCP").left_out
    assert [out.member for out in left] == ["10.1.1.7"]


def test_backends_beyond_the_largest_class_are_left_out_and_what_has_slots_is_right() -> None:
    many = slice_of("empty", *(f"10.7.{n >> 8}.{n & 255}" for n in range(MOST_BACKENDS + 1)))
    now = world_of({**OBJECTS, SliceKey("shop", "empty-1"): many})
    why = named(explain_service(now, key("empty")), "10.96.0.3:80/TCP")
    assert (len(why.backends), why.state) == (MOST_BACKENDS, FrontendState.PROGRAMMED)
    assert why.left_out == (LeftOutView("10.7.32.0", None, "shop/empty-1", TOO_MANY),)
    assert len(explain_packet(now, None, parse_destination("10.96.0.3:80")).choices) == MOST_BACKENDS
    view = next(it for it in views.service(now, key("empty")).frontends if it.address == "10.96.0.3")
    assert (len(view.backends), view.beyond) == (MOST_BACKENDS, 1)
    cut = f"frontend 10.96.0.3:80/TCP has {MOST_BACKENDS + 1} backends, of which {MOST_BACKENDS} are in force"
    assert f"service/shop/empty: {cut}: no frontend can have more" in findings(now)


@pytest.mark.parametrize(
    ("held", "state"),
    [
        pytest.param(None, FrontendState.PENDING, id="not there yet"),
        pytest.param(Outcome(error="no room"), FrontendState.FAILED, id="the last change failed"),
    ],
)
def test_the_state_is_what_the_data_plane_reported(held: Outcome | None, state: FrontendState) -> None:
    web = parse_destination("10.96.0.1:80")
    now, _ = fold(NOW, Reported("nftables", {web: held or Outcome(None)}))
    whole = explain_service(now, key("web"))
    assert (named(whole, "10.96.0.1:80/TCP").state, whole.notes) == (state, (LIMITS[state],))
    why = explain_packet(now, None, web)
    assert (why.state, why.notes) == (state, (LIMITS[state],))


NO_V6 = Node((parse_prefix("10.1.1.0/24"),), (parse_address("192.0.2.1"),))


@pytest.mark.parametrize(
    ("name", "objects", "notes"),
    [
        pytest.param(
            "web",
            {key("web"): Service((HTTP,))},
            ["it has no cluster IP (headless or ExternalName): there is nothing to program, DNS answers for it"],
            id="headless",
        ),
        pytest.param(
            "web",
            {key("web"): replace(service(1), ports=())},
            ["it has no ports: there is nothing to program"],
            id="without ports",
        ),
        pytest.param("empty", {}, ["it has no EndpointSlice: all of its frontends are refused"], id="without slices"),
        pytest.param(
            "dns",
            {},
            ["its EndpointSlices have no IPv6 members: such frontends are refused"],
            id="without members of one family",
        ),
        pytest.param(
            "web",
            {NodeKey("one"): NO_V6},
            ["node one has no IPv6 InternalIP: there are no node ports of that family"],
            id="a node without an address for node ports",
        ),
        pytest.param(
            "alone",
            {},
            ["no Service of that name is known, though slice shop/alone-1 is for it: nothing is programmed"],
            id="a slice without its Service",
        ),
    ],
)
def test_notes_on_a_whole_service(name: str, objects: dict[ObjectKey, Object], notes: list[str]) -> None:
    why = explain_service(world_of({**OBJECTS, **objects}), key(name))
    assert (why.service, list(why.notes)) == (f"shop/{name}", notes)


def test_what_the_sources_say_of_a_service_and_its_slices_is_told() -> None:
    errors = ("service/shop/alone: one", "service/shop/alone-2: another's", "slice/shop/alone-1: two", "file: three")
    *_, one, two = explain_service(NOW, key("alone"), errors).notes
    assert [one, two] == ["service/shop/alone: one", "slice/shop/alone-1: two"]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (ServiceKey("shop", "none"), "no service/shop/none on this node"),
        (ServiceKey("default", "web"), "no service/default/web on this node; there is shop/web"),
    ],
    ids=["nobody's name", "another namespace's"],
)
def test_what_neither_a_service_nor_a_slice_names_is_an_error(asked: ServiceKey, line: str) -> None:
    with pytest.raises(LookupError, match=rf"\A{re.escape(line)}\Z"):
        explain_service(NOW, asked)


# --- packets -----------------------------------------------------------------------------------

POD_KEPT = "kept: the client is a pod of this node, the answer comes by here"
NODE_KEPT = "kept: the client is this node"
BACKEND_KEPT = "kept: the backend is on this node, the answer comes by here"
HAIRPIN = "masqueraded: a pod that reaches itself has to be answered by way of the node"
ELSEWHERE = "masqueraded: client and backend are both elsewhere, the answer has to come back by here"


@pytest.mark.parametrize(
    ("source", "to", "backend", "client", "because"),
    [
        pytest.param("10.1.1.3", "10.96.0.1:80", "10.1.1.2:8080", "10.1.1.3", POD_KEPT, id="pod to pod"),
        pytest.param("10.1.1.3", "10.96.0.1:80", "10.1.2.9:8080", "10.1.1.3", POD_KEPT, id="pod to a remote pod"),
        pytest.param("10.1.1.2", "10.96.0.1:80", "10.1.1.2:8080", "10.1.1.1", HAIRPIN, id="hairpin"),
        pytest.param("fd01::2", "[fd96::1]:80", "[fd01::2]:8080", "fd01::1", HAIRPIN, id="hairpin, IPv6"),
        pytest.param("10.1.1.2", "192.0.2.1:30080", "10.1.1.2:8080", "10.1.1.1", HAIRPIN, id="hairpin by a node port"),
        pytest.param("10.1.1.2", "10.96.0.1:80", "10.1.2.9:8080", "10.1.1.2", POD_KEPT, id="to another than itself"),
        pytest.param(None, "10.96.0.1:80", "10.1.1.2:8080", "10.1.1.1", NODE_KEPT, id="the node, by its block"),
        pytest.param(None, "10.96.0.1:80", "10.1.2.9:8080", "10.1.1.1", NODE_KEPT, id="the node to a remote pod"),
        pytest.param(None, "192.0.2.1:30080", "10.1.1.2:8080", "192.0.2.1", NODE_KEPT, id="the node, its own port"),
        pytest.param(None, "198.51.100.4:53/udp", "10.1.2.9:53", "192.0.2.1", NODE_KEPT, id="the node, by its uplink"),
        pytest.param("192.0.2.1", "10.96.0.1:80", "10.1.1.2:8080", "192.0.2.1", NODE_KEPT, id="the node's uplink"),
        pytest.param("192.0.2.2", "10.96.0.1:80", "10.1.1.2:8080", "192.0.2.2", BACKEND_KEPT, id="another node"),
        pytest.param("203.0.113.5", "192.0.2.1:30080", "10.1.1.2:8080", "203.0.113.5", BACKEND_KEPT, id="outside"),
        pytest.param("203.0.113.5", "192.0.2.1:30080", "10.1.2.9:8080", "192.0.2.1", ELSEWHERE, id="both elsewhere"),
        pytest.param("10.1.2.9", "10.96.0.1:80", "10.1.2.9:8080", "192.0.2.1", ELSEWHERE, id="remote hairpin"),
        pytest.param("192.0.2.2", "192.0.2.1:30080", "192.0.2.2:8080", "192.0.2.1", ELSEWHERE, id="node to itself"),
        pytest.param("203.0.113.5", "198.51.100.4:53/UDP", "10.1.2.9:53", "192.0.2.1", ELSEWHERE, id="external IP"),
    ],
)
def test_whom_a_backend_sees(source: str | None, to: str, backend: str, client: str, because: str) -> None:
    why = explain_packet(NOW, parse_address(source) if source else None, parse_destination(to))
    choice = next(each for each in why.choices if each.backend == backend)
    assert (why.verdict, choice.client, choice.because) == (Verdict.BALANCED, client, because)


def test_the_masquerading_address_of_a_node_without_one_is_the_kernels_to_choose() -> None:
    now = world_of({**OBJECTS, NodeKey("one"): Node((parse_prefix("10.1.1.0/24"),))})
    why = explain_packet(now, parse_address("203.0.113.5"), parse_destination("10.96.0.1:80"))
    assert [each.client for each in why.choices if each.because == ELSEWHERE] == [None, None]


@pytest.mark.parametrize(
    ("to", "verdict", "service", "way"),
    [
        pytest.param(
            "10.96.0.1:80",
            Verdict.BALANCED,
            "shop/web",
            "one of 3 backends, each about as likely",
            id="several backends",
        ),
        pytest.param("198.51.100.4:53/UDP", Verdict.BALANCED, "shop/dns", "the only backend", id="one backend"),
        pytest.param(
            "10.96.0.3:80",
            Verdict.REFUSED,
            "shop/empty",
            "no backend is ready; answered by a reset",
            id="no backend, TCP",
        ),
        pytest.param(
            "[fd96::4]:53/UDP",
            Verdict.REFUSED,
            "shop/dns",
            "no backend is ready; answered by ICMP port unreachable",
            id="no backend, UDP",
        ),
        pytest.param(
            "10.96.0.1:81",
            Verdict.REFUSED,
            None,
            "no Service has this port and protocol of the address, which is only Services'; answered by a reset",
            id="a port that the Service has not",
        ),
        pytest.param(
            "10.96.200.200:80/UDP",
            Verdict.REFUSED,
            None,
            "no Service has this port and protocol of the address, which is only Services'; "
            "answered by ICMP port unreachable",
            id="an address of the range that no Service has",
        ),
        pytest.param("10.1.1.2:8080", Verdict.PASSED_ON, None, A_HERE, id="a pod itself"),
        pytest.param("192.0.2.1:22", Verdict.PASSED_ON, None, "this node itself", id="the node itself"),
        pytest.param("192.0.2.2:30080", Verdict.PASSED_ON, None, "node two itself", id="another node's node port"),
        pytest.param(
            "198.51.100.4:54/UDP",
            Verdict.PASSED_ON,
            None,
            "outside of the cluster, by the node's own routes, which sees 192.0.2.1 in the pod's place: masqueraded",
            id="a port of an external IP that no Service has",
        ),
        pytest.param(
            "203.0.113.5:443",
            Verdict.PASSED_ON,
            None,
            "outside of the cluster, by the node's own routes, which sees 192.0.2.1 in the pod's place: masqueraded",
            id="out of the cluster",
        ),
    ],
)
def test_what_becomes_of_a_packet(to: str, verdict: Verdict, service: str | None, way: str) -> None:
    why = explain_packet(NOW, parse_address("fd01::3" if "[" in to else "10.1.1.3"), parse_destination(to))
    assert (why.verdict, why.service, why.way) == (verdict, service, way)
    assert bool(why.choices) is (verdict is Verdict.BALANCED)
    assert why.notes == ()


def test_pods_of_an_older_block_are_no_strangers_to_each_other() -> None:
    """The node has another block by now; the pods have kept their addresses."""
    moved = Node((parse_prefix("10.1.9.0/24"), parse_prefix("fd09::/64")), (parse_address("192.0.2.1"),))
    now, _ = fold(NOW, KubeStateChange(((NodeKey("one"), moved),)))
    assert explain_packet(now, parse_address("10.1.1.3"), parse_destination("10.1.1.2:8080")).way == A_HERE
    to_free = explain_packet(now, parse_address("10.1.1.3"), parse_destination("10.1.1.99:8080")).way
    assert to_free.endswith("which sees 192.0.2.1 in the pod's place: masqueraded")


def test_a_cluster_ip_outside_of_all_ranges_is_only_its_services() -> None:
    now = changed(web=replace(service(1), cluster_ips=(parse_address("172.16.0.1"),)))
    assert explain_packet(now, None, parse_destination("172.16.0.1:81")).verdict is Verdict.REFUSED


def test_of_two_claimants_the_older_answers_a_packet() -> None:
    assert explain_packet(NOW, None, parse_destination("10.96.0.1:80")).service == "shop/web"
    assert explain_packet(changed(web=None), None, parse_destination("10.96.0.1:80")).service == "shop/newer"


@pytest.mark.parametrize("source", ["10.1.2.9", "192.0.2.2"], ids=["a pod of it", "itself"])
def test_another_nodes_client_is_decided_there(source: str) -> None:
    why = explain_packet(NOW, parse_address(source), parse_destination("10.96.0.1:80"))
    assert why.notes == ("the client is on node two: its agent decides, unless the packet was sent to this node",)


# --- from words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "frontend"),
    [
        ("10.96.0.10:80", ("10.96.0.10", Protocol.TCP, 80)),
        ("10.96.0.10:53/udp", ("10.96.0.10", Protocol.UDP, 53)),
        ("[fd96::a]:65535/SCTP", ("fd96::a", Protocol.SCTP, 65535)),
    ],
)
def test_destinations(text: str, frontend: tuple[str, Protocol, int]) -> None:
    address, protocol, port = frontend
    assert parse_destination(text) == Frontend(parse_address(address), protocol, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.96.0.10",
        ":80",
        "10.96.0.10:0",
        "10.96.0.10:65536",
        "10.96.0.10:+80",
        "10.96.0.10:٣",
        "web:80",
        "fd96::a:80",
        "[fd96::a]",
        "[10.96.0.10]:80",
        "[fd96::a:80",
        "10.96.0.10:80/",
        "10.96.0.10:80/ICMP",
    ],
)
def test_wrong_destinations_are_answered_by_the_right_form(text: str) -> None:
    line = (
        f"{text!r}: expected IP:PORT or IP:PORT/PROTOCOL, such as 10.96.0.10:80 or [fd96::a]:53/UDP, "
        "with a protocol of TCP, UDP, SCTP"
    )
    with pytest.raises(ValueError, match=rf"\A{re.escape(line)}\Z"):
        parse_destination(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        pytest.param("203.0.113.5", "203.0.113.5", id="an address"),
        pytest.param("shop/a", "10.1.1.2", id="a pod of this node"),
        pytest.param(NODE, None, id="the node"),
        pytest.param("shop/agent", None, id="a pod in the node's network"),
    ],
)
def test_sources(text: str, address: str | None) -> None:
    assert parse_source(NOW, text, IPV4) == (parse_address(address) if address else None)


def test_a_pods_address_is_of_the_destinations_family() -> None:
    assert parse_source(NOW, "shop/a", IPV6) == parse_address("fd01::2")


def test_of_two_attachments_of_a_pod_the_confirmed_one_counts() -> None:
    again = AttachmentKey("again", "eth0")  # sorts before the first
    now, _ = fold(NOW, AddPod(again, PodKey("shop", "a"), "/run/netns/again"))
    assert parse_source(now, "shop/a", IPV4) == parse_address("10.1.1.2")
    now, _ = fold(now, PodWired(again))
    assert parse_source(now, "shop/a", IPV4) == parse_address("10.1.1.4")


@pytest.mark.parametrize(
    ("text", "family", "kind", "line"),
    [
        pytest.param(
            "a",
            IPV4,
            ValueError,
            "'a': expected an IP address, node, or a pod of this node as NAMESPACE/NAME",
            id="no form",
        ),
        pytest.param(
            "shop/a/b",
            IPV4,
            ValueError,
            "'shop/a/b': expected an IP address, node, or a pod of this node as NAMESPACE/NAME",
            id="a name too long",
        ),
        pytest.param(
            "10.1.1.2",
            IPV6,
            ValueError,
            "'10.1.1.2': expected an IPv6 address, as the destination's",
            id="another family than the destination's",
        ),
        pytest.param("shop/none", IPV4, LookupError, "no pod/shop/none on node one", id="nobody"),
        pytest.param(
            "shop/far",
            IPV4,
            LookupError,
            "no pod/shop/far on node one: it is on node two, whose agent knows",
            id="a pod of another node",
        ),
    ],
)
def test_wrong_sources(text: str, family: Any, kind: type[Exception], line: str) -> None:
    with pytest.raises(kind, match=rf"\A{re.escape(line)}\Z"):
        parse_source(NOW, text, family)


def test_a_pod_without_an_address_of_the_family() -> None:
    now = world_of({**OBJECTS, NodeKey("one"): Node((parse_prefix("10.1.1.0/24"),))})
    with pytest.raises(LookupError, match=r"\Apod/shop/a has no IPv6 address\Z"):
        parse_source(now, "shop/a", IPV6)


# --- all of it ---------------------------------------------------------------------------------


def test_a_local_policy_leaves_the_node_alone_at_an_address_that_only_its_kernel_knows() -> None:
    at = parse_address("203.0.113.80")
    now = changed(web=replace(service(1), balancer_ips=(at,), external_local=True))
    now = replace(now, local=replace(now.local, addresses=frozenset({parse_address("198.18.0.1")})))
    to = parse_destination("203.0.113.80:80")
    choices = {
        client: [each.backend for each in explain_packet(now, parse_address(client), to).choices]
        for client in ("198.18.0.1", "192.0.2.1", "10.1.2.9", "203.0.113.5")
    }
    everywhere = ["10.1.1.2:8080", "10.1.2.9:8080", "192.0.2.2:8080"]
    assert choices == dict.fromkeys(("198.18.0.1", "192.0.2.1", "10.1.2.9"), everywhere) | {"203.0.113.5": []}


SOURCES = [None, *map(parse_address, ("10.1.1.2", "10.1.1.3", "fd01::2", "203.0.113.5", "10.1.2.2", "192.168.0.1"))]


@given(st.lists(st.one_of(world.kube_changes, world.add_pods), max_size=8), st.sampled_from(SOURCES))
def test_a_packets_choices_are_exactly_its_frontends_backends(events: list[Any], source: Address | None) -> None:
    now = world.start()
    for event in events:
        with suppress(Refused):
            now, _ = fold(now, event)
    for frontend in (claim for claim in now.claims if isinstance(claim, Frontend)):
        key_ = owner(now, frontend)
        why = explain_packet(now, source, frontend)
        assert why.service == f"{key_.namespace}/{key_.name}"
        # One that is an external IP and a node port at once is told as both.
        told = [it for it in explain_service(now, key_).frontends if it.frontend == why.destination and not it.owner]
        if why.verdict is Verdict.DROPPED:
            assert any(it.rules for it in told)
        else:
            inside = (
                source is None
                or source in {*now.node.addresses, *now.local.addresses}
                or any(source in block for node in now.nodes.values() for block in node.pod_cidrs)
            )
            lists = (it.backends if it.cluster is None or not inside else it.cluster for it in told)
            assert {tuple(each.backend for each in some) for some in lists} == {tuple(e.backend for e in why.choices)}
        for other in {*now.claims[frontend]} - {key_}:
            lost = [it.owner for it in explain_service(now, other).frontends if it.frontend == why.destination]
            assert set(lost) == {why.service}
