"""ARP and neighbour discovery: bytes both ways. Pure.

Invariants: what is not right by its RFC is parsed to None, never to a guess; what the functions here make they also
parse. A packet is what follows the Ethernet header. MAC addresses are six bytes.
"""

from struct import Struct, pack
from typing import NamedTuple

from podwire.model.addresses import IPV4, IPV6, Address, parse_address

BROADCAST = b"\xff" * 6
ALL_NODES = parse_address("ff02::1")
REQUEST, REPLY = 1, 2
SOLICITATION, ADVERTISEMENT = 135, 136
ICMPV6, HOP_LIMIT = 58, 255
_UNSPECIFIED = bytes(16)
_SOLICITED_NODE = parse_address("ff02::1:ff00:0")[:13]
_ARP = Struct("!HHBBH6s4s6s4s")
_ETHERNET, _IPV4_TYPE = 1, 0x0800
_IPV6_HEADER = Struct("!IHBB16s16s")
_MESSAGE = Struct("!BBHI16s")
_SOURCE_OPTION, _TARGET_OPTION = 1, 2
_SOLICITED, _OVERRIDE = 0x4000_0000, 0x2000_0000


class ARP(NamedTuple):
    """RFC 826, of Ethernet and IPv4. A probe (RFC 5227) has the sender 0.0.0.0, an announcement its target as
    sender."""

    operation: int
    mac: bytes
    sender: Address
    target_mac: bytes
    target: Address


def arp(it: ARP) -> bytes:
    return _ARP.pack(_ETHERNET, _IPV4_TYPE, 6, IPV4.size, it.operation, it.mac, it.sender, it.target_mac, it.target)


def parse_arp(data: bytes) -> ARP | None:
    """Bytes beyond are padding of a short frame."""
    if len(data) < _ARP.size:
        return None
    kind, protocol, mac_size, size, operation, mac, sender, target_mac, target = _ARP.unpack_from(data)
    if (kind, protocol, mac_size, size) != (_ETHERNET, _IPV4_TYPE, 6, IPV4.size) or operation not in (REQUEST, REPLY):
        return None
    return ARP(operation, mac, Address(sender), target_mac, Address(target))


def arp_reply(to: ARP, mac: bytes) -> bytes:
    return arp(ARP(REPLY, mac, to.target, to.mac, to.sender))


def announcements(address: Address, mac: bytes) -> tuple[bytes, ...]:
    """What tells a link, unasked, where the address is: gratuitous ARP as request and as reply, since hosts differ in
    which they heed (RFC 5227, section 3), or an unsolicited advertisement (RFC 4861, section 7.2.6)."""
    if len(address) == IPV6.size:
        return (advertisement(Advertisement(address, ALL_NODES, mac)),)
    request, reply = ARP(REQUEST, mac, address, bytes(6), address), ARP(REPLY, mac, address, mac, address)
    return arp(request), arp(reply)


class Solicitation(NamedTuple):
    """RFC 4861, section 4.3. `source` None: of whoever looks for a duplicate (RFC 4862). `mac`: the sender's by the
    option, None: it told none."""

    source: Address | None
    destination: Address
    target: Address
    mac: bytes | None


class Advertisement(NamedTuple):
    """RFC 4861, section 4.4, with the override flag: the newest word counts. Sent from the target itself, as its owner
    does."""

    target: Address
    destination: Address
    mac: bytes
    solicited: bool = False


def solicited_node(address: Address) -> Address:
    """The group in which whoever has the address is asked for it (RFC 4291, section 2.7.1)."""
    return Address(_SOLICITED_NODE + address[13:])


def group_mac(group: Address) -> bytes:
    """Of an IPv6 multicast group (RFC 2464, section 7)."""
    return b"\x33\x33" + group[12:]


def solicitation(it: Solicitation) -> bytes:
    option = b"" if it.mac is None else pack("!BB6s", _SOURCE_OPTION, 1, it.mac)
    body = _MESSAGE.pack(SOLICITATION, 0, 0, 0, it.target) + option
    return _datagram(it.source or Address(_UNSPECIFIED), it.destination, body)


def advertisement(it: Advertisement) -> bytes:
    flags = _OVERRIDE | (_SOLICITED if it.solicited else 0)
    body = _MESSAGE.pack(ADVERTISEMENT, 0, 0, flags, it.target) + pack("!BB6s", _TARGET_OPTION, 1, it.mac)
    return _datagram(it.target, it.destination, body)


def answer(to: Solicitation, mac: bytes) -> bytes:
    """To whoever looks for a duplicate all nodes are told (RFC 4861, section 7.2.4)."""
    return advertisement(Advertisement(to.target, to.source or ALL_NODES, mac, to.source is not None))


def parse_solicitation(data: bytes) -> Solicitation | None:
    """By the rules of RFC 4861, section 7.1.1."""
    found = _parse(data, SOLICITATION)
    if found is None:
        return None
    source, destination, target, _, options = found
    mac = options.get(_SOURCE_OPTION)
    if source == _UNSPECIFIED:
        if mac is not None or destination != solicited_node(target):
            return None
        return Solicitation(None, destination, target, None)
    return Solicitation(source, destination, target, mac)


def parse_advertisement(data: bytes) -> Advertisement | None:
    """By the rules of RFC 4861, section 7.1.2, of those that tell a MAC address."""
    found = _parse(data, ADVERTISEMENT)
    if found is None:
        return None
    _, destination, target, flags, options = found
    mac, solicited = options.get(_TARGET_OPTION), bool(flags & _SOLICITED)
    if mac is None or (solicited and destination[0] == 0xFF):
        return None
    return Advertisement(target, destination, mac, solicited)


def _parse(data: bytes, kind: int) -> tuple[Address, Address, Address, int, dict[int, bytes]] | None:
    """Source, destination, target, flags and the MAC addresses of the options. Bytes beyond are a frame's padding."""
    if len(data) < _IPV6_HEADER.size:
        return None
    first, size, following, hops, source, destination = _IPV6_HEADER.unpack_from(data)
    body = data[_IPV6_HEADER.size : _IPV6_HEADER.size + size]
    if first >> 28 != 6 or following != ICMPV6 or hops != HOP_LIMIT or len(body) < size or size < _MESSAGE.size:
        return None
    its_kind, code, _, flags, target = _MESSAGE.unpack_from(body)
    if its_kind != kind or code != 0 or target[0] == 0xFF or _checksum(source, destination, body) != 0:
        return None
    options = _options(body[_MESSAGE.size :])
    if options is None:
        return None
    return Address(source), Address(destination), Address(target), flags, options


def _options(data: bytes) -> dict[int, bytes] | None:
    found: dict[int, bytes] = {}
    while data:
        size = data[1] * 8 if len(data) > 1 else 0
        if size == 0 or len(data) < size:
            return None
        if size == 8:
            found.setdefault(data[0], data[2:8])
        data = data[size:]
    return found


def _datagram(source: Address, destination: Address, body: bytes) -> bytes:
    body = body[:2] + _checksum(source, destination, body).to_bytes(2, "big") + body[4:]
    return _IPV6_HEADER.pack(6 << 28, len(body), ICMPV6, HOP_LIMIT, source, destination) + body


def _checksum(source: bytes, destination: bytes, body: bytes) -> int:
    """RFC 1071 over the pseudo-header (RFC 8200, section 8.1); 0 of a body whose checksum is right."""
    data = source + destination + pack("!II", len(body), ICMPV6) + body + bytes(len(body) % 2)
    total = int.from_bytes(data, "big") % 0xFFFF  # the sum of 16-bit words with its carries
    return 0xFFFF - total if total else 0
