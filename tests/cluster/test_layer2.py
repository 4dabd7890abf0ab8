"""Layer 2 in a real cluster, by the image and with the rights of the manifest: a machine on the nodes' link reaches a
Service of type LoadBalancer at an address that one node answers for by ARP or neighbour discovery."""

import json
import time
from collections.abc import Callable
from typing import Any

from podwire.loadbalancer.election import owner
from podwire.model.addresses import parse_address
from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster
from tests.cluster.machine import PATIENCE, CommandFailed
from tests.cluster.workload import PORTS, Question, await_answers

POOLS = {4: "10.99.0.192/28", 6: "fd99::1:0/112"}
OWN = "podwire.io/v1alpha1"


def things(it: Cluster) -> list[dict[str, Any]]:
    specs: dict[str, dict[str, Any]] = {
        "AddressPool": {"addresses": [POOLS[family] for family in it.variant.families], "autoAssign": False},
        "L2Advertisement": {"addressPools": ["near"]},
    }
    return [
        {"apiVersion": OWN, "kind": kind, "metadata": {"name": "near"}, "spec": spec} for kind, spec in specs.items()
    ]


def macs(it: Cluster) -> dict[str, str]:
    return {node.name: node.machine.run("cat", "/sys/class/net/eth0/address").strip() for node in it.nodes}


def neighbour(it: Cluster, address: str) -> str:
    """The MAC address that the machine beside the nodes has for it."""
    words = it.plane.machine.run("ip", "neigh", "show", address).split()
    return words[words.index("lladdr") + 1] if "lladdr" in words else ""


def heard(it: Cluster) -> list[set[str]]:
    """What each node's agent hears of the others; nothing of one that is on its way out."""
    pods = it.get("pods", "-n", "podwire", "-l", "app.kubernetes.io/name=podwire")["items"]
    found = []
    for pod in pods:
        try:
            command = ("/opt/podwire/bin/podwire", "l2", "-o", "json")
            shown = it.kubectl("-n", "podwire", "exec", pod["metadata"]["name"], "--", *command)
        except CommandFailed:
            return []
        found.append(set(json.loads(shown)["nodes"].values()))
    return found


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def test_a_machine_on_the_link_finds_the_node_that_answers(it: Cluster) -> None:
    balanced = workload.service("near", it.variant, {"app": "web"}, type="LoadBalancer")
    balanced["metadata"]["annotations"] = {"podwire.io/address-pool": "near"}
    it.apply(*things(it), balanced)
    try:
        it.wait("service/near", until="condition=podwire.io/AddressAssigned")
        addresses = [found["ip"] for found in it.get("service", "near")["status"]["loadBalancer"]["ingress"]]
        assert len(addresses) == len(it.variant.families)
        until(lambda: heard(it) == [{"alive"}] * len(it.nodes), "the nodes hear each other")
        questions = [
            Question(protocol, address, port, workload.webs(it))
            for address in addresses
            for protocol, port in PORTS.items()
        ]
        assert not await_answers(it.plane.machine.inside(), questions)
        names, own = [node.name for node in it.nodes], macs(it)
        for address in addresses:
            chosen = owner(parse_address(address), names)
            assert chosen is not None
            until(lambda a=address, c=chosen: neighbour(it, a) == own[c], f"{chosen} answers for {address}")  # type: ignore[misc]
        it.kubectl("-n", "podwire", "rollout", "restart", "daemonset/podwire")
        podwire.await_ready(it)
        podwire.await_kubelets(it)
        until(lambda: heard(it) == [{"alive"}] * len(it.nodes), "the nodes hear each other again")
        assert not await_answers(it.plane.machine.inside(), questions)
    finally:
        it.kubectl("delete", "service", "near")
        for thing in things(it):
            it.kubectl("delete", thing["kind"], "near")
