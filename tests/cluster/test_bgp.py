"""BGP in a real cluster: FRR by its manifest, a peer with a password of a Secret, a router that learns the way to a
Service of type LoadBalancer from every node, and what the cluster is told of the sessions."""

import base64
import json
import signal
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster
from tests.cluster.machine import PATIENCE
from tests.cluster.parts.places import ROOT
from tests.cluster.workload import PORTS, Question, await_answers

MANIFEST = ROOT / "deploy" / "podwire-bgp.yaml"
ROUTER_ASN, NODE_ASN, PASSWORD = 64500, 64512, "of-both"
POOLS = {4: "203.0.113.64/28", 6: "2001:db8:7::/124"}
SINGLE = {4: "32", 6: "128"}


def configuration(it: Cluster) -> str:
    lines = [f"router bgp {ROUTER_ASN}", " bgp router-id 10.99.0.1", " no bgp ebgp-requires-policy"]
    lines += [" no bgp default ipv4-unicast", " bgp bestpath as-path multipath-relax"]
    neighbors = [it.variant.node(node.number, it.variant.families[0]) for node in it.nodes]
    for neighbor in neighbors:
        who = f" neighbor {neighbor}"
        lines += [f"{who} remote-as {NODE_ASN}", f"{who} password {PASSWORD}", f"{who} timers connect 1"]
    for family in it.variant.families:
        lines.append(f" address-family ipv{family} unicast")
        lines += [f"  neighbor {neighbor} activate" for neighbor in neighbors]
        lines.append(" exit-address-family")
    return "\n".join((*lines, "exit", ""))


@pytest.fixture
def _router(it: Cluster) -> Iterator[None]:
    """FRR on the control plane's machine, which all nodes are plugged to."""
    with tempfile.TemporaryDirectory(prefix="podwire-router-", dir="/run") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "frr").mkdir()
        (directory / "frr" / "bgpd.conf").write_text(configuration(it), encoding="utf-8")
        command = Path(sysconfig.get_path("scripts"), "podwire")
        program = it.plane.machine.start("router", command, "bgp-daemons", "--directory", directory / "frr")
        try:
            yield
        finally:
            program.kill(signal.SIGTERM)


def things(it: Cluster) -> list[dict[str, Any]]:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "router", "namespace": "podwire"},
        "data": {"password": base64.b64encode(PASSWORD.encode()).decode()},
    }
    peer = {
        "peerAddress": it.variant.router(it.variant.families[0]),
        "peerASN": ROUTER_ASN,
        "myASN": NODE_ASN,
        "connectRetryTimeSeconds": 1,
        "passwordSecret": {"name": "router"},
    }
    specs: dict[str, dict[str, Any]] = {
        "AddressPool": {"addresses": [POOLS[family] for family in it.variant.families], "autoAssign": False},
        "BGPPeer": peer,
        "BGPAdvertisement": {"addressPools": ["routed"]},
    }
    own = "podwire.io/v1alpha1"
    return [
        secret,
        *({"apiVersion": own, "kind": it, "metadata": {"name": "routed"}, "spec": spec} for it, spec in specs.items()),
    ]


def sessions(it: Cluster) -> dict[str, str]:
    found = it.get("bgpsessions")["items"]
    return {each["spec"]["node"]: each["status"]["state"] for each in found if each["spec"]["peer"] == "routed"}


def since(it: Cluster) -> dict[str, datetime]:
    found = it.get("bgpsessions")["items"]
    return {each["metadata"]["name"]: datetime.fromisoformat(each["status"]["since"]) for each in found}


def next_hops(it: Cluster, address: str) -> set[str]:
    version = "-6" if ":" in address else "-4"
    shown = it.plane.machine.run("ip", version, "-o", "route", "show", address, "proto", "bgp")
    words = shown.split()
    return {words[number + 1] for number, word in enumerate(words) if word == "via"}


def until(it: Cluster, holds: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what}: {json.dumps(it.get('bgpsessions')['items'])}"
        time.sleep(0.2)


@pytest.mark.usefixtures("_router")
def test_a_router_learns_from_every_node_and_the_cluster_is_told(it: Cluster) -> None:
    made = [*yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")), *things(it)]
    it.apply(*made)
    balanced = workload.service("routed", it.variant, {"app": "web"}, type="LoadBalancer")
    balanced["metadata"]["annotations"] = {"podwire.io/address-pool": "routed"}
    it.apply(balanced)
    try:
        it.kubectl("-n", "podwire", "rollout", "status", "daemonset/podwire-bgp", "--timeout=240s")
        it.wait("service/routed", until="condition=podwire.io/AddressAssigned")
        addresses = [found["ip"] for found in it.get("service", "routed")["status"]["loadBalancer"]["ingress"]]
        assert len(addresses) == len(it.variant.families)
        everybody = {node.name: "Established" for node in it.nodes}
        until(it, lambda: sessions(it) == everybody, "sessions with all nodes")
        for address in addresses:
            until(it, lambda a=address: len(next_hops(it, a)) == len(it.nodes), f"ways to {address}")  # type: ignore[misc]
        questions = [
            Question(protocol, address, port, workload.webs(it))
            for address in addresses
            for protocol, port in PORTS.items()
        ]
        assert not await_answers(it.plane.machine.inside(), questions)
        shown = it.kubectl("get", "bgpsessions")
        assert all(node.name in shown for node in it.nodes), shown
        assert PASSWORD not in it.kubectl("get", "bgpsessions", "-o", "yaml")
        # An agent that goes, and one that comes, is no news to the router.
        before = since(it)
        it.kubectl("-n", "podwire", "rollout", "restart", "daemonset/podwire")
        podwire.await_ready(it)
        podwire.await_kubelets(it)
        after = since(it)
        assert after.keys() == before.keys()
        assert max(abs((after[name] - before[name]).total_seconds()) for name in before) < 3, "bgpd is a second off"
        assert not await_answers(it.plane.machine.inside(), questions)
    finally:
        it.kubectl("delete", "service", "routed")
        for thing in reversed(made):
            metadata = thing["metadata"]
            space = ["-n", metadata["namespace"]] if "namespace" in metadata else []
            it.kubectl("delete", thing["kind"], metadata["name"], *space)
    until(it, lambda: sessions(it) == {}, "sessions of a peer that is gone")
