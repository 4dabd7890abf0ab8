"""The reference network, to compare with: bridge, host-local, portmap and bandwidth, static routes, and kube-proxy.

Invariants: what it needs is put on the nodes by hand, as their administrator would; there is no agent.
"""

import json

from tests.cluster.cluster import Cluster, forward
from tests.cluster.control_plane import ip
from tests.cluster.node import Node
from tests.cluster.parts import programs
from tests.cluster.variant import PODS

_PLUGINS = ("bridge", "host-local", "portmap", "bandwidth")

# conntrack: its limits are the whole kernel's.
_PROXY = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: {admin}}}
hostnameOverride: {node}
clusterCIDR: {ranges}
conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"""


def install(it: Cluster) -> None:
    """Answers once all nodes are ready."""
    forward(it)
    blocks = {node: it.get("node", node.name)["spec"]["podCIDRs"] for node in it.nodes}
    for node in it.nodes:
        routes = [
            f"route replace {block} via {it.variant.node(other.number, 6 if ':' in block else 4)}"
            for other in it.nodes
            if other is not node
            for block in blocks[other]
        ]
        if routes:
            ip(node.machine, routes)
        _start_proxy(it, node)
        for plugin in _PLUGINS:
            node.machine.run("cp", programs.path(plugin), "/opt/cni/bin/")
        node.machine.run("tee", "/etc/cni/net.d/10-reference.conflist", stdin=json.dumps(_conflist(blocks[node])))
    it.await_nodes()


def _conflist(blocks: list[str]) -> dict[str, object]:
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": block}] for block in blocks],
        "routes": [{"dst": "::/0" if ":" in block else "0.0.0.0/0"} for block in blocks],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
    return {
        "cniVersion": "1.0.0",
        "name": "reference",
        "plugins": [
            bridge,
            {"type": "portmap", "capabilities": {"portMappings": True}},
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        ],
    }


def _start_proxy(it: Cluster, node: Node) -> None:
    configuration = node.machine.own / "kube-proxy.yaml"
    ranges = it.variant.joined(PODS)
    configuration.write_text(_PROXY.format(admin=it.plane.admin, node=node.name, ranges=ranges))
    node.machine.start(f"{node.name}-kube-proxy", programs.path("kube-proxy"), f"--config={configuration}")
