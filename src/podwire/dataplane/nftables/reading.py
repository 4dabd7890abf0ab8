"""Dumped map elements back to frontends, pods and ranges. Pure.

Invariants: total: whatever somebody's hand has put into our maps is read, as an AlienKey where no key of ours makes it,
so that it can be seen and removed. What was rendered is read as itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from podwire.dataplane.messages import NESTED, attr, attrs, walk
from podwire.dataplane.nftables.affinity import seconds_of
from podwire.dataplane.nftables.layout import CLASSES
from podwire.dataplane.nftables.render import ALL, CLUSTER, SLOT, Names
from podwire.dataplane.nftables.wire import GOTO, INTERVAL_END, JUMP
from podwire.model.addresses import Address, Family, Prefix
from podwire.model.network import (
    AlienKey,
    AllowedKey,
    Backend,
    ClusterRangeKey,
    ExternalIPKey,
    ExternalKey,
    Frontend,
    InternalKey,
    LocalPodKey,
    RememberKey,
    RestrictedKey,
    ServiceRangeKey,
    Slots,
    UnmasqueradedKey,
)
from podwire.model.objects import Protocol
from podwire.services.stale import Flow

Dumped = Mapping[str, Iterable[bytes]]
"""By the name of a map or set: the bodies of its dump."""

_VALUE = {size: attr(1, bytes(size + 4))[:4] for size in (4, 16)}
"""What stands before an address and a port, by the address's size."""
_PROTOCOLS = {int(protocol): protocol for protocol in Protocol}


class Element(NamedTuple):
    """`key` None: the catch-all. `raw`: all that identifies it, for its deletion. `until`: where a range ends."""

    key: bytes | None
    data: bytes
    flags: int
    raw: bytes
    until: bytes = b""


def elements(bodies: Iterable[bytes]) -> Iterator[Element]:
    for body in bodies:
        for kind, listed in walk(body, 4):
            if kind == 3:
                yield from _listed(listed)


def _listed(listed: bytes) -> Iterator[Element]:
    """Most elements of a map have the first one's form; as long as they do they are only cut out."""
    at, form = 0, _form(listed)
    if form is not None:
        for head, key, between, data in form.cut.iter_unpack(listed[: len(listed) // form.cut.size * form.cut.size]):
            if head != form.head or between != form.between:
                break
            yield Element(key, data, 0, form.raw + key)
            at += form.cut.size
    for _, element in walk(listed, at):
        yield _read_element(element)


class _Form(NamedTuple):
    """Elements of a key and at most some data: how one is cut up, what stands before key and data, and what stands
    before the key in `raw`."""

    cut: Struct
    head: bytes
    between: bytes
    raw: bytes


def _form(listed: bytes) -> _Form | None:
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
    raw = attr(1 | NESTED, attr(1, key))[:8]
    return _Form(Struct(f"12s{len(key)}s{between}s{len(data)}s"), listed[:12], listed[12 + len(key) :][:between], raw)


def _read_element(element: bytes) -> Element:
    seen = attrs(element)
    key = attrs(seen[1]).get(1) if 1 in seen else None
    flagged = attr(3, seen[3]) if 3 in seen else b""
    until = attrs(seen[10]).get(1, b"") if 10 in seen else b""
    raw = b"".join(attr(kind | NESTED, seen[kind]) for kind in (1, 10) if kind in seen) + flagged
    return Element(key, seen.get(2, b""), int.from_bytes(seen.get(3, b""), "big"), raw, until)


def keys(family: Family, dumped: Dumped) -> dict[Any, Any]:
    """What the dumped maps and sets say; those that were not dumped are passed over. Whatever no key of ours makes is
    an AlienKey, so that it can be seen and removed."""
    found: dict[Any, Any] = {}
    readers: dict[str, Callable[[Family, bytes, bytes], Any]] = {
        "pods": _local_pod,
        "external": partial(_of_frontend, ExternalKey),
        "external_ips": _external_ip,
        "restricted": partial(_of_frontend, RestrictedKey),
        "allowed": _allowed,
    }
    for name, read in readers.items():
        for element in elements(dumped.get(name, ())):
            key = read(family, element.key, element.until) if element.key is not None else None
            found[key if key is not None else AlienKey(family, name, element.raw)] = True
    found |= _ranges(family, "service_ranges", dumped, ServiceRangeKey)
    found |= _ranges(family, "cluster", dumped, ClusterRangeKey)
    found |= _ranges(family, "unmasqueraded", dumped, UnmasqueradedKey)
    found |= _remembered(family, dumped.get("remembered", ()))
    return found | _frontends(family, dumped)


def _local_pod(family: Family, key: bytes, _: bytes) -> LocalPodKey | None:
    first, second = key[: family.size], key[family.size :]
    return LocalPodKey(Address(first)) if first == second and len(first) == family.size else None


def _external_ip(family: Family, key: bytes, _: bytes) -> ExternalIPKey | None:
    return ExternalIPKey(Address(key)) if len(key) == family.size else None


def _of_frontend(form: Callable[[Frontend], Any], family: Family, key: bytes, _: bytes) -> Any:
    frontend = frontend_of(family, key)
    return form(frontend) if frontend is not None else None


def _allowed(family: Family, key: bytes, until: bytes) -> AllowedKey | None:
    """None where the addresses are no prefix, too."""
    name, first, last = key[: -family.size], key[-family.size :], until[-family.size :]
    frontend = frontend_of(family, name)
    if frontend is None or until[: -family.size] != name:
        return None
    span = int.from_bytes(first, "big") ^ int.from_bytes(last, "big")
    prefix = Prefix(Address(first), family.bits - span.bit_length())
    whole = span & (span + 1) == 0 and int.from_bytes(first, "big") & span == 0
    return AllowedKey(frontend, prefix) if whole else None


def _ranges(
    family: Family, name: str, dumped: Dumped, form: type[ServiceRangeKey | ClusterRangeKey | UnmasqueradedKey]
) -> dict[Any, bool]:
    found: dict[Any, bool] = {}
    bounds: list[tuple[bytes, bool]] = []
    for element in elements(dumped.get(name, ())):
        if element.key is None or len(element.key) != family.size:  # the one that catches all has no key
            found[AlienKey(family, name, element.raw)] = True
        else:
            bounds.append((element.key, not element.flags & INTERVAL_END))
    bounds.sort()  # where one range ends another may start: ends first
    first: bytes | None = None
    for key, starts in bounds:
        if first is not None and not starts:
            last = (int.from_bytes(key, "big") - 1).to_bytes(family.size, "big")
            found[form(Address(first), Address(last))] = True
        first = key if starts else None
    if first is not None:
        found[form(Address(first), Address(b"\xff" * family.size))] = True
    return found


class _Read:
    """What was found of one list so far."""

    def __init__(self) -> None:
        self.verdict: int | None = None
        self.drawn: int | None = None
        self.affinity = 0
        self.refused = self.dropped = False
        self.slots: dict[int, Backend] = {}
        self.keeps: set[Backend] = set()

    def slots_(self) -> Slots:
        length = max(self.verdict or 0, self.drawn or 0, max(self.slots, default=-1) + 1)
        backends = tuple(self.slots.get(n) for n in range(length))
        keeps = frozenset(self.keeps)
        return Slots(self.verdict, backends, self.refused, self.dropped, self.affinity, self.drawn, keeps)


def _frontends(family: Family, dumped: Dumped) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    read: dict[Frontend | InternalKey, _Read] = {}
    for name in ("refused", "dropped", "svc", "svc_internal", "drawn", "drawn_internal", "eps"):
        frontends: dict[bytes, Frontend | None] = {}
        """By key, without the slot: many slots have the same."""
        for element in elements(dumped.get(name, ())):
            packed = element.key or b""
            of = packed[: -SLOT.size] if name == "eps" else packed
            if of not in frontends:
                frontends[of] = frontend_of(family, packed, slot=name == "eps")
            frontend = frontends[of]
            if frontend is None or not _take(read, name, frontend, element):
                found[AlienKey(family, name, element.raw)] = True
    for names in (ALL, CLUSTER):
        for element in elements(dumped.get(names.serving, ())):
            pair = pair_of(family, element.key or b"")
            if pair is None:
                found[AlienKey(family, names.serving, element.raw)] = True
            else:
                key = InternalKey(pair[0]) if names is CLUSTER else pair[0]
                read.setdefault(key, _Read()).keeps.add(pair[1])
    return found | {key: held.slots_() for key, held in read.items()}


def _take(read: dict[Frontend | InternalKey, _Read], name: str, frontend: Frontend, element: Element) -> bool:
    """False: it is none that we give."""
    if name == "eps":
        return _take_slot(read, frontend, element)
    names = CLUSTER if name in (CLUSTER.verdicts, CLUSTER.drawn) else ALL
    held = read.setdefault(InternalKey(frontend) if names is CLUSTER else frontend, _Read())
    match name:
        case "refused":
            held.refused = True
        case "dropped":
            held.dropped = True
        case names.drawn:
            held.drawn = _class_of(element.data, names)
        case _:
            held.affinity = _affinity_of(element.data, names)
            held.verdict = _class_of(element.data, names) if held.affinity == 0 else None
    return True


def _take_slot(read: dict[Frontend | InternalKey, _Read], frontend: Frontend, element: Element) -> bool:
    (number,) = SLOT.unpack_from(element.key or b"", len(frontend.address) + 8)
    key: Frontend | InternalKey = frontend
    if number >= CLUSTER.first:
        key, number = InternalKey(frontend), number - CLUSTER.first
    if number >= CLASSES[-1]:
        return False
    held = read.get(key)
    if held is None:
        held = read[key] = _Read()
    held.slots[number] = _backend_of(frontend.family, element.data)
    return True


def remembered_flow(family: Family, element: Element) -> Flow | None:
    """What an entry of session affinity says of its client; None: it is none of ours."""
    frontend = frontend_of(family, element.key[family.size :]) if element.key is not None else None
    if frontend is None or element.key is None:
        return None
    return Flow(frontend, _backend_of(family, element.data), Address(element.key[: family.size]))


def _backend_of(family: Family, data: bytes) -> Backend:
    whole = len(data) == family.size + 8 and data[:4] == _VALUE[family.size]
    packed = data[4:] if whole else attrs(data).get(1, b"").ljust(family.size + 4, b"\0")
    return Backend(Address(packed[: family.size]), int.from_bytes(packed[family.size : family.size + 2], "big"))


def pair_of(family: Family, key: bytes) -> tuple[Frontend, Backend] | None:
    size = family.size
    frontend = frontend_of(family, key[: size + 8])
    rest = key[size + 8 :]
    backend = Backend(Address(rest[:size]), int.from_bytes(rest[size : size + 2], "big"))
    return (frontend, backend) if frontend is not None and len(rest) == size + 4 else None


def _class_of(data: bytes, names: Names) -> int:
    """-1: a verdict that we never give."""
    code, chain = _verdict(data)
    return next((k for k in CLASSES if code == GOTO and chain == f"{names.letter}{k}"), -1)


def _affinity_of(data: bytes, names: Names) -> int:
    """0: it leads to no chain that remembers."""
    code, chain = _verdict(data)
    seconds = seconds_of(chain)
    return seconds if code == GOTO and chain == f"{names.affine}{seconds}" else 0


def _verdict(data: bytes) -> tuple[int, str]:
    """Its code and chain."""
    seen = attrs(attrs(data).get(2, b""))
    return int.from_bytes(seen.get(1, b""), "big", signed=True), seen.get(2, b"")[:-1].decode(errors="replace")


def _remembered(family: Family, bodies: Iterable[bytes]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for element in elements(bodies):
        frontend = frontend_of(family, element.key) if element.key is not None else None
        if frontend is None:
            found[AlienKey(family, "remembered", element.raw)] = True
            continue
        code, chain = _verdict(element.data)
        seconds = seconds_of(chain)
        found[RememberKey(frontend)] = seconds if code == JUMP and chain == f"learn{seconds}" else -1
    return found


def frontend_of(family: Family, key: bytes, slot: bool = False) -> Frontend | None:
    """None: of a protocol that no Service has, or of a map that is of another form than ours. `slot`: one follows."""
    size = family.size
    if len(key) != size + 8 + SLOT.size * slot or key[size] not in _PROTOCOLS:
        return None
    number = key[size]
    return Frontend(Address(key[:size]), _PROTOCOLS[number], int.from_bytes(key[size + 4 : size + 6], "big"))
