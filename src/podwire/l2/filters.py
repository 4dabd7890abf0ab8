"""Which packets the kernel hands to the sockets of ARP and neighbour discovery: classic BPF (bpf(4), packet(7)). Pure.

Invariants: a filter is in place before its socket is bound, so nothing else is ever heard. Offsets are from what
follows the Ethernet header. What the node sends itself, what is meant for another host and what came by another
interface, as by a VLAN on top of this one, is not heard.
"""

from struct import pack

from podwire.l2.packets import ADVERTISEMENT, HOP_LIMIT, ICMPV6, REPLY, REQUEST, SOLICITATION

_LOAD, _LOAD_HALF, _LOAD_BYTE, _EQUAL, _GREATER, _RETURN = 0x20, 0x28, 0x30, 0x15, 0x25, 0x06
_PACKET_TYPE, _INTERFACE = 0xFFFF_F004, 0xFFFF_F008  # SKF_AD_OFF + SKF_AD_PKTTYPE, SKF_AD_IFINDEX
_MULTICAST = 2  # PACKET_MULTICAST; beyond are PACKET_OTHERHOST and PACKET_OUTGOING
_WHOLE = 0x4_0000

_Test = tuple[int, int, tuple[int, ...]]
"""How to load, from where, and what it must be one of."""


def arp(interface: int) -> bytes:
    """Requests and replies (RFC 826)."""
    return _program(interface, ((_LOAD_HALF, 6, (REQUEST, REPLY)),))


def neighbour_discovery(interface: int) -> bytes:
    """Solicitations and advertisements that no router has forwarded (RFC 4861, section 7.1)."""
    tests = (
        (_LOAD_BYTE, 6, (ICMPV6,)),
        (_LOAD_BYTE, 7, (HOP_LIMIT,)),
        (_LOAD_BYTE, 40, (SOLICITATION, ADVERTISEMENT)),
    )
    return _program(interface, tests)


def _program(interface: int, tests: tuple[_Test, ...]) -> bytes:
    """Instructions of eight bytes (struct sock_filter). A jump counts those that are left out."""
    found: list[tuple[int, int | None, int | None, int]] = [
        (_LOAD, 0, 0, _PACKET_TYPE),
        (_GREATER, None, 0, _MULTICAST),
        (_LOAD, 0, 0, _INTERFACE),
        (_EQUAL, 0, None, interface),
    ]
    for load, offset, values in tests:
        found.append((load, 0, 0, offset))
        for number, value in enumerate(values):
            last = number == len(values) - 1
            found.append((_EQUAL, len(values) - 1 - number, None if last else 0, value))
    found.append((_RETURN, 0, 0, _WHOLE))
    end = len(found)  # of what is not heard
    found.append((_RETURN, 0, 0, 0))

    def jump(to: int | None, at: int) -> int:
        return end - at - 1 if to is None else to

    return b"".join(
        pack("=HBBI", code, jump(yes, at), jump(no, at), value) for at, (code, yes, no, value) in enumerate(found)
    )
