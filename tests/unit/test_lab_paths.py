"""What a demonstration asks, whom it expects, and how it judges."""

import msgspec
import pytest

from podwire.lab.names import DOMAIN
from podwire.lab.paths import BEHIND_ROUTER, BY_ARP, behind, owner_of, questions
from podwire.lab.questions import REFUSED, TIMEOUT, Answer, Question, judge, names_of
from podwire.lab.views import BalancerView, ClientView, LabView, NodeView, PodView, ServiceView


def node(number: int) -> NodeView:
    addresses = (f"192.168.99.{number}", f"fd00:99::{number}")
    blocks = (f"10.244.{number}.0/24", f"fd00:244:0:{number}::/64")
    return NodeView(f"node{number}", True, "running", 1, addresses, blocks, f"space-node{number}", 4, "/s")


def pod(name: str, number: int, node: int = 1, kind: str = "Deployment", hostname: str = "") -> PodView:
    workload = f"{kind}/default/{name.partition('-')[0]}"
    addresses = (f"10.244.{node}.{number}", f"fd00:244:0:{node}::{number}")
    space, subdomain = f"space-{name}", name.partition("-")[0] if hostname else ""
    return PodView("default", name, workload, f"node{node}", addresses, ("8080/TCP",), space, "", hostname, subdomain)


def service(
    name: str, ports: str, *pods: str, ips: tuple[str, ...] = (), external: tuple[str, ...] = ()
) -> ServiceView:
    backends = tuple(f"default/{it}" for it in pods)
    return ServiceView("default", name, "ClusterIP", ("IPv4",), ips, external, (ports,), backends)


LAB = LabView(
    name="lab",
    manifests="/m",
    nodes=(node(1), node(2)),
    services=(
        service("web", "80:30080/TCP", "web-1", "web-2", ips=("10.96.1.1",), external=("203.0.113.1",)),
        service("one", "81/TCP", "db-0", ips=("10.96.1.2",)),
        service("db", "8080/TCP", "db-0", ips=("None",)),
        service("none", "82/TCP", ips=("10.96.1.3",)),
        ServiceView(
            "default",
            "shop",
            "LoadBalancer",
            ("IPv4",),
            ("10.96.1.4",),
            (),
            ("80/TCP",),
            ("default/web-1", "default/web-2"),
            (BalancerView("192.168.99.251", "node2"), BalancerView("203.0.113.9", "", ("node1", "node2"))),
        ),
        ServiceView(
            "kube-system", "kube-dns", "ClusterIP", ("IPv4",), ("10.96.0.10",), (), ("53/UDP",), ("kube-system/dns-1",)
        ),
    ),
    workloads=(),
    pods=(
        pod("web-1", 2),
        pod("web-2", 3, node=2),
        pod("db-0", 4, kind="StatefulSet", hostname="db-0"),
        msgspec.structs.replace(pod("dns-1", 5), namespace="kube-system", ports=("53/UDP",)),
        pod("far-1", 6, node=2),
    ),
    clients=(
        ClientView("client1", ("192.168.99.201",), "space-client1"),
        ClientView("client2", ("192.168.90.202",), "space-client2", behind=True),
    ),
    notes=(),
    error="",
    problems=(),
)
NAMES = names_of(LAB.nodes)


def of(path: str) -> list[Question]:
    return [it for it in questions(LAB) if it.path == path]


def test_every_kind_of_way_is_asked() -> None:
    assert {it.path for it in questions(LAB)} == {
        "pod to pod, same node",
        "pod to pod, other node",
        "node to pod, same node",
        "node to pod, other node",
        "client to pod",
        "pod to cluster IP",
        "node to cluster IP",
        "pod to cluster DNS",
        "node to cluster DNS",
        "pod to Service without backends",
        "node to Service without backends",
        "backend to itself by cluster IP",
        "Service's name by DNS",
        "headless Service's name by DNS",
        "pod's name by DNS",
        "pod to headless Service by DNS",
        "pod to node port, own node",
        "pod to node port, other node",
        "node to node port, own node",
        "node to node port, other node",
        "client to node port",
        "pod to external IP",
        "node to external IP",
        "client to external IP",
        "pod to load balancer",
        "node to load balancer",
        "client to load balancer",
        "client to load balancer by ARP, NDP",
        "client behind the router to load balancer",
        "pod to a port that no Service has",
        "node to a port that no Service has",
    }


def shop(**changes) -> LabView:
    """The lab with its load balancer otherwise."""
    services = (msgspec.structs.replace(it, **changes) if it.balancers else it for it in LAB.services)
    return msgspec.structs.replace(LAB, services=tuple(services))


ANSWERED, ROUTED = "192.168.99.251", "203.0.113.9"


@pytest.mark.parametrize(
    ("path", "host", "local", "wanted"),
    [
        (BY_ARP, ANSWERED, False, {"default/web-1": "192.168.99.2", "default/web-2": ""}),
        (BY_ARP, ANSWERED, True, {"default/web-2": ""}),
        ("client to load balancer", ROUTED, False, {"default/web-1": "", "default/web-2": "192.168.99.1"}),
        ("client to load balancer", ROUTED, True, {"default/web-1": ""}),
        (BEHIND_ROUTER, ROUTED, False, {"default/web-1": "", "default/web-2": ""}),
    ],
)
def test_a_client_comes_to_a_load_balancer_by_who_announces_it(path, host, local, wanted) -> None:
    (asked,) = [it for it in questions(shop(local=local)) if it.path == path]
    assert (asked.host, asked.port, asked.wanted) == (host, 80, wanted)


def test_what_no_router_is_told_of_is_asked_from_behind_none() -> None:
    lab = shop(balancers=(BalancerView(ANSWERED, "node2"), BalancerView(ROUTED)))
    assert all(it.path != BEHIND_ROUTER for it in questions(lab))


def test_who_answers_for_a_load_balancers_address() -> None:
    asked = {it.host: it for it in questions(LAB) if it.path.endswith("to load balancer") or it.path == BY_ARP}
    assert {host: owner_of(LAB, it) for host, it in asked.items()} == {ANSWERED: "node2", ROUTED: ""}
    assert behind(LAB, asked[ANSWERED]) == behind(LAB, asked[ROUTED]) == {"default/web-1", "default/web-2"}


MAPPED = (
    "8001/TCP to 8080",
    "192.168.99.1:8002/UDP to 8080",
    "[fd00:99::1]:8003/TCP to 8080",
    "127.0.0.1:8004/TCP to 8080",  # the node's alone
    "192.168.99.2:8005/TCP to 8080",  # another node's
    "30080/TCP to 8080",  # a Service's, there
)


def test_ports_of_the_node_that_lead_to_a_pod_are_asked_of_its_node() -> None:
    pods = tuple(msgspec.structs.replace(it, host_ports=MAPPED if it.name == "db-0" else ()) for it in LAB.pods)
    asked = [it for it in questions(msgspec.structs.replace(LAB, pods=pods)) if "host port" in it.path]
    assert {(it.host, it.port) for it in asked} == {
        ("192.168.99.1", 8001),
        ("fd00:99::1", 8001),
        ("192.168.99.1", 8002),
        ("fd00:99::1", 8003),
    }
    seen = {(it.path, it.source.pod == "default/db-0"): it.wanted["default/db-0"] for it in asked if ":" not in it.host}
    assert seen == {
        ("pod to host port, own node", False): "",
        ("pod to host port, own node", True): "10.244.1.1",  # itself
        ("pod to host port, other node", False): "",
        ("node to host port, own node", False): "",
        ("node to host port, other node", False): "",
        ("client to host port", False): "",
    }


def test_every_service_is_asked_from_every_node() -> None:
    asked = {(it.target, it.source.node) for it in questions(LAB) if it.path.endswith((" IP", "backends", "DNS"))}
    for name in ("web", "one", "none", "kube-dns"):
        assert {(f"Service {name}", node.name) for node in LAB.nodes} <= asked


@pytest.mark.parametrize(
    ("path", "place", "wanted"),
    [
        pytest.param(
            "pod to cluster IP",
            "10.96.1.1:80/TCP",
            {"default/web-1": "", "default/web-2": ""},
            id="a cluster IP: the client as it is",
        ),
        pytest.param(
            "backend to itself by cluster IP",
            "10.96.1.2:81/TCP",
            {"default/db-0": "10.244.1.1"},
            id="itself: its node stands in",
        ),
        pytest.param(
            "client to node port",
            "192.168.99.2:30080/TCP",
            {"default/web-1": "192.168.99.2", "default/web-2": ""},
            id="from outside: the node that balances stands in before the others' pods",
        ),
        pytest.param(
            "pod to node port, own node",
            "192.168.99.1:30080/TCP",
            {"default/web-1": "", "default/web-2": ""},
            id="a pod's own node: the answer comes by there anyway",
        ),
        pytest.param(
            "node to node port, other node",
            "192.168.99.2:30080/TCP",
            {"default/web-1": "192.168.99.2", "default/web-2": ""},
            id="another node's",
        ),
        pytest.param(
            "client to external IP",
            "203.0.113.1:80/TCP",
            {"default/web-1": "", "default/web-2": "192.168.99.1"},
            id="an external IP: by the first node",
        ),
        pytest.param("pod to Service without backends", "10.96.1.3:82/TCP", {}, id="nobody"),
        pytest.param("pod to a port that no Service has", "10.96.1.1:1/TCP", {}, id="no such port"),
        pytest.param("pod to cluster DNS", "10.96.0.10:53/UDP", {"kube-system/dns-1": ""}, id="the name server"),
    ],
)
def test_who_answers_and_whom_they_see(path: str, place: str, wanted: dict[str, str]) -> None:
    found = [it for it in of(path) if it.place == place]
    assert found
    assert all(dict(it.wanted) == wanted for it in found)


def test_names_are_asked_for_with_their_right_answers() -> None:
    by_name = {it.lookup.name.removesuffix(f".svc.{DOMAIN}"): it.records for it in questions(LAB) if it.lookup}
    assert by_name == {
        "web.default": {"10.96.1.1"},
        "one.default": {"10.96.1.2"},
        "none.default": {"10.96.1.3"},
        "shop.default": {"10.96.1.4"},
        "db.default": {"10.244.1.4"},
        "db-0.db.default": {"10.244.1.4"},
        "kube-dns.kube-system": {"10.96.0.10"},
    }


def test_a_headless_service_s_port_is_asked_where_its_pods_have_it() -> None:
    elsewhere = service("db", "5432/TCP", "db-0", ips=("None",))
    lab = msgspec.structs.replace(LAB, services=(elsewhere, *(it for it in LAB.services if it.name != "db")))
    assert len(of("pod to headless Service by DNS")) == 1
    assert "pod to headless Service by DNS" not in {it.path for it in questions(lab)}


def test_who_is_behind_a_question_now() -> None:
    fewer = msgspec.structs.replace(
        LAB, services=(service("web", "80:30080/TCP", "web-2", ips=("10.96.1.1",)), *LAB.services[1:])
    )
    for path in ("pod to cluster IP", "client to node port"):
        (question, *_) = of(path)
        assert behind(LAB, question) == {"default/web-1", "default/web-2"}
        assert behind(fewer, question) == {"default/web-2"}
    (elsewhere, *_) = of("client to external IP")
    assert behind(fewer, elsewhere) == frozenset()


# --- judgement ---------------------------------------------------------------------------------

ONE = Answer("default/web-1", "node1", "10.0.0.9", asked_from="10.0.0.9")
TWO = Answer("default/web-2", "node2", "10.0.0.9", asked_from="10.0.0.9")
LOST = Answer(error=TIMEOUT)


@pytest.mark.parametrize(
    ("answers", "right", "answered", "seen"),
    [
        pytest.param([ONE, TWO], True, "2 pods on node1, node2", "itself", id="both"),
        pytest.param([ONE, ONE], False, "default/web-1 ×2", "itself", id="one never comes"),
        pytest.param(
            [ONE, TWO, Answer("default/db")],
            False,
            "default/db ×1, default/web-1 ×1, default/web-2 ×1",
            "itself",
            id="a stranger",
        ),
        pytest.param(
            [ONE, TWO, LOST], False, "default/web-1 ×1, default/web-2 ×1, timeout ×1", "itself", id="one is lost"
        ),
        pytest.param(
            [ONE, msgspec.structs.replace(TWO, client="10.244.1.1")],
            False,
            "2 pods on node1, node2",
            "itself, node1, not itself",
            id="another client is seen",
        ),
    ],
)
def test_answers_are_judged(answers: list[Answer], right: bool, answered: str, seen: str) -> None:
    (question, *_) = of("pod to cluster IP")
    row = judge(question, answers, NAMES)
    assert (row.right, row.answered, row.seen) == (right, answered, seen)


def test_a_refusal_is_right_where_it_is_expected() -> None:
    (question, *_) = of("pod to a port that no Service has")
    assert judge(question, [Answer(error=REFUSED)], NAMES).right
    assert not judge(question, [LOST], NAMES).right


def test_a_name_server_must_say_the_right_addresses() -> None:
    (question, *_) = of("headless Service's name by DNS")
    said = Answer("kube-system/dns-1", "node1", records=frozenset({"10.244.1.4"}))
    assert judge(question, [said], NAMES).right
    row = judge(question, [msgspec.structs.replace(said, records=frozenset())], NAMES)
    assert (row.right, row.answered) == (False, "1 pod on node1, saying nothing")
