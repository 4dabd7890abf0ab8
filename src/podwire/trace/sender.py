"""Sends the packet: a connect or a datagram, as any program of the pod or node would, and waits for what comes of it.

Invariants: the socket is made in the sender's namespace and used from the agent's; nothing else is done in there.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from podwire.dataplane.netlink import inside
from podwire.model.addresses import Address, show_address
from podwire.model.network import Frontend
from podwire.model.objects import Attachment, Protocol
from podwire.trace.answer import Answer, Icmp, Outcome, failed, icmp

_RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
DNS_PORT = 53
_DATAGRAM = b"\n"
_QUESTION = bytes.fromhex("7077010000010000000000000000020001")
"""Who serves the root (RFC 1035): a name server that gets one byte keeps silent."""


class Sender:
    """A socket that has not sent anything yet. `source` None: the kernel knows no way there."""

    def __init__(self, held: socket.socket, source: Address | None, to: Frontend) -> None:
        self._held, self._to, self.source = held, to, source
        self.port = int(held.getsockname()[1])

    async def send(self, patience: float) -> Answer:
        begin = time.perf_counter()

        def passed() -> float:
            return (time.perf_counter() - begin) * 1000

        try:
            async with asyncio.timeout(patience):
                outcome = await self._exchange()
            return Answer(outcome, passed())
        except TimeoutError as error:
            if error.errno is None:
                return Answer(Outcome.SILENCE, patience * 1000)
            return failed(error.errno, self._told(), self._to.protocol, passed())
        except OSError as error:
            return failed(error.errno or 0, self._told(), self._to.protocol, passed())

    async def _exchange(self) -> Outcome:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._held, (show_address(self._to.address), self._to.port))
        if self._to.protocol is Protocol.TCP:
            return Outcome.CONNECTED
        await loop.sock_sendall(self._held, _QUESTION if self._to.port == DNS_PORT else _DATAGRAM)
        await loop.sock_recv(self._held, 1)
        return Outcome.ANSWERED

    def _told(self) -> Icmp | None:
        with suppress(OSError):
            _, beside, _, _ = self._held.recvmsg(1, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            return next((found for _, _, data in beside if (found := icmp(data)) is not None), None)
        return None


@contextmanager
def sender(pod: Attachment | None, to: Frontend) -> Iterator[Sender]:
    """`pod` None: of the node itself. Raises OSError, LookupError where the pod's namespace is gone."""
    family = socket.AddressFamily(to.family.number)
    with ExitStack() as opened:
        with ExitStack() as there:
            if pod is not None:
                there.enter_context(inside(there.enter_context(_namespace(pod))))
            held = opened.enter_context(socket.socket(family, _KINDS[to.protocol]))
            asking = opened.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        held.setblocking(False)
        held.setsockopt(*_RECVERR[family], 1)
        held.bind(("", 0))
        yield Sender(held, _source(asking, to), to)


def _source(asking: socket.socket, to: Frontend) -> Address | None:
    """Which address the kernel chooses: connecting a datagram's socket sends nothing."""
    try:
        asking.connect((show_address(to.address), to.port))
    except OSError:
        return None
    return Address(socket.inet_pton(asking.family, asking.getsockname()[0].partition("%")[0]))


@contextmanager
def _namespace(pod: Attachment) -> Iterator[int]:
    """Raises LookupError where the path leads nowhere, or to another namespace."""
    try:
        descriptor = os.open(pod.netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise LookupError(f"{pod.pod}: its network namespace {pod.netns} is gone: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if pod.inode and (found.st_dev, found.st_ino) != (pod.device, pod.inode):
            raise LookupError(f"{pod.pod}: {pod.netns} leads to another network namespace by now")
        yield descriptor
    finally:
        os.close(descriptor)
