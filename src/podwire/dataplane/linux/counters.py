"""What the kernel counts of each interface of the node (RTM_GETSTATS, linux/if_link.h).

Invariants: `read` may run in a thread of its own, and changes nothing. It costs no packet anything: the kernel counts
in any case.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from podwire.dataplane import netlink
from podwire.dataplane.messages import walk

_GETSTATS, _LINK_64 = 94, 1
_HEADER = Struct("=B3xII")
"""Family, interface index, and which statistics: a bit for each attribute."""
_STATS = Struct("=4Q")


class InterfaceCounts(NamedTuple):
    """Of the interface itself: what a pod's link received is what the pod sent. Bytes with Ethernet's headers."""

    received_packets: int
    sent_packets: int
    received_bytes: int
    sent_bytes: int


class InterfaceCounters:
    """In the namespace of the thread that makes it."""

    def __init__(self) -> None:
        self._socket = netlink.Socket(netlink.ROUTE)

    def read(self) -> dict[int, InterfaceCounts]:
        """By interface index. Raises OSError."""
        return dict(counts(self._socket.dump(_GETSTATS, _HEADER.pack(0, 0, 1 << _LINK_64 - 1))))

    def close(self) -> None:
        self._socket.close()


def counts(bodies: Iterable[bytes]) -> Iterator[tuple[int, InterfaceCounts]]:
    for body in bodies:
        _, index, _ = _HEADER.unpack_from(body)
        for kind, told in walk(body, _HEADER.size):
            if kind == _LINK_64:
                yield index, InterfaceCounts(*_STATS.unpack_from(told))
