"""nfnetlink messages for nftables: tables, elements, verdicts, batches. Pure.

Invariants: one message holds elements of one map only, at most so many that its nested attribute's length fits.
"""

from functools import cache, lru_cache
from struct import pack

from podwire.dataplane.messages import CREATE, NESTED, Message, attr, nest, text
from podwire.dataplane.nftables.layout import TABLE
from podwire.model.addresses import Family

_SUBSYSTEM = 10 << 8
NEWTABLE, GETTABLE, DELTABLE, NEWCHAIN, GETCHAIN, DELCHAIN, NEWRULE, GETRULE, DELRULE, NEWSET, GETSET, DELSET = (
    _SUBSYSTEM | n for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
)
NEWELEM, GETELEM, DELELEM, NEWGEN, GETGEN = (_SUBSYSTEM | n for n in (12, 13, 14, 15, 16))
APPEND = 0x800
MOST_ELEMENT_BYTES = 60_000
"""In one message: the length of a nested attribute has 16 bits."""
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
JUMP, GOTO = -3, -4
INTERVAL_END = 1


def element(key: bytes, data: bytes = b"", flags: int = 0, beyond: bytes = b"") -> bytes:
    """`beyond`: the last key of the element, where it is a range of a set with several fields."""
    if not (flags or beyond or len(key) & 3 or len(data) & 3):  # nearly all of them: a hundred thousand at a start
        before, between = _heads(len(key), len(data))
        return before + key + between + data
    flagged = attr(3, pack(">I", flags)) if flags else b""
    until = nest(10, attr(1, beyond)) if beyond else b""
    return nest(1, nest(1, attr(1, key)), until, nest(2, data) if data else b"", flagged)


@cache
def _heads(key: int, data: int) -> tuple[bytes, bytes]:
    """What stands before an element's key, and between that and its data, where they have these lengths."""
    between = attr(2 | NESTED, bytes(data))[:4] if data else b""
    inner = attr(1 | NESTED, attr(1, bytes(key)))
    return attr(1 | NESTED, inner + between + bytes(data))[:4] + inner[:8], between


def verdict(code: int, chain: str) -> bytes:
    """An element's data. `code`: GOTO or JUMP."""
    return nest(2, attr(1, pack(">i", code)), text(2, chain))


def messages(family: Family, name: str, elements: list[bytes], delete: bool = False) -> list[Message]:
    if not elements:
        return []
    found: list[Message] = []
    head_of_all = _to(family, name)
    part: list[bytes] = []
    size = 0
    for element in elements:
        if size + len(element) > MOST_ELEMENT_BYTES:
            found.append(message(head_of_all, part, delete))
            part, size = [], 0
        part.append(element)
        size += len(element)
    return [*found, message(head_of_all, part, delete)]


@lru_cache(maxsize=256)
def _to(family: Family, name: str) -> bytes:
    """What stands before the elements of a map or set."""
    return head(family) + text(1, TABLE) + text(2, name)


def message(head_of_all: bytes, elements: list[bytes], delete: bool) -> Message:
    return Message(DELELEM if delete else NEWELEM, 0 if delete else CREATE, head_of_all + nest(3, *elements))


def u32(kind: int, value: int) -> bytes:
    """Numbers of nftables' own attributes are big-endian."""
    return attr(kind, pack(">I", value))


def expression(name: str, *parts: bytes) -> bytes:
    """One of a rule's expressions, by the names of nft's debug output."""
    return nest(1, text(1, name), nest(2, *parts))


def head(family: Family) -> bytes:
    return pack(">BBH", family.number, 0, 0)


def table(family: Family) -> bytes:
    return head(family) + text(1, TABLE)


def batch(messages: list[Message]) -> list[Message]:
    """All or nothing."""
    bound = pack(">BBH", 0, 0, 10)
    return [Message(_BATCH_BEGIN, 0, bound), *messages, Message(_BATCH_END, 0, bound)]
