"""The SQLite file of the store: opened, made, set aside where it is damaged.

Invariants: what can't be read is set aside, never deleted, and an empty file takes its place; so does one that was
removed or replaced while it was open, since nobody would find again what is written to it. An empty file is born with
the row `UNFILLED`, so that whoever is killed before it is filled leaves no file that looks like that of a node without
pods. Nobody waits long for another's lock. A file of another version is not touched.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = 1
# An agent of the same version may not know this table, and does without.
_REMEMBERED = "CREATE TABLE IF NOT EXISTS remembered (what TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_SCHEMA = (
    "CREATE TABLE attachment (sandbox TEXT, interface TEXT, value BLOB NOT NULL,"
    " PRIMARY KEY (sandbox, interface)) WITHOUT ROWID;"
    "CREATE TABLE cursor (block TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID"
)
UNFILLED = "unfilled"
"""What `remembered` says of a file from its birth until a resync has filled it."""
LOCK_SECONDS = 0.05
"""How long to wait for another's lock: the event loop waits with it, and an ADD may meet it three times."""
_DAMAGE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB)
"""What SQLite says of a file that is none of ours, or no longer; the first: its tables are missing, or others."""
_PARTS = ("", "-wal", "-shm")
log = logging.getLogger(__name__)


class StoreUnusable(Exception):
    """The file can't serve; the text says which and why."""


class Damaged(Exception):
    """What is in the file is not what we write."""


class Renewed(OSError):
    """The file was damaged or lost, and is new and empty now."""


class Database:
    def __init__(self, path: Path, check: Callable[[sqlite3.Connection], object]) -> None:
        """`check` raises Damaged where the content is none of ours. Raises StoreUnusable."""
        self.path, self._check = path, check
        self.renewed = ""
        """Why it was last made anew at work."""
        try:
            try:
                self._open()
            except Damaged as error:
                self._begin_anew(str(error))
        except (sqlite3.Error, OSError) as error:
            raise StoreUnusable(f"{path}: {error}") from error

    @contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """Raises Renewed; OSError where it can't be used now."""
        try:
            if identity(self.path) != self._identity:
                raise Damaged("it was removed or replaced")
            yield self._connection
        except Damaged as error:
            self._renew(str(error))
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise OSError(f"{self.path}: {error}") from error
            self._renew(str(error))

    @property
    def set_aside(self) -> tuple[Path, ...]:
        """The damaged ones that nobody has removed yet."""
        found = self.path.parent.glob(f"{self.path.name}.damaged-*")
        return tuple(sorted(path for path in found if not path.name.endswith(_PARTS[1:])))

    def close(self) -> None:
        self._connection.close()

    def _renew(self, why: str) -> None:
        """Raises Renewed; OSError where even that can't be done."""
        try:
            self._begin_anew(why)
        except (sqlite3.Error, Damaged, StoreUnusable) as error:
            raise OSError(f"{self.path}: {why}; it can't be made anew: {error}") from error
        self.renewed = why
        raise Renewed(f"{self.path}: {why}: it was made anew, and is filled by the next resync")

    def _begin_anew(self, why: str) -> None:
        """Raises Damaged, StoreUnusable, sqlite3.Error, OSError."""
        self._connection.close()
        aside = self._free_name()
        for part in _PARTS:
            if os.path.lexists(f"{self.path}{part}"):
                os.rename(f"{self.path}{part}", f"{aside}{part}")
        log.error("%s: %s: set aside as %s, and made anew", self.path, why, aside)
        self._open()

    def _free_name(self) -> Path:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        return aside

    def _open(self) -> None:
        """Raises Damaged, StoreUnusable, sqlite3.Error, OSError."""
        self._connection = sqlite3.connect(self.path, isolation_level=None, timeout=LOCK_SECONDS)
        try:
            self._prepare(self._connection)
            self._check(self._connection)
        except sqlite3.Error as error:
            self._connection.close()
            if _is_damage(error):
                raise Damaged(str(error)) from error
            raise
        self._identity = identity(self.path)

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            db.executescript(f"BEGIN;{_SCHEMA};{_REMEMBERED}")
            db.execute("INSERT INTO remembered VALUES (?, x'c3')", (UNFILLED,))
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        elif version != VERSION:
            raise StoreUnusable(f"{self.path}: written by another version ({version}); this one reads {VERSION}")
        db.execute(_REMEMBERED)
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise Damaged(found)


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF in _DAMAGE


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that is there; None: there is none."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino
