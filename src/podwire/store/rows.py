"""What outlives the agent, in SQLite: a row for each attachment and for each block's cursor; and what the cluster said
last of this node, so that pods come and go while no API server answers.

Invariants: a driver like the others, and the first in line: a row is committed before the kernel is touched. WAL with
synchronous=NORMAL survives a killed agent; a power loss takes the pods too. The file has a version; a newer one is
not opened.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from podwire.controller.difference import Difference, Outcome, Scope
from podwire.controller.events import Restored
from podwire.model.addresses import parse_prefix
from podwire.model.network import CursorKey, PodMTUKey
from podwire.model.objects import Attachment, AttachmentKey, Node, NodeKey, ServiceCIDR, ServiceCIDRKey

VERSION = 1
_SCHEMA = """
CREATE TABLE attachment (sandbox TEXT, interface TEXT, value BLOB NOT NULL, PRIMARY KEY (sandbox, interface))
    WITHOUT ROWID;
CREATE TABLE cursor (block TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
"""
# An agent of the same version may not know it, and does without.
_ADDED = "CREATE TABLE IF NOT EXISTS remembered (what TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_NODE, _SERVICE_CIDR, _POD_MTU = "node/", "servicecidr/", "mtu"


class StoreUnusable(Exception):
    """The file can't serve; the text says which and why."""


class Store:
    name = "store"
    slice = 0

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it. Raises StoreUnusable."""
        self.writes = 0
        self.fresh = False
        """Whether it was made just now: what it should remember is elsewhere, or nowhere."""
        self._path = path
        try:
            self.db = sqlite3.connect(path, isolation_level=None)
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=NORMAL")
            version = self.db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self.fresh = True
                self.db.executescript(f"BEGIN;{_SCHEMA};PRAGMA user_version={VERSION};COMMIT;")
            elif version != VERSION:
                raise StoreUnusable(f"{path}: written by another version ({version}); this one reads {VERSION}")
            self.db.execute(_ADDED)
        except sqlite3.Error as error:
            raise StoreUnusable(f"{path}: {error}") from error

    def rank(self, key: Any) -> int:  # noqa: ARG002 - all rows go in one transaction
        return 0

    def place(self, wanted: Any, actual: Any) -> Any:  # noqa: ARG002 - rows have no positions
        return wanted

    def settle(self, wanted: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Mapping[Any, Any]:  # noqa: ARG002 - rows follow nothing
        return wanted

    def read(self, scope: Scope) -> dict[Any, Any]:
        """Raises OSError where a row can't be read."""
        try:
            rows = self.db.execute("SELECT sandbox, interface, value FROM attachment").fetchall()
            cursors = self.db.execute("SELECT block, next FROM cursor").fetchall()
            remembered = self.db.execute("SELECT what, value FROM remembered").fetchall()
            found: dict[Any, Any] = {
                AttachmentKey(sandbox, interface): msgspec.msgpack.decode(value, type=Attachment)
                for sandbox, interface, value in rows
            }
            found |= dict(filter(None, (_recall(what, value) for what, value in remembered)))
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise OSError(f"{self._path}: {error}") from error
        try:
            found |= {CursorKey(parse_prefix(block)): following for block, following in cursors}
        except ValueError as error:
            raise OSError(f"{self._path}: {error}") from error
        return {key: value for key, value in found.items() if key in scope}

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        try:
            self.db.execute("BEGIN IMMEDIATE")
            for key, change in difference.items():
                self._write(key, change.after)
            self.db.execute("COMMIT")
            self.writes += len(difference)
        except sqlite3.Error as error:
            return {key: Outcome(error=f"{self._path}: {error}") for key in difference}
        finally:
            if self.db.in_transaction:  # whatever went wrong, the next ADD begins anew
                self.db.execute("ROLLBACK")
        return {key: Outcome(change.after) for key, change in difference.items()}

    def restored(self) -> Restored:
        """All that a start has to know again. Raises OSError."""
        rows = self.read(Scope(None, frozenset()))
        return Restored(
            attachments={key: value for key, value in rows.items() if isinstance(key, AttachmentKey)},
            cursors={key.block: value for key, value in rows.items() if isinstance(key, CursorKey)},
            objects={key: value for key, value in rows.items() if isinstance(key, NodeKey | ServiceCIDRKey)},
        )

    def pod_mtu(self) -> int:
        """That of the last start which knew one, or 0. Raises OSError."""
        return int(self.read(Scope({PodMTUKey(): None}.keys(), frozenset())).get(PodMTUKey(), 0))

    def close(self) -> None:
        self.db.close()

    def _write(self, key: Any, value: Any) -> None:
        match key:
            case AttachmentKey(sandbox, interface) if value is None:
                self.db.execute("DELETE FROM attachment WHERE sandbox=? AND interface=?", (sandbox, interface))
            case AttachmentKey(sandbox, interface):
                row = (sandbox, interface, msgspec.msgpack.encode(value))
                self.db.execute("REPLACE INTO attachment VALUES (?, ?, ?)", row)
            case CursorKey(block) if value is None:
                self.db.execute("DELETE FROM cursor WHERE block=?", (str(block),))
            case CursorKey(block):
                self.db.execute("REPLACE INTO cursor VALUES (?, ?)", (str(block), value))
            case NodeKey(name):
                self._remember(_NODE + name, value)
            case ServiceCIDRKey(name):
                self._remember(_SERVICE_CIDR + name, value)
            case PodMTUKey():
                self._remember(_POD_MTU, value)
            case _:
                raise TypeError(key)

    def _remember(self, what: str, value: Any) -> None:
        if value is None:
            self.db.execute("DELETE FROM remembered WHERE what=?", (what,))
        else:
            self.db.execute("REPLACE INTO remembered VALUES (?, ?)", (what, msgspec.msgpack.encode(value)))


def _recall(what: str, value: bytes) -> tuple[Any, Any] | None:
    """None for what only a newer agent knows. Raises MsgspecError."""
    if what.startswith(_NODE):
        return NodeKey(what.removeprefix(_NODE)), msgspec.msgpack.decode(value, type=Node)
    if what.startswith(_SERVICE_CIDR):
        return ServiceCIDRKey(what.removeprefix(_SERVICE_CIDR)), msgspec.msgpack.decode(value, type=ServiceCIDR)
    if what == _POD_MTU:
        return PodMTUKey(), msgspec.msgpack.decode(value, type=int)
    return None
