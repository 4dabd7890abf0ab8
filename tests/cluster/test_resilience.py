"""What dies, and what goes on: under traffic between living pods, nothing is lost, and nothing differs afterwards.

Invariants: each test ends with the cluster as it began, and proves it: all agents ready, pods can be made and removed.
"""

import signal
from collections.abc import Iterator

import pytest

from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster
from tests.cluster.variant import DUAL
from tests.cluster.workload import await_answers, traffic

pytestmark = pytest.mark.parametrize("it", [pytest.param(DUAL, id="dual")], indirect=True)
OUTAGE = 60
"""Seconds without an API server."""


@pytest.fixture
def whole_again(it: Cluster) -> Iterator[None]:
    """After the test: nothing differs, and a new pod gets a network and is reached."""
    yield
    podwire.await_ready(it)
    podwire.verify(it)
    for node in it.nodes:
        it.apply(workload.pod(f"new-{node.name}", node.name, {"app": "web"}))
        it.wait(f"pod/new-{node.name}", until="condition=Ready")
    names = workload.webs(it) | {f"new-{node.name}" for node in it.nodes}
    questions = [
        workload.Question(protocol, address, port, names)
        for address in workload.cluster_addresses(it, "web")
        for protocol, port in workload.PORTS.items()
    ]
    assert not await_answers(it.inside_pod("web-node1"), questions)
    it.kubectl("delete", "pod", *(f"new-{node.name}" for node in it.nodes), "--now")
    assert not await_answers(it.inside_pod("web-node1"), workload.of_services(it))
    podwire.verify(it)


def test_the_api_server_is_down(it: Cluster, whole_again: None) -> None:
    with traffic(it) as flows:
        it.plane.stop_api_server()
        flows.go_on(OUTAGE)
        it.plane.start_api_server()
        flows.go_on(5)
        assert not flows.end()


def test_agents_are_killed(it: Cluster, whole_again: None) -> None:
    before = podwire.restarts(it)
    with traffic(it) as flows:
        for node in it.nodes:
            podwire.kill(it, node, signal.SIGKILL)
        podwire.await_restart(it, before)
        flows.go_on(5)
        assert not flows.end()


def test_agents_are_killed_while_the_api_server_is_down(it: Cluster, whole_again: None) -> None:
    """They look after what was wired from what they remember and read, and serve what was programmed."""
    before = podwire.restarts(it)
    with traffic(it) as flows:
        it.plane.stop_api_server()
        for node in it.nodes:
            podwire.kill(it, node, signal.SIGKILL)
        flows.go_on(15)
        it.plane.start_api_server()
        podwire.await_restart(it, before)
        flows.go_on(5)
        assert not flows.end()


def test_containerd_is_restarted(it: Cluster, whole_again: None) -> None:
    with traffic(it) as flows:
        for node in it.nodes:
            node.stop_containerd()
            node.start_containerd()
        flows.go_on(5)
        it.await_nodes()
        assert not flows.end()


def test_an_update_replaces_one_agent_after_the_other(it: Cluster, whole_again: None) -> None:
    with traffic(it) as flows:
        it.kubectl("-n", podwire.NAMESPACE, "rollout", "restart", "daemonset/podwire")
        podwire.await_ready(it)
        assert not flows.end()
