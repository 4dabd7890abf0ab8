"""Others' hands: whatever is deleted, altered or added by hand is reported by verify and healed by a resync."""

import pytest

from podwire.dataplane.nftables import libnftables
from podwire.dataplane.nftables.layout import layout
from podwire.model.addresses import IPV6, parse_address, parse_prefix
from podwire.model.objects import Node, ServiceKey
from tests.kernel.rig import NODE, Rig, ask, by_hand, dump, respond, service, sh

OBJECTS = service("web", 10, ("10.1.1.2", "10.1.1.3", "fd01::2", "fd01::3")) | service("empty", 12, ())
LINK = "pw3a1773b046e7"
"""Of pod c: names are derived from the sandbox's."""


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
        pytest.param("nft delete chain ip6 podwire entry", ["rules of IPv6"], id="chain deleted"),
        pytest.param("nft insert rule ip podwire pre counter accept", ["rules of IPv4"], id="rule added"),
        pytest.param("nft delete chain ip podwire layout", ["rules of IPv4"], id="seal deleted"),
        pytest.param("ip route del 10.1.1.2/32", ["route 10.1.1.2/32"], id="route deleted"),
        pytest.param("ip -6 route del fd00:96::/112", ["route fd00:96::/112"], id="service route deleted"),
        pytest.param(
            "ip route add 10.9.9.9/32 dev lo proto 177", ["route 10.9.9.9/32"], id="route of our protocol added"
        ),
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
    by_hand(hand.format(**names))
    assert await at_work.drift() != []
    for _ in range(3):  # a resync may end in another: what lay on a renewed link or table is read again
        await at_work.resync()
    assert await at_work.drift() == []
    assert {ask(at_work.pods["c"], "10.96.0.10")[0] for _ in range(30)} == {"a", "b"}


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


async def test_a_sandbox_that_is_gone_is_forgotten(at_work: Rig) -> None:
    sh("ip", "netns", "del", at_work.pods["c"].name)
    await at_work.resync()
    await at_work.resync()
    assert at_work.rows() == 2
    assert await at_work.drift() == []
