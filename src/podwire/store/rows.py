"""What outlives the agent, in SQLite: a row for each attachment and for each block's cursor; and what the cluster said
last of this node, so that pods come and go while no API server answers.

Invariants: a driver like the others, and the first in line: a row is committed before the kernel is touched. WAL with
synchronous=NORMAL survives a killed agent; a power loss takes the pods too. What can't be written now is not tried
again before the next resync. A file that was damaged or lost is empty then, and a resync fills it from memory; until
that is done the file itself says so, by a row that nobody wants and that goes in the same transaction.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from podwire.controller.difference import Change, Difference, Outcome, Scope
from podwire.controller.events import Restored
from podwire.model.addresses import parse_prefix
from podwire.model.network import CursorKey, PodMTUKey, UnfilledKey
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    Node,
    NodeKey,
    PodBlock,
    PodBlockKey,
    PodPool,
    PodPoolKey,
    ServiceCIDR,
    ServiceCIDRKey,
)
from podwire.store.database import UNFILLED, Damaged, Database, Renewed

_NODE, _SERVICE_CIDR, _POD_POOL, _POD_BLOCK, _POD_MTU = "node/", "servicecidr/", "podpool/", "podblock/", "mtu"

_OBJECTS = (NodeKey, ServiceCIDRKey, PodPoolKey, PodBlockKey)


class Store:
    name = "store"
    apart = False  # a connection belongs to its thread, and there are few rows
    slice = 0

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it. Raises StoreUnusable."""
        self.writes = 0
        self.database = Database(path, _rows)

    @property
    def troubles(self) -> tuple[str, ...]:
        """For people."""
        it = self.database
        found = [f"store: {path}: was damaged and set aside; remove it once it is understood" for path in it.set_aside]
        if it.renewed:
            found.append(f"store: {it.path}: {it.renewed}, and was made anew while the agent was at work")
        return tuple(found)

    def weight(self, change: Any) -> int:  # noqa: ARG002 - never sliced
        return 1

    def rank(self, key: Any, change: Change) -> int:  # noqa: ARG002 - all rows go in one transaction
        return 0

    def place(self, wanted: Any, actual: Any) -> Any:  # noqa: ARG002 - rows have no positions
        return wanted

    def settle(self, wanted: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Mapping[Any, Any]:  # noqa: ARG002 - rows follow nothing
        return wanted

    def read(self, scope: Scope) -> dict[Any, Any]:
        """Raises OSError where it can't be read now."""
        try:
            with self.database.used() as db:
                return {key: value for key, value in _rows(db).items() if key in scope}
        except Renewed:
            return {key: True for key in (UnfilledKey(),) if key in scope}

    def apply(self, difference: Difference) -> dict[Any, Outcome]:
        """All or nothing."""
        try:
            with self.database.used() as db:
                _write_all(db, difference)
        except OSError as error:
            return {key: Outcome(error=str(error), later=True) for key in difference}
        self.writes += len(difference)
        return {key: Outcome(change.after) for key, change in difference.items()}

    def restored(self) -> Restored:
        """All that a start has to know again. Raises OSError."""
        rows = self.read(Scope(None, frozenset()))
        attachments = {key: value for key, value in rows.items() if isinstance(key, AttachmentKey)}
        return Restored(
            attachments=attachments,
            cursors={key.block: value for key, value in rows.items() if isinstance(key, CursorKey)},
            objects={key: value for key, value in rows.items() if isinstance(key, _OBJECTS)},
            serial=max((it.serial for it in attachments.values()), default=0),
        )

    def unfilled(self) -> bool:
        """Whether it may lack what it should remember: no resync has filled it since it was made. Raises OSError."""
        return bool(self.read(Scope({UnfilledKey(): None}.keys(), frozenset())))

    def pod_mtu(self) -> int:
        """That of the last start which knew one, or 0. Raises OSError."""
        return int(self.read(Scope({PodMTUKey(): None}.keys(), frozenset())).get(PodMTUKey(), 0))

    def close(self) -> None:
        self.database.close()


def _rows(db: sqlite3.Connection) -> dict[Any, Any]:
    """Raises sqlite3.Error, Damaged."""
    rows = db.execute("SELECT sandbox, interface, value FROM attachment").fetchall()
    cursors = db.execute("SELECT block, next FROM cursor").fetchall()
    remembered = db.execute("SELECT what, value FROM remembered").fetchall()
    try:
        found: dict[Any, Any] = {
            AttachmentKey(sandbox, interface): msgspec.msgpack.decode(value, type=Attachment)
            for sandbox, interface, value in rows
        }
        found |= dict(filter(None, (_recall(what, value) for what, value in remembered)))
        return found | {CursorKey(parse_prefix(block)): following for block, following in cursors}
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise Damaged(f"a row that is none of ours: {error}") from None


def _write_all(db: sqlite3.Connection, difference: Difference) -> None:
    """Raises sqlite3.Error."""
    try:
        db.execute("BEGIN IMMEDIATE")
        for key, change in difference.items():
            _write(db, key, change.after)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:  # whatever went wrong, the next ADD begins anew
            db.execute("ROLLBACK")


def _write(db: sqlite3.Connection, key: Any, value: Any) -> None:
    match key:
        case AttachmentKey(sandbox, interface) if value is None:
            db.execute("DELETE FROM attachment WHERE sandbox=? AND interface=?", (sandbox, interface))
        case AttachmentKey(sandbox, interface):
            row = (sandbox, interface, msgspec.msgpack.encode(value))
            db.execute("REPLACE INTO attachment VALUES (?, ?, ?)", row)
        case CursorKey(block) if value is None:
            db.execute("DELETE FROM cursor WHERE block=?", (str(block),))
        case CursorKey(block):
            db.execute("REPLACE INTO cursor VALUES (?, ?)", (str(block), value))
        case NodeKey(name):
            _remember(db, _NODE + name, value)
        case ServiceCIDRKey(name):
            _remember(db, _SERVICE_CIDR + name, value)
        case PodPoolKey(name):
            _remember(db, _POD_POOL + name, value)
        case PodBlockKey(cidr):
            _remember(db, f"{_POD_BLOCK}{cidr}", value)
        case PodMTUKey():
            _remember(db, _POD_MTU, value)
        case UnfilledKey():
            _remember(db, UNFILLED, value)
        case _:
            raise TypeError(key)


def _remember(db: sqlite3.Connection, what: str, value: Any) -> None:
    if value is None:
        db.execute("DELETE FROM remembered WHERE what=?", (what,))
    else:
        db.execute("REPLACE INTO remembered VALUES (?, ?)", (what, msgspec.msgpack.encode(value)))


def _recall(what: str, value: bytes) -> tuple[Any, Any] | None:
    """None for what only a newer agent knows. Raises MsgspecError."""
    if what.startswith(_NODE):
        return NodeKey(what.removeprefix(_NODE)), msgspec.msgpack.decode(value, type=Node)
    if what.startswith(_SERVICE_CIDR):
        return ServiceCIDRKey(what.removeprefix(_SERVICE_CIDR)), msgspec.msgpack.decode(value, type=ServiceCIDR)
    if what.startswith(_POD_POOL):
        return PodPoolKey(what.removeprefix(_POD_POOL)), msgspec.msgpack.decode(value, type=PodPool)
    if what.startswith(_POD_BLOCK):
        return PodBlockKey(parse_prefix(what.removeprefix(_POD_BLOCK))), msgspec.msgpack.decode(value, type=PodBlock)
    if what == _POD_MTU:
        return PodMTUKey(), msgspec.msgpack.decode(value, type=int)
    if what == UNFILLED:
        return UnfilledKey(), msgspec.msgpack.decode(value, type=bool)
    return None
