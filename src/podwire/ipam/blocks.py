"""Pod addresses from one block, and interface indexes. Pure.

Invariants: the ledger and the cursors belong to the snapshot; nothing is remembered here. One function serves both
families. The search is next-fit: an address just released is the last to be given again, since its old peers may
still talk to it. Of a block the first address is the network's, the second the node's own, and of an IPv4 block the
last is the broadcast's; the rest are pods'. A block may come to a node whose pods, or a neighbour, live in it
already: nobody's address is given to another, and the node's own is the first that nobody has. What is reserved is
neither the node's nor given. `reserved` is always sorted and without overlaps.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from zlib import crc32

from podwire.model.addresses import IPV4, Address, AddressRange, Prefix

FIRST_POD = 2
FIRST_INDEX, _INDEXES = 0x1_0000, 0x7000_0000
Reserved = Sequence[AddressRange]


def own_address(block: Prefix, taken: Container[Address], reserved: Reserved = ()) -> Address | None:
    """The node's own address of a block: what its pods see of clients that are hidden. The second, or of a block of
    one, that one; where somebody lives there already, the next that is free. None where none is."""
    second = block.nth(min(1, block.count - 1))
    if not reserved and second not in taken:  # as nearly always
        return second
    free = _free(block, range(min(1, block.count - 1), _end(block)), taken, _numbers(block, reserved))
    return next((block.nth(number) for number in free), None)


def capacity(block: Prefix, reserved: Reserved = ()) -> int:
    """How many pods a block can hold."""
    first = FIRST_POD - 1
    held_back = sum(
        max(0, min(last, _end(block) - 1) - max(start, first) + 1) for start, last in _numbers(block, reserved)
    )
    return max(0, _end(block) - FIRST_POD - held_back)


def free(block: Prefix, held: Collection[Address], reserved: Reserved = ()) -> int:
    """How many more pods it can hold. `held`: what somebody has of it, each once."""
    numbers, first = _numbers(block, reserved), int.from_bytes(block.first, "big")
    places = (int.from_bytes(it, "big") - first for it in held)
    lost = sum(0 < it < _end(block) and not any(start <= it <= last for start, last in numbers) for it in places)
    return max(0, capacity(block, reserved) - lost)


def next_free(
    block: Prefix, taken: Container[Address], cursor: int, reserved: Reserved = ()
) -> tuple[Address, int] | None:
    """The first free address from the cursor on, and the cursor behind it; None where the block is full. The node's
    own is not free. Cursors count from the first address that a pod can have."""
    count, own = _end(block) - FIRST_POD, own_address(block, taken, reserved)
    if count <= 0:
        return None
    start, held_back = FIRST_POD + cursor % count, _numbers(block, reserved)
    for numbers in (range(start, _end(block)), range(FIRST_POD, start)):
        for number in _free(block, numbers, taken, held_back):
            candidate = block.nth(number)
            if candidate != own:
                return candidate, (number - FIRST_POD + 1) % count
    return None


def is_a_pods(block: Prefix, address: Address) -> bool:
    """Whether a pod can have this address of the block, if nobody else has."""
    number = int.from_bytes(address, "big") - int.from_bytes(block.first, "big")
    return min(1, block.count - 1) <= number < _end(block)


def _end(block: Prefix) -> int:
    """Behind the last number that anybody can have."""
    return block.count - (1 if block.family == IPV4 and block.count > FIRST_POD else 0)


def _numbers(block: Prefix, reserved: Reserved) -> list[tuple[int, int]]:
    """What is reserved, as numbers of the block's addresses, both ends included."""
    first = int.from_bytes(block.first, "big")
    return [
        (max(0, int.from_bytes(it.first, "big") - first), int.from_bytes(it.last, "big") - first)
        for it in reserved
        if len(it.first) == len(block.first) and it.last >= block.first and it.first <= block.last
    ]


def _free(
    block: Prefix, numbers: range, taken: Container[Address], held_back: Iterable[tuple[int, int]]
) -> Iterator[int]:
    """Those that nobody has, without a look at each that is held back."""
    number = numbers.start
    for start, last in (*held_back, (numbers.stop, numbers.stop)):
        for free in range(number, min(start, numbers.stop)):
            if block.nth(free) not in taken:
                yield free
        number = max(number, last + 1)


def next_index(name: str, ledger: Mapping[Address | int, object]) -> int:
    """An interface index far from those that the kernel gives, the same for the same link name while it is free."""
    index = FIRST_INDEX + crc32(name.encode()) % _INDEXES
    while index in ledger:
        index += 1
    return index
