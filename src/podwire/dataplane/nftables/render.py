"""Changes of frontends, pods and ranges to elements of maps and sets. Pure.

Invariants: what a dump gives back (`reading.py`) equals what was rendered. In a key numgen's slot number is
host-endian, addresses and ports are network-endian: a wrong order would miss silently.

A Service becomes map elements here: `slots.place` gives each backend a slot, `render` turns a change of slots into
elements, `reading.keys` reads them back.
"""

from struct import Struct, pack
from typing import Any

from podwire.controller.difference import Change, Difference
from podwire.dataplane.messages import CREATE, Message, attr, nest, text
from podwire.dataplane.nftables.layout import INTERNAL, TABLE
from podwire.model.addresses import Address, Family, family_of
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
    RestrictedKey,
    RulesKey,
    ServiceRangeKey,
    Slots,
)

_SUBSYSTEM = 10 << 8
NEWTABLE, GETTABLE, NEWCHAIN, GETCHAIN, DELCHAIN, NEWRULE, GETRULE, DELRULE, GETSET = (
    _SUBSYSTEM | n for n in (0, 1, 3, 4, 5, 6, 7, 8, 10)
)
NEWELEM, GETELEM, DELELEM, NEWGEN, GETGEN = (_SUBSYSTEM | n for n in (12, 13, 14, 15, 16))
APPEND = 0x800
MOST_ELEMENT_BYTES = 60_000
"""In one message: the length of a nested attribute has 16 bits."""
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
GOTO = -4
INTERVAL_END = 1
_PORT, _PROTOCOL, SLOT = Struct(">H2x"), Struct("=B3x"), Struct("=I")


def rank(key: Any) -> int:
    return 0 if isinstance(key, RulesKey) else 1


def family_of_key(key: Any) -> Family:
    match key:
        case RulesKey(family) | AlienKey(family):
            return family
        case ServiceRangeKey(first, _) | ClusterRangeKey(first, _):
            return family_of(first)
        case ExternalKey(frontend) | InternalKey(frontend) | RestrictedKey(frontend) | AllowedKey(frontend, _):
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
        case ServiceRangeKey():
            return ("service_ranges",)
        case ClusterRangeKey():
            return ("cluster",)
        case RestrictedKey():
            return ("restricted",)
        case AllowedKey():
            return ("allowed",)
        case InternalKey():
            return ("svc_internal", "eps")
        case Frontend():
            return ("svc", "eps", "refused", "dropped")
        case AlienKey(_, name):
            return (name,)
    return ()


def in_order(changes: Difference) -> list[tuple[Any, Change]]:
    """What goes, then what comes: a range that overlaps another is refused, also one that the same batch removes
    later."""
    return sorted(changes.items(), key=lambda item: item[1].after is not None)


def render(key: Any, change: Change) -> list[Message]:
    gone = change.after is None
    match key:
        case LocalPodKey(address):
            return _messages(family_of(address), "pods", [_element(address * 2)], gone)
        case ExternalIPKey(address):
            return _messages(family_of(address), "external_ips", [_element(address)], gone)
        case ExternalKey(frontend):
            return _messages(frontend.family, "external", [_element(frontend_key(frontend))], gone)
        case RestrictedKey(frontend):
            return _messages(frontend.family, "restricted", [_element(frontend_key(frontend))], gone)
        case AllowedKey(frontend, sources):
            name = frontend_key(frontend)
            element = _element(name + sources.first, beyond=name + sources.last)
            return _messages(frontend.family, "allowed", [element], gone)
        case ServiceRangeKey(first, last):
            return _messages(family_of(first), "service_ranges", _range(first, last), gone)
        case ClusterRangeKey(first, last):
            return _messages(family_of(first), "cluster", _range(first, last), gone)
        case Frontend():
            return _frontend(key, change.before, change.after)
        case InternalKey(frontend):
            return _internal(frontend, change.before, change.after)
        case AlienKey(family, name, element):
            return _messages(family, name, [nest(1, element)], delete=True)
    raise TypeError(key)


def _frontend(key: Frontend, before: Slots | None, after: Slots | None) -> list[Message]:
    """In the order that leaves no packet without an answer: what refuses goes first and comes last."""
    family, name = key.family, [_element(frontend_key(key))]
    old, new = before or Slots(None), after or Slots(None)
    found: list[Message] = []
    for kind, was, will in (("refused", old.refused, new.refused), ("dropped", old.dropped, new.dropped)):
        if was and not will:
            found += _messages(family, kind, name, delete=True)
    found += _class(key, "svc", "c", 0, old, new)
    for kind, was, will in (("refused", old.refused, new.refused), ("dropped", old.dropped, new.dropped)):
        if will and not was:
            found += _messages(family, kind, name)
    return found


def _internal(key: Frontend, before: Slots | None, after: Slots | None) -> list[Message]:
    return _class(key, "svc_internal", "i", INTERNAL, before or Slots(None), after or Slots(None))


def _class(key: Frontend, verdicts: str, letter: str, first: int, before: Slots, after: Slots) -> list[Message]:
    """A list's verdict and slots; where the class changes the new slots come before the verdict."""
    family, name = key.family, frontend_key(key)
    old = {n: b for n, b in enumerate(before.backends, first) if b is not None}
    new = {n: b for n, b in enumerate(after.backends, first) if b is not None}
    drop = [_element(name + SLOT.pack(n)) for n, b in old.items() if new.get(n) != b]
    add = [_element(name + SLOT.pack(n), attr(1, _backend_key(b))) for n, b in new.items() if old.get(n) != b]
    was, will = before.verdict, after.verdict
    found: list[Message] = []
    if was != will and was is not None:
        found += _messages(family, verdicts, [_element(name)], delete=True)
    found += _messages(family, "eps", drop, delete=True)
    found += _messages(family, "eps", add)
    if was != will and will is not None:
        found += _messages(family, verdicts, [_element(name, _goto(f"{letter}{will}"))])
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
    return [start, _element(beyond.to_bytes(len(last), "big"), flags=INTERVAL_END)]


def _element(key: bytes, data: bytes = b"", flags: int = 0, beyond: bytes = b"") -> bytes:
    """`beyond`: the last key of the element, where it is a range of a set with several fields."""
    flagged = attr(3, pack(">I", flags)) if flags else b""
    until = nest(10, attr(1, beyond)) if beyond else b""
    return nest(1, nest(1, attr(1, key)), until, nest(2, data) if data else b"", flagged)


def _goto(chain: str) -> bytes:
    return nest(2, attr(1, pack(">i", GOTO)), text(2, chain))


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
