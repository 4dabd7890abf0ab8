"""Reading nftables while others change it.

Invariants: what several messages tell is of one generation of the ruleset, where that can be had. The kernel (6.18)
marks an interrupted dump of rules, but none of elements: it goes on at the number that it had come to, and where one
before that was removed it leaves one out. Where commits never cease the last reading counts: nearly all are others', in
tables of their own, and what the agent itself commits is read again between its transactions.
"""

from collections.abc import Callable
from typing import TypeVar

from podwire.dataplane import netlink
from podwire.dataplane.messages import attrs
from podwire.dataplane.nftables import wire as w

ATTEMPTS = 5
Told = TypeVar("Told")


def generation(there: netlink.Socket) -> int:
    """Of the whole ruleset: rises with every commit, whoever makes it. Raises OSError."""
    return int.from_bytes(attrs(there.dump(w.GETGEN, bytes((0, 0, 0, 0)), 0)[0], 4)[1], "big")


def steady(there: netlink.Socket, read: Callable[[], Told]) -> Told:
    """Read again while commits came between. Raises OSError."""
    before = generation(there)
    for _ in range(ATTEMPTS):
        found = read()
        now = generation(there)
        if now == before:
            break
        before = now
    return found
