"""etcd and an API server on loopback, without a cluster around them: what the agent's clients ask is real, and quick.

Invariants: nothing is left of them. One server serves the tests of a module, which name their objects apart.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from podwire.config import Kubernetes
from podwire.model.kinds import Object, ObjectKey
from podwire.sources.kube_config import Access, read_access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kubernetes import translate
from tests.cluster.parts.places import CACHE, ROOT
from tests.cluster.pki import Authority
from tests.kernel.process import PATIENCE, started
from tests.unit import kube_fake as things
from tests.unit import kube_records

_PATH = os.pathsep.join([*map(str, sorted((CACHE / "programs").glob("kubernetes-*"))), os.environ["PATH"]])
PROGRAMS = {name: shutil.which(name, path=_PATH) for name in ("etcd", "kube-apiserver", "openssl")}
_MISSING = ", ".join(name for name, path in PROGRAMS.items() if path is None)
needed = pytest.mark.skipif(bool(_MISSING), reason=f"missing: {_MISSING}; looked in {CACHE} and PATH")

MANIFEST = ROOT / "deploy" / "podwire.yaml"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

OWN = f"/apis/{kube_records.VERSION}"
ADDRESS_POOLS = f"{OWN}/addresspools"
BGP_PEERS, BGP_ADVERTISEMENTS, L2_ADVERTISEMENTS = (
    f"{OWN}/{name}" for name in ("bgppeers", "bgpadvertisements", "l2advertisements")
)
GUARD = 240.0
"""Seconds after which a test is given up."""


class ApiServer:
    """etcd and an API server on loopback, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "pki")
        self.port, self._etcd_port, peers = free_ports(3)
        self.authority.issue("apiserver", "/CN=kube-apiserver", ("kubernetes", "127.0.0.1"))
        self.authority.issue("admin", "/O=system:masters/CN=admin")
        self.kubeconfig = self.authority.kubeconfig("admin", f"https://127.0.0.1:{self.port}")
        self._api: subprocess.Popen[bytes] | None = None
        self._etcd = self._started(
            "etcd",
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            "--unsafe-no-fsync",
        )

    def start(self) -> None:
        """It listens then; its first objects may come later."""
        pki = self.authority
        self._api = self._started(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=RBAC",
        )

    def kill(self) -> None:
        if self._api is not None:
            self._api.kill()
            self._api.wait(PATIENCE)
            self._api = None

    def close(self) -> None:
        self.kill()
        self._etcd.kill()
        self._etcd.wait(PATIENCE)

    def access(self) -> Access:
        return read_access(Kubernetes(self.kubeconfig), {})

    def _started(self, name: str, *flags: str) -> "subprocess.Popen[bytes]":
        program = PROGRAMS[name]
        assert program is not None
        return started([program, *flags], self.directory / f"{name}.log", self.directory / f"{name}.notify")


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class Admin:
    """Makes, changes and lists objects, in its own words."""

    def __init__(self, session: aiohttp.ClientSession, server: str, tls: Any) -> None:
        self._session, self._server, self._tls = session, server, tls

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        data = json.dumps(body) if body is not None else None
        url = self._server + path
        async with self._session.request(method, url, data=data, headers={"Content-Type": kind}, ssl=self._tls) as got:
            answer = await got.json()
            assert got.status < 300, answer
            return answer

    async def ready(self) -> None:
        """Asked until it is, and has made its own objects, the last of which is its slice: nothing but asking tells."""
        for path in ("/readyz", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"):
            await self.answers(path)

    async def answers(self, path: str) -> None:
        """Asked until it does: nothing else tells."""
        while True:
            try:
                async with self._session.get(self._server + path, ssl=self._tls) as got:
                    if got.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)

    async def serves(self, version: str) -> bool:
        """Whether it has kinds of that group and version."""
        async with self._session.get(f"{self._server}/apis/{version}", ssl=self._tls) as got:
            return got.status == 200

    async def make(self, resource: str, thing: dict[str, Any]) -> Any:
        space = thing["metadata"].get("namespace")
        root, _, name = things.KINDS[resource][0].rpartition("/")
        path = f"{root}/namespaces/{space}/{name}" if space else f"{root}/{name}"
        _, version, kind = things.KINDS[resource]
        made = await self.ask("POST", path, {**thing, "apiVersion": version, "kind": kind})
        if thing.get("status"):
            body = {**made, "status": thing["status"]}
            made = await self.ask("PUT", f"{path}/{made['metadata']['name']}/status", body)
        return made

    async def objects(self, node: str) -> dict[ObjectKey, Object]:
        """What an agent of that node should know."""
        found: dict[ObjectKey, Object] = {}
        for resource, (path, version, kind) in things.KINDS.items():
            if version == kube_records.VERSION and not await self.serves(version):
                continue
            selection = "&".join(f"{name}={value}" for name, value in things.selection(resource, node).items())
            listed = await self.ask("GET", f"{path}?{selection}")
            for thing in listed["items"]:
                key, value, _ = translate({**thing, "apiVersion": version, "kind": kind})
                if value is not None:
                    found[key] = value
        return found


@asynccontextmanager
async def administered(server: ApiServer) -> AsyncIterator[Admin]:
    access = server.access()
    tls = (await Credentials(access).current()).tls
    async with asyncio.timeout(GUARD), aiohttp.ClientSession() as session:
        admin = Admin(session, access.servers[0], tls)
        await admin.ready()
        yield admin


def _definitions() -> list[dict[str, Any]]:
    manifest = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    return [it for it in manifest if it["kind"] == "CustomResourceDefinition"]


def _kinds() -> list[str]:
    return [it["spec"]["names"]["plural"] for it in _definitions()]


async def define_pools(admin: Admin) -> None:
    """The kinds of the manifest, once the server serves them. Nothing but asking tells that."""
    for it in _definitions():
        made = await admin.ask("POST", DEFINITIONS, it)
        assert made["spec"]["versions"][0]["schema"], made
    for name in _kinds():
        await admin.answers(f"{OWN}/{name}")


@contextmanager
def serving(directory: Path, prepare: Callable[[Admin], Awaitable[None]]) -> Iterator[ApiServer]:
    """One for the tests of a module, with what they need."""

    async def prepared(server: ApiServer) -> None:
        async with administered(server) as admin:
            await prepare(admin)

    it = ApiServer(directory)
    try:
        it.start()
        asyncio.run(prepared(it))
        yield it
    finally:
        it.close()


async def undefine_pools(admin: Admin) -> None:
    """All objects of these kinds go with them."""
    for name in _kinds():
        await admin.ask("DELETE", f"{DEFINITIONS}/{name}.podwire.io")
