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
from podwire.dataplane.nftables import libnftables, reading, rules, slots
from podwire.dataplane.nftables import render as r
from podwire.dataplane.nftables.layout import SEAL, layout, renew, seal
from podwire.dataplane.nftables.watch import Watch
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import RulesKey

MAPS = (
    "svc",
    "svc_internal",
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
_CHAIN_COMMENT = 12


class NFTables:
    name = "nftables"
    slice = 500

    def __init__(self, listens: bool = True) -> None:
        """One that doesn't listen can only be read."""
        self.writes = 0
        self._socket = netlink.Socket(netlink.NETFILTER)
        self._watch = Watch(self.generation, listens)

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
        for family in FAMILIES:
            version = self._read_rules(family) if RulesKey(family) in scope else None
            if version is not None:
                found[RulesKey(family)] = version
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
        left = {key: r.render(key, change) for key, change in r.in_order(difference) if key not in outcomes}
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

    def generation(self) -> int:
        """Of the whole ruleset: rises with every commit, whoever makes it."""
        return int.from_bytes(attrs(self._socket.dump(r.GETGEN, bytes((0, 0, 0, 0)), 0)[0], 4)[1], "big")

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
            errors = self._commit(messages)
            self.writes += len(messages)
            if not errors:
                break
            named = {owners[position] if position < len(owners) else None for position in errors}
            for position, code in sorted(errors.items()):
                owner = owners[position] if position < len(owners) else None
                for key in [owner] if owner is not None else [] if named - {None} else list(left):
                    refused.setdefault(
                        key, Outcome(error=f"{key}: {os.strerror(code)} ({errno.errorcode.get(code, code)})")
                    )
                    left.pop(key, None)
        return refused

    def _commit(self, messages: list[Message]) -> dict[int, int]:
        with self._watch.own() as told:
            errors = self._socket.send(r.batch(messages))
            told(not errors)
        return errors

    def _run(self, commands: str) -> str:
        with self._watch.own() as told:
            error = libnftables.run(commands)
            told(not error)
        return error

    def _dump(self, family: Family, name: str) -> list[bytes]:
        return self._socket.dump(r.GETELEM, r.table(family) + text(2, name))

    def _read_rules(self, family: Family) -> bool | None:
        """Whether they are as they were loaded, from what they should be loaded from now; None where there is no
        table."""
        named = r.table(family) + text(3, SEAL)
        for body in self._socket.dump(r.GETCHAIN, named, 0):
            comment = attrs(body, 4).get(_CHAIN_COMMENT, b"")[2:-1].decode(errors="replace")
            return comment == _digest(family, _rules(self._socket, family))
        return False if self._socket.dump(r.GETTABLE, r.table(family), 0) else None

    def _load_rules(self, family: Family, change: Change) -> Outcome:
        if change.after is None:
            return Outcome(change.before, error="rules are removed by uninstalling only")
        # Not even the maps are as they should be: all anew, and the elements are read again.
        renewed = change.before is not None and not self._swap_rules(family)
        self.writes += 2
        error = ""
        if change.before is None or renewed:
            error = self._run(renew(family))
        error = error or self._run(seal(family, _digest(family, _rules(self._socket, family))))
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
        if error:
            return False
        messages = rules.swap(family, pattern, _rules(self._socket, family))
        self.writes += len(messages)
        if self._commit(messages):
            return False
        return _digest(family, _rules(self._socket, family)) == _digest(family, pattern)


def _rules(there: netlink.Socket, family: Family) -> rules.Rules:
    whole = r.table(family)
    parts = (there.dump(kind, whole) for kind in (r.GETCHAIN, r.GETRULE, r.GETSET))
    return rules.Rules.read(there.dump(r.GETTABLE, whole, 0), *parts)


def _digest(family: Family, held: rules.Rules) -> str:
    """Of the rules as they are read, and of what they should have been made from."""
    parts = (layout(family).encode(), *held.parts())
    return sha1(b"".join(parts), usedforsecurity=False).hexdigest()[:16]
