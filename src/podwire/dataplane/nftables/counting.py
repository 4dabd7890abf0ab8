"""What nftables counts of each frontend: read, and forgotten.

Invariants: `read` may run in a thread of its own, and changes nothing. `forget` is quick, and bears with what has gone
already.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator

from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, attrs, text
from podwire.dataplane.nftables import counters
from podwire.dataplane.nftables import wire as w
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import Frontend


class Counting:
    def __init__(self, commit: Callable[[list[Message]], dict[int, int]], boot: str) -> None:
        """`commit`: as of the driver, which has to know of every change that is ours. `boot`: the boot's ID."""
        self._commit, self._boot = commit, boot
        self._reading = netlink.Socket(netlink.NETFILTER)

    def identity(self) -> str:
        """Which counters these are: others after a boot, in another namespace, or where a table or one of the sets was
        made anew. Raises OSError."""
        parts = [self._boot, str(self._reading.namespace())]
        for family in FAMILIES:
            asked = [(w.GETTABLE, b"", counters.TABLE_HANDLE)]
            asked += [
                (w.GETSET, text(2, name), counters.SET_HANDLE) for name in (counters.CONNECTIONS, counters.TRAFFIC)
            ]
            for kind, name, handle in asked:
                seen = self._reading.dump(kind, w.table(family) + name, 0)
                parts += [attrs(body, 4).get(handle, b"").hex() for body in seen] or ["none"]
        return " ".join(parts)

    def read(self) -> dict[Frontend, tuple[int, ...]]:
        """Of each frontend that was ever used: connections and the bytes of their first packets, packets and bytes to
        it after these, packets and bytes back. Raises OSError."""
        found: dict[Frontend, list[int]] = {}
        for family in FAMILIES:
            for frontend, first in counters.connections(family, self._dump(family, counters.CONNECTIONS)):
                found.setdefault(frontend, [0] * 6)[:2] = first
            for frontend, direction, counter in counters.traffic(family, self._dump(family, counters.TRAFFIC)):
                at = 2 if direction == counters.ORIGINAL else 4
                found.setdefault(frontend, [0] * 6)[at : at + 2] = counter
        return {frontend: tuple(counts) for frontend, counts in found.items()}

    def forget(self, frontends: Iterable[Frontend]) -> None:
        """Raises OSError where they can't be. Nothing is made for it: the sets may be full."""
        left = [message for frontend in frontends for message in counters.forget(frontend)]
        while left and (errors := self._commit(left)):  # some are not there: which ones is known of messages
            worst = next((code for code in errors.values() if code != errno.ENOENT), 0)
            there = [message for at, message in enumerate(left, 1) if at not in errors]
            if worst or len(there) == len(left):
                raise OSError(worst, os.strerror(worst))
            left = there

    def close(self) -> None:
        self._reading.close()

    def _dump(self, family: Family, name: str) -> Iterator[bytes]:
        try:
            for bodies in self._reading.stream(w.GETELEM, w.table(family) + text(2, name)):
                yield from bodies
        except netlink.Interrupted:
            pass  # what was missed keeps the count that it had
        except OSError as error:
            if error.errno != errno.ENOENT:  # the table is away, by somebody's hand
                raise
