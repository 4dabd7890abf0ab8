"""UDP flows whose Service's traffic policy changes under them: each client is led by the list of its own kind."""

import socket
from contextlib import suppress
from typing import cast

import pytest
from msgspec.structs import replace

from podwire.model.addresses import parse_address
from podwire.model.objects import Protocol, Service, ServiceKey
from tests.kernel.outside import FAR, NODES, connect, members
from tests.kernel.rig import Rig, Space, in_space, service

WEB = ServiceKey("default", "web")
BALANCERS = ("203.0.113.80", "2001:db8::80")
HERE = ("10.1.1.2", "fd01::2")
PATIENCE, TRIES = 0.5, 10
"""Seconds for an answer, and how often it is asked for."""


def web(*backends: str, local: bool) -> dict[object, object]:
    made = dict(service("web", 10, (), Protocol.UDP))
    it = cast(Service, made[WEB])
    balancers = tuple(map(parse_address, BALANCERS))
    made[WEB] = replace(it, balancer_ips=balancers, external_local=local)
    return made | members("web", *backends, protocol=Protocol.UDP)


class Clients:
    """Each has one socket, to connection tracking one flow."""

    def __init__(self, to: str, *spaces: Space | None) -> None:
        family = socket.AF_INET6 if ":" in to else socket.AF_INET
        self._sockets = [in_space(space, family, socket.SOCK_DGRAM) for space in spaces]
        for one in self._sockets:
            one.settimeout(PATIENCE)
            one.connect((to, 80))

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            one.close()

    def who(self) -> list[str]:
        return [_who(one) for one in self._sockets]


def _who(one: socket.socket) -> str:
    """A new link may lose the first datagram, or hold it back: it is sent again until somebody answers, and what came
    too late is no answer."""
    one.settimeout(0)
    with suppress(BlockingIOError):
        while one.recv(100):
            pass
    one.settimeout(PATIENCE)
    for _ in range(TRIES):
        one.send(b"?")
        try:
            return one.recv(100).decode().split()[0]
        except TimeoutError:
            continue
    return "nobody"


@pytest.mark.parametrize("to", BALANCERS, ids=["IPv4", "IPv6"])
async def test_a_flow_from_outside_comes_home_when_the_policy_becomes_local(rig: Rig, to: str) -> None:
    outside = connect(rig)
    await rig.start_with_pods("a", "c", objects=NODES | web(*FAR.values(), local=False))
    with Clients(to, outside.client, rig.pods["c"], None) as clients:
        assert clients.who() == ["far"] * 3
        await rig.change(*web(*FAR.values(), *HERE, local=False).items())
        await rig.running.flows.until_quiet()
        assert clients.who() == ["far"] * 3
        await rig.change(*web(*FAR.values(), *HERE, local=True).items())
        await rig.running.flows.until_quiet()
        assert clients.who() == ["a", "far", "far"]  # the list for the cluster still has it


@pytest.mark.parametrize("to", BALANCERS, ids=["IPv4", "IPv6"])
async def test_a_flow_from_outside_ends_where_the_policy_leaves_nobody(rig: Rig, to: str) -> None:
    outside = connect(rig)
    await rig.start_with_pods("a", "c", objects=NODES | web(*FAR.values(), local=False))
    with Clients(to, outside.client, rig.pods["c"]) as clients:
        assert clients.who() == ["far"] * 2
        await rig.change(*web(*FAR.values(), local=True).items())
        await rig.running.flows.until_quiet()
        assert clients.who() == ["nobody", "far"]
        await rig.change(*web(*FAR.values(), local=False).items())
        await rig.running.flows.until_quiet()
        assert clients.who() == ["far"] * 2
