"""Plugins of the CNI project in a chain after ours: what each of them makes works, and stays.

Invariants: all are asked by cnitool, as a runtime asks; packets tell whether it works.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podwire.model.objects import Protocol
from tests.kernel.hands import await_links, pods_links
from tests.kernel.rates import measured
from tests.kernel.rig import MakeSpace, Space, ask, by_hand, respond, sh
from tests.kernel.runtime import NEW, OLD, Runtime, runtime_of
from tests.unit.shims import NATIVE

NODE = "192.0.2.1"
MBIT = 1_000_000
SLOW, FAST, BURST = 20 * MBIT, 60 * MBIT, 256_000
MAC = "02:00:00:00:00:77"
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}
BANDWIDTH = {"type": "bandwidth", "capabilities": {"bandwidth": True}}
TUNING = {"type": "tuning", "mac": MAC, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}
PORTS = [
    {"hostPort": 8001, "containerPort": 8080, "protocol": "tcp"},
    {"hostPort": 8002, "containerPort": 8080, "protocol": "udp", "hostIP": NODE},
]
RATES = {"ingressRate": SLOW, "ingressBurst": BURST, "egressRate": FAST, "egressBurst": BURST}


IPTABLES = pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is missing: portmap uses nftables")


@pytest.fixture(params=["nftables", pytest.param("iptables", marks=IPTABLES)])
def backend(request: pytest.FixtureRequest) -> str:
    """Of portmap."""
    return str(request.param)


@pytest.fixture(params=(NEW, OLD))
def runtime(
    cnitool: None, plugins: None, node: Space, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Runtime]:
    with runtime_of(request.param, NATIVE, tmp_path) as it:
        it.add_plugins("portmap", "bandwidth", "tuning")
        chain = [
            {"type": "podwire"},
            PORTMAP | {"backend": backend},
            BANDWIDTH,
            TUNING | {"dataDir": str(tmp_path / "tuning")},
        ]
        it.configure(chain, cniVersion="1.0.0", **({"cniVersions": ["1.0.0", "1.1.0"]} if it.version == NEW else {}))
        it.asked = {"portMappings": PORTS, "bandwidth": RATES}
        yield it


@pytest.fixture
def client(make_space: MakeSpace, node: Space) -> Space:
    """On the node's network, by which it has 192.0.2.9."""
    space = make_space("client")
    by_hand(f"ip link set lo up; ip link add up0 type veth peer name eth0 netns {space.name}; ip link set up0 up")
    by_hand(f"ip addr add {NODE}/24 dev up0; ip -n {space.name} addr add 192.0.2.9/24 dev eth0")
    by_hand(f"ip -n {space.name} link set eth0 up")
    return space


def works(runtime: Runtime, pod: Space, client: Space) -> None:
    """Host ports and settings; the pod is known by the MAC address that it was given."""
    assert ask(client, NODE, 8001) == "web 192.0.2.9"
    assert ask(client, NODE, 8002, Protocol.UDP) == "web 192.0.2.9"
    assert ask(pod, NODE, 8001).startswith("web ")  # itself
    assert ask(None, NODE, 8001).startswith("web ")
    assert ask(None, "127.0.0.1", 8001).startswith("web ")
    assert ask(client, NODE, 8003) == "ConnectionRefusedError"
    assert f"link/ether {MAC}" in sh("ip", "-n", pod.name, "link", "show", "eth0")
    assert "= 1" in sh("ip", "netns", "exec", pod.name, "sysctl", "net.ipv4.conf.eth0.arp_filter")
    runtime.good("check", pod)
    assert runtime.agent.say("verify").returncode == 0


def test_portmap_bandwidth_and_tuning_work_and_stay(
    runtime: Runtime, pod: Space, client: Space, make_space: MakeSpace
) -> None:
    result: dict[str, Any] = runtime.add(pod)
    address = result["ips"][0]["address"].partition("/")[0]
    respond(pod, "web")
    works(runtime, pod, client)
    for sender, receiver, to, rate in ((client, pod, address, SLOW), (pod, client, "192.0.2.9", FAST)):
        if sender is client:
            by_hand(f"ip -n {client.name} route replace {address} via {NODE}")
        assert 0.6 < measured(sender, receiver, to) / rate < 1.2
    held = sh("tc", "qdisc")
    assert runtime.agent.say("resync").returncode == 0
    works(runtime, pod, client)
    runtime.agent.stop()
    runtime.agent.start()
    works(runtime, pod, client)
    assert sh("tc", "qdisc") == held
    other = make_space("other")
    runtime.asked = {}
    runtime.add(other)
    assert len(pods_links()) == 2
    works(runtime, pod, client)
    runtime.asked = {"portMappings": PORTS, "bandwidth": RATES}
    if runtime.version == NEW:
        runtime.good("gc", pod)  # cnitool has it that whatever it has attached is to go
    else:
        for space in (pod, pod, other):
            runtime.good("del", space)
    assert ask(client, NODE, 8001) == "ConnectionRefusedError"
    await_links(0)
    assert f"{address}:8080" not in sh("nft", "list", "ruleset")
    assert "tbf" not in sh("tc", "qdisc")
    assert runtime.agent.say("verify").returncode == 0


@pytest.fixture
def pod(make_space: MakeSpace) -> Space:
    return make_space("pod")
