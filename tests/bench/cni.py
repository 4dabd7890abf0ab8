"""The time of a CNI ADD, the plugin's whole execution, beside the reference plugins `bridge` and `host-local`.

    python -m tests.bench.cni ADDS MANY CALLERS

as root; prints one line of JSON: milliseconds of each ADD for `python`, `native` and `reference`, taken in turn; how
many ADDs a second CALLERS callers get done (`rates`); and ADDs of the native plugin before and after MANY other pods
(`few`, `many`). The reference works at its quickest: IPv4 alone and no masquerading, where Podwire's pods have both
families. Each has a node's namespace of its own; pods' namespaces are made before anything is timed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from podwire.cni.install import install
from tests.bench.nodes import prepare
from tests.cluster.parts import programs
from tests.kernel.process import MANIFEST, AgentProcess
from tests.kernel.rig import MakeSpace, Space, entered, spaces

PYTHON, NATIVE, REFERENCE = "python", "native", "reference"
BUILD = Path(__file__).resolve().parents[2] / "scripts" / "shim"
_OURS = {"cniVersion": "1.0.0", "name": "podwire", "type": "podwire"}


class Plugin(NamedTuple):
    """Executed in the namespace `node`."""

    program: Path
    configuration: bytes
    node: Space

    def call(self, command: str, pod: Space) -> float:
        """Seconds of its whole execution. Of the caller's own work, the beginning of a process is a part of it."""
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": pod.name,
            "CNI_NETNS": pod.path,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(self.program.parent),
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod.name}",
            "PATH": os.environ["PATH"],
        }
        began = time.perf_counter()
        done = subprocess.run([self.program], input=self.configuration, env=environment, capture_output=True)
        took = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{self.program}: {command}: {(done.stdout or done.stderr).decode()}")
        return took

    def add(self, pods: Sequence[Space]) -> list[float]:
        """Milliseconds of each."""
        with entered(self.node):
            return [1000 * self.call("ADD", pod) for pod in pods]

    def delete(self, pods: Sequence[Space]) -> None:
        with entered(self.node):
            for pod in pods:
                self.call("DEL", pod)


def missing() -> str:
    """Why nothing can be measured; empty where it can."""
    if not all(programs.path(name).exists() for name in ("bridge", "host-local")):
        return "bridge and host-local are not built (make cluster-build)"
    return ""


def measure(adds: int, many: int, callers: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place, spaces() as make:
        home = Path(place)
        node = make("node")
        prepare(node)
        (home / "manifests").mkdir()
        (home / "manifests" / "node.yaml").write_text(MANIFEST.replace("10.1.1.0/24", "10.1.0.0/22"))
        agent = AgentProcess(home, manifests=home / "manifests")
        plugins = _ours(home, agent, node) | {REFERENCE: _reference(home, make)}
        with entered(node):
            agent.start()
        try:
            fresh = partial(_fresh, make)
            found: dict[str, object] = dict(_in_turn(plugins, {name: fresh(adds + 1) for name in plugins}))
            found["rates"] = {name: _rate(plugins[name], fresh(8 * callers), callers) for name in (NATIVE, REFERENCE)}
            return found | _growth(plugins[NATIVE], fresh(adds), fresh(many), fresh(adds))
        finally:
            agent.stop()


def _ours(home: Path, agent: AgentProcess, node: Space) -> dict[str, Plugin]:
    native = home / "shim"
    subprocess.run([BUILD, "--out", native], check=True)
    paths = (agent.socket, agent.spool, agent.ready)
    configuration = json.dumps(_OURS).encode()
    return {
        PYTHON: Plugin(install(home / PYTHON, *paths, os.path.realpath(sys.executable)), configuration, node),
        NATIVE: Plugin(install(home / NATIVE, *paths, native=native), configuration, node),
    }


def _reference(home: Path, make: MakeSpace) -> Plugin:
    node = make("reference")
    prepare(node)
    program = programs.path("bridge")
    ranges = [[{"subnet": "10.2.0.0/22"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(home / "leases")}
    configuration = {"cniVersion": "1.0.0", "name": "reference", "type": "bridge", "bridge": "cni0", "isGateway": True}
    return Plugin(program, json.dumps({**configuration, "ipam": ipam}).encode(), node)


def _fresh(make: MakeSpace, count: int) -> list[Space]:
    """Each for one pod: a link goes a while after its DEL was answered, so that a second pod could meet it."""
    return [make("pod") for _ in range(count)]


def _in_turn(plugins: dict[str, Plugin], pods: dict[str, list[Space]]) -> dict[str, list[float]]:
    """One pod after the other, each plugin in another place of the order each time; the first is not counted. No DEL
    comes in between: what it leaves to be done later would be done in another's time."""
    times: dict[str, list[float]] = {name: [] for name in plugins}
    names = sorted(plugins)
    for number in range(len(pods[names[0]])):
        for at in range(len(names)):
            name = names[(number + at) % len(names)]
            times[name] += plugins[name].add(pods[name][number : number + 1])
    for name in names:
        plugins[name].delete(pods[name])
    return {name: its[1:] for name, its in times.items()}


def _rate(plugin: Plugin, pods: Sequence[Space], callers: int) -> float:
    """ADDs a second."""

    def call(part: Sequence[Space]) -> None:
        plugin.add(part)

    began = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(call, [pods[at::callers] for at in range(callers)]))
    took = time.perf_counter() - began
    plugin.delete(pods)
    return len(pods) / took


def _growth(
    plugin: Plugin, first: Sequence[Space], between: Sequence[Space], last: Sequence[Space]
) -> dict[str, object]:
    """The first and the last, with all the others attached."""
    few = plugin.add(first)
    plugin.add(between)
    many = plugin.add(last)
    plugin.delete([*first, *between, *last])
    return {"few": few, "many": many}


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
