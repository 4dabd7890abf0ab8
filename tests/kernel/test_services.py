"""Real packets: who answers for whom, which client is seen, and what is refused at once."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from podwire.model.objects import Protocol, Service, ServiceKey
from tests.kernel.rig import MakeSpace, Rig, ask, entered, service, sh, spaces

A, B, C = ("10.1.1.2", "fd01::2"), ("10.1.1.3", "fd01::3"), ("10.1.1.4", "fd01::4")
OBJECTS = (
    service("web", 10, A + B)
    | service("dns", 11, A + B, Protocol.UDP)
    | service("empty", 12, ())
    | service("empty-udp", 13, (), Protocol.UDP)
    | service("self", 14, C)
    | service("self-udp", 15, C, Protocol.UDP)
)
TCP, UDP = Protocol.TCP, Protocol.UDP


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def table(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """One node for all questions that change nothing."""
    with spaces() as make, entered(make("node")):
        rig = Rig(tmp_path_factory.mktemp("node"), make)
        await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
        assert await rig.drift() == []
        yield rig
        await rig.stop()


@pytest_asyncio.fixture
async def at_work(rig: Rig) -> Rig:
    await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
    return rig


def _client(rig: Rig, name: str, to: str) -> tuple[str | None, str]:
    """Of a pod: its name and address of that family."""
    number = {"a": 2, "b": 3, "c": 4}.get(name)
    six = ":" in to
    if number is None:
        return None, "fd01::1" if six else "10.1.1.1"
    return name, f"fd01::{number}" if six else f"10.1.1.{number}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("protocol", [TCP, UDP], ids=lambda p: p.name)
@pytest.mark.parametrize(
    ("client", "to"),
    [(client, to) for client in ("c", "node") for to in ("10.96.0.10", "fd00:96::a")],
    ids=lambda value: str(value),
)
async def test_every_backend_answers_and_sees_the_client(table: Rig, client: str, to: str, protocol: Protocol) -> None:
    if protocol is UDP:
        to = {"10.96.0.10": "10.96.0.11", "fd00:96::a": "fd00:96::b"}[to]
    name, address = _client(table, client, to)
    seen = {ask(table.pods[name] if name else None, to, protocol=protocol) for _ in range(40)}
    assert seen == {f"a {address}", f"b {address}"}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("protocol", [TCP, UDP], ids=lambda p: p.name)
@pytest.mark.parametrize("to", ["10.1.1.2", "fd01::2"])
@pytest.mark.parametrize("client", ["c", "node"])
async def test_a_pod_is_reached_by_its_own_address(table: Rig, client: str, to: str, protocol: Protocol) -> None:
    name, address = _client(table, client, to)
    assert ask(table.pods[name] if name else None, to, 8080, protocol) == f"a {address}"


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize(("vip", "own"), [("10.96.0.16", A[0]), ("fd00:96::10", A[1])], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("first", ["the Service", "the pod"])
async def test_from_one_port_of_a_client_its_service_and_its_own_address_both_lead_to_a_pod(
    at_work: Rig, protocol: Protocol, vip: str, own: str, first: str
) -> None:
    """One after the other while the kernel knows the first flow: the second is another, and no answer gets the source
    of the first."""
    await at_work.change(*service("one", 16, A, protocol).items())
    places = [(vip, 80), (own, 8080)]
    client = C[0] if "." in vip else C[1]
    for to, port in places if first == "the Service" else reversed(places):
        assert ask(at_work.pods["c"], to, port, protocol, source=40404) == f"a {client}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("to", "protocol"),
    [("10.96.0.14", TCP), ("fd00:96::e", TCP), ("10.96.0.15", UDP), ("fd00:96::f", UDP)],
    ids=lambda value: str(value),
)
async def test_a_backend_reaches_itself_through_its_service(table: Rig, to: str, protocol: Protocol) -> None:
    _, node = _client(table, "node", to)
    assert ask(table.pods["c"], to, protocol=protocol) == f"c {node}"


@pytest.mark.asyncio(loop_scope="module")
# Not from c: that one has reached itself, and the kernel counts the redirects that it could have been sent (one a
# second, six at once) against its share of ICMPv6 errors.
@pytest.mark.parametrize("client", ["b", "node"])
@pytest.mark.parametrize(
    ("to", "port", "protocol"),
    [
        ("10.96.0.12", 80, TCP),
        ("fd00:96::c", 80, TCP),
        ("10.96.0.13", 80, UDP),
        ("fd00:96::d", 80, UDP),
        ("10.96.0.10", 81, TCP),
        ("fd00:96::a", 81, TCP),
        ("10.96.0.10", 81, UDP),
        ("fd00:96::a", 81, UDP),
        ("10.96.200.200", 80, TCP),
        ("fd00:96::c8c8", 80, UDP),
    ],
    ids=[f"{what}-{how}" for what in ("no backend", "unknown port") for how in ("TCP4", "TCP6", "UDP4", "UDP6")]
    + ["nobody's address-TCP4", "nobody's address-UDP6"],
)
async def test_refused_at_once(table: Rig, client: str, to: str, port: int, protocol: Protocol) -> None:
    space = table.pods.get(client)
    # The kernel tells a process of its own node that its datagram was refused by EPERM.
    refused = "PermissionError" if space is None and protocol is UDP else "ConnectionRefusedError"
    assert ask(space, to, port, protocol) == refused


async def test_backends_come_and_go_one_element_at_a_time(at_work: Rig) -> None:
    nftables = at_work.running.nftables
    before, generation = nftables.writes, nftables.generation()
    assert (await at_work.change(*service("web", 10, A + C).items())).error is None
    # Of each family one slot is emptied and filled; no verdict changes, and all is one commit.
    assert (nftables.writes - before, nftables.generation() - generation) == (4, 1)
    assert {ask(None, "10.96.0.10").split()[0] for _ in range(40)} == {"a", "c"}
    assert (await at_work.change(*service("web", 10, ()).items())).error is None
    assert ask(at_work.pods["c"], "10.96.0.10") == "ConnectionRefusedError"
    assert (await at_work.change(*service("web", 10, A + B + C).items())).error is None
    assert {ask(None, "fd00:96::a").split()[0] for _ in range(60)} == {"a", "b", "c"}
    assert await at_work.drift() == []


async def test_of_two_services_with_one_address_the_older_has_it(at_work: Rig) -> None:
    web = OBJECTS[ServiceKey("default", "web")]
    assert isinstance(web, Service)
    newer = service("zzz", 10, C)
    key = ServiceKey("default", "zzz")
    newer[key] = Service(web.ports, web.cluster_ips, created="2026-01-01T00:00:00Z")
    assert (await at_work.change(*newer.items())).error is None
    assert {ask(None, "10.96.0.10").split()[0] for _ in range(30)} == {"a", "b"}
    assert (await at_work.change((ServiceKey("default", "web"), None))).error is None
    assert {ask(None, "10.96.0.10").split()[0] for _ in range(30)} == {"c"}
    assert await at_work.drift() == []


async def test_nft_lists_the_rules_and_loads_its_own_listing(at_work: Rig, make_space: MakeSpace) -> None:
    listing = sh("nft", "list", "ruleset")
    other = make_space("copy")
    copy = at_work.directory / "ruleset.nft"
    copy.write_text(listing)
    sh("ip", "netns", "exec", other.name, "nft", "-f", str(copy))
    assert sh("ip", "netns", "exec", other.name, "nft", "list", "ruleset") == listing


async def test_more_backends_than_one_message_holds(at_work: Rig) -> None:
    many = tuple(f"10.7.{n >> 8}.{n & 255}" for n in range(3000))
    assert (await at_work.change(*service("many", 20, many).items())).error is None
    assert await at_work.drift() == []
    assert (await at_work.change(*service("many", 20, A).items())).error is None
    assert {ask(None, "10.96.0.20").split()[0] for _ in range(10)} == {"a"}
