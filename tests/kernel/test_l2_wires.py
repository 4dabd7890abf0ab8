"""What one node answers on its interfaces, packet by packet: probes, garbage, interfaces that come, go and change."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwire.l2 import packets
from podwire.l2.packets import ARP, REPLY, REQUEST, Solicitation
from podwire.model.addresses import Address, parse_address
from tests.kernel.lan import ECHO, FOURS, PORT, SIXES, Lan, Node, mac_of
from tests.kernel.process import until
from tests.kernel.rig import MakeSpace, Space, ask, entered, in_space, sh

CLIENT_MAC = bytes.fromhex(mac_of(200).replace(":", ""))
NODE_MAC = bytes.fromhex(mac_of(1).replace(":", ""))
ARP_TYPE, IPV6_TYPE, VLAN_TYPE = 0x0806, 0x86DD, 0x8100
FOUR, SIX = parse_address(FOURS[0]), parse_address(SIXES[0])
CLIENT4, CLIENT6 = parse_address("192.0.2.200"), parse_address("2001:db8::c8")
NOBODY = parse_address("0.0.0.0")


@pytest.fixture
def lan(make_space: MakeSpace) -> Iterator[Lan]:
    lan = Lan(make_space)
    lan.node()
    yield lan
    lan.end()


@pytest.fixture
def node(lan: Lan) -> Node:
    """It answers for all addresses, and has told the link."""
    (node,) = lan.nodes
    node.start()
    node.until(lambda _: node.owns() == {*FOURS, *SIXES})
    return node


class Tap:
    """The client's end of the link, frame by frame."""

    def __init__(self, space: Space, of: Callable[[bytes], bool] = lambda mac: mac == NODE_MAC) -> None:
        self._of = of
        with entered(space):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
            self._socket.bind(("eth0", 0x0003))

    def send(self, to: bytes, kind: int, packet: bytes, sender: bytes = CLIENT_MAC) -> None:
        self._socket.send(to + sender + struct.pack("!H", kind) + packet)

    def heard(self, seconds: float = 30.0, most: int = 1) -> list[object]:
        """What the node (`of` whose MAC address it is) says by ARP and neighbour discovery, until there are so many."""
        found: list[object] = []
        end = time.monotonic() + seconds
        while len(found) < most and (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data, place = self._socket.recvfrom(2048)
            except TimeoutError:
                break
            if place[2] == socket.PACKET_OUTGOING or not self._of(data[6:12]):
                continue
            it = packets.parse_arp(data[14:]) if data[12:14] == b"\x08\x06" else packets.parse_advertisement(data[14:])
            address = it.sender if isinstance(it, ARP) else it.target if it else None
            if address in _BALANCED:
                found.append(it)
        return found

    def close(self) -> None:
        self._socket.close()


_BALANCED = {*map(parse_address, (*FOURS, *SIXES))}


@pytest.fixture
def tap(lan: Lan, node: Node) -> Iterator[Tap]:
    """After the announcements of the beginning."""
    tap = Tap(lan.client)
    while tap.heard(1.5):
        pass
    yield tap
    tap.close()


def asks(sender: Address = CLIENT4, target: Address = FOUR, operation: int = REQUEST) -> bytes:
    return packets.arp(ARP(operation, CLIENT_MAC, sender, bytes(6), target))


def solicits(source: Address | None = CLIENT6, target: Address = SIX, mac: bytes | None = CLIENT_MAC) -> bytes:
    return packets.solicitation(Solicitation(source, packets.solicited_node(target), target, mac))


GROUP = packets.group_mac(packets.solicited_node(SIX))
BROADCAST = packets.BROADCAST


def test_who_asks_is_answered(tap: Tap) -> None:
    tap.send(BROADCAST, ARP_TYPE, asks())
    assert tap.heard() == [ARP(REPLY, NODE_MAC, FOUR, CLIENT_MAC, CLIENT4)]
    tap.send(NODE_MAC, ARP_TYPE, asks())  # as it is looked whether it is still there
    assert tap.heard() == [ARP(REPLY, NODE_MAC, FOUR, CLIENT_MAC, CLIENT4)]
    for to, mac in ((GROUP, CLIENT_MAC), (GROUP, None), (NODE_MAC, None)):
        tap.send(to, IPV6_TYPE, solicits(mac=mac))
        assert tap.heard() == [packets.Advertisement(SIX, CLIENT6, NODE_MAC, True)]


def test_who_looks_for_a_duplicate_finds_one(tap: Tap) -> None:
    tap.send(BROADCAST, ARP_TYPE, asks(NOBODY))
    assert tap.heard() == [ARP(REPLY, NODE_MAC, FOUR, CLIENT_MAC, NOBODY)]
    tap.send(GROUP, IPV6_TYPE, solicits(source=None, mac=None))
    assert tap.heard() == [packets.Advertisement(SIX, packets.ALL_NODES, NODE_MAC, False)]


OTHER4, OTHER6 = parse_address("192.0.2.99"), parse_address("2001:db8::1:ff")
TAGGED = struct.pack("!HH", 100, ARP_TYPE)


@pytest.mark.parametrize(
    ("to", "kind", "packet"),
    [
        (BROADCAST, ARP_TYPE, asks(target=OTHER4)),
        (BROADCAST, ARP_TYPE, asks(operation=REPLY)),
        (BROADCAST, ARP_TYPE, asks()[:20]),
        (BROADCAST, ARP_TYPE, b"\xff" * 28),
        (BROADCAST, VLAN_TYPE, TAGGED + asks()),
        (bytes.fromhex("020000000063"), ARP_TYPE, asks()),  # for another host
        (GROUP, IPV6_TYPE, solicits(target=OTHER6)),
        (GROUP, IPV6_TYPE, solicits()[:50]),
        (GROUP, IPV6_TYPE, solicits(source=None)),
        (GROUP, IPV6_TYPE, solicits()[:7] + b"\x40" + solicits()[8:]),  # by way of a router
        (GROUP, IPV6_TYPE, solicits()[:-1] + b"\x00"),  # a wrong checksum
        (GROUP, IPV6_TYPE, solicits(mac=None)[:4] + b"\x00\xff" + solicits(mac=None)[6:]),
    ],
)
def test_what_is_not_for_us_or_not_right_is_not_answered(tap: Tap, to: bytes, kind: int, packet: bytes) -> None:
    tap.send(to, kind, packet)
    assert tap.heard(0.4) == []
    tap.send(BROADCAST, ARP_TYPE, asks())
    assert len(tap.heard()) == 1, "it lives on"


def test_new_addresses_are_told_at_once_and_again(lan: Lan) -> None:
    (node,) = lan.nodes
    tap = Tap(lan.client)
    lan.wanted = {FOURS[0]: [], SIXES[0]: []}
    node.start()
    first = tap.heard(most=3)
    began = time.monotonic()
    announced = [packets.parse_arp(it) for it in packets.announcements(FOUR, NODE_MAC)]
    unasked = packets.Advertisement(SIX, packets.ALL_NODES, NODE_MAC)
    assert sorted(map(str, first)) == sorted(map(str, [*announced, unasked]))
    assert tap.heard(most=12) == 4 * first
    assert time.monotonic() - began > 3
    tap.close()


def test_another_host_that_claims_an_address_is_told_and_answered_with_a_claim(tap: Tap, node: Node) -> None:
    other = bytes.fromhex("020000000066")
    for packet in packets.announcements(FOUR, other):
        tap.send(BROADCAST, ARP_TYPE, packet, other)
    tap.send(packets.group_mac(packets.ALL_NODES), IPV6_TYPE, packets.announcements(SIX, other)[0], other)
    node.until(lambda seen: all(seen["answers"][it]["also"] == "02:00:00:00:00:66" for it in (FOURS[0], SIXES[0])))
    claims = [packets.parse_arp(it) for it in packets.announcements(FOUR, NODE_MAC)]
    assert tap.heard(most=3) == [*claims, packets.Advertisement(SIX, packets.ALL_NODES, NODE_MAC)]


def test_the_kernel_does_not_know_the_addresses(lan: Lan, node: Node) -> None:
    for address in FOURS:
        sh("ip", "-n", node.space.name, "addr", "del", f"{address}/32", "dev", "lo")
    for address in SIXES:
        sh("ip", "-n", node.space.name, "addr", "del", f"{address}/128", "dev", "lo")
    for address in (FOURS[0], SIXES[0]):
        assert ask(lan.client, address, ECHO, patience=0.3) != "n1 "
        assert lan.neighbour(address) == node.mac


def groups(space: Space, interface: str) -> set[str]:
    """The IPv6 groups that an interface is in: the network's snooping switches are told of these."""
    with entered(space):
        lines = Path("/proc/thread-self/net/igmp6").read_text().splitlines()
    return {line.split()[2] for line in lines if line.split()[1] == interface}


def test_groups_are_joined_and_left(lan: Lan, node: Node) -> None:
    wanted = {packets.solicited_node(parse_address(it)).hex() for it in SIXES}
    assert wanted <= groups(node.space, "eth0")
    node.tell(addresses={})
    node.until(lambda _: not node.owns())
    assert not wanted & groups(node.space, "eth0")


def test_as_many_groups_as_there_are_addresses(lan: Lan, node: Node) -> None:
    """A socket has room for some hundred (optmem_max), and there are more sockets."""
    many = [f"2001:db8::2:{n:x}" for n in range(3000)]
    node.tell(addresses={it: ["eth0"] for it in many})
    node.until(lambda _: node.owns() == set(many))
    assert {packets.solicited_node(parse_address(it)).hex() for it in many} <= groups(node.space, "eth0")
    assert node.newest()["troubles"] == []


def interfaces(node: Node, address: str = FOURS[0]) -> list[str]:
    return list(node.seen["answers"][address]["interfaces"])


def veth(node: Node, name: str) -> None:
    sh("ip", "-n", node.space.name, "link", "add", name, "type", "veth", "peer", "name", f"{name}-peer")
    for each in (name, f"{name}-peer"):
        sh("ip", "-n", node.space.name, "link", "set", each, "up")


def test_interfaces_that_are_named_come_and_go(node: Node) -> None:
    node.tell(addresses={FOURS[0]: ["eth0", "eth9"]})
    node.until(lambda seen: seen["answers"][FOURS[0]]["unable"] == ["interface eth9: not on this node"])
    assert interfaces(node) == ["eth0"]
    veth(node, "eth9")
    node.until(lambda _: interfaces(node) == ["eth0", "eth9"])
    sh("ip", "-n", node.space.name, "link", "set", "eth9", "down")
    node.until(lambda seen: seen["answers"][FOURS[0]]["unable"] == ["interface eth9: down"])
    sh("ip", "-n", node.space.name, "link", "del", "eth9")
    node.until(lambda seen: seen["answers"][FOURS[0]]["unable"] == ["interface eth9: not on this node"])


def test_a_bridge_answers_and_its_port_does_not(node: Node) -> None:
    veth(node, "eth1")
    node.until(lambda _: interfaces(node) == ["eth0", "eth1", "eth1-peer"])
    sh("ip", "-n", node.space.name, "link", "add", "name", "br0", "type", "bridge")
    sh("ip", "-n", node.space.name, "link", "set", "br0", "up")
    sh("ip", "-n", node.space.name, "link", "set", "eth1", "master", "br0")
    node.until(lambda _: interfaces(node) == ["br0", "eth0", "eth1-peer"])
    sh("ip", "-n", node.space.name, "link", "set", "eth1", "nomaster")
    node.until(lambda _: "eth1" in interfaces(node))


def test_another_mac_address_is_told(lan: Lan, node: Node, tap: Tap) -> None:
    assert ask(lan.client, FOURS[0], ECHO) != ""
    new = "02:00:00:00:00:77"
    sh("ip", "-n", node.space.name, "link", "set", "eth0", "address", new)
    until(lambda: lan.neighbour(FOURS[0]) == new, 10.0)


def test_an_interface_that_is_made_anew_is_answered_on(lan: Lan, node: Node) -> None:
    sh("ip", "-n", node.space.name, "link", "del", "eth0")
    node.until(lambda _: not node.owns())
    pair = ("link", "add", "eth0", "address", node.mac, "type", "veth")
    sh("ip", "-n", node.space.name, *pair, "peer", "name", node.port, "netns", lan.bridge.name)
    sh("ip", "-n", lan.bridge.name, "link", "set", node.port, "master", "lan0", "up")
    sh("ip", "-n", node.space.name, "addr", "add", "192.0.2.1/24", "dev", "eth0")
    sh("ip", "-n", node.space.name, "link", "set", "eth0", "up")
    node.until(lambda _: node.owns() == {*FOURS, *SIXES})
    assert ask(lan.client, FOURS[0], ECHO).split()[0] == "n1"


def test_an_interface_without_ipv6_answers_for_ipv4_and_says_so(lan: Lan) -> None:
    """The kernel has none where packets are smaller than 1280 bytes (RFC 8200, section 5)."""
    (node,) = lan.nodes
    sh("ip", "-n", node.space.name, "link", "set", "eth0", "mtu", "1000")
    node.start()
    node.until(lambda seen: any(it.startswith("interface eth0: ") for it in seen["troubles"]))
    assert ask(lan.client, FOURS[1], ECHO).split()[0] == "n1"
    sh("ip", "-n", node.space.name, "link", "set", "eth0", "mtu", "1500")
    node.until(lambda seen: not seen["troubles"])
    assert packets.solicited_node(parse_address(SIXES[1])).hex() in groups(node.space, "eth0")


def test_foreign_heartbeats_are_counted_and_change_nothing(lan: Lan, node: Node) -> None:
    with in_space(lan.client, socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"hello", b"PWL2\x01", b"PWL2\x63" + bytes(30), bytes(9000)):
            stranger.sendto(data, ("192.0.2.1", PORT))
        node.until(lambda seen: sum(seen["ignored"].values()) == 5)
    assert set(node.seen["ignored"]) == {"foreign", "another version", "damaged or with a key"}
    assert node.owns() == {*FOURS, *SIXES}


def test_an_address_that_the_node_has_not_yet_is_no_failure(lan: Lan, node: Node) -> None:
    node.tell(nodes={"n1": ["192.0.2.1", "192.0.2.77"], "n2": ["192.0.2.2"], "n3": ["fd00::3"]})
    node.until(lambda seen: set(seen["liveness"]) == {"n2", "n3"})
    node.until(
        lambda seen: (
            seen["troubles"]
            == ["node n3: has no InternalIP of a family in which this node has one: no heartbeats go there"]
        )
    )


def test_a_port_that_somebody_else_has_is_told_until_it_is_free(lan: Lan) -> None:
    (node,) = lan.nodes
    with in_space(node.space, socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("192.0.2.1", PORT))
        node.start()
        node.until(lambda seen: seen["troubles"] == ["heartbeats at UDP 192.0.2.1:7948: Address already in use"])
    node.until(lambda seen: seen["troubles"] == [])
