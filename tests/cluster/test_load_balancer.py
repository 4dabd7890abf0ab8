"""A Service of type LoadBalancer in a real cluster: the controller of the manifest gives it addresses, and all nodes
answer there, for whoever knows the way to them."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster import workload
from tests.cluster.cluster import Cluster
from tests.cluster.workload import PORTS, Question, await_answers

RANGES = {4: "203.0.113.32-203.0.113.33", 6: "2001:db8:5::20-2001:db8:5::21"}
FIRST = {4: "203.0.113.32", 6: "2001:db8:5::20"}


@pytest.fixture
def _pool(it: Cluster) -> Iterator[None]:
    spec = {"addresses": [RANGES[family] for family in it.variant.families]}
    thing = {"apiVersion": "podwire.io/v1alpha1", "kind": "AddressPool", "metadata": {"name": "public"}, "spec": spec}
    it.apply(thing)
    yield
    it.kubectl("delete", "addresspool", "public")


@pytest.mark.usefixtures("_pool")
def test_a_service_gets_addresses_and_all_nodes_answer_there(it: Cluster) -> None:
    it.kubectl("-n", "podwire", "rollout", "status", "deployment/podwire-controller", "--timeout=240s")
    it.apply(workload.service("balanced", it.variant, {"app": "web"}, type="LoadBalancer"))
    try:
        condition = "condition=podwire.io/AddressAssigned"
        it.wait("service/balanced", until=condition)
        status = it.get("service", "balanced")["status"]
        addresses = [FIRST[family] for family in it.variant.families]
        assert [found["ip"] for found in status["loadBalancer"]["ingress"]] == addresses
        questions = [
            Question(protocol, address, port, workload.webs(it))
            for address in addresses
            for protocol, port in PORTS.items()
        ]
        for node in it.nodes:
            assert not await_answers(it.inside_pod(f"web-{node.name}"), questions)
        for number, _ in enumerate(it.nodes, 1):
            for family in it.variant.families:
                way = ["replace", FIRST[family], "via", it.variant.node(number, family)]
                it.plane.machine.run("ip", f"-{family}", "route", *way)
            assert not await_answers(it.plane.machine.inside(), questions)
        events = json.loads(it.kubectl("get", "events", "-o", "json"))["items"]
        told = [found["reason"] for found in events if found["involvedObject"]["name"] == "balanced"]
        assert "AddressAssigned" in told
    finally:
        it.kubectl("delete", "service", "balanced")
        for family in it.variant.families:
            it.plane.machine.run("ip", f"-{family}", "route", "del", FIRST[family], check=False)
