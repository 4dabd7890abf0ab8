"""What load balancers are told: who has a health check node port, what it answers, and what the node itself does."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire import health
from podwire.controller import events as e
from podwire.controller.difference import Outcome
from podwire.controller.snapshot import fold
from podwire.explain.services import explain_service
from podwire.model.addresses import FAMILIES, IPV4, IPV6, Family, parse_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Frontend
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Node,
    NodeKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.snapshot import Local, Snapshot
from podwire.services.health import Place, holder, listening, local_backends
from tests.unit import world

WEB, OTHER = ServiceKey("shop", "web"), ServiceKey("shop", "other")
NODE = Node(addresses=tuple(map(parse_address, ("192.0.2.1", "fd99::1", "192.0.2.7"))))
PORT = 32000


def service(created: str = "1", *addresses: str, port: int = 80, **more: Any) -> Service:
    ips = tuple(map(parse_address, addresses or ("10.96.0.10", "fd96::a")))
    ports = (ServicePort("p", Protocol.TCP, port, 30000 + port),)
    return Service(ports, ips, created=created, external_local=True, **{"health_port": PORT} | more)


def members(*some: Member, of: ServiceKey = WEB, port: str = "p") -> dict[ObjectKey, Object]:
    named = (BackendPort(port, Protocol.TCP, 8080),)
    return {SliceKey(of.namespace, f"{of.name}-1"): BackendSlice(of, named, some)}


def member(address: str, **more: Any) -> Member:
    return Member(parse_address(address), **{"node": "one"} | more)


AGAIN = BackendSlice(WEB, (BackendPort("p", Protocol.TCP, 9),), (member("10.1.1.2"),))


def made(objects: dict[Any, Any], programmed: bool = True) -> Snapshot:
    objects = {NodeKey("one"): NODE} | objects
    now, _ = fold(Snapshot(Local("one", 1500)), e.Resync(e.ResyncReason.STARTUP, objects))
    return world.reported(now) if programmed else now


def told(now: Snapshot, family: Family = IPV4, fault: str | None = None) -> tuple[int, int, bool]:
    """Status, local backends, whether the proxy is healthy; header and body must agree."""
    answer = health.of_health_port(now, WEB, family, fault)
    body = msgspec.json.decode(answer.body)
    assert body["service"] == {"namespace": "shop", "name": "web"}
    assert set(body) == {"service", "localEndpoints", "serviceProxyHealthy"}
    assert answer.headers == {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": str(body["localEndpoints"]),
    }
    return answer.status, body["localEndpoints"], body["serviceProxyHealthy"]


@pytest.mark.parametrize(
    ("slices", "family", "status", "count"),
    [
        pytest.param(members(member("10.1.1.2")), IPV4, 200, 1, id="one here"),
        pytest.param(members(member("10.1.1.2"), member("10.1.1.3")), IPV4, 200, 2, id="two here"),
        pytest.param(members(member("10.1.1.2")), IPV6, 503, 0, id="none of this family"),
        pytest.param(members(member("fd01::2")), IPV6, 200, 1, id="IPv6"),
        pytest.param(members(member("10.1.2.2", node="two")), IPV4, 503, 0, id="on another node"),
        pytest.param(members(member("10.1.1.2", ready=False)), IPV4, 503, 0, id="not ready"),
        pytest.param(
            members(member("10.1.1.2", ready=False, serving=True, terminating=True)), IPV4, 503, 0, id="on its way out"
        ),
        pytest.param(members(member("10.1.1.2"), port="q"), IPV4, 503, 0, id="for a port that it has not"),
        pytest.param(
            {**members(member("10.1.1.2")), SliceKey("shop", "web-2"): AGAIN},
            IPV4,
            200,
            1,
            id="one pod in two slices",
        ),
        pytest.param({}, IPV4, 503, 0, id="no slice"),
    ],
)
def test_ready_backends_of_this_node_count(slices: dict[Any, Any], family: Family, status: int, count: int) -> None:
    assert told(made({WEB: service()} | slices), family) == (status, count, True)


def test_it_is_healthy_only_once_the_data_plane_holds_what_load_balancers_need() -> None:
    objects = {WEB: service(balancer_ips=(parse_address("203.0.113.80"),))} | members(member("10.1.1.2"))
    pending = made(objects, programmed=False)
    assert told(pending) == (503, 1, False)
    done = world.reported(pending)
    assert told(done) == (200, 1, True)
    assert told(done, fault="the rules can't be changed") == (503, 1, False)
    for address, port, status in (
        ("203.0.113.80", 80, 503),
        ("192.0.2.1", 30080, 503),
        ("fd99::1", 30080, 200),  # of the other family
        ("10.96.0.10", 80, 200),  # nobody from outside comes by a cluster IP
    ):
        broken = {Frontend(parse_address(address), Protocol.TCP, port): Outcome(error="no room")}
        now, _ = fold(done, e.Reported("nftables", broken))
        assert told(now)[0] == status, address
    more, _ = fold(done, e.KubeStateChange(tuple(members(member("10.1.1.2"), member("10.1.1.3")).items())))
    assert told(more) == (503, 2, False)
    assert told(world.reported(more)) == (200, 2, True)


def test_a_frontend_that_an_older_service_has_is_not_its_own_to_be_healthy_with() -> None:
    """The load balancer's clients would come to the other Service."""
    objects = {WEB: service("2"), OTHER: service("1", "10.96.0.11", "fd96::b", health_port=0)}
    assert told(made(objects | members(member("10.1.1.2")))) == (503, 1, False)


PLACES = (Place(NODE.addresses[0], PORT), Place(NODE.addresses[1], PORT))


@pytest.mark.parametrize(
    ("objects", "places"),
    [
        pytest.param({WEB: service()}, dict.fromkeys(PLACES, WEB), id="where node ports are"),
        pytest.param({WEB: service("1", "fd96::a")}, {PLACES[1]: WEB}, id="in its own families"),
        pytest.param({WEB: service(health_port=0)}, {}, id="of those that have one"),
        pytest.param({WEB: service(), OTHER: service("2")}, dict.fromkeys(PLACES, WEB), id="the older has it"),
        pytest.param({WEB: service("2"), OTHER: service()}, dict.fromkeys(PLACES, OTHER), id="whatever its name"),
        pytest.param({WEB: service(), OTHER: service()}, dict.fromkeys(PLACES, OTHER), id="else the first by name"),
        pytest.param(
            {WEB: service(), OTHER: service(health_port=PORT + 1)},
            {Place(each.address, each.port + n): key for each in PLACES for n, key in enumerate((WEB, OTHER))},
            id="each its own",
        ),
    ],
)
def test_who_listens_where(objects: dict[Any, Any], places: dict[Place, ServiceKey]) -> None:
    assert listening(made(objects)) == places


keys = st.sampled_from((WEB, OTHER, ServiceKey("a", "a")))
services = st.builds(service, st.sampled_from("12"), health_port=st.sampled_from((0, PORT, PORT + 1)))


@given(st.lists(st.tuples(keys, st.none() | services), max_size=12))
def test_the_index_of_ports_says_what_the_services_do(changes: list[tuple[ServiceKey, Service | None]]) -> None:
    now = made({})
    for change in changes:
        now, _ = fold(now, e.KubeStateChange((change,)))
    named = {it.health_port for it in now.services.values()} - {0}
    assert set(now.health_ports) == named
    for port in named:
        mine = [key for key, it in now.services.items() if it.health_port == port]
        assert now.health_ports[port] == frozenset(mine)
        assert holder(now, port) == min(mine, key=lambda key: (now.services[key].created, key.namespace, key.name))


@given(st.lists(st.tuples(st.sampled_from(("10.1.1.2", "fd01::2")), st.booleans(), st.sampled_from(("one", "two")))))
def test_nobody_is_counted_twice_or_in_the_wrong_family(some: list[tuple[str, bool, str]]) -> None:
    now = made({WEB: service()} | members(*(member(a, ready=ready, node=node) for a, ready, node in some)))
    for family in FAMILIES:
        here = {a for a, ready, node in some if ready and node == "one" and (":" in a) == (family == IPV6)}
        assert local_backends(now, WEB, family) == len(here)


@pytest.mark.parametrize(
    ("objects", "lines"),
    [
        pytest.param(
            {WEB: service()} | members(member("10.1.1.2")),
            (
                "health check node port 192.0.2.1:32000: answers 200, 1 ready backend on this node",
                "health check node port [fd99::1]:32000: answers 503, no ready backend on this node",
            ),
            id="each address",
        ),
        pytest.param(
            {WEB: service("2"), OTHER: service("1", "10.96.0.11", port=81)},
            ("health check node port 32000: shop/other has it, which is older",),
            id="two Services, one port",
        ),
        pytest.param(
            {WEB: service(), NodeKey("one"): Node()},
            ("health check node port 32000: node one has no address for it in the Service's families",),
            id="no address",
        ),
        pytest.param(
            {WEB: service("1", "10.96.0.10", external_ips=NODE.addresses[:1], health_port=80)},
            ("health check node port 192.0.2.1:80: not reached: shop/web has it as a frontend",),
            id="a frontend is there",
        ),
        pytest.param({WEB: service(health_port=0)}, (), id="none"),
    ],
)
def test_explain_says_what_becomes_of_the_port(objects: dict[Any, Any], lines: tuple[str, ...]) -> None:
    assert explain_service(made(objects), WEB).health == lines


def test_explain_says_when_the_data_plane_is_behind() -> None:
    now = made({WEB: service("1", "10.96.0.10")} | members(member("10.1.1.2")), programmed=False)
    told = "answers 503, 1 ready backend on this node, but nftables does not hold all of the Service yet"
    assert explain_service(now, WEB).health == (f"health check node port 192.0.2.1:32000: {told}",)


# --- the node ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "leaving", "fault", "status"),
    [
        ("/healthz", False, None, 200),
        ("/livez", False, None, 200),
        ("/healthz", True, None, 503),
        ("/livez", True, None, 200),
        ("/healthz", False, "why", 503),
        ("/livez", False, "why", 503),
    ],
)
def test_the_node_answers_as_kube_proxy_does(path: str, leaving: bool, fault: str | None, status: int) -> None:
    now = made({NodeKey("one"): replace(NODE, leaving=leaving)})
    answer = health.of_node(now, path, fault, seconds=1_790_000_100.5, updated=1_790_000_000.0)
    assert answer is not None
    assert answer.status == status
    times = "2026-09-21T14:15:00.500000+00:00", "2026-09-21T14:13:20.000000+00:00"
    body: dict[str, Any] = {"lastUpdated": times[status != 200], "currentTime": times[0]}
    if path == "/healthz":
        body["nodeEligible"] = not leaving
    each = {"lastUpdated": times[1], "healthy": fault is None}
    body |= {"healthy": fault is None, "status": {"IPv4": each, "IPv6": each}}
    if fault:
        body["reason"] = fault
    assert msgspec.json.decode(answer.body) == body


@pytest.mark.parametrize("path", ["/", "/healthz/", "/metrics", "/status"])
def test_the_node_has_no_other_path(path: str) -> None:
    assert health.of_node(made({}), path, None, 0.0, 0.0) is None


@pytest.mark.parametrize(
    ("follows_api", "whole", "unsynced", "broken", "says"),
    [
        (True, True, (), (), None),
        (True, False, (), (), "not yet known"),
        (False, False, (), (), None),
        (True, True, ("linux",), ("linux", "store"), None),
        (True, True, ("nftables",), (), "not yet brought in order"),
        (True, True, (), ("nftables",), "can't be read or changed"),
    ],
    ids=["well", "not listed", "of manifests what is there counts", "pods only", "not in sync", "nothing can be done"],
)
def test_when_a_node_does_not_serve(
    follows_api: bool, whole: bool, unsynced: tuple[str, ...], broken: tuple[str, ...], says: str | None
) -> None:
    now = replace(made({}), whole=whole)
    found = health.fault(now, follows_api, frozenset(unsynced), frozenset(broken))
    assert (found is None) == (says is None)
    assert says is None or (found is not None and says in found)
