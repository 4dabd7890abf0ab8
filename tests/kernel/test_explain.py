"""Explain is honest: what it says of a packet is what becomes of such packets, sent by real clients.

Invariants: each row names what it shows, so that a row where explain and the kernel are wrong alike still fails. The
fabric joins this node, another one with a pod behind it, and a machine outside of the cluster.
"""

from collections.abc import AsyncIterator
from itertools import product

import pytest
import pytest_asyncio

from podwire.explain.packets import PacketWhy, Verdict, explain_packet, parse_destination, parse_source
from podwire.explain.services import explain_service
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Node,
    NodeKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.views import FrontendState
from tests.kernel.rig import NODE, TARGET_PORT, MakeSpace, Rig, Space, ask, entered, respond, sh, spaces

TWO = NodeKey("two")
HERE, THERE, OUTSIDE = ("192.168.7.1", "fd07::1"), ("192.168.7.2", "fd07::2"), ("192.168.7.9", "fd07::9")
A, B, C, FAR = ("10.1.1.2", "fd01::2"), ("10.1.1.3", "fd01::3"), ("10.1.1.4", "fd01::4"), ("10.1.2.2", "fd02::2")
STRANGER = ("192.168.7.10", "fd07::10")
"""Outside too, for what is refused: a client whose packets left where they came from is owed ICMP redirects, and the
kernel counts these against its share of ICMP errors."""
CLIENTS = {"a": A, "b": B, "c": C, "far": FAR, "two": THERE, "outside": OUTSIDE, "stranger": STRANGER}
NAMES = {address: name for name, pair in {**CLIENTS, "one": HERE}.items() for address in pair}
TIMES = 20
"""Packets for each backend: with so many, one of three is passed over by chance once in a billion times."""


def service(
    name: str, number: int, *backends: str, node_port: int = 0, external: tuple[str, ...] = (), created: str = ""
) -> dict[ObjectKey, Object]:
    """At 10.96.0.NUMBER and fd00:96::NUMBER, TCP and UDP."""
    key = ServiceKey("default", name)
    protocols = (Protocol.TCP, Protocol.UDP)
    ports = tuple(ServicePort(each.name, each, 80, node_port) for each in protocols)
    targets = tuple(BackendPort(each.name, each, TARGET_PORT) for each in protocols)
    addresses = tuple(map(parse_address, (f"10.96.0.{number}", f"fd00:96::{number:x}")))
    members = tuple(Member(parse_address(each)) for each in backends)
    return {
        key: Service(ports, addresses, tuple(map(parse_address, external)), created),
        SliceKey("default", f"{name}-1"): BackendSlice(key, targets, members),
    }


OBJECTS = (
    {
        NODE: Node((parse_prefix("10.1.1.0/24"), parse_prefix("fd01::/64")), tuple(map(parse_address, HERE))),
        TWO: Node((parse_prefix("10.1.2.0/24"), parse_prefix("fd02::/64")), tuple(map(parse_address, THERE))),
    }
    | service("web", 10, *A, *B, *FAR, node_port=30080, external=("198.51.100.4", "2001:db8::4"))
    | service("empty", 12, node_port=30082)
    | service("self", 14, *C, node_port=30084)
    | service("hosts", 15, *HERE, *THERE)
    | service("newer", 10, *C, created="2026-01-01T00:00:00Z")
)


def fabric(make: MakeSpace, node: Space) -> dict[str, Space]:
    """A bridge with this node, another one with the pod `far`, and machines outside, which know the way to all."""
    made = {name: make(name) for name in ("two", "outside", "stranger", "far")} | {"one": node}
    middle = make("fabric")
    sh("ip", "-n", middle.name, "link", "add", "middle", "up", "type", "bridge", "mcast_snooping", "0")
    for name, addresses in (("one", HERE), ("two", THERE), ("outside", OUTSIDE), ("stranger", STRANGER)):
        at = ("ip", "-n", made[name].name)
        sh("ip", "-n", middle.name, "link", "add", name, "up", "type", "veth", "peer", "up0", "netns", made[name].name)
        sh("ip", "-n", middle.name, "link", "set", name, "master", "middle")
        sh(*at, "link", "set", "lo", "up")
        sh(*at, "link", "set", "up0", "up")
        sh(*at, "address", "add", f"{addresses[0]}/24", "dev", "up0")
        sh(*at, "address", "add", f"{addresses[1]}/64", "dev", "up0", "nodad")
    for family, pod in enumerate(FAR):
        two, far = ("ip", "-n", made["two"].name), ("ip", "-n", made["far"].name)
        if not family:
            sh(*two, "link", "add", "pod", "up", "type", "veth", "peer", "eth0", "netns", made["far"].name)
            sh(*far, "link", "set", "eth0", "up")
        gateway, length = (("10.1.2.1", "24"), ("fd02::1", "64"))[family]
        how = ("nodad",) if family else ()
        sh(*two, "address", "add", f"{gateway}/{length}", "dev", "pod", *how)
        sh(*far, "address", "add", f"{pod}/{length}", "dev", "eth0", *how)
        sh(*far, "route", "add", "default", "via", gateway)
        sysctl = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")[family]
        sh("ip", "netns", "exec", made["two"].name, "sysctl", "-q", sysctl)
        for name, to in (("two", HERE), ("outside", HERE), ("stranger", HERE), ("one", OUTSIDE)):
            sh("ip", "-n", made[name].name, "route", "add", "default", "via", to[family])
        sh(
            "ip",
            "-n",
            made["outside"].name,
            "route",
            "add",
            f"{pod}/{length}".replace("2/", "0/"),
            "via",
            THERE[family],
        )
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Rig, dict[str, Space]]]:
    """One for all questions: they change nothing."""
    with spaces() as make:
        node = make("node")
        made = fabric(make, node)
        with entered(node):
            rig = Rig(tmp_path_factory.mktemp("node"), make)
            await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
            for name in ("one", "two", "far"):
                respond(made[name], name)
            assert await rig.drift() == []
            yield rig, made | rig.pods
            await rig.stop()


def explained(rig: Rig, client: str, to: str) -> PacketWhy:
    now, frontend = rig.running.controller.snapshot, parse_destination(to)
    source = client if client == "node" else CLIENTS[client][":" in to.rpartition(":")[0]]
    named = f"default/{client}" if client in rig.pods else source
    asked = parse_source(now, named, frontend.family)
    assert asked == parse_source(now, source, frontend.family)
    return explain_packet(now, asked, frontend)


def sent(space: Space | None, to: str, times: int) -> set[str]:
    place, _, protocol = to.partition("/")
    host, _, port = place.rpartition(":")
    return {ask(space, host.strip("[]"), int(port), Protocol[protocol]) for _ in range(times)}


def forms(ipv4: str, ipv6: str, port: int, protocols: str = "TCP UDP") -> list[str]:
    return [f"{host}:{port}/{protocol}" for host in (ipv4, f"[{ipv6}]") for protocol in protocols.split()]


WEB, WEB_PORT = forms("10.96.0.10", "fd00:96::a", 80), forms(*HERE, 30080)
EXTERNAL = forms("198.51.100.4", "2001:db8::4", 80)
BALANCED = [
    *product(("a", "c", "node", "outside", "two"), WEB),
    *product(("b", "node", "outside", "two", "far"), WEB_PORT),
    *product(("a", "node", "outside"), EXTERNAL),
    *product(("c", "node"), forms("10.96.0.14", "fd00:96::e", 80)),  # the only backend is c itself
    *product(("c", "outside"), forms(*HERE, 30084)),
    *product(("a", "node", "outside", "two"), forms("10.96.0.15", "fd00:96::f", 80, "TCP")),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("client", "to"), BALANCED)
async def test_who_answers_and_whom_he_sees(cluster: tuple[Rig, dict[str, Space]], client: str, to: str) -> None:
    rig, made = cluster
    why = explained(rig, client, to)
    assert (why.verdict, why.state) == (Verdict.BALANCED, FrontendState.PROGRAMMED)
    told = {f"{NAMES[each.backend.rpartition(':')[0].strip('[]')]} {each.client}" for each in why.choices}
    assert sent(made.get(client), to, TIMES * len(told)) == told


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("client", "to"),
    [
        *product(("a", "node", "stranger"), forms("10.96.0.12", "fd00:96::c", 80)),
        *product(("a", "node", "stranger", "two"), forms(*HERE, 30082, "TCP")),
        *product(("b", "node", "stranger"), forms("10.96.0.10", "fd00:96::a", 81)),
        *product(("b", "stranger"), forms("10.96.200.200", "fd00:96::c8c8", 80, "TCP")),
    ],
)
async def test_who_is_refused(cluster: tuple[Rig, dict[str, Space]], client: str, to: str) -> None:
    rig, made = cluster
    assert explained(rig, client, to).verdict is Verdict.REFUSED
    # The kernel tells a process of its own node that its datagram was refused by EPERM.
    refused = "PermissionError" if client == "node" and to.endswith("UDP") else "ConnectionRefusedError"
    assert sent(made.get(client), to, 1) == {refused}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("client", "to", "answers"),
    [
        *((client, to, "a") for client, to in product(("b", "node", "outside", "far"), forms(*A, 8080))),
        *((client, to, "far") for client, to in product(("b", "node", "outside"), forms(*FAR, 8080))),
        *((client, to, "two") for client, to in product(("b", "node"), forms(*THERE, 8080, "TCP"))),
    ],
)
async def test_what_is_passed_on_keeps_its_client(
    cluster: tuple[Rig, dict[str, Space]], client: str, to: str, answers: str
) -> None:
    rig, made = cluster
    why = explained(rig, client, to)
    assert why.verdict is Verdict.PASSED_ON
    assert sent(made.get(client), to, 1) == {f"{answers} {why.client}"}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_service_is_told_as_its_packets_go(cluster: tuple[Rig, dict[str, Space]]) -> None:
    rig, _ = cluster
    why = explain_service(rig.running.controller.snapshot, ServiceKey("default", "newer"))
    assert {it.owner for it in why.frontends} == {"default/web"}
    why = explain_service(rig.running.controller.snapshot, ServiceKey("default", "web"))
    assert len(why.frontends) == 2 * (2 + 2 + 2)
    for it in why.frontends:
        told = {NAMES[each.backend.rpartition(":")[0].strip("[]")] for each in it.backends}
        assert {answer.split()[0] for answer in sent(None, it.frontend, TIMES * len(told))} == told
