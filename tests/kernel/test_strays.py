"""Segments that connection tracking can't place don't reset the connection that they belong to.

Invariants: each segment is taken from the wire and sent again far out of its window, with the acknowledgement that
makes a reset in answer to it count. The node's other interface leads to a machine with a backend, and a client.
"""

import socket
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

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
from tests.kernel.hands import overhearing, send_out_of_window
from tests.kernel.rig import NODE, NODE_OBJECT, Rig, Space, in_space, sh

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
