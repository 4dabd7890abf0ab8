"""Pools of addresses on a cluster: pods get what they ask for; lost records and removed nodes cost nobody anything."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster
from tests.cluster.workload import Question, await_answers
from tests.unit.kube_records import name_of_block

_CIDRS = {4: "10.250.0.0/24", 6: "fd00:250::/112"}
_FIXED = {4: "10.250.0.241", 6: "fd00:250::f1"}
_ONLY = {4: "10.251.0.0/26", 6: "fd00:251::/122"}
_VERSION = "podwire.io/v1alpha1"
_PORT = 8080


@pytest.fixture
def pools(it: Cluster) -> Iterator[None]:
    """A pool for those who ask for it, without a word of it for all others. All that names it goes afterwards."""
    reserved = [f"{_FIXED[family]}-{_FIXED[family]}" for family in it.variant.families]
    it.apply(_pool("asked", it, _CIDRS, reserved=reserved))
    try:
        yield
    finally:
        it.kubectl("delete", "pods", "-l", "test=pools", "--now", "--ignore-not-found")
        it.kubectl("delete", "podpools", "--all")
        it.kubectl("wait", "podblocks", "--all", "--for=delete", "--timeout=120s")


def _pool(name: str, it: Cluster, cidrs: dict[int, str], **spec: Any) -> dict[str, Any]:
    ranges = [cidrs[family] for family in it.variant.families]
    spec = {"cidrs": ranges, "autoAssign": False, **spec}
    return {"apiVersion": _VERSION, "kind": "PodPool", "metadata": {"name": name}, "spec": spec}


def _pod(name: str, node: str, **annotations: str) -> dict[str, Any]:
    made = workload.pod(name, node, {"test": "pools"})
    made["metadata"]["annotations"] = {f"podwire.io/{key}": value for key, value in annotations.items()}
    return made


def _start(it: Cluster, *pods: dict[str, Any]) -> None:
    it.apply(*pods)
    it.wait(*(f"pod/{pod['metadata']['name']}" for pod in pods), until="condition=Ready")


def _questions(it: Cluster, *names: str) -> list[Question]:
    return [
        Question("TCP", address, _PORT, frozenset([name]))
        for name in names
        for address in workload.pod_addresses(it, name)
    ]


def _blocks(it: Cluster) -> dict[str, str]:
    """Nodes by CIDR."""
    return {found["spec"]["cidr"]: found["spec"]["node"] for found in it.get("podblocks")["items"]}


def test_pods_get_what_they_ask_for_and_reach_each_other(it: Cluster, pools: None) -> None:
    fixed = [_FIXED[family] for family in it.variant.families]
    pods = [
        _pod("asks-1", "node1", pool="asked"),
        _pod("asks-2", "node2", pool="asked"),
        _pod("has-its-own", "node1", pool="asked", addresses=",".join(fixed)),
    ]
    _start(it, *pods)
    assert workload.pod_addresses(it, "has-its-own") == fixed
    for name in ("asks-1", "asks-2"):
        for address in workload.pod_addresses(it, name):
            assert address.startswith(("10.250.0.", "fd00:250::"))
    names = ("asks-1", "asks-2", "has-its-own")
    for inside in (it.inside_pod("asks-1"), it.inside_pod("web-node2"), it.nodes[1].machine.inside()):
        assert not await_answers(inside, _questions(it, *names))
    assert not await_answers(it.inside_pod("asks-2"), workload.of_services(it))
    podwire.verify(it)


def test_wiped_records_come_back_and_cost_no_pod_anything(it: Cluster, pools: None) -> None:
    fixed = ",".join(_FIXED[family] for family in it.variant.families)
    _start(it, _pod("asks-1", "node1", pool="asked"), _pod("asks-2", "node2", addresses=fixed, pool="asked"))
    names = ("asks-1", "asks-2")
    before, addresses = _blocks(it), {name: workload.pod_addresses(it, name) for name in names}
    restarts = podwire.restarts(it)
    it.kubectl("delete", "podblocks", "--all")
    for cidr in before:
        it.wait(f"podblock/{name_of_block(cidr)}", until="jsonpath={.spec.node}=" + before[cidr])
    assert _blocks(it) == before
    assert {name: workload.pod_addresses(it, name) for name in names} == addresses
    assert not await_answers(it.inside_pod("web-node1"), _questions(it, *names))
    assert podwire.restarts(it) == restarts
    podwire.verify(it)


def test_a_removed_node_s_block_is_collected_and_another_s(it: Cluster, pools: None) -> None:
    """By the cluster's own garbage collector. Until then who waits for it is told why."""
    it.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "ghost"}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": "ghost", "uid": it.get("node", "ghost")["metadata"]["uid"]}
    blocks = [_ONLY[family] for family in it.variant.families]
    it.apply(*(_block(cidr, "only", "ghost", owner) for cidr in blocks))
    it.apply(_pool("only", it, _ONLY))
    it.apply(_pod("waits", "node1", pool="only"))
    _await_event(it, "waits", f"in pool only: this node has no IPv{it.variant.families[0]} block of it")
    assert _blocks(it) == dict.fromkeys(blocks, "ghost")
    it.kubectl("delete", "node", "ghost")
    it.wait("pod/waits", until="condition=Ready")
    assert {cidr: _blocks(it)[cidr] for cidr in blocks} == dict.fromkeys(blocks, "node1")


def _await_event(it: Cluster, pod: str, says: str) -> None:
    """Nobody tells of events but by being asked."""
    end = time.monotonic() + podwire.LIMIT
    told: list[str] = []
    while not any(says in message for message in told):
        assert time.monotonic() < end, told
        found = it.get("events", "--field-selector", f"involvedObject.name={pod}")["items"]
        told = [event["message"] for event in found]


def _block(cidr: str, pool: str, node: str, owner: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name_of_block(cidr), "ownerReferences": [owner]}
    spec = {"cidr": cidr, "pool": pool, "node": node}
    return {"apiVersion": _VERSION, "kind": "PodBlock", "metadata": metadata, "spec": spec}
