"""Who no longer answers for a frontend of UDP or SCTP: noted in the kernel until the flows to him are gone.

Invariants: a note comes in the batch that takes the backend away, alone or with its frontend, so that an agent which is
killed right then finds it, whatever becomes of the frontend before the next one starts; and a boot takes both the note
and the flows. A host port is a frontend here. TCP, and whatever comes, cost nothing. Notes say nothing of what should
be: nobody compares the set `departed`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from podwire.controller.difference import Change
from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, text
from podwire.dataplane.nftables import reading
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.elements import elements
from podwire.dataplane.nftables.render import pair_key
from podwire.dataplane.nftables.steady import steady
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import Backend, Frontend
from podwire.model.objects import Protocol
from podwire.services.stale import NONE, backends, watched

DEPARTED = "departed"
Notes = Mapping[Frontend, frozenset[Backend]]


class Departed:
    def __init__(self, commit: Callable[[list[Message]], dict[int, int]]) -> None:
        """`commit`: as of the driver, which has to know of every change that is ours."""
        self._commit = commit
        self._reading = netlink.Socket(netlink.NETFILTER)
        self._noted: dict[Frontend, frozenset[Backend]] = {}
        """What the kernel may hold."""

    @property
    def open(self) -> Collection[Frontend]:
        """Those of which something is remembered until their flows have been looked after."""
        return self._noted.keys()

    def noted(self, key: Any, change: Change) -> list[Message]:
        """What belongs into the batch of such a change."""
        if change.before is None:
            return []
        frontend = watched(key)
        if frontend is None or frontend.protocol is Protocol.TCP:
            return []
        gone = backends(change.before) - backends(change.after)
        if not gone:
            return []
        self._noted[frontend] = self._noted.get(frontend, NONE) | gone
        return note(frontend, gone)

    def read(self) -> dict[Frontend, frozenset[Backend]]:
        """What the kernel holds, also of an earlier agent's; may run in a thread of its own. Raises OSError."""
        return {frontend: them for family in FAMILIES for frontend, them in read(self._reading, family).items()}

    def recall(self, notes: Notes) -> None:
        """Of what was read: these are to be looked after, and then forgotten."""
        for frontend, them in notes.items():
            self._noted[frontend] = self._noted.get(frontend, NONE) | them

    def forget(self, frontends: Iterable[Frontend]) -> None:
        """Whose flows have been looked after. What can't be deleted now stays open."""
        known = {frontend: self._noted.get(frontend, NONE) for frontend in frontends}
        # Made before, which leaves one that is there as it is: somebody's hand may have taken it.
        made = [message for frontend, them in known.items() for message in note(frontend, them)]
        gone = [message for frontend, them in known.items() for message in note(frontend, them, delete=True)]
        try:
            if gone and self._commit(made + gone):
                return
        except OSError:
            return
        for frontend in known:
            self._noted.pop(frontend, None)

    def close(self) -> None:
        self._reading.close()


def note(frontend: Frontend, them: Iterable[Backend], delete: bool = False) -> list[Message]:
    pairs = [w.element(pair_key(frontend, it)) for it in sorted(them)]
    return w.messages(frontend.family, DEPARTED, pairs, delete)


def read(there: netlink.Socket, family: Family) -> dict[Frontend, frozenset[Backend]]:
    """Nothing where there is no such set. Raises OSError."""
    request = w.table(family) + text(2, DEPARTED)
    bodies = steady(there, lambda: there.dump(w.GETELEM, request))
    found: dict[Frontend, frozenset[Backend]] = {}
    for element in elements(bodies):
        pair = reading.pair_of(family, element.key or b"")
        if pair is not None:
            found[pair[0]] = found.get(pair[0], NONE) | {pair[1]}
    return found
