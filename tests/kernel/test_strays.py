"""What connection tracking can't place resets no connection, and goes no way twice.

Invariants: each segment of a connection is taken from the wire and sent again far out of its window, with the
acknowledgement that makes a reset in answer to it count. The node's other interface leads to a machine with a backend,
and a client.
"""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NamedTuple

import pytest
import pytest_asyncio

from podwire.lab import sctp
from podwire.model.addresses import parse_address
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Node,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from tests.kernel.hands import lone_segment, overhearing, raw, send_as, send_out_of_window
from tests.kernel.rig import NODE, NODE_OBJECT, Rig, Space, ask, by_hand, in_space, sh

CLUSTER_IPS, EXTERNAL_IPS = ("10.96.0.10", "fd00:96::a"), ("203.0.113.5", "fd00:cc::5")
NODE_IPS, FAR = ("192.0.2.1", "fd00:2::1"), ("192.0.2.9", "fd00:2::9")
A = ("10.1.1.2", "fd01::2")
PORT, NODE_PORT = 9090, 30080
PATIENCE = 10.0
"""Seconds for an answer: a limit against hanging, never a measure."""
KEY = ServiceKey("default", "web")


class Way(NamedTuple):
    """Who asks what, and where the backend is. `None` is the node itself."""

    client: str | None
    to: tuple[str, str]
    port: int
    backend: str


WAYS = {
    "pod to pod": Way("c", CLUSTER_IPS, 80, "a"),
    "node to pod": Way(None, CLUSTER_IPS, 80, "a"),
    "pod to another machine": Way("c", CLUSTER_IPS, 80, "far"),
    "node to another machine": Way(None, CLUSTER_IPS, 80, "far"),
    "from outside to an external IP": Way("far", EXTERNAL_IPS, 80, "a"),
    "from outside to a node port": Way("far", NODE_IPS, NODE_PORT, "a"),
}


@pytest_asyncio.fixture
async def at_work(rig: Rig) -> AsyncIterator[Rig]:
    """Pods `a` and `c`, and `far`, a machine beside the node that sends what is the cluster's to the node."""
    far = rig.space("far")
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "beside", "type", "veth", "peer", "name", "eth0", "netns", far.name)
    for command in (
        "ip link set beside up",
        "ip -n FAR link set lo up",
        "ip -n FAR link set eth0 up",
        *(f"ip address add {it} dev beside" for it in ("192.0.2.1/24", "fd00:2::1/64 nodad")),
        *(f"ip -n FAR address add {it} dev eth0" for it in ("192.0.2.9/24", "fd00:2::9/64 nodad")),
        *(f"ip -n FAR route add default via {it}" for it in NODE_IPS),
    ):
        sh(*command.replace("FAR", far.name).split())
    node = Node(NODE_OBJECT.pod_cidrs, tuple(map(parse_address, NODE_IPS)))
    assert (await rig.start({NODE: node})).error is None
    for name in ("a", "c"):
        assert (await rig.add(name)).error is None
    yield rig


def _space(rig: Rig, name: str | None) -> Space | None:
    return rig.space(name) if name is not None else None


@pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(
    ("way", "sender"),
    [
        pytest.param(way, sender, id=f"{name}, the {sender}'s")
        for name, way in WAYS.items()
        for sender in ("backend", "client")
        if sender == "backend" or way.client is not None  # the node's own leave translated, or not at all
    ],
)
async def test_a_connection_survives_a_segment_out_of_its_window(
    at_work: Rig, way: Way, sender: str, six: bool
) -> None:
    backend = parse_address({"a": A, "far": FAR}[way.backend][six])
    service = Service(
        (ServicePort("p", Protocol.TCP, 80, NODE_PORT),),
        tuple(map(parse_address, CLUSTER_IPS)),
        tuple(map(parse_address, EXTERNAL_IPS)),
    )
    part = BackendSlice(KEY, (BackendPort("p", Protocol.TCP, PORT),), (Member(backend),))
    assert (await at_work.change((KEY, service), (SliceKey("default", "web-1"), part))).error is None
    family = socket.AF_INET6 if six else socket.AF_INET
    who = way.client if sender == "client" else way.backend
    with (
        in_space(_space(at_work, way.backend), family, socket.SOCK_STREAM) as there,
        in_space(_space(at_work, way.client), family, socket.SOCK_STREAM) as client,
        overhearing(_space(at_work, who), "eth0") as wire,
    ):
        for it in (there, client):
            it.settimeout(PATIENCE)
        there.bind(("::" if six else "0.0.0.0", PORT))
        there.listen()
        client.connect((way.to[six], way.port))
        other, _ = there.accept()
        with other:
            other.settimeout(PATIENCE)
            say(client, other)
            send_out_of_window(wire, PORT if sender == "backend" else client.getsockname()[1])
            for _ in range(2):
                say(client, other)
                say(other, client)


def say(one: socket.socket, other: socket.socket) -> None:
    one.sendall(b"still there?")
    assert other.recv(100) == b"still there?"


def no_connections(source: str, to: str) -> dict[str, tuple[int, bytes]]:
    """Kinds of packets that belong to no connection: protocol, and all after the IP header."""
    data = sctp.encode(sctp.Packet(40000, 80, 7, sctp.Chunk.DATA, bytes(12) + b"lost"))
    segments = {f"TCP with flags {flags:#04x}": lone_segment(source, to, flags) for flags in (0x04, 0x06, 0x11, 0x00)}
    return {"SCTP data": (sctp.PROTOCOL, data)} | {name: (6, segment) for name, segment in segments.items()}


SENDERS = {"from a pod": "c", "from outside": "far", "from the node": None}
PLACES = {"a cluster IP": CLUSTER_IPS, "no Service's": ("10.96.7.7", "fd00:96::77"), "an external IP": EXTERNAL_IPS}


@pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sender", SENDERS)
async def test_what_belongs_to_no_connection_does_not_circle(at_work: Rig, sender: str, place: str, six: bool) -> None:
    """The network leads an external IP to this node, and this node whatever it doesn't know into the network."""
    service = Service(
        (ServicePort("p", Protocol.TCP, 80),),
        tuple(map(parse_address, CLUSTER_IPS)),
        tuple(map(parse_address, EXTERNAL_IPS)),
    )
    assert (await at_work.change((KEY, service))).error is None
    far = at_work.space("far")
    for way, gateway in (("-4", FAR[0]), ("-6", FAR[1])):
        sh("ip", way, "route", "add", "default", "via", gateway)
    by_hand(f"ip netns exec {far.name} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
    to, source = PLACES[place][six], {"c": ("10.1.1.3", "fd01::3"), "far": FAR, None: NODE_IPS}[SENDERS[sender]][six]
    ip, family = ("ip6", socket.AF_INET6) if six else ("ip", socket.AF_INET)
    by_hand(f"nft 'add table {ip} passes; add chain {ip} passes seen {{ type filter hook prerouting priority -400; }}'")
    by_hand(f"nft 'add rule {ip} passes seen {ip} daddr {to} counter'")
    for protocol, segment in no_connections(source, to).values():
        # What the node itself sends is dropped as it leaves.
        with raw(_space(at_work, SENDERS[sender]), family, protocol) as out, suppress(PermissionError):
            out.sendto(segment, (to, 0))
    sent = len(no_connections(source, to))
    at_most = {"c": 2 * sent, "far": sent, None: sent}[SENDERS[sender]]  # a pod's may be led back once
    assert passes(ip) <= at_most


def passes(ip: str) -> int:
    """How many came by, once none comes any more: a packet that circles does so within the send."""
    rules = json.loads(sh("nft", "-j", "list", "chain", ip, "passes", "seen"))["nftables"]
    return next(
        int(part["counter"]["packets"])
        for each in rules
        for part in each.get("rule", {}).get("expr", ())
        if "counter" in part
    )


@pytest.mark.parametrize("to", ["the node", "a pod"])
@pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])
async def test_a_pod_says_nothing_in_anothers_place_to_a_socket_that_is_connected(
    at_work: Rig, to: str, six: bool
) -> None:
    """A connected socket knows the way back, and the kernel asks no more about who comes (udp_early_demux)."""
    family = socket.AF_INET6 if six else socket.AF_INET
    victim = None if to == "the node" else at_work.space("a")
    assert ask(victim, FAR[six], 1) == "ConnectionRefusedError"
    with (
        in_space(at_work.space("far"), family, socket.SOCK_DGRAM) as far,
        in_space(victim, family, socket.SOCK_DGRAM) as client,
    ):
        far.bind((FAR[six], 40000))
        client.connect((FAR[six], 40000))
        for it in (far, client):
            it.settimeout(PATIENCE)
        for number in range(3):
            client.send(b"what?")
            _, asker = far.recvfrom(100)
            far.sendto(b"true %d" % number, asker)
            assert client.recv(100) == b"true %d" % number
            mine, port = client.getsockname()[:2]
            send_as(at_work.pods["c"], FAR[six], mine, port, b"forged")
