"""What answers in the pods: it says which pod was reached, and which client it saw.

Invariants: one event loop answers for all pods of a lab; only its sockets lie in the pods' namespaces. TCP waits for a
first chunk: an HTTP GET or HEAD gets a JSON reply and may go on (HTTP/1.1), anything else gets one JSON line and the
end of the stream. UDP answers each datagram with one, from the very address that was asked.
"""

import asyncio
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
from msgspec import Struct

from podwire.dataplane.netlink import inside
from podwire.model.objects import Protocol

_BACKLOG = 4096
_MOST_HEADERS = 65_536
_DATAGRAM = 65_535
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_PKTINFO = 8, 49, 50  # ip(7), ipv6(7); socket names the last two only


class Reply(Struct, frozen=True):
    """The answer's JSON. `pod`: namespace/name; `client`: the address that the pod saw; `port`: the pod's own."""

    pod: str
    node: str
    client: str
    port: int


class Where(Struct, frozen=True):
    """Whose sockets these are. `space`: path of the namespace."""

    pod: str
    node: str
    space: Path


class Listeners:
    """The open sockets of one pod."""

    def __init__(self) -> None:
        self.ports: frozenset[tuple[Protocol, int]] = frozenset()
        self._closing = ExitStack()

    async def open(self, where: Where, ports: frozenset[tuple[Protocol, int]]) -> None:
        """All of them, both families, or none. SCTP has no responder. Raises OSError."""
        with ExitStack() as opened:
            for protocol, number, family, listener in _sockets(where.space, ports):
                opened.enter_context(closing(listener))
                try:
                    listener.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", number))  # noqa: S104  inside a pod
                    if protocol is Protocol.TCP:
                        opened.enter_context(closing(await _serve_tcp(listener, where, number)))
                    else:
                        opened.enter_context(closing(_Datagrams(listener, where, number)))
                except OSError as error:
                    raise OSError(
                        error.errno, f"port {number}/{protocol.name}: {os.strerror(error.errno or 0)}"
                    ) from None
            self._closing, self.ports = opened.pop_all(), ports

    def close(self) -> None:
        """Connections that are open go on."""
        self._closing.close()
        self.ports = frozenset()


def _sockets(
    space: Path, ports: Iterable[tuple[Protocol, int]]
) -> Iterator[tuple[Protocol, int, socket.AddressFamily, socket.socket]]:
    for protocol, number in sorted(ports):
        if protocol is Protocol.SCTP:
            continue
        for family in (socket.AF_INET, socket.AF_INET6):
            kind = socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM
            with space.open("rb") as there, inside(there.fileno()):
                found = socket.socket(family, kind | socket.SOCK_NONBLOCK)
            if protocol is Protocol.TCP:  # for UDP it would let two pods of a host network share a port
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            yield protocol, number, family, found


# --- TCP ---------------------------------------------------------------------------------------


async def _serve_tcp(listener: socket.socket, where: Where, number: int) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: _Connection(where, number), sock=listener, backlog=_BACKLOG)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, where: Where, port: int) -> None:
        self._where, self._port = where, port
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while self._held and not self.transport.is_closing():
            if not self._held.startswith((b"GET ", b"HEAD ")):
                self._say(b"", self._body() + b"\n", last=True)
                return
            head, end, rest = self._held.partition(b"\r\n\r\n")
            if not end:
                if len(self._held) > _MOST_HEADERS:
                    self.transport.close()
                return
            self._held = rest
            self._answer_http(head)

    def _answer_http(self, head: bytes) -> None:
        body = self._body() + b"\n"
        lines = head.lower().split(b"\r\n")
        last = b"connection: close" in lines or lines[0].endswith(b"http/1.0")
        headers = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            + (b"Connection: close\r\n" if last else b"")
            + b"Content-Length: %d\r\n\r\n" % len(body)
        )
        self._say(headers, b"" if lines[0].startswith(b"head ") else body, last)

    def _say(self, head: bytes, body: bytes, last: bool) -> None:
        self.transport.write(head + body)
        if last:
            self.transport.close()

    def _body(self) -> bytes:
        client = self.transport.get_extra_info("peername")
        return _body(self._where, client[0] if client else "", self._port)


# --- UDP ---------------------------------------------------------------------------------------


class _Datagrams:
    """A host network has many addresses: the answer must leave by the one that was asked, or nobody knows it."""

    def __init__(self, listener: socket.socket, where: Where, port: int) -> None:
        self._socket, self._where, self._port = listener, where, port
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        else:
            listener.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._answer)

    def _answer(self) -> None:
        try:
            while True:
                _, ancillary, _, client = self._socket.recvmsg(_DATAGRAM, 128)
                body = _body(self._where, client[0], self._port) + b"\n"
                self._socket.sendmsg([body], _source(ancillary), 0, client)
        except OSError:
            # Nothing more to read, or this client can't be answered: it asks again, as UDP has it.
            return

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())


def _source(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """From what was received to what is to be sent: the local address stays, the interface is routing's to choose."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):  # in_pktinfo: index, local address, header's address
            return [(level, kind, bytes(4) + data[4:8] + bytes(4))]
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):  # in6_pktinfo: address, index
            return [(level, kind, data[:16] + bytes(4))]
    return []


def _body(where: Where, client: str, port: int) -> bytes:
    return msgspec.json.encode(Reply(where.pod, where.node, client, port))
