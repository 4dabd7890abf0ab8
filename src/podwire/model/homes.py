"""Who lives where: the addresses and blocks of all nodes, indexed to be asked for one address.

Invariants: derived from the nodes alone, whatever the order in which they came. Two nodes that name the same are both
remembered. A block is given to a node by the control plane, an address is what the node itself says (its kubelet writes
status.addresses): another node's addresses close nothing to anybody here.
"""

from collections.abc import Iterable
from typing import Any

from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from podwire.model.addresses import Address, Prefix, overlap, prefix_around, show_address
from podwire.model.objects import NodeKey, Value

Nodes = frozenset[NodeKey]


class Home(Value, frozen=True):
    """Where a node and its pods live: its addresses, its pod CIDRs, and its blocks of pools, in order."""

    addresses: tuple[Address, ...] = ()
    pod_cidrs: tuple[Prefix, ...] = ()
    pool_blocks: tuple[Prefix, ...] = ()

    @property
    def blocks(self) -> tuple[Prefix, ...]:
        return (*self.pod_cidrs, *self.pool_blocks)

    def called(self, block: Prefix) -> str:
        """As people know it: `pod CIDR 10.1.0.0/24`, or `block` where it is one of a pool."""
        return f"{'pod CIDR' if block in self.pod_cidrs else 'block'} {block}"


NO_HOME = Home()

Block = tuple[int, int, int]
"""Bytes of an address, bits behind the prefix, and the number of the prefix: what all addresses of a block share."""


class Homes(Struct, frozen=True):
    """`forms`: how many blocks there are of the same size and length (the first two of a Block)."""

    addresses: Map[Address, Nodes] = Map()
    blocks: Map[Block, Nodes] = Map()
    forms: Map[tuple[int, int], int] = Map()

    def block_of(self, address: Address) -> Prefix | None:
        """The longest block around the address."""
        size, number = len(address), int.from_bytes(address, "big")
        around = [rest for its, rest in self.forms if its == size and (its, rest, number >> rest) in self.blocks]
        return prefix_around(address, size * 8 - min(around)) if around else None

    def owners(self, block: Prefix) -> Nodes:
        """The nodes that have exactly this block."""
        return self.blocks.get(_block(block), frozenset())

    def moved(self, key: NodeKey, before: Home, after: Home) -> "Homes":
        """After a node has another home, or (`NO_HOME`) came or went."""
        addresses = _moved(self.addresses, key, before.addresses, after.addresses)
        old, new = set(map(_block, before.blocks)), set(map(_block, after.blocks))
        blocks, forms = _moved(self.blocks, key, old, new), self.forms
        for block in old | new:
            form = block[:2]
            count = forms.get(form, 0) + (block in blocks) - (block in self.blocks)
            forms = forms.set(form, count) if count else forms.delete(form) if form in forms else forms
        return replace(self, addresses=addresses, blocks=blocks, forms=forms)


def _block(prefix: Prefix) -> Block:
    rest = prefix.family.bits - prefix.length
    return len(prefix.first), rest, int.from_bytes(prefix.first, "big") >> rest


def _moved(held: Map[Any, Nodes], key: NodeKey, before: Iterable[Any], after: Iterable[Any]) -> Map[Any, Nodes]:
    for item in before:
        left = held.get(item, frozenset()) - {key}
        held = held.set(item, left) if left else held.delete(item) if item in held else held
    for item in after:
        held = held.set(item, held.get(item, frozenset()) | {key})
    return held


def in_range(home: Home, prefix: Prefix, addresses: bool) -> str | None:
    """What of a node lies in a range, or around it: `address 192.0.2.1`, `pod CIDR 10.1.0.0/24`. Its addresses count
    only where they are this node's own: another one's are what its kubelet claims."""
    mine = home.addresses if addresses else ()
    found = next((f"address {show_address(address)}" for address in mine if address in prefix), None)
    return found or next((home.called(block) for block in home.blocks if overlap(block, prefix)), None)
