"""The constant rules as the kernel reads them, and the messages that make one table's equal to another's. Pure.

Invariants: elements are no part of it; the seal isn't either, nor is what comes and goes with the Services
(affinity.py): that has seals of its own. Two tables that read alike do alike: flags of the table
(a dormant one has no hooks), type, hook, priority and policy of each chain, all rules in order, shapes of the sets.
"""

from collections.abc import Container, Iterable, Iterator
from struct import pack
from typing import NamedTuple

from podwire.dataplane.messages import CREATE, NESTED, Message, attr, attrs, nest, text, walk
from podwire.dataplane.nftables.affinity import seconds_of
from podwire.dataplane.nftables.layout import SEAL, TABLE
from podwire.dataplane.nftables.wire import (
    APPEND,
    DELCHAIN,
    DELRULE,
    DELSET,
    DELTABLE,
    NEWCHAIN,
    NEWRULE,
    NEWSET,
    NEWTABLE,
    table,
    u32,
)
from podwire.model.addresses import Family

_SHAPE = (2, 3, 4, 5, 6, 7, 9, 11, 17)
"""Of a set's attributes: name, flags, types and lengths of key and data, size, timeout, what each element counts."""
_NESTS = (9, 17)
"""Of these the ones that hold attributes themselves."""
_SET_ID = 10
_DYNSET_TIMEOUT = 6
_TOLD = (*_SHAPE, 13)
"""Of a set's attributes, to make one like it: nft's own notes, too."""
_IN_TABLE, _TABLE = 1, TABLE.encode() + b"\0"
"""Of chains, rules and sets alike."""
_COMMENT = 12
"""Of a chain's attributes."""
_CHAIN_SHAPE = (4, 5, 7, 10)
"""Of a chain's: hook with its priority, policy, type, flags."""
_TABLE_FLAGS = 2


def seal(family: Family, chain: str, digest: str) -> list[Message]:
    """An empty chain with that comment, in the place of whatever has its name."""
    whole, name = table(family), text(3, chain)
    comment = digest.encode() + b"\0"
    userdata = attr(_COMMENT, bytes((0, len(comment))) + comment)
    created = Message(NEWCHAIN, CREATE, whole + name)
    return [created, Message(DELCHAIN, 0, whole + name), Message(NEWCHAIN, CREATE, whole + name + userdata)]


class Rules(NamedTuple):
    """What a table reads as, without its elements: its flags, chains by name, rules as (chain, expressions), sets."""

    flags: int
    chains: dict[str, dict[int, bytes]]
    rules: list[tuple[bytes, bytes]]
    sets: list[tuple[bytes, ...]]

    @classmethod
    def read(
        cls, tables: Iterable[bytes], chains: Iterable[bytes], rules: Iterable[bytes], sets: Iterable[bytes]
    ) -> "Rules":
        """From the bodies of the table and of three dumps; the seal is no part of it."""
        flags = next((int.from_bytes(attrs(body, 4).get(_TABLE_FLAGS, b""), "big") for body in tables), 0)
        by_name = {_name(seen[3]): seen for seen in _ours(chains)}
        listed = [(seen[2], seen[4]) for seen in _ours(rules)]
        shapes = _ours(sets)
        return cls(flags, by_name, listed, sorted(tuple(seen.get(n, b"") for n in _SHAPE) for seen in shapes))

    def constant(self) -> "Rules":
        chains = {name: seen for name, seen in self.chains.items() if name != SEAL}
        return Rules(self.flags, chains, self.rules, self.sets)._of(0)

    def remembering(self) -> dict[int, "Rules"]:
        """By seconds: what remembers clients for so long, its seal apart."""
        names = (*self.chains, *(_name(shape[0]) for shape in self.sets))
        found = {seconds: self._of(seconds) for seconds in sorted({seconds_of(name) for name in names}) if seconds}
        for seconds, held in found.items():
            held.chains.pop(f"sealed{seconds}", None)
        return found

    def has(self, names: Iterable[str]) -> bool:
        """Whether there are such maps, sets or chains."""
        return {*self.chains, *(_name(shape[0]) for shape in self.sets)}.issuperset(names)

    def comment(self, chain: str) -> str:
        """ "" where there is none, or no such chain."""
        return self.chains.get(chain, {}).get(_COMMENT, b"")[2:-1].decode(errors="replace")

    def _of(self, seconds: int) -> "Rules":
        chains = {name: seen for name, seen in self.chains.items() if seconds_of(name) == seconds}
        listed = [rule for rule in self.rules if seconds_of(_name(rule[0])) == seconds]
        return Rules(self.flags, chains, listed, [s for s in self.sets if seconds_of(_name(s[0])) == seconds])

    def parts(self) -> Iterator[bytes]:
        """All of it, whatever the way it was made; within a chain the order of its rules counts."""
        yield pack(">I", self.flags)
        for name in sorted(self.chains):
            yield name.encode()
            yield from (self.chains[name].get(kind, b"") for kind in _CHAIN_SHAPE)
        for rule in sorted(self.rules, key=lambda rule: rule[0]):
            yield from rule
        for shape in self.sets:
            yield from shape


def _ours(bodies: Iterable[bytes]) -> Iterator[dict[int, bytes]]:
    """Of our table: whatever table a dump of chains asks for, the kernel tells those of all."""
    told = (attrs(body, 4) for body in bodies)
    return (seen for seen in told if seen.get(_IN_TABLE) == _TABLE)


def _name(packed: bytes) -> str:
    return packed[:-1].decode(errors="replace")


class Pattern(NamedTuple):
    """A table as it should be, from an empty namespace: how it reads, and its sets by name as the kernel told them."""

    rules: Rules
    sets: dict[str, bytes]

    @classmethod
    def read(
        cls, tables: Iterable[bytes], chains: Iterable[bytes], rules: Iterable[bytes], sets: Iterable[bytes]
    ) -> "Pattern":
        listed = list(sets)
        return cls(Rules.read(tables, chains, rules, listed), {_name(attrs(body, 4)[2]): body for body in listed})


def unlike(pattern: Rules, held: Rules) -> bool:
    """Whether a map has another form than it should: it can't be changed while rules name it."""
    shapes = {shape[0]: shape for shape in pattern.sets}
    return any(shapes.get(shape[0], shape) != shape for shape in held.sets)


def fill(family: Family, pattern: Pattern, held: Rules) -> list[Message]:
    """The messages that add what a living table lacks and nothing leads to yet: maps, and chains without a hook."""
    there = {_name(shape[0]) for shape in held.sets}
    found = _sets(family, pattern, [name for name in pattern.sets if name not in there])
    hookless = {name for name, seen in pattern.rules.chains.items() if 4 not in seen}
    new = sorted(hookless - held.chains.keys())
    found += [Message(NEWCHAIN, CREATE, table(family) + text(3, name)) for name in new]
    return found + _rules(family, pattern.rules, new)


def anew(family: Family, pattern: Pattern, between: Iterable[Message]) -> list[Message]:
    """The messages that put such a table in the place of one that can't become it, in one batch. `between`: what goes
    into its maps, beside chains."""
    whole, flags = table(family), attr(_TABLE_FLAGS, pack(">I", pattern.rules.flags))
    found = [Message(DELTABLE, 0, whole), Message(NEWTABLE, CREATE, whole + flags)]
    found += _sets(family, pattern, list(pattern.sets))
    chains = sorted(pattern.rules.chains.items())
    found += [Message(NEWCHAIN, CREATE, whole + text(3, name) + _hook(seen)) for name, seen in chains]
    return [*found, *between, *_rules(family, pattern.rules, pattern.rules.chains)]


def _sets(family: Family, pattern: Pattern, names: list[str]) -> list[Message]:
    """Numbered, as the kernel wants it."""
    found = []
    for number, name in enumerate(sorted(names), 1):
        seen = attrs(pattern.sets[name], 4)
        told = (attr(kind | NESTED * (kind in _NESTS), seen[kind]) for kind in _TOLD if kind in seen)
        found.append(Message(NEWSET, CREATE, table(family) + b"".join(told) + u32(_SET_ID, number)))
    return found


def _hook(seen: dict[int, bytes]) -> bytes:
    return b"".join(attr(kind | NESTED * (kind == 4), seen[kind]) for kind in (4, 5, 7) if kind in seen)


def _rules(family: Family, pattern: Rules, chains: Container[str]) -> list[Message]:
    listed = [(chain, each) for chain, each in pattern.rules if _name(chain) in chains]
    head = table(family)
    return [Message(NEWRULE, CREATE | APPEND, head + attr(2, chain) + nest(4, *_taken(each))) for chain, each in listed]


def swap(family: Family, pattern: Rules, held: Rules) -> list[Message]:
    """The messages that make a living table's chains and rules equal to the pattern's, elements untouched. Both are of
    constant rules. The sets of the pattern are there (`fill`); one that it has not goes; no other is changed."""
    whole = table(family)
    found: list[Message] = []
    if held.flags != pattern.flags:
        found.append(Message(NEWTABLE, 0, whole + attr(_TABLE_FLAGS, pack(">I", pattern.flags))))
    wanted, there = ({shape[0] for shape in some.sets} for some in (pattern, held))
    for name, seen in pattern.chains.items():
        found.append(Message(NEWCHAIN, CREATE, whole + text(3, name) + _hook(seen)))
    found += [Message(DELRULE, 0, whole + text(2, name)) for name in held.chains]
    found += [Message(DELCHAIN, 0, whole + text(3, name)) for name in held.chains if name not in pattern.chains]
    found += _rules(family, pattern, pattern.chains)
    return [*found, *(Message(DELSET, 0, whole + attr(2, name)) for name in sorted(there - wanted))]


def _taken(expressions: bytes) -> Iterator[bytes]:
    """A rule's expressions as the kernel takes them: of `dynset` it tells a timeout of zero, and refuses it of a set
    without timeouts."""
    for kind, body in walk(expressions):
        named = attrs(body)
        if named.get(1) == b"dynset\0":
            held = (attr(each, it) for each, it in walk(named[2]) if each != _DYNSET_TIMEOUT or any(it))
            body = attr(1, named[1]) + nest(2, *held)
        yield attr(kind | NESTED, body)
