"""The fake API server as a cluster of `claiming`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from podwire.sources.kube_config import Access
from tests.unit import kube_records
from tests.unit.kube_fake import FakeApi, node, pod

GUARD = 60.0
"""Seconds after which a test is given up."""


class Fake:
    """`claiming.Server`."""

    def __init__(self, fake: FakeApi, address: str) -> None:
        self.fake, self.access = fake, Access((address,))

    async def put_node(self, name: str) -> None:
        self.fake.put("nodes", node(name))

    async def remove_node(self, name: str) -> None:
        uid = self.fake.objects["nodes"]["", name]["metadata"]["uid"]
        self.fake.remove("nodes", ("", name))
        for key, it in list(self.fake.objects["podblocks"].items()):
            if any(owner["uid"] == uid for owner in it["metadata"].get("ownerReferences", ())):
                self.fake.remove("podblocks", key)

    async def put_pool(self, name: str, *cidrs: str, **spec: Any) -> None:
        self.fake.put("podpools", kube_records.pool(name, *cidrs, **spec))

    async def put_pod(self, name: str, node: str, **annotations: str) -> str:
        thing = pod(name, node)
        thing["metadata"]["annotations"] = annotations
        self.fake.put("pods", thing)
        return str(self.fake.objects["pods"]["default", name]["metadata"]["uid"])

    async def remove_pod(self, name: str) -> None:
        self.fake.remove("pods", ("default", name))

    async def blocks(self) -> dict[str, tuple[str, str]]:
        found = {}
        for it in self.fake.objects["podblocks"].values():
            owners = it["metadata"].get("ownerReferences") or [{"uid": ""}]
            found[it["spec"]["cidr"]] = it["spec"]["node"], owners[0]["uid"]
        return found

    async def put_block(self, cidr: str, node: str, pool: str) -> None:
        self.fake.put("podblocks", kube_records.block(cidr, node, pool))

    async def wipe(self) -> None:
        for key in list(self.fake.objects["podblocks"]):
            self.fake.remove("podblocks", key)


@asynccontextmanager
async def served(fake: FakeApi) -> AsyncIterator[Fake]:
    async with asyncio.timeout(GUARD), fake.served() as address:
        yield Fake(fake, address)
