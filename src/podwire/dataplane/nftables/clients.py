"""Whom session affinity remembers: entries of the maps that fill themselves, read and deleted one by one.

Invariants: what is read is not changed here, but forgotten where its backend is gone (services/stale.py). `read` may
run in a thread of its own. An entry that has expired meanwhile was deleted. A full map costs only who comes anew: he is
drawn for, and not remembered, while all others are; that is told.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, attrs, text
from podwire.dataplane.nftables import reading
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.affinity import seconds_of
from podwire.dataplane.nftables.elements import elements
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import Frontend, SharedKey
from podwire.services.stale import Flow

_DESCRIPTION, _SIZE, _COUNT = 9, 1, 20
"""Of a set's attributes: what holds its size, that, and how many elements it has, where the kernel tells."""


class Client(NamedTuple):
    """A client that is remembered for `seconds` at a frontend, and `others` that share its memory. `key` names it in
    the map."""

    flow: Flow
    others: tuple[Flow, ...]
    family: Family
    seconds: int
    key: bytes


class Clients:
    name = "session affinity"
    lasting = False

    def __init__(self, commit: Callable[[list[Message]], dict[int, int]]) -> None:
        """`commit`: as of the driver, which has to know of every change that is ours."""
        self._commit = commit
        self._reading, self._asking = netlink.Socket(netlink.NETFILTER), netlink.Socket(netlink.NETFILTER)
        self._counted: dict[tuple[Family, int], int] = {}
        """How many clients the last reading found."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """For people: which maps are full. Empty where they can't be read."""
        try:
            return tuple(line for family in FAMILIES for line in self._full(family))
        except OSError:
            return ()

    def _full(self, family: Family) -> Iterator[str]:
        """Older kernels don't tell how many there are; there the last reading counts."""
        for body in self._asking.dump(w.GETSET, w.table(family)):
            held = attrs(body, 4)
            seconds = seconds_of(held[2][:-1].decode())
            if not seconds:
                continue
            size = int.from_bytes(attrs(held.get(_DESCRIPTION, b"")).get(_SIZE, b""), "big")
            told = held.get(_COUNT)
            count = int.from_bytes(told, "big") if told is not None else self._counted.get((family, seconds), 0)
            if count >= size:
                remembered = f"{count} clients are remembered, as many as there is room for"
                yield f"session affinity of {seconds} s, {family}: {remembered}: whoever is new keeps no backend"

    def read(self, frontends: Mapping[Frontend, Any], everything: bool, ended: Callable[[], bool]) -> Iterator[Client]:
        """Those of these frontends, or all. Until `ended`, asked now and then. Raises OSError."""
        for family in FAMILIES:
            if not everything and not any(frontend.family == family for frontend in frontends):
                continue
            sharing = self._sharing(family)
            names = (attrs(body, 4)[2][:-1].decode() for body in self._reading.dump(w.GETSET, w.table(family)))
            for seconds in sorted({seconds_of(name) for name in names} - {0}):
                for client in self._of(family, seconds, sharing, ended):
                    if everything or any(it.to in frontends for it in (client.flow, *client.others)):
                        yield client

    def _sharing(self, family: Family) -> dict[Frontend, tuple[Frontend, ...]]:
        """The others that are remembered under each frontend."""
        bodies = self._reading.dump(w.GETELEM, w.table(family) + text(2, "shared"))
        found: dict[Frontend, tuple[Frontend, ...]] = {}
        for key, under in reading.shared(family, bodies).items():
            if isinstance(key, SharedKey) and key.frontend != under:
                found[under] = (*found.get(under, ()), key.frontend)
        return found

    def _of(
        self, family: Family, seconds: int, sharing: Mapping[Frontend, tuple[Frontend, ...]], ended: Callable[[], bool]
    ) -> Iterator[Client]:
        request = w.table(family) + text(2, f"affinity{seconds}")
        count = 0
        try:
            for bodies in self._reading.stream(w.GETELEM, request):
                for element in () if ended() else elements(bodies):
                    count += 1
                    flow = reading.remembered_flow(family, element)
                    if flow is not None and element.key is not None:
                        others = tuple(Flow(it, flow.answers, flow.client) for it in sharing.get(flow.to, ()))
                        yield Client(flow, others, family, seconds, element.key)
        except netlink.Interrupted:
            pass  # one that was missed is remembered for nothing, and found by the next look
        except OSError as error:
            if error.errno != errno.ENOENT:  # the last Service of that affinity has gone meanwhile
                raise
        self._counted[family, seconds] = count

    def delete(self, entries: Sequence[Client]) -> tuple[list[Client], OSError | None]:
        """Those that were deleted, and why one could not be."""
        left = list(entries)
        if not left or not self._commit(_forget_all(left)):
            return left, None
        while left:  # one of them has expired: which one is only known of messages
            errors = self._commit([_forget(it) for it in left])
            if not errors:
                break
            worst = next((code for code in errors.values() if code != errno.ENOENT), 0)
            if worst:
                return [], OSError(worst, os.strerror(worst))
            left = [it for at, it in enumerate(left, 1) if at not in errors]
        return left, None

    def close(self) -> None:
        self._reading.close()
        self._asking.close()


def _forget_all(clients: Sequence[Client]) -> list[Message]:
    """In as few messages as hold them."""
    by_map: dict[tuple[Family, int], list[bytes]] = {}
    for it in clients:
        by_map.setdefault((it.family, it.seconds), []).append(w.element(it.key))
    return [
        message
        for (family, seconds), some in by_map.items()
        for message in w.messages(family, f"affinity{seconds}", some, delete=True)
    ]


def _forget(it: Client) -> Message:
    (message,) = w.messages(it.family, f"affinity{it.seconds}", [w.element(it.key)], delete=True)
    return message
