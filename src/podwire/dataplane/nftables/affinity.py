"""What remembers clients for some number of seconds, as messages: nft 1.0.6 can't compile all of it. Pure.

Invariants: for 60 seconds these are, in the table of each family,

    affinity60   a map that fills itself: client . frontend → backend, each entry for 60 seconds after its last use
    affine60     asks it, and sends whom it does not know to the class in `drawn`
    affinein60   the same for the list of the cluster, `drawn_internal`
    learn60      puts the client of a new connection into it, with the backend that was chosen
    sealed60     an empty chain whose comment is the digest of the others as they were read when just made

They have a shape that nft lists rightly. Nothing but verdicts of `svc`, `svc_internal` and `remembered` leads here.
"""

import re
from collections.abc import Iterable
from hashlib import sha1
from struct import pack

from podwire.dataplane.messages import CREATE, Message, attr, nest, text
from podwire.dataplane.nftables.expressions import (
    FIELDS,
    REGISTER,
    dnat,
    dport,
    equal,
    header,
    l4proto,
    lookup,
    original,
)
from podwire.dataplane.nftables.wire import (
    APPEND,
    DELCHAIN,
    DELRULE,
    DELSET,
    NEWCHAIN,
    NEWRULE,
    NEWSET,
    expression,
    table,
    u32,
)
from podwire.model.addresses import Family
from podwire.model.objects import Protocol

MOST_CLIENTS = 1_000_000
_CHAIN_COMMENT = 12
_NAME = re.compile(r"(?:affinity|affine|affinein|learn|sealed)([1-9][0-9]*)\Z")
_MAP, _TIMEOUT, _DYNAMIC = 0x8, 0x10, 0x20
# nft's numbers of its types; of a concatenation, six bits each.
_ADDRESS, _PROTOCOL, _SERVICE = {4: 7, 16: 8}, 12, 13
_CT_PROTO_DST = 12
_VERDICT = 0


def seconds_of(name: str) -> int:
    """Whose a chain, map or rule's chain is; 0: none of these."""
    found = _NAME.match(name)
    return int(found[1]) if found else 0


def make(family: Family, seconds: int, *, anew: bool) -> list[Message]:
    """`anew`: the map too, and with it all that it remembers."""
    whole = table(family)
    chains = [f"affine{seconds}", f"affinein{seconds}", f"learn{seconds}"]
    found = [Message(NEWCHAIN, CREATE, whole + text(3, chain)) for chain in chains]
    found += [Message(DELRULE, 0, whole + text(2, chain)) for chain in chains]
    if anew:
        found.append(Message(DELSET, 0, whole + text(2, f"affinity{seconds}")))
    found.append(Message(NEWSET, CREATE, whole + _map(family, seconds)))
    rules = [(chain, each) for chain in chains[:2] for each in _asking(family, seconds, chain.startswith("affinein"))]
    rules.append((chains[2], _learning(family, seconds)))
    found += [Message(NEWRULE, CREATE | APPEND, whole + text(2, chain) + nest(4, each)) for chain, each in rules]
    return found


def seal(family: Family, seconds: int, digest: str) -> list[Message]:
    whole, name = table(family), text(3, f"sealed{seconds}")
    comment = digest.encode() + b"\0"
    userdata = attr(_CHAIN_COMMENT, bytes((0, len(comment))) + comment)
    created = Message(NEWCHAIN, CREATE, whole + name)
    return [created, Message(DELCHAIN, 0, whole + name), Message(NEWCHAIN, CREATE, whole + name + userdata)]


def remove(family: Family, seconds: int) -> list[Message]:
    whole = table(family)
    chains = [f"{name}{seconds}" for name in ("sealed", "affine", "affinein", "learn")]
    found = [Message(NEWCHAIN, CREATE, whole + text(3, chain)) for chain in chains]  # one may have gone by hand
    found += [Message(DELCHAIN, 0, whole + text(3, chain)) for chain in chains]
    found.append(Message(NEWSET, CREATE, whole + _map(family, seconds)))
    return [*found, Message(DELSET, 0, whole + text(2, f"affinity{seconds}"))]


def digest(family: Family, seconds: int, parts: Iterable[bytes]) -> str:
    """Of what is read, and of what it should have been made from."""
    made = (message.body for message in make(family, seconds, anew=False))
    return sha1(b"".join((*made, *parts)), usedforsecurity=False).hexdigest()[:16]


# --- their parts -------------------------------------------------------------------------------


def _map(family: Family, seconds: int) -> bytes:
    address, size = _ADDRESS[family.size], family.size
    key = ((address << 6 | address) << 6 | _PROTOCOL) << 6 | _SERVICE
    return b"".join(
        (
            text(2, f"affinity{seconds}"),
            u32(3, _MAP | _TIMEOUT | _DYNAMIC),
            u32(4, key),
            u32(5, 2 * size + 8),
            u32(6, address << 6 | _SERVICE),
            u32(7, size + 4),
            nest(9, u32(1, MOST_CLIENTS)),
            u32(10, 1),
            attr(11, pack(">Q", seconds * 1000)),
        )
    )


def _asking(family: Family, seconds: int, internal: bool) -> list[bytes]:
    """One rule for each protocol, and one for whom the map does not know."""
    words = family.size // 4
    at = REGISTER
    frontend = [header(at, FIELDS[family.size].destination, family), l4proto(at + words), dport(at + words + 1)]
    key = [
        header(at, FIELDS[family.size].source, family),
        header(at + words, FIELDS[family.size].destination, family),
        l4proto(at + 2 * words),
        dport(at + 2 * words + 1),
    ]
    found = [
        b"".join((l4proto(at), equal(at, protocol), *key, lookup(f"affinity{seconds}", at), dnat(family)))
        for protocol in Protocol
    ]
    others = expression("lookup", text(1, "drawn_internal" if internal else "drawn"), u32(2, at), u32(3, _VERDICT))
    return [*found, b"".join((*frontend, others))]


def _learning(family: Family, seconds: int) -> bytes:
    words, at, fields = family.size // 4, REGISTER, FIELDS[family.size]
    backend = at + 2 * words + 2
    return b"".join(
        (
            header(at, fields.source, family),
            original(at + words, fields.original),
            l4proto(at + 2 * words),
            original(at + 2 * words + 1, _CT_PROTO_DST),
            header(backend, fields.destination, family),
            dport(backend + words),
            expression("dynset", text(1, f"affinity{seconds}"), u32(3, 1), u32(4, at), u32(5, backend)),
        )
    )
