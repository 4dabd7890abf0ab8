"""What hostile or unlucky hands do from inside a pod, packet by packet; and waiting for the kernel to have noticed."""

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from podwire.dataplane import netlink
from podwire.model.objects import AttachmentKey
from podwire.pods.names import interface_name
from podwire.pods.wiring import NODE_MAC
from tests.kernel.rig import Rig, Space, entered, in_space, sh

RTMGRP_LINK = 1
_ALL_PROTOCOLS, _OUTGOING, _ACK = 3, 4, b"\x10"
ALL_NODES = socket.inet_pton(socket.AF_INET6, "ff02::1")


def links_gone(rig: Rig, pod: str, sandbox: str | None = None, interface: str = "eth0") -> None:
    """Waits until the kernel has removed the link of a pod whose namespace was deleted: it does so in its own time."""
    name = interface_name(AttachmentKey(sandbox or f"sandbox-{pod}", interface))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.ROUTE) as told:
        told.bind((0, RTMGRP_LINK))
        while name in sh("ip", "-o", "link"):
            assert select.select([told], [], [], 10)[0], f"{name} is still there"
            told.recv(1 << 16)


def pods_links() -> list[str]:
    """The node's ends."""
    names = (line.split(": ")[1].partition("@")[0] for line in sh("ip", "-o", "link").splitlines())
    return [name for name in names if name.startswith("pw")]


def await_links(count: int) -> None:
    """DEL is answered once nothing leads to the pod; the links themselves go a moment later, many at once."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.ROUTE) as news:
        news.bind((0, RTMGRP_LINK))
        news.settimeout(30)
        while len(pods_links()) != count:
            news.recv(65_536)


def advertise_router(space: Space, interface: str) -> None:
    """A router advertisement (RFC 4861) from a pod to its node. The kernel works on it before send returns."""
    source = socket.inet_pton(socket.AF_INET6, "fe80::bad")
    body = struct.pack(">BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    check = _checksum(source + ALL_NODES + struct.pack(">II", len(body), 58) + body)
    body = body[:2] + struct.pack(">H", check) + body[4:]
    header = struct.pack(">IHBB", 6 << 28, len(body), 58, 255) + source + ALL_NODES
    with entered(space), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((interface, 0))
        mac = out.getsockname()[4]
        for _ in range(3):
            out.send(bytes.fromhex("333300000001") + mac + bytes.fromhex("86dd") + header + body)


def send_as(space: Space, source: str, to: str, port: int, said: bytes) -> None:
    """A datagram that claims to come from `source`, of either family, put on a pod's link."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    ends = socket.inet_pton(family, source) + socket.inet_pton(family, to)
    udp = struct.pack(">HHHH", 40000, port, 8 + len(said), 0) + said
    if family == socket.AF_INET:
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0) + ends
        ip, kind = ip[:10] + struct.pack(">H", _checksum(ip)) + ip[12:], "0800"
    else:
        check = _checksum(ends + struct.pack(">II", len(udp), 17) + udp)
        udp = udp[:6] + struct.pack(">H", check or 0xFFFF) + udp[8:]
        ip, kind = struct.pack(">IHBB", 6 << 28, len(udp), 17, 64) + ends, "86dd"
    with entered(space), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind(("eth0", 0))
        out.send(NODE_MAC + out.getsockname()[4] + bytes.fromhex(kind) + ip + udp)


def raw(space: Space | None, family: socket.AddressFamily, protocol: int) -> socket.socket:
    """Sends what follows the IP header."""
    if space is None:
        return socket.socket(family, socket.SOCK_RAW, protocol)
    with entered(space):
        return socket.socket(family, socket.SOCK_RAW, protocol)


def lone_segment(source: str, to: str, flags: int) -> bytes:
    """Of TCP, from port 40000 to 80, of no connection."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    ends = socket.inet_pton(family, source) + socket.inet_pton(family, to)
    segment = struct.pack(">HHIIBBHHH", 40000, 80, 1, 1, 0x50, flags, 1000, 0, 0)
    check = _checksum(ends + struct.pack(">II", len(segment), 6) + segment)
    return segment[:16] + struct.pack(">H", check) + segment[18:]


@contextmanager
def overhearing(space: Space | None, interface: str) -> Iterator[socket.socket]:
    """All that passes by an interface, from now on."""
    with in_space(space, socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind((interface, _ALL_PROTOCOLS))
        wire.setblocking(False)
        yield wire


def send_out_of_window(wire: socket.socket, port: int) -> None:
    """The last TCP segment that left from that port, again, with a sequence number far ahead of all that is open."""
    last: tuple[bytes, bytes] | None = None
    while True:
        try:
            frame, (_, _, direction, *_) = wire.recvfrom(65_536)
        except BlockingIOError:
            break
        head = 34 if frame[12:14] == b"\x08\x00" else 54
        its_port, flags = frame[head : head + 2], frame[head + 13 : head + 14]
        if direction == _OUTGOING and its_port == port.to_bytes(2, "big") and flags == _ACK:
            last = frame[:head], frame[head:]
    assert last is not None, "nothing was heard"
    head, segment = last
    segment = segment[:20]
    sequence = (int.from_bytes(segment[4:8], "big") + (1 << 30)) % (1 << 32)
    segment = segment[:4] + sequence.to_bytes(4, "big") + segment[8:12] + b"\x50" + segment[13:16] + bytes(4)
    addresses = head[26:34] if len(head) == 34 else head[22:54]
    check = _checksum(addresses + struct.pack(">II", len(segment), 6) + segment)
    segment = segment[:16] + struct.pack(">H", check) + segment[18:]
    if len(head) == 34:
        ip = head[14:16] + struct.pack(">H", 40) + head[18:24] + bytes(2) + head[26:]
        head = head[:14] + ip[:10] + struct.pack(">H", _checksum(ip)) + ip[12:]
    else:
        head = head[:18] + struct.pack(">H", 20) + head[20:]
    wire.send(head + segment)


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    data += bytes(len(data) & 1)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
