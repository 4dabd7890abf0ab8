"""A node's network namespace for a plane, and what its kernel tells of its tables."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podwire.dataplane import netlink
from podwire.dataplane.nftables import steady
from podwire.model.addresses import parse_address
from tests.kernel.rig import Space, entered, sh

_CHANGES_OF_NFTABLES = 7  # NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h)


def prepare(space: Space) -> None:
    """Up, with an address of its own and a link to put it on."""
    ip(space, "link set lo up", "link add eth0 type veth peer name wire", "link set wire up", "link set eth0 up")
    ip(space, "addr add 192.168.50.1/24 dev eth0")
    sysctl(space, "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")


def ip(space: Space, *commands: str) -> None:
    for command in commands:
        sh("ip", "-n", space.name, *command.split())


def sysctl(space: Space, *settings: str) -> None:
    with entered(space):
        for setting in settings:
            name, _, value = setting.partition("=")
            Path("/proc/sys", name.replace(".", "/")).write_text(value)


def path(space: Space) -> Path:
    return Path(space.path)


def generation(space: Space) -> int:
    """The kernel's own count of commits to nftables there."""
    with entered(space):
        there = netlink.Socket(netlink.NETFILTER)
    try:
        return steady.generation(there)
    finally:
        there.close()


class Commits:
    """When an address is first told of by a commit to nftables in a namespace."""

    def __init__(self, listener: netlink.Listener) -> None:
        self._listener = listener
        self._wanted: bytes = b""
        self._seen: asyncio.Future[float] | None = None
        self._stirred = asyncio.Event()

    def expect(self, address: str) -> "asyncio.Future[float]":
        """When (perf_counter) the kernel tells of it."""
        self._wanted = bytes(parse_address(address))
        self._seen = asyncio.get_running_loop().create_future()
        return self._seen

    async def next(self) -> None:
        """Waits until the kernel tells of anything more."""
        self._stirred.clear()
        await self._stirred.wait()

    def readable(self) -> None:
        now = time.perf_counter()
        self._stirred.set()
        told = self._listener.datagrams()
        assert told is not None, "the kernel told more than could be heard"
        if self._seen is not None and not self._seen.done() and any(self._wanted in data for data, _ in told):
            self._seen.set_result(now)


@contextmanager
def commits(space: Space) -> Iterator[Commits]:
    with entered(space):
        listener = netlink.Listener(netlink.NETFILTER, [_CHANGES_OF_NFTABLES])
    heard = Commits(listener)
    loop = asyncio.get_running_loop()
    loop.add_reader(listener.fileno(), heard.readable)
    try:
        yield heard
    finally:
        loop.remove_reader(listener.fileno())
        listener.close()
