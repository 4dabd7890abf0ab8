"""Which node answers for an address by ARP and NDP. Pure.

Invariants: every node decides the same from the same names, without asking anybody. A node that comes or goes moves
only the addresses that it gets or had; the rest stays where it is.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256

from podwire.model.addresses import Address, show_address


def elected(address: Address, names: Iterable[str]) -> str:
    """ "" where there is nobody."""
    return min(names, key=lambda name: (_place(name, address), name), default="")


@lru_cache(maxsize=16_384)
def _place(name: str, address: Address) -> bytes:
    return sha256(f"{name}#{show_address(address)}".encode()).digest()
