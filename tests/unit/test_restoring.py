"""What a start takes from the store: nobody has what another was given since, whatever rows are left."""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire import restoring
from podwire.config import Config
from podwire.controller import events as e
from podwire.controller.difference import Change, Scope
from podwire.controller.loop import Controller
from podwire.model.addresses import Address, parse_address, parse_prefix
from podwire.model.network import LinkKey, RouteKey
from podwire.model.objects import Attachment, AttachmentKey, PodKey
from podwire.model.snapshot import Snapshot
from podwire.store.rows import Store
from tests.unit import world
from tests.unit.world import Memory

BOOT = "this"
KEYS = [AttachmentKey(f"s{number}", "eth0") for number in range(6)]
OBJECT = world.Node((parse_prefix("10.1.1.0/29"),), (parse_address("192.0.2.1"),))
ADDRESSES = [parse_address(f"10.1.1.{number}") for number in range(2, 7)]
Rows = dict[AttachmentKey, Attachment]


@st.composite
def histories(draw: st.DrawFn) -> Rows:
    """Rows as they are left: each was given what was free then; some have gone since, and their rows may have stayed,
    or were never confirmed."""
    rows: Rows = {}
    for serial, key in enumerate(draw(st.permutations(KEYS)), 1):
        rows[key] = Attachment(
            PodKey("n", key.sandbox),
            "",
            tuple(draw(st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=2, unique=True))),
            draw(st.integers(100, 103)),
            confirmed=draw(st.booleans()),
            serial=serial * draw(st.booleans()),  # 0: of an older version
            boot=draw(st.sampled_from((BOOT, "", "earlier"))),
        )
    return rows


def restored(rows: Rows) -> e.Restored:
    with tempfile.TemporaryDirectory() as name:
        config = Config("one", Path(name))
        with closing(Store(config.database)) as store:
            store.apply({key: Change(None, it) for key, it in rows.items()})
            return restoring.restored(config, store, Memory("linux"), Memory("nftables"), BOOT)  # type: ignore[arg-type]


def items(it: Attachment) -> set[Address | int]:
    return {*it.addresses, it.index}


@settings(max_examples=30)
@given(histories())
def test_nobody_is_restored_with_what_another_was_given_since(rows: Rows) -> None:
    found = restored(rows)
    held = [item for it in found.attachments.values() for item in (*it.addresses, it.index)]
    assert len(held) == len(set(held))
    for it in found.attachments.values():
        assert not any(items(it) & items(other) and other.serial > it.serial for other in rows.values())
    assert found.serial == max(it.serial for it in rows.values())
    last = {it.serial: key for key, it in sorted(rows.items())}
    newest = rows[last[found.serial]]
    if found.serial and newest.boot != "earlier":
        assert last[found.serial] in found.attachments


# --- the rows of who has gone ------------------------------------------------------------------


class Node:
    """A loop with a real store, and a kernel and nftables in memory, while no API server answers."""

    def __init__(self, directory: Path) -> None:
        self.config = Config("one", directory)
        self.linux, self.nftables = Memory("linux"), Memory("nftables")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        with closing(Store(self.config.database)) as self.store:
            drivers: Any = (self.store, self.linux, self.nftables)
            local = replace(world.LOCAL, boot=BOOT)
            controller = Controller(Snapshot(local), world.transaction(drivers))
            loop = asyncio.create_task(controller.run())
            try:
                event = restoring.restored(self.config, self.store, self.linux, self.nftables, BOOT)  # type: ignore[arg-type]
                await controller.submit(event)
                objects = {world.NODE: OBJECT}
                await controller.submit(e.Resync(e.ResyncReason.STARTUP, objects, whole=False))
                yield controller
            finally:
                loop.cancel()
                await asyncio.wait([loop])

    def rows(self) -> Rows:
        found = self.store.read(Scope(None, frozenset()))
        return {key: it for key, it in found.items() if isinstance(key, AttachmentKey)}

    def routes(self) -> Mapping[Address, int]:
        return {
            key.destination.first: value.index
            for key, value in self.linux.held.items()
            if isinstance(key, RouteKey) and not key.space and key.destination.first in ADDRESSES
        }


def added(key: AttachmentKey) -> e.AddPod:
    return e.AddPod(key, PodKey("n", key.sandbox), f"/run/netns/{key.sandbox}", 4, 100 + KEYS.index(key), network="net")


async def ended(controller: Controller, event: str) -> None:
    while all(str(record.event) != event for record in controller.history):
        await controller.next_record()


GOING: list[e.Event] = [
    e.DeletePod(KEYS[0]),
    e.SandboxGone(frozenset(KEYS[:1])),
    e.SandboxReplaced(frozenset(KEYS[:1])),
    e.CollectPods("net", frozenset(), 99),
]


@pytest.mark.parametrize("going", GOING, ids=lambda event: type(event).__name__)
async def test_the_row_of_who_has_gone_is_removed_once_it_can_be_though_the_api_is_away(
    tmp_path: Path, going: e.Event
) -> None:
    """The block is passed once around, so that another gets the address; then the agent is killed."""
    node = Node(tmp_path)
    async with node.running() as controller:
        assert (await controller.submit(added(KEYS[0]))).error is None
        first = controller.snapshot.attachments[KEYS[0]].addresses
        with closing(sqlite3.connect(node.config.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert (await controller.submit(going)).error_without("store") is None
            assert KEYS[0] in node.rows()
        await ended(controller, "Resync healing of store")
        assert node.rows() == {}
        last = KEYS[1]
        while (await controller.submit(added(last))).error is None:
            if controller.snapshot.attachments[last].addresses == first:
                break
            await controller.submit(e.DeletePod(last))
    async with node.running() as controller:
        assert set(controller.snapshot.attachments) == {last}
        await controller.submit(e.SandboxGone(frozenset(KEYS[:1])))
        assert node.routes() == {first[0]: controller.snapshot.attachments[last].index}


async def test_killed_before_the_row_is_removed_the_later_one_keeps_the_address(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.running() as controller:
        assert (await controller.submit(added(KEYS[0]))).error is None
        left = node.rows()[KEYS[0]]
        await controller.submit(e.DeletePod(KEYS[0]))
        while (await controller.submit(added(KEYS[1]))).error is None:
            if controller.snapshot.attachments[KEYS[1]].addresses == left.addresses:
                break
            await controller.submit(e.DeletePod(KEYS[1]))
        node.store.apply({KEYS[0]: Change(None, left)})  # as if it had never been removed
    async with node.running() as controller:
        assert set(controller.snapshot.attachments) == {KEYS[1]}
        await controller.submit(e.SandboxGone(frozenset(KEYS[:1])))
        assert node.routes() == {left.addresses[0]: controller.snapshot.attachments[KEYS[1]].index}
        assert set(node.rows()) == {KEYS[1]}


async def test_a_start_without_the_api_leaves_no_row_of_nobody_and_counts_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with node.running() as controller:
        for key in KEYS[:3]:
            assert (await controller.submit(added(key))).error is None
        held = node.rows()
        node.store.apply({KEYS[2]: Change(held[KEYS[2]], replace(held[KEYS[2]], confirmed=False))})
        node.store.apply({KEYS[1]: Change(held[KEYS[1]], replace(held[KEYS[1]], boot="earlier"))})
    node.linux.held = {key: it for key, it in node.linux.held.items() if not isinstance(key, LinkKey)}
    async with node.running() as controller:
        assert set(node.rows()) == set(controller.snapshot.attachments) == {KEYS[0]}
        assert (await controller.submit(added(KEYS[3]))).error is None
        assert controller.snapshot.attachments[KEYS[3]].serial > max(it.serial for it in held.values())
