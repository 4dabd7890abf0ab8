"""Load balancers ask a node by HTTP: a Service's health check node port, and kube-proxy's own port."""

import http.client
import json
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from podwire.doctor.read import others
from tests.kernel.process import PATIENCE, AgentProcess, until
from tests.kernel.rig import MakeSpace, Space, by_hand, entered

PORT, HEALTHZ = 32000, 10256
V4, V6 = "192.0.2.1", "fd99::1"
NODE = """\
apiVersion: v1
kind: Node
metadata: {name: one}
spec:
  podCIDRs: ["10.1.1.0/24", "fd01::/64"]
  taints: [TAINTS]
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "fd99::1"}]}
"""
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: NAME, creationTimestamp: "CREATED"}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.NUMBER, "fd00:96::NUMBER"]
  externalTrafficPolicy: Local
  healthCheckNodePort: HEALTH
  ports: [{port: 80, nodePort: 300NUMBER}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.80}]}}
"""
SLICE = """\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME-1, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [ENDPOINTS]
"""
READY, ELSEWHERE = (f"{{addresses: [10.1.{n}.2], nodeName: {name}}}" for n, name in ((1, "one"), (2, "two")))


def service(name: str = "web", number: int = 10, month: int = 1, port: int = PORT) -> str:
    created = f"2026-0{month}-01T00:00:00Z"
    text = SERVICE.replace("NAME", name).replace("CREATED", created)
    return text.replace("NUMBER", str(number)).replace("HEALTH", str(port))


def backends(*some: str, name: str = "web") -> str:
    return SLICE.replace("NAME", name).replace("ENDPOINTS", ", ".join(some))


def write(directory: Path, name: str, text: str) -> None:
    """At once, as the manifests' source asks for."""
    (directory / f"{name}.new").write_text(text)
    (directory / f"{name}.new").rename(directory / "manifests" / f"{name}.yaml")


@pytest.fixture
def outside(node: Space, make_space: MakeSpace) -> Space:
    """A load balancer beside the node, which has its addresses."""
    space = make_space("outside")
    by_hand(f"ip link set lo up; ip link add up0 type veth peer name up0 netns {space.name}; ip link set up0 up")
    by_hand(f"ip addr add {V4}/24 dev up0; ip addr add {V6}/64 dev up0 nodad")
    with entered(space):
        by_hand("ip link set up0 up; ip addr add 192.0.2.9/24 dev up0; ip addr add fd99::9/64 dev up0 nodad")
        by_hand(f"ip route add default via {V4}; ip -6 route add default via {V6}")
    return space


@pytest.fixture
def agent(outside: Space, tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(tmp_path)
    with made.config.open("a") as config:
        config.write(f'healthz_listen = "0.0.0.0:{HEALTHZ}"\n')
    write(tmp_path, "node", NODE.replace("TAINTS", ""))
    write(tmp_path, "web", service())
    write(tmp_path, "slice", backends(READY))
    made.start()
    yield made
    made.stop(signal.SIGKILL)


def ask(
    space: Space | None, host: str, port: int = PORT, path: str = "/", method: str = "GET", source: str | None = None
) -> tuple[int, Any, Any]:
    """Status, headers and body; the error's name in place of the status."""
    connection = http.client.HTTPConnection(host, port, 10, source_address=(source, 0) if source is not None else None)
    try:
        if space is None:
            connection.request(method, path)
        else:
            with entered(space):
                connection.connect()
            connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    except OSError as error:
        return type(error).__name__, {}, b""  # type: ignore[return-value]
    finally:
        connection.close()


def waited(agent: AgentProcess, event: str, change: Callable[[], None]) -> None:
    """Makes a change, and waits until its event has ended."""
    since = records(agent)[-1]["number"]
    change()
    until(
        lambda: any(record["number"] > since and event in record["event"] for record in records(agent)), PATIENCE, event
    )


def records(agent: AgentProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(agent.say("history", "-o", "json").stdout)["records"]
    return found


@pytest.mark.parametrize("host", [V4, V6], ids=["IPv4", "IPv6"])
def test_a_load_balancer_is_told_what_this_node_has(agent: AgentProcess, outside: Space, host: str) -> None:
    count = 1 if host == V4 else 0
    for client in (outside, None):
        status, headers, body = ask(client, host, path="/any/path?at=all")
        assert status == (200 if count else 503)
        assert headers["Content-Type"] == "application/json"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Load-Balancing-Endpoint-Weight"] == str(count)
        name = {"namespace": "default", "name": "web"}
        assert json.loads(body) == {"service": name, "localEndpoints": count, "serviceProxyHealthy": True}
    status, _, body = ask(outside, host, method="HEAD")
    assert (status, body) == (200 if count else 503, b"")


def test_answers_follow_backends_and_listeners_follow_services(agent: AgentProcess, outside: Space) -> None:
    d = agent.directory
    waited(agent, "slice/default/web-1", lambda: write(d, "slice", backends(ELSEWHERE)))
    assert ask(outside, V4)[0] == 503
    waited(agent, "slice/default/web-1", lambda: write(d, "slice", backends(ELSEWHERE, READY)))
    assert ask(outside, V4)[0] == 200
    told = agent.say("explain", "service/default/web").stdout
    assert "health check node port 192.0.2.1:32000: answers 200, 1 ready backend on this node" in told
    waited(agent, "service/default/web removed", (d / "manifests" / "web.yaml").unlink)
    assert ask(outside, V4)[0] == "ConnectionRefusedError"
    waited(agent, "service/default/web", lambda: write(d, "web", service()))
    assert ask(outside, V4)[0] == 200


def test_of_two_services_with_one_port_the_older_has_it(agent: AgentProcess, outside: Space) -> None:
    younger = service("late", 11, month=2)
    waited(agent, "service/default/late", lambda: write(agent.directory, "late", younger))
    assert json.loads(ask(outside, V4)[2])["service"]["name"] == "web"
    assert "health check node port 32000: default/web has it" in agent.say("explain", "service/default/late").stdout
    waited(agent, "service/default/web removed", (agent.directory / "manifests" / "web.yaml").unlink)
    status, _, body = ask(outside, V4)
    assert (status, json.loads(body)["service"]["name"]) == (503, "late")


def test_a_taken_port_is_told_and_tried_again(agent: AgentProcess, outside: Space) -> None:
    agent.stop()
    reason = (
        f"service/default/web: spec.healthCheckNodePort {PORT}: can't listen on {V4}:{PORT}: Address already in use"
    )
    with socket.create_server((V4, PORT)), socket.create_server(("", HEALTHZ)):
        agent.start()
        told = json.loads(agent.say("status", "-o", "json").stdout)
        assert (told["ready"], len(told["source_errors"])) == (True, 2)
        assert reason in told["source_errors"]
        assert f"healthz_listen: can't listen on 0.0.0.0:{HEALTHZ}: Address already in use" in told["source_errors"]
        assert reason in agent.say("explain", "service/default/web").stdout
        assert ask(outside, V6)[0] == 503  # the other address is not held up
    until(lambda: not json.loads(agent.say("status", "-o", "json").stdout)["source_errors"], PATIENCE, "both taken")
    assert ask(outside, V4)[0] == 200
    assert ask(outside, V4, HEALTHZ, "/healthz")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_a_new_agent_answers_as_soon_as_it_is_ready(
    agent: AgentProcess, outside: Space, number: signal.Signals
) -> None:
    assert ask(outside, V4)[0] == 200
    with socket.create_connection((V4, PORT)):  # somebody who says nothing
        agent.stop(number)
        assert ask(outside, V4)[0] == "ConnectionRefusedError"
        agent.start()
        assert ask(outside, V4)[0] == 200


@pytest.mark.parametrize("host", [V4, V6, "127.0.0.1"])
def test_the_node_answers_as_kube_proxy_does(agent: AgentProcess, outside: Space, host: str) -> None:
    client = None if host == "127.0.0.1" else outside
    for path in ("/healthz", "/livez"):
        status, headers, body = ask(client, host, HEALTHZ, path)
        assert (status, headers["Content-Type"]) == (200, "application/json")
        told = json.loads(body)
        assert {"lastUpdated", "currentTime"} <= told.keys()
        assert told["healthy"] is told["status"]["IPv4"]["healthy"] is told["status"]["IPv6"]["healthy"] is True
    assert ask(client, host, HEALTHZ, "/metrics")[0] == 404
    assert others._health() == ""  # the doctor does not take it for kube-proxy
    doomed = NODE.replace("TAINTS", "{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}")
    waited(agent, "node/one", lambda: write(agent.directory, "node", doomed))
    status, _, body = ask(client, host, HEALTHZ, "/healthz")
    assert (status, json.loads(body)["nodeEligible"]) == (503, False)
    assert ask(client, host, HEALTHZ, "/livez")[0] == 200
    assert ask(outside, V4)[0] == 200  # its Services go on


def test_nobody_but_the_node_itself_is_kept_from_asking(agent: AgentProcess, outside: Space) -> None:
    """An external IP of another Service is the node's address, and its ranges of sources are closed."""
    more = service("more", 12, port=32001)
    more = more.replace("ports:", "loadBalancerSourceRanges: [198.51.100.0/24]\n  externalIPs: [192.0.2.1]\n  ports:")
    waited(agent, "service/default/more", lambda: write(agent.directory, "more", more.replace("203.0.113.80", V4)))
    assert ask(outside, V4)[0] == 200
    assert ask(outside, V4, 32001)[0] == 503


def test_ports_go_with_the_addresses_of_the_node(agent: AgentProcess, outside: Space) -> None:
    agent.stop()
    with agent.config.open("a") as config:
        config.write('node_port_addresses = ["198.51.100.0/24", "fd99::/64"]\n')
    agent.start()
    told = agent.say("explain", "service/default/web").stdout
    assert "no IPv4 address in the ranges of node_port_addresses" in told
    assert ask(outside, V4)[0] == "ConnectionRefusedError"
    assert ask(outside, V6)[0] == 503
    by_address = "NodeAddressesChanged"
    waited(agent, by_address, lambda: by_hand("ip addr add 198.51.100.7/32 dev up0"))
    until(lambda: ask(outside, "198.51.100.7")[0] == 200, PATIENCE, "answered at the new address")
    assert "[fd99::1]:30010/TCP, node port" in agent.say("explain", "service/default/web").stdout
    assert "198.51.100.7:30010/TCP, node port" in agent.say("explain", "service/default/web").stdout
    waited(agent, by_address, lambda: by_hand("ip addr del 198.51.100.7/32 dev up0"))
    assert "198.51.100.7" not in agent.say("explain", "service/default/web").stdout


@pytest.mark.parametrize("said", [b"", b"GET / HT"], ids=["nothing", "half a question"])
@pytest.mark.parametrize(
    "places",
    [[(V4, PORT)], [(V4, HEALTHZ)], [(V4, PORT), (V6, PORT), (V4, HEALTHZ), (V6, HEALTHZ)]],
    ids=["a Service's port", "the node's port", "all ports"],
)
def test_whoever_holds_connections_keeps_nobody_from_asking(
    agent: AgentProcess, outside: Space, places: list[tuple[str, int]], said: bytes
) -> None:
    """Neither others nor itself, and however often it comes again."""
    with entered(outside):
        by_hand("ip addr add 192.0.2.10/24 dev up0")
    with ExitStack() as held:
        for _ in range(5):
            with entered(outside):
                for place in places * (120 // len(places)):
                    one = held.enter_context(socket.create_connection(place))
                    with suppress(OSError):
                        one.send(said)
            for source in ("192.0.2.9", "192.0.2.10"):
                assert ask(outside, V4, source=source)[0] == 200
                assert ask(outside, V4, HEALTHZ, "/healthz", source=source)[0] == 200
    assert agent.say("status").returncode == 0


def test_who_asks_letter_by_letter_is_not_waited_for(agent: AgentProcess, outside: Space) -> None:
    with ExitStack() as held, entered(outside):
        slow = [held.enter_context(socket.create_connection((V4, PORT))) for _ in range(40)]
        for letter in b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 200:
            for one in slow:
                with suppress(OSError):
                    one.send(bytes((letter,)))
            ended, _, _ = select.select(slow, [], [], 1)
            assert not any(answered(one) for one in ended)
            slow = [one for one in slow if one not in ended]
            if not slow:
                break
    assert slow == []
    assert ask(outside, V4)[0] == 200


def answered(one: socket.socket) -> bytes:
    try:
        return one.recv(100)
    except ConnectionResetError:
        return b""


def test_garbage_is_not_logged(agent: AgentProcess, outside: Space) -> None:
    before = agent.log.read_bytes()
    for said in (b"GET /" + b"a" * 9000, b"GET http://[::1/ HTTP/1.1", b"POST / HTTP/1.1\r\nContent-Length: x"):
        with entered(outside), socket.create_connection((V4, PORT), timeout=PATIENCE) as one:
            one.sendall(said + b"\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.0 400 ")
    assert agent.log.read_bytes() == before
