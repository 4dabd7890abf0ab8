"""Who sends into the cluster by VXLAN's port, and who takes its packets: nodes that go by VXLAN, and nobody else."""

import socket
import struct
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from podwire.model.addresses import IPV4, IPV6, Family, parse_address, parse_prefix
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
    SliceKey,
)
from podwire.model.snapshot import Transport
from podwire.nodes.tunnels import mac_of
from tests.kernel.outside import FAR, NODES, connect
from tests.kernel.rig import Rig, Space, by_hand, in_space, service, sh

PORT, VICTIM = 4789, 9999
TWO = parse_prefix("10.1.2.0/24"), parse_prefix("fd02::/64")
PATIENCE = 5.0
"""Seconds for what is to come: a limit against hanging, never a measure."""


class Ends(NamedTuple):
    """Addresses of the nodes `one` and `two`, and of a host that is no node."""

    one: str
    two: str
    third: str
    others: tuple[str, ...]
    """Where the node `one` listens too."""
    more: str
    """An address that the node `two` has besides."""
    kind: socket.AddressFamily


ENDS = {
    IPV4: Ends(
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.9",
        ("10.1.1.1", "192.0.2.77", "192.0.2.255", "255.255.255.255", "224.0.0.1"),
        "192.0.2.22",
        socket.AF_INET,
    ),
    IPV6: Ends("fd99::1", "fd99::2", "fd99::9", ("fd01::1", "fd99::77", "fd99::"), "fd99::22", socket.AF_INET6),
}
families = pytest.mark.parametrize("outer", [IPV4, IPV6], ids=["over IPv4", "over IPv6"])


def nodes(outer: Family) -> dict[ObjectKey, Object]:
    return NODES | {NodeKey("two"): Node(TWO, (parse_address(ENDS[outer].two),))}


def wrapped(said: bytes, to: str = "10.1.1.3") -> bytes:
    """A VXLAN packet (RFC 7348) with a datagram that claims to come from 8.8.8.8."""
    udp = struct.pack(">HHHH", 53, VICTIM, 8 + len(said), 0) + said
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0)
    head += socket.inet_aton("8.8.8.8") + socket.inet_aton(to)
    total = sum(struct.unpack(">10H", head))
    checked = head[:10] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + head[12:]
    return struct.pack(">II", 1 << 27, 28791 << 8) + mac_of("one") + mac_of("two") + b"\x08\0" + checked + udp


def send(space: Space | None, kind: socket.AddressFamily, to: str, said: bytes, source: str = "") -> None:
    with in_space(space, kind, socket.SOCK_DGRAM) as out:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if source:
            out.bind((source, 0))
        out.sendto(said, (to, PORT))


def listen(space: Space, kind: socket.AddressFamily, port: int) -> socket.socket:
    found = in_space(space, kind, socket.SOCK_DGRAM)
    found.bind(("", port))
    found.settimeout(PATIENCE)
    return found


async def started(rig: Rig, outer: Family, more: dict[ObjectKey, Object] | None = None) -> tuple[Space, Space]:
    """Pods `a` and `b`, and the spaces of the third host and of node two."""
    outside, ends = connect(rig), ENDS[outer]
    bits = outer.bits
    sh("ip", "address", "add", f"{ends.others[1]}/{bits}", "dev", "br0", *["nodad"] * (outer == IPV6))
    sh("ip", "-n", outside.two.name, "address", "add", f"{ends.more}/{bits}", "dev", "up0", *["nodad"] * (bits == 128))
    assert (await rig.start(nodes(outer) | (more or {}), mtu=None, transport=Transport.VXLAN)).error is None
    for pod in ("a", "b"):
        assert (await rig.add(pod)).error is None
    assert await rig.drift() == []
    return outside.client, outside.two


@families
async def test_only_nodes_send_into_the_cluster_by_vxlan(rig: Rig, outer: Family) -> None:
    third, two = await started(rig, outer)
    ends = ENDS[outer]
    with listen(rig.pods["b"], socket.AF_INET, VICTIM) as victim:
        for to in (ends.one, *ends.others):
            send(rig.pods["a"], ends.kind, to, wrapped(b"from a pod"))
        for to in (ends.one, ends.others[0], ends.others[1]):
            send(third, ends.kind, to, wrapped(b"from a third host"))
        send(two, ends.kind, ends.one, wrapped(b"from another address of the node"), ends.more)
        # Where a pod of that node is masqueraded to.
        send(two, ends.kind, ends.others[1], wrapped(b"to another address of this node"), ends.two)
        for said in (b"one", b"two"):
            send(two, ends.kind, ends.one, wrapped(said), ends.two)
            assert victim.recv(100) == said
        victim.setblocking(False)
        with pytest.raises(BlockingIOError):
            victim.recv(100)


@families
async def test_without_the_guard_a_pod_does(rig: Rig, outer: Family) -> None:
    """So what the test above sends is what would get there."""
    await started(rig, outer)
    ip, ends = ("ip6" if outer == IPV6 else "ip"), ENDS[outer]
    with listen(rig.pods["b"], socket.AF_INET, VICTIM) as victim:
        by_hand(f"nft flush chain {ip} podwire tunnelled")
        for to in (ends.one, *ends.others[:3]):
            send(rig.pods["a"], ends.kind, to, wrapped(to.encode()))
            assert victim.recv(100) == to.encode()


@families
async def test_no_pod_sends_to_another_node_s_port_of_vxlan(rig: Rig, outer: Family) -> None:
    """There it would bear this node's address."""
    _, two = await started(rig, outer)
    ends = ENDS[outer]
    with listen(two, ends.kind, PORT) as there:
        send(rig.pods["a"], ends.kind, ends.two, b"from a pod")
        send(None, ends.kind, ends.two, b"from the node", ends.one)
        assert there.recv(100) == b"from the node"


def at_the_port(name: str, number: int, *backends: str) -> dict[ObjectKey, Object]:
    """A Service of a cluster IP whose backends are nodes' own ports of VXLAN."""
    key = ServiceKey("default", name)
    made = service(name, number, (), Protocol.UDP, PORT)
    members = tuple(Member(parse_address(it)) for it in backends)
    return made | {
        SliceKey("default", f"{name}-1"): BackendSlice(key, (BackendPort("p", Protocol.UDP, PORT),), members)
    }


@families
async def test_no_pod_gets_there_by_a_service(rig: Rig, outer: Family) -> None:
    ends = ENDS[outer]
    to_one, to_two = at_the_port("one", 20, ends.one), at_the_port("two", 21, ends.two)
    _, two = await started(rig, outer, to_one | to_two)
    at = ("fd00:96::14", "fd00:96::15") if outer == IPV6 else ("10.96.0.20", "10.96.0.21")
    with listen(rig.pods["b"], socket.AF_INET, VICTIM) as victim, listen(two, ends.kind, PORT) as there:
        for to in at:
            send(rig.pods["a"], ends.kind, to, wrapped(b"from a pod"))
        send(two, ends.kind, ends.one, wrapped(b"from the node two"), ends.two)
        assert victim.recv(100) == b"from the node two"
        send(None, ends.kind, ends.two, b"from the node", ends.one)
        assert there.recv(100) == b"from the node"


@pytest.mark.parametrize("six", [False, True], ids=["over IPv4", "over IPv6"])
async def test_nor_by_a_flow_that_was_there_before_the_device(rig: Rig, six: bool) -> None:
    outer, far = (IPV6, "fd98::3") if six else (IPV4, "198.51.100.3")
    ends, at = ENDS[outer], "fd00:96::14" if six else "10.96.0.20"
    two = connect(rig).two
    sh("ip", "-n", two.name, "address", "add", f"{far}/{outer.bits}", "dev", "lo", *["nodad"] * six)
    assert (await rig.start(NODES | at_the_port("one", 20, ends.one), mtu=None)).error is None
    for pod in ("a", "b"):
        assert (await rig.add(pod)).error is None
    with (
        listen(rig.pods["b"], socket.AF_INET, VICTIM) as victim,
        in_space(rig.pods["a"], ends.kind, socket.SOCK_DGRAM) as out,
        in_space(None, ends.kind, socket.SOCK_DGRAM) as server,
    ):
        server.bind(("", PORT))
        server.settimeout(PATIENCE)
        out.sendto(b"early", (at, PORT))
        assert server.recv(100) == b"early"
        server.close()
        blocks = parse_prefix("10.1.3.0/24"), parse_prefix("fd03::/64")
        assert (await rig.change((NodeKey("node3"), Node(blocks, (parse_address(far),))))).error is None
        out.sendto(wrapped(b"from a pod"), (at, PORT))
        send(two, ends.kind, ends.one, wrapped(b"from the node"), far)
        assert victim.recv(100) == b"from the node"


@families
@pytest.mark.parametrize("restricted", [False, True], ids=["for all", "for some"])
async def test_no_service_takes_what_goes_by_vxlan(rig: Rig, outer: Family, restricted: bool) -> None:
    ends, key = ENDS[outer], ServiceKey("default", "thief")
    made = service("thief", 30, ("10.1.1.3", "fd01::3"), Protocol.UDP, PORT)
    it = made[key]
    assert isinstance(it, Service)
    taken = tuple(map(parse_address, (ends.one, ends.two)))
    sources = tuple(map(parse_prefix, ("203.0.113.0/24", "fd00:cc::/64"))) if restricted else ()
    field = {"balancer_ips": taken, "source_ranges": sources} if restricted else {"external_ips": taken}
    _, two = await started(rig, outer, made | {key: replace(it, **field)})
    assert ends.two in sh("nft", "list", "set", "ip6" if outer == IPV6 else "ip", "podwire", "external_ips")
    with listen(rig.pods["b"], socket.AF_INET, VICTIM) as victim, listen(two, ends.kind, PORT) as there:
        for number in range(2):
            with in_space(rig.pods["a"], socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.sendto(f"to a far pod {number}".encode(), (FAR[4], 5000))
            assert there.recv(200).endswith(f"to a far pod {number}".encode())
            send(two, ends.kind, ends.one, wrapped(b"to a pod here"), ends.two)
            assert victim.recv(100) == b"to a pod here"


async def test_where_nothing_goes_by_vxlan_its_port_is_whoever_s(rig: Rig) -> None:
    connect(rig)
    assert (await rig.start(NODES, mtu=None)).error is None
    assert (await rig.add("a")).error is None
    with listen_here() as here:
        send(rig.pods["a"], socket.AF_INET, ENDS[IPV4].one, b"another's")
        assert here.recv(100) == b"another's"


def listen_here() -> socket.socket:
    found = in_space(None, socket.AF_INET, socket.SOCK_DGRAM)
    found.bind(("", PORT))
    found.settimeout(PATIENCE)
    return found


@pytest.mark.parametrize(
    "hand",
    [
        "nft flush set ip podwire tunnels",
        "nft flush set ip podwire tunnel_ports",
        "nft add element ip podwire tunnels '{ 203.0.113.9 }'",
        "nft add element ip6 podwire tunnel_ports '{ 4789 }'",
        "nft flush chain ip podwire tunnelled",
    ],
)
async def test_what_others_do_to_the_guard_is_undone(rig: Rig, hand: str) -> None:
    await started(rig, IPV4)
    by_hand(hand)
    assert await rig.drift() != []
    assert (await rig.resync()).error is None
    assert await rig.drift() == []


async def test_the_guard_goes_with_the_last_node_that_vxlan_leads_to(rig: Rig) -> None:
    await started(rig, IPV6)

    def guarded() -> list[str]:
        listed = [sh("nft", "list", "set", "ip6", "podwire", name) for name in ("tunnels", "tunnel_ports")]
        return ["".join(it.partition("elements = {")[2].partition("}")[0].split()) for it in listed]

    assert guarded() == ["fd99::1,fd99::2", "4789"]
    assert (await rig.change((NodeKey("two"), None))).error is None
    assert guarded() == ["", ""]
    assert await rig.drift() == []
