"""On which interfaces addresses can be answered for, by what the kernel tells of them."""

from struct import pack

import pytest

from podwire.dataplane.linux.rtnetlink import IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO
from podwire.dataplane.messages import attr, nest, text, u32
from podwire.l2.interfaces import Interface, interface_of

MAC = bytes.fromhex("02a1b2c3d4e5")
ETHERNET, LOOPBACK, TUNNEL = 1, 772, 768
UP, RUNNING, NOARP = 0x1, 0x40, 0x80


def link(
    name: str = "eth0",
    index: int = 2,
    kind: int = ETHERNET,
    flags: int = UP | RUNNING,
    family: int = 0,
    port_of: str | None = None,
    mac: bytes = MAC,
) -> bytes:
    body = pack("=BxHiII", family, kind, index, flags, 0) + text(IFLA_IFNAME, name) + attr(IFLA_ADDRESS, mac)
    if port_of is not None:
        body += u32(10, 9) + nest(IFLA_LINKINFO, attr(1, b"veth"), attr(4, port_of.encode() + b"\0"))
    return body


@pytest.mark.parametrize(
    ("it", "why"),
    [
        (link(), ""),
        (link(port_of="vrf"), ""),
        (link(port_of="bridge"), "a port of a bridge"),
        (link(port_of="bond"), "a port of a bond"),
        (link(port_of="openvswitch"), "a port of a openvswitch"),
        (link(flags=0), "down"),
        (link(flags=UP), "without a carrier"),
        (link(flags=UP | RUNNING | NOARP), "has no ARP"),
        (link(kind=TUNNEL, mac=bytes(4)), "has no ARP"),
        (link(name="lo", index=1, kind=LOOPBACK, flags=UP | RUNNING | 0x8), "the loopback"),
    ],
)
def test_which_can(it, why) -> None:
    found = interface_of(it)
    assert found is not None
    assert found.unable == why


def test_pods_links_and_our_tunnels_are_none() -> None:
    assert interface_of(link(index=0x10000)) is None
    assert interface_of(link(index=0x7FFF0004)) is None


def test_what_a_bridge_says_of_its_ports_is_none() -> None:
    assert interface_of(link(family=7)) is None


def test_what_is_told() -> None:
    assert interface_of(link("bond0", 5)) == Interface(5, "bond0", MAC)
