"""Another IPAM plugin on a cluster: the agent's container executes the node's host-local, and nothing of it is lost."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from podwire.cni.install import CONFLIST
from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster
from tests.cluster.node import Node
from tests.cluster.parts import programs
from tests.cluster.workload import Question, await_answers

_FILE = f"/etc/cni/net.d/{CONFLIST}"
_LEASES = "/var/lib/cni/networks"
_LIMIT = 120
"""Seconds, against hanging, never a measure."""
_FIRST = {4: 100, 6: 0x100}
"""So that it is seen who has given an address."""


@pytest.fixture
def delegated(it: Cluster) -> Iterator[None]:
    """host-local gives addresses of the nodes' own ranges, from some number on."""
    before = {node.name: node.machine.run("cat", _FILE) for node in it.nodes}
    for node in it.nodes:
        node.machine.run("cp", programs.path("host-local"), "/opt/cni/bin/")
        _configure(node, json.dumps(_conflist(before[node.name], it.get("node", node.name)["spec"]["podCIDRs"])))
    try:
        yield
    finally:
        it.kubectl("delete", "pods", "-l", "test=delegated", "--now", "--ignore-not-found")
        for node in it.nodes:
            _configure(node, before[node.name])


def _conflist(before: str, blocks: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(before)
    ranges = [[{"subnet": block, "rangeStart": _first(block)}] for block in blocks]
    found["plugins"][0]["ipam"] = {"type": "host-local", "ranges": ranges}
    return found


def _first(block: str) -> str:
    start = block.partition("/")[0]
    return f"{start}{_FIRST[6]:x}" if ":" in start else f"{start.rpartition('.')[0]}.{_FIRST[4]}"


def _configure(node: Node, text: str) -> None:
    """Once containerd has read it: it tells what it has loaded, and nobody when."""
    node.machine.run("tee", _FILE, stdin=text)
    wanted, end = "host-local" in text, time.monotonic() + _LIMIT
    while ('"host-local"' in node.crictl("info").replace("\\", "")) != wanted:
        assert time.monotonic() < end, f"containerd of {node.name} has not read its configuration"
        time.sleep(0.2)


def _held(node: Node) -> list[str]:
    """By host-local."""
    found = node.machine.run("find", _LEASES, "-type", "f", "-printf", "%f\n").split()
    return sorted(name for name in found if name != "lock" and not name.startswith("last_reserved_ip"))


def _await_held(it: Cluster, expected: int) -> None:
    end = time.monotonic() + _LIMIT
    while any(len(_held(node)) != expected for node in it.nodes):
        assert time.monotonic() < end, [_held(node) for node in it.nodes]
        time.sleep(0.2)


def test_host_local_gives_pods_addresses_and_has_them_back(it: Cluster, delegated: None) -> None:
    names = [f"given-{node.name}" for node in it.nodes]
    pods = [workload.pod(name, node.name, {"test": "delegated"}) for name, node in zip(names, it.nodes, strict=True)]
    it.apply(*pods)
    it.wait(*(f"pod/{name}" for name in names), until="condition=Ready")
    asked = []
    for name, node in zip(names, it.nodes, strict=True):
        addresses = workload.pod_addresses(it, name)
        assert addresses == [_first(cidr) for cidr in it.get("node", node.name)["spec"]["podCIDRs"]]
        assert {address.replace(":", "-") for address in addresses} == {held.replace(":", "-") for held in _held(node)}
        asked += [Question("TCP", address, 8080, frozenset([name])) for address in addresses]
    for inside in (it.inside_pod(names[0]), it.inside_pod("web-node2"), it.nodes[1].machine.inside()):
        assert not await_answers(inside, asked)
    assert not await_answers(it.inside_pod(names[1]), workload.of_services(it))
    podwire.verify(it)
    it.kubectl("delete", "pods", "-l", "test=delegated", "--now")
    _await_held(it, 0)
    assert "lease" not in podwire.ask(it, "node1", "status")
