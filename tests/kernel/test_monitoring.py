"""A whole agent, watched from outside: metrics over TCP, its history followed, its explanations asked for."""

import json
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kernel.process import PATIENCE, AgentProcess
from tests.kernel.rig import Space, by_hand

METRICS = "127.0.0.1:9273"
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.1.2]}]
"""


def made(directory: Path) -> AgentProcess:
    agent = AgentProcess(directory)
    with agent.config.open("a") as config:
        config.write(f'metrics_listen = "{METRICS}"\n')
    return agent


@contextmanager
def at_work(tmp_path: Path, more: str = "") -> Iterator[AgentProcess]:
    """`more`: of its configuration."""
    agent = made(tmp_path)
    agent.config.write_text(agent.config.read_text() + more)
    (tmp_path / "manifests" / "web.yaml").write_text(SERVICE)
    agent.start()
    yield agent
    agent.stop(signal.SIGKILL)


@pytest.fixture
def agent(node: Space, tmp_path: Path) -> Iterator[AgentProcess]:
    with at_work(tmp_path) as agent:
        yield agent


def values(path: str = "/metrics") -> dict[str, float]:
    """By name and labels' values."""
    text = urlopen(f"http://{METRICS}{path}").read().decode()
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_and_health_over_tcp(agent: AgentProcess) -> None:
    found = values()
    assert (found["podwire_ready"], found["podwire_frontends programmed"]) == (1, 1)
    assert found["podwire_events_total Resync done"] == 1
    assert found["podwire_driver_writes_total nftables"] > 0
    assert found["process_open_fds"] > 3
    assert urlopen(f"http://{METRICS}/readyz").status == 200
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://{METRICS}/status")


@pytest.mark.parametrize("traffic", [False, True], ids=["connections alone", "packets, too"])
def test_what_the_kernel_counted_is_told_by_every_door(node: Space, tmp_path: Path, traffic: bool) -> None:
    """Seven connections, as the kernel would have them in its set; what comes before the first reading is nobody's."""
    with at_work(tmp_path, "service_traffic = true\n" if traffic else "") as agent:
        told_by_every_door(agent, traffic)


def told_by_every_door(agent: AgentProcess, traffic: bool) -> None:
    assert values("/metrics/services") == {}
    by_hand("nft add element ip podwire connections '{ 10.96.0.10 . tcp . 80 counter packets 7 bytes 420 }'")
    limit = time.monotonic() + PATIENCE
    while not (found := values("/metrics/services")):  # the first reading, at the start, still serves who asks so soon
        assert time.monotonic() < limit, "it is never told"
    packets = {
        "podwire_service_received_packets_total default web": 7,
        "podwire_service_received_bytes_total default web": 420,
        "podwire_service_sent_packets_total default web": 0,
        "podwire_service_sent_bytes_total default web": 0,
    }
    assert found == {"podwire_service_connections_total default web": 7} | (packets if traffic else {})
    assert values()["podwire_services_connections_total"] == 7
    assert values("/metrics/pods") == {}
    assert agent.say("services", "--stats").stdout.splitlines()[1].split()[:3] == ["default", "web", "7"]
    told = json.loads(agent.say("services", "default/web", "--stats", "-o", "json").stdout)
    assert [it["connections"] for it in told["services"][0]["frontends"]] == [7]
    assert agent.say("verify").returncode == 0


def ended(agent: AgentProcess) -> str:
    """The last words of an agent that can't start."""
    command = [Path(sysconfig.get_path("scripts"), "podwire"), "agent", "--config", agent.config]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1
    return ran.stderr.splitlines()[-1]


def test_an_agent_whose_port_is_taken_says_so_and_ends(node: Space, tmp_path: Path) -> None:
    by_hand("ip link set lo up")
    host, _, port = METRICS.rpartition(":")
    with socket.create_server((host, int(port))):
        assert ended(made(tmp_path)) == f"podwire: metrics_listen {METRICS}: Address already in use"


def test_a_network_namespace_has_one_agent_whatever_its_state_directory(
    agent: AgentProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A second one would sweep what the first has made."""
    second = made(tmp_path_factory.mktemp("second"))
    lock = f"/run/podwire/netns-{os.stat('/proc/thread-self/ns/net').st_ino}.lock"
    why = "another agent looks after this network namespace, with another state_dir"
    assert ended(second) == f"podwire: {lock}: {why}"
    assert values()["podwire_ready"] == 1


def test_a_follower_sees_what_happens_and_does_not_hold_up_the_end(agent: AgentProcess) -> None:
    command = [Path(sysconfig.get_path("scripts"), "podwire"), "history", "--follow", "--state-dir", agent.state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert re.match(r"#\d+  .*  Restored", following.stdout.readline())
        (agent.directory / "manifests" / "web.yaml").unlink()
        seen = next(line for line in following.stdout if "KubeStateChange" in line)
        assert "service/default/web removed" in seen
        agent.stop()
        _, errors = following.communicate()
    assert following.returncode == 3
    assert "no agent answers" in errors


def test_explanations_of_a_running_agent(agent: AgentProcess) -> None:
    told = agent.say("explain", "service/default/web").stdout
    assert "10.96.0.10:80/TCP, cluster IP: programmed, 1 backend" in told
    told = agent.say("explain", "node", "10.96.0.10:80").stdout
    assert "balanced: the only backend" in told
    assert "an address of this node's pods that no pod has" in told
