"""MetalLB's objects at a real API server, and Podwire's that follow them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from podwire.sources.metallb import LABEL
from tests.cluster.api_server import (
    ADDRESS_POOLS,
    BGP_ADVERTISEMENTS,
    BGP_PEERS,
    DEFINITIONS,
    GUARD,
    L2_ADVERTISEMENTS,
    MANIFEST,
    Admin,
    ApiServer,
    administered,
    define_pools,
    needed,
    serving,
)
from tests.cluster.test_balancers import Shop, gone, pool, until
from tests.unit.kube_records import MERGE

pytestmark = needed
SECRETS = "/api/v1/namespaces/podwire/secrets"
THEIRS = "/api/v1/namespaces/metallb-system/secrets"
KINDS = {
    "IPAddressPool": ("ipaddresspools", "v1beta1"),
    "BGPPeer": ("bgppeers", "v1beta2"),
    "BGPAdvertisement": ("bgpadvertisements", "v1beta1"),
    "L2Advertisement": ("l2advertisements", "v1beta1"),
    "BFDProfile": ("bfdprofiles", "v1beta1"),
    "Community": ("communities", "v1beta1"),
}
RIGHTS = MANIFEST.parent / "podwire-import-metallb.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One for each test: MetalLB goes in some of them, with its kinds."""
    with serving(tmp_path_factory.mktemp("api-server"), _defined) as it:
        yield it


async def _defined(admin: Admin) -> None:
    await define_pools(admin)
    for name in ("podwire", "metallb-system"):
        await admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for kind, (plural, version) in KINDS.items():
        names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
        spec = {"group": "metallb.io", "scope": "Namespaced", "names": names, "versions": versions}
        about = {"name": f"{plural}.metallb.io"}
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": about}
        await admin.ask("POST", DEFINITIONS, {**body, "spec": spec})
        await admin.answers(f"/apis/metallb.io/{version}/{plural}")


def theirs(kind: str, name: str = "") -> str:
    plural, version = KINDS[kind]
    path = f"/apis/metallb.io/{version}/namespaces/metallb-system/{plural}"
    return f"{path}/{name}" if name else path


async def make(admin: Admin, kind: str, name: str, labels: Any = None, **spec: Any) -> None:
    version = f"metallb.io/{KINDS[kind][1]}"
    about = {"name": name, "labels": labels or {}}
    await admin.ask("POST", theirs(kind), {"apiVersion": version, "kind": kind, "metadata": about, "spec": spec})


@asynccontextmanager
async def importing(server: ApiServer, directory: Path, kubeconfig: Path | None = None) -> AsyncIterator[Shop]:
    async with asyncio.timeout(GUARD), administered(server) as admin:
        it = Shop(admin, server, "default", directory)
        try:
            await it.controller("--import-metallb", kubeconfig=kubeconfig)
            yield it
        finally:
            await it.end()


async def names(it: Shop, path: str) -> list[str]:
    """With a mark for those that were imported."""
    found = (await it.admin.ask("GET", path))["items"]
    marked = [(each["metadata"]["name"], LABEL in each["metadata"].get("labels", {})) for each in found]
    return sorted(f"{name}{'*' if mark else ''}" for name, mark in marked)


async def spec(it: Shop, path: str) -> dict[str, Any]:
    found: dict[str, Any] = (await it.admin.ask("GET", path))["spec"]
    return found


async def field(it: Shop, path: str, name: str) -> Any:
    try:
        return (await spec(it, path)).get(name)
    except AssertionError:
        return None


async def test_objects_are_made_changed_and_taken_away_as_metallb_s_are(server: ApiServer, tmp_path: Path) -> None:
    async with importing(server, tmp_path) as it:
        admin = it.admin
        await make(admin, "IPAddressPool", "web", {"zone": "a"}, addresses=["192.0.2.1-192.0.2.9"])
        await make(admin, "BFDProfile", "quick", receiveInterval=50)
        await make(admin, "Community", "all", communities=[{"name": "far", "value": "64500:1"}])
        about = {"name": "router"}
        hush = {"metadata": about, "type": "kubernetes.io/basic-auth", "stringData": {"password": "hush"}}
        await admin.ask("POST", THEIRS, hush)
        of_peer = {"myASN": 64500, "peerASN": 64501, "peerAddress": "203.0.113.1", "bfdProfile": "quick"}
        await make(admin, "BGPPeer", "tor", **of_peer, passwordSecret={"name": "router"})
        await make(admin, "BGPAdvertisement", "web", ipAddressPools=["web"], peers=["tor"], communities=["far"])
        await make(admin, "L2Advertisement", "near", interfaces=["eth0"])

        await until(lambda: names(it, ADDRESS_POOLS), ["web*"])
        await until(lambda: names(it, BGP_PEERS), ["tor*"])
        await until(lambda: names(it, BGP_ADVERTISEMENTS), ["web*"])
        await until(lambda: names(it, L2_ADVERTISEMENTS), ["near*"])
        made = await spec(it, f"{BGP_PEERS}/tor")
        assert made["passwordSecret"] == {"name": "router", "key": "password"}
        assert made["bfd"]["receiveIntervalMilliseconds"] == 50
        assert (await admin.ask("GET", f"{SECRETS}/router"))["data"] == {"password": "aHVzaA=="}
        assert (await spec(it, f"{BGP_ADVERTISEMENTS}/web"))["communities"] == ["64500:1"]
        await it.make("shop")
        await it.becomes("shop", ["192.0.2.1"])

        await admin.ask("PATCH", theirs("IPAddressPool", "web"), {"spec": {"autoAssign": False}}, MERGE)
        await admin.ask("PATCH", theirs("BFDProfile", "quick"), {"spec": {"receiveInterval": 70}}, MERGE)
        await admin.ask("PATCH", f"{THEIRS}/router", {"stringData": {"password": "other"}}, MERGE)
        await admin.ask("PATCH", theirs("BGPAdvertisement", "web"), {"spec": {"communities": None}}, MERGE)
        await until(lambda: field(it, f"{ADDRESS_POOLS}/web", "autoAssign"), False)
        await until(lambda: field(it, f"{BGP_ADVERTISEMENTS}/web", "communities"), None)

        async def told() -> tuple[Any, Any]:
            bfd = await field(it, f"{BGP_PEERS}/tor", "bfd")
            return bfd["receiveIntervalMilliseconds"], (await admin.ask("GET", f"{SECRETS}/router"))["data"]["password"]

        await until(told, (70, "b3RoZXI="))
        generation = (await admin.ask("GET", f"{BGP_PEERS}/tor"))["metadata"]["generation"]

        await admin.ask("DELETE", theirs("BGPPeer", "tor"))
        await until(lambda: names(it, BGP_PEERS), [])
        await until(lambda: names(it, SECRETS), [])
        assert await names(it, ADDRESS_POOLS) == ["web*"]
        assert generation == 2, "it was written once for each change"


async def test_what_users_have_made_is_theirs(server: ApiServer, tmp_path: Path) -> None:
    """And what was imported is kept as it should be."""
    async with administered(server) as admin:
        await admin.ask("POST", ADDRESS_POOLS, pool("198.51.100.0/24", name="web"))
        await make(admin, "IPAddressPool", "web", addresses=["192.0.2.1-192.0.2.9"])
        await make(admin, "L2Advertisement", "near", ipAddressPools=["web"])
    async with importing(server, tmp_path) as it:
        await until(lambda: names(it, ADDRESS_POOLS), ["metallb-web*", "web"])
        await until(lambda: field(it, f"{L2_ADVERTISEMENTS}/near", "addressPools"), ["metallb-web"])
        assert (await spec(it, f"{ADDRESS_POOLS}/web"))["addresses"] == ["198.51.100.0/24"]
        await it.admin.ask("PATCH", f"{ADDRESS_POOLS}/metallb-web", {"spec": {"autoAssign": False}}, MERGE)
        await until(lambda: field(it, f"{ADDRESS_POOLS}/metallb-web", "autoAssign"), True)
        await it.admin.ask("DELETE", f"{ADDRESS_POOLS}/metallb-web")
        await until(lambda: names(it, ADDRESS_POOLS), ["metallb-web*", "web"])
        await it.admin.ask("DELETE", f"{ADDRESS_POOLS}/web")
        await until(lambda: names(it, ADDRESS_POOLS), ["web*"])
        await until(lambda: field(it, f"{L2_ADVERTISEMENTS}/near", "addressPools"), ["web"])


@pytest.mark.parametrize("going", ["its kinds", "its namespace"])
async def test_what_was_imported_stays_when_metallb_goes(server: ApiServer, tmp_path: Path, going: str) -> None:
    """With all of its objects: that is no wish to announce nothing."""
    async with administered(server) as admin:
        for name in ("a", "b"):
            await make(admin, "IPAddressPool", name, addresses=[f"192.0.2.{ord(name)}-192.0.2.{ord(name)}"])
        await make(admin, "L2Advertisement", "near")
    async with importing(server, tmp_path) as it:
        await until(lambda: names(it, L2_ADVERTISEMENTS), ["near*"])
        await it.admin.ask("DELETE", theirs("IPAddressPool", "b"))
        await until(lambda: names(it, ADDRESS_POOLS), ["a*"])
        if going == "its namespace":  # nothing here empties it as a controller of the cluster's would
            await it.admin.ask("DELETE", "/api/v1/namespaces/metallb-system")
            await it.admin.ask("DELETE", theirs("IPAddressPool", "a"))
            await it.admin.ask("DELETE", theirs("L2Advertisement", "near"))
        else:
            for plural, _ in KINDS.values():
                await it.admin.ask("DELETE", f"{DEFINITIONS}/{plural}.metallb.io")

        async def log() -> bool:
            return "MetalLB is being removed: what was imported of it stays" in await asyncio.to_thread(
                (tmp_path / "controller0.log").read_text, encoding="utf-8"
            )

        await until(log, True)
        await it.end()
        await it.controller("--import-metallb", "--identity", "next")
        await it.make("shop")
        await it.becomes("shop", ["192.0.2.97"])
        assert await names(it, ADDRESS_POOLS) == ["a*"]
        assert await names(it, L2_ADVERTISEMENTS) == ["near*"]


async def test_the_rights_of_the_manifests_are_enough(server: ApiServer, tmp_path: Path) -> None:
    paths = {
        "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
        "ClusterRole": f"{RBAC}/clusterroles",
        "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
        "Role": RBAC + "/namespaces/{}/roles",
        "RoleBinding": RBAC + "/namespaces/{}/rolebindings",
    }
    async with administered(server) as admin:
        for path in (MANIFEST, RIGHTS):
            for thing in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                about = thing["metadata"]
                if thing["kind"] in paths and about["name"] != "podwire":
                    await admin.ask("POST", paths[thing["kind"]].format(about.get("namespace")), thing)
        account = f"{paths['ServiceAccount'].format('podwire')}/podwire-controller/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token = (await admin.ask("POST", account, asked))["status"]["token"]
        await make(admin, "IPAddressPool", "web", addresses=["192.0.2.1-192.0.2.9"])
        of_peer = {"myASN": 64500, "peerASN": 64501, "peerAddress": "203.0.113.1"}
        await make(admin, "BGPPeer", "tor", **of_peer, password="hush")
    config = yaml.safe_load(server.kubeconfig.read_text(encoding="utf-8"))
    config["users"] = [{"name": it["name"], "user": {"token": token}} for it in config["users"]]
    limited = tmp_path / "limited.kubeconfig"
    limited.write_text(yaml.safe_dump(config), encoding="utf-8")
    async with importing(server, tmp_path, limited) as it:
        await until(lambda: names(it, BGP_PEERS), ["tor*"])
        await until(lambda: names(it, SECRETS), ["bgp-tor*"])
        await it.admin.ask("PATCH", theirs("BGPPeer", "tor"), {"spec": {"password": "other"}}, MERGE)

        async def copied() -> str:
            return str((await it.admin.ask("GET", f"{SECRETS}/bgp-tor"))["data"]["password"])

        await until(copied, "b3RoZXI=")
        await it.admin.ask("DELETE", theirs("BGPPeer", "tor"))
        await until(lambda: names(it, BGP_PEERS), [])
        await until(lambda: names(it, SECRETS), [])
        log = (tmp_path / "controller0.log").read_text(encoding="utf-8")
        assert "forbidden" not in log.lower()
        assert "hush" not in log
        await gone(it.admin, theirs("IPAddressPool", "web"))
