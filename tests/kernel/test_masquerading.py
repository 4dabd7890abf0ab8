"""By whose address pods are seen outside of the cluster: real packets from a pod to who knows no way to it."""

import socket
from collections.abc import Iterator
from struct import pack
from typing import Any, NamedTuple

import pytest

from podwire.model.addresses import FAMILIES, IPV4, Family, parse_address, parse_prefix
from podwire.model.objects import Node, NodeKey, Protocol, Service, ServiceKey, ServicePort
from tests.kernel import rig as rigs
from tests.kernel.outside import NODE_ADDRESSES, NODES, connect, members
from tests.kernel.rig import NODE, Rig, Space, entered, service, sh
from tests.packets.answering import Answering, Question, answering, ask
from tests.packets.plan import TARGET_PORT

POD = {4: "10.1.1.2", 16: "fd01::2"}
UPLINK = {4: "192.0.2.1", 16: "fd99::1"}
FAR_NODE = {4: "192.0.2.2", 16: "fd99::2"}
SERVICE = 30
CLUSTER_IPS = tuple(map(parse_address, ("10.96.0.77", "fd00:96::77")))
EVERY = [pytest.param(p, f, id=f"{p.name} over {f}") for p in Protocol for f in FAMILIES]


class Machine(NamedTuple):
    name: str
    number: int

    def address(self, family: Family) -> str:
        return f"192.0.2.{self.number}" if family == IPV4 else f"fd99::{self.number}"


CLIENT, NAS, TWO = Machine("client", 9), Machine("nas", 10), Machine("two", 2)


class Place(NamedTuple):
    rig: Rig
    outside: Space
    two: Space

    def sees(self, to: str, protocol: Protocol, port: int = TARGET_PORT) -> str:
        """Who answers the pod, and whom that one sees."""
        return ask(Question(self.rig.pods["a"], protocol, to, port))


@pytest.fixture
def answers() -> Iterator[Answering]:
    with answering() as found:
        yield found


@pytest.fixture
async def place(rig: Rig, answers: Answering) -> Place:
    """The machine outside has a way to the node and to nothing behind it, and an address more, of a NAS."""
    connected = connect(rig)
    outside = connected.client
    for way in ("-4", "-6"):
        sh("ip", way, "-n", outside.name, "route", "del", "default")
    for address in ("192.0.2.10/24", "fd99::10/64"):
        sh("ip", "-n", outside.name, "addr", "add", address, "dev", "up0", *(["nodad"] if ":" in address else []))
    for machine in (CLIENT, NAS):
        answers.add(machine, outside)
    return Place(rig, outside, connected.two)


async def started(place: Place, **settings: Any) -> None:
    objects = NODES.copy()
    for number, protocol in enumerate(Protocol, SERVICE):
        name = f"outside-{protocol.name.lower()}"
        objects |= service(name, number, (), protocol) | members(name, "192.0.2.9", "fd99::9", protocol=protocol)
    assert (await place.rig.start(objects, **settings)).error is None
    assert (await place.rig.add("a")).error is None
    for home in UPLINK.values():  # TCP asks again: a new link's carrier comes in the kernel's own time
        assert place.sees(home, Protocol.TCP) == "ConnectionRefusedError"


@pytest.mark.parametrize(("protocol", "family"), EVERY)
async def test_outside_sees_the_node(place: Place, protocol: Protocol, family: Family) -> None:
    await started(place)
    assert place.sees(CLIENT.address(family), protocol) == f"client {UPLINK[family.size]}"


@pytest.mark.parametrize(("protocol", "family"), EVERY)
async def test_a_backend_outside_of_a_service_sees_the_node(place: Place, protocol: Protocol, family: Family) -> None:
    await started(place)
    number = SERVICE + list(Protocol).index(protocol)
    cluster_ip = f"10.96.0.{number}" if family == IPV4 else f"fd00:96::{number:x}"
    assert place.sees(cluster_ip, protocol, 80) == f"client {UPLINK[family.size]}"


@pytest.mark.parametrize(("protocol", "family"), EVERY)
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        pytest.param({"masquerade": False}, ("client", "nas"), id="not at all"),
        pytest.param(
            {"non_masquerade_cidrs": tuple(map(parse_prefix, ("192.0.2.10/32", "fd99::10/128")))},
            ("nas",),
            id="but for a range",
        ),
        pytest.param(
            {"non_masquerade_cidrs": tuple(map(parse_prefix, ("192.0.2.0/24", "192.0.2.8/29", "fd99::/64")))},
            ("client", "nas"),
            id="but for ranges that overlap each other and the nodes",
        ),
    ],
)
async def test_what_is_excepted_sees_the_pod(
    place: Place, protocol: Protocol, family: Family, settings: dict[str, Any], kept: tuple[str, ...]
) -> None:
    await started(place, **settings)
    pod, way = POD[family.size], "-4" if family == IPV4 else "-6"
    sh("ip", way, "-n", place.outside.name, "route", "add", pod, "via", UPLINK[family.size])
    for machine in (CLIENT, NAS):
        seen = pod if machine.name in kept else UPLINK[family.size]
        assert place.sees(machine.address(family), protocol) == f"{machine.name} {seen}"
    assert await place.rig.drift() == []


@pytest.mark.parametrize(("protocol", "family"), EVERY)
async def test_a_node_on_the_same_link_sees_the_pod_while_it_is_one(
    place: Place, answers: Answering, protocol: Protocol, family: Family
) -> None:
    answers.add(TWO, place.two)
    await started(place)
    assert place.sees(FAR_NODE[family.size], protocol) == f"two {POD[family.size]}"
    assert (await place.rig.change((NodeKey("two"), None))).error is None
    assert place.sees(FAR_NODE[family.size], protocol) == f"two {UPLINK[family.size]}"
    assert await place.rig.drift() == []


@pytest.mark.parametrize(("protocol", "family"), EVERY)
async def test_a_machine_outside_answers_though_a_service_names_its_address(
    place: Place, protocol: Protocol, family: Family
) -> None:
    """Whoever names somebody's address takes one port of it, and leaves the others as they were."""
    await started(place)
    nas = NAS.address(family)
    named = Service((ServicePort("p", protocol, 4711),), CLUSTER_IPS, (parse_address(nas),))
    assert (await place.rig.change((ServiceKey("default", "taker"), named))).error is None
    assert place.sees(nas, protocol) == f"nas {UPLINK[family.size]}"


@pytest.mark.parametrize(("protocol", "family"), EVERY)
async def test_what_the_network_leads_back_is_refused_at_once(place: Place, protocol: Protocol, family: Family) -> None:
    """A pod asks an external IP at a port that no Service has, and a router knows that this node has the address."""
    await started(place, masquerade=False)
    address, way = {4: ("203.0.113.5", "-4"), 16: ("fd00:cc::5", "-6")}[family.size]
    named = Service((ServicePort("p", protocol, 4711),), CLUSTER_IPS, (parse_address(address),))
    assert (await place.rig.change((ServiceKey("default", "taker"), named))).error is None
    sh("ip", way, "-n", place.outside.name, "route", "add", address, "via", UPLINK[family.size])
    for setting in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"):
        sh("ip", "netns", "exec", place.outside.name, "sysctl", "-qw", setting)
    assert place.sees(address, protocol) == "ConnectionRefusedError"


@pytest.mark.parametrize(("protocol", "family"), EVERY)
@pytest.mark.parametrize("blocks", [("0.0.0.0/0", "::/0"), ("192.0.0.0/8", "fd00::/8")], ids=["all", "many"])
async def test_a_block_that_no_route_leads_to_takes_nobodys_way_out(
    place: Place, protocol: Protocol, family: Family, blocks: tuple[str, ...]
) -> None:
    await started(place)
    far = Node(tuple(map(parse_prefix, blocks)), tuple(map(parse_address, ("192.0.2.66", "fd99::66"))))
    assert (await place.rig.change((NodeKey("far"), far))).error is None
    assert place.sees(CLIENT.address(family), protocol) == f"client {UPLINK[family.size]}"
    assert await place.rig.drift() == []


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda each: each.name)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_pods_of_an_older_block_see_each_other(rig: Rig, protocol: Protocol, family: Family) -> None:
    connect(rig)
    await rig.start_with_pods("a", "b", objects=NODES)
    moved = Node(tuple(map(parse_prefix, ("10.1.9.0/24", "fd09::/64"))), NODE_ADDRESSES)
    assert (await rig.change((NODE, moved))).error is None
    assert (await rig.add("c")).error is None
    rigs.respond(rig.pods["c"], "c")
    old = {"a": POD[family.size], "b": "10.1.1.3" if family == IPV4 else "fd01::3"}
    new = "10.1.9.2" if family == IPV4 else "fd09::2"
    for client, server, at in (("a", "b", old["b"]), ("b", "a", old["a"]), ("a", "c", new), ("c", "a", old["a"])):
        seen = {**old, "c": new}[client]
        assert rigs.ask(rig.pods[client], at, rigs.TARGET_PORT, protocol) == f"{server} {seen}"
    assert await rig.drift() == []


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_an_echo_outside_is_answered(place: Place, family: Family) -> None:
    """ICMP has no ports: connection tracking tells answers by the identifier."""
    await started(place)
    number = socket.AddressFamily(family.number)
    protocol, request, reply = (1, 8, 0) if family == IPV4 else (58, 128, 129)
    body = bytes((request, 0)) + (b"\xf7\xfd" if family == IPV4 else bytes(2)) + pack(">HH", 0x0801, 1)
    if family == IPV4:
        body = body[:2] + pack(">H", ~(request * 256 + 0x0801 + 1) & 0xFFFF) + body[4:]
    with _raw(place.outside, number, protocol) as far, _raw(place.rig.pods["a"], number, protocol) as near:
        near.sendto(body, (CLIENT.address(family), 0))
        assert _next(far, family, request) == UPLINK[family.size]
        assert _next(near, family, reply) == CLIENT.address(family)


def _raw(space: Space, family: socket.AddressFamily, protocol: int) -> socket.socket:
    with entered(space):
        found = socket.socket(family, socket.SOCK_RAW, protocol)
    found.settimeout(3)
    return found


def _next(it: socket.socket, family: Family, kind: int) -> str:
    """From whom the next message of that type is."""
    while True:
        data, source = it.recvfrom(2000)
        if data[20 if family == IPV4 else 0] == kind:
            return str(source[0])
