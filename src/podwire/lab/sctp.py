"""A small SCTP (RFC 9260) over raw sockets: one association with one message each way, as responder and as client.

Invariants: enough for connection tracking and address translation on the way to see an association from INIT to
SHUTDOWN COMPLETE, and no more: no retransmission, one address at each end, one chunk in a packet. A packet whose
checksum is wrong is never taken: translation changes ports, and has to make the checksum anew.
"""

import itertools
import random
import socket
from collections.abc import Callable, Mapping
from enum import IntEnum
from struct import Struct
from time import monotonic
from typing import NamedTuple

PROTOCOL = 132


class Chunk(IntEnum):
    """Types of chunks (section 3.2)."""

    DATA = 0
    INIT = 1
    INIT_ACK = 2
    SACK = 3
    ABORT = 6
    SHUTDOWN = 7
    SHUTDOWN_ACK = 8
    COOKIE_ECHO = 10
    COOKIE_ACK = 11
    SHUTDOWN_COMPLETE = 14


_COOKIE_PARAMETER, _WHOLE_MESSAGE = 7, 3
_WINDOW, _STREAMS = 65_535, 1
_HEADER = Struct("!HHI4x")  # ports, verification tag; then the checksum, little-endian (appendix A)
_CHUNK, _PARAMETER = Struct("!BBH"), Struct("!HH")
_INIT, _DATA, _SACK, _COOKIE = Struct("!IIHHI"), Struct("!IHHI"), Struct("!IIHH"), Struct("!II")


class Malformed(Exception):
    """Not a packet to be taken."""


class Packet(NamedTuple):
    """`kind` and `body` are those of its only chunk."""

    source: int
    destination: int
    tag: int
    kind: int
    body: bytes


# --- packets -----------------------------------------------------------------------------------


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def crc32c(data: bytes | bytearray) -> int:
    """Castagnoli's, reflected (RFC 9260 appendix A)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def encode(packet: Packet) -> bytes:
    flags = _WHOLE_MESSAGE if packet.kind == Chunk.DATA else 0
    chunk = _CHUNK.pack(packet.kind, flags, _CHUNK.size + len(packet.body)) + packet.body
    whole = bytearray(_HEADER.pack(packet.source, packet.destination, packet.tag) + chunk + bytes(-len(chunk) % 4))
    whole[8:12] = crc32c(whole).to_bytes(4, "little")
    return bytes(whole)


def decode(data: bytes) -> Packet:
    """Raises Malformed for a wrong checksum or length."""
    if len(data) < _HEADER.size + _CHUNK.size:
        raise Malformed(f"{len(data)} bytes are no SCTP packet")
    if crc32c(data[:8] + bytes(4) + data[12:]).to_bytes(4, "little") != data[8:12]:
        raise Malformed("the checksum is wrong")
    kind, _, length = _CHUNK.unpack_from(data, _HEADER.size)
    if not _CHUNK.size <= length <= len(data) - _HEADER.size:
        raise Malformed(f"a chunk of {length} bytes in a packet of {len(data)}")
    source, destination, tag = _HEADER.unpack_from(data)
    return Packet(source, destination, tag, kind, data[_HEADER.size + _CHUNK.size : _HEADER.size + length])


def received(it: socket.socket) -> tuple[Packet, str]:
    """The next packet, and who sent it. Raises Malformed, or OSError."""
    data, sender = it.recvfrom(65_535)
    if it.family == socket.AF_INET:
        data = data[(data[0] & 15) * 4 :]  # raw sockets see the header of IPv4, not that of IPv6 (raw(7), ipv6(7))
    return decode(data), sender[0]


def open_socket(family: socket.AddressFamily) -> socket.socket:
    """In the namespace of this thread; for root only."""
    return socket.socket(family, socket.SOCK_RAW, PROTOCOL)


def _init(tag: int, sequence: int) -> bytes:
    return _INIT.pack(tag, _WINDOW, _STREAMS, _STREAMS, sequence)


def _new_tag() -> int:
    """Never 0, which is INIT's own (section 3.3.2)."""
    return random.getrandbits(32) | 1


# --- the responder -----------------------------------------------------------------------------


class Responder:
    """All of SCTP at one address: who listens at which port, and the associations that are open.

    Whatever asks for another port is aborted at once (section 8.4). Each message gets one as answer, by what listens at
    its port, or none.
    """

    def __init__(self, listening: Mapping[int, Callable[[bytes, str], bytes | None]]) -> None:
        """By port: a message and the client's address → the answer."""
        self._listening = listening
        self._open: dict[tuple[str, int, int], tuple[int, int]] = {}

    def answer(self, it: socket.socket) -> None:
        """Takes one packet from the socket. Raises BlockingIOError where there is none."""
        try:
            packet, client = received(it)
        except Malformed:
            return
        for kind, tag, body in self._answers(packet, client):
            it.sendto(encode(Packet(packet.destination, packet.source, tag, kind, body)), (client, 0))

    def _answers(self, packet: Packet, client: str) -> list[tuple[int, int, bytes]]:
        """Kind, verification tag and body of each."""
        if packet.kind == Chunk.INIT:
            return self._invite(packet)
        key = (client, packet.source, packet.destination)
        if packet.kind == Chunk.COOKIE_ECHO:
            tag, peer = _COOKIE.unpack(packet.body)
            if packet.tag == tag:
                self._open[key] = tag, peer
                return [(Chunk.COOKIE_ACK, peer, b"")]
        tag, peer = self._open.get(key, (0, 0))
        if not tag or packet.tag != tag:
            return []
        match packet.kind:
            case Chunk.DATA:
                sequence, *_ = _DATA.unpack_from(packet.body)
                acknowledged = (Chunk.SACK, peer, _SACK.pack(sequence, _WINDOW, 0, 0))
                text = self._listening[packet.destination](packet.body[_DATA.size :], client)
                return [acknowledged, *([] if text is None else [(Chunk.DATA, peer, _DATA.pack(tag, 0, 0, 0) + text)])]
            case Chunk.SHUTDOWN:
                return [(Chunk.SHUTDOWN_ACK, peer, b"")]
            case Chunk.SHUTDOWN_COMPLETE | Chunk.ABORT:
                del self._open[key]
        return []

    def _invite(self, packet: Packet) -> list[tuple[int, int, bytes]]:
        """Nothing is remembered before the cookie comes back (section 5.1.3)."""
        peer, *_ = _INIT.unpack_from(packet.body)
        if packet.destination not in self._listening:
            return [(Chunk.ABORT, peer, b"")]
        tag = _new_tag()
        cookie = _COOKIE.pack(tag, peer)
        parameter = _PARAMETER.pack(_COOKIE_PARAMETER, _PARAMETER.size + len(cookie)) + cookie
        return [(Chunk.INIT_ACK, peer, _init(tag, tag) + parameter)]


# --- the client --------------------------------------------------------------------------------

_PORTS = itertools.cycle(range(40_000, 60_000))
"""Of clients: raw sockets get none from the kernel, and one used twice would meet its old connection's tracking."""


def ask(
    it: socket.socket, address: str, port: int, message: bytes, timeout: float, own_port: int | None = None
) -> bytes:
    """What the responder says to a message, over an association of its own. `timeout` in seconds.

    Raises ConnectionRefusedError for an ABORT, or where the kernel was told so, TimeoutError, or another OSError.
    """
    it.connect((address, 0))
    own, tag = own_port or next(_PORTS), _new_tag()
    peer = 0
    until = monotonic() + timeout

    def send(kind: int, body: bytes = b"") -> None:
        it.send(encode(Packet(own, port, peer, kind, body)))

    def await_(kind: int) -> bytes:
        while True:
            it.settimeout(max(until - monotonic(), 0.001))
            try:
                packet, _ = received(it)
            except Malformed:
                continue
            # The socket sees all packets of this peer.
            if (packet.source, packet.destination, packet.tag) != (port, own, tag):
                continue
            if packet.kind == Chunk.ABORT:
                raise ConnectionRefusedError
            if packet.kind == kind:
                return packet.body

    send(Chunk.INIT, _init(tag, tag))
    invitation = await_(Chunk.INIT_ACK)
    peer, _, _, _, sequence = _INIT.unpack_from(invitation)
    send(Chunk.COOKIE_ECHO, invitation[_INIT.size + _PARAMETER.size :])
    await_(Chunk.COOKIE_ACK)
    send(Chunk.DATA, _DATA.pack(tag, 0, 0, 0) + message)
    answer = await_(Chunk.DATA)
    send(Chunk.SACK, _SACK.pack(sequence, _WINDOW, 0, 0))
    send(Chunk.SHUTDOWN, sequence.to_bytes(4, "big"))
    await_(Chunk.SHUTDOWN_ACK)
    send(Chunk.SHUTDOWN_COMPLETE)
    return answer[_DATA.size :]
