"""What outlives the agent: a row for each attachment and for each block's cursor, in SQLite.

Invariants: a driver like the others, and the first in line: a row is committed before the kernel is touched. WAL with
synchronous=NORMAL survives a killed agent; a power loss takes the pods too. The file has a version; a newer one is
not opened.
"""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from podwire.controller.difference import Difference, Outcome, Scope
from podwire.model.addresses import Prefix, parse_prefix
from podwire.model.network import CursorKey
from podwire.model.objects import Attachment, AttachmentKey

VERSION = 1
_SCHEMA = """
CREATE TABLE attachment (sandbox TEXT, interface TEXT, value BLOB NOT NULL, PRIMARY KEY (sandbox, interface))
    WITHOUT ROWID;
CREATE TABLE cursor (block TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
"""


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
        except sqlite3.Error as error:
            raise StoreUnusable(f"{path}: {error}") from error

    def rank(self, key: Any) -> int:  # noqa: ARG002 - all rows go in one transaction
        return 0

    def place(self, wanted: Any, actual: Any) -> Any:  # noqa: ARG002 - rows have no positions
        return wanted

    def read(self, scope: Scope) -> dict[Any, Any]:
        """Raises OSError where a row can't be read."""
        try:
            rows = self.db.execute("SELECT sandbox, interface, value FROM attachment").fetchall()
            cursors = self.db.execute("SELECT block, next FROM cursor").fetchall()
            found: dict[Any, Any] = {
                AttachmentKey(sandbox, interface): msgspec.msgpack.decode(value, type=Attachment)
                for sandbox, interface, value in rows
            }
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

    def restored(self) -> tuple[dict[AttachmentKey, Attachment], dict[Prefix, int]]:
        """All attachments and cursors, for a start. Raises OSError."""
        rows = self.read(Scope(None, frozenset()))
        attachments = {key: value for key, value in rows.items() if isinstance(key, AttachmentKey)}
        cursors = {key.block: value for key, value in rows.items() if isinstance(key, CursorKey)}
        return attachments, cursors

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
            case _:
                raise TypeError(key)
