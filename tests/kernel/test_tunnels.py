"""One node's VXLAN devices on the real kernel: made, kept, healed, replaced and removed."""

import asyncio
from typing import Any

import pytest

from podwire.dataplane import netlink
from podwire.findings import findings
from podwire.model.addresses import IPV6, parse_address, parse_prefix, show_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import TUNNEL_INDEX
from podwire.model.objects import Node, NodeKey, Protocol
from podwire.model.snapshot import Transport
from podwire.nodes.tunnels import mac_of, next_hop
from tests.kernel.outside import FAR as FAR_POD
from tests.kernel.outside import NODES, connect
from tests.kernel.rig import TARGET_PORT, Rig, ask, by_hand, service, sh


def node(number: int, *addresses: str) -> dict[ObjectKey, Object]:
    blocks = parse_prefix(f"10.1.{number}.0/24"), parse_prefix(f"fd0{number}::/64")
    return {NodeKey(f"node{number}"): Node(blocks, tuple(map(parse_address, addresses)))}


FAR = node(3, "198.51.100.3", "fd98::3")
FAR_BY_IPV6 = node(4, "fd98::4")
OBJECTS = NODES | FAR
FAR_PODS = FAR_POD[4], FAR_POD[16]
TWO = parse_prefix("10.1.2.0/24"), parse_prefix("fd02::/64")
PATIENCE = 10
"""Seconds in which what others have done is to be undone, on a busy machine."""
MAC, FARS_MAC = mac_of("one").hex(":"), mac_of("node3").hex(":")


def state() -> dict[str, list[str]]:
    """What `ip` and `bridge` say of our devices, and of our ways to other nodes."""
    tunnels = [line for line in sh("ip", "-d", "-o", "link").splitlines() if "podwire-vxlan" in line]
    routes = [*sh("ip", "-4", "route").splitlines(), *sh("ip", "-6", "route").splitlines()]
    return {
        "links": [" ".join(line.split()) for line in tunnels],
        "routes": [" ".join(line.split()) for line in routes if "proto 177" in line and " via " in line],
        "fdb": sorted(line for line in sh("bridge", "fdb").splitlines() if "podwire" in line),
        "neighbours": sorted(
            line.strip() for line in sh("ip", "neigh", "show", "nud", "permanent").splitlines() if "podwire" in line
        ),
        "addresses": [" ".join(line.split()[1:4]) for line in sh("ip", "-o", "addr").splitlines() if "podwire" in line],
    }


def gone() -> dict[str, list[str]]:
    return {"links": [], "fdb": [], "neighbours": [], "addresses": []}


async def started(rig: Rig, objects: dict[ObjectKey, Object] = OBJECTS, **settings: Any) -> None:
    connect(rig)
    assert (await rig.start(objects, mtu=None, **settings)).error is None
    assert await rig.drift() == []


async def test_a_node_on_another_link_is_reached_by_a_device_of_ours(rig: Rig) -> None:
    await started(rig)
    seen = state()
    (link,) = seen["links"]
    for part in (
        f"link/ether {MAC} ",
        " mtu 1450 ",
        "vxlan id 28791 local 192.0.2.1 ",
        " dstport 4789 nolearning ",
        " addrgenmode none ",
    ):
        assert part in link
    assert seen["fdb"] == [f"{FARS_MAC} dev podwire-vxlan dst 198.51.100.3 self permanent"]
    assert seen["addresses"] == ["podwire-vxlan inet 10.1.1.1/32", "podwire-vxlan inet6 fd01::1/128"]
    hop = sh("ip", "-6", "route", "show", "fd03::/64").split()[2]
    assert hop.startswith("fe80::")
    assert seen["neighbours"] == [
        f"{to} dev podwire-vxlan lladdr {FARS_MAC} PERMANENT proto 177" for to in ("10.1.3.0", hop)
    ]
    assert seen["routes"] == [
        "10.1.2.0/24 via 192.0.2.2 dev br0 proto 177 src 192.0.2.1",
        "10.1.3.0/24 via 10.1.3.0 dev podwire-vxlan proto 177 src 10.1.1.1 onlink",
        "fd02::/64 via fd99::2 dev br0 proto 177 src fd99::1 metric 1 pref medium",
        f"fd03::/64 via {hop} dev podwire-vxlan proto 177 src fd01::1 metric 1 pref medium",
    ]


HANDS = (
    "ip link del podwire-vxlan",
    "ip link set podwire-vxlan down",
    "ip link set podwire-vxlan address 02:00:00:00:00:99",
    "ip link set podwire-vxlan mtu 1400",
    "ip link set podwire-vxlan down; ip link set podwire-vxlan name other; ip link set other up",
    "ip link set podwire-vxlan group default",
    "ip link set podwire-vxlan type vxlan learning",
    "ip link set podwire-vxlan type vxlan local 192.0.2.77",
    "ip link set podwire-vxlan type vxlan remote 192.0.2.9",
    "ip link del podwire-vxlan; ip link add podwire-vxlan up type vxlan id 28791 dstport 4789",
    "ip link del podwire-vxlan; ip link add podwire-vxlan up type vxlan id 7 dstport 4789",
    f"bridge fdb del {FARS_MAC} dev podwire-vxlan",
    f"bridge fdb replace {FARS_MAC} dev podwire-vxlan dst 192.0.2.9 self permanent",
    f"bridge fdb replace {FARS_MAC} dev podwire-vxlan dst 198.51.100.3 port 4790 self permanent",
    f"bridge fdb replace {FARS_MAC} dev podwire-vxlan dst 198.51.100.3 self dynamic",
    "bridge fdb add 02:00:00:00:00:98 dev podwire-vxlan dst 192.0.2.9 self permanent",
    "for n in 8 9; do bridge fdb append 00:00:00:00:00:00 dev podwire-vxlan dst 192.0.2.$n self permanent; done",
    "ip neigh flush dev podwire-vxlan nud permanent",
    "ip neigh replace 10.1.3.0 lladdr 02:00:00:00:00:97 dev podwire-vxlan nud permanent",
    "ip neigh replace 10.1.3.0 lladdr 02:00:00:00:00:97 dev podwire-vxlan nud stale",
    "ip route del 10.1.3.0/24; ip -6 route del fd03::/64",
    "ip route replace 10.1.3.0/24 via 192.0.2.9 proto 177",
    "ip route replace blackhole 10.1.3.0/24 proto 177",
    "ip addr flush dev podwire-vxlan",
    "sysctl -qw net.ipv4.conf.podwire-vxlan.rp_filter=1",
    "sysctl -qw net.ipv4.conf.podwire-vxlan.forwarding=0",
    "sysctl -qw net.ipv4.conf.podwire-vxlan.send_redirects=1",
    "sysctl -qw net.ipv6.conf.podwire-vxlan.forwarding=0",
)


@pytest.mark.parametrize("hand", HANDS)
async def test_what_others_do_is_seen_and_undone_by_a_resync(rig: Rig, hand: str) -> None:
    await started(rig)
    before, counts = state(), rig.writes()["linux"]
    by_hand(hand)
    assert await rig.drift() != []
    assert (await rig.resync()).error is None
    assert await rig.drift() == []
    assert state() == before
    assert rig.writes()["linux"] > counts


@pytest.mark.parametrize("hand", [it for it in HANDS if "send_redirects" not in it])
async def test_what_others_do_is_told_by_the_kernel_and_undone_at_once(rig: Rig, hand: str) -> None:
    await started(rig)
    before = state()
    rig.watch()
    by_hand(hand)
    async with asyncio.timeout(PATIENCE):
        await rig.history_has("Disturbed linux")
        while await rig.drift():
            await rig.running.controller.next_record()
    assert state() == before


async def test_a_restart_writes_nothing(rig: Rig) -> None:
    await started(rig, OBJECTS | FAR_BY_IPV6)
    before = state()
    await rig.stop()
    assert (await rig.start(OBJECTS | FAR_BY_IPV6, mtu=None)).error is None
    assert rig.writes() == {"store": 0, "linux": 0, "nftables": 0}
    assert state() == before


async def test_a_node_of_one_family_only_is_reached_for_both(rig: Rig) -> None:
    await started(rig, NODES | FAR_BY_IPV6)
    seen, mac = state(), mac_of("node4").hex(":")
    (link,) = seen["links"]
    assert link.startswith(f"{TUNNEL_INDEX[IPV6]}: podwire-vxlan6: ")
    assert " mtu 1430 " in link
    assert seen["fdb"] == [f"{mac} dev podwire-vxlan6 dst fd98::4 self permanent"]
    assert "10.1.4.0/24 via 10.1.4.0 dev podwire-vxlan6 proto 177 src 10.1.1.1 onlink" in seen["routes"]


@pytest.mark.parametrize("outer", ["192.0.2", "fd99:"], ids=["over IPv4", "over IPv6"])
async def test_another_s_device_of_the_same_numbers_understands_ours(rig: Rig, outer: str) -> None:
    """Made by hand at the other end, from what the documents say; packets of both families of pods go through."""
    other, here = (f"{outer}.2", f"{outer}.1") if "." in outer else (f"{outer}:2", f"{outer}:1")
    two = connect(rig).two.name
    objects = NODES | {NodeKey("two"): Node(TWO, (parse_address(other),))}
    objects |= service("web", 10, (FAR_PODS[0], FAR_PODS[1]))
    assert (await rig.start(objects, mtu=None, transport=Transport.VXLAN)).error is None
    assert (await rig.add("a")).error is None
    hop = next_hop(parse_prefix("fd01::/64"), mac_of("one"))
    ours, theirs = mac_of("one").hex(":"), mac_of("two").hex(":")
    for line in (
        f"link add vx address {theirs} mtu 1430 type vxlan id 28791 dstport 4789 nolearning local {other}",
        "link set vx up",
        "route add 10.1.1.0/24 via 10.1.1.0 dev vx onlink",
        f"route add fd01::/64 via {show_address(hop)} dev vx",
        f"neigh add 10.1.1.0 lladdr {ours} dev vx nud permanent",
        f"neigh add {show_address(hop)} lladdr {ours} dev vx nud permanent",
    ):
        sh("ip", "-n", two, *line.split())
    sh("bridge", "-n", two, "fdb", "add", ours, "dev", "vx", "dst", here, "self", "permanent")
    for pod, own, client, cluster_ip in zip(
        FAR_PODS, ("10.1.1.1", "fd01::1"), ("10.1.1.2", "fd01::2"), ("10.96.0.10", "fd00:96::a"), strict=True
    ):
        for protocol in (Protocol.TCP, Protocol.UDP):
            assert ask(rig.pods["a"], pod, TARGET_PORT, protocol) == f"far {client}"
            assert ask(rig.pods["a"], cluster_ip, 80) == f"far {client}"
            assert ask(None, pod, TARGET_PORT, protocol) == f"far {own}"
            assert ask(None, cluster_ip, 80) == f"far {own}"


async def test_devices_come_and_go_with_the_nodes_that_need_them(rig: Rig) -> None:
    await started(rig, NODES)
    assert rig.running.controller.snapshot.pod_mtu == 1500
    before = state()
    assert before["links"] == []
    assert (await rig.add("a")).error is None

    def pods() -> str:
        return sh("ip", "-n", rig.pods["a"].name, "-o", "link", "show", "eth0").split(" mtu ")[1].split()[0]

    assert pods() == "1500"
    for more, mtu in ((FAR, "1450"), (FAR_BY_IPV6, "1430")):
        assert (await rig.change(*more.items())).error is None
        assert await rig.drift() == []
        assert pods() == mtu
    assert len(state()["links"]) == 2
    for gone, mtu in ((FAR_BY_IPV6, "1450"), (FAR, "1500")):
        assert (await rig.change(*((key, None) for key in gone))).error is None
        assert await rig.drift() == []
        assert pods() == mtu
    assert state() == before


@pytest.mark.parametrize("at_once", [True, False], ids=["back before anybody looks", "seen to be away"])
async def test_an_address_that_is_away_for_an_instant_moves_no_device_and_no_pod(rig: Rig, at_once: bool) -> None:
    await started(rig)
    assert (await rig.add("a")).error is None
    rig.watch()
    by_hand("ip link set podwire-vxlan alias the-same")
    before, told = state(), netlink.Listener(netlink.ROUTE, (1,))  # RTNLGRP_LINK

    async def heard(count: int) -> None:
        history = rig.running.controller.history
        while sum(record.event.startswith("NodeAddressesChanged") for record in history) < count:
            await rig.running.controller.next_record()

    try:
        async with asyncio.timeout(PATIENCE):
            by_hand("ip addr del 192.0.2.1/24 dev br0")
            if not at_once:
                await heard(1)
                away = state()
                assert away["links"] == before["links"]
                assert [it for it in before["routes"] if it not in away["routes"]] == before["routes"][:1]  # direct
            by_hand("ip addr add 192.0.2.1/24 dev br0")
            await heard(2)
            while await rig.drift():
                await rig.running.controller.next_record()
        assert told.drain() == []
    finally:
        told.close()
    assert state() == before
    assert " mtu 1450 " in sh("ip", "-n", rig.pods["a"].name, "-o", "link", "show", "eth0")


async def test_a_node_that_moves_keeps_all_but_where_its_packets_go(rig: Rig) -> None:
    await started(rig)
    before, counts = state(), rig.writes()["linux"]
    assert (await rig.change(*node(3, "198.51.100.33", "fd98::3").items())).error is None
    assert rig.writes()["linux"] - counts == 1
    moved = state()
    assert moved.pop("fdb") == [f"{FARS_MAC} dev podwire-vxlan dst 198.51.100.33 self permanent"]
    assert moved == {key: value for key, value in before.items() if key != "fdb"}
    assert (await rig.change(*node(3, "192.0.2.3", "fd99::3").items())).error is None  # to this link
    assert state()["links"] == []
    assert "10.1.3.0/24 via 192.0.2.3 dev br0 proto 177 src 192.0.2.1" in state()["routes"]
    assert (await rig.change(*FAR.items())).error is None
    assert state() == before
    assert await rig.drift() == []


@pytest.mark.parametrize("first", Transport)
@pytest.mark.parametrize("second", Transport)
async def test_a_restart_with_another_transport_leads_to_the_same_as_a_start_with_it(
    rig: Rig, first: Transport, second: Transport
) -> None:
    await started(rig, transport=second)
    wanted = state()
    await rig.stop()
    assert (await rig.start(OBJECTS, mtu=None, transport=first)).error is None
    assert state() == wanted or first is not second
    await rig.stop()
    assert (await rig.start(OBJECTS, mtu=None, transport=second)).error is None
    assert await rig.drift() == []
    assert state() == wanted


async def test_with_transport_direct_a_node_on_no_link_is_told_of(rig: Rig) -> None:
    await started(rig, transport=Transport.DIRECT)
    assert state()["links"] == []
    text = "is on no link of this node, and transport is direct"
    assert findings(rig.running.controller.snapshot) == (
        f"node/node3: there is no route to its pod CIDR 10.1.3.0/24: the node's address 198.51.100.3 {text}",
        f"node/node3: there is no route to its pod CIDR fd03::/64: the node's address fd98::3 {text}",
    )


async def test_another_number_and_port_take_another_device(rig: Rig) -> None:
    await started(rig)
    await rig.stop()
    assert (await rig.start(OBJECTS, mtu=None, vxlan_vni=99, vxlan_port=8472)).error is None
    (link,) = state()["links"]
    assert "vxlan id 99 local 192.0.2.1 " in link
    assert " dstport 8472 " in link
    assert await rig.drift() == []


@pytest.mark.parametrize(
    ("hand", "told"),
    [
        pytest.param(
            "ip link add podwire-vxlan type bridge",
            "VXLAN device podwire-vxlan: another's interface has this name: rename or remove it",
            id="the name",
        ),
        pytest.param(
            "ip link add flannel.1 type vxlan id 28791 dstport 4789",
            "VXLAN device podwire-vxlan: VXLAN device flannel.1 has UDP port 4789 and VNI 28791 already: "
            "set another vxlan_port or vxlan_vni",
            id="number and port",
        ),
        pytest.param(
            "ip link add odd type vxlan id 5 dstport 4789 gbp; ip link set odd up",
            "VXLAN device podwire-vxlan: VXLAN device odd has UDP port 4789 already: set another vxlan_port",
            id="the port, for packets of another form",
        ),
    ],
)
async def test_what_is_in_the_way_is_named(rig: Rig, hand: str, told: str) -> None:
    connect(rig)
    by_hand(hand)
    assert (await rig.start(OBJECTS, mtu=None)).error == told
    assert (await rig.add("a")).error is None  # pods of this node don't wait for that


async def test_an_mtu_that_leaves_no_room_is_told_of(rig: Rig) -> None:
    connect(rig)
    assert (await rig.start(OBJECTS, mtu=1500)).error is None
    (told,) = findings(rig.running.controller.snapshot)
    assert told == (
        "mtu 1500 is more than the 1450 that VXLAN leaves of this node's 1500: larger packets to other nodes are "
        "answered by ICMP; set at most 1450, or no mtu"
    )
