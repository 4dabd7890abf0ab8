"""What a pod with rights of an administrator does in its own namespace costs others nothing, and is its own."""

import asyncio
import threading
from struct import pack

import pytest

from podwire.dataplane import netlink
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.linux.driver import LOOK
from podwire.dataplane.messages import CREATE, Message, Notice, attr
from podwire.ipam.blocks import FIRST_INDEX
from podwire.model.network import LOOPBACK
from tests.kernel.rig import Rig, Space, entered, sh

PATIENCE = 60.0
"""A limit against hanging, never a measure."""


def flood(space: Space, count: int) -> None:
    """So many addresses come and go on the loopback of a namespace."""
    with entered(space):
        route = netlink.Socket(netlink.ROUTE)
    body = pack("=BBBBI", 2, 32, 0, 0, LOOPBACK) + attr(2, b"\x7f\x09\x09\x09")
    pair = [Message(rt.NEWADDR, CREATE, body), Message(rt.DELADDR, 0, body)]
    try:
        for _ in range(count // 100):
            assert route.send(pair * 50) == {}
    finally:
        route.close()


def heard(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Grows: of each look, the datagrams that it took and the messages that it parsed."""
    listener = rig.running.linux._listener
    datagrams, parsed = listener.datagrams, netlink.parsed
    looks: list[tuple[int, int]] = []

    def counted(most: int | None = None) -> list[tuple[bytes, int | None]] | None:
        found = datagrams(most)
        looks.append((len(found or ()), 0))
        return found

    def counting(data: bytes, nsid: int | None) -> list[Notice]:
        messages = list(parsed(data, nsid))
        if looks:
            looks[-1] = looks[-1][0], looks[-1][1] + len(messages)
        return messages

    monkeypatch.setattr(listener, "datagrams", counted)
    monkeypatch.setattr(netlink, "parsed", counting)
    return looks


async def test_a_flood_in_a_pod_is_heard_in_bounded_parts_and_holds_up_no_add(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.start_with_pods("a", "b")
    flood(rig.pods["a"], 2000)
    looks = heard(rig, monkeypatch)
    flooding = threading.Thread(target=flood, args=(rig.pods["a"], 20_000))
    flooding.start()
    linux, held = rig.running.linux, rig.running.controller.snapshot.programmed["linux"]
    assert linux.changed(held) == frozenset()
    assert linux.behind
    rig.watch()
    async with asyncio.timeout(PATIENCE):
        assert (await rig.add("c")).error is None
        sh("ip", "route", "del", "10.1.1.3/32")
        await asyncio.to_thread(flooding.join)
        while "10.1.1.3 " not in sh("ip", "route"):
            await rig.running.controller.next_record()
    assert max(took for took, _ in looks) == LOOK  # of datagrams: some hold several messages
    assert await rig.drift() == []


async def test_of_a_namespace_without_a_pod_of_ours_nothing_is_parsed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.start_with_pods("a", "gone")
    other, gone = rig.make_space("other"), rig.pods["gone"]
    sh("ip", "link", "add", "foreign", "type", "veth", "peer", "name", "eth0", "netns", other.name)
    await rig.delete("gone")
    sh("ip", "link", "add", "foreign2", "type", "veth", "peer", "name", "eth9", "netns", gone.name)
    linux, held = rig.running.linux, rig.running.controller.snapshot.programmed["linux"]
    linux.collect()
    linux.changed(held)
    while linux.behind:
        linux.changed(held)
    looks = heard(rig, monkeypatch)
    for space in (other, gone):
        flood(space, 100)
        assert linux.changed(held) == frozenset()
    assert all(took and not parsed for took, parsed in looks), looks
    flood(rig.pods["a"], 100)
    linux.changed(held)
    assert looks[-1][1]


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(FIRST_INDEX - 1, id="below ours"),
        pytest.param(FIRST_INDEX, id="the first of ours"),
        pytest.param(FIRST_INDEX + 100, id="among ours"),
        pytest.param(0x7FFF_FFFF, id="the highest"),
    ],
)
async def test_a_pods_own_interface_is_its_own_whatever_its_index(rig: Rig, index: int) -> None:
    await rig.start_with_pods("a", "b")
    there = ("ip", "-n", rig.pods["a"].name)
    if index == FIRST_INDEX:  # pod b's end on the node has it, or pod a's: the pod's own may have the other's
        index = rig.running.controller.snapshot.attachments[rig.key("b")].index
    sh(*there, "link", "add", "own", "index", str(index), "type", "veth", "peer", "name", "own2")
    sh(*there, "link", "set", "own", "up")
    assert await rig.drift() == []
    writes = rig.writes()
    assert (await rig.resync()).error is None
    assert rig.writes() == writes
    sh(*there, "link", "set", "eth0", "down")
    assert len(await rig.drift()) >= 1  # ours is still looked after
    await rig.resync()
    assert await rig.drift() == []
    assert "own@" in sh(*there, "link", "show", "up")
