"""Services in nftables: constant rules as text through libnftables, elements as packed batches.

Invariants: one table for each family; only these are ever touched. A batch is all or nothing, and the kernel names
the message that it refuses: the frontend of that message is left out and reported, the rest is sent again. A frontend's
second list goes in a batch behind the one that leads its clients elsewhere. Rules are ours and unaltered if the seal's
digest is that of what is read; else they are loaded again, elements untouched.
"""

import errno
import os
from collections.abc import Mapping
from hashlib import sha1
from threading import Lock
from typing import Any

from msgspec.structs import replace

from podwire.controller.difference import Change, Difference, Outcome, Scope
from podwire.dataplane import netlink
from podwire.dataplane.messages import Message, text
from podwire.dataplane.nftables import affinity, departed, hostports, libnftables, reading, rules, slots
from podwire.dataplane.nftables import render as r
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.layout import SEAL, TABLE, holders, keyword, layout, renew
from podwire.dataplane.nftables.steady import generation, steady
from podwire.dataplane.nftables.watch import Watch
from podwire.model.addresses import FAMILIES, Family
from podwire.model.network import (
    AffinityKey,
    Backend,
    Frontend,
    HoldersKey,
    HostPortKey,
    InternalKey,
    RestrictedKey,
    RulesKey,
    Slots,
)
from podwire.services.stale import frontend_of

MAPS = (
    "svc",
    "svc_internal",
    "svc_outside",
    "drawn",
    "drawn_internal",
    "remembered",
    "shared",
    "serving",
    "serving_internal",
    "eps",
    "refused",
    "dropped",
    "restricted",
    "allowed",
    "service_ranges",
    "cluster",
    "unmasqueraded",
    "external",
    "external_ips",
    "tunnels",
    "tunnel_ports",
    "pods",
    *hostports.MAPS,
)
_NOTHING_AHEAD: tuple[int, Mapping[Family, reading.Dumped]] = (-1, {})
"""The generation of the ruleset, and what the maps held then."""
NO_ROOM = {errno.ENOMEM, errno.ENOBUFS, errno.EMSGSIZE}
"""The kernel's memory is full: the same would fail again at once."""


class NFTables:
    name = "nftables"
    apart = True
    slice = 5000
    """Of elements: about 50 ms. A datagram of many more would not go through the socket."""

    def __init__(self, listens: bool = True, traffic: bool = False) -> None:
        """One that doesn't listen can only be read. `traffic`: as `layout` has it."""
        self.writes, self._counts_packets = 0, traffic
        self._socket, self._reading = netlink.Socket(netlink.NETFILTER), netlink.Socket(netlink.NETFILTER)
        self._alone = Lock()
        """Of commits, some of which are no transaction's (a trace's), while another thread reads."""
        self._open: dict[Frontend, bool] = {}
        """Frontends whose restriction was refused last: a slice may have brought it before the frontend. Whether that
        was for a full map."""
        self._stuck: dict[Frontend, bool] = {}
        """Frontends whose own change was refused last: a later slice may hold what restricts them. Whether that was for
        a full map."""
        self._watch = Watch(self.generation, listens)
        self._ahead = _NOTHING_AHEAD
        self.departed = departed.Departed(self.commit)

    def weight(self, change: Change) -> int:
        return 1 + sum(len(slots.backends) for slots in change if isinstance(slots, Slots))

    def rank(self, key: Any, change: Change) -> r.Rank:
        return r.rank(key, change)

    def place(self, wanted: Any, actual: Any) -> Any:
        return slots.place(wanted, actual)

    def settle(self, wanted: Mapping[Any, Any], _: Mapping[Any, Any]) -> Mapping[Any, Any]:
        return wanted

    def read(self, scope: Scope) -> dict[Any, Any]:
        if scope.keys is None:
            with self._alone:
                self._watch.read()
        self._stuck = {it: full for it, full in self._stuck.items() if it not in scope}
        maps = MAPS if scope.keys is None else {name for key in scope.keys for name in r.holder(key)}
        ahead = self._take_ahead() if scope.keys is None else {}
        found: dict[Any, Any] = {}
        constant = scope.keys is None or any(isinstance(key, HoldersKey | RulesKey | AffinityKey) for key in scope.keys)
        for family in FAMILIES:
            if constant:
                found |= self._read_rules(family)
            found |= reading.keys(family, ahead.get(family) or {name: self._dump(family, name) for name in maps})
        return found if scope.keys is None else {key: value for key, value in found.items() if key in scope}

    def look_ahead(self) -> None:
        """What the next read of all would ask the maps for, asked beforehand: in a thread, while nothing else is read.
        It counts only where nobody has committed anything since."""
        try:
            before = generation(self._reading)
            dumps = {
                family: {name: self._reading.dump(w.GETELEM, w.table(family) + text(2, name)) for name in MAPS}
                for family in FAMILIES
            }
        except OSError:  # the read itself will tell
            return
        self._ahead = before, dumps

    def _take_ahead(self) -> Mapping[Family, reading.Dumped]:
        (before, dumps), self._ahead = self._ahead, _NOTHING_AHEAD
        return dumps if before == generation(self._reading) else {}

    def host_ports(self) -> dict[HostPortKey, Backend]:
        """Those that the kernel holds, for a store that was lost. Raises OSError."""
        found: dict[HostPortKey, Backend] = {}
        for family in FAMILIES:
            held = reading.keys(family, {name: self._dump(family, name) for name in hostports.MAPS})
            found |= {key: value for key, value in held.items() if isinstance(key, HostPortKey)}
        return found

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        outcomes: dict[Any, Outcome] = {
            key: self._make_holders(key.family, change)
            for key, change in difference.items()
            if isinstance(key, HoldersKey)
        }
        unfit = {key.family for key, outcome in outcomes.items() if outcome.error is not None}
        outcomes |= {
            key: Outcome(error=f"{key}: the {r.family_of_key(key)} maps are not there")
            for key in difference
            if key not in outcomes and r.family_of_key(key) in unfit
        }
        outcomes |= {
            key: self._make_affinity(key, change)
            for key, change in difference.items()
            if isinstance(key, AffinityKey) and change.before is None and key not in outcomes
        }
        later = {
            key: change
            for key, change in difference.items()
            if isinstance(key, RulesKey | AffinityKey) and change.after is not None and key not in outcomes
        }
        left: dict[Any, list[Message]] = {}
        behind: dict[Any, list[Message]] = {}
        for key, change in r.in_order(difference):
            if key not in outcomes and key not in later:
                between = _between(key, change, difference)
                first = r.render(key, Change(change.before, between)) if between != change.before else []
                left[key] = first + self.departed.noted(key, change)
                if between != change.after:
                    behind[key] = r.render(key, Change(between, change.after))
        tried = {key.frontend for key in left if isinstance(key, RestrictedKey)}
        tried |= {key for key, change in difference.items() if isinstance(key, Frontend) and change.after is None}
        self._open = {key: full for key, full in self._open.items() if key not in tried}
        self._stuck = {key: full for key, full in self._stuck.items() if key not in difference}
        gone = {key for key, change in difference.items() if change.after is None}
        outcomes |= self._withheld(left, gone)
        outcomes |= self._send(left, gone)
        behind = {key: some for key, some in behind.items() if key in left}
        outcomes |= self._withheld(behind, gone)
        outcomes |= self._send(behind, gone)
        # Of what was refused for a full map nothing was changed.
        outcomes |= {key: replace(it, value=difference[key].before) for key, it in outcomes.items() if it.full}
        for key, change in later.items():  # what they ask for has been filled in
            outcomes[key] = (
                self._load_rules(key.family, change) if isinstance(key, RulesKey) else self._make_affinity(key, change)
            )
        return outcomes | {key: Outcome(difference[key].after) for key in left if key not in outcomes}

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
            held = _rules(self._reading, family)
            if held is not None and not held.comment(SEAL):
                found.append(f"{name}: stays, it has no seal of ours")
            elif held is not None:
                error = libnftables.run(f"delete {name}")
                found.append(f"{name}: {error.strip() or 'removed'}")
        return found

    def generation(self) -> int:
        """As `podwire.dataplane.nftables.steady.generation`."""
        return generation(self._socket)

    def close(self) -> None:
        self._watch.close()
        self._socket.close()
        self._reading.close()
        self.departed.close()

    def _send(self, left: dict[Any, list[Message]], gone: set[Any]) -> dict[Any, Outcome]:
        """Sends what can be sent; what is refused is taken out of `left` and answered. `gone`: the keys that go."""
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
                            full=code == errno.ENFILE,
                        ),
                    )
                    left.pop(key, None)
            self._open |= {
                key.frontend: it.full
                for key, it in refused.items()
                if isinstance(key, RestrictedKey) and key not in gone
            }
            of = ((frontend_of(key), it.full) for key, it in refused.items())
            self._stuck |= {frontend: full for frontend, full in of if frontend is not None}
            refused |= self._withheld(left, gone)
        return refused

    def _withheld(self, left: dict[Any, list[Message]], gone: set[Any]) -> dict[Any, Outcome]:
        """A frontend whose restriction the kernel refuses would be open to all: it is not made either. Nor does the
        restriction go, or the list for clients in the cluster, of one whose own change was refused: the next attempt is
        told of both."""
        found = {
            key: Outcome(error=f"{key}: who may use it can't be restricted", full=self._open[frontend])
            for key, frontend in ((key, frontend_of(key)) for key in left)
            if frontend is not None and frontend in self._open
        }
        for key in left:
            if isinstance(key, RestrictedKey) and key in gone and key.frontend in self._stuck:
                full = self._stuck.pop(key.frontend)
                found[key] = Outcome(error=f"{key}: stays, since what it restricts could not be changed", full=full)
            elif isinstance(key, InternalKey) and key in gone and key.frontend in self._stuck:
                full = self._stuck[key.frontend]
                found[key] = Outcome(error=f"{key}: stays, since its frontend could not be changed", full=full)
        for key in found:
            del left[key]
        return found

    def commit(self, messages: list[Message]) -> dict[int, int]:
        """All or nothing; the errors by the message's position in the batch, the first being 1."""
        with self._alone, self._watch.own() as told:
            errors = self._socket.send(w.batch(messages))
            told(not errors)
        return errors

    def _run(self, commands: str) -> str:
        with self._alone, self._watch.own() as told:
            error = libnftables.run(commands)
            told(not error)
        return error

    def _dump(self, family: Family, name: str) -> list[bytes]:
        request = w.table(family) + text(2, name)
        return steady(self._reading, lambda: self._reading.dump(w.GETELEM, request))

    def _read_rules(self, family: Family) -> dict[Any, Any]:
        """Whether the constant rules, and what remembers clients, are as they were made, from what they should be made
        from now; nothing where there is no table."""
        held = _rules(self._reading, family)
        if held is None:
            return {}
        constant = held.constant()
        found: dict[Any, Any] = {
            HoldersKey(family): constant.has(holders(family)),
            RulesKey(family): held.comment(SEAL) == self._digest(family, constant),
        }
        for seconds, some in held.remembering().items():
            digest = affinity.digest(family, seconds, some.parts())
            found[AffinityKey(family, seconds)] = held.comment(f"sealed{seconds}") == digest
        return found

    def _make_holders(self, family: Family, change: Change) -> Outcome:
        """Where there is no table, all of it; else what it lacks, and its rules stay as they are."""
        if change.after is None:
            return Outcome(change.before, error="maps are removed by uninstalling only")
        if change.before is None:
            self.writes += 1
            error = self._run(renew(family, self._counts_packets))
            return Outcome(error=f"maps of {family}: {error.strip()}") if error else self._seal(family)
        pattern = self._pattern(family)
        if pattern is not None and not rules.unlike(pattern.rules, self._constant(family)):
            messages = rules.fill(family, pattern, self._constant(family))
            self.writes += len(messages)
            if not self.commit(messages):
                return Outcome(True)
        return self._renew(family)

    def _load_rules(self, family: Family, change: Change) -> Outcome:
        if change.after is None:
            return Outcome(change.before, error="rules are removed by uninstalling only")
        pattern, held = self._pattern(family), _rules(self._reading, family)
        if held is not None and held.comment(SEAL) == self._digest(family, held.constant()):
            return Outcome(True)  # just made with their maps
        if pattern is None or not self._swap_rules(family, pattern):
            return self._renew(family)
        return self._seal(family)

    def _seal(self, family: Family, again: bool = False) -> Outcome:
        self.writes += 1
        errors = self.commit(rules.seal(family, SEAL, self._digest(family, self._constant(family))))
        return (
            Outcome(error=f"rules of {family}: {os.strerror(min(errors.values()))}")
            if errors
            else Outcome(True, again=again)
        )

    def _renew(self, family: Family) -> Outcome:
        """Not even the maps are as they should be: a new table in the place of the old one, with what that held, in one
        batch. Who is remembered is not, and is drawn for once more; what else is lost is read again."""
        pattern, held = self._pattern(family), _rules(self._reading, family)
        if pattern is not None and held is not None:
            messages = rules.anew(family, pattern, self._kept(family, held))
            self.writes += len(messages)
            if not self.commit(messages):
                return self._seal(family, again=True)
        self.writes += 1
        error = self._run(renew(family, self._counts_packets))
        return Outcome(error=f"rules of {family}: {error.strip()}") if error else self._seal(family, again=True)

    def _kept(self, family: Family, held: rules.Rules) -> list[Message]:
        """What a table's maps hold, as far as it is of ours, for another one."""
        remembering = sorted(held.remembering())
        read = reading.keys(family, {name: self._dump(family, name) for name in MAPS})
        kept = {key: value for key, value in read.items() if r.is_ours(key, value, remembering)}
        found = [message for seconds in remembering for message in affinity.make(family, seconds, anew=False)]
        found += [message for key, value in kept.items() for message in r.render(key, Change(None, value))]
        gone = departed.read(self._reading, family)
        return found + [message for frontend, them in gone.items() for message in departed.note(frontend, them)]

    def _pattern(self, family: Family) -> rules.Pattern | None:
        """The rules as the kernel reads them, made in an empty namespace: nft can't refill a table whose maps the rules
        name."""
        with netlink.inside(None):
            error = libnftables.run(layout(family, self._counts_packets))
            there = netlink.Socket(netlink.NETFILTER)
        try:
            whole = w.table(family)
            tables = there.dump(w.GETTABLE, whole, 0)
            dumps = (there.dump(kind, whole) for kind in (w.GETCHAIN, w.GETRULE, w.GETSET))
            return rules.Pattern.read(tables, *dumps) if tables and not error else None
        finally:
            there.close()

    def _swap_rules(self, family: Family, pattern: rules.Pattern) -> bool:
        """Whether the table now reads as it should."""
        messages = rules.swap(family, pattern.rules, self._constant(family))
        self.writes += len(messages)
        if self.commit(messages):
            return False
        return self._digest(family, self._constant(family)) == self._digest(family, pattern.rules)

    def _digest(self, family: Family, held: rules.Rules) -> str:
        """Of the rules as they are read, and of what they should have been made from."""
        parts = (layout(family, self._counts_packets).encode(), *held.parts())
        return sha1(b"".join(parts), usedforsecurity=False).hexdigest()[:16]

    def _constant(self, family: Family) -> rules.Rules:
        """Of no table where there is none."""
        held = _rules(self._reading, family)
        return held.constant() if held is not None else rules.Rules(0, {}, [], [])

    def _make_affinity(self, key: AffinityKey, change: Change) -> Outcome:
        """What is there is mended, its map and who is remembered stay if they can."""
        for anew in (False, True)[: 1 if change.before is None else 2]:
            messages = affinity.make(key.family, key.seconds, anew=anew)
            self.writes += len(messages)
            errors = self.commit(messages)
            if not errors:
                held = _rules(self._reading, key.family)
                made = held.remembering().get(key.seconds) if held is not None else None
                digest = affinity.digest(key.family, key.seconds, made.parts() if made is not None else ())
                errors = self.commit(rules.seal(key.family, f"sealed{key.seconds}", digest))
            if not errors:
                return Outcome(True)
        return Outcome(error=f"{key}: {os.strerror(min(errors.values()))}")


def _between(key: Any, change: Change, changes: Difference) -> Any:
    """What a key holds until a second batch: nearly always what it will in the end.

    Where a list goes and its clients find another, its slots go last: a packet that has just been led to it would draw
    from nothing. So that nobody in the cluster is led by the list for others, theirs goes last as a whole.
    """
    before, after = change
    other = changes.get(key.frontend if isinstance(key, InternalKey) else InternalKey(key))
    instead = other.after if other is not None else None
    if not isinstance(before, Slots) or instead is None or (after is not None and after.backends):
        return after
    if isinstance(key, InternalKey):
        return before
    return (after or Slots(None))._replace(backends=before.backends, drawn=before.drawn, keeps=before.keeps)


def _rules(there: netlink.Socket, family: Family) -> rules.Rules | None:
    """None where there is no table."""
    whole = w.table(family)

    def read() -> rules.Rules | None:
        tables = there.dump(w.GETTABLE, whole, 0)
        dumps = (there.dump(kind, whole) for kind in (w.GETCHAIN, w.GETRULE, w.GETSET))
        return rules.Rules.read(tables, *dumps) if tables else None

    return steady(there, read)
