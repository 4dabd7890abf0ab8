"""A daemon's configuration as a tree: lines, and blocks of lines under a header. Pure.

Invariants: lines of a block have no order, since no meaning depends on one; `show` orders them. What is read from
`show` is equal to what was shown.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from podwire.bgp.lines import ranked


class Block(NamedTuple):
    """`blocks`: by header, as `router bgp 65001`."""

    lines: frozenset[str] = frozenset()
    blocks: "Mapping[str, Block]" = {}

    def __bool__(self) -> bool:
        return bool(self.lines or self.blocks)


EMPTY = Block()
_LATE = ("router ", "address-family ")


def exit_of(header: str) -> str:
    """The command that ends a block."""
    return "exit-address-family" if header.startswith("address-family ") else "exit"


def headers(some: Iterable[str]) -> list[str]:
    """In the order in which they are said: a router comes last, since it names route maps."""
    return sorted(some, key=lambda header: (header.startswith(_LATE), header))


def show(block: Block) -> str:
    """As a daemon reads it at its start."""
    return "".join(f"{line}\n" for line in _shown(block, ""))


def _shown(block: Block, margin: str) -> list[str]:
    told = [margin + line for line in ranked(block.lines)]
    for header in headers(block.blocks):
        told.append(margin + header)
        told += _shown(block.blocks[header], margin + " ")
        told.append(margin + exit_of(header))
    return told


class _Opened:
    """A line while it may yet turn out to be a block's header."""

    __slots__ = ("blocks", "header", "is_block", "lines", "margin")

    def __init__(self, margin: int, header: str) -> None:
        self.margin, self.header, self.is_block = margin, header, False
        self.lines: list[str] = []
        self.blocks: dict[str, Block] = {}

    def take(self, other: "_Opened") -> None:
        self.is_block = True
        if other.is_block:
            before = self.blocks.get(other.header, EMPTY)
            self.blocks[other.header] = Block(before.lines.union(other.lines), {**before.blocks, **other.blocks})
        else:
            self.lines.append(other.header)


def parse(text: str) -> Block:
    """From `show running-config`, or a file. By margins: what is further in than the line before it belongs to that,
    and an `exit` says that the line with its margin was a header, though nothing may be under it."""
    opened = [_Opened(-1, "")]
    for whole in text.splitlines():
        line = whole.strip()
        if not line or line.startswith(("!", "#")):
            continue
        margin = len(whole) - len(whole.lstrip())
        ends = line == "end" or line.startswith("exit")
        while len(opened) > 1 and opened[-1].margin >= margin + ends:
            done = opened.pop()
            opened[-1].take(done)
        if ends:
            opened[-1].is_block = True
        else:
            opened.append(_Opened(margin, line))
    while len(opened) > 1:
        done = opened.pop()
        opened[-1].take(done)
    return Block(frozenset(opened[0].lines), opened[0].blocks)
