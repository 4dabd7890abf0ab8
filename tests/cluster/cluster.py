"""A Kubernetes cluster on this machine, for as long as a `with` block: real programs, no pod network, no kube-proxy.

    with cluster(DUAL) as it:
        it.kubectl("get", "nodes")

Invariants: several clusters may run at the same time. At the end, also after Ctrl-C or a failure, no process,
namespace, mount, interface, control group or file of it is left; what a killed run left is removed by the next one.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import control_plane
from tests.cluster.control_plane import ControlPlane
from tests.cluster.machine import CommandFailed, Machine
from tests.cluster.node import Node
from tests.cluster.parts import images
from tests.cluster.parts.places import ROOT, say
from tests.cluster.variant import Variant

LOGS = ROOT / "build" / "cluster-logs"
"""Where the logs of clusters are kept whose tests failed."""
_MANIFESTS = Path(__file__).parent / "manifests"
_PREFIX = "pwc"
_CGROUPS = Path("/sys/fs/cgroup")
_LIMIT = "240s"
"""Against hanging, never a measure."""


class Cluster:
    """One that runs. All methods raise CommandFailed where Kubernetes refuses."""

    def __init__(self, variant: Variant, plane: ControlPlane, nodes: list[Node]) -> None:
        self.variant, self.plane, self.nodes = variant, plane, nodes

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        command = self.plane.kubectl(*arguments)
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise CommandFailed(f"kubectl {' '.join(map(str, arguments))}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "-o", "json"))

    def wait(self, *what: str, until: str, limit: str = _LIMIT) -> None:
        """`what`: as kubectl wait takes it, such as `pod/a`; `until`: as its --for. The object may come later."""
        names = [word for word in what if not word.startswith("-")]
        if all("/" in name for name in names):
            self.kubectl("wait", *what, "--for=create", f"--timeout={limit}")
        self.kubectl("wait", *what, f"--for={until}", f"--timeout={limit}")

    def await_nodes(self) -> None:
        self.wait(*(f"node/{node.name}" for node in self.nodes), until="condition=Ready")

    def is_ready(self, node: Node) -> bool:
        conditions = self.get("node", node.name)["status"]["conditions"]
        return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)

    def install_dns(self) -> None:
        """CoreDNS, at the addresses that kubelets tell pods. Answers once it runs."""
        self.kubectl("apply", "-f", _MANIFESTS / "coredns.yaml")
        self.apply(dns_service(self.variant))
        self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", f"--timeout={_LIMIT}")

    def execute(self, pod: str, *command: str, namespace: str = "default") -> str:
        return self.kubectl("-n", namespace, "exec", pod, "--", *command)

    def node_of(self, pod: str, namespace: str = "default") -> Node:
        name = self.get("pod", pod, "-n", namespace)["spec"]["nodeName"]
        return next(node for node in self.nodes if node.name == name)

    def inside_pod(self, pod: str, namespace: str = "default") -> list[str]:
        """What runs a command of this machine in a pod's network, without the API server."""
        node = self.node_of(pod, namespace)
        sandbox = node.crictl("pods", "-q", "--state", "ready", "--name", f"^{pod}$", "--namespace", f"^{namespace}$")
        facts = json.loads(node.crictl("inspectp", sandbox.split()[0]))
        spaces = facts["info"]["runtimeSpec"]["linux"]["namespaces"]
        path = next(space["path"] for space in spaces if space["type"] == "network")
        return [*node.machine.inside("nsenter", f"--net={path}", "--")]

    def keep_logs(self, directory: Path) -> None:
        """What helps to understand a failure, as far as it can still be had."""
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self.plane.machine.cluster / "log", directory, ignore=shutil.ignore_patterns(".*"))
        for name, arguments in (
            ("objects.yaml", ("get", "nodes,pods,services,endpointslices,daemonsets", "-A", "-o", "yaml")),
            ("objects.txt", ("get", "nodes,pods,services", "-A", "-o", "wide")),
            ("events.txt", ("get", "events", "-A", "--sort-by=.lastTimestamp")),
        ):
            _keep(directory / name, self.plane.kubectl("--request-timeout=10s", *arguments))
        for node in self.nodes:
            for command in (("nft", "list", "ruleset"), ("ip", "address"), ("ip", "route"), ("ip", "-6", "route")):
                _keep(directory / f"{node.name}-{'-'.join(command)}.txt", node.machine.inside(*command))
            # kubelet keeps the containers' logs here, also of those that are gone
            pods = node.machine.own / "upper/var/log/pods"
            if pods.is_dir():
                shutil.copytree(pods, directory / f"{node.name}-pods", symlinks=True)


@contextmanager
def cluster(
    variant: Variant, nodes: int = 2, archives: Iterable[Path] = (), failed: Callable[[], bool] = lambda: False
) -> Iterator[Cluster]:
    """`archives`: images that nodes have besides the usual ones. `failed`: whether the logs shall be kept, asked at the
    end. Nodes are registered, and not ready: that takes a network. Raises DidNotStart or CommandFailed."""
    _sweep()
    with _terminated_is_interrupted(), _running(variant, nodes, archives, failed) as it:
        yield it


@contextmanager
def _running(variant: Variant, nodes: int, archives: Iterable[Path], failed: Callable[[], bool]) -> Iterator[Cluster]:
    run = f"{_PREFIX}{os.getpid()}"
    directory = Path(tempfile.mkdtemp(prefix=f"{run}-"))
    with ExitStack() as stack:
        stack.callback(_remove_directory, directory)
        say(f"{variant.name}: {nodes} nodes and a control plane start")

        def machine(name: str, node: bool) -> Machine:
            made = Machine(name, directory, node)
            stack.callback(made.end)
            return made

        plane = ControlPlane(variant, machine("fabric", node=False))
        joined: list[Node] = []
        for number in range(1, nodes + 1):
            cgroup = f"{directory.name}-node{number}"
            stack.callback(_remove_cgroups, cgroup)  # before the machine, so that it is called after that has ended
            joined.append(Node(number, machine(f"node{number}", node=True), plane, cgroup))
        it = Cluster(variant, plane, joined)
        stack.push(_keeping(it, failed))
        _bring_up(it, [images.build(), *archives])
        say(f"{variant.name}: the API server answers, {nodes} nodes are registered")
        yield it


def _bring_up(it: Cluster, archives: list[Path]) -> None:
    """Nodes get their images while the control plane starts."""
    with ThreadPoolExecutor() as pool:
        started = pool.submit(it.plane.start)
        prepared = [pool.submit(node.prepare, archives) for node in it.nodes]
        started.result()
        for node, ready in zip(it.nodes, prepared, strict=True):
            ready.result()
            pool.submit(node.join).result()
        for node in it.nodes:
            it.wait(f"node/{node.name}", until="jsonpath={.spec.podCIDRs}")
            it.plane.route_to(it.get("node", node.name)["spec"]["podCIDRs"], node.number)


def dns_service(variant: Variant) -> dict[str, Any]:
    labels = {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}
    ports = [
        {"name": name, "port": 53, "protocol": protocol} for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))
    ]
    addresses = list(variant.dns())
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"k8s-app": "kube-dns"},
            "ports": ports,
            "clusterIP": addresses[0],
            "clusterIPs": addresses,
            "ipFamilyPolicy": "RequireDualStack" if len(addresses) > 1 else "SingleStack",
        },
    }


def forward(it: Cluster) -> None:
    """What a network of the nodes may count on, or set itself."""
    for node in it.nodes:
        control_plane.forward(node.machine, it.variant)


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """So that SIGTERM too ends in order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- the end -------------------------------------------------------------------------------------


def _keeping(it: Cluster, failed: Callable[[], bool]) -> Callable[..., None]:
    def at_the_end(kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        if (kind is not None or failed()) and not interrupted:
            where = LOGS / it.variant.name
            it.keep_logs(where)
            say(f"{it.variant.name}: logs are in {where.relative_to(ROOT)}")

    return at_the_end


def _keep(file: Path, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True)
    file.write_bytes(done.stdout or done.stderr)


def _remove_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def _remove_cgroups(name: str) -> None:
    """In each hierarchy (version 1), or in the only one."""
    for top in (_CGROUPS, *_CGROUPS.iterdir()):
        if (top / name).is_dir():
            for path, _, _ in os.walk(top / name, topdown=False):
                os.rmdir(path)


def _sweep() -> None:
    """What runs left that were killed: their processes died with them."""
    for entry in [*Path(tempfile.gettempdir()).glob(f"{_PREFIX}[0-9]*-*"), *_CGROUPS.glob(f"*/{_PREFIX}[0-9]*-*")]:
        number = entry.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            if entry.is_relative_to(_CGROUPS):
                _remove_cgroups(entry.name)
            else:
                shutil.rmtree(entry)
