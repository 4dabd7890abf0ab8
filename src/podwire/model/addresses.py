"""IP addresses, prefixes and families.

Invariants: an address is packed bytes, four for IPv4 and sixteen for IPv6, in network order: it is a dictionary key
and a piece of a netlink message, so it is never parsed twice. Everything that differs between the two families is
a field of `Family`: no room has a second design for IPv6.
"""

import socket  # inet_pton and inet_ntop only: pure, and fifteen times faster than ipaddress
from collections.abc import Iterable
from typing import NewType

from msgspec import Struct

Address = NewType("Address", bytes)


class Family(Struct, frozen=True, order=True):
    """What differs between IPv4 and IPv6. `number` is the kernel's AF_* value, `size` an address's bytes."""

    name: str
    number: int
    size: int

    @property
    def bits(self) -> int:
        """The length of a host's prefix."""
        return self.size * 8

    def __str__(self) -> str:
        return self.name


IPV4 = Family("IPv4", int(socket.AF_INET), 4)
IPV6 = Family("IPv6", int(socket.AF_INET6), 16)
FAMILIES = (IPV4, IPV6)
_BY_SIZE = {4: IPV4, 16: IPV6}


def family_of(address: Address) -> Family:
    return _BY_SIZE[len(address)]


def parse_address(text: str) -> Address:
    """Raises ValueError for what is not an address of either family."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        return Address(socket.inet_pton(family, text))
    except OSError:
        raise ValueError(f"{text!r} is not an IP address") from None


def show_address(address: Address) -> str:
    return socket.inet_ntop(family_of(address).number, address)


def show_host_port(address: Address, port: int) -> str:
    """`10.0.0.1:80`, `[fd00::1]:80`."""
    text = show_address(address)
    return f"[{text}]:{port}" if len(address) == IPV6.size else f"{text}:{port}"


class Prefix(Struct, frozen=True, order=True):
    """A range of addresses by its first one; bits beyond the length are zero."""

    first: Address
    length: int

    @property
    def family(self) -> Family:
        return family_of(self.first)

    def nth(self, number: int) -> Address:
        """The address at that distance from the first."""
        return Address((int.from_bytes(self.first, "big") + number).to_bytes(len(self.first), "big"))

    @property
    def last(self) -> Address:
        return self.nth(self.count - 1)

    @property
    def count(self) -> int:
        return 1 << (self.family.bits - self.length)

    def __contains__(self, address: Address) -> bool:
        if len(address) != len(self.first):
            return False
        shift = self.family.bits - self.length
        return int.from_bytes(address, "big") >> shift == int.from_bytes(self.first, "big") >> shift

    def __str__(self) -> str:
        return f"{show_address(self.first)}/{self.length}"


def parse_prefix(text: str) -> Prefix:
    """`10.1.0.0/24`. Raises ValueError where it is none, or where host bits are set."""
    head, slash, tail = text.partition("/")
    address = parse_address(head)
    bits = family_of(address).bits
    if not slash or not tail.isascii() or not tail.isdigit() or int(tail) > bits:
        raise ValueError(f"{text!r} is not an address range: expected ADDRESS/LENGTH with a length from 0 to {bits}")
    masked = prefix_around(address, int(tail))
    if masked.first != address:
        raise ValueError(f"{text!r} has host bits set: expected {masked}")
    return masked


def prefix_around(address: Address, length: int) -> Prefix:
    """The range of that length in which the address lies."""
    number, shift = int.from_bytes(address, "big"), family_of(address).bits - length
    return Prefix(Address((number >> shift << shift).to_bytes(len(address), "big")), length)


def host_prefix(address: Address) -> Prefix:
    """The range that has this address alone."""
    return Prefix(address, family_of(address).bits)


class AddressRange(Struct, frozen=True, order=True):
    """From one address to another of its family, both ends included."""

    first: Address
    last: Address

    def __contains__(self, address: Address) -> bool:
        return len(address) == len(self.first) and self.first <= address <= self.last

    def __str__(self) -> str:
        return f"{show_address(self.first)}-{show_address(self.last)}"


def overlap(one: Prefix | AddressRange, other: Prefix | AddressRange) -> bool:
    return one.first in other or other.first in one


def parse_range(text: str) -> AddressRange:
    """`10.1.3.0/28`, or by its two ends: `10.1.3.0-10.1.3.9`. Raises ValueError with the right form."""
    if "-" not in text:
        prefix = parse_prefix(text)
        return AddressRange(prefix.first, prefix.last)
    first, last = map(parse_address, text.split("-", 1))
    if len(first) != len(last) or last < first:
        raise ValueError(f"{text!r} is not an address range: expected two addresses of one family, the lower one first")
    return AddressRange(first, last)


def joined(ranges: Iterable[AddressRange]) -> tuple[AddressRange, ...]:
    """The same addresses in as few ranges as can be: IPv4 first, none that overlaps or touches the next."""
    kept: list[AddressRange] = []
    for each in sorted(ranges, key=lambda it: (len(it.first), it)):
        before = kept[-1] if kept else None
        if before is None or len(before.first) != len(each.first) or _gap(before.last, each.first) > 1:
            kept.append(each)
        elif each.last > before.last:
            kept[-1] = AddressRange(before.first, each.last)
    return tuple(kept)


def _gap(before: Address, after: Address) -> int:
    return int.from_bytes(after, "big") - int.from_bytes(before, "big")


_SPECIAL = tuple(
    (parse_prefix(text), kind)
    for text, kind in (
        ("0.0.0.0/32", "unspecified"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
        ("::ffff:0.0.0.0/96", "IPv4-mapped"),
    )
)
"""What no Service, backend, pod or node can have (Kubernetes API, ValidateNonSpecialIP; multicast and broadcast are
nobody's either). The gateway of all pods is among the link-local ones."""
_SPECIAL_STARTS = frozenset({0, 127, 169, 255, 0xFE, *range(224, 240)})


def special(address: Address) -> str | None:
    """What kind of address it is, where it can be no host's and no Service's: `loopback`, `multicast` …"""
    if address[0] not in _SPECIAL_STARTS:  # as good as all
        return None
    return next((kind for prefix, kind in _SPECIAL if address in prefix), None)


def special_in(given: Prefix | AddressRange) -> str | None:
    """What kind of such addresses the range has: `loopback addresses (127.0.0.0/8)`."""
    return next((f"{kind} addresses ({it})" for it, kind in _SPECIAL if overlap(given, it)), None)


def parse_host_port(text: str) -> tuple[Address, int]:
    """`10.0.0.1:80`, `[fd00::1]:80`. Raises ValueError with the right form."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    try:
        if colon and 1 <= number <= 65535 and bracketed == (":" in host):
            return parse_address(host[1:-1] if bracketed else host), number
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not IP:PORT: expected such as 10.0.0.1:80 or [fd00::1]:80")


def disjoint(prefixes: Iterable[Prefix]) -> tuple[Prefix, ...]:
    """The same addresses without overlaps: each range once, IPv4 first, none that lies in another."""
    kept: list[Prefix] = []
    size, end = 0, 0
    for prefix in sorted(prefixes, key=lambda each: (len(each.first), each.first, each.length)):
        number = int.from_bytes(prefix.first, "big")
        if len(prefix.first) != size or number > end:  # a wider one with the same first address came before it
            kept.append(prefix)
            size = len(prefix.first)
            end = number + (1 << size * 8 - prefix.length) - 1
    return tuple(kept)
