"""Addresses of load balancers at a real API server: definitions, and the controller as a process of its own."""

import asyncio
import signal
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from podwire.sources.balancer_objects import CLASS, CONDITION, GIVES_UP, POOL, SHARING
from tests.cluster.api_server import ADDRESS_POOLS, GUARD, Admin, ApiServer, administered, define_pools, needed, serving
from tests.unit import kube_records as records
from tests.unit.kube_records import MERGE

pytestmark = needed
EVENTS = "/api/v1/namespaces/{}/events"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory.mktemp("api-server"), defined) as it:
        yield it


async def defined(admin: Admin) -> None:
    await define_pools(admin)
    await admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "podwire"}})


# --- definitions -------------------------------------------------------------------------------


def pool(*addresses: str, name: str = "pool", **more: Any) -> dict[str, Any]:
    spec = {"addresses": list(addresses), **more}
    return {"apiVersion": records.VERSION, "kind": "AddressPool", "metadata": {"name": name}, "spec": spec}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no addresses": ({}, "spec.addresses: Required value"),
    "an empty list": ({"addresses": []}, "spec.addresses in body should have at least 1 items"),
    "host bits": ({"addresses": ["192.0.2.1/24"]}, "expected a range such as 192.0.2.0/28 or 192.0.2.10-192.0.2.19"),
    "an address": ({"addresses": ["192.0.2.1"]}, "expected a range such as 192.0.2.0/28 or 192.0.2.10-192.0.2.19"),
    "two families": ({"addresses": ["192.0.2.1-2001:db8::1"]}, "expected a range such as 192.0.2.0/28"),
    "a negative priority": (
        {"addresses": ["192.0.2.0/24"], "priority": -1},
        "spec.priority in body should be greater than or equal to 0",
    ),
    "a selector without values": (
        {"addresses": ["192.0.2.0/24"], "serviceSelectors": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]},
        "expected values for In and NotIn, and none for Exists and DoesNotExist",
    ),
}


@pytest.mark.parametrize(("spec", "error"), WRONG.values(), ids=WRONG)
async def test_a_pool_that_is_wrong_is_refused_with_the_right_form(
    server: ApiServer, spec: dict[str, Any], error: str
) -> None:
    async with administered(server) as admin:
        with pytest.raises(AssertionError) as refused:
            await admin.ask("POST", ADDRESS_POOLS, {**pool(), "spec": spec})
    assert error in str(refused.value)


# --- the controller ----------------------------------------------------------------------------


class Shop:
    """A namespace of its own, and the controllers that serve all of them."""

    def __init__(self, admin: Admin, server: ApiServer, namespace: str, directory: Path) -> None:
        self.admin, self._server, self.namespace, self._directory = admin, server, namespace, directory
        self._path = f"/api/v1/namespaces/{namespace}/services"
        self._running: list[asyncio.subprocess.Process] = []

    async def controller(self, *options: str, kubeconfig: Path | None = None) -> asyncio.subprocess.Process:
        program = Path(sysconfig.get_path("scripts"), "podwire")
        command = [str(program), "controller", "--kubeconfig", str(kubeconfig or self._server.kubeconfig), *options]
        with (self._directory / f"controller{len(self._running)}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stderr=log)
        self._running.append(process)
        return process

    async def end(self) -> None:
        for process in self._running:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()

    async def make(self, name: str, *, port: int = 80, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        ports = [{"port": port}]
        body = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"type": "LoadBalancer", "ports": ports, **spec},
        }
        await self.admin.ask("POST", self._path, body)

    async def patch(self, name: str, body: Any) -> None:
        await self.admin.ask("PATCH", f"{self._path}/{name}", body, MERGE)

    async def remove(self, name: str) -> None:
        await self.admin.ask("DELETE", f"{self._path}/{name}")

    async def status(self, name: str) -> tuple[list[str], str]:
        """Its addresses, and the condition's reason."""
        found = (await self.admin.ask("GET", f"{self._path}/{name}"))["status"]
        ingress = found["loadBalancer"].get("ingress", [])
        assert all(it["ipMode"] == "VIP" for it in ingress)
        own = next((it for it in found.get("conditions", ()) if it["type"] == CONDITION), {"reason": ""})
        return [it["ip"] for it in ingress], own["reason"]

    async def becomes(self, name: str, addresses: list[str], reason: str = "Assigned") -> None:
        await until(lambda: self.status(name), (addresses, reason))

    async def message(self, name: str) -> str:
        found = (await self.admin.ask("GET", f"{self._path}/{name}"))["status"]["conditions"]
        return str(next(it["message"] for it in found if it["type"] == CONDITION))

    async def events(self, name: str) -> list[tuple[str, str]]:
        found = (await self.admin.ask("GET", EVENTS.format(self.namespace)))["items"]
        mine = [it for it in found if it["involvedObject"]["name"] == name]
        return [(it["reason"], it["message"]) for it in sorted(mine, key=lambda it: it["eventTime"])]


async def until(ask: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Asked until it is so: nothing else tells."""
    end = asyncio.get_running_loop().time() + 60
    while True:
        seen = await ask()
        if seen == expected:
            return
        assert asyncio.get_running_loop().time() < end, f"{seen}, not {expected}"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def shop(server: ApiServer, name: str, directory: Path, *pools: dict[str, Any]) -> AsyncIterator[Shop]:
    async with asyncio.timeout(GUARD), administered(server) as admin:
        await admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for it in pools:
            await admin.ask("POST", ADDRESS_POOLS, it)
        here = Shop(admin, server, name, directory)
        try:
            yield here
        finally:
            await here.end()
            for it in pools:
                await gone(admin, f"{ADDRESS_POOLS}/{it['metadata']['name']}")
            await admin.ask("DELETE", f"/api/v1/namespaces/{name}/services")


async def gone(admin: Admin, path: str) -> None:
    try:
        await admin.ask("DELETE", path)
    except (AssertionError, aiohttp.ClientError):  # the test has removed it
        return


async def test_services_get_addresses_and_give_them_back(server: ApiServer, tmp_path: Path) -> None:
    async with shop(server, "plain", tmp_path, pool("192.0.2.1-192.0.2.2")) as it:
        await it.make("first")
        await it.controller()
        await it.becomes("first", ["192.0.2.1"])
        await it.make("second")
        await it.becomes("second", ["192.0.2.2"])
        await it.make("third")
        await it.becomes("third", [], "NoAddress")
        assert await it.message("third") == "no address: pool pool has no free IPv4 address"
        assert await it.events("third") == [("NoAddress", "no address: pool pool has no free IPv4 address")]
        assert await it.events("first") == [("AddressAssigned", "192.0.2.1 of pool pool")]
        await it.remove("first")
        await it.becomes("third", ["192.0.2.1"])
        assert await it.status("second") == (["192.0.2.2"], "Assigned")


async def test_who_is_not_ours_is_left_alone(server: ApiServer, tmp_path: Path) -> None:
    async with shop(server, "others", tmp_path, pool("192.0.2.1-192.0.2.9")) as it:
        await it.make("others", loadBalancerClass="example.com/other")
        await it.make("internal", type="ClusterIP")
        await it.make("ours", loadBalancerClass=CLASS)
        await it.make("nobodys")
        await it.controller("--classed-only")
        await it.becomes("ours", ["192.0.2.1"])
        assert [await it.status(name) for name in ("others", "internal", "nobodys")] == [([], "")] * 3


async def test_without_a_pool_nothing_is_written_and_the_first_pool_serves_all(
    server: ApiServer, tmp_path: Path
) -> None:
    late = pool("192.0.2.1-192.0.2.9", name="late")
    async with shop(server, "poolless", tmp_path) as it:
        await it.make("one")
        await it.controller("--identity", "first")
        await until(lambda: leader(it), "first")
        assert await it.status("one") == ([], "")
        await it.admin.ask("POST", ADDRESS_POOLS, late)
        try:
            await it.becomes("one", ["192.0.2.1"])
            await it.admin.ask("DELETE", f"{ADDRESS_POOLS}/late")
            await it.admin.ask("POST", ADDRESS_POOLS, pool("198.51.100.0/24", name="other"))
            await it.becomes("one", ["192.0.2.1"], "Stale")
            assert "192.0.2.1 is kept, though it is in no pool that is used" in await it.message("one")
            await it.patch("one", {"metadata": {"annotations": {GIVES_UP: "192.0.2.1"}}})
            await it.becomes("one", ["198.51.100.0"])
            assert ("AddressLost", "192.0.2.1: the Service gives it up") in await it.events("one")
        finally:
            await gone(it.admin, f"{ADDRESS_POOLS}/other")
            await gone(it.admin, f"{ADDRESS_POOLS}/late")


async def test_annotations_say_what_a_service_wants(server: ApiServer, tmp_path: Path) -> None:
    pools = pool("192.0.2.1-192.0.2.9"), pool("198.51.100.1-198.51.100.9", name="byname", autoAssign=False)
    async with shop(server, "asking", tmp_path, *pools) as it:
        await it.controller()
        await it.make("byname", annotations={POOL: "byname"})
        await it.make("fixed", loadBalancerIP="192.0.2.7")
        await it.make("metallbs", annotations={"metallb.io/loadBalancerIPs": "192.0.2.5"})
        await it.make("both", loadBalancerIP="192.0.2.8", annotations={"metallb.io/loadBalancerIPs": "192.0.2.5"})
        await it.make("web", port=80, annotations={SHARING: "k", "podwire.io/load-balancer-ips": "192.0.2.3"})
        await it.becomes("web", ["192.0.2.3"])
        await it.make("dns", port=53, annotations={SHARING: "k", "podwire.io/load-balancer-ips": "192.0.2.3"})
        await it.becomes("byname", ["198.51.100.1"])
        await it.becomes("fixed", ["192.0.2.7"])
        await it.becomes("metallbs", ["192.0.2.5"])
        await it.becomes("dns", ["192.0.2.3"])
        await it.becomes("both", [], "NoAddress")
        assert "expected this or spec.loadBalancerIP, not both" in await it.message("both")
        await it.patch("fixed", {"spec": {"loadBalancerIP": "192.0.2.6"}})
        await it.becomes("fixed", ["192.0.2.6"])
        await it.patch("byname", {"spec": {"type": "ClusterIP"}})
        await it.make("next", annotations={POOL: "byname"})
        await it.becomes("next", ["198.51.100.1"])


async def leader(it: Shop) -> str:
    path = "/apis/coordination.k8s.io/v1/namespaces/podwire/leases"
    leases = (await it.admin.ask("GET", path))["items"]
    return next((lease["spec"].get("holderIdentity", "") for lease in leases), "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_another_controller_takes_over_and_moves_nobody(
    server: ApiServer, tmp_path: Path, number: signal.Signals
) -> None:
    """Also from one that stands still, and goes on later."""
    async with shop(server, f"over{number.value}", tmp_path, pool("192.0.2.1-192.0.2.3")) as it:
        first = await it.controller("--identity", "first")
        await it.make("b")
        await it.becomes("b", ["192.0.2.1"])
        second = await it.controller("--identity", "second")
        await it.make("a")
        await it.becomes("a", ["192.0.2.2"])
        assert await leader(it) == "first"
        first.send_signal(number)
        await it.remove("b")
        await it.make("c")
        await it.becomes("c", ["192.0.2.1"])
        assert await leader(it) == "second"
        assert await it.status("a") == (["192.0.2.2"], "Assigned")
        if number is signal.SIGSTOP:
            first.send_signal(signal.SIGCONT)
            async with asyncio.timeout(60):
                assert await first.wait() == 1
        assert second.returncode is None
