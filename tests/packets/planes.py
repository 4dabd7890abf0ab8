"""What can program the cluster of the packet table: Podwire, and kube-proxy with an API server.

Invariants: a plane gets the same objects in the API's form and the same pods; it decides nothing of the topology. All
of its processes are ended, by their own number, at the end.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from podwire.cni.install import install
from podwire.model.addresses import FAMILIES
from tests.kernel.process import AgentProcess
from tests.kernel.rig import entered
from tests.packets.objects import Object
from tests.packets.plan import Node, Pod
from tests.packets.topology import Topology


class Plane(Protocol):
    """What the table needs of a data plane and whatever tells it of the cluster."""

    def publish(self, objects: Iterable[Object]) -> None:
        """These objects come, or change."""

    def add_node(self, node: Node) -> None:
        """Answers once that node holds all that was published before."""

    def attach(self, pod: Pod) -> None:
        """To the network, with the addresses of the plan; its namespace is there."""


class Podwire:
    """An agent for each node, all of them on one directory of manifests."""

    def __init__(self, topology: Topology, directory: Path) -> None:
        self._topology, self._directory = topology, directory
        self._manifests = directory / "manifests"
        self._manifests.mkdir()
        self._agents: dict[str, AgentProcess] = {}
        self._plugins: dict[str, Path] = {}

    def publish(self, objects: Iterable[Object]) -> None:
        for it in objects:
            path = self._path(it)
            aside = path.with_name(f".{path.name}")
            aside.write_text(json.dumps(it))
            aside.rename(path)

    def withdraw(self, objects: Iterable[Object]) -> None:
        for it in objects:
            self._path(it).unlink()

    def add_node(self, node: Node) -> None:
        home = self._directory / node.name
        home.mkdir()
        agent = self._agents[node.name] = AgentProcess(home, node.name, self._manifests)
        self._plugins[node.name] = install(home / "bin", agent.socket, agent.spool, agent.ready, sys.executable)
        with entered(self._topology.space(node)):
            agent.start()

    def remove_node(self, node: Node) -> None:
        self._agents.pop(node.name).stop()

    def attach(self, pod: Pod) -> None:
        result = json.loads(self._plugin("ADD", pod))
        given = [it["address"].partition("/")[0] for it in result["ips"]]
        assert given == [pod.address(family) for family in FAMILIES]

    def detach(self, pod: Pod) -> None:
        self._plugin("DEL", pod)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.stop()

    def _path(self, it: Object) -> Path:
        return self._manifests / f"{it['kind']}-{it['metadata']['name']}.json"

    def _plugin(self, command: str, pod: Pod) -> str:
        """As a container runtime executes it (CNI spec 1.1.0, section 2)."""
        plugin = self._plugins[pod.node.name]
        environment = {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"sandbox-{pod.name}",
            "CNI_NETNS": self._topology.space(pod).path,
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod.name}",
            "CNI_PATH": str(plugin.parent),
        }
        network = json.dumps({"cniVersion": "1.1.0", "name": "podwire", "type": "podwire"})
        done = subprocess.run([plugin], input=network, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def podwire(topology: Topology, directory: Path) -> Iterator[Podwire]:
    plane = Podwire(topology, directory)
    try:
        yield plane
    finally:
        plane.close()
