"""Others' hands: whatever is deleted, altered or added by hand is reported by verify and healed by a resync."""

import os
import socket
from contextlib import ExitStack
from struct import pack

import pytest

from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, attr, nest
from podwire.dataplane.nftables import libnftables, wire
from podwire.dataplane.nftables.departed import DEPARTED
from podwire.dataplane.nftables.layout import TABLE, layout
from podwire.model.addresses import FAMILIES, IPV4, IPV6, Family, parse_address, parse_prefix
from podwire.model.objects import Node, ServiceKey
from tests.kernel.hands import advertise_router, links_gone, send_as
from tests.kernel.rig import NODE, Rig, ask, by_hand, dump, entered, in_space, respond, service, sh, silence

SETS = [line.split()[4] for line in layout(IPV4).splitlines() if line.startswith("add set") and "dynamic" not in line]
OBJECTS = service("web", 10, ("10.1.1.2", "10.1.1.3", "fd01::2", "fd01::3")) | service("empty", 12, ())
LINK = "pw3a1773b046e7"
"""Of pod c: names are derived from the sandbox's."""
CATCHES_ALL = 2  # NFT_SET_ELEM_CATCHALL


OTHER_PRIORITY = (
    "nft flush chain ip podwire pre; nft delete chain ip podwire pre; "
    "nft add chain ip podwire pre '{ type nat hook prerouting priority 50; }'; "
    "nft add rule ip podwire pre 'ip daddr . meta l4proto . th dport vmap @svc'"
)
OTHER_FORM = (
    "nft delete table ip podwire; nft add table ip podwire; "
    "nft add set ip podwire svc '{ type inet_service; }'; nft add element ip podwire svc '{ 80 }'; "
    "nft add map ip podwire eps '{ type inet_service : ipv4_addr; }'; "
    "nft add element ip podwire eps '{ 80 : 10.1.1.9 }'; "
    "nft add set ip podwire pods '{ type inet_proto; }'; nft add element ip podwire pods '{ tcp }'"
)


@pytest.fixture
async def at_work(rig: Rig) -> Rig:
    await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
    return rig


@pytest.mark.parametrize(
    ("hand", "drift"),
    [
        pytest.param(
            "nft delete element ip podwire svc { 10.96.0.10 . tcp . 80 }",
            ["frontend 10.96.0.10:80/TCP"],
            id="verdict deleted",
        ),
        pytest.param(
            "nft delete element ip podwire eps { 10.96.0.10 . tcp . 80 . 0 }",
            ["frontend 10.96.0.10:80/TCP"],
            id="slot deleted",
        ),
        pytest.param(
            "nft add element ip podwire eps { 10.96.0.10 . tcp . 80 . 5 : 10.1.1.9 . 1 }",
            ["frontend 10.96.0.10:80/TCP"],
            id="slot added",
        ),
        pytest.param(
            "nft add element ip podwire svc { 10.96.0.99 . tcp . 80 : goto c1 }",
            ["frontend 10.96.0.99:80/TCP"],
            id="frontend added",
        ),
        pytest.param(
            "nft delete element ip podwire refused { 10.96.0.12 . tcp . 80 }",
            ["frontend 10.96.0.12:80/TCP"],
            id="refusal deleted",
        ),
        pytest.param(
            "nft delete element ip podwire pods { 10.1.1.2 . 10.1.1.2 }", ["local pod 10.1.1.2"], id="local pod deleted"
        ),
        pytest.param(
            "nft flush set ip6 podwire service_ranges",
            ["service range fd00:96:: to fd00:96::ffff"],
            id="service range deleted",
        ),
        pytest.param("nft flush chain ip6 podwire c2", ["rules of IPv6"], id="chain emptied"),
        pytest.param("nft delete chain ip6 podwire guard", ["rules of IPv6"], id="chain deleted"),
        pytest.param("nft insert rule ip podwire pre counter accept", ["rules of IPv4"], id="rule added"),
        pytest.param("nft add table ip podwire '{ flags dormant; }'", ["rules of IPv4"], id="table put to sleep"),
        pytest.param("nft chain ip6 podwire guardout '{ policy drop; }'", ["rules of IPv6"], id="policy changed"),
        pytest.param(
            "nft flush chain ip6 podwire pre; nft delete chain ip6 podwire pre",
            ["rules of IPv6"],
            id="base chain deleted",
        ),
        pytest.param("nft delete chain ip podwire layout", ["rules of IPv4"], id="seal deleted"),
        pytest.param("ip route del 10.1.1.2/32", ["route 10.1.1.2/32"], id="route deleted"),
        pytest.param("ip -6 route del fd00:96::/112", ["route fd00:96::/112"], id="service route deleted"),
        pytest.param(
            "ip route add 10.9.9.9/32 dev lo proto 177", ["route 10.9.9.9/32"], id="route of our protocol added"
        ),
        pytest.param(
            "ip route replace blackhole 10.1.1.2 proto 177", ["route 10.1.1.2/32"], id="route of ours made a blackhole"
        ),
        pytest.param(
            "ip -6 route replace unreachable fd01::2 proto 177 metric 1",
            ["route fd01::2/128"],
            id="route of ours unreachable",
        ),
        pytest.param(
            "ip -6 route add unreachable fd01::2 proto 177",
            ["route fd01::2/128 metric 1024"],
            id="of our protocol, of the kernel's metric",
        ),
        pytest.param("ip route add prohibit 10.9.9.9 proto 177", ["route 10.9.9.9/32"], id="prohibition added"),
        pytest.param(
            "ip route add 10.1.1.2 dev lo proto 177 metric 50", ["route 10.1.1.2/32 metric 50"], id="metric added"
        ),
        pytest.param(
            "ip -6 route add blackhole fd01::2 proto 177 metric 5",
            ["route fd01::2/128 metric 5"],
            id="IPv6 blackhole of a better metric",
        ),
        pytest.param("ip route add 10.1.1.2 tos 0x10 dev lo proto 177", ["route 10.1.1.2/32 tos 0x10"], id="tos added"),
        pytest.param(
            "ip nexthop add id 7 dev lo; ip route add 10.9.9.9 nhid 7 proto 177",
            ["route 10.9.9.9/32"],
            id="route by a next hop object",
        ),
        pytest.param(
            "ip route replace 10.9.9.9 proto 177 nexthop dev lo nexthop dev lo weight 2",
            ["route 10.9.9.9/32"],
            id="route by several next hops",
        ),
        pytest.param(
            "ip route del 10.1.1.2; ip route add 10.1.1.2 dev lo proto static",
            ["route 10.1.1.2/32"],
            id="another's route",
        ),
        pytest.param(
            "ip -6 route del fd01::2; ip -6 route add blackhole fd01::2 metric 1",
            ["route fd01::2/128"],
            id="another's blackhole",
        ),
        pytest.param("sysctl -qw net.ipv4.conf.{link}.forwarding=0", ["link {link}"], id="link does not forward"),
        pytest.param("sysctl -qw net.ipv6.conf.{link}.forwarding=0", ["link {link}"], id="link does not forward IPv6"),
        pytest.param("sysctl -qw net.ipv4.conf.{link}.rp_filter=0", ["link {link}"], id="link takes any source"),
        pytest.param("sysctl -qw net.ipv4.conf.{link}.send_redirects=1", ["link {link}"], id="link sends redirects"),
        pytest.param("ip link set {link} name other", ["link {link}"], id="link renamed"),
        pytest.param("ip link set {link} mtu 1400", ["link {link}"], id="MTU changed"),
        pytest.param("ip link set {link} alias other", ["link {link}"], id="alias changed"),
        pytest.param("ip link property del dev {link} altname sandbox-c.eth0", ["link {link}"], id="altname deleted"),
        pytest.param("sysctl -qw net.ipv4.ip_forward=0", ["sysctl net/ipv4/ip_forward"], id="forwarding off"),
        pytest.param(
            "ip -n {pod} neigh del 169.254.1.1 dev eth0",
            ["neighbour 169.254.1.1 on interface {inner} in /run/netns/{pod}"],
            id="pod's gateway forgotten",
        ),
    ],
)
async def test_what_hands_change_is_seen_and_healed(at_work: Rig, hand: str, drift: list[str]) -> None:
    names = {"link": LINK, "pod": at_work.pods["c"].name}
    clean = dump()
    by_hand(hand.replace("{link}", names["link"]).replace("{pod}", names["pod"]))
    names["inner"] = str(at_work.running.controller.snapshot.attachments[at_work.key("c")].index + 1)
    assert await at_work.drift() == [text.format(**names) for text in drift]
    result = await at_work.resync()
    assert result.error is None
    assert await at_work.drift() == []
    assert dump() == clean
    assert {ask(at_work.pods["c"], "10.96.0.10")[0] for _ in range(30)} == {"a", "b"}
    assert ask(at_work.pods["b"], "fd00:96::c") == "ConnectionRefusedError"


@pytest.mark.parametrize(
    "hand",
    [
        "nft delete table ip podwire",
        "nft delete table ip podwire; nft add table ip podwire; nft add chain ip podwire foreign",
        "nft delete table ip podwire; nft 'add table ip podwire { flags dormant; }'",
        OTHER_PRIORITY,
        OTHER_FORM,
        "ip link del {link}",
        "ip link set {link} down",
        "ip -n {pod} link set eth0 down",
        "ip -n {pod} link set eth0 down; ip -n {pod} link set eth0 name other",
        "ip address del 10.1.1.1/32 dev lo",
        "ip -n {pod} address del 10.1.1.4/32 dev eth0",
    ],
    ids=[
        "table deleted",
        "a foreign table in its place",
        "a dormant table in its place",
        "a base chain with another priority in its place",
        "a table with maps of another form in its place",
        "link deleted",
        "link down",
        "pod's end down",
        "pod's end renamed",
        "own address deleted",
        "pod's address deleted",
    ],
)
async def test_what_takes_more_with_it_is_healed_too(at_work: Rig, hand: str) -> None:
    names = {"link": LINK, "pod": at_work.pods["c"].name}
    by_hand(hand.replace("{link}", names["link"]).replace("{pod}", names["pod"]))
    assert await at_work.drift() != []
    for _ in range(3):  # a resync may end in another: what lay on a renewed link or table is read again
        await at_work.resync()
    assert await at_work.drift() == []
    assert {ask(at_work.pods["c"], "10.96.0.10")[0] for _ in range(30)} == {"a", "b"}


async def test_whose_route_is_in_the_way_of_one_that_is_not_a_pods_is_said(at_work: Rig) -> None:
    """Nobody's default route or network is taken from him: who asks is told, and it heals once he is out of the way."""
    by_hand("ip route del 10.96.0.0/16; ip route add 10.96.0.0/16 dev lo proto static")
    result = await at_work.resync()
    assert result.error == ("route 10.96.0.0/16: File exists (EEXIST): another's route is there: protocol static on lo")
    by_hand("ip route del 10.96.0.0/16 proto static")
    assert (await at_work.resync()).error is None
    assert await at_work.drift() == []


async def test_a_failure_heals_by_itself(at_work: Rig) -> None:
    """A Service can't be programmed while its table is away; nobody asks for a resync."""
    sh("nft", "delete", "table", "ip6", "podwire")
    result = await at_work.change(*service("late", 20, ("10.1.1.2", "fd01::2")).items())
    assert result.error is not None
    await at_work.history_has("Resync healing of nftables")
    assert await at_work.drift() == []
    assert ask(at_work.pods["c"], "fd00:96::14").startswith("a ")


async def test_the_unexpected_is_read_again_and_tried_once_more(at_work: Rig) -> None:
    """Somebody has deleted what the agent is about to delete."""
    sh("nft", "delete", "element", "ip", "podwire", "svc", "{ 10.96.0.10 . tcp . 80 }")
    result = await at_work.change((ServiceKey("default", "web"), None))
    assert result.error is None
    assert await at_work.drift() == []


async def test_an_older_layout_is_replaced_under_its_elements(rig: Rig) -> None:
    """Rules that are not the sealed ones, beside elements that are right: the rules go, the elements stay."""
    await rig.start_with_pods("a", "b", objects=OBJECTS)
    await rig.stop()
    sh("nft", "flush", "chain", "ip6", "podwire", "pre")
    sh("nft", "delete", "chain", "ip6", "podwire", "layout")
    handles = sh("nft", "-a", "list", "map", "ip6", "podwire", "eps")
    assert (await rig.start(OBJECTS)).error is None
    assert sh("nft", "-a", "list", "map", "ip6", "podwire", "eps") == handles
    assert rig.writes()["linux"] == 0
    assert {ask(rig.pods["b"], "fd00:96::a")[0] for _ in range(30)} == {"a", "b"}
    assert libnftables.run(layout(IPV6).replace("podwire", "fresh")) == ""
    ours = sh("nft", "list", "table", "ip6", "podwire").replace('comment "1', "")
    assert "vmap @svc" in ours


def handle_of(family: str) -> str:
    """What tells our table from one that is made anew in its place."""
    return sh("nft", "-a", "list", "table", family, "podwire").splitlines()[0]


async def test_sets_come_with_a_newer_layout_and_go_with_an_older_one_under_its_elements(rig: Rig) -> None:
    """A table of before what a layout has come to count, with a set that it has no more."""
    await rig.start_with_pods("a", "b", objects=OBJECTS, service_traffic=True)
    await rig.stop()
    for chain in ("arrived", "traffic", "traffic_new", "traffic_add", "served", "served_new", "served_add"):
        sh("nft", "flush", "chain", "ip6", "podwire", chain)
    sh("nft", "delete set ip6 podwire traffic; delete set ip6 podwire connections; delete chain ip6 podwire layout")
    sh("nft", "add set ip6 podwire former { type ipv6_addr; }; add element ip6 podwire former { fd00::1 }")
    handle = handle_of("ip6")
    assert (await rig.start(OBJECTS, service_traffic=True)).error is None
    assert await rig.drift() == []
    assert handle_of("ip6") == handle
    assert {ask(rig.pods["b"], "fd00:96::a")[0] for _ in range(30)} == {"a", "b"}
    table = sh("nft", "list", "table", "ip6", "podwire")
    assert "former" not in table
    assert "fd00:96::a . tcp . 80 . reply counter packets" in table


async def test_a_changed_pod_cidr_is_honoured(at_work: Rig) -> None:
    result = await at_work.change((NODE, Node((parse_prefix("10.2.2.0/24"), parse_prefix("fd02::/64")))))
    assert result.error is None
    assert (await at_work.add("d")).error is None
    held = at_work.running.controller.snapshot.attachments[at_work.key("d")].addresses
    assert held == (parse_address("10.2.2.2"), parse_address("fd02::2"))
    respond(at_work.pods["d"], "d")
    assert ask(at_work.pods["a"], "10.2.2.2", 8080) == "d 10.1.1.2"
    assert ask(None, "10.1.1.2", 8080) == "a 10.2.2.1"
    assert await at_work.drift() == []


async def test_a_sandbox_that_is_gone_is_forgotten(rig: Rig) -> None:
    await rig.start()
    for pod in "abc":
        await rig.add(pod)
    sh("ip", "netns", "del", rig.pods["c"].name)
    links_gone(rig, "c")
    await rig.resync()
    await rig.resync()
    assert rig.rows() == 2
    assert await rig.drift() == []


async def test_of_several_that_nobody_can_look_into_only_the_dead_are_forgotten(at_work: Rig) -> None:
    """What holds the namespace of c lives; that of b ends later."""
    rig = at_work
    held = os.open(rig.pods["c"].path, os.O_RDONLY)
    for pod in "bc":
        sh("ip", "netns", "del", rig.pods[pod].name)
    await rig.resync()
    silence()
    links_gone(rig, "b")
    for _ in range(2):
        await rig.resync()
    assert rig.rows() == 2
    assert set(rig.running.controller.snapshot.attachments) == {rig.key("a"), rig.key("c")}
    os.close(held)
    links_gone(rig, "c")
    for _ in range(2):
        await rig.resync()
    assert rig.rows() == 1
    assert await rig.drift() == []


async def test_a_pod_whose_namespace_has_lost_its_name_lives_on(at_work: Rig) -> None:
    """Its processes hold the namespace; nobody can look into it, and nothing of it is cut."""
    sh("ip", "netns", "del", at_work.pods["c"].name)
    for _ in range(2):
        await at_work.resync()
        assert ask(None, "10.1.1.4", 8080).startswith("c ")
    assert at_work.rows() == 3
    assert await at_work.drift() == []
    await at_work.stop()
    await at_work.start(OBJECTS)
    assert at_work.writes() == {"store": 0, "linux": 0, "nftables": 0}
    assert ask(None, "fd01::4", 8080).startswith("c ")
    sh("ip", "route", "del", "10.1.1.4/32")  # the node's side is looked after
    await at_work.resync()
    assert ask(None, "10.1.1.4", 8080).startswith("c ")
    assert (await at_work.delete("c")).error is None
    at_work.running.linux.collect()
    assert at_work.rows() == 2
    assert await at_work.drift() == []


async def test_what_the_owner_of_a_pod_does_inside_is_left_alone(at_work: Rig) -> None:
    """A new MAC address or name of its interface (as virtual machines in pods need), something built on it. The node
    follows: what it knows of the pod's MAC address is what the pod has."""
    pod = at_work.pods["c"].name
    by_hand(f"ip -n {pod} link set eth0 down; ip -n {pod} link set eth0 name net1 address 02:00:00:00:00:77")
    by_hand(f"ip -n {pod} link add link net1 name net1.5 type macvlan; ip -n {pod} link set net1 up")
    assert any("neighbour 10.1.1.4" in key for key in await at_work.drift())
    await at_work.resync()
    assert await at_work.drift() == []
    assert "net1.5" in sh("ip", "-n", pod, "link")
    assert "02:00:00:00:00:77" in sh("ip", "-n", pod, "link")
    assert ask(None, "10.1.1.4", 8080) == "c 10.1.1.1"
    assert ask(None, "fd01::4", 8080) == "c fd01::1"
    await at_work.stop()
    await at_work.start(OBJECTS)
    assert at_work.writes() == {"store": 0, "linux": 0, "nftables": 0}


async def test_a_pod_keeps_its_own_mac_address_through_updates_and_a_repeated_add(at_work: Rig) -> None:
    sh("ip", "-n", at_work.pods["c"].name, "link", "set", "eth0", "address", "02:00:00:00:00:77")
    await at_work.resync()
    assert (await at_work.add("c")).error is None
    assert ask(None, "10.1.1.4", 8080) == "c 10.1.1.1"
    assert await at_work.drift() == []
    assert (await at_work.delete("c")).error is None
    assert await at_work.drift() == []


async def test_a_gateway_forgotten_under_traffic_comes_back(at_work: Rig) -> None:
    """In between the kernel has made an entry of its own, by asking."""
    pod = at_work.pods["c"]
    sh("ip", "-n", pod.name, "neigh", "del", "169.254.1.1", "dev", "eth0")
    assert ask(pod, "10.96.0.10") in ("OSError", "TimeoutError")
    assert (await at_work.resync()).error is None
    assert ask(pod, "10.96.0.10")[0] in "ab"
    assert await at_work.drift() == []


async def test_a_changed_mtu_reaches_both_ends(at_work: Rig) -> None:
    await at_work.stop()
    await at_work.start(OBJECTS, mtu=1400)
    assert " mtu 1400 " in sh("ip", "link", "show", LINK)
    assert " mtu 1400 " in sh("ip", "-n", at_work.pods["c"].name, "link", "show", "eth0")
    assert await at_work.drift() == []
    assert ask(at_work.pods["c"], "10.96.0.10")[0] in "ab"


async def test_a_pod_cannot_become_the_way_out_by_a_router_advertisement(at_work: Rig) -> None:
    """CVE-2020-10749: an advertisement from a pod, which needs only CAP_NET_RAW."""
    advertise_router(at_work.pods["c"], "eth0")
    assert "default" not in sh("ip", "-6", "route")


@pytest.mark.parametrize("loose", ["0", "2"], ids=["as it is", "others have loosened rp_filter for all interfaces"])
@pytest.mark.parametrize(
    ("mine", "others"),
    [
        pytest.param("10.1.1.4", ["10.1.1.3", "10.1.2.77", "192.0.2.7", "10.96.0.10"], id="IPv4"),
        pytest.param("fd01::4", ["fd01::3", "fd02::77", "2001:db8::7", "fd00:96::a"], id="IPv6"),
    ],
)
async def test_a_pod_cannot_send_in_the_name_of_another(at_work: Rig, mine: str, others: list[str], loose: str) -> None:
    """A node end takes only packets whose source it would send to (RFC 3704)."""
    by_hand(f"sysctl -qw net.ipv4.conf.all.rp_filter={loose}")
    by_hand("ip route add default dev lo; ip -6 route add default dev lo")  # so that every source has some way
    six = ":" in mine
    with in_space(at_work.pods["a"], socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("::" if six else "0.0.0.0", 9000))
        listener.settimeout(10)
        to = "fd01::2" if six else "10.1.1.2"
        for source in others:
            send_as(at_work.pods["c"], source, to, 9000, b"forged")
        send_as(at_work.pods["c"], mine, to, 9000, b"honest")
        assert listener.recvfrom(100)[0] == b"honest"  # on one link packets keep their order


async def test_a_link_that_only_has_a_name_like_ours_is_left_alone(at_work: Rig) -> None:
    for name in ("pwr-uplink-eth", "pw0123456789ab"):
        by_hand(f"ip link add {name} type veth peer name x{name[:8]}")
    assert await at_work.drift() == []
    assert (await at_work.resync()).error is None
    assert (await at_work.delete("c")).error is None
    for name in ("pwr-uplink-eth", "pw0123456789ab"):
        assert name in sh("ip", "-o", "link")


@pytest.mark.parametrize(
    "hand",
    [
        "nft add element ip podwire svc '{ 10.96.0.77 . tcp . 80 : drop }'",
        "nft add element ip podwire svc '{ 10.96.0.77 . icmp . 80 : goto c1 }'",
        "nft add element ip podwire eps '{ 10.96.0.10 . tcp . 80 . 16777216 : 10.1.1.9 . 1 }'",
        "nft add element ip podwire eps '{ 10.96.0.77 . udplite . 80 . 1 : 10.1.1.9 . 1 }'",
        "nft add element ip podwire refused '{ 10.96.0.10 . tcp . 80 }'",
        "nft add element ip podwire external '{ 10.96.0.10 . icmp . 80 }'",
        "nft add element ip podwire pods '{ 10.1.1.2 . 10.1.1.3 }'",
        "nft add element ip podwire service_ranges '{ 10.77.0.0-10.77.0.5 }'",
        "nft add chain ip podwire foreign '{ type filter hook forward priority 0; policy drop; }'",
        "nft add set ip podwire foreign '{ type ipv4_addr; }'",
        "nft flush ruleset",
        "ip link set {link} address 02:00:00:00:00:01",
        "ip neigh change 10.1.1.4 dev {link} lladdr 02:00:00:00:00:01 nud stale",
    ],
)
async def test_whatever_is_done_by_hand_is_seen_and_undone(at_work: Rig, hand: str) -> None:
    by_hand(hand.replace("{link}", LINK))
    assert await at_work.drift() != []
    for _ in range(2):  # what lies on a renewed link or table is read again
        await at_work.resync()
    assert await at_work.drift() == []
    assert {ask(at_work.pods["c"], "10.96.0.10")[0] for _ in range(30)} == {"a", "b"}
    assert ask(at_work.pods["b"], "10.96.0.12") == "ConnectionRefusedError"


async def test_after_a_flushed_ruleset_an_add_fails_once_and_heals(at_work: Rig) -> None:
    sh("nft", "flush", "ruleset")
    assert (await at_work.add("d")).error is not None
    await at_work.history_has("Resync healing of nftables")
    assert (await at_work.add("d")).error is None
    assert await at_work.drift() == []


async def test_rules_are_loaded_with_more_than_a_thousand_open_files(rig: Rig) -> None:
    """nft's library waits by select(2), which ends the process beyond descriptor 1,023."""
    with ExitStack() as opened:
        for _ in range(1100):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert (await rig.start(OBJECTS)).error is None
        sh("nft", "flush", "chain", "ip", "podwire", "pre")
        assert (await rig.resync()).error is None
    assert await rig.drift() == []


async def test_an_address_that_a_pod_marks_as_ours_costs_only_that_pod(at_work: Rig) -> None:
    """Of our protocol number, and without the address of a peer."""
    with entered(at_work.pods["b"]):
        there = netlink.Socket(netlink.ROUTE)
    body = pack("=BBBBI", 2, 32, 0, 0, 1) + attr(2, bytes((1, 2, 3, 4))) + attr(1, bytes(4)) + attr(11, b"\xb1")
    assert there.send([Message(20, 0x600, body)]) == {}
    there.close()
    assert any("1.2.3.4" in key for key in await at_work.drift())
    assert (await at_work.resync()).error is None
    assert await at_work.drift() == []


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize(
    "name",
    [it for it in SETS if it != DEPARTED],  # no rule asks the agent's own notes
)
async def test_an_element_that_catches_all_is_seen_and_removed(at_work: Rig, name: str, family: Family) -> None:
    catch_all(family, name)
    assert [it for it in await at_work.drift() if name in it] != []
    assert (await at_work.resync()).error is None
    assert await at_work.drift() == []
    for to in ("10.96.0.10", "fd00:96::a"):
        assert ask(at_work.space("c"), to).split()[0] in {"a", "b"}
    for to in ("10.1.1.2", "fd01::2"):
        assert ask(at_work.space("c"), to, 8080).startswith("a ")


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_an_element_that_catches_all_is_no_note(at_work: Rig, family: Family) -> None:
    catch_all(family, DEPARTED)
    assert at_work.running.nftables.departed.read() == {}
    assert (await at_work.resync()).error is None
    assert await at_work.drift() == []


def catch_all(family: Family, name: str) -> None:
    """As a raw message: to some sets nft 1.0.6 can't add one."""
    element = nest(1, attr(3, pack(">I", CATCHES_ALL)))
    kernel = netlink.Socket(netlink.NETFILTER)
    try:
        body = wire.head(family) + wire.text(1, TABLE) + wire.text(2, name)
        assert kernel.send(wire.batch([wire.message(body, [element], False)])) == {}
    finally:
        kernel.close()
