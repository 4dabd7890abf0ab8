"""What a real API server's objects say of themselves, once the controller has looked at them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from podwire.sources.balancer_objects import CONDITION
from tests.cluster.api_server import (
    ADDRESS_POOLS,
    BGP_ADVERTISEMENTS,
    BGP_PEERS,
    L2_ADVERTISEMENTS,
    MANIFEST,
    Admin,
    ApiServer,
    free_ports,
    needed,
    serving,
)
from tests.cluster.test_balancers import Shop, defined, gone, pool, shop, until
from tests.unit import kube_records as records
from tests.unit.kube_records import MERGE

pytestmark = needed
KINDS = {BGP_PEERS: "BGPPeer", BGP_ADVERTISEMENTS: "BGPAdvertisement", L2_ADVERTISEMENTS: "L2Advertisement"}
SECRETS = "/api/v1/namespaces/podwire/secrets"
SOUND = ("True", "True", "Complete")
PEER = {"peerAddress": "198.51.100.1", "peerASN": 64512, "myASN": 64512}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory.mktemp("api-server"), defined) as it:
        yield it


async def make(admin: Admin, path: str, name: str, **spec: Any) -> None:
    body = {"apiVersion": records.VERSION, "kind": KINDS[path], "metadata": {"name": name}, "spec": spec}
    await admin.ask("POST", path, body)


async def patch(admin: Admin, path: str, **spec: Any) -> None:
    await admin.ask("PATCH", path, {"spec": spec}, MERGE)


async def said(it: Shop, path: str, name: str) -> tuple[str, ...]:
    """Whether it is accepted, whether it is complete, and for which reason."""
    found = await it.admin.ask("GET", f"{path}/{name}")
    of = {each["type"]: each for each in found.get("status", {}).get("conditions", ())}
    if "Complete" not in of or of["Complete"]["observedGeneration"] != found["metadata"]["generation"]:
        return ()
    return of["Accepted"]["status"], of["Complete"]["status"], of["Complete"]["reason"]


async def says(it: Shop, path: str, name: str, *expected: str) -> None:
    await until(lambda: said(it, path, name), expected)


async def counts(it: Shop, name: str = "pool") -> Any:
    status = (await it.admin.ask("GET", f"{ADDRESS_POOLS}/{name}")).get("status", {})
    return {family: status[family] for family in ("ipv4", "ipv6") if family in status}


async def events(it: Shop, name: str) -> list[tuple[str, str]]:
    found = (await it.admin.ask("GET", "/api/v1/namespaces/default/events"))["items"]
    mine = [each for each in found if each["involvedObject"]["name"] == name]
    return [(each["reason"], each["message"]) for each in sorted(mine, key=lambda each: each["eventTime"])]


async def reasons(it: Shop, name: str) -> list[str]:
    return [reason for reason, _ in await events(it, name)]


async def test_a_pool_says_what_it_has_and_what_others_have_of_it(server: ApiServer, tmp_path: Path) -> None:
    node = {"metadata": {"name": "worker"}}
    async with shop(server, "counted", tmp_path, pool("192.0.2.1-192.0.2.9", "2001:db8::/32")) as it:
        await it.admin.ask("POST", "/api/v1/nodes", node)
        try:
            await it.controller()
            await it.make("web")
            await it.becomes("web", ["192.0.2.1"])
            six = {"total": str(1 << 96), "assigned": 0, "available": str(1 << 96)}
            whole = {"ipv4": {"total": "9", "assigned": 1, "available": "8"}, "ipv6": six}
            await until(lambda: counts(it), whole)
            await says(it, ADDRESS_POOLS, "pool", *SOUND)
            addresses = [{"type": "InternalIP", "address": f"192.0.2.{last}"} for last in (2, 3)]
            await it.admin.ask("PATCH", "/api/v1/nodes/worker/status", {"status": {"addresses": addresses}}, MERGE)
            await says(it, ADDRESS_POOLS, "pool", "True", "False", "AddressesTaken")
            await it.make("dns")
            await it.becomes("dns", ["192.0.2.4"])
            await until(lambda: counts(it), {**whole, "ipv4": {"total": "7", "assigned": 2, "available": "5"}})
            told = "192.0.2.2 is an address of node/worker; 192.0.2.3 is an address of node/worker"
            message = f"spec.addresses: it does not give what others have: {told}"
            await until(lambda: events(it, "pool"), [("AddressesTaken", message)])
            await it.remove("web")
            await it.remove("dns")
            await until(lambda: counts(it), {**whole, "ipv4": {"total": "7", "assigned": 0, "available": "7"}})
        finally:
            await it.admin.ask("DELETE", "/api/v1/nodes/worker")


async def test_of_two_pools_that_overlap_one_says_that_it_is_not_used(server: ApiServer, tmp_path: Path) -> None:
    pools = pool("192.0.2.1-192.0.2.9", name="first"), pool("192.0.2.9-192.0.2.12", name="second")
    async with shop(server, "overlapping", tmp_path, *pools) as it:
        await it.controller()
        await says(it, ADDRESS_POOLS, "first", *SOUND)
        await says(it, ADDRESS_POOLS, "second", "False", "False", "Overlap")
        assert await counts(it, "second") == {}
        await it.admin.ask("DELETE", f"{ADDRESS_POOLS}/first")
        await says(it, ADDRESS_POOLS, "second", *SOUND)
        await until(lambda: counts(it, "second"), {"ipv4": {"total": "4", "assigned": 0, "available": "4"}})


async def test_a_service_range_gives_no_addresses_to_load_balancers(server: ApiServer, tmp_path: Path) -> None:
    """The API server's own, where it tells it (Kubernetes 1.33)."""
    async with shop(server, "inside", tmp_path, pool("10.96.0.0/16", "10.97.0.1-10.97.0.2")) as it:
        await it.controller()
        await says(it, ADDRESS_POOLS, "pool", "True", "False", "AddressesTaken")
        await it.make("web")
        await it.becomes("web", ["10.97.0.1"])


async def test_what_is_wrong_with_peers_and_advertisements_is_said_and_goes(server: ApiServer, tmp_path: Path) -> None:
    async with shop(server, "peering", tmp_path, pool("192.0.2.1-192.0.2.9")) as it:
        await it.admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": "worker"}})
        try:
            await make(it.admin, BGP_PEERS, "east", **PEER, passwordSecret={"name": "router"})
            await make(it.admin, BGP_PEERS, "west", **PEER)
            await make(it.admin, BGP_ADVERTISEMENTS, "all", addressPools=["pool", "none"], localPref=100)
            await make(it.admin, BGP_ADVERTISEMENTS, "more", peers=["west"], localPref=200)
            await make(it.admin, L2_ADVERTISEMENTS, "near", addressPools=["none"])
            await it.controller()
            await says(it, BGP_PEERS, "east", "False", "False", "SecretMissing")
            await says(it, BGP_PEERS, "west", *SOUND)
            await says(it, BGP_ADVERTISEMENTS, "all", "True", "False", "UnknownPool")
            await says(it, BGP_ADVERTISEMENTS, "more", "True", "False", "LocalPrefConflict")
            await says(it, L2_ADVERTISEMENTS, "near", "True", "False", "UnknownPool")

            secret = {"metadata": {"name": "router"}, "stringData": {"password": "s3cret"}}
            await it.admin.ask("POST", SECRETS, secret)
            await says(it, BGP_PEERS, "east", *SOUND)
            await says(it, BGP_PEERS, "west", "False", "False", "PeerConflict")
            await patch(it.admin, f"{BGP_PEERS}/west", peerAddress="198.51.100.2")
            await patch(it.admin, f"{BGP_ADVERTISEMENTS}/all", addressPools=["pool"], peers=["east"])
            await patch(it.admin, f"{L2_ADVERTISEMENTS}/near", addressPools=[])
            for path, name in (
                (BGP_PEERS, "west"),
                (BGP_ADVERTISEMENTS, "all"),
                (BGP_ADVERTISEMENTS, "more"),
                (L2_ADVERTISEMENTS, "near"),
            ):
                await says(it, path, name, *SOUND)
            await until(lambda: reasons(it, "west"), ["PeerConflict", "Complete"])
            assert "s3cret" not in (tmp_path / "controller0.log").read_text(encoding="utf-8")
        finally:
            for path, name in (
                (BGP_PEERS, "east"),
                (BGP_PEERS, "west"),
                (BGP_ADVERTISEMENTS, "all"),
                (BGP_ADVERTISEMENTS, "more"),
                (L2_ADVERTISEMENTS, "near"),
                (SECRETS, "router"),
                ("/api/v1/nodes", "worker"),
            ):
                await gone(it.admin, f"{path}/{name}")


async def test_a_service_that_is_ours_no_more_loses_our_condition(server: ApiServer, tmp_path: Path) -> None:
    """And others' stay."""
    theirs = {
        "type": "example.com/Theirs",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2024-05-06T07:08:09Z",
    }

    async def conditions() -> list[str]:
        found = await it.admin.ask("GET", "/api/v1/namespaces/leaving/services/web")
        return [each["type"] for each in found["status"].get("conditions", ())]

    async with shop(server, "leaving", tmp_path, pool("192.0.2.1-192.0.2.9")) as it:
        await it.controller()
        await it.make("web")
        await it.becomes("web", ["192.0.2.1"])
        found = await it.admin.ask("GET", "/api/v1/namespaces/leaving/services/web")
        both = [*found["status"]["conditions"], theirs]
        await it.admin.ask(
            "PATCH", "/api/v1/namespaces/leaving/services/web/status", {"status": {"conditions": both}}, MERGE
        )
        assert await conditions() == [CONDITION, "example.com/Theirs"]
        await it.patch("web", {"spec": {"type": "ClusterIP"}})
        await until(conditions, ["example.com/Theirs"])


ROLES = {
    "ServiceAccount": "/api/v1/namespaces/podwire/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/podwire/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/podwire/rolebindings",
}


def _write_kubeconfig(server: ApiServer, token: str, path: Path) -> None:
    config = yaml.safe_load(server.kubeconfig.read_text(encoding="utf-8"))
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


@asynccontextmanager
async def limited(it: Shop, server: ApiServer, path: Path, without: tuple[str, ...] = ()) -> AsyncIterator[Path]:
    """A kubeconfig with the rights that the manifest gives the controller, but for some resources."""
    things = [
        thing
        for thing in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
        if thing["kind"] in ROLES and thing["metadata"]["name"] == "podwire-controller"
    ]
    for thing in things:
        for rule in thing.get("rules", ()):
            rule["resources"] = [name for name in rule["resources"] if name not in without] or ["nothing"]
        await it.admin.ask("POST", ROLES[thing["kind"]], thing)
    account = f"{ROLES['ServiceAccount']}/podwire-controller/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = (await it.admin.ask("POST", account, asked))["status"]["token"]
    _write_kubeconfig(server, token, path)
    try:
        yield path
    finally:
        for thing in things:
            await gone(it.admin, f"{ROLES[thing['kind']]}/podwire-controller")
        await gone(it.admin, f"{BGP_PEERS}/router")


async def test_a_controller_with_the_rights_of_the_manifest_does_all_of_it(server: ApiServer, tmp_path: Path) -> None:
    """As its service account, with a token of the API's."""
    async with (
        shop(server, "limited", tmp_path, pool("192.0.2.1-192.0.2.9")) as it,
        limited(it, server, tmp_path / "limited.kubeconfig") as kubeconfig,
    ):
        await make(it.admin, BGP_PEERS, "router", **PEER, passwordSecret={"name": "router"})
        await it.controller(kubeconfig=kubeconfig)
        await it.make("web")
        await it.becomes("web", ["192.0.2.1"])
        await says(it, BGP_PEERS, "router", "False", "False", "SecretMissing")
        await until(lambda: counts(it), {"ipv4": {"total": "9", "assigned": 1, "available": "8"}})
        await until(lambda: it.events("web"), [("AddressAssigned", "192.0.2.1 of pool pool")])
        await it.patch("web", {"spec": {"type": "ClusterIP"}})
        await until(lambda: it.status("web"), ([], ""))
        assert "forbidden" not in (tmp_path / "controller0.log").read_text(encoding="utf-8").lower()


async def test_a_controller_with_the_rights_of_an_older_one_gives_addresses(server: ApiServer, tmp_path: Path) -> None:
    """And says nothing of what it may not see."""
    unseen = "nodes", "servicecidrs", "podpools", "podblocks", "secrets"
    async with (
        shop(server, "older", tmp_path, pool("192.0.2.1-192.0.2.9")) as it,
        limited(it, server, tmp_path / "limited.kubeconfig", unseen) as kubeconfig,
    ):
        await make(it.admin, BGP_PEERS, "router", **PEER, passwordSecret={"name": "router"})
        await it.controller(kubeconfig=kubeconfig)
        await it.make("web")
        await it.becomes("web", ["192.0.2.1"])
        await says(it, BGP_PEERS, "router", "True", "False", "NoAdvertisement")
        assert 'cannot list resource "nodes"' in (tmp_path / "controller0.log").read_text(encoding="utf-8")


async def test_a_controller_tells_whether_it_lives_and_what_it_sees(server: ApiServer, tmp_path: Path) -> None:
    """One that waits for the Lease, too."""
    first, second = free_ports(2)

    async def metrics(port: int) -> dict[str, float]:
        text = (await asked(port, "/metrics"))[1]
        return {
            sample.name + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("podwire_")
        }

    async def asked(port: int, path: str) -> tuple[int, str]:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as got:
                return got.status, await got.text()
        except aiohttp.ClientConnectionError:
            return 0, ""

    pools = pool("192.0.2.1-192.0.2.2"), pool("192.0.2.2-192.0.2.9", name="second")
    async with shop(server, "measured", tmp_path, *pools) as it:
        await it.controller("--metrics-listen", f"127.0.0.1:{first}")
        for name in ("a", "b", "c"):
            await it.make(name)
        await it.becomes("c", [], "NoAddress")
        await says(it, ADDRESS_POOLS, "second", "False", "False", "Overlap")
        assert await asked(first, "/healthz") == (200, "ok\n")
        told = await metrics(first)
        expected = {
            "podwire_controller_lease_held": 1,
            "podwire_address_pool_addresses IPv4 pool total": 2,
            "podwire_address_pool_addresses IPv4 pool used": 2,
            "podwire_address_pool_addresses IPv4 pool free": 0,
            "podwire_load_balancer_services Assigned": 2,
            "podwire_load_balancer_services NoAddress": 1,
            "podwire_configuration_problems addresspool Overlap": 1,
            "podwire_controller_writes_total": 3,
        }
        assert {name: told.get(name) for name in expected} == expected
        await it.controller("--metrics-listen", f"127.0.0.1:{second}")
        await until(lambda: asked(second, "/healthz"), (200, "ok\n"))
        assert (await metrics(second))["podwire_controller_lease_held"] == 0
        assert (await asked(second, "/else"))[0] == 404
        taken = await it.controller("--metrics-listen", f"127.0.0.1:{second}")
        assert await taken.wait() == 1
        log = (tmp_path / "controller2.log").read_text(encoding="utf-8")
        assert f"--metrics-listen 127.0.0.1:{second}: Address already in use" in log
