"""A node that announces by GoBGP: its gRPC API, with messages packed here, a stream of many paths in each.

Invariants: the numbers of fields are those of GoBGP 3's `gobgp.proto` and `attribute.proto`.
"""

import asyncio
from collections.abc import Iterator

import grpc

from tests.kernel.routers import Gobgp

AT_ONCE = 500
"""Paths in one message."""


class GobgpNode(Gobgp):
    prefixes: list[str]

    async def announce(self) -> None:
        await asyncio.to_thread(self._say, False)

    async def withdraw(self) -> None:
        await asyncio.to_thread(self._say, True)

    def _say(self, is_withdraw: bool) -> None:
        with grpc.insecure_channel(f"unix://{self.directory}/api.sock") as channel:
            call = channel.stream_unary("/apipb.GobgpApi/AddPathStream", lambda it: it, lambda it: it)
            call(self._messages(is_withdraw))

    def _messages(self, is_withdraw: bool) -> Iterator[bytes]:
        for first in range(0, len(self.prefixes), AT_ONCE):
            yield b"".join(_bytes(3, _path(it, is_withdraw)) for it in self.prefixes[first : first + AT_ONCE])


def _path(prefix: str, is_withdraw: bool) -> bytes:
    address, _, length = prefix.partition("/")
    nlri = _any("IPAddressPrefix", _number(1, int(length)) + _bytes(2, address.encode()))
    origin = _any("OriginAttribute", b"")
    hop = _any("NextHopAttribute", _bytes(1, b"0.0.0.0"))
    communities = _any("CommunitiesAttribute", _bytes(1, _varint(64512 << 16 | 100)))
    family = _number(1, 1) + _number(2, 1)
    attributes = b"".join(_bytes(2, it) for it in (origin, hop, communities))
    return _bytes(1, nlri) + attributes + _number(5, is_withdraw) + _bytes(9, family)


def _any(name: str, value: bytes) -> bytes:
    return _bytes(1, f"type.googleapis.com/apipb.{name}".encode()) + _bytes(2, value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
