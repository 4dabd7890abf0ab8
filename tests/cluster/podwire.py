"""Podwire on a cluster, from the manifest that its users apply."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import yaml

from deploy.image.__main__ import OUT, build
from tests.cluster.cluster import Cluster
from tests.cluster.machine import CommandFailed
from tests.cluster.node import Node
from tests.cluster.parts.places import ROOT, say

MANIFEST = ROOT / "deploy" / "podwire.yaml"
NAMESPACE = "podwire"
IMAGE = OUT
"""The archive of the agent's image, once it is built."""
LIMIT = 120
"""Seconds, against hanging, never a measure."""
_PLACEHOLDER = "https://192.0.2.1:6443"


def image() -> Path:
    """Builds the agent's image of this checkout; the archive."""
    return build()


def install(it: Cluster) -> None:
    """Answers once all nodes are ready and all agents are."""
    it.apply(*objects(it.variant.api_server()))
    await_ready(it)
    say(f"{it.variant.name}: podwire runs on {len(it.nodes)} nodes")


def objects(api_server: str) -> list[dict[str, Any]]:
    """The manifest, with the one change that its users make."""
    text = MANIFEST.read_text(encoding="utf-8")
    assert _PLACEHOLDER in text
    return [found for found in yaml.safe_load_all(text.replace(_PLACEHOLDER, api_server)) if found]


def agents(it: Cluster) -> dict[str, str]:
    """The agents' pods, by node."""
    pods = it.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=podwire")["items"]
    return {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in pods}


def ask(it: Cluster, node: str, *command: str) -> str:
    """What `podwire COMMAND` says on a node. Raises CommandFailed, also where it answers no."""
    return it.execute(agents(it)[node], "podwire", *command, namespace=NAMESPACE)


def verify(it: Cluster) -> None:
    """That no node's network differs from what it should be. Raises CommandFailed with what differs."""
    for node in it.nodes:
        ask(it, node.name, "verify")


def await_ready(it: Cluster) -> None:
    """All agents of the manifest's present version, and all nodes."""
    it.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/podwire", "--timeout=240s")
    it.await_nodes()


def await_kubelets(it: Cluster) -> None:
    """Until each kubelet knows the agent of its node: one that has just started executes nothing in it before."""
    for node, pod in agents(it).items():
        end = time.monotonic() + LIMIT
        while pod not in known_pods(it, node):
            assert time.monotonic() < end, f"the kubelet of {node} does not know {pod}"


def known_pods(it: Cluster, node: str) -> set[str]:
    """The names of those that a node's kubelet knows. Nobody tells when that changes: each asking takes a moment."""
    try:
        told = json.loads(it.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods"))
    except CommandFailed:  # it doesn't listen yet
        return set()
    return {pod["metadata"]["name"] for pod in told["items"] or ()}


def restarts(it: Cluster) -> dict[str, int]:
    """How often each agent's container was started again, by its pod."""
    return {pod: _status(it, pod)["restartCount"] for pod in agents(it).values()}


def await_restart(it: Cluster, before: dict[str, int]) -> None:
    """Until each of these agents was started once more and is ready."""
    for pod, count in before.items():
        name = f"pod/{pod}"
        again = f"jsonpath={{.status.containerStatuses[0].restartCount}}={count + 1}"
        it.wait(name, "-n", NAMESPACE, until=again)
        it.wait(name, "-n", NAMESPACE, until="condition=Ready")


def send(it: Cluster, node: Node, number: signal.Signals) -> None:
    """A signal to the agent of a node, without asking the API server."""
    container = node.crictl("ps", "-q", "--name", "^agent$", "--label", "io.kubernetes.pod.namespace=podwire").split()
    pid = json.loads(node.crictl("inspect", container[0]))["info"]["pid"]
    node.machine.run("kill", f"-{int(number)}", str(pid))


def _status(it: Cluster, pod: str) -> dict[str, Any]:
    found: dict[str, Any] = it.get("pod", pod, "-n", NAMESPACE)["status"]["containerStatuses"][0]
    return found
