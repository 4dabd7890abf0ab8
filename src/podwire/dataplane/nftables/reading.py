"""Dumped map elements back to frontends, pods and ranges. Pure.

Invariants: total: whatever somebody's hand has put into our maps is read, as an AlienKey where no key of ours makes it,
so that it can be seen and removed. What was rendered is read as itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import pack
from typing import Any, NamedTuple

from podwire.dataplane.messages import NESTED, attr, attrs, walk
from podwire.dataplane.nftables.layout import CLASSES
from podwire.dataplane.nftables.render import GOTO, INTERVAL_END, SLOT
from podwire.model.addresses import Address, Family
from podwire.model.network import (
    AlienKey,
    Backend,
    ExternalIPKey,
    ExternalKey,
    Frontend,
    LocalPodKey,
    ServiceRangeKey,
    Slots,
)
from podwire.model.objects import Protocol

Dumped = Mapping[str, Iterable[bytes]]
"""By the name of a map or set: the bodies of its dump."""

_PROTOCOLS = {int(protocol): protocol for protocol in Protocol}


class Element(NamedTuple):
    """`key` None: the catch-all. `raw`: all that identifies it, for its deletion."""

    key: bytes | None
    data: bytes
    flags: int
    raw: bytes


def elements(bodies: Iterable[bytes]) -> Iterator[Element]:
    for body in bodies:
        for kind, listed in walk(body, 4):
            if kind == 3:
                for _, element in walk(listed):
                    yield _read_element(element)


def _read_element(element: bytes) -> Element:
    seen = attrs(element)
    key = attrs(seen[1]).get(1) if 1 in seen else None
    flagged = attr(3, seen[3]) if 3 in seen else b""
    raw = (attr(1 | NESTED, seen[1]) if 1 in seen else b"") + flagged
    return Element(key, seen.get(2, b""), int.from_bytes(seen.get(3, b""), "big"), raw)


def keys(family: Family, dumped: Dumped) -> dict[Any, Any]:
    """What the dumped maps and sets say; those that were not dumped are passed over. Whatever no key of ours makes is
    an AlienKey, so that it can be seen and removed."""
    found: dict[Any, Any] = {}
    readers: dict[str, Callable[[Family, bytes], Any]] = {
        "pods": _local_pod,
        "external": _external,
        "external_ips": _external_ip,
    }
    for name, read in readers.items():
        for element in elements(dumped.get(name, ())):
            key = read(family, element.key) if element.key is not None else None
            found[key if key is not None else AlienKey(family, name, element.raw)] = True
    return found | _ranges(family, dumped.get("service_ranges", ())) | _frontends(family, dumped)


def _local_pod(family: Family, key: bytes) -> LocalPodKey | None:
    first, second = key[: family.size], key[family.size :]
    return LocalPodKey(Address(first)) if first == second and len(first) == family.size else None


def _external_ip(family: Family, key: bytes) -> ExternalIPKey | None:
    return ExternalIPKey(Address(key)) if len(key) == family.size else None


def _external(family: Family, key: bytes) -> ExternalKey | None:
    frontend = _frontend_of(family, key)
    return ExternalKey(frontend) if frontend is not None else None


def _ranges(family: Family, bodies: Iterable[bytes]) -> dict[Any, bool]:
    # Where one range ends another may start: ends first.
    read = [(e.key, not e.flags & INTERVAL_END) for e in elements(bodies) if e.key is not None]
    bounds = sorted((key, starts) for key, starts in read if len(key) == family.size)
    found: dict[Any, bool] = {}
    first: bytes | None = None
    for key, starts in bounds:
        if first is not None and not starts:
            last = (int.from_bytes(key, "big") - 1).to_bytes(family.size, "big")
            found[ServiceRangeKey(Address(first), Address(last))] = True
        first = key if starts else None
    if first is not None:
        found[ServiceRangeKey(Address(first), Address(b"\xff" * family.size))] = True
    return found


class _Read:
    """What was found of one frontend so far."""

    def __init__(self) -> None:
        self.verdict: int | None = None
        self.refused = False
        self.slots: dict[int, Backend] = {}

    def slots_(self) -> Slots:
        if self.refused and self.verdict is None and not self.slots:
            return Slots(0, ())
        length = max(self.verdict or 0, max(self.slots, default=-1) + 1)
        return Slots(self.verdict, tuple(self.slots.get(n) for n in range(length)), self.refused)


def _frontends(family: Family, dumped: Dumped) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    read: dict[Frontend, _Read] = {}
    for name in ("refused", "svc", "eps"):
        for element in elements(dumped.get(name, ())):
            frontend = _frontend_of(family, element.key, slot=name == "eps") if element.key is not None else None
            if frontend is None:
                found[AlienKey(family, name, element.raw)] = True
                continue
            held = read.setdefault(frontend, _Read())
            if name == "refused":
                held.refused = True
            elif name == "svc":
                held.verdict = _class_of(element.data)
            else:
                number = SLOT.unpack_from(element.key or b"", family.size + 8)[0]
                if number < CLASSES[-1]:
                    held.slots[number] = _backend_of(family, element.data)
                else:
                    found[AlienKey(family, name, element.raw)] = True
    return found | {frontend: held.slots_() for frontend, held in read.items()}


def _backend_of(family: Family, data: bytes) -> Backend:
    packed = attrs(data).get(1, b"").ljust(family.size + 4, b"\0")
    return Backend(Address(packed[: family.size]), int.from_bytes(packed[family.size : family.size + 2], "big"))


def _class_of(data: bytes) -> int:
    """-1: a verdict that we never give."""
    verdict = attrs(attrs(data).get(2, b""))
    chain = verdict.get(2, b"")[:-1].decode(errors="replace")
    goes = verdict.get(1) == pack(">i", GOTO)
    return next((k for k in CLASSES if goes and chain == f"c{k}"), -1)


def _frontend_of(family: Family, key: bytes, slot: bool = False) -> Frontend | None:
    """None: of a protocol that no Service has, or of a map that is of another form than ours. `slot`: one follows."""
    size = family.size
    if len(key) != size + 8 + SLOT.size * slot or key[size] not in _PROTOCOLS:
        return None
    number = key[size]
    return Frontend(Address(key[:size]), _PROTOCOLS[number], int.from_bytes(key[size + 4 : size + 6], "big"))
