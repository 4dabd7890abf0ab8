"""What nftables counts of each frontend: read, and forgotten.

Invariants: `read` may run in a thread of its own, and changes nothing. `forget` is quick, and bears with what has gone
already.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator

from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, text
from podwire.dataplane.nftables import counters
from podwire.dataplane.nftables import wire as w
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import Frontend


class Counting:
    def __init__(self, commit: Callable[[list[Message]], dict[int, int]]) -> None:
        """`commit`: as of the driver, which has to know of every change that is ours."""
        self._commit = commit
        self._reading = netlink.Socket(netlink.NETFILTER)

    def read(self) -> dict[Frontend, tuple[int, ...]]:
        """Of each frontend that was ever used: connections, packets and bytes to it, packets and bytes back. Raises
        OSError."""
        found: dict[Frontend, list[int]] = {}
        for family in FAMILIES:
            for frontend, count in counters.connections(family, self._dump(family, counters.CONNECTIONS)):
                found.setdefault(frontend, [0] * 5)[0] = count
            for frontend, direction, counter in counters.traffic(family, self._dump(family, counters.TRAFFIC)):
                at = 1 if direction == counters.ORIGINAL else 3
                found.setdefault(frontend, [0] * 5)[at : at + 2] = counter
        return {frontend: tuple(counts) for frontend, counts in found.items()}

    def forget(self, frontends: Iterable[Frontend]) -> None:
        """Raises OSError where they can't be."""
        messages = [message for frontend in frontends for message in counters.forget(frontend)]
        errors = self._commit(messages) if messages else {}
        if errors:
            worst = min(errors.values())
            raise OSError(worst, os.strerror(worst))

    def close(self) -> None:
        self._reading.close()

    def _dump(self, family: Family, name: str) -> Iterator[bytes]:
        try:
            for bodies in self._reading.stream(w.GETELEM, w.table(family) + text(2, name)):
                yield from bodies
        except OSError as error:
            if error.errno != errno.ENOENT:  # the table is away, by somebody's hand
                raise
