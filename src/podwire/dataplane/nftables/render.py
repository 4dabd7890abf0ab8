"""Frontends and their backends as slots, slots as map elements, and back. Pure.

Invariants: `place` keeps each backend in its slot where that is possible, so one changed backend is one or two
elements of `eps` and no verdict; the lower half of a class is always full. What a dump gives back equals what was
rendered. In a key numgen's slot number is host-endian, addresses and ports are network-endian: a wrong order would
miss silently.

A Service becomes map elements here: `place` gives each backend a slot, `render` turns a change of slots into elements,
`frontends` reads them back.
"""

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct, pack
from typing import Any

from podwire.controller.difference import Change, Difference
from podwire.dataplane.messages import CREATE, NESTED, Message, attr, attrs, nest, text, walk
from podwire.dataplane.nftables.layout import CLASSES, TABLE
from podwire.model.addresses import Address, Family, family_of
from podwire.model.network import Backend, ExternalKey, Frontend, LocalPodKey, RulesKey, ServiceRangeKey, Slots
from podwire.model.objects import Protocol

_SUBSYSTEM = 10 << 8
NEWCHAIN, GETCHAIN, NEWRULE, GETRULE, DELRULE, NEWELEM, GETELEM, DELELEM, GETGEN = (
    _SUBSYSTEM | n for n in (3, 4, 6, 7, 8, 12, 13, 14, 16)
)
APPEND = 0x800
MOST_ELEMENT_BYTES = 60_000
"""In one message: the length of a nested attribute has 16 bits."""
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_GOTO = -4
_INTERVAL_END = 1
_PORT, _PROTOCOL, _SLOT = Struct(">H2x"), Struct("=B3x"), Struct("=I")

Dumped = Mapping[str, Iterable[bytes]]
"""By the name of a map or set: the bodies of its dump."""


def rank(key: Any) -> int:
    return 0 if isinstance(key, RulesKey) else 1


def family_of_key(key: Any) -> Family:
    match key:
        case RulesKey(family):
            return family
        case ServiceRangeKey(first, _):
            return family_of(first)
        case ExternalKey(frontend):
            return frontend.family
    return family_of(key.address)


def holder(key: Any) -> tuple[str, ...]:
    """The maps and sets in which a key lies."""
    match key:
        case LocalPodKey():
            return ("pods",)
        case ExternalKey():
            return ("external",)
        case ServiceRangeKey():
            return ("service_ranges",)
        case Frontend():
            return ("svc", "eps", "refused")
    return ()


# --- slots -------------------------------------------------------------------------------------


def place(wanted: Any, now: Any) -> Any:
    """For the backends of a frontend, their slots; any other value as it is."""
    if not isinstance(wanted, frozenset):
        return wanted
    return slots(wanted, now)


def slots(wanted: frozenset[Backend], now: Slots | None) -> Slots:
    """The least class that holds all, its lower half full, each backend where it was if that is possible.

    More than the largest class holds are left out from the end of the sorted list.
    """
    if not wanted:
        return Slots(0, ())
    most = CLASSES[-1]
    if len(wanted) > most:
        wanted = frozenset(sorted(wanted, key=_order)[:most])
    size = next(k for k in CLASSES if k >= len(wanted))
    found: list[Backend | None] = []
    kept: set[Backend] = set()
    for backend in (now.backends if now is not None else ())[:size]:
        stays = backend is not None and backend in wanted and backend not in kept
        found.append(backend if stays else None)
        if backend is not None and stays:
            kept.add(backend)
    found += [None] * (size - len(found))
    free = [number for number, backend in enumerate(found) if backend is None]
    for number, backend in zip(free, sorted(wanted - kept, key=_order), strict=False):
        found[number] = backend  # the lowest free slot: the lower half fills first
    _fill_lower_half(found)
    return Slots(size, tuple(found))


def _fill_lower_half(slots: list[Backend | None]) -> None:
    top = len(slots) - 1
    for hole in range(len(slots) // 2):
        if slots[hole] is None:
            while slots[top] is None:
                top -= 1
            slots[hole], slots[top] = slots[top], None


def _order(backend: Backend) -> tuple[bytes, int]:
    return backend.address, backend.port


# --- elements ----------------------------------------------------------------------------------


def in_order(changes: Difference) -> list[tuple[Any, Change]]:
    """What goes, then what comes: a range that overlaps another is refused, also one that the same batch removes
    later."""
    return sorted(changes.items(), key=lambda item: item[1].after is not None)


def render(key: Any, change: Change) -> list[Message]:
    gone = change.after is None
    match key:
        case LocalPodKey(address):
            return _messages(family_of(address), "pods", [_element(address * 2)], gone)
        case ExternalKey(frontend):
            return _messages(frontend.family, "external", [_element(frontend_key(frontend))], gone)
        case ServiceRangeKey(first, last):
            return _messages(family_of(first), "service_ranges", _range(first, last), gone)
        case Frontend():
            return _frontend(key, change.before, change.after)
    raise TypeError(key)


def _frontend(key: Frontend, before: Slots | None, after: Slots | None) -> list[Message]:
    family, name = key.family, frontend_key(key)
    old = {n: b for n, b in enumerate(before.backends if before else ()) if b is not None}
    new = {n: b for n, b in enumerate(after.backends if after else ()) if b is not None}
    drop = [_element(name + _SLOT.pack(n)) for n, b in old.items() if new.get(n) != b]
    add = [_element(name + _SLOT.pack(n), attr(1, _backend_key(b))) for n, b in new.items() if old.get(n) != b]
    was, will = before.verdict if before else None, after.verdict if after else None
    found: list[Message] = []
    if was != will and was:
        found += _messages(family, "svc", [_element(name)], delete=True)
    if was != will and was == 0:
        found += _messages(family, "refused", [_element(name)], delete=True)
    found += _messages(family, "eps", drop, delete=True)
    found += _messages(family, "eps", add)
    if was != will and will:
        found += _messages(family, "svc", [_element(name, _goto(f"c{will}"))])
    if was != will and will == 0:
        found += _messages(family, "refused", [_element(name)])
    return found


def frontend_key(it: Frontend) -> bytes:
    return it.address + _PROTOCOL.pack(it.protocol) + _PORT.pack(it.port)


def _backend_key(it: Backend) -> bytes:
    return it.address + _PORT.pack(it.port)


def _range(first: Address, last: Address) -> list[bytes]:
    """A start, and an end that is no longer part of it; none where the range ends with the address space."""
    start = _element(first)
    beyond = int.from_bytes(last, "big") + 1
    if beyond >> (len(last) * 8):
        return [start]
    return [start, _element(beyond.to_bytes(len(last), "big"), flags=_INTERVAL_END)]


def _element(key: bytes, data: bytes = b"", flags: int = 0) -> bytes:
    flagged = attr(3, pack(">I", flags)) if flags else b""
    return nest(1, nest(1, attr(1, key)), nest(2, data) if data else b"", flagged)


def _goto(chain: str) -> bytes:
    return nest(2, attr(1, pack(">i", _GOTO)), text(2, chain))


def _messages(family: Family, name: str, elements: list[bytes], delete: bool = False) -> list[Message]:
    found: list[Message] = []
    head_of_all = head(family) + text(1, TABLE) + text(2, name)
    part: list[bytes] = []
    size = 0
    for element in elements:
        if size + len(element) > MOST_ELEMENT_BYTES:
            found.append(_message(head_of_all, part, delete))
            part, size = [], 0
        part.append(element)
        size += len(element)
    return [*found, _message(head_of_all, part, delete)] if part else found


def _message(head_of_all: bytes, elements: list[bytes], delete: bool) -> Message:
    return Message(DELELEM if delete else NEWELEM, 0 if delete else CREATE, head_of_all + nest(3, *elements))


def head(family: Family) -> bytes:
    return pack(">BBH", family.number, 0, 0)


def table(family: Family) -> bytes:
    return head(family) + text(1, TABLE)


def batch(messages: list[Message]) -> list[Message]:
    """All or nothing."""
    bound = pack(">BBH", 0, 0, 10)
    return [Message(_BATCH_BEGIN, 0, bound), *messages, Message(_BATCH_END, 0, bound)]


# --- and back ----------------------------------------------------------------------------------


def elements(bodies: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, int]]:
    """The key, data and flags of each element."""
    for body in bodies:
        for kind, listed in walk(body, 4):
            if kind == 3:
                for _, element in walk(listed):
                    seen = attrs(element)
                    yield attrs(seen[1])[1], seen.get(2, b""), int.from_bytes(seen.get(3, b""), "big")


def keys(family: Family, dumped: Dumped) -> dict[Any, Any]:
    """What the dumped maps and sets say; those that were not dumped are passed over."""
    size = family.size
    found: dict[Any, Any] = {LocalPodKey(Address(key[:size])): True for key, _, _ in elements(dumped.get("pods", ()))}
    found |= {ExternalKey(_frontend_of(size, key)): True for key, _, _ in elements(dumped.get("external", ()))}
    found |= _ranges(dumped.get("service_ranges", ()))
    found |= _frontends(size, dumped)
    return found


def _ranges(bodies: Iterable[bytes]) -> dict[ServiceRangeKey, bool]:
    # Where one range ends another may start: ends first.
    bounds = sorted((key, not flags & _INTERVAL_END) for key, _, flags in elements(bodies))
    found: dict[ServiceRangeKey, bool] = {}
    first: bytes | None = None
    for key, starts in bounds:
        if first is not None and not starts:
            last = (int.from_bytes(key, "big") - 1).to_bytes(len(key), "big")
            found[ServiceRangeKey(Address(first), Address(last))] = True
        first = key if starts else None
    if first is not None:
        found[ServiceRangeKey(Address(first), Address(b"\xff" * len(first)))] = True
    return found


def _frontends(size: int, dumped: Dumped) -> dict[Frontend, Slots]:
    found: dict[Frontend, Slots] = {
        _frontend_of(size, key): Slots(0, ()) for key, _, _ in elements(dumped.get("refused", ()))
    }
    sparse: dict[bytes, dict[int, Backend]] = {}
    for key, data, _ in elements(dumped.get("eps", ())):
        packed = attrs(data)[1]
        backend = Backend(Address(packed[:size]), int.from_bytes(packed[size : size + 2], "big"))
        sparse.setdefault(key[: size + 8], {})[_SLOT.unpack_from(key, size + 8)[0]] = backend
    classes = {key: _class_of(data) for key, data, _ in elements(dumped.get("svc", ()))}
    for packed in sparse.keys() | classes.keys():
        held = sparse.get(packed, {})
        verdict = classes.get(packed)
        length = max(verdict or 0, max(held, default=-1) + 1)
        found[_frontend_of(size, packed)] = Slots(verdict, tuple(held.get(n) for n in range(length)))
    return found


def _class_of(data: bytes) -> int:
    chain = attrs(attrs(data)[2])[2][:-1]
    return int(chain[1:]) if chain[1:].isdigit() else -1


def _frontend_of(size: int, key: bytes) -> Frontend:
    return Frontend(Address(key[:size]), Protocol(key[size]), int.from_bytes(key[size + 4 : size + 6], "big"))


def swap(family: Family, chains: Iterable[bytes], rules: Iterable[bytes]) -> list[Message]:
    """Dumped chains and rules as the messages that make a living table's rules equal to them, elements untouched."""
    whole = table(family)
    found: list[Message] = []
    for body in chains:
        seen = attrs(body, 4)
        hook = b"".join(attr(kind | NESTED * (kind == 4), seen[kind]) for kind in (4, 5, 7) if kind in seen)
        found.append(Message(NEWCHAIN, CREATE, whole + attr(3, seen[3]) + hook))
    found.append(Message(DELRULE, 0, whole))
    for body in rules:
        seen = attrs(body, 4)
        found.append(Message(NEWRULE, CREATE | APPEND, whole + attr(2, seen[2]) + attr(4 | NESTED, seen[4])))
    return found
