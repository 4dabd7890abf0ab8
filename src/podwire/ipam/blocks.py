"""Pod addresses from the node's blocks, and interface indexes. Pure.

Invariants: the ledger and the cursors belong to the snapshot; nothing is remembered here. One function serves both
families. The search is next-fit: an address just released is the last to be given again, since its old peers may
still talk to it. Of a block the first address is the network's, the second the node's own, and of an IPv4 block the
last is the broadcast's; the rest are pods'.
"""

from collections.abc import Mapping
from zlib import crc32

from podwire.model.addresses import IPV4, Address, Prefix

FIRST_POD = 2
FIRST_INDEX, _INDEXES = 0x1_0000, 0x7000_0000


def own_address(block: Prefix) -> Address:
    """The node's own address of a block: source for what it sends to Services and pods. Of a block of one, that one."""
    return block.nth(1) if block.count > 1 else block.first


def capacity(block: Prefix) -> int:
    """How many pods a block can hold."""
    reserved = FIRST_POD + (1 if block.family == IPV4 else 0)
    return max(0, block.count - reserved)


def next_free(block: Prefix, ledger: Mapping[Address | int, object], cursor: int) -> tuple[Address, int] | None:
    """The first free address from the cursor on, and the cursor behind it; None where the block is full."""
    count = capacity(block)
    for step in range(min(count, len(ledger) + 1)):
        number = (cursor + step) % count
        candidate = block.nth(FIRST_POD + number)
        if candidate not in ledger:
            return candidate, (number + 1) % count
    return None


def next_index(name: str, ledger: Mapping[Address | int, object]) -> int:
    """An interface index far from those that the kernel gives, the same for the same link name while it is free."""
    index = FIRST_INDEX + crc32(name.encode()) % _INDEXES
    while index in ledger:
        index += 1
    return index
