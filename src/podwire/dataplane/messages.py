"""Packing and unpacking netlink messages and their attributes (RFC 3549). Pure.

Invariants: an attribute is padded to four bytes, its length counts no padding; what `attrs` reads is what `attr`,
`nest`, `text` and `u32` wrote.
"""

from collections.abc import Iterator
from struct import Struct, pack
from typing import NamedTuple

REQUEST, REPLACE, EXCL, CREATE, DUMP = 1, 0x100, 0x200, 0x400, 0x300
NESTED = 0x8000
_ATTR = Struct("=HH")


class Message(NamedTuple):
    kind: int
    flags: int
    body: bytes


class Notice(NamedTuple):
    """`nsid`: of the namespace that it tells of, as the listener's own namespace numbers it; None: of its own."""

    kind: int
    body: bytes
    nsid: int | None


def attr(kind: int, body: bytes) -> bytes:
    return _ATTR.pack(len(body) + 4, kind) + body + bytes(-len(body) & 3)


def nest(kind: int, *bodies: bytes) -> bytes:
    return attr(kind | NESTED, b"".join(bodies))


def text(kind: int, value: str) -> bytes:
    return attr(kind, value.encode() + b"\0")


def u32(kind: int, value: int) -> bytes:
    return attr(kind, pack("=I", value))


def walk(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """The attributes from `start` on, in order, without the flags in their kinds."""
    while start + 4 <= len(data):
        length, kind = _ATTR.unpack_from(data, start)
        if length < _ATTR.size:  # it would never end
            return
        yield kind & 0x3FFF, data[start + 4 : start + length]
        start += (length + 3) & ~3


def attrs(data: bytes, start: int = 0) -> dict[int, bytes]:
    return dict(walk(data, start))
