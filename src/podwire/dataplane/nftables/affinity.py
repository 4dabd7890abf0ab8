"""What remembers clients for some number of seconds, as messages: nft 1.0.6 can't compile all of it. Pure.

Invariants: for 60 seconds these are, in the table of each family,

    affinity60   a map that fills itself: client . frontend → backend, each entry for 60 seconds after its last use;
                 the frontend is that under which `shared` says that all of a ServicePort are remembered
    affine60     asks it, and the set `serving` whether that backend still answers; whom they do not know is
                 forgotten and goes to the class in `drawn`
    affinein60   the same for the list of the cluster, with `serving_internal` and `drawn_internal`
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
    copy,
    dnat,
    dport,
    equal,
    goto,
    header,
    l4proto,
    lookup,
    member,
    original,
    reply,
)
from podwire.dataplane.nftables.layout import LOOKS
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
_NAME = re.compile(r"(?:affinity|affine|affinein|learn|sealed)([1-9][0-9]*)\Z")
_MAP, _TIMEOUT, _DYNAMIC = 0x8, 0x10, 0x20
# nft's numbers of its types; of a concatenation, six bits each.
_ADDRESS, _PROTOCOL, _SERVICE = {4: 7, 16: 8}, 12, 13
_CT_PROTO_SRC, _CT_PROTO_DST = 11, 12
_VERDICT = 0
_UPDATE, _DELETE = 1, 2


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
    rules.append((chains[2], _put(family, seconds, _UPDATE, original_way=True)))
    found += [Message(NEWRULE, CREATE | APPEND, whole + text(2, chain) + nest(4, each)) for chain, each in rules]
    return found


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
    """One rule for each protocol, and some for whom they do not know: what is remembered of them is forgotten, since
    learning does not replace it, and their class is looked up (see LOOKS).

    A backend that has gone is in `serving` no more, so what is remembered of it counts for nothing at once, however
    many clients that are. nft 1.0.6 aborts where a map's answer is part of a key. So the answer is copied, beginning
    one word before it, to where nft believes the source of the flow's answers to be, which is who the backend is.
    """
    words, at, fields = family.size // 4, REGISTER, FIELDS[family.size]
    known = at + 1
    to = known + words
    proto, port, backend = to + words, to + words + 1, to + words + 2
    frontend = [header(to, fields.destination, family), l4proto(proto), dport(port)]
    ask = b"".join(
        (
            _client(family, original_way=False),
            reply(backend, fields.answering),
            reply(backend + words, _CT_PROTO_SRC),
            lookup(f"affinity{seconds}", at, known),
            copy(at, port, words + 2),
            *frontend,
            member("serving_internal" if internal else "serving", to),
            dnat(family, known, backend + words),
        )
    )
    found = [l4proto(at) + equal(at, protocol) + ask for protocol in Protocol]
    frontend = [header(at, fields.destination, family), l4proto(at + words), dport(at + words + 1)]
    others = expression("lookup", text(1, "drawn_internal" if internal else "drawn"), u32(2, at), u32(3, _VERDICT))
    drawn = [b"".join((*frontend, others))] * LOOKS
    return [*found, _put(family, seconds, _DELETE, original_way=False), *drawn, goto("refuse")]


def _put(family: Family, seconds: int, operation: int, original_way: bool) -> bytes:
    """The client and its frontend, with where it goes. `original_way`: it is on its way to a backend already."""
    words, at, fields = family.size // 4, REGISTER, FIELDS[family.size]
    backend = at + 2 * words + 2
    return b"".join(
        (
            _client(family, original_way),
            header(backend, fields.destination, family),
            dport(backend + words),
            expression("dynset", text(1, f"affinity{seconds}"), u32(3, operation), u32(4, at), u32(5, backend)),
        )
    )


def _client(family: Family, original_way: bool) -> bytes:
    """The client and the frontend under which it is remembered, from the first register on; else the rule ends.

    nft 1.0.6 aborts where a map's answer is part of a key. So the answer is copied, each time beginning one word before
    it, over the frontend that was asked for, which is what nft lists; what lay in these words comes last.
    """
    words, at, fields = family.size // 4, REGISTER, FIELDS[family.size]
    to, proto, port, before = at + words, at + 2 * words, at + 2 * words + 1, at + 2 * words + 2
    return b"".join(
        (
            original(to, fields.original) if original_way else header(to, fields.destination, family),
            l4proto(proto),
            original(port, _CT_PROTO_DST) if original_way else dport(port),
            l4proto(before),  # whatever: the kernel copies nothing that was never written
            lookup("shared", to, before + 1),
            copy(before, to - 1, words + 1),
            copy(before + words, proto, 2),
            l4proto(proto),
            header(at, fields.source, family),
        )
    )
