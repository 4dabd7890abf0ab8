"""Changes of frontends, pods and ranges to elements of maps and sets. Pure.

Invariants: what a dump gives back (`reading.py`) equals what was rendered. In a key numgen's slot number is
host-endian, addresses and ports are network-endian: a wrong order would miss silently.

A Service becomes map elements here: `slots.place` gives each backend a slot, `render` turns a change of slots into
elements, `reading.keys` reads them back.
"""

from collections.abc import Collection
from struct import Struct
from typing import Any, NamedTuple

from podwire.controller.difference import Change, Difference
from podwire.dataplane.messages import Message, attr, nest
from podwire.dataplane.nftables import affinity, hostports
from podwire.dataplane.nftables.layout import INTERNAL
from podwire.dataplane.nftables.wire import GOTO, INTERVAL_END, JUMP, element, messages, verdict
from podwire.model.addresses import FAMILIES, Address, Family, family_of
from podwire.model.network import (
    AffinityKey,
    AlienKey,
    AllowedKey,
    Backend,
    ClusterRangeKey,
    ExternalIPKey,
    ExternalKey,
    Frontend,
    HoldersKey,
    HostPortKey,
    InternalKey,
    LocalPodKey,
    RememberKey,
    RestrictedKey,
    RulesKey,
    ServiceRangeKey,
    SharedKey,
    Slots,
    TunnelEndKey,
    TunnelPortKey,
    UnmasqueradedKey,
)

_PORT, _PROTOCOL, SLOT = Struct(">H2x"), Struct("=B3x"), Struct("=I")


Rank = tuple[int, bytes, int]


def rank(key: Any, change: Change) -> Rank:
    """What others depend on comes first and goes last, and all of one frontend lies together. Rules in the place of
    others (an older layout's, or altered ones) come once all that they ask for is filled in; what they lead to goes
    after them.

    A frontend is never open to more than it was or will be, wherever its changes are cut: it is restricted before it
    comes or changes, and until it has gone or changed; meanwhile only those may use it who may before and after.
    """
    gone = change.after is None
    match key:
        case HoldersKey():
            return 0, b"", 0
        case RulesKey():
            return 1 if change.before is None else 5, b"", 0
        case AffinityKey():
            return 2 if change.before is None else 6, b"", 0
        case RestrictedKey(frontend):
            return 4, frontend_key(frontend), 4 if gone else 0
        case AllowedKey(frontend, _):
            return 4, frontend_key(frontend), 0 if gone else 4
        case ExternalKey(frontend) | InternalKey(frontend) | RememberKey(frontend) | SharedKey(frontend):
            return 4, frontend_key(frontend), 3 if gone else 1
        case Frontend():
            return 4, frontend_key(key), 2
        case TunnelPortKey():  # guarded only where the ends are known
            return 3, b"", 0 if gone else 2
    return 3, b"", 0 if gone else 1  # of ranges that overlap one has to go first


def is_ours(key: Any, value: Any, remembering: Collection[int]) -> bool:
    """Whether what was read is of the kind that we give, and leads to chains that there are. `remembering`: for how
    many seconds clients are."""
    match key, value:
        case AlienKey(), _:
            return False
        case RememberKey(), seconds:
            return seconds in remembering
        case _, Slots(verdict, drawn=drawn, affinity=affinity):
            return -1 not in (verdict, drawn) and (affinity == 0 or affinity in remembering)
    return True


def family_of_key(key: Any) -> Family:
    match key:
        case HoldersKey(family) | RulesKey(family) | AlienKey(family) | AffinityKey(family) | TunnelPortKey(family):
            return family
        case ServiceRangeKey(first, _) | ClusterRangeKey(first, _) | UnmasqueradedKey(first, _):
            return family_of(first)
        case ExternalKey(frontend) | InternalKey(frontend) | RestrictedKey(frontend) | AllowedKey(frontend, _):
            return frontend.family
        case RememberKey(frontend) | SharedKey(frontend) | HostPortKey(frontend):
            return frontend.family
    return family_of(key.address)


def holder(key: Any) -> tuple[str, ...]:
    """The maps and sets in which a key lies."""
    match key:
        case LocalPodKey():
            return ("pods",)
        case ExternalKey():
            return ("external",)
        case ExternalIPKey():
            return ("external_ips",)
        case TunnelEndKey():
            return ("tunnels",)
        case TunnelPortKey():
            return ("tunnel_ports",)
        case HostPortKey(frontend):
            return (host_port(frontend)[0],)
        case ServiceRangeKey():
            return ("service_ranges",)
        case ClusterRangeKey():
            return ("cluster",)
        case UnmasqueradedKey():
            return ("unmasqueraded",)
        case RestrictedKey():
            return ("restricted",)
        case AllowedKey():
            return ("allowed",)
        case RememberKey():
            return ("remembered",)
        case SharedKey():
            return ("shared",)
        case InternalKey():
            return ("svc_internal", "drawn_internal", "serving_internal", "eps")
        case Frontend():
            return ("svc", "svc_outside", "drawn", "serving", "eps", "refused", "dropped")
        case AlienKey(_, name):
            return (name,)
    return ()


def in_order(changes: Difference) -> list[tuple[Any, Change]]:
    """What goes, then what comes: a range that overlaps another is refused, also one that the same batch removes
    later. What verdicts name goes after them."""

    def place(item: tuple[Any, Change]) -> int:
        return 1 if item[1].after is not None else 2 if isinstance(item[0], AffinityKey) else 0

    return sorted(changes.items(), key=place)


def render(key: Any, change: Change) -> list[Message]:
    gone = change.after is None
    match key:
        case LocalPodKey(address):
            return messages(family_of(address), "pods", [element(address * 2)], gone)
        case ExternalIPKey(address):
            return messages(family_of(address), "external_ips", [element(address)], gone)
        case TunnelEndKey(address):
            return messages(family_of(address), "tunnels", [element(address)], gone)
        case TunnelPortKey(family, port):
            return messages(family, "tunnel_ports", [element(port.to_bytes(2, "big"))], gone)
        case ExternalKey(frontend):
            return messages(frontend.family, "external", [element(frontend_key(frontend))], gone)
        case AffinityKey(family, seconds):
            return affinity.remove(family, seconds)
        case HostPortKey(frontend):
            return _map_port(frontend, change)
        case RememberKey(frontend):
            return _remember(frontend, change)
        case SharedKey(frontend):
            return _share(frontend, change)
        case RestrictedKey(frontend):
            return messages(frontend.family, "restricted", [element(frontend_key(frontend))], gone)
        case AllowedKey(frontend, sources):
            name = frontend_key(frontend)
            within = element(name + sources.first, beyond=name + sources.last)
            return messages(frontend.family, "allowed", [within], gone)
        case ServiceRangeKey(first, last):
            return messages(family_of(first), "service_ranges", _range(first, last), gone)
        case ClusterRangeKey(first, last):
            return messages(family_of(first), "cluster", _range(first, last), gone)
        case UnmasqueradedKey(first, last):
            return messages(family_of(first), "unmasqueraded", _range(first, last), gone)
        case Frontend():
            return _frontend(key, change.before, change.after)
        case InternalKey(frontend):
            return _list(frontend, CLUSTER, change.before or Slots(None), change.after or Slots(None))
        case AlienKey(family, name, raw):
            return messages(family, name, [nest(1, raw)], delete=True)
    raise TypeError(key)


def _frontend(key: Frontend, before: Slots | None, after: Slots | None) -> list[Message]:
    """In the order that leaves no packet without an answer: what refuses goes first and comes last."""
    family, name = key.family, [element(frontend_key(key))]
    old, new = before or Slots(None), after or Slots(None)
    found: list[Message] = []
    for kind, was, will in (("refused", old.refused, new.refused), ("dropped", old.dropped, new.dropped)):
        if was and not will:
            found += messages(family, kind, name, delete=True)
    found += _list(key, ALL, old, new)
    for kind, was, will in (("refused", old.refused, new.refused), ("dropped", old.dropped, new.dropped)):
        if will and not was:
            found += messages(family, kind, name)
    return found


class Names(NamedTuple):
    """Where a list lies: its verdicts, those of who is not remembered, its classes' letter, its first slot's number,
    the chains that ask who is remembered, and the set of who keeps the clients that are."""

    verdicts: str
    drawn: str
    letter: str
    first: int
    affine: str
    serving: str


ALL = Names("svc", "drawn", "c", 0, "affine", "serving")
OUTSIDE = "svc_outside"
"""Where the verdict of a list is instead that is not for clients in the cluster, since they have another."""
CLUSTER = Names("svc_internal", "drawn_internal", "i", INTERNAL, "affinein", "serving_internal")
"""The list for clients in the cluster, where there is one."""


def _list(key: Frontend, names: Names, before: Slots, after: Slots) -> list[Message]:
    """A list's verdicts and slots; where the class changes the new slots come before the verdict."""
    family, name = key.family, frontend_key(key)
    old = {n: b for n, b in enumerate(before.backends, names.first) if b is not None}
    new = {n: b for n, b in enumerate(after.backends, names.first) if b is not None}
    drop = [element(name + SLOT.pack(n)) for n, b in old.items() if new.get(n) != b]
    add = [_slot(name, n, b) for n, b in new.items() if old.get(n) != b]
    moves = [
        (_verdict_of(names, before), _verdict_of(names, after)),
        ((names.drawn, _chain(names, before.drawn)), (names.drawn, _chain(names, after.drawn))),
    ]
    leave = [element(pair_key(key, b)) for b in sorted(before.keeps - after.keeps)]
    found = messages(family, names.serving, leave, delete=True)
    for (holder_, was), will in moves:
        if was and (holder_, was) != will:
            found += messages(family, holder_, [element(name)], delete=True)
    found += messages(family, "eps", drop, delete=True)
    found += messages(family, "eps", add)
    found += messages(family, names.serving, [element(pair_key(key, b)) for b in sorted(after.keeps - before.keeps)])
    for old_place, (holder_, leads) in reversed(moves):
        if leads and old_place != (holder_, leads):
            found += messages(family, holder_, [element(name, verdict(GOTO, leads))])
    return found


def _verdict_of(names: Names, it: Slots) -> tuple[str, str]:
    """The map of its verdict, and where that leads."""
    return OUTSIDE if it.outside else names.verdicts, _chain(names, it.verdict, it.affinity)


def _slot(name: bytes, number: int, it: Backend) -> bytes:
    """Packed at once, as `element` would: a hundred thousand are common."""
    form, head, between = _SLOT_FORMS[len(it.address)]
    return form.pack(head, name, number, between, it.address, _PORT.pack(it.port))


def _slot_form(family: Family) -> tuple[Struct, bytes, bytes]:
    """An element of `eps`, and what stands before the frontend's key and before the backend's address."""
    key, value = family.size + 12, family.size + 4
    whole = element(bytes(key), attr(1, bytes(value)))
    return Struct(f"=12s{key - 4}sI8s{family.size}s4s"), whole[:12], whole[12 + key :][:8]


_SLOT_FORMS = {family.size: _slot_form(family) for family in FAMILIES}


def _chain(names: Names, size: int | None, affinity: int = 0) -> str:
    """Where a verdict leads, "" where there is none."""
    if affinity:
        return f"{names.affine}{affinity}"
    return "" if size is None else f"{names.letter}{size}"


def _remember(key: Frontend, change: Change) -> list[Message]:
    name = frontend_key(key)
    gone = messages(key.family, "remembered", [element(name)], delete=True) if change.before is not None else []
    if change.after is None:
        return gone
    return [*gone, *messages(key.family, "remembered", [element(name, verdict(JUMP, f"learn{change.after}"))])]


def _share(key: Frontend, change: Change) -> list[Message]:
    """The protocol is always the same."""
    name = frontend_key(key)
    gone = messages(key.family, "shared", [element(name)], delete=True) if change.before is not None else []
    if change.after is None:
        return gone
    return [*gone, *messages(key.family, "shared", [element(name, attr(1, _backend_key(change.after)))])]


def host_port(at: Frontend) -> tuple[str, bytes]:
    """In which map a host port lies, and by what key."""
    key = frontend_key(at)
    return (hostports.AT, key) if any(at.address) else (hostports.ALL, key[len(at.address) :])


def _map_port(at: Frontend, change: Change) -> list[Message]:
    name, key = host_port(at)
    gone = messages(at.family, name, [element(key)], delete=True) if change.before is not None else []
    if change.after is None:
        return gone
    return [*gone, *messages(at.family, name, [element(key, attr(1, _backend_key(change.after)))])]


def frontend_key(it: Frontend) -> bytes:
    return it.address + _PROTOCOL.pack(it.protocol) + _PORT.pack(it.port)


def _backend_key(it: Backend | Frontend) -> bytes:
    return it.address + _PORT.pack(it.port)


def pair_key(frontend: Frontend, it: Backend) -> bytes:
    return frontend_key(frontend) + it.address + _PORT.pack(it.port)


def _range(first: Address, last: Address) -> list[bytes]:
    """A start, and an end that is no longer part of it; none where the range ends with the address space."""
    start = element(first)
    beyond = int.from_bytes(last, "big") + 1
    if beyond >> (len(last) * 8):
        return [start]
    return [start, element(beyond.to_bytes(len(last), "big"), flags=INTERVAL_END)]
