"""Rows in SQLite: what is written is read; whatever happens to the file, no row of another comes of it, and none is
lost that memory has."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from podwire.controller.difference import Change, Difference, Outcome, Scope, difference
from podwire.model.addresses import Address, parse_address, parse_prefix, parse_range
from podwire.model.network import CursorKey, UnfilledKey
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    HostPort,
    Operator,
    PodBlock,
    PodBlockKey,
    PodKey,
    PodPool,
    PodPoolKey,
    Protocol,
    Requirement,
)
from podwire.store.database import StoreUnusable
from podwire.store.rows import Store

EVERYTHING = Scope(None, frozenset())
ROWS: dict[Any, Any] = {
    AttachmentKey(f"s{n}", "eth0"): Attachment(
        PodKey("default", f"p{n}"), f"/run/netns/{n}", (parse_address(f"10.1.{n // 250}.{n % 250}"),), n, confirmed=True
    )
    for n in range(200)
} | {
    CursorKey(parse_prefix("10.1.0.0/16")): 7,
}
POOLED: dict[Any, Any] = {
    PodBlockKey(parse_prefix("10.2.0.64/26")): PodBlock("one", "web"),
    PodPoolKey("web"): PodPool(
        (parse_prefix("10.2.0.0/16"), parse_prefix("fd02::/56")),
        (26, 124),
        (parse_range("10.2.0.1-10.2.0.9"),),
        auto_assign=False,
        node_selector=(Requirement("zone", Operator.IN, ("a", "b")), Requirement("edge", Operator.EXISTS)),
    ),
}
UNFILLED: dict[Any, Any] = {UnfilledKey(): True}


def coming(rows: dict[Any, Any]) -> Difference:
    return {key: Change(None, value) for key, value in rows.items()}


def fill(store: Store) -> dict[Any, Outcome]:
    """As a resync does."""
    return store.apply(difference(ROWS, store.read(EVERYTHING), store.place))


def sql(path: Path, command: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(command)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a store that holds all rows, and was closed."""
    path = tmp_path / "podwire.db"
    with closing(Store(path)) as store:
        assert {outcome.error for outcome in fill(store).values()} == {None}
    return path


def test_what_was_written_is_read(path: Path) -> None:
    with closing(Store(path)) as store:
        assert store.read(EVERYTHING) == ROWS
        one = next(iter(ROWS))
        store.apply({one: Change(ROWS[one], None)})
        assert store.read(Scope({one: None}.keys(), frozenset())) == {}
        assert store.troubles == ()


def test_what_a_start_knows_again_without_the_cluster(path: Path) -> None:
    """Blocks of pools among it, in a file of whatever version; one that knows none reads the rest."""
    with closing(Store(path)) as store:
        store.apply(coming(POOLED))
    with closing(Store(path)) as store:
        assert store.restored().objects == POOLED
        assert store.read(EVERYTHING) == ROWS | POOLED
    sql(path, "UPDATE remembered SET what = 'later/' || what")
    with closing(Store(path)) as store:
        assert store.read(EVERYTHING) == ROWS


def test_a_new_file_is_unfilled_until_a_resync_has_filled_it(tmp_path: Path) -> None:
    """However often it is opened, and whatever row an ADD writes meanwhile; a file of an older version is filled."""
    path, one = tmp_path / "podwire.db", next(iter(ROWS))
    for _ in range(2):
        with closing(Store(path)) as store:
            assert store.unfilled()
            assert store.apply({one: Change(None, ROWS[one])})[one].error is None
            assert store.read(EVERYTHING) == {one: ROWS[one]} | UNFILLED
    with closing(Store(path)) as store:
        assert {outcome.error for outcome in fill(store).values()} == {None}
    with closing(Store(path)) as store:
        assert not store.unfilled()
        assert store.read(EVERYTHING) == ROWS
    sql(path, "DROP TABLE remembered")
    with closing(Store(path)) as store:
        assert not store.unfilled()
        assert store.read(EVERYTHING) == ROWS


class Older(msgspec.Struct):
    """An attachment as versions before host ports wrote and read it."""

    pod: PodKey
    netns: str
    addresses: tuple[bytes, ...]
    index: int
    confirmed: bool = False


def test_rows_of_a_version_without_host_ports_are_read_and_it_reads_ours(path: Path) -> None:
    key, held = next((key, it) for key, it in ROWS.items() if isinstance(it, Attachment))
    older = Older(held.pod, held.netns, held.addresses, held.index, held.confirmed)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE attachment SET value=? WHERE sandbox=?", (msgspec.msgpack.encode(older), key.sandbox))
    with closing(Store(path)) as store:
        assert store.read(EVERYTHING) == ROWS
        ports = (HostPort(Address(b""), Protocol.TCP, 80, 8080), HostPort(parse_address("::"), Protocol.UDP, 53, 53))
        store.apply({key: Change(held, replace(held, host_ports=ports))})
        assert store.restored().attachments[key] == replace(held, host_ports=ports)
    with closing(sqlite3.connect(path)) as db:
        ((row,),) = db.execute("SELECT value FROM attachment WHERE sandbox=?", (key.sandbox,)).fetchall()
    assert msgspec.msgpack.decode(row, type=Older) == older


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff" * 20_000)


def _half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096)


def _foreign(path: Path) -> None:
    path.unlink()
    sql(path, "CREATE TABLE attachment (a)")


def _table(path: Path) -> None:
    sql(path, "DROP TABLE cursor")


def _value(path: Path) -> None:
    sql(path, "UPDATE attachment SET value = x'c1' WHERE sandbox = 's5'")


def _kind(path: Path) -> None:
    sql(path, "UPDATE attachment SET value = 7 WHERE sandbox = 's5'")


def _block(path: Path) -> None:
    sql(path, "UPDATE cursor SET block = 'nowhere'")


def _remembered(path: Path) -> None:
    sql(path, "INSERT INTO remembered VALUES ('mtu', x'c1')")


DAMAGE = [_garbage, _half, _page, _foreign, _table, _value, _kind, _block, _remembered]
damaged = pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__[1:])


@damaged
def test_a_damaged_file_is_set_aside_at_the_start(path: Path, damage: Callable[[Path], None]) -> None:
    damage(path)
    content = path.read_bytes()
    for number in (1, 2):
        with closing(Store(path)) as store:
            assert store.read(EVERYTHING) == UNFILLED
            assert len(store.troubles) == number
            assert str(path.with_name(f"podwire.db.damaged-{number}")) in store.troubles[-1]
            fill(store)
            assert store.read(EVERYTHING) == ROWS
        aside = path.with_name(f"podwire.db.damaged-{number}").read_bytes()
        assert aside[100:] == content[100:]  # before that is SQLite's header: opening counts there
        path.write_bytes(content)


@damaged
@pytest.mark.parametrize("first", ["read", "write"])
def test_a_file_that_is_damaged_at_work_is_filled_again_from_memory(
    path: Path, damage: Callable[[Path], None], first: str
) -> None:
    """As the loop does it: what fails leads to a resync, which reads and writes all. Where SQLite does not meet the
    damage, since it has read that page before, the next start does."""
    with closing(Store(path)) as store:
        damage(path)
        if first == "write":
            new = AttachmentKey("new", "eth0")
            outcomes = store.apply({new: Change(None, ROWS[AttachmentKey("s1", "eth0")])})
            if outcomes[new].error is None:
                store.apply({new: Change(outcomes[new].value, None)})
        assert {outcome.error for outcome in fill(store).values()} <= {None}
        assert store.read(EVERYTHING) == ROWS
    with closing(Store(path)) as again:
        assert again.read(EVERYTHING) == ROWS or (again.unfilled() and again.troubles)


def _removed(path: Path) -> None:
    for part in path.parent.glob("podwire.db*"):
        part.unlink()


def _replaced(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


@pytest.mark.parametrize("hand", [_removed, _replaced], ids=lambda hand: hand.__name__[1:])
def test_nothing_is_written_to_a_file_that_nobody_finds_again(path: Path, hand: Callable[[Path], None]) -> None:
    with closing(Store(path)) as store:
        hand(path)
        (outcome,) = store.apply(
            {AttachmentKey("new", "eth0"): Change(None, ROWS[AttachmentKey("s1", "eth0")])}
        ).values()
        assert "removed or replaced" in (outcome.error or "")
        assert outcome.later
        assert store.read(EVERYTHING) == UNFILLED
        fill(store)
    with closing(Store(path)) as again:
        assert again.read(EVERYTHING) == ROWS


@pytest.mark.parametrize("version", [2, -1, 2**31 - 1])
def test_a_file_of_another_version_is_not_touched(path: Path, version: int) -> None:
    sql(path, f"PRAGMA user_version={version}")
    content = path.read_bytes()
    with pytest.raises(StoreUnusable, match=f"written by another version \\({version}\\); this one reads 1"):
        Store(path)
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir() if "damaged" in each.name] == []


def test_what_another_has_locked_is_written_later_and_whole(path: Path) -> None:
    new = {AttachmentKey(f"new{n}", "eth0"): ROWS[AttachmentKey("s1", "eth0")] for n in range(3)}
    with closing(Store(path)) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        outcomes = store.apply(coming(new))
        assert {(outcome.error, outcome.later) for outcome in outcomes.values()} == {
            (f"{path}: database is locked", True)
        }
        other.execute("ROLLBACK")
        assert store.read(EVERYTHING) == ROWS
        assert {outcome.error for outcome in store.apply(coming(new)).values()} == {None}
        assert store.read(EVERYTHING) == ROWS | new


def test_on_a_full_disk_nothing_is_half_written(path: Path) -> None:
    many = {AttachmentKey(f"new{n}", "eth0"): ROWS[AttachmentKey("s1", "eth0")] for n in range(2000)}
    with closing(Store(path)) as store:
        with store.database.used() as db:
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count={pages + 1}")
        assert {outcome.error for outcome in store.apply(coming(many)).values()} == {
            f"{path}: database or disk is full"
        }
        assert store.read(EVERYTHING) == ROWS
        assert store.troubles == ()
