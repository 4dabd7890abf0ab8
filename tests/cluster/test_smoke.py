"""A cluster of two nodes whose only network is Podwire: IPv4, dual-stack, and dual-stack with IPv6 first."""

import json

import pytest

from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster
from tests.cluster.workload import await_answers, wrong_answers


def test_nodes_are_ready_and_pods_have_an_address_of_each_family(it: Cluster) -> None:
    for node in it.nodes:
        conditions = {found["type"]: found["status"] for found in it.get("node", node.name)["status"]["conditions"]}
        assert it.is_ready(node)
        assert conditions.get("NetworkUnavailable", "False") == "False"
    for name in sorted(workload.webs(it)):
        families = tuple(6 if ":" in address else 4 for address in workload.pod_addresses(it, name))
        assert families == it.variant.families


@pytest.mark.parametrize("number", [1, 2], ids=["from node1", "from node2"])
class TestFromEachNode:
    def test_pods_reach_pods(self, it: Cluster, number: int) -> None:
        assert not wrong_answers(it.inside_pod(f"web-node{number}"), workload.of_pods(it))

    def test_pods_reach_services(self, it: Cluster, number: int) -> None:
        """Itself included: one of the backends is on each node."""
        assert not wrong_answers(it.inside_pod(f"web-node{number}"), workload.of_services(it))

    def test_the_node_reaches_pods_and_services(self, it: Cluster, number: int) -> None:
        questions = [*workload.of_pods(it), *workload.of_services(it)]
        assert not wrong_answers(it.nodes[number - 1].machine.inside(), questions)

    def test_pods_reach_datagram_servers_of_the_hosts(self, it: Cluster, number: int) -> None:
        assert not wrong_answers(it.inside_pod(f"web-node{number}"), workload.of_host_datagrams(it))

    def test_pods_reach_node_ports(self, it: Cluster, number: int) -> None:
        assert not wrong_answers(it.inside_pod(f"web-node{number}"), workload.of_node_ports(it))

    def test_pods_resolve_names(self, it: Cluster, number: int) -> None:
        """By the resolver that kubelet told them: short names, and those of other namespaces."""
        for name in ("web", "web.default", "web.default.svc.cluster.local"):
            answered = it.execute(f"web-node{number}", "curl", "-sS", "--max-time", "10", f"http://{name}/hostname")
            assert answered in workload.webs(it)

    def test_pods_reach_the_api_server_by_its_service(self, it: Cluster, number: int) -> None:
        found = it.execute(
            f"web-node{number}", "curl", "-sSk", "--max-time", "10", "https://kubernetes.default.svc/version"
        )
        assert json.loads(found)["major"] == "1"


def test_outside_reaches_node_ports(it: Cluster) -> None:
    """By each node's addresses, from a machine beside the cluster."""
    assert not wrong_answers(it.plane.machine.inside(), workload.of_node_ports(it))


def test_a_service_follows_its_pods(it: Cluster) -> None:
    """One pod goes and comes back with another address."""
    name, others = "web-node1", workload.webs(it) - {"web-node1"}
    it.kubectl("delete", "pod", name, "--now")
    gone = [
        workload.Question(protocol, address, port, others)
        for address in workload.cluster_addresses(it, "web")
        for protocol, port in workload.PORTS.items()
    ]
    assert not await_answers(it.inside_pod("web-node2"), gone)
    it.apply(workload.pod(name, "node1", {"app": "web"}))
    it.wait(f"pod/{name}", until="condition=Ready")
    assert not await_answers(it.inside_pod("web-node2"), workload.of_services(it))


def test_the_doctor_finds_nothing_wrong_from_the_agent_s_container(it: Cluster) -> None:
    for node in it.nodes:
        report = json.loads(podwire.ask(it, node.name, "doctor", "-o", "json"))  # exit code 1 is an error
        assert [found for found in report["findings"] if found["state"] in ("warning", "wrong")] == []
        states = {found["name"]: found["state"] for found in report["findings"]}
        told = (
            "api-servers",
            "api-certificate",
            "api-rights",
            "node-object",
            "cni-configuration",
            "cni-socket",
            "agent",
        )
        assert {name: states[name] for name in told} == dict.fromkeys(told, "ok")


def test_nothing_differs_from_what_should_be(it: Cluster) -> None:
    podwire.verify(it)
