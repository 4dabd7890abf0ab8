"""Pods of pools: two nodes whose blocks are in manifests, and what a node does where they are full or go away."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.cni.errors import ErrorCode
from podwire.controller.events import Refusal
from podwire.lab import control, probe
from podwire.lab.layout import Lab
from podwire.lab.topology import path_of
from podwire.lab.views import LabView, PodView
from podwire.model.addresses import parse_address, parse_prefix, parse_range, show_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import Node, PodBlock, PodBlockKey, PodPool, PodPoolKey
from podwire.sources.cni_server import status
from podwire.sources.pod_pools import block_name
from tests.kernel import labs
from tests.kernel.labs import all_right
from tests.kernel.rig import NODE, Rig, ask, dump, respond, service

NAME = f"p{os.getpid()}"
BLUE, RED = "10.21.0", "10.22.0"


def pool(name: str, ipv4: str, ipv6: str) -> str:
    return f"""
---
apiVersion: v1
kind: Namespace
metadata: {{name: {name}, annotations: {{podwire.io/pool: {name}}}}}
---
apiVersion: podwire.io/v1alpha1
kind: PodPool
metadata: {{name: {name}}}
spec:
  cidrs: ["{ipv4}.0/24", "{ipv6}::/112"]
  blockSizes: {{ipv4: 28, ipv6: 124}}
  reserved: ["{ipv4}.0-{ipv4}.3", "{ipv4}.18/32", "{ipv6}::17/128"]
  autoAssign: false
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: each, namespace: {name}}}
spec:
  selector: {{matchLabels: {{app: each}}}}
  template:
    metadata: {{labels: {{app: each}}}}
    spec: {{containers: [{{name: main, ports: [{{containerPort: 8080}}]}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {name}}}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {{app: each}}
  ports: [{{name: tcp, port: 80, targetPort: 8080}}]
"""


def block(cidr: str, name: str, node: str) -> str:
    return f"""
---
apiVersion: podwire.io/v1alpha1
kind: PodBlock
metadata: {{name: {block_name(parse_prefix(cidr))}}}
spec: {{cidr: "{cidr}", pool: {name}, node: {node}}}
"""


MANIFESTS = (
    """
apiVersion: v1
kind: Pod
metadata: {name: fixed, annotations: {podwire.io/pool: blue, podwire.io/addresses: "10.21.0.2, fd21::17"}}
spec: {nodeName: node2, containers: [{name: main, ports: [{containerPort: 8080}]}]}
"""
    + pool("blue", BLUE, "fd21")
    + block(f"{BLUE}.2/32", "blue", "node2")
    + block("fd21::17/128", "blue", "node2")
    + pool("red", RED, "fd22")
    + "".join(
        block(f"{ipv4}.{16 * number - 16}/28", name, f"node{number}")
        + block(f"{ipv6}::{number:x}0/124", name, f"node{number}")
        for name, ipv4, ipv6 in (("blue", BLUE, "fd21"), ("red", RED, "fd22"))
        for number in (1, 2)
    )
)


@pytest.fixture(params=["auto", "vxlan"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Two nodes that share a link, whatever the way between them."""
    (tmp_path / "all.yaml").write_text(MANIFESTS)
    name = f"{NAME}{request.param[0]}"
    with labs.directory() as root, labs.lab(root, name, tmp_path, 2, transport=request.param) as found:
        yield found


def pod_on(seen: LabView, node: int, namespace: str) -> PodView:
    return next(it for it in seen.pods if it.node == f"node{node}" and it.namespace == namespace)


def test_pods_of_two_pools_on_two_nodes_reach_each_other(lab: Lab) -> None:
    seen = control.view(lab)
    assert not seen.problems
    expected = {
        ("blue", 1): (f"{BLUE}.5", "fd21::12"),  # 0 to 3 are reserved, 4 is the node's
        ("red", 1): (f"{RED}.5", "fd22::12"),
        ("blue", 2): (f"{BLUE}.19", "fd21::22"),
        ("red", 2): (f"{RED}.19", "fd22::22"),
    }
    pods = {key: pod_on(seen, key[1], key[0]) for key in expected}
    assert {key: it.addresses for key, it in pods.items()} == expected
    for client in pods.values():
        for server in pods.values():
            for address in server.addresses:
                said = probe.ask(path_of(client.space), address, 8080)
                assert said.pod == f"{server.namespace}/{server.name}", said
                assert said.client in client.addresses, said
    # Its addresses are reserved in blocks of node1, and lead to node2 from wherever.
    fixed = pod_on(seen, 2, "default")
    assert fixed.addresses == (f"{BLUE}.2", "fd21::17")
    for client in pods.values():
        for address in fixed.addresses:
            assert probe.ask(path_of(client.space), address, 8080).pod == "default/fixed"
    all_right(seen)


MORE = """
apiVersion: v1
kind: Pod
metadata: {name: later, annotations: {podwire.io/pool: red}}
spec: {nodeName: node1, containers: [{name: main, ports: [{containerPort: 8080}]}]}
"""


def test_a_pod_that_comes_later_gets_of_the_pool_that_it_names(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text(MORE)
    control.ask(lab, control.Sync())
    seen = control.view(lab)
    assert next(it.addresses for it in seen.pods if it.name == "later") == (f"{RED}.6", "fd22::13")
    assert not seen.problems


# --- one node ----------------------------------------------------------------------------------

WEB = PodPoolKey("web")
RESERVED = ("10.31.0.2-10.31.0.4", "10.31.0.9-10.31.0.11")
OBJECTS: dict[ObjectKey, Object] = {
    NODE: Node(),
    WEB: PodPool((parse_prefix("10.31.0.0/24"),), (29, 125), tuple(map(parse_range, RESERVED))),
    **{PodBlockKey(parse_prefix(f"10.31.0.{at}/29")): PodBlock("one", "web") for at in (0, 8)},
    PodBlockKey(parse_prefix("10.31.0.3/32")): PodBlock("one", "web"),
}


async def test_what_is_reserved_is_never_given_and_a_full_pool_is_named_by_status(rig: Rig) -> None:
    await rig.start(OBJECTS)
    given = []
    for name in "abcd":
        assert status(rig.running.controller) is None
        assert (await rig.add(name)).error is None
        given += map(show_address, rig.running.controller.snapshot.attachments[rig.key(name)].addresses)
    assert sorted(given) == ["10.31.0.13", "10.31.0.14", "10.31.0.5", "10.31.0.6"]
    why = status(rig.running.controller)
    assert why is not None
    assert why.code is ErrorCode.NOT_AVAILABLE
    assert why.text == "no IPv4 address is free in pool web: all 4 of this node's 2 IPv4 blocks are in use"
    refused = await rig.add("e")
    assert (refused.refusal, refused.error) == (Refusal.EXHAUSTED, why.text)
    assert (await rig.delete("b")).error is None
    assert status(rig.running.controller) is None
    assert (await rig.add("e")).error is None
    assert await rig.drift() == []


async def test_a_start_without_the_cluster_gives_of_the_blocks_that_it_had(rig: Rig) -> None:
    await rig.start(OBJECTS | service("web", 10, ("10.31.0.13",)))
    assert (await rig.add("a")).error is None
    respond(rig.pods["a"], "a")
    await rig.stop()
    await rig.start_alone()
    assert (await rig.add("b")).error is None
    assert rig.running.controller.snapshot.attachments[rig.key("b")].addresses == (parse_address("10.31.0.14"),)
    assert ask(rig.pods["b"], "10.31.0.13", 8080) == "a 10.31.0.14"
    assert ask(rig.pods["b"], "10.96.0.10") == "a 10.31.0.14"


async def test_a_pool_that_goes_takes_no_living_pod_s_address_and_its_block_goes_without_a_trace(rig: Rig) -> None:
    await rig.start({NODE: Node((parse_prefix("10.1.1.0/24"),))})
    clean = dump()
    mine = PodBlockKey(parse_prefix("10.31.0.0/29"))
    await rig.change((WEB, OBJECTS[WEB]), (mine, OBJECTS[mine]), (NODE, Node()))
    assert (await rig.add("a")).error is None
    respond(rig.pods["a"], "a")
    assert ask(None, "10.31.0.5", 8080) == "a 10.31.0.1"
    await rig.change((WEB, None))
    assert ask(None, "10.31.0.5", 8080) == "a 10.31.0.1"
    assert (await rig.add("b")).error == "node one has no spec.podCIDRs yet"
    assert await rig.drift() == []
    assert (await rig.delete("a")).error is None
    await rig.change((mine, None), (NODE, Node((parse_prefix("10.1.1.0/24"),))))
    rig.running.linux.collect()
    assert dump() == clean
