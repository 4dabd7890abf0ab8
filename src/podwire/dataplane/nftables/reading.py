"""Dumped map elements back to frontends, pods and ranges. Pure.

Invariants: total: whatever somebody's hand has put into our maps is read, as an AlienKey where no key of ours makes it,
so that it can be seen and removed. What was rendered is read as itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from struct import Struct
from typing import Any

from podwire.dataplane.messages import attr, attrs
from podwire.dataplane.nftables import hostports
from podwire.dataplane.nftables.affinity import seconds_of
from podwire.dataplane.nftables.elements import Element, elements, form_of, lists, raw_of, rest, whole
from podwire.dataplane.nftables.layout import CLASSES
from podwire.dataplane.nftables.render import ALL, CLUSTER, OUTSIDE, SLOT, Names
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
    HostPortKey,
    InternalKey,
    LocalPodKey,
    RememberKey,
    RestrictedKey,
    ServiceRangeKey,
    SharedKey,
    Slots,
    TunnelEndKey,
    TunnelPortKey,
    UnmasqueradedKey,
)
from podwire.model.objects import Protocol
from podwire.services.stale import NONE, Flow

Dumped = Mapping[str, Iterable[bytes]]
"""By the name of a map or set: the bodies of its dump."""

_VALUE = {size: attr(1, bytes(size + 4))[:4] for size in (4, 16)}
"""What stands before an address and a port, by the address's size."""
_PROTOCOLS = {int(protocol): protocol for protocol in Protocol}


def keys(family: Family, dumped: Dumped) -> dict[Any, Any]:
    """What the dumped maps and sets say; those that were not dumped are passed over. Whatever no key of ours makes is
    an AlienKey, so that it can be seen and removed."""
    found: dict[Any, Any] = {}
    readers: dict[str, Callable[[Family, bytes, bytes], Any]] = {
        "pods": _local_pod,
        "external": partial(_of_frontend, ExternalKey),
        "external_ips": partial(_of_address, ExternalIPKey),
        "tunnels": partial(_of_address, TunnelEndKey),
        "tunnel_ports": _tunnel_port,
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
    found |= shared(family, dumped.get("shared", ()))
    found |= _host_ports(family, dumped)
    return found | _frontends(family, dumped)


def _host_ports(family: Family, dumped: Dumped) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, before in ((hostports.ALL, bytes(family.size)), (hostports.AT, b"")):
        for element in elements(dumped.get(name, ())):
            at = frontend_of(family, before + element.key) if element.key is not None else None
            if at is None or any(at.address) == bool(before):
                found[AlienKey(family, name, element.raw)] = True
            else:
                found[HostPortKey(at)] = _backend_of(family, element.data)
    return found


def _local_pod(family: Family, key: bytes, _: bytes) -> LocalPodKey | None:
    first, second = key[: family.size], key[family.size :]
    return LocalPodKey(Address(first)) if first == second and len(first) == family.size else None


def _of_address(form: Callable[[Address], Any], family: Family, key: bytes, _: bytes) -> Any:
    return form(Address(key)) if len(key) == family.size else None


def _tunnel_port(family: Family, key: bytes, _: bytes) -> TunnelPortKey | None:
    return TunnelPortKey(family, int.from_bytes(key, "big")) if len(key) == 2 else None


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


_SLOTS = {size: Struct(f"=12s{size + 8}sI8s{size}s2s2x") for size in (4, 16)}
"""An element of `eps` as the kernel tells it: what stands before the frontend's key, that, the slot's number, what
stands before the backend's address, that, and its port."""


class _Read:
    """What was found of one list so far."""

    __slots__ = ("affinity", "drawn", "dropped", "keeps", "outside", "refused", "slots", "verdict")

    def __init__(self) -> None:
        self.verdict: int | None = None
        self.drawn: int | None = None
        self.affinity = 0
        self.refused = self.dropped = self.outside = False
        self.slots: dict[int, Backend] = {}
        self.keeps: set[Backend] = set()

    def slots_(self) -> Slots:
        length = max(self.verdict or 0, self.drawn or 0, max(self.slots, default=-1) + 1)
        backends = tuple(map(self.slots.get, range(length)))
        keeps = frozenset(self.keeps) if self.keeps else NONE
        return Slots(self.verdict, backends, self.refused, self.dropped, self.affinity, self.drawn, keeps, self.outside)


class _Lists:
    """All lists of a family, and what of theirs is none of ours."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._of: dict[bytes, Frontend | None] = {}
        """By key: several maps have the same."""
        self._read: dict[Frontend | InternalKey, _Read] = {}
        self.aliens: dict[Any, Any] = {}

    def take(self, name: str, element: Element) -> None:
        """An element of any map or set but the two below."""
        frontend = self._frontend(element.key or b"")
        if frontend is None:
            self._alien(name, element.raw)
            return
        names = CLUSTER if name in (CLUSTER.verdicts, CLUSTER.drawn) else ALL
        held = self._held(InternalKey(frontend) if names is CLUSTER else frontend)
        match name:
            case "refused":
                held.refused = True
            case "dropped":
                held.dropped = True
            case names.drawn:
                held.drawn = _class_of(element.data, names)
            case _ if name == OUTSIDE and (held.verdict is not None or held.affinity):  # it has one in `svc` already
                self._alien(name, element.raw)
            case _:
                held.outside = name == OUTSIDE
                held.affinity = _affinity_of(element.data, names)
                held.verdict = _class_of(element.data, names) if held.affinity == 0 else None

    def take_slots(self, bodies: Iterable[bytes]) -> None:
        """All of `eps`. A hundred thousand are common, so those of the usual form are cut up at once."""
        slots: dict[bytes, dict[int, Backend]] = {}
        """By the key without the slot's number, and that."""
        ports: dict[bytes, int] = {}
        size, cut = self._family.size, _SLOTS[self._family.size]
        for listed in lists(bodies):
            at, form = 0, form_of(listed)
            if form is not None and (form.key, form.data) == (size + 12, size + 8):
                its_head, its_between, length = form.head, form.between + _VALUE[size], cut.size
                for head, of, number, between, address, port in cut.iter_unpack(whole(listed, cut)):
                    if head != its_head or between != its_between:
                        break
                    mine = slots.get(of)
                    if mine is None:
                        mine = slots[of] = {}
                    if port not in ports:
                        ports[port] = int.from_bytes(port, "big")
                    mine[number] = Backend(address, ports[port])
                    at += length
            for element in rest(listed, at):
                key = element.key or b""
                if len(key) != size + 12 or element.raw != raw_of(key):
                    self._alien("eps", element.raw)
                else:
                    of, (number,) = key[: -SLOT.size], SLOT.unpack_from(key, size + 8)
                    slots.setdefault(of, {})[number] = _backend_of(self._family, element.data)
        for of, mine in slots.items():
            self._take_list(of, mine)

    def _take_list(self, of: bytes, slots: dict[int, Backend]) -> None:
        frontend = self._frontend(of)
        if frontend is not None and max(slots) < CLASSES[-1]:
            self._held(frontend).slots = slots
            return
        for number, backend in slots.items():
            internal = number >= CLUSTER.first
            place = number - CLUSTER.first if internal else number
            if frontend is None or place >= CLASSES[-1]:
                self._alien("eps", raw_of(of + SLOT.pack(number)))
            else:
                self._held(InternalKey(frontend) if internal else frontend).slots[place] = backend

    def take_pair(self, names: Names, element: Element) -> None:
        """Of who keeps clients that are remembered."""
        pair = pair_of(self._family, element.key or b"")
        if pair is None:
            self._alien(names.serving, element.raw)
        else:
            self._held(InternalKey(pair[0]) if names is CLUSTER else pair[0]).keeps.add(pair[1])

    def found(self) -> dict[Any, Any]:
        return self.aliens | {key: held.slots_() for key, held in self._read.items()}

    def _frontend(self, key: bytes) -> Frontend | None:
        if key not in self._of:
            self._of[key] = frontend_of(self._family, key)
        return self._of[key]

    def _held(self, key: Frontend | InternalKey) -> _Read:
        held = self._read.get(key)
        if held is None:
            held = self._read[key] = _Read()
        return held

    def _alien(self, name: str, raw: bytes) -> None:
        self.aliens[AlienKey(self._family, name, raw)] = True


def _frontends(family: Family, dumped: Dumped) -> dict[Any, Any]:
    found = _Lists(family)
    for name in ("refused", "dropped", "svc", "svc_internal", OUTSIDE, "drawn", "drawn_internal"):
        for element in elements(dumped.get(name, ())):
            found.take(name, element)
    found.take_slots(dumped.get("eps", ()))
    for names in (ALL, CLUSTER):
        for element in elements(dumped.get(names.serving, ())):
            found.take_pair(names, element)
    return found.found()


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


@lru_cache(maxsize=256)
def _verdict(data: bytes) -> tuple[int, str]:
    """Its code and chain."""
    seen = attrs(attrs(data).get(2, b""))
    return int.from_bytes(seen.get(1, b""), "big", signed=True), seen.get(2, b"")[:-1].decode(errors="replace")


def _remembered(family: Family, bodies: Iterable[bytes]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for frontend, element in _of_frontends(family, "remembered", bodies, found):
        code, chain = _verdict(element.data)
        seconds = seconds_of(chain)
        found[RememberKey(frontend)] = seconds if code == JUMP and chain == f"learn{seconds}" else -1
    return found


def shared(family: Family, bodies: Iterable[bytes]) -> dict[Any, Any]:
    """Under which frontend the clients of each are remembered."""
    found: dict[Any, Any] = {}
    for frontend, element in _of_frontends(family, "shared", bodies, found):
        to = _backend_of(family, element.data)
        found[SharedKey(frontend)] = Frontend(to.address, frontend.protocol, to.port)
    return found


def _of_frontends(
    family: Family, holder: str, bodies: Iterable[bytes], aliens: dict[Any, Any]
) -> Iterator[tuple[Frontend, Element]]:
    """A map's elements whose key is a frontend; what is none goes to `aliens`."""
    for element in elements(bodies):
        frontend = frontend_of(family, element.key) if element.key is not None else None
        if frontend is None:
            aliens[AlienKey(family, holder, element.raw)] = True
        else:
            yield frontend, element


def frontend_of(family: Family, key: bytes) -> Frontend | None:
    """None: of a protocol that no Service has, or of a map that is of another form than ours."""
    size = family.size
    if len(key) != size + 8 or key[size] not in _PROTOCOLS:
        return None
    number = key[size]
    return Frontend(Address(key[:size]), _PROTOCOLS[number], int.from_bytes(key[size + 4 : size + 6], "big"))
