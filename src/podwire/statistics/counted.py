"""What the kernel counts of a frontend, and what that is for a reader. Pure.

Invariants: each of the counts rises by itself, since the two sets that hold them may begin anew at different times.
"""

from podwire.statistics.totals import Counts

COUNTS = 6
"""Connections, the bytes of their first packets; packets and bytes that followed these; packets and bytes back."""


def told(counts: Counts) -> Counts:
    """Connections, packets and bytes from clients, packets and bytes to them."""
    connections, first, packets, size, *back = counts
    return connections, connections + packets, first + size, *back
