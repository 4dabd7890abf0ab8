"""kube-proxy in nftables mode as a plane: etcd and an API server on the fabric, a kube-proxy on each node.

Invariants: all processes run in the topology's namespaces, and all they write lies in one directory. Pods and routes
are the topology's own, made as Podwire makes them, so that a difference between the planes is the Services'.
"""

import http.client
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podwire.model.addresses import FAMILIES, IPV4
from tests.kernel.process import PATIENCE, started
from tests.kernel.rig import Space, entered
from tests.packets.objects import Object
from tests.packets.plan import POD_RANGE, SERVICE_RANGE, Node, Pod, router
from tests.packets.topology import Topology
from tests.packets.watching import until_none

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire" / "kubernetes" / "programs"
_PROGRAMS = ("etcd", "kube-apiserver", "kube-proxy", "openssl")
_TOKEN, _PORT = "table", 6443
_PLURAL = {"Node": "nodes", "Service": "services", "EndpointSlice": "endpointslices"}


def programs() -> dict[str, Path | None]:
    """What the plane is made of, from the cache of built programs or PATH; None: in neither."""
    path = os.pathsep.join([*map(str, sorted(CACHE.glob("kubernetes-*"))), os.environ["PATH"]])
    return {name: Path(found) if (found := shutil.which(name, path=path)) else None for name in _PROGRAMS}


class KubeProxy:
    def __init__(self, topology: Topology, directory: Path) -> None:
        self._topology, self._directory = topology, directory
        self._programs = {name: str(path) for name, path in programs().items()}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._proxies: dict[str, subprocess.Popen[bytes]] = {}
        self._services: list[Object] = []
        self._kubeconfig = directory / "kubeconfig"
        self._api = _connection()

    def start(self) -> None:
        """The API server, at work."""
        self._start("etcd", *_flags(self._etcd()))
        key, tokens = self._directory / "accounts.key", self._directory / "tokens.csv"
        subprocess.run([self._programs["openssl"], "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens.write_text(f'{_TOKEN},table,table,"system:masters"\n')
        self._start("kube-apiserver", *_flags(self._apiserver(key, tokens)))
        self._kubeconfig.write_text(json.dumps(_kubeconfig()))
        self._await_first_service()

    def publish(self, objects: Iterable[Object]) -> None:
        """Objects that are not there yet: the table's cluster never changes."""
        for it in objects:
            self._request("POST", _path(it), it)
            if it["kind"] == "Service":
                # Of a new Service the API takes no status.
                status = f"{_path(it)}/{it['metadata']['name']}/status"
                self._request("PATCH", status, {"status": it["status"]}, "application/merge-patch+json")
                self._services.append(it)

    def add_node(self, node: Node) -> None:
        self._topology.carry(node)
        space, log = self._topology.space(node), self._directory / f"{node.name}.log"
        config = self._directory / f"{node.name}.json"
        config.write_text(json.dumps(self._proxy_configuration(node)))
        with entered(space), log.open("wb") as out:
            command = [self._programs["kube-proxy"], "--config", str(config)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._proxies[node.name] = process
        # All was published before: what it programs first is all of it.
        until_none(lambda: self._not_programmed(space), [space])

    def attach(self, pod: Pod) -> None:
        self._topology.wire(pod)

    def close(self) -> None:
        self._api.close()
        for process in (*self._proxies.values(), *reversed(self._processes)):
            _end(process)

    # --- programs ------------------------------------------------------------------------------

    def _start(self, name: str, *arguments: str) -> None:
        log, notify = self._directory / f"{name}.log", self._directory / f"{name}.notify"
        with entered(self._topology.fabric):
            self._processes.append(started([self._programs[name], *arguments], log, notify))

    def _etcd(self) -> dict[str, str]:
        return {
            "data-dir": str(self._directory / "etcd"),
            "listen-client-urls": "http://127.0.0.1:2379",
            "advertise-client-urls": "http://127.0.0.1:2379",
            "listen-peer-urls": "http://127.0.0.1:2380",
            "unsafe-no-fsync": "true",
        }

    def _apiserver(self, key: Path, tokens: Path) -> dict[str, str]:
        return {
            "etcd-servers": "http://127.0.0.1:2379",
            "service-cluster-ip-range": ",".join(str(SERVICE_RANGE[family]) for family in FAMILIES),
            "advertise-address": router(IPV4),
            "secure-port": str(_PORT),
            "cert-dir": str(self._directory / "certificates"),
            "token-auth-file": str(tokens),
            "authorization-mode": "AlwaysAllow",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(key),
            "service-account-signing-key-file": str(key),
        }

    def _proxy_configuration(self, node: Node) -> Object:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self._kubeconfig)},
            "hostnameOverride": node.name,
            "clusterCIDR": ",".join(str(POD_RANGE[family]) for family in FAMILIES),
            "conntrack": {"maxPerCore": 0},  # a setting of the machine
        }

    def _not_programmed(self, space: Space) -> list[str]:
        """Addresses of Services that the node doesn't have."""
        listed = subprocess.run(
            ["ip", "netns", "exec", space.name, "nft", "list", "ruleset"], check=True, capture_output=True, text=True
        ).stdout
        wanted = [address for it in self._services for address in it["spec"]["clusterIPs"]]
        return [address for address in wanted if f" {address} . " not in listed]

    # --- the API -------------------------------------------------------------------------------

    def _await_first_service(self) -> None:
        """The API server makes its own once it can give addresses."""
        response = self._ask("GET", "/api/v1/namespaces/default/services?watch=true", None)
        while json.loads(response.readline())["object"]["metadata"]["name"] != "kubernetes":
            pass
        response.close()
        self._api.close()

    def _request(self, method: str, target: str, body: Object, form: str = "application/json") -> None:
        response = self._ask(method, target, body, form)
        answer = response.read().decode()
        assert response.status < 300, f"{method} {target}: {answer}"

    def _ask(
        self, method: str, target: str, body: Object | None, form: str = "application/json"
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": form}
        with entered(self._topology.fabric):
            self._api.request(method, target, json.dumps(body) if body is not None else None, headers)
        return self._api.getresponse()


def _connection() -> http.client.HTTPSConnection:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # a certificate that it made for itself
    return http.client.HTTPSConnection("127.0.0.1", _PORT, timeout=PATIENCE, context=context)


def _path(it: Object) -> str:
    """Of all objects of its kind."""
    group = "/api/" if "/" not in it["apiVersion"] else "/apis/"
    namespace = it["metadata"].get("namespace")
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{group}{it['apiVersion']}{inside}/{_PLURAL[it['kind']]}"


def _kubeconfig() -> dict[str, Any]:
    cluster = {"server": f"https://{router(IPV4)}:{_PORT}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "table", "cluster": cluster}],
        "users": [{"name": "table", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "table", "context": {"cluster": "table", "user": "table"}}],
        "current-context": "table",
    }


def _flags(settings: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(PATIENCE / 6)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE)


@contextmanager
def kube_proxy(topology: Topology, directory: Path) -> Iterator[KubeProxy]:
    """Every process is ended, whatever happens."""
    plane = KubeProxy(topology, directory)
    try:
        plane.start()
        yield plane
    finally:
        plane.close()
