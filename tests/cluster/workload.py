"""The pods and Services that the tests ask, and how they ask.

Invariants: one pod of each kind on each node, named after it; a pod of the host's network answers with its node's name.
All answer by TCP and UDP (agnhost netexec).
"""

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.cluster import Cluster
from tests.cluster.machine import PATIENCE
from tests.cluster.parts import images
from tests.cluster.variant import Variant

_CLIENT = Path(__file__).with_name("client.py").read_text(encoding="utf-8")
_TCP, _UDP = 8080, 8081
_HOST_TCP, _HOST_UDP = 9080, 9081
_MOST = 64
"""Questions until every backend has answered: of two, one stays silent by chance in 1 of 2^63 cases."""
NODE_PORTS = {"TCP": 30080, "UDP": 30081}
PORTS = {"TCP": 80, "UDP": 81}


class Question(NamedTuple):
    """`expected`: the names that must answer, and no others."""

    protocol: str
    address: str
    port: int
    expected: frozenset[str]


def pod(name: str, node: str, labels: dict[str, str], host: bool = False) -> dict[str, Any]:
    tcp, udp = (_HOST_TCP, _HOST_UDP) if host else (_TCP, _UDP)
    container = {
        "name": "netexec",
        "image": images.AGNHOST,
        "imagePullPolicy": "Never",
        "args": ["netexec", f"--http-port={tcp}", f"--udp-port={udp}"],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": tcp}, "periodSeconds": 1},
    }
    spec = {"nodeName": node, "hostNetwork": host, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def service(name: str, variant: Variant, selector: dict[str, str], host: bool = False, **spec: Any) -> dict[str, Any]:
    targets = {"TCP": _HOST_TCP if host else _TCP, "UDP": _HOST_UDP if host else _UDP}
    ports = [
        {"name": protocol.lower(), "protocol": protocol, "port": port, "targetPort": targets[protocol]}
        | ({"nodePort": NODE_PORTS[protocol]} if spec.get("type") == "NodePort" else {})
        for protocol, port in PORTS.items()
    ]
    policy = "RequireDualStack" if len(variant.families) > 1 else "SingleStack"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector, "ports": ports, "ipFamilyPolicy": policy, **spec},
    }


def set_up(it: Cluster) -> None:
    """Answers once all pods are ready."""
    made: list[dict[str, Any]] = []
    for node in it.nodes:
        made.append(pod(f"web-{node.name}", node.name, {"app": "web"}))
        made.append(pod(f"host-{node.name}", node.name, {"app": "host"}, host=True))
    it.apply(
        *made,
        service("web", it.variant, {"app": "web"}, type="NodePort"),
        service("host", it.variant, {"app": "host"}, host=True),
    )
    it.wait(*(f"pod/{made_pod['metadata']['name']}" for made_pod in made), until="condition=Ready")


def webs(it: Cluster) -> frozenset[str]:
    return frozenset(f"web-{node.name}" for node in it.nodes)


def hosts(it: Cluster) -> frozenset[str]:
    return frozenset(node.name for node in it.nodes)


def cluster_addresses(it: Cluster, name: str) -> list[str]:
    return list(it.get("service", name)["spec"]["clusterIPs"])


def pod_addresses(it: Cluster, name: str) -> list[str]:
    return [found["ip"] for found in it.get("pod", name)["status"]["podIPs"]]


def of_services(it: Cluster) -> list[Question]:
    """By their cluster IPs, every family: pods, and pods of the host's network, these by TCP only."""
    pods = [
        Question(protocol, address, port, webs(it))
        for address in cluster_addresses(it, "web")
        for protocol, port in PORTS.items()
    ]
    return [*pods, *(Question("TCP", address, PORTS["TCP"], hosts(it)) for address in cluster_addresses(it, "host"))]


def of_host_datagrams(it: Cluster) -> list[Question]:
    """Servers that answer, as most do, from whatever address the node prefers towards the client."""
    return [Question("UDP", address, PORTS["UDP"], hosts(it)) for address in cluster_addresses(it, "host")]


def of_pods(it: Cluster) -> list[Question]:
    return [
        Question(protocol, address, port, frozenset([name]))
        for name in sorted(webs(it))
        for address in pod_addresses(it, name)
        for protocol, port in (("TCP", _TCP), ("UDP", _UDP))
    ]


def of_node_ports(it: Cluster) -> list[Question]:
    return [
        Question(protocol, address, port, webs(it))
        for node in it.nodes
        for address in node.addresses
        for protocol, port in NODE_PORTS.items()
    ]


def wrong_answers(inside: list[str], questions: Iterable[Question]) -> list[str]:
    """What did not answer as expected, in words. `inside`: the command line that enters a network."""
    asked = list(questions)
    lines = "".join(
        json.dumps({**question._asdict(), "expected": sorted(question.expected), "most": _MOST}) + "\n"
        for question in asked
    )
    done = subprocess.run(
        [*inside, "/usr/bin/python3", "-ISc", _CLIENT, "ask"], input=lines, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    wrong = []
    for question, line in zip(asked, done.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        if answer["errors"] or frozenset(answer["names"]) != question.expected:
            what = f"{question.protocol} {question.address} port {question.port}"
            found = ", ".join([*answer["names"], *answer["errors"]])
            wrong.append(f"{what}: expected {', '.join(sorted(question.expected))}; found {found}")
    return wrong


def await_answers(inside: list[str], questions: Iterable[Question]) -> list[str]:
    """`wrong_answers`, asked again until there are none: what changes is known to nobody but the network itself."""
    asked, until = list(questions), time.monotonic() + PATIENCE
    while (wrong := wrong_answers(inside, asked)) and time.monotonic() < until:
        pass
    return wrong


class Traffic:
    """Flows that go on, from several networks."""

    def __init__(self, places: dict[str, list[str]], flows: list[dict[str, Any]]) -> None:
        """`places`: the command line that enters each."""
        self._clients = {
            place: subprocess.Popen(
                [*inside, "/usr/bin/python3", "-ISc", _CLIENT, "go-on"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for place, inside in places.items()
        }
        for client in self._clients.values():
            assert client.stdin is not None
            client.stdin.write(json.dumps(flows) + "\n")
            client.stdin.flush()

    def go_on(self, seconds: int) -> None:
        """Returns after so many more of the lines that each client prints every second."""
        for client in self._clients.values():
            assert client.stdout is not None
            for _ in range(seconds):
                assert client.stdout.readline(), "a client has ended"

    def end(self) -> list[str]:
        """What was lost, in words. Raises AssertionError for a flow that asked nothing."""
        lost = []
        for place, client in self._clients.items():
            out, _ = client.communicate("")
            found = json.loads(out.splitlines()[-1])
            assert all(found["asked"].values()), f"from {place}: a flow did not ask: {found['asked']}"
            lost += [
                f"from {place}, {label}: {len(what)} of {found['asked'][label]}: {'; '.join(what[:3])}"
                for label, what in found["lost"].items()
                if what
            ]
        return lost

    def kill(self) -> None:
        for client in self._clients.values():
            client.kill()
            client.wait()


@contextmanager
def traffic(it: Cluster) -> Iterator[Traffic]:
    """From a pod of each node: to the pods of all nodes and by their Service; kept connections, new ones, datagrams."""
    flows = []
    targets = [(f"Service {address}", address, PORTS) for address in cluster_addresses(it, "web")]
    for name in sorted(webs(it)):
        targets += [(f"{name} {address}", address, {"TCP": _TCP, "UDP": _UDP}) for address in pod_addresses(it, name)]
    for label, address, ports in targets:
        for kind, protocol, kept in (("kept", "TCP", True), ("new", "TCP", False), ("datagrams", "UDP", False)):
            flow = {
                "label": f"{label} {kind}",
                "protocol": protocol,
                "address": address,
                "port": ports[protocol],
                "kept": kept,
            }
            flows.append(flow)
    going = Traffic({name: it.inside_pod(name) for name in sorted(webs(it))}, flows)
    try:
        going.go_on(2)
        yield going
    finally:
        going.kill()
