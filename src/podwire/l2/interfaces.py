"""On which of the node's interfaces addresses can be answered for. Pure: from what rtnetlink(7) tells.

Invariants: pods' links and our VXLAN devices are none, whatever they are called: their numbers are beyond all others.
An interface that others are made of answers by them: a bridge's or bond's port never does, the bridge or bond does. One
in a VRF does.
"""

from struct import unpack_from

from msgspec import Struct

from podwire.dataplane.linux.rtnetlink import IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO
from podwire.dataplane.messages import attrs
from podwire.ipam.blocks import FIRST_INDEX

_ETHERNET = 1  # ARPHRD_ETHER
_UP, _LOOPBACK, _RUNNING, _NOARP = 0x1, 0x8, 0x40, 0x80
_MASTER, _PORT_KIND = 10, 4  # IFLA_MASTER, IFLA_INFO_SLAVE_KIND


class Interface(Struct, frozen=True):
    """`unable`: why nothing can be answered on it, "": it can."""

    index: int
    name: str
    mac: bytes
    unable: str = ""


def interface_of(body: bytes) -> Interface | None:
    """Of a link's message; None: it is one of ours, or what a bridge says of its ports."""
    kind, index, flags = unpack_from("=xxHiI", body)
    if body[0] != 0 or index >= FIRST_INDEX:
        return None
    seen = attrs(body, 16)
    name = seen.get(IFLA_IFNAME, b"\0")[:-1].decode(errors="replace")
    mac = seen.get(IFLA_ADDRESS, b"")
    return Interface(index, name, mac, _unable(kind, flags, seen, mac))


def _unable(kind: int, flags: int, seen: dict[int, bytes], mac: bytes) -> str:
    if flags & _LOOPBACK:
        return "the loopback"
    if kind != _ETHERNET or len(mac) != 6 or flags & _NOARP:
        return "has no ARP"
    if _MASTER in seen:
        port_of = attrs(seen.get(IFLA_LINKINFO, b"")).get(_PORT_KIND, b"").rstrip(b"\0").decode(errors="replace")
        if port_of != "vrf":
            return f"a port of a {port_of or 'master'}"
    if not flags & _UP:
        return "down"
    return "" if flags & _RUNNING else "without a carrier"
