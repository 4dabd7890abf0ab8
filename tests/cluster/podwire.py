"""Podwire on a cluster, from the manifest that its users apply."""

from pathlib import Path
from typing import Any

import yaml

from deploy.image.__main__ import build
from tests.cluster.cluster import Cluster
from tests.cluster.parts.places import ROOT, say

MANIFEST = ROOT / "deploy" / "podwire.yaml"
NAMESPACE = "podwire"
_PLACEHOLDER = "https://192.0.2.1:6443"


def image() -> Path:
    """The archive of the agent's image, of this checkout."""
    return build()


def install(it: Cluster) -> None:
    """Answers once all nodes are ready and all agents are."""
    it.apply(*objects(it.variant.api_server()))
    it.await_nodes()
    it.kubectl("-n", NAMESPACE, "rollout", "status", "daemonset/podwire", "--timeout=120s")
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
