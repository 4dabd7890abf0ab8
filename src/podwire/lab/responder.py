"""The program in a lab's pods: it says which pod was reached, and which client it saw.

Invariants: TCP waits for a first chunk: an HTTP GET or HEAD gets a JSON reply and may go on (HTTP/1.1), anything else
gets one JSON line and the end of the stream. UDP answers each datagram with one.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import Struct

from podwire.lab.listeners import Program

_MOST_HEADERS = 65_536


class Reply(Struct, frozen=True):
    """The answer's JSON. `pod`: namespace/name; `client`: the address that the pod saw; `port`: the pod's own."""

    pod: str
    node: str
    client: str
    port: int


def saying(pod: str, node: str, port: int) -> Callable[[str], bytes]:
    """What a program says of itself to a client."""
    return lambda client: msgspec.json.encode(Reply(pod, node, client, port)) + b"\n"


def program(say: Callable[[str], bytes]) -> Program:
    return Program(partial(_Connection, say), lambda _, client: say(client))


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, say: Callable[[str], bytes]) -> None:
        self._say = say
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while self._held and not self.transport.is_closing():
            if not self._held.startswith((b"GET ", b"HEAD ")):
                self._send(b"", self._body(), last=True)
                return
            head, end, rest = self._held.partition(b"\r\n\r\n")
            if not end:
                if len(self._held) > _MOST_HEADERS:
                    self.transport.close()
                return
            self._held = rest
            self._answer_http(head)

    def _answer_http(self, head: bytes) -> None:
        body = self._body()
        lines = head.lower().split(b"\r\n")
        last = b"connection: close" in lines or lines[0].endswith(b"http/1.0")
        headers = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            + (b"Connection: close\r\n" if last else b"")
            + b"Content-Length: %d\r\n\r\n" % len(body)
        )
        self._send(headers, b"" if lines[0].startswith(b"head ") else body, last)

    def _send(self, head: bytes, body: bytes, last: bool) -> None:
        self.transport.write(head + body)
        if last:
            self.transport.close()

    def _body(self) -> bytes:
        client = self.transport.get_extra_info("peername")
        return self._say(client[0] if client else "")
