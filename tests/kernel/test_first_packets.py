"""Success means ready: from an ADD's answer on no packet from or to the new pod is lost, not even the first.

Invariants: each pod asks, or is asked, once, by its first packet. Nothing depends on how long anything takes: that TCP
had to send a segment again is told by its socket (TCP_INFO), and a lost datagram never has an answer.
"""

import socket
from collections.abc import Callable
from struct import unpack_from

import pytest

from podwire.dataplane import netlink
from podwire.dataplane.linux import carrier, links
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import DUMP
from podwire.model.addresses import show_address
from podwire.model.objects import Protocol
from tests.kernel.rig import TARGET_PORT, Rig, Space, in_space, respond, service, sh

WEB = ("10.1.1.2", "fd01::2")
OBJECTS = service("tcp", 10, WEB) | service("udp", 11, WEB, Protocol.UDP)
NODE_AT = ("10.1.1.1", "fd01::1")
PODS = 8
_TOTAL_RETRANS = 100
"""Where struct tcp_info (linux/tcp.h) has tcpi_total_retrans."""


def first(client: Space | None, to: str, port: int, protocol: Protocol) -> str:
    """Who answers, with a word for each segment that had to be sent again; or the name of the error."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with in_space(client, family, socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM) as asking:
        asking.settimeout(5)
        try:
            asking.connect((to, port))
            if protocol is Protocol.UDP:
                asking.send(b"?")
            answer = asking.recv(100).decode().split()[0]
        except OSError as error:
            return type(error).__name__
        if protocol is Protocol.TCP:
            told = asking.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            answer += " again" * unpack_from("=I", told, _TOTAL_RETRANS)[0]
        return answer


Ask = Callable[[Rig, str, int, Protocol], str]
"""What is answered to the first packet of a way of the new pod of this name; 0 for IPv4, 1 for IPv6."""


def _at(rig: Rig, pod: str, family: int) -> str:
    return show_address(rig.running.controller.snapshot.attachments[rig.key(pod)].addresses[family])


def _to_cluster_ip(rig: Rig, pod: str, family: int, protocol: Protocol) -> str:
    number = 10 if protocol is Protocol.TCP else 11
    return first(rig.space(pod), (f"10.96.0.{number}", f"fd00:96::{number:x}")[family], 80, protocol)


def _to_node(rig: Rig, pod: str, family: int, protocol: Protocol) -> str:
    return first(rig.space(pod), NODE_AT[family], TARGET_PORT, protocol)


def _to_pod(rig: Rig, pod: str, family: int, protocol: Protocol) -> str:
    return first(rig.space(pod), WEB[family], TARGET_PORT, protocol)


def _from_node(rig: Rig, pod: str, family: int, protocol: Protocol) -> str:
    return first(None, _at(rig, pod, family), TARGET_PORT, protocol)


def _from_pod(rig: Rig, pod: str, family: int, protocol: Protocol) -> str:
    return first(rig.space("web"), _at(rig, pod, family), TARGET_PORT, protocol)


WAYS: dict[str, tuple[Ask, str]] = {
    "pod to cluster IP": (_to_cluster_ip, "web"),
    "pod to node": (_to_node, "node"),
    "pod to pod": (_to_pod, "web"),
    "node to pod": (_from_node, "new"),
    "pod to new pod": (_from_pod, "new"),
}


async def lost(rig: Rig, node: Space, way: str, family: int, protocol: Protocol) -> list[str]:
    """What was answered to first packets, but for what should be."""
    await rig.start_with_pods("web", objects=OBJECTS)
    respond(node, "node", at=NODE_AT)
    ask, answers = WAYS[way]
    found = []
    for number in range(PODS):
        pod = f"new{number}"
        if answers == "new":
            respond(rig.space(pod), "new")
        assert (await rig.add(pod)).error is None
        found.append(ask(rig, pod, family, protocol))
    return [answer for answer in found if answer != answers]


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("way", WAYS)
async def test_success_means_ready(rig: Rig, node: Space, way: str, family: int, protocol: Protocol) -> None:
    assert await lost(rig, node, way, family, protocol) == []


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("way", ["pod to cluster IP", "node to pod"])
async def test_it_does_where_the_kernel_only_tells(
    rig: Rig, node: Space, way: str, family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.8 asking for a link does nothing for it, as a dump doesn't today."""
    dump = netlink.Socket.dump

    def older(self: netlink.Socket, kind: int, body: bytes, flags: int = DUMP) -> list[bytes]:
        if kind != rt.GETLINK or flags == DUMP:
            return dump(self, kind, body, flags)
        return [each for each in dump(self, kind, links.get_links()) if each[4:8] == body[4:8]]

    monkeypatch.setattr(netlink.Socket, "dump", older)
    assert await lost(rig, node, way, family, Protocol.UDP) == []


def test_only_where_there_is_a_carrier_is_waited(node: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for ever. What is dormant has its carrier, and is not yet to send (RFC 2863). The loopback's state is
    UNKNOWN for good, which is as good as UP."""
    monkeypatch.setattr(carrier, "PATIENCE", 0.01)
    indexes = {}
    for number, name in enumerate(("dormant", "alone", "working"), 10):
        peer = f"{name}2"
        sh("ip", "link", "add", name, "index", str(number), "type", "veth", "peer", peer)
        sh("ip", "link", "set", name, "mode", "dormant" if name == "dormant" else "default", "up")
        indexes[name] = number
        if name != "alone":
            sh("ip", "link", "set", peer, "up")
    sh("ip", "link", "set", "lo", "up")
    indexes["unknown"] = 1
    assert " state UNKNOWN " in sh("ip", "link", "show", "lo")
    asking = netlink.Socket(netlink.ROUTE)
    try:
        assert list(carrier.silent(asking, [*indexes.values(), 99])) == [indexes["dormant"]]
        assert list(carrier.silent(asking, [])) == []
    finally:
        asking.close()


async def test_what_makes_a_pod_ready_goes_with_it(rig: Rig) -> None:
    await rig.start_with_pods("web", objects=OBJECTS)
    space = rig.space("new")
    before = sh("ip", "-n", space.name, "-6", "route", "show", "table", "all")
    assert (await rig.add("new")).error is None
    local = sh("ip", "-n", space.name, "-6", "-o", "route", "show", "table", "local", "proto", str(rt.PROTOCOL))
    assert [line.split()[1] for line in local.splitlines()] == ["fd01::3"]
    assert (await rig.delete("new")).error is None
    rig.running.linux.collect()
    assert "fd01" not in sh("ip", "-n", space.name, "-6", "route", "show", "table", "all")
    assert before == ""
