"""The node's own address as the source of its routes: it comes, goes and comes back, and pods are always reached."""

from collections.abc import AsyncIterator
from pathlib import Path
from select import select
from typing import NamedTuple

import pytest

from podwire.agent import Agent, running
from podwire.config import Config
from podwire.controller.events import AddPod
from podwire.dataplane.linux.addresses import NodeAddresses, State
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.objects import AttachmentKey, PodKey, Protocol
from tests.kernel.rig import SERVICE_CIDRS, MakeSpace, Space, ask, by_hand, identity, respond, sh

HOME = {"192.0.2.1": "192.0.2.1/24", "fd00:2::1": "fd00:2::1/64 nodad"}
OWN = {"192.0.2.1": "10.1.1.1", "fd00:2::1": "fd01::1"}
PODS = {"192.0.2.1": "10.1.1.2", "fd00:2::1": "fd01::2"}
SERVER = 9053
PATIENCE = 5.0
MANIFEST = """
apiVersion: v1
kind: Node
metadata: {name: one}
spec: {podCIDRs: [10.1.1.0/24, "fd01::/64"]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "fd00:2::1"}]}
---
apiVersion: v1
kind: Node
metadata: {name: two}
spec: {podCIDRs: [10.1.2.0/24, "fd02::/64"]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: InternalIP, address: "fd00:2::2"}]}
"""


class Place(NamedTuple):
    agent: Agent
    pod: Space

    async def heard(self, count: int) -> None:
        """Until so many changes of the node's addresses were acted on."""
        history = self.agent.controller.history
        while sum(record.event.startswith("NodeAddressesChanged") for record in history) < count:
            await self.agent.controller.next_record()


@pytest.fixture
async def place(node: Space, make_space: MakeSpace, tmp_path: Path) -> AsyncIterator[Place]:
    """Another program listens on the node for datagrams at any address; a pod does the same."""
    by_hand("ip link set lo up; ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up")
    for address in HOME.values():
        by_hand(f"ip address add {address} dev eth0")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "nodes.yaml").write_text(MANIFEST)
    config = Config("one", tmp_path / "state", tmp_path / "manifests", service_cidrs=SERVICE_CIDRS, mtu=1500)
    async with running(config) as agent:
        pod = make_space("a")
        key = AttachmentKey("sandbox-a", "eth0")
        added = AddPod(key, PodKey("default", "a"), pod.path, *identity(pod.path))
        assert (await agent.controller.submit(added)).error is None
        respond(pod, "a")
        respond(node, "node", SERVER)
        for home, own in PODS.items():  # TCP asks again: a new link's carrier comes in the kernel's own time
            assert ask(pod, home, SERVER) == f"node {own}"
        yield Place(agent, pod)


def sources(*where: str) -> set[str]:
    """Of our routes."""
    lines = [line for way in ("-4", "-6") for line in sh("ip", way, "route", "show", "proto", "177").splitlines()]
    found = {line.split()[0]: line.partition(" src ")[2].split()[:1] for line in lines}
    return {word for prefix in where for word in found[prefix] or ["none"]}


@pytest.mark.parametrize("home", HOME)
async def test_a_server_of_the_node_answers_its_own_pods(place: Place, home: str) -> None:
    assert ask(place.pod, home, SERVER, Protocol.UDP) == f"node {PODS[home]}"
    assert ask(None, PODS[home], 8080) == f"a {home}"
    assert sources("10.1.1.2", "10.1.2.0/24", "10.96.0.0/16") == {"192.0.2.1"}
    assert sources("fd01::2", "fd02::/64", "fd00:96::/112") == {"fd00:2::1"}
    assert place.agent.addresses.now.addresses == set(map(parse_address, HOME))  # those of its blocks are ours
    assert await place.agent.controller.verify() == {}


@pytest.mark.parametrize("home", HOME)
async def test_it_goes_and_comes_back(place: Place, home: str) -> None:
    """IPv4 routes go with their source: they are made anew without one, and later with it again."""
    by_hand(f"ip address del {HOME[home].split()[0]} dev eth0")
    await place.heard(1)
    assert ask(None, PODS[home], 8080) == f"a {OWN[home]}"
    by_hand(f"ip address add {HOME[home]} dev eth0")
    await place.heard(2)
    assert ask(place.pod, home, SERVER, Protocol.UDP) == f"node {PODS[home]}"
    assert sources(PODS[home]) == {home}


@pytest.mark.parametrize("home", HOME)
async def test_it_is_back_before_anybody_looks(place: Place, home: str) -> None:
    address = HOME[home]
    by_hand(f"ip address del {address.split()[0]} dev eth0; ip address add {address} dev eth0")
    await place.heard(2)
    assert ask(place.pod, home, SERVER, Protocol.UDP) == f"node {PODS[home]}"
    assert sources(PODS[home]) == {home}


@pytest.mark.parametrize("new_first", [True, False], ids=["the new one first", "the old one first"])
async def test_its_mask_changes(place: Place, new_first: bool) -> None:
    changes = ["address add 192.0.2.1/16 dev eth0", "address del 192.0.2.1/24 dev eth0"]
    for change in changes if new_first else reversed(changes):
        by_hand(f"ip {change}")
    last = frozenset(map(parse_address, HOME)), frozenset(map(parse_prefix, ("192.0.0.0/16", "fd00:2::/64")))
    controller = place.agent.controller
    while (controller.snapshot.local.addresses, controller.snapshot.local.networks) != last:
        await controller.next_record()
    assert ask(place.pod, "192.0.2.1", SERVER, Protocol.UDP) == f"node {PODS['192.0.2.1']}"
    assert sources("10.1.1.2") == {"192.0.2.1"}
    assert await place.agent.controller.verify() == {}


def test_what_counts_as_an_address_of_the_node(node: Space) -> None:
    by_hand("ip link set lo up; ip link add eth0 type veth peer name eth1; ip link set eth0 up")
    held = NodeAddresses()
    try:
        assert held.now == State(frozenset(), frozenset())
        for line in (
            "192.0.2.1/24 dev eth0",
            "192.0.2.1/32 dev eth1",  # a second time
            "192.0.2.9/32 dev lo scope link",
            "fd00:2::1/64 dev eth0",  # looked for as a duplicate, at first
        ):
            by_hand(f"ip address add {line}")
        by_hand("ip address del 192.0.2.1/24 dev eth0")
        one = parse_address("192.0.2.1")
        narrow = parse_prefix("192.0.2.1/32")
        assert held.states() == [State(frozenset((one,)), frozenset((narrow,)), frozenset(((one, 1500),)))]
        by_hand("ip address del 192.0.2.1/32 dev eth1")
        assert held.states()[-1] == State(frozenset(), frozenset())
        by_hand("ip address add 192.0.2.1/32 dev eth1")
        by_hand("ip link set eth1 mtu 1400")
        away, back = held.anew()
        assert away == State(frozenset(), frozenset((narrow,)))
        assert back == State(frozenset((one,)), frozenset((narrow,)), frozenset(((one, 1400),)))
    finally:
        held.close()


CHANGES = {
    "another mask, the new one first": ("add 192.0.2.1/16 dev eth0", "del 192.0.2.1/24 dev eth0"),
    "another mask, the old one first": ("del 192.0.2.1/24 dev eth0", "add 192.0.2.1/16 dev eth0"),
    "another MTU": ("!link set eth0 mtu 1400",),
    "another MTU, and away": ("!link set eth0 mtu 1400", "del 192.0.2.1/24 dev eth0"),
    "another interface, which goes": ("add 192.0.2.1/24 dev eth1", "!link set eth1 mtu 1400", "!link del eth0"),
    "two masks": ("add 192.0.2.1/16 dev eth0",),
    "two masks, and one": ("add 192.0.2.1/16 dev eth0", "del 192.0.2.1/16 dev eth0"),
    "on another interface too": ("add 192.0.2.1/24 dev eth1",),
    "to another interface, there first": ("add 192.0.2.1/24 dev eth1", "del 192.0.2.1/24 dev eth0"),
    "to another interface, here first": ("del 192.0.2.1/24 dev eth0", "add 192.0.2.1/24 dev eth1"),
    "to another interface and mask": ("add 192.0.2.1/16 dev eth1", "del 192.0.2.1/24 dev eth0"),
    "two tunnels' ends": ("add 192.0.2.7 peer 198.51.100.1 dev eth0", "add 192.0.2.7 peer 198.51.100.2 dev eth0"),
    "one of two tunnels' ends": (
        "add 192.0.2.7 peer 198.51.100.1 dev eth0",
        "add 192.0.2.7 peer 198.51.100.2 dev eth0",
        "del 192.0.2.7 peer 198.51.100.1 dev eth0",
    ),
    "also where it doesn't count": ("add 192.0.2.1/32 scope link dev eth0",),
    "no more than where it doesn't count": (
        "add 192.0.2.1/32 scope link dev eth0",
        "del 192.0.2.1/24 dev eth0",
    ),
    "IPv6: another mask": ("del fd00:2::1/64 dev eth0", "add fd00:2::1/48 dev eth0 nodad"),
    "IPv6: on another interface too": ("add fd00:2::1/64 dev eth1 nodad",),
    "IPv6: another other end": (
        "add fd00:2::7 peer fd00:3::1 dev eth0 nodad",
        "change fd00:2::7 peer fd00:4::1 dev eth0 nodad",
    ),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["heard at once", "heard one by one"])
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_what_is_heard_is_what_is_read(node: Space, changes: tuple[str, ...], at_once: bool) -> None:
    by_hand("ip link set lo up; ip link add eth0 type veth peer name eth1; ip link set eth0 up; ip link set eth1 up")
    for address in HOME.values():
        by_hand(f"ip address add {address} dev eth0")
    held = NodeAddresses()
    try:
        for change in changes:
            by_hand(f"ip {change[1:]}" if change[0] == "!" else f"ip address {change}")
            if not at_once:
                assert_as_read(held)
        assert_as_read(held)
    finally:
        held.close()


def assert_as_read(held: NodeAddresses) -> None:
    """IPv6 addresses come in the kernel's own time."""
    last = held.now
    while True:
        last = [last, *held.states()][-1]
        fresh = NodeAddresses()
        fresh.close()
        assert last == held.now
        if last == fresh.now:
            return
        assert select([held], [], [], PATIENCE)[0]
