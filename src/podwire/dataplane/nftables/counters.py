"""The elements of the sets `connections` and `traffic`, which the kernel fills by itself, as counts of frontends. Pure.

Invariants: an element of a form that is not ours counts for nobody. A message deletes one element, so that the kernel
tells of each whether it was there.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from podwire.dataplane.messages import Message, walk
from podwire.dataplane.nftables.reading import frontend_of
from podwire.dataplane.nftables.render import frontend_key
from podwire.dataplane.nftables.wire import element, messages
from podwire.model.addresses import Family
from podwire.model.network import Frontend

CONNECTIONS, TRAFFIC = "connections", "traffic"
ORIGINAL, REPLY = 0, 1
"""A packet's direction: from who began the connection, or back (linux/netfilter/nf_conntrack_tuple_common.h)."""
TABLE_HANDLE, SET_HANDLE = 4, 16
"""Attributes: a number that no other table, or set of a table, ever had (linux/netfilter/nf_tables.h)."""
_DIRECTION = Struct("=B3x")
_LIST, _KEY, _EXPRESSION = 3, 1, 7
_COUNTER = Struct(">4xQ4xQ")
"""Bytes and packets, each behind its attribute's header; the kernel tells them in this order."""
_BEFORE_COUNTER = 16
"""Bytes: the name "counter" and the header of what it holds."""


class Counter(NamedTuple):
    packets: int
    bytes: int


def connections(family: Family, bodies: Iterable[bytes]) -> Iterator[tuple[Frontend, Counter]]:
    """The first packets of each frontend's connections, from a dump's bodies."""
    for key, counter in _elements(bodies):
        frontend = frontend_of(family, key)
        if frontend is not None:
            yield frontend, counter


def traffic(family: Family, bodies: Iterable[bytes]) -> Iterator[tuple[Frontend, int, Counter]]:
    """What else went to each frontend and came back, by direction."""
    for key, counter in _elements(bodies):
        frontend = frontend_of(family, key[: -_DIRECTION.size])
        if frontend is not None and key[-_DIRECTION.size] in (ORIGINAL, REPLY):
            yield frontend, key[-_DIRECTION.size], counter


def forget(frontend: Frontend) -> list[Message]:
    """Ends what counts it, one message for each element that there may be."""
    family, name = frontend.family, frontend_key(frontend)
    held = [(CONNECTIONS, name), *((TRAFFIC, name + _DIRECTION.pack(direction)) for direction in (ORIGINAL, REPLY))]
    return [message for which, key in held for message in messages(family, which, [element(key)], delete=True)]


def _elements(bodies: Iterable[bytes]) -> Iterator[tuple[bytes, Counter]]:
    for body in bodies:
        for kind, listed in walk(body, 4):
            if kind == _LIST:
                for _, it in walk(listed):
                    held = dict(walk(it))
                    counter = held.get(_EXPRESSION, b"")
                    if len(counter) >= _BEFORE_COUNTER + _COUNTER.size and _KEY in held:
                        count, packets = _COUNTER.unpack_from(counter, _BEFORE_COUNTER)[:2]
                        yield held[_KEY][4:], Counter(packets, count)
