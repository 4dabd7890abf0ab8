"""The source against a real API server: what it lists and watches, and what a killed server does to it."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from podwire.config import Kubernetes
from podwire.model.objects import Object, ObjectKey
from podwire.sources import kube_status
from podwire.sources.kube_api import Api
from podwire.sources.kube_config import Access, read_access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_watch import Chance
from podwire.sources.kubernetes import translate
from tests.cluster.parts.places import CACHE
from tests.cluster.pki import Authority
from tests.kernel.process import PATIENCE, started
from tests.unit import kube_fake as things
from tests.unit.kube_told import Told, at_work

_PATH = os.pathsep.join([*map(str, sorted((CACHE / "programs").glob("kubernetes-*"))), os.environ["PATH"]])
PROGRAMS = {name: shutil.which(name, path=_PATH) for name in ("etcd", "kube-apiserver", "openssl")}
_MISSING = ", ".join(name for name, path in PROGRAMS.items() if path is None)
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"missing: {_MISSING}; looked in {CACHE} and PATH")

GUARD = 240.0
"""Seconds after which a test is given up."""


class ApiServer:
    """etcd and an API server on loopback, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "pki")
        self.port, self._etcd_port, peers = _free_ports(3)
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


def _free_ports(count: int) -> list[int]:
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
            await self._answers(path)

    async def _answers(self, path: str) -> None:
        while True:
            try:
                async with self._session.get(self._server + path, ssl=self._tls) as got:
                    if got.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)

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
            selection = "&".join(f"{name}={value}" for name, value in things.selection(resource, node).items())
            listed = await self.ask("GET", f"{path}?{selection}")
            for thing in listed["items"]:
                key, value, _ = translate({**thing, "apiVersion": version, "kind": kind})
                if value is not None:
                    found[key] = value
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    it = ApiServer(tmp_path_factory.mktemp("api-server"))
    try:
        it.start()
        yield it
    finally:
        it.close()


@asynccontextmanager
async def administered(server: ApiServer) -> AsyncIterator[Admin]:
    access = server.access()
    tls = (await Credentials(access).current()).tls
    async with asyncio.timeout(GUARD), aiohttp.ClientSession() as session:
        admin = Admin(session, access.servers[0], tls)
        await admin.ready()
        yield admin


def pod(name: str, node: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
            "serviceAccountName": "default",
        },
    }


async def equal(told: Told, admin: Admin) -> None:
    """Until the events add up to what a list says now."""
    wanted = await admin.objects("one")
    await told.until(lambda: told.objects == wanted)


async def test_what_it_lists_and_hears_is_what_is_there(server: ApiServer) -> None:
    async with administered(server) as admin:
        await admin.make("namespaces", things.namespace("shop", team="net"))
        await admin.make("nodes", things.node("one", "10.1.1.0/24"))
        await admin.make("services", things.service("web", "10.96.0.10"))
        await admin.make("endpointslices", things.slice_("web-1", "web", "10.1.1.2"))
        async with at_work(server.access(), Chance(), guard=GUARD) as told:
            assert told.objects == await admin.objects("one")
            assert any(str(key) == "servicecidr/kubernetes" for key in told.objects)
            await admin.make("services", things.service("api", "10.96.0.11", namespace="shop"))
            await admin.make("endpointslices", things.slice_("api-1", "api", "10.1.1.3", namespace="shop"))
            await admin.make("endpointslices", things.slice_("stray", None, "10.1.1.4"))
            await admin.make("servicecidrs", things.service_cidr("more", "10.97.0.0/24"))
            await admin.ask("DELETE", "/api/v1/namespaces/default/services/web")
            await equal(told, admin)
            assert told.source.errors == ()
            patch = {"metadata": {"labels": {"kubernetes.io/service-name": "api"}}}
            path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/stray"
            await admin.ask("PATCH", path, patch, "application/merge-patch+json")
            await equal(told, admin)
            assert told.changes()[-1] == "+slice/default/stray"
            await admin.ask("DELETE", path)
            await equal(told, admin)
            assert told.changes()[-1] == "-slice/default/stray"


async def test_a_list_of_several_pages(server: ApiServer) -> None:
    async with administered(server) as admin:
        for number in range(520):
            await admin.make("services", things.service(f"many-{number}", f"10.96.{1 + (number >> 8)}.{number & 255}"))
        async with at_work(server.access(), Chance(), guard=GUARD) as told:
            assert told.objects == await admin.objects("one")
            assert sum(str(key).startswith("service/default/many-") for key in told.objects) == 520


async def test_a_server_that_is_killed_and_comes_back_costs_no_event_but_for_what_differs(server: ApiServer) -> None:
    async with administered(server) as admin, at_work(server.access(), Chance(), guard=GUARD) as told:
        await admin.make("services", things.service("before", "10.96.200.1"))
        await asyncio.to_thread(server.kill)  # what was made last may not have been heard
        await told.source.until(lambda: bool(told.source.errors))
        held = dict(told.objects)
        assert told.source.listed
        await asyncio.to_thread(server.start)
        await admin.ready()
        await admin.make("services", things.service("after", "10.96.200.2"))
        await told.source.until(lambda: not told.source.errors)
        await equal(told, admin)
        new = [change for change in told.changes() if change.startswith(("+service/default/", "-"))]
        assert sorted(new) == ["+service/default/after", "+service/default/before"]
        assert held.items() <= told.objects.items()


async def test_the_node_s_condition_is_set(server: ApiServer) -> None:
    async def ready() -> None:
        return

    async def pause(seconds: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    paused = asyncio.Event()
    async with administered(server) as admin:
        waiting = [{"type": "NetworkUnavailable", "status": "True"}, {"type": "Ready", "status": "Unknown"}]
        await admin.make("nodes", {"metadata": {"name": "cloudy"}, "status": {"conditions": waiting}})
        access = server.access()
        api = Api(access, Credentials(access))
        task = asyncio.create_task(kube_status.keep(api, "cloudy", ready, False, Chance(pause=pause)))
        await paused.wait()
        task.cancel()
        await asyncio.wait([task])
        await api.close()
        node = await admin.ask("GET", "/api/v1/nodes/cloudy")
        assert [(each["type"], each["status"]) for each in node["status"]["conditions"]] == [
            ("NetworkUnavailable", "False"),
            ("Ready", "Unknown"),
        ]
