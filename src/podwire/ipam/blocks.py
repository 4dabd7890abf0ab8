"""Pod addresses from the node's blocks, and interface indexes. Pure.

Invariants: the ledger and the cursors belong to the snapshot; nothing is remembered here. One function serves both
families. The search is next-fit: an address just released is the last to be given again, since its old peers may
still talk to it. Of a block the first address is the network's, the second the node's own, and of an IPv4 block the
last is the broadcast's; the rest are pods'. A block may come to a node whose pods, or a neighbour, live in it
already: nobody's address is given to another, and the node's own is the first that nobody has.
"""

from collections.abc import Container, Mapping
from zlib import crc32

from podwire.model.addresses import IPV4, Address, Prefix

FIRST_POD = 2
FIRST_INDEX, _INDEXES = 0x1_0000, 0x7000_0000


def own_address(block: Prefix, taken: Container[Address]) -> Address | None:
    """The node's own address of a block: what its pods see of clients that are hidden. The second, or of a block of
    one, that one; where somebody lives there already, the next that is free. None where none is."""
    last = block.count - (1 if block.family == IPV4 and block.count > FIRST_POD else 0)
    numbers = range(min(1, block.count - 1), last)
    return next((it for it in map(block.nth, numbers) if it not in taken), None)


def capacity(block: Prefix) -> int:
    """How many pods a block can hold."""
    reserved = FIRST_POD + (1 if block.family == IPV4 else 0)
    return max(0, block.count - reserved)


def next_free(block: Prefix, taken: Container[Address], cursor: int) -> tuple[Address, int] | None:
    """The first free address from the cursor on, and the cursor behind it; None where the block is full. The node's
    own is not free."""
    count, own = capacity(block), own_address(block, taken)
    for step in range(count):
        number = (cursor + step) % count
        candidate = block.nth(FIRST_POD + number)
        if candidate not in taken and candidate != own:
            return candidate, (number + 1) % count
    return None


def next_index(name: str, ledger: Mapping[Address | int, object]) -> int:
    """An interface index far from those that the kernel gives, the same for the same link name while it is free."""
    index = FIRST_INDEX + crc32(name.encode()) % _INDEXES
    while index in ledger:
        index += 1
    return index
