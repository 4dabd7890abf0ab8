"""Services in nftables: constant rules as text through libnftables, elements as packed batches.

Invariants: one table for each family; only these are ever touched. A batch is all or nothing, and the kernel names
the message that it refuses: the frontend of that message is left out and reported, the rest is sent again. Rules are
ours and unaltered if the seal's digest is that of what is read; else they are loaded again, elements untouched.
"""

import errno
import os
from collections.abc import Mapping
from hashlib import sha1
from typing import Any

from podwire.controller.difference import Change, Difference, Outcome, Scope
from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, attrs, text
from podwire.dataplane.nftables import affinity, libnftables, reading, rules, slots
from podwire.dataplane.nftables import render as r
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.layout import SEAL, TABLE, keyword, layout, renew
from podwire.dataplane.nftables.watch import Watch
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import AffinityKey, Frontend, InternalKey, RestrictedKey, RulesKey, Slots

MAPS = (
    "svc",
    "svc_internal",
    "drawn",
    "drawn_internal",
    "remembered",
    "serving",
    "serving_internal",
    "eps",
    "refused",
    "dropped",
    "restricted",
    "allowed",
    "service_ranges",
    "cluster",
    "external",
    "external_ips",
    "pods",
)
NO_ROOM = {errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EMSGSIZE}
"""A map is full (ENFILE), or the kernel's memory: the same would fail again at once."""


class NFTables:
    name = "nftables"
    slice = 5000
    """Of elements: about 50 ms. A datagram of many more would not go through the socket."""

    def __init__(self, listens: bool = True) -> None:
        """One that doesn't listen can only be read."""
        self.writes = 0
        self._socket = netlink.Socket(netlink.NETFILTER)
        self._open: set[Frontend] = set()
        """Frontends whose restriction was refused last: a slice may have brought it before the frontend."""
        self._watch = Watch(self.generation, listens)

    def weight(self, change: Change) -> int:
        return 1 + sum(len(slots.backends) for slots in change if isinstance(slots, Slots))

    def rank(self, key: Any) -> int:
        return r.rank(key)

    def place(self, wanted: Any, actual: Any) -> Any:
        return slots.place(wanted, actual)

    def settle(self, wanted: Mapping[Any, Any], _: Mapping[Any, Any]) -> Mapping[Any, Any]:
        return wanted

    def read(self, scope: Scope) -> dict[Any, Any]:
        if scope.keys is None:
            self._watch.read()
        maps = MAPS if scope.keys is None else {name for key in scope.keys for name in r.holder(key)}
        found: dict[Any, Any] = {}
        constant = scope.keys is None or any(isinstance(key, RulesKey | AffinityKey) for key in scope.keys)
        for family in FAMILIES:
            if constant:
                found |= self._read_rules(family)
            found |= reading.keys(family, {name: self._dump(family, name) for name in maps})
        return {key: value for key, value in found.items() if key in scope}

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        outcomes: dict[Any, Outcome] = {
            key: self._load_rules(key.family, change) for key, change in difference.items() if isinstance(key, RulesKey)
        }
        unfit = {key.family for key, outcome in outcomes.items() if outcome.error is not None}
        outcomes |= {
            key: Outcome(error=f"{key}: the {r.family_of_key(key)} rules are not loaded")
            for key in difference
            if key not in outcomes and r.family_of_key(key) in unfit
        }
        outcomes |= {
            key: self._make_affinity(key, change)
            for key, change in difference.items()
            if isinstance(key, AffinityKey) and change.after is not None and key not in outcomes
        }
        left = {key: r.render(key, change) for key, change in r.in_order(difference) if key not in outcomes}
        self._open -= {key.frontend for key in left if isinstance(key, RestrictedKey)}  # tried again now
        gone = {key for key, change in difference.items() if change.after is None}
        self._open -= {key for key in gone if isinstance(key, Frontend)}
        outcomes |= self._withheld(left)
        outcomes |= self._send(left)
        return outcomes | {key: Outcome(difference[key].after) for key in left}

    @property
    def by(self) -> str:
        """Who else has changed our tables last, where that is known."""
        return self._watch.by

    def fileno(self) -> int:
        """Readable when others have changed any table."""
        return self._watch.fileno()

    def changed(self, _: Mapping[Any, Any]) -> frozenset[Any] | None:
        """None: others have changed our tables since the last look; else no key."""
        return None if self._watch.touched() else frozenset()

    behind = False
    """A look hears all that was told: pods can't change the node's tables."""

    def uninstall(self) -> list[str]:
        """Removes the tables that carry our seal; says in words what became of each."""
        found = []
        for family in FAMILIES:
            name = f"table {keyword(family)} {TABLE}"
            held = _rules(self._socket, family)
            if held is not None and not held.comment(SEAL):
                found.append(f"{name}: stays, it has no seal of ours")
            elif held is not None:
                error = libnftables.run(f"delete {name}")
                found.append(f"{name}: {error.strip() or 'removed'}")
        return found

    def generation(self) -> int:
        """Of the whole ruleset: rises with every commit, whoever makes it."""
        return int.from_bytes(attrs(self._socket.dump(w.GETGEN, bytes((0, 0, 0, 0)), 0)[0], 4)[1], "big")

    def close(self) -> None:
        self._watch.close()
        self._socket.close()

    def _send(self, left: dict[Any, list[Message]]) -> dict[Any, Outcome]:
        """Sends what can be sent; what is refused is taken out of `left` and answered."""
        refused: dict[Any, Outcome] = {}
        while any(left.values()):
            messages = [message for some in left.values() for message in some]
            # One message for each frontend and map, so that an error's position names its frontend.
            owners = [None, *(key for key, some in left.items() for _ in some)]
            errors = self.commit(messages)
            self.writes += len(messages)
            if not errors:
                break
            named = {owners[position] if position < len(owners) else None for position in errors}
            for position, code in sorted(errors.items()):
                owner = owners[position] if position < len(owners) else None
                for key in [owner] if owner is not None else [] if named - {None} else list(left):
                    refused.setdefault(
                        key,
                        Outcome(
                            error=f"{key}: {os.strerror(code)} ({errno.errorcode.get(code, code)})",
                            later=code in NO_ROOM,
                        ),
                    )
                    left.pop(key, None)
            self._open |= {key.frontend for key in refused if isinstance(key, RestrictedKey)}
            refused |= self._withheld(left)
        return refused

    def _withheld(self, left: dict[Any, list[Message]]) -> dict[Any, Outcome]:
        """A frontend whose restriction the kernel refuses would be open to all: it is not made either."""
        found = {
            key: Outcome(error=f"{key}: who may use it can't be restricted")
            for key in left
            if (isinstance(key, Frontend) and key in self._open)
            or (isinstance(key, InternalKey) and key.frontend in self._open)
        }
        for key in found:
            del left[key]
        return found

    def commit(self, messages: list[Message]) -> dict[int, int]:
        """All or nothing; the errors by the message's position in the batch, the first being 1."""
        with self._watch.own() as told:
            errors = self._socket.send(w.batch(messages))
            told(not errors)
        return errors

    def _run(self, commands: str) -> str:
        with self._watch.own() as told:
            error = libnftables.run(commands)
            told(not error)
        return error

    def _dump(self, family: Family, name: str) -> list[bytes]:
        return self._socket.dump(w.GETELEM, w.table(family) + text(2, name))

    def _read_rules(self, family: Family) -> dict[Any, Any]:
        """Whether the constant rules, and what remembers clients, are as they were made, from what they should be made
        from now; nothing where there is no table."""
        held = _rules(self._socket, family)
        if held is None:
            return {}
        found: dict[Any, Any] = {RulesKey(family): held.comment(SEAL) == _digest(family, held.constant())}
        for seconds, some in held.remembering().items():
            digest = affinity.digest(family, seconds, some.parts())
            found[AffinityKey(family, seconds)] = held.comment(f"sealed{seconds}") == digest
        return found

    def _load_rules(self, family: Family, change: Change) -> Outcome:
        if change.after is None:
            return Outcome(change.before, error="rules are removed by uninstalling only")
        # Not even the maps are as they should be: all anew, and the elements are read again.
        renewed = change.before is not None and not self._swap_rules(family)
        self.writes += 2
        error = ""
        if change.before is None or renewed:
            error = self._run(renew(family))
        if not error:
            errors = self.commit(rules.seal(family, SEAL, _digest(family, self._constant(family))))
            error = os.strerror(min(errors.values())) if errors else ""
        return Outcome(error=f"rules of {family}: {error.strip()}") if error else Outcome(True, again=renewed)

    def _swap_rules(self, family: Family) -> bool:
        """Whether the table now reads as it should. nft can't refill a table whose maps the rules name; so the rules,
        as the kernel reads them, are made in an empty namespace and swapped in as they are."""
        with netlink.inside(None):
            error = libnftables.run(layout(family))
            pattern_socket = netlink.Socket(netlink.NETFILTER)
        try:
            pattern = _rules(pattern_socket, family)
        finally:
            pattern_socket.close()
        if error or pattern is None:
            return False
        messages = rules.swap(family, pattern, self._constant(family))
        self.writes += len(messages)
        if self.commit(messages):
            return False
        return _digest(family, self._constant(family)) == _digest(family, pattern)

    def _constant(self, family: Family) -> rules.Rules:
        """Of no table where there is none."""
        held = _rules(self._socket, family)
        return held.constant() if held is not None else rules.Rules(0, {}, [], [])

    def _make_affinity(self, key: AffinityKey, change: Change) -> Outcome:
        """What is there is mended, its map and who is remembered stay if they can."""
        for anew in (False, True)[: 1 if change.before is None else 2]:
            messages = affinity.make(key.family, key.seconds, anew=anew)
            self.writes += len(messages)
            errors = self.commit(messages)
            if not errors:
                held = _rules(self._socket, key.family)
                made = held.remembering().get(key.seconds) if held is not None else None
                digest = affinity.digest(key.family, key.seconds, made.parts() if made is not None else ())
                errors = self.commit(rules.seal(key.family, f"sealed{key.seconds}", digest))
            if not errors:
                return Outcome(True)
        return Outcome(error=f"{key}: {os.strerror(min(errors.values()))}")


def _rules(there: netlink.Socket, family: Family) -> rules.Rules | None:
    """None where there is no table."""
    whole = w.table(family)
    tables = there.dump(w.GETTABLE, whole, 0)
    if not tables:
        return None
    return rules.Rules.read(tables, *(there.dump(kind, whole) for kind in (w.GETCHAIN, w.GETRULE, w.GETSET)))


def _digest(family: Family, held: rules.Rules) -> str:
    """Of the rules as they are read, and of what they should have been made from."""
    parts = (layout(family).encode(), *held.parts())
    return sha1(b"".join(parts), usedforsecurity=False).hexdigest()[:16]
