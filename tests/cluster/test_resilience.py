"""What dies, and what goes on: under traffic between living pods, nothing is lost, and nothing differs afterwards.

Invariants: each test ends with the cluster as it began, and proves it: all agents ready, pods can be made and removed.
"""

import signal
from collections.abc import Iterator

import pytest

from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster
from tests.cluster.variant import DUAL
from tests.cluster.workload import await_answers, traffic, wrong_answers

pytestmark = pytest.mark.parametrize("it", [pytest.param(DUAL, id="dual")], indirect=True)
OUTAGE = 60
"""Seconds without an API server and controllers."""


@pytest.fixture
def whole_again(it: Cluster) -> Iterator[None]:
    """After the test: nothing differs, and new pods get a network and are reached by a new Service.

    Not by the Service of the traffic: what a client asked by UDP still goes to a pod that has gone, for half a minute.
    """
    yield
    podwire.await_ready(it)
    podwire.verify(it)
    names = frozenset(f"new-{node.name}" for node in it.nodes)
    it.apply(
        *(workload.pod(f"new-{node.name}", node.name, {"app": "new"}) for node in it.nodes),
        workload.service("new", it.variant, {"app": "new"}),
    )
    it.wait(*(f"pod/{name}" for name in sorted(names)), until="condition=Ready")
    questions = [
        workload.Question(protocol, address, port, names)
        for address in workload.cluster_addresses(it, "new")
        for protocol, port in workload.PORTS.items()
    ]
    assert not await_answers(it.inside_pod("web-node1"), questions)
    it.kubectl("delete", "service/new", *(f"pod/{name}" for name in sorted(names)), "--now")
    assert not wrong_answers(it.inside_pod("web-node1"), workload.of_services(it))
    podwire.verify(it)


def begin_anew(it: Cluster) -> None:
    """After an outage kubelets ask the API server for pods again only when a growing delay has passed: new ones ask at
    once."""
    for node in it.nodes:
        node.restart_kubelet()
    podwire.await_kubelets(it)


def test_the_control_plane_is_down(it: Cluster, whole_again: None) -> None:
    with traffic(it) as flows:
        it.plane.pause()
        flows.go_on(OUTAGE)
        it.plane.resume()
        flows.go_on(5)
        assert not flows.end()
    begin_anew(it)


def test_agents_are_killed(it: Cluster, whole_again: None) -> None:
    before = podwire.restarts(it)
    with traffic(it) as flows:
        for node in it.nodes:
            podwire.send(it, node, signal.SIGKILL)
        podwire.await_restart(it, before)
        flows.go_on(5)
        assert not flows.end()


def test_an_update_replaces_one_agent_after_the_other(it: Cluster, whole_again: None) -> None:
    with traffic(it) as flows:
        it.kubectl("-n", podwire.NAMESPACE, "rollout", "restart", "daemonset/podwire")
        podwire.await_ready(it)
        assert not flows.end()


def test_agents_are_killed_while_the_control_plane_is_down(it: Cluster, whole_again: None) -> None:
    """They look after what was wired from what they remember and read, and serve what was programmed."""
    before = podwire.restarts(it)
    with traffic(it) as flows:
        it.plane.pause()
        for node in it.nodes:
            podwire.send(it, node, signal.SIGKILL)
        flows.go_on(15)
        it.plane.resume()
        podwire.await_restart(it, before)
        flows.go_on(5)
        assert not flows.end()
    begin_anew(it)


def test_a_node_stays_ready_while_its_agent_is_away(it: Cluster, whole_again: None) -> None:
    with traffic(it) as flows:
        for node in it.nodes:
            podwire.send(it, node, signal.SIGSTOP)
        flows.go_on(20)
        not_ready = [node.name for node in it.nodes if not it.is_ready(node)]
        for node in it.nodes:
            podwire.send(it, node, signal.SIGCONT)
        flows.go_on(5)
        assert not flows.end()
        assert not not_ready


def test_containerd_is_restarted(it: Cluster, whole_again: None) -> None:
    with traffic(it) as flows:
        for node in it.nodes:
            node.stop_containerd()
            node.start_containerd()
        flows.go_on(5)
        it.await_nodes()
        assert not flows.end()
