"""Who else has changed our tables: told by the kernel, commit by commit, and counted so that none is missed.

Invariants: the kernel tells of every change while anybody listens, which would triple the cost of a full load: so
this leaves the group for the time of our own commits. The generation number rises by one with each commit, ours or
others'; where it has risen by more than was told and counted, something was missed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from podwire.dataplane import netlink
from podwire.dataplane.messages import attrs, text
from podwire.dataplane.nftables.layout import TABLE
from podwire.dataplane.nftables.wire import NEWGEN

_GROUP = 7
_OURS = text(1, TABLE)
"""How every message of our tables begins: with the table's name."""
_GEN_ID, _GEN_PROCESS, _GEN_NAME = 1, 2, 3


class Watch:
    def __init__(self, generation: Callable[[], int], listens: bool = True) -> None:
        self._listener = netlink.Listener(netlink.NETFILTER, (_GROUP,) if listens else ())
        self._generation = generation
        self._known = generation()
        """The generation up to which every commit is our own or was told."""
        self._behind: int | None = None
        self._touched, self._naming = False, False
        self.by = ""
        """Who has changed our tables last: the program's name and process."""

    def fileno(self) -> int:
        return self._listener.fileno()

    @contextmanager
    def own(self) -> Iterator[Callable[[bool], None]]:
        """Around one commit of ours; what it gives is to be told whether the commit was made."""
        made = False

        def tell(succeeded: bool) -> None:
            nonlocal made
            made = succeeded

        with self._listener.away():
            self._drain()
            yield tell
            self._known += made

    def touched(self) -> bool:
        """Whether others have changed our tables since the last time, or may have."""
        self._drain()
        self._note(self._generation())
        found, self._touched = self._touched, False
        return found

    def read(self) -> None:
        """All is about to be read: what was missed until now doesn't matter."""
        self._drain()
        self._known, self._behind, self._touched = self._generation(), None, False

    def close(self) -> None:
        self._listener.close()

    def _note(self, generation: int) -> None:
        """The kernel counts a commit before it tells of it: only a gap that stays is one."""
        behind = generation if generation != self._known else None
        if behind is not None and behind == self._behind:
            self._touched, self.by, self._known, behind = True, "", generation, None
        self._behind = behind

    def _drain(self) -> None:
        told = self._listener.datagrams()
        if told is None:
            self._touched, self.by = True, ""
        for data, _ in told or ():
            kind = int.from_bytes(data[4:6], sys.byteorder)
            if kind == NEWGEN:
                self._commit_told(attrs(data, 20))
            elif _OURS in data:  # not parsed one by one: another's load may be a hundred thousand messages
                self._touched = self._naming = True

    def _commit_told(self, seen: dict[int, bytes]) -> None:
        generation = int.from_bytes(seen[_GEN_ID], "big")
        if generation > self._known + 1:
            self._touched, self.by = True, ""
        self._known = max(self._known, generation)
        if self._naming:
            process = int.from_bytes(seen.get(_GEN_PROCESS, b""), "big")
            self.by = f"{seen.get(_GEN_NAME, b'?')[:-1].decode(errors='replace')} (process {process})"
            self._naming = False
