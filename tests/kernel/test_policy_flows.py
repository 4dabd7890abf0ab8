"""UDP flows whose Service's traffic policy changes under them: each client is led by the list of its own kind."""

import socket
from typing import cast

import pytest
from msgspec.structs import replace

from podwire.model.addresses import parse_address
from podwire.model.objects import Protocol, Service, ServiceKey
from tests.kernel.outside import FAR, NODES, connect, members
from tests.kernel.rig import Rig, Space, ask, in_space, service

WEB = ServiceKey("default", "web")
BALANCERS = ("203.0.113.80", "2001:db8::80")
HERE = ("10.1.1.2", "fd01::2")
PATIENCE = 10.0
"""Seconds: a limit against hanging, never a measure."""


def web(*backends: str, local: bool) -> dict[object, object]:
    made = dict(service("web", 10, (), Protocol.UDP))
    it = cast(Service, made[WEB])
    balancers = tuple(map(parse_address, BALANCERS))
    made[WEB] = replace(it, balancer_ips=balancers, external_local=local)
    return made | members("web", *backends, protocol=Protocol.UDP)


class Client:
    """One socket, to connection tracking one flow."""

    def __init__(self, space: Space | None, to: str) -> None:
        while ask(space, to, protocol=Protocol.UDP, patience=0.5) == "TimeoutError":
            pass  # new links lose what comes before they carry; a datagram is sent once
        self._socket = in_space(space, socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE)
        self._socket.connect((to, 80))

    def who(self) -> str:
        self._socket.send(b"?")
        return self._socket.recv(100).decode().split()[0]

    def nobody(self) -> bool:
        """What it sends vanishes: the node, which knows the flow, makes no entry for it any more."""
        self._socket.settimeout(0.5)
        try:
            return self.who() == ""
        except (TimeoutError, ConnectionError):
            return True
        finally:
            self._socket.settimeout(PATIENCE)


@pytest.mark.parametrize("to", BALANCERS, ids=["IPv4", "IPv6"])
async def test_a_flow_from_outside_comes_home_when_the_policy_becomes_local(rig: Rig, to: str) -> None:
    outside = connect(rig)
    await rig.start_with_pods("a", "c", objects=NODES | web(*FAR.values(), local=False))
    clients = [Client(space, to) for space in (outside.client, rig.pods["c"], None)]
    assert [it.who() for it in clients] == ["far"] * 3
    await rig.change(*web(*FAR.values(), *HERE, local=False).items())
    assert [it.who() for it in clients] == ["far"] * 3
    await rig.change(*web(*FAR.values(), *HERE, local=True).items())
    await rig.running.flows.until_quiet()
    assert [it.who() for it in clients] == ["a", "far", "far"]  # the cluster's list still has it


@pytest.mark.parametrize("to", BALANCERS, ids=["IPv4", "IPv6"])
async def test_a_flow_from_outside_ends_where_the_policy_leaves_nobody(rig: Rig, to: str) -> None:
    outside = connect(rig)
    await rig.start_with_pods("a", "c", objects=NODES | web(*FAR.values(), local=False))
    clients = [Client(space, to) for space in (outside.client, rig.pods["c"])]
    assert [it.who() for it in clients] == ["far"] * 2
    await rig.change(*web(*FAR.values(), local=True).items())
    await rig.running.flows.until_quiet()
    assert clients[0].nobody()
    assert clients[1].who() == "far"
    await rig.change(*web(*FAR.values(), local=False).items())
    await rig.running.flows.until_quiet()
    assert [it.who() for it in clients] == ["far"] * 2
