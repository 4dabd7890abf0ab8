"""The doctor asks a cluster: servers, certificates, clocks, rights and objects, of an API that is as odd as needed."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.config import Config, Kubernetes
from podwire.doctor.facts import Api, Cluster, Right
from podwire.doctor.findings import Unseen
from podwire.doctor.read import cluster
from podwire.doctor.read.certificate import NotACertificate, ends, from_pem
from podwire.model.addresses import parse_prefix, show_address
from podwire.model.objects import Node, NodeKey
from podwire.sources.fields import Invalid
from podwire.sources.kubernetes import translate
from tests.unit.kube_fake import FakeApi, answering, node, some_cluster
from tests.unit.kube_pki import Pki, needs_openssl

UNREACHABLE = "http://127.0.0.1:1"
DAY = 86_400


@pytest.fixture
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.getbasetemp() / "pki")


def configured(directory: Path, *servers: str, authority: Path | None = None, user: str = "{}") -> Config:
    """By a kubeconfig whose server is the first."""
    trust = f", certificate-authority: {authority}, tls-server-name: kubernetes" if authority else ""
    (directory / "kubeconfig").write_text(
        "apiVersion: v1\nkind: Config\n"
        f'clusters: [{{name: c, cluster: {{server: "{servers[0]}"{trust}}}}}]\n'
        f"users: [{{name: u, user: {user}}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n"
    )
    ranges = (parse_prefix("fd96::/112"),)
    return Config(
        "one", directory, kubernetes=Kubernetes(directory / "kubeconfig", None, servers), service_cidrs=ranges
    )


async def ask(config: Config) -> tuple[Api, Cluster | Unseen]:
    """In a thread, as the command has no loop of its own."""
    api, found = await asyncio.to_thread(cluster.read, config)
    assert isinstance(api, Api)
    return api, found


async def test_a_good_cluster_is_told_whole(tmp_path: Path) -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.put("nodes", node("two", "10.1.2.0/24", address="192.0.2.2"))
    async with fake.served() as server:
        api, found = await ask(configured(tmp_path, server))
    assert (api.error, [(it.address, it.error, it.status) for it in api.servers]) == ("", [(server, "", 200)])
    assert api.refused == ()
    assert abs((api.servers[0].clock or 0) - time.time()) < 5
    assert isinstance(found, Cluster)
    assert {name: tuple(map(str, it.pod_cidrs)) for name, it in found.nodes.items()} == {
        "one": ("10.1.1.0/24",),
        "two": ("10.1.2.0/24",),
    }
    assert tuple(map(str, found.service_cidrs)) == ("10.96.0.0/16", "fd96::/112")


async def test_a_long_list_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_PAGE", 2)
    fake = FakeApi()
    for number in range(5):
        fake.put("nodes", node(f"n{number}", f"10.1.{number}.0/24"))
    async with fake.served() as server:
        _, found = await ask(configured(tmp_path, server))
    assert isinstance(found, Cluster)
    assert sorted(found.nodes) == ["n0", "n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("odd", "right"),
    [
        (node("two", "10.1.2.0/24", address="not-an-address"), (("10.1.2.0/24",), ())),
        (node("two", "10.1.2.0/24", address="127.0.0.1"), (("10.1.2.0/24",), ())),
        (node("two", "127.0.0.0/24", "fd02::/64"), (("fd02::/64",), ("192.0.2.1",))),
    ],
    ids=["an address that is none", "an address that nobody can have", "a range that nobody can have"],
)
async def test_what_is_odd_about_a_node_costs_no_more_than_itself(
    odd: dict[str, Any], right: tuple[tuple[str, ...], tuple[str, ...]], tmp_path: Path
) -> None:
    """As for the agent: the doctor must not find a node missing that the agent has routes to."""
    fake = FakeApi()
    fake.put("nodes", node("one", "10.1.1.0/24"))
    fake.put("nodes", odd)
    async with fake.served() as server:
        _, found = await ask(configured(tmp_path, server))
        kept: list[Invalid] = []
        key, value, _ = translate({**odd, "apiVersion": "v1", "kind": "Node"}, kept)
    assert isinstance(found, Cluster)
    assert sorted(found.nodes) == ["one", "two"]
    fact = found.nodes["two"]
    assert (tuple(map(str, fact.pod_cidrs)), tuple(map(show_address, fact.addresses))) == right
    assert (key, kept != []) == (NodeKey("two"), True)
    assert isinstance(value, Node)
    assert (fact.pod_cidrs, fact.addresses) == (value.pod_cidrs, value.addresses)


async def test_pools_and_blocks_are_read_where_there_are_any(tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put("nodes", node("one"))
    fake.put("podpools", {"metadata": {"name": "web"}, "spec": {"cidrs": ["10.5.0.0/16", "fd05::/56"]}})
    fake.put("podpools", {"metadata": {"name": "odd"}, "spec": {"cidrs": ["10.5.0.1/16"]}})
    for cidr, name in (("10.5.0.64/26", "one"), ("10.5.0.0/26", "one"), ("10.5.0.128/26", "two")):
        spec = {"cidr": cidr, "pool": "web", "node": name}
        fake.put("podblocks", {"metadata": {"name": cidr.replace("/", "-")}, "spec": spec})
    async with fake.served() as server:
        _, found = await ask(configured(tmp_path, server))
    assert isinstance(found, Cluster)
    assert {name: tuple(map(str, cidrs)) for name, cidrs in found.pools.items()} == {
        "web": ("10.5.0.0/16", "fd05::/56")
    }
    assert tuple(map(str, found.nodes["one"].pool_blocks)) == ("10.5.0.0/26", "10.5.0.64/26")


async def test_an_odd_range_costs_no_other(tmp_path: Path) -> None:
    fake = FakeApi()
    spec = {"cidrs": ["127.0.0.0/24", "fd97::/112"]}
    fake.put("servicecidrs", {"metadata": {"name": "kubernetes"}, "spec": spec})
    async with fake.served() as server:
        _, found = await ask(configured(tmp_path, server))
    assert isinstance(found, Cluster)
    assert tuple(map(str, found.service_cidrs)) == ("fd96::/112", "fd97::/112")


async def test_each_server_is_tried_and_one_is_enough(tmp_path: Path) -> None:
    fake = FakeApi()
    async with fake.served() as server:
        api, found = await ask(configured(tmp_path, UNREACHABLE, server))
    assert [(it.address, it.error) for it in api.servers] == [(UNREACHABLE, "Connection refused"), (server, "")]
    assert found == Cluster({}, (parse_prefix("fd96::/112"),))


async def test_where_nobody_answers_nothing_is_claimed(tmp_path: Path) -> None:
    api, found = await ask(configured(tmp_path, UNREACHABLE))
    assert api.servers[0].error == "Connection refused"
    assert isinstance(api.refused, Unseen)
    assert isinstance(found, Unseen)


async def test_rights_that_are_missing_are_named(tmp_path: Path) -> None:
    fake = FakeApi()
    fake.denied = {("watch", "endpointslices"), ("patch", "nodes")}
    async with fake.served() as server:
        api, _ = await ask(configured(tmp_path, server))
    assert api.refused == (
        Right("watch", "discovery.k8s.io", "endpointslices"),
        Right("patch", "", "nodes", "status", vital=False),
    )


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, "401 Unauthorized"), (503, "503 scripted"), (403, "")],
    ids=["not let in", "broken", "forbidden is an answer"],
)
async def test_what_a_server_says(tmp_path: Path, status: int, error: str) -> None:
    fake = FakeApi()
    if status == 401:
        fake.token = "another"
    else:
        fake.faults["list", "nodes"].append(answering(status))
    async with fake.served() as server:
        api, _ = await ask(configured(tmp_path, server))
    assert (api.servers[0].status, api.servers[0].error) == (status, error)


async def test_an_api_without_servicecidrs_is_older(tmp_path: Path) -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.absent = {"servicecidrs"}
    async with fake.served() as server:
        _, found = await ask(configured(tmp_path, server))
    assert isinstance(found, Cluster)
    assert tuple(map(str, found.service_cidrs)) == ("fd96::/112",)


async def test_a_kubeconfig_that_can_not_be_is_the_finding(tmp_path: Path) -> None:
    config = configured(tmp_path, UNREACHABLE)
    (tmp_path / "kubeconfig").write_text("a: [")
    api, found = await ask(config)
    assert "kubeconfig: " in api.error
    assert isinstance(found, Unseen)


@needs_openssl
async def test_a_certificate_that_has_ended_is_read_all_the_same(tmp_path: Path, pki: Pki) -> None:
    fake = FakeApi()
    async with fake.served(tls=pki.server(ended=True)) as server:
        api, _ = await ask(configured(tmp_path, server, authority=pki.authority))
    (told,) = api.servers
    assert "certificate has expired" in told.error
    assert told.expires == datetime(2020, 2, 1, tzinfo=UTC).timestamp()
    assert told.clock is not None


@needs_openssl
async def test_credentials_go_to_no_server_that_is_not_trusted(tmp_path: Path, pki: Pki) -> None:
    fake = FakeApi()
    fake.token = "secret"
    other = Pki(tmp_path / "other")
    async with fake.served(tls=pki.server()) as server:
        api, _ = await ask(configured(tmp_path, server, authority=other.authority, user="{token: secret}"))
    assert "certificate verify failed" in api.servers[0].error
    assert fake.asked == []


@needs_openssl
async def test_our_own_certificate_s_end_is_read(tmp_path: Path, pki: Pki) -> None:
    pair = pki.pair("client", "/CN=agent", days=3)
    user = f"{{client-certificate: {pair.certificate}, client-key: {pair.key}}}"
    api, _ = await ask(configured(tmp_path, "https://127.0.0.1:1", authority=pki.authority, user=user))
    assert abs((api.client or 0) - (time.time() + 3 * DAY)) < 120


@needs_openssl
def test_the_end_of_a_far_certificate(pki: Pki) -> None:
    """From the year 2050 on times are of another form (RFC 5280, section 4.1.2.5)."""
    far = pki.pair("far", "/CN=far", days=20_000)
    assert abs(ends(from_pem(far.certificate.read_bytes())) - (time.time() + 20_000 * DAY)) < 120


@given(st.binary(max_size=200))
def test_what_is_no_certificate_is_said(data: bytes) -> None:
    with pytest.raises(NotACertificate):
        ends(data)


@given(st.binary(max_size=100))
def test_what_is_no_pem_is_said(data: bytes) -> None:
    with pytest.raises(NotACertificate):
        from_pem(data)


@needs_openssl
def test_a_certificate_that_is_cut_anywhere_is_said(pki: Pki) -> None:
    whole = from_pem(pki.authority.read_bytes())
    for size in range(len(whole)):
        with pytest.raises(NotACertificate):
            ends(whole[:size])


async def test_credentials_that_can_not_be_read_are_the_finding(tmp_path: Path) -> None:
    api, found = await ask(configured(tmp_path, UNREACHABLE, user="{tokenFile: /no/such/token}"))
    assert "tokenFile: /no/such/token: No such file or directory" in api.error
    assert isinstance(found, Unseen)
