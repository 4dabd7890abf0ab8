"""Agents that claim blocks of pools from a real API server: what holds against the fake one holds there too."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api_server import Admin, ApiServer, administered, define_pools, needed, serving
from tests.unit import claiming_scenarios, kube_records
from tests.unit import kube_fake as things

pytestmark = needed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory.mktemp("api-server"), _prepared) as it:
        yield it


async def _prepared(admin: Admin) -> None:
    """A service account, which pods need: no controller makes one here."""
    await define_pools(admin)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await admin.ask("POST", "/api/v1/namespaces/default/serviceaccounts", account)


class Real:
    """`claiming.Server`. There is no garbage collector: what a Node owns is taken with it."""

    def __init__(self, server: ApiServer, admin: Admin) -> None:
        self.access, self._admin = server.access(), admin

    async def put_node(self, name: str) -> None:
        await self._admin.make("nodes", things.node(name))

    async def remove_node(self, name: str) -> None:
        uid = (await self._admin.ask("DELETE", f"/api/v1/nodes/{name}"))["details"]["uid"]
        for cidr, (_, owner) in (await self.blocks()).items():
            if owner == uid:
                await self._delete(cidr)

    async def put_pool(self, name: str, *cidrs: str, **spec: Any) -> None:
        await self._admin.make("podpools", kube_records.pool(name, *cidrs, **spec))

    async def put_pod(self, name: str, node: str, **annotations: str) -> str:
        metadata = {"name": name, "namespace": "default", "annotations": annotations}
        containers = [{"name": "c", "image": "none"}]
        spec = {"nodeName": node, "automountServiceAccountToken": False, "containers": containers}
        made = await self._admin.make("pods", {"metadata": metadata, "spec": spec})
        return str(made["metadata"]["uid"])

    async def remove_pod(self, name: str) -> None:
        await self._admin.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})

    async def blocks(self) -> dict[str, tuple[str, str]]:
        found = {}
        for it in (await self._admin.ask("GET", kube_records.BLOCKS))["items"]:
            owners = it["metadata"].get("ownerReferences") or [{"uid": ""}]
            found[it["spec"]["cidr"]] = it["spec"]["node"], owners[0]["uid"]
        return found

    async def put_block(self, cidr: str, node: str, pool: str) -> None:
        await self._admin.make("podblocks", kube_records.block(cidr, node, pool))

    async def wipe(self) -> None:
        await self._admin.ask("DELETE", kube_records.BLOCKS)

    async def _delete(self, cidr: str) -> None:
        await self._admin.ask("DELETE", f"{kube_records.BLOCKS}/{kube_records.name_of_block(cidr)}")

    async def clear(self) -> None:
        """All of a scenario."""
        await self._admin.ask("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
        for path in ("/api/v1/nodes", kube_records.POOLS, kube_records.BLOCKS):
            await self._admin.ask("DELETE", path)


@asynccontextmanager
async def cleared(server: ApiServer) -> AsyncIterator[Real]:
    async with administered(server) as admin:
        real = Real(server, admin)
        try:
            yield real
        finally:
            await real.clear()


@pytest.mark.parametrize("scenario", claiming_scenarios.SCENARIOS, ids=lambda it: it.__name__)
async def test_whatever_happens(server: ApiServer, scenario: Any, tmp_path: Path) -> None:
    async with cleared(server) as real:
        await scenario(real, tmp_path)
