"""The node's own network is the one with its InternalIPs, whatever other interfaces it has: pods have its MTU."""

from collections.abc import Callable

import pytest

from podwire.controller.events import Refusal
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import Node, NodeKey
from podwire.model.snapshot import Transport
from tests.kernel.rig import NODE, NODE_OBJECT, Rig, by_hand, sh

HOME = "192.0.2.1/24"
OBJECTS: dict[ObjectKey, Object] = {
    NODE: Node(NODE_OBJECT.pod_cidrs, (parse_address("192.0.2.1"),)),
    NodeKey("two"): Node((parse_prefix("10.1.2.0/24"),), (parse_address("192.0.2.2"),)),
}


@pytest.fixture
def wires(rig: Rig) -> None:
    """Of two interfaces `out` has the default route, `home` is to have the node's address."""
    by_hand(
        "ip link set lo up; ip link add home mtu 1400 type veth peer name far mtu 9000;"
        "ip link add out mtu 9000 type veth peer name world mtu 9000"
    )
    for name in ("home", "far", "out", "world"):
        by_hand(f"ip link set {name} up")
    by_hand("ip addr add 203.0.113.1/24 dev out; ip route add default via 203.0.113.2")


def mtu_of(rig: Rig, pod: str) -> str:
    return sh("ip", "-n", rig.pods[pod].name, "-o", "link", "show", "eth0").split(" mtu ")[1].split()[0]


async def until(rig: Rig, holds: Callable[[], bool]) -> None:
    while not holds():
        await rig.running.controller.next_record()


async def test_pods_have_that_of_the_interface_with_the_node_s_address_and_follow_it(rig: Rig, wires: None) -> None:
    by_hand(f"ip addr add {HOME} dev home")
    assert (await rig.start(OBJECTS, mtu=None)).error is None
    rig.watch()
    assert (await rig.add("a")).error is None
    assert mtu_of(rig, "a") == "1400"
    by_hand("ip link set home mtu 4000")
    await until(rig, lambda: mtu_of(rig, "a") == "4000")
    by_hand("ip link set out mtu 1300")  # another's
    by_hand(f"ip addr del {HOME} dev home; ip addr add {HOME} dev out")  # the node moves
    await until(rig, lambda: mtu_of(rig, "a") == "1300")
    assert await rig.drift() == []


async def test_by_vxlan_too(rig: Rig, wires: None) -> None:
    by_hand(f"ip addr add {HOME} dev home")
    assert (await rig.start(OBJECTS, mtu=None, transport=Transport.VXLAN)).error is None
    rig.watch()
    assert (await rig.add("a")).error is None
    for mtu, inner in ((1400, 1350), (2000, 1950)):
        by_hand(f"ip link set home mtu {mtu}")
        await until(rig, lambda inner=inner: mtu_of(rig, "a") == str(inner))  # type: ignore[misc]
        assert f" mtu {inner} " in sh("ip", "-o", "link", "show", "podwire-vxlan")
        assert await rig.drift() == []


async def test_an_agent_that_comes_before_the_node_s_address_waits_for_it(rig: Rig, wires: None) -> None:
    """Never that of another interface, nor a guess: pods are refused for now, and the reason is told."""
    assert (await rig.start(OBJECTS, mtu=None)).error is None
    rig.watch()
    refused = await rig.add("a")
    assert refused.refusal is Refusal.NOT_READY
    assert "no interface has the node's address 192.0.2.1, and no mtu is set" in (refused.error or "")
    by_hand(f"ip addr add {HOME} dev home")
    await rig.history_has("NodeAddressesChanged 192.0.2.1, 203.0.113.1")
    assert (await rig.add("a")).error is None
    assert mtu_of(rig, "a") == "1400"
    assert await rig.drift() == []


async def test_a_restart_while_the_address_is_away_keeps_what_pods_had(rig: Rig, wires: None) -> None:
    by_hand(f"ip addr add {HOME} dev home")
    assert (await rig.start(OBJECTS, mtu=None)).error is None
    assert (await rig.add("a")).error is None
    await rig.stop()
    by_hand(f"ip addr del {HOME} dev home")
    assert (await rig.start(OBJECTS, mtu=None)).error is None
    rig.watch()
    assert (await rig.add("b")).error is None
    assert (mtu_of(rig, "a"), mtu_of(rig, "b")) == ("1400", "1400")
    by_hand(f"ip link set home mtu 1350; ip addr add {HOME} dev home")
    await until(rig, lambda: mtu_of(rig, "b") == "1350")
    assert mtu_of(rig, "a") == "1350"


async def test_pods_links_are_no_news_of_the_node_s_addresses(rig: Rig, wires: None) -> None:
    by_hand(f"ip addr add {HOME} dev home")
    assert (await rig.start(OBJECTS, mtu=None)).error is None
    rig.watch()
    for pod in "abc":
        assert (await rig.add(pod)).error is None
    by_hand("ip link set out alias something")
    assert rig.running.addresses.states() == []
    assert not [it for it in rig.running.controller.history if it.event.startswith("NodeAddressesChanged")]
