"""Services in nftables: constant rules as text through libnftables, elements as packed batches.

Invariants: one table for each family; only these are ever touched. A batch is all or nothing, and the kernel names
the message that it refuses: the frontend of that message is left out and reported, the rest is sent again. Rules are
ours and unaltered if the seal's digest is that of what is read; else they are loaded again, elements untouched.
"""

import errno
import itertools
import os
from hashlib import sha1
from typing import Any

from podwire.controller.difference import Change, Difference, Outcome, Scope
from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, attrs, text
from podwire.dataplane.nftables import libnftables
from podwire.dataplane.nftables import render as r
from podwire.dataplane.nftables.layout import SEAL, layout, renew, seal
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import RulesKey

MAPS = ("svc", "eps", "refused", "service_ranges", "external", "pods")
_CHAIN_COMMENT = 12


class NFTables:
    name = "nftables"
    slice = 500

    def __init__(self) -> None:
        self.writes = 0
        self._socket = netlink.Socket(netlink.NETFILTER)

    def rank(self, key: Any) -> int:
        return r.rank(key)

    def place(self, wanted: Any, actual: Any) -> Any:
        return r.place(wanted, actual)

    def read(self, scope: Scope) -> dict[Any, Any]:
        maps = MAPS if scope.keys is None else {name for key in scope.keys for name in r.holder(key)}
        found: dict[Any, Any] = {}
        for family in FAMILIES:
            version = self._read_rules(family) if RulesKey(family) in scope else None
            if version is not None:
                found[RulesKey(family)] = version
            found |= r.keys(family, {name: self._dump(family, name) for name in maps})
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

    def generation(self) -> int:
        """Of the whole ruleset: rises with every commit, whoever makes it."""
        return int.from_bytes(attrs(self._socket.dump(r.GETGEN, bytes((0, 0, 0, 0)), 0)[0], 4)[1], "big")

    def close(self) -> None:
        self._socket.close()

    def _send(self, left: dict[Any, list[Message]]) -> dict[Any, Outcome]:
        """Sends what can be sent; what is refused is taken out of `left` and answered."""
        refused: dict[Any, Outcome] = {}
        while any(left.values()):
            messages = [message for some in left.values() for message in some]
            # One message for each frontend and map, so that an error's position names its frontend.
            owners = [None, *(key for key, some in left.items() for _ in some)]
            errors = self._socket.send(r.batch(messages))
            self.writes += len(messages)
            if not errors:
                break
            named = {owners[position] if position < len(owners) else None for position in errors}
            for position, code in sorted(errors.items()):
                owner = owners[position] if position < len(owners) else None
                for key in [owner] if owner is not None else [] if named - {None} else list(left):
                    refused.setdefault(key, Outcome(error=f"{key}: {os.strerror(code)} ({errno.errorcode[code]})"))
                    left.pop(key, None)
        return refused

    def _dump(self, family: Family, name: str) -> list[bytes]:
        return self._socket.dump(r.GETELEM, r.table(family) + text(2, name))

    def _read_rules(self, family: Family) -> int | None:
        """Their version; 0 where they are not as they were loaded, None where there are none."""
        named = r.table(family) + text(3, SEAL)
        for body in self._socket.dump(r.GETCHAIN, named, 0):
            comment = attrs(body, 4).get(_CHAIN_COMMENT, b"")[2:-1].decode(errors="replace")
            version, _, digest = comment.partition(" ")
            return int(version) if version.isdigit() and digest == self._digest(family) else 0
        return 0 if self._socket.dump(r.GETCHAIN, r.table(family)) else None

    def _digest(self, family: Family) -> str:
        """Of the rules as they are read, and of what they should have been made from."""
        bodies = self._socket.dump(r.GETRULE, r.table(family))
        rules = [(seen[2], seen[4]) for seen in (attrs(body, 4) for body in bodies)]
        rules.sort(key=lambda rule: rule[0])  # by chain; within one, their order counts
        hooks = sorted(
            (seen[3], seen.get(4, b""), seen.get(5, b""))
            for seen in (attrs(body, 4) for body in self._socket.dump(r.GETCHAIN, r.table(family)))
            if seen[3][:-1].decode() != SEAL
        )
        parts = [layout(family).encode(), *itertools.chain(*rules), *itertools.chain(*hooks)]
        return sha1(b"".join(parts), usedforsecurity=False).hexdigest()[:16]

    def _load_rules(self, family: Family, change: Change) -> Outcome:
        version = change.after
        if version is None:
            return Outcome(change.before, error="rules are removed by uninstalling only")
        self.writes += 2
        renewed = False
        error = libnftables.run(layout(family)) if change.before is None else self._swap_rules(family)
        if error and change.before is not None:
            # Not even the maps are as they should be: all anew, and the elements are read again.
            error, renewed = libnftables.run(renew(family)), True
        error = error or libnftables.run(seal(family, version, self._digest(family)))
        return Outcome(error=f"rules of {family}: {error.strip()}") if error else Outcome(version, again=renewed)

    def _swap_rules(self, family: Family) -> str:
        """nft can't refill a table whose maps the rules name. So the rules, as the kernel reads them, are made in an
        empty namespace and swapped in as they are."""
        with netlink.inside(None):
            error = libnftables.run(layout(family))
            pattern = netlink.Socket(netlink.NETFILTER)
        try:
            rules = pattern.dump(r.GETRULE, r.table(family))
            messages = r.swap(family, pattern.dump(r.GETCHAIN, r.table(family)), rules)
        finally:
            pattern.close()
        self.writes += len(messages)
        errors = self._socket.send(r.batch(messages)) if not error else {}
        return error or "; ".join(os.strerror(code) for code in errors.values())
