"""Packet filters of this namespace: nftables by netlink (which has iptables' newer form too).

Invariants: of rules only what the judgement follows is understood (`facts.Rule`); all else is the condition `other`.
Rules are read of those tables only that have a chain at forward, and never of Podwire's own.
"""

from collections.abc import Iterator

from podwire.controller.difference import scope_of
from podwire.dataplane import netlink
from podwire.dataplane.messages import attrs, text, walk
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.driver import NFTables
from podwire.dataplane.nftables.layout import TABLE
from podwire.doctor.facts import Chain, Filters, Rule
from podwire.doctor.findings import Unseen
from podwire.doctor.read import iptables
from podwire.model.addresses import FAMILIES, Address, prefix_around
from podwire.model.network import RulesKey

_FAMILIES = {1: "inet", 2: "ip", 10: "ip6"}
_FORWARD = 2  # NF_INET_FORWARD


def read() -> Filters | Unseen:
    try:
        there = netlink.Socket(netlink.NETFILTER, reader=True)
        try:
            tables = sorted(_tables(there))
            chains = [chain for family, name in tables if name != TABLE for chain in _chains(there, family, name)]
        finally:
            there.close()
        sealed = _sealed()
    except OSError as error:
        return Unseen(f"nftables can't be read: {error.strerror}")
    named = [f"{_FAMILIES[family]} {name}" for family, name in tables if name != TABLE]
    old, legacy = iptables.read()
    return Filters(tuple(sorted((*named, *old))), tuple(chains), legacy, sealed)


def _sealed() -> dict[str, bool | None]:
    """Whether they are as an agent makes them, with packets counted or without."""
    keys = {family: RulesKey(family) for family in FAMILIES}
    found: dict[str, bool | None] = {family.name: None for family in FAMILIES}
    for traffic in (False, True):
        driver = NFTables(listens=False, traffic=traffic)
        try:
            read = driver.read(scope_of(keys.values()))
        finally:
            driver.close()
        found |= {family.name: read[key] or bool(found[family.name]) for family, key in keys.items() if key in read}
    return found


# --- nftables ----------------------------------------------------------------------------------


def _tables(there: netlink.Socket) -> Iterator[tuple[int, str]]:
    for body in there.dump(w.GETTABLE, bytes(4)):
        if body[0] in _FAMILIES:
            yield body[0], _name(attrs(body, 4)[1])


def _chains(there: netlink.Socket, family: int, table: str) -> list[Chain]:
    head = bytes((family, 0, 0, 0))
    seen = [attrs(body, 4) for body in there.dump(w.GETCHAIN, head) if body[0] == family]
    seen = [one for one in seen if _name(one[1]) == table]
    rules: dict[str, list[Rule]] = {}
    if any(_at_forward(one) for one in seen):
        for body in there.dump(w.GETRULE, head + text(1, table)):
            one = attrs(body, 4)
            if body[0] == family and _name(one[1]) == table:
                rules.setdefault(_name(one[2]), []).append(rule(one.get(4, b""), family))
    return [
        Chain(
            _FAMILIES[family],
            table,
            _name(one[3]),
            "forward" if _at_forward(one) else "",
            "" if 5 not in one else "accept" if int.from_bytes(one[5], "big") == 1 else "drop",
            tuple(rules.get(_name(one[3]), ())),
        )
        for one in seen
    ]


def _at_forward(one: dict[int, bytes]) -> bool:
    hook = attrs(one[4]) if 4 in one else {}
    return 1 in hook and int.from_bytes(hook[1], "big") == _FORWARD


def _name(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


_IGNORED = ("counter", "log", "notrack", "comment")
_KEYS = {6: "in", 7: "out", 15: "family"}  # NFT_META_IIFNAME, NFT_META_OIFNAME, NFT_META_NFPROTO
_VERDICTS = {0: "drop", 1: "accept", -3: "jump", -4: "goto", -5: "return"}
_ADDRESSES = {(2, 12): "from", (2, 16): "to", (10, 8): "from", (10, 24): "to"}
"""By family and offset in the network header."""


def rule(expressions: bytes, family: int) -> Rule:
    """From NFTA_RULE_EXPRESSIONS (linux/netfilter/nf_tables.h)."""
    conditions: list[str] = []
    verdict = what = ""
    mask = b""
    for _, element in walk(expressions):
        one = attrs(element)
        name, data = _name(one[1]), attrs(one.get(2, b""))
        if name in _IGNORED:
            continue
        if name == "meta" and 1 in data:
            what, mask = _KEYS.get(int.from_bytes(data[2], "big"), "other"), b""
        elif name == "payload" and 4 in data:
            offset, length = int.from_bytes(data[3], "big"), int.from_bytes(data[4], "big")
            network = int.from_bytes(data[2], "big") == 1
            what, mask = (_ADDRESSES.get((family, offset), "other") if network else "other"), b"\xff" * length
        elif name == "bitwise" and 4 in data:
            mask = attrs(data[4]).get(1, b"")
        elif name == "cmp":
            equal = int.from_bytes(data.get(2, b""), "big") == 0
            value = attrs(data.get(3, b"")).get(1, b"")
            conditions.append(_condition(what if equal else "other", value, mask, family))
            if what == "family" and equal:
                family = value[0]  # the offsets that follow are of this one
        elif name == "immediate":
            verdict = _verdict(attrs(attrs(data.get(2, b"")).get(2, b"")))
        elif name == "reject" or (name == "target" and _name(data.get(1, b"")) == "REJECT"):
            verdict = "reject"
        else:
            conditions.append("other")
    return Rule(tuple(conditions), verdict)


def _condition(what: str, value: bytes, mask: bytes, family: int) -> str:
    if what in ("in", "out"):
        return f"{what} {_name(value)}{'' if value.endswith(bytes(1)) else '*'}"
    if what == "family":
        return f"family {_FAMILIES.get(value[0], '?')}"
    if what in ("from", "to"):
        size = 4 if family == 2 else 16
        length = int.from_bytes(mask, "big").bit_count()
        return f"{what} {prefix_around(Address(value.ljust(size, bytes(1))[:size]), length)}"
    return "other"


def _verdict(seen: dict[int, bytes]) -> str:
    kind = _VERDICTS.get(int.from_bytes(seen.get(1, b"\0\0\0\7"), "big", signed=True), "")
    return f"{kind} {_name(seen[2])}" if kind in ("jump", "goto") and 2 in seen else kind
