"""The source against a real API server: what it lists and watches, and what a killed server does to it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from podwire.sources import kube_status
from podwire.sources.kube_api import Api
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_watch import Chance
from tests.cluster.api_server import GUARD, Admin, ApiServer, administered, define_pools, needed, undefine_pools
from tests.unit import kube_fake as things
from tests.unit import kube_records as records
from tests.unit.kube_told import Told, at_work

pytestmark = needed

POOLS = {"podpool/pods", "podblock/10.1.0.64/26"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    it = ApiServer(tmp_path_factory.mktemp("api-server"))
    try:
        it.start()
        yield it
    finally:
        it.close()


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


async def test_pools_and_their_definitions_come_and_go_while_it_watches(server: ApiServer) -> None:
    async def pause(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.1))

    async with administered(server) as admin, at_work(server.access(), Chance(pause=pause), guard=GUARD) as told:
        assert told.objects == await admin.objects("one")
        await define_pools(admin)
        await admin.make("podpools", records.pool("pods", "10.1.0.0/16"))
        await admin.make("podblocks", records.block("10.1.0.64/26", "one"))
        await told.until(lambda: len(POOLS & set(map(str, told.objects))) == 2)
        assert told.source.errors == ()
        await undefine_pools(admin)
        await told.until(lambda: not POOLS & set(map(str, told.objects)))
        await told.source.until(lambda: told.source.errors == ())
        await define_pools(admin)
        await admin.make("podpools", records.pool("pods", "10.1.0.0/16"))
        await told.until(lambda: "podpool/pods" in set(map(str, told.objects)))
        await equal(told, admin)


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
