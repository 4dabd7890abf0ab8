"""What cri-tools' own tests of the network ask of a runtime holds with Podwire behind it."""

import json

from tests.cluster import critest, podwire
from tests.cluster.cluster import Cluster


def left_out(it: Cluster) -> frozenset[str]:
    """It makes a URL of a pod's first address and puts no brackets around one of IPv6: no HTTP client takes that."""
    return frozenset((critest.CONTAINER_PORT,)) if it.variant.families[0] == 6 else frozenset()


def test_the_network_s_specs_pass_and_leave_nothing(it: Cluster) -> None:
    node, without = it.nodes[-1], left_out(it)
    before = attached(it, node.name)
    with node.without_kubelet():
        found = critest.run(node, without)
    podwire.await_ready(it)
    podwire.await_kubelets(it)
    assert {name: spec.state for name, spec in found.items()} == dict.fromkeys(critest.SPECS - without, "passed"), found
    assert attached(it, node.name) == before
    podwire.verify(it)


def attached(it: Cluster, node: str) -> list[tuple[str, str]]:
    told = json.loads(podwire.ask(it, node, "pods", "-o", "json"))
    return sorted((pod["namespace"], pod["name"]) for pod in told["pods"])
