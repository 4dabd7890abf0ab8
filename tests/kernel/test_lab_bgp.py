"""A lab whose nodes take the ways to each other's pods from the router: no agent makes such a route, and every pod is
reached."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from podwire.lab import control
from podwire.lab.layout import LabError
from podwire.lab.views import LabView
from tests.kernel import labs
from tests.kernel.rig import sh

NAME = f"b{os.getpid()}"
RANGES = '["10.244.0.0/16", "fd00:244::/48"]'
MANIFESTS = """
apiVersion: podwire.io/v1alpha1
kind: BGPPeer
metadata: {{name: fabric}}
spec:
  {{peerAddress: 192.168.99.254, peerASN: 64500, myASN: {asn}, connectRetryTimeSeconds: 1, bfd: {{}},
    receive: {receive}}}
---
apiVersion: podwire.io/v1alpha1
kind: BGPAdvertisement
metadata: {{name: pods}}
spec: {{advertise: [PodCIDR]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: [{{name: main, ports: [{{containerPort: 8080}}]}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{ipFamilyPolicy: PreferDualStack, selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}
"""


@pytest.fixture
def root() -> Iterator[Path]:
    with labs.directory() as found:
        yield found


def manifests(directory: Path, asn: int, receive: str = RANGES) -> Path:
    (directory / "all.yaml").write_text(MANIFESTS.format(asn=asn, receive=receive))
    return directory


def protocols(view: LabView, node: str) -> dict[str, str]:
    """By which protocol that node has the ways to the others' pods."""
    space = next(it.space for it in view.nodes if it.name == node)
    others = {cidr for it in view.nodes if it.name != node for cidr in it.pod_cidrs}
    routes = (
        it for version in ("-4", "-6") for it in msgspec.json.decode(sh("ip", "-json", version, "-n", space, "route"))
    )
    return {it["dst"]: it["protocol"] for it in routes if it["dst"] in others}


@pytest.mark.parametrize("asn", [64512, 64500], ids=["another AS", "the router's own AS"])
def test_pods_of_every_node_are_reached_by_what_the_router_tells(root: Path, tmp_path: Path, asn: int) -> None:
    with labs.lab(root, NAME, manifests(tmp_path, asn), 3, transport="bgp") as lab:
        view = labs.seen(lab)
        for node in view.nodes:
            assert protocols(view, node.name) == {
                cidr: "bgp" for it in view.nodes if it is not node for cidr in it.pod_cidrs
            }
        labs.all_right(view)
        control.ask(lab, control.KillNode("node2"))
        control.ask(lab, control.StartNode("node2"))
        labs.all_right(labs.seen(lab))
        control.ask(lab, control.Readdress("node2"))
        labs.all_right(labs.seen(lab))


def test_what_no_node_takes_is_told_by_node_and_range(root: Path, tmp_path: Path) -> None:
    with labs.lab(root, NAME, manifests(tmp_path, 64512, '["10.244.0.0/16"]'), 2, transport="bgp") as lab:
        assert control.view(lab).problems == (
            "node1: not programmed after 15 s: no route to fd00:244:0:2::/64 via fd00:99::2",
            "node2: not programmed after 15 s: no route to fd00:244:0:1::/64 via fd00:99::1",
        )


def test_several_links_are_refused_since_only_one_has_the_router_s_session(root: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(LabError, match="expected one link with transport bgp"),
        labs.lab(root, NAME, manifests(tmp_path, 64512), 2, links=2, transport="bgp"),
    ):
        raise AssertionError("it is up")
    assert not (root / NAME).exists()
