"""The expressions of rules that are made as messages, in shapes that nft lists rightly. Pure.

Invariants: registers are counted in four bytes; an address takes as many as its family needs. The numbers are those of
linux/netfilter/nf_tables.h.
"""

from typing import NamedTuple

from podwire.dataplane.messages import attr, nest, text
from podwire.dataplane.nftables.wire import GOTO, expression, u32, verdict
from podwire.model.addresses import Family

_META_L4PROTO = 16
REGISTER = 8
"""The first of sixteen, of four bytes each."""


class Fields(NamedTuple):
    """Where a family's header has its addresses, and what the kernel calls a flow's first destination and the source
    of its answers."""

    source: int
    destination: int
    original: int
    answering: int


FIELDS = {4: Fields(12, 16, 20, 19), 16: Fields(8, 24, 22, 21)}


def header(register: int, offset: int, family: Family) -> bytes:
    return expression("payload", u32(1, register), u32(2, 1), u32(3, offset), u32(4, family.size))


def dport(register: int) -> bytes:
    return expression("payload", u32(1, register), u32(2, 2), u32(3, 2), u32(4, 2))


def l4proto(register: int) -> bytes:
    return expression("meta", u32(2, _META_L4PROTO), u32(1, register))


def equal(register: int, value: int) -> bytes:
    return expression("cmp", u32(1, register), u32(2, 0), nest(3, attr(1, bytes((value,)))))


def original(register: int, key: int) -> bytes:
    return expression("ct", u32(2, key), u32(1, register), attr(3, bytes((0,))))


def reply(register: int, key: int) -> bytes:
    return expression("ct", u32(2, key), u32(1, register), attr(3, bytes((1,))))


def copy(source: int, to: int, words: int) -> bytes:
    """By turning the bytes of each word and turning them back; the two may not overlap."""
    length, size = u32(4, 4 * words), u32(5, 4)
    there = expression("byteorder", u32(1, source), u32(2, to), u32(3, 0), length, size)
    return there + expression("byteorder", u32(1, to), u32(2, to), u32(3, 1), length, size)


def lookup(name: str, register: int, into: int) -> bytes:
    return expression("lookup", text(1, name), u32(2, register), u32(3, into))


def member(name: str, register: int) -> bytes:
    """The rule goes on where the set has what lies from that register on."""
    return expression("lookup", text(1, name), u32(2, register))


def dnat(family: Family, address: int, port: int) -> bytes:
    kind = (u32(1, 1), u32(2, family.number))
    return expression("nat", *kind, u32(3, address), u32(4, address), u32(5, port), u32(6, port), u32(7, 3))


def goto(chain: str) -> bytes:
    return expression("immediate", u32(1, 0), nest(2, verdict(GOTO, chain)))
