"""The rules of the capacity classes, as messages: as text nft takes a second for them. Pure.

Invariants: they are the rules that `layout.rules_of` tells as text, chain by chain and in that order; a test holds the
two to each other.
"""

from podwire.dataplane.messages import CREATE, Message, nest, text
from podwire.dataplane.nftables.expressions import (
    FIELDS,
    REGISTER,
    dnat,
    dport,
    equal,
    header,
    l4proto,
    lookup,
    numgen,
)
from podwire.dataplane.nftables.layout import CLASSES, INTERNAL, draws
from podwire.dataplane.nftables.wire import APPEND, NEWRULE, table
from podwire.model.addresses import Family
from podwire.model.objects import Protocol


def class_rules(family: Family) -> list[Message]:
    whole = table(family)
    return [
        Message(
            NEWRULE, CREATE | APPEND, whole + text(2, f"{letter}{size}") + nest(4, _rule(family, protocol, k, first))
        )
        for size in CLASSES
        for letter, first in (("c", 0), ("i", INTERNAL))
        for protocol in Protocol
        for k in draws(size)
    ]


def _rule(family: Family, protocol: Protocol, modulus: int, first: int) -> bytes:
    at, words = REGISTER, family.size // 4
    return b"".join(
        (
            l4proto(at),
            equal(at, protocol),
            header(at, FIELDS[family.size].destination, family),
            l4proto(at + words),
            dport(at + words + 1),
            numgen(at + words + 2, modulus, first),
            lookup("eps", at),
            dnat(family),
        )
    )
