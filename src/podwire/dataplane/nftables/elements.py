"""The elements of dumped maps and sets, cut out of the bytes in which the kernel tells them. Pure.

Invariants: total: whatever bytes come are read or passed over. Those alike, nearly all of a map's, are cut by one form.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from podwire.dataplane.messages import NESTED, attr, attrs, walk


class Element(NamedTuple):
    """`key` None: the catch-all. `raw`: all that identifies it, for its deletion. `until`: where a range ends."""

    key: bytes | None
    data: bytes
    flags: int
    raw: bytes
    until: bytes = b""


def elements(bodies: Iterable[bytes]) -> Iterator[Element]:
    for listed in lists(bodies):
        yield from _listed(listed)


def lists(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """What the bodies of a dump list, each as it is."""
    return (listed for body in bodies for kind, listed in walk(body, 4) if kind == 3)


def _listed(listed: bytes) -> Iterator[Element]:
    """Most elements of a map have the first one's form; as long as they do they are only cut out."""
    at, form = 0, form_of(listed)
    if form is not None:
        cut, before = Struct(f"12s{form.key}s{len(form.between)}s{form.data}s"), raw_of(bytes(form.key))[:8]
        for head, key, between, data in cut.iter_unpack(whole(listed, cut)):
            if head != form.head or between != form.between:
                break
            yield Element(key, data, 0, before + key)
            at += cut.size
    yield from rest(listed, at)


def rest(listed: bytes, at: int) -> Iterator[Element]:
    """Whatever form they have."""
    return (_read_element(element) for _, element in walk(listed, at))


def whole(listed: bytes, cut: Struct) -> bytes:
    """As much as can be cut."""
    return listed[: len(listed) // cut.size * cut.size]


def raw_of(key: bytes) -> bytes:
    """All that identifies an element of a key and at most some data."""
    return attr(1 | NESTED, attr(1, key))


class Form(NamedTuple):
    """Elements of a key and at most some data: what stands before the key, and between it and the data; the lengths of
    these two."""

    head: bytes
    between: bytes
    key: int
    data: int


def form_of(listed: bytes) -> Form | None:
    """Of the first element; None where it holds anything more, or would have to be padded."""
    first = next((each for _, each in walk(listed)), b"")
    parts = list(walk(first))
    if [kind for kind, _ in parts] not in ([1], [1, 2]):
        return None
    inner = list(walk(parts[0][1]))
    key, data = inner[0][1] if len(inner) == 1 and inner[0][0] == 1 else b"", parts[1][1] if len(parts) > 1 else b""
    between = 4 if data else 0
    if not key or len(key) & 3 or len(data) & 3 or len(first) != 8 + len(key) + between + len(data):
        return None
    return Form(listed[:12], listed[12 + len(key) :][:between], len(key), len(data))


def _read_element(element: bytes) -> Element:
    seen = attrs(element)
    key = attrs(seen[1]).get(1) if 1 in seen else None
    flagged = attr(3, seen[3]) if 3 in seen else b""
    until = attrs(seen[10]).get(1, b"") if 10 in seen else b""
    raw = b"".join(attr(kind | NESTED, seen[kind]) for kind in (1, 10) if kind in seen) + flagged
    return Element(key, seen.get(2, b""), int.from_bytes(seen.get(3, b""), "big"), raw, until)
