"""Connection tracking's entries: read through filters of the kernel, and deleted one by one.

Invariants: never flushed. `read` may run in a thread of its own and lets others run after each datagram; `delete` is
quick. An entry that has gone by itself meanwhile was deleted.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from podwire.dataplane import netlink
from podwire.dataplane.conntrack import messages as m
from podwire.model.network import Frontend

_NO_FILTER = (errno.EINVAL, errno.EOPNOTSUPP)
_ATTEMPTS = 5


class Conntrack:
    name = "conntrack"
    lasting = True

    def __init__(self) -> None:
        self.writes = 0
        self._reading, self._deleting = netlink.Socket(netlink.NETFILTER), netlink.Socket(netlink.NETFILTER)

    def read(self, frontends: Iterable[Frontend], everything: bool, ended: Callable[[], bool]) -> Iterator[m.Entry]:
        """The flows of these frontends, or all. Until `ended`, asked now and then. Raises
        OSError."""
        frontends = frozenset(frontends)
        to = None if everything else m.to_frontends(frontends)
        for query in m.queries(frontends, everything):
            yield from self._read(query, to, ended)

    def _read(self, query: m.Query, to: frozenset[bytes] | None, ended: Callable[[], bool]) -> Iterator[m.Entry]:
        try:
            yield from self._entries(query, m.request(query), to, ended)
        except OSError as error:
            if error.errno not in _NO_FILTER:
                raise
            yield from self._entries(query, m.request_all(query.family), to, ended)

    def delete(self, entries: Sequence[m.Entry]) -> tuple[list[m.Entry], OSError | None]:
        """Those that were deleted, and why one could not be."""
        entries = list({m.deletion(entry): entry for entry in entries}.values())
        errors = self._deleting.send([m.deletion(entry) for entry in entries])
        done = [entry for at, entry in enumerate(entries) if at not in errors]
        self.writes += len(done)
        worst = next((code for code in errors.values() if code != errno.ENOENT), 0)
        return done, OSError(worst, os.strerror(worst)) if worst else None

    def close(self) -> None:
        self._reading.close()
        self._deleting.close()

    def _entries(
        self, query: m.Query, body: bytes, to: frozenset[bytes] | None, ended: Callable[[], bool]
    ) -> Iterator[m.Entry]:
        """Those of a dump that was interrupted, and of the next ones, until one was not: what is told twice is deleted
        once, what nobody was told of would go on to where nobody answers."""
        for attempt in range(_ATTEMPTS):
            try:
                for bodies in self._reading.stream(m.GET, body):
                    if not ended():
                        yield from m.entries(query.family, bodies, to)
            except netlink.Interrupted:
                if attempt == _ATTEMPTS - 1 and not ended():
                    raise
            else:
                return
