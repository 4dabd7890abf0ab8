"""Which node answers for an address by ARP or NDP. Pure.

Invariants: every node that knows the same nodes as eligible names the same one, without a word between them. A node
that comes or goes moves only the addresses that it gets or had (rendezvous hashing), and each node has its share.
"""

from collections.abc import Iterable
from hashlib import sha256

from podwire.model.addresses import Address, show_address


def owner(address: Address, nodes: Iterable[str]) -> str | None:
    """Of the nodes that may answer for it, the one with the lowest SHA-256 of `node#address`; None: there is none."""
    text = show_address(address)
    return min(nodes, key=lambda node: _rank(node, text), default=None)


def _rank(node: str, address: str) -> tuple[bytes, str]:
    return sha256(f"{node}#{address}".encode()).digest(), node
