"""What hostile or unlucky hands do from inside a pod, packet by packet; and waiting for the kernel to have noticed."""

import select
import socket
import struct

from podwire.dataplane import netlink
from podwire.model.objects import AttachmentKey
from podwire.pods.wiring import NODE_MAC, interface_name
from tests.kernel.rig import Rig, Space, entered, sh

RTMGRP_LINK = 1
_ALL_PROTOCOLS, _OUTGOING, _ACK = 3, 4, b"\x10"
ALL_NODES = socket.inet_pton(socket.AF_INET6, "ff02::1")


def links_gone(rig: Rig, pod: str) -> None:
    """Waits until the kernel has removed the link of a pod whose namespace was deleted: it does so in its own time."""
    name = interface_name(AttachmentKey(f"sandbox-{pod}", "eth0"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.ROUTE) as told:
        told.bind((0, RTMGRP_LINK))
        while name in sh("ip", "-o", "link"):
            assert select.select([told], [], [], 10)[0], f"{name} is still there"
            told.recv(1 << 16)


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


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    data += bytes(len(data) & 1)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
