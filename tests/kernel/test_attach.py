"""Attaching and detaching: what a failed ADD leaves (nothing), what a repeated one changes (nothing)."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from podwire import agent
from podwire.controller.events import Refusal
from podwire.model.addresses import parse_prefix
from podwire.model.objects import Node
from podwire.pods.names import interface_name
from tests.kernel.rig import NODE, NODE_OBJECT, TARGET_PORT, Rig, Space, ask, dump, respond, service, sh


@contextmanager
def _nothing(_: Rig) -> Iterator[None]:
    yield


@contextmanager
def _name_taken(rig: Rig) -> Iterator[None]:
    name = interface_name(rig.key("x"))
    sh("ip", "link", "add", name, "type", "bridge")  # of another kind than ours: not taken for a leftover
    yield
    sh("ip", "link", "del", name)


@contextmanager
def _interface_in_pod(rig: Rig) -> Iterator[None]:
    sh("ip", "-n", rig.space("x").name, "link", "add", "eth0", "type", "veth", "peer", "name", "far")
    yield
    sh("ip", "-n", rig.space("x").name, "link", "del", "eth0")


@contextmanager
def _store_full(rig: Rig) -> Iterator[None]:
    rig.sql("PRAGMA query_only=1")
    yield
    rig.sql("PRAGMA query_only=0")


@contextmanager
def _store_locked(rig: Rig) -> Iterator[None]:
    """By another process, such as a backup."""
    with sqlite3.connect(rig.running.store.database.path) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    other.close()


@contextmanager
def _store_gone(rig: Rig) -> Iterator[None]:
    for part in rig.directory.glob("podwire.db*"):
        part.unlink()
    yield


@contextmanager
def _store_full_at_confirmation(rig: Rig) -> Iterator[None]:
    """The pending row is written, the confirmed one can't be."""
    rig.sql(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON main.attachment WHEN "
        "(SELECT count(*) FROM main.attachment WHERE sandbox = NEW.sandbox) > 0 "
        "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    )
    yield
    rig.sql("DROP TRIGGER temp.full")


@contextmanager
def _table_gone(_: Rig) -> Iterator[None]:
    """Services can't be programmed: the last driver fails."""
    saved = sh("nft", "list", "ruleset")
    sh("nft", "delete", "table", "ip6", "podwire")
    yield
    sh("nft", "delete", "table", "ip", "podwire")
    subprocess.run(["nft", "-f", "-"], input=saved, text=True, check=True)


@pytest.mark.parametrize(
    ("obstacle", "netns", "says"),
    [
        pytest.param(_nothing, "/run/netns/nowhere", "nowhere: No such file", id="namespace gone"),
        pytest.param(_nothing, "/proc/self/ns/uts", "not a network namespace|Invalid argument", id="no namespace"),
        pytest.param(_name_taken, None, "EEXIST", id="name taken on the node"),
        pytest.param(_interface_in_pod, None, "EEXIST", id="eth0 exists in the pod"),
        pytest.param(_store_full, None, "podwire.db: attempt to write a readonly", id="store read-only"),
        pytest.param(_store_full_at_confirmation, None, "podwire.db: database or disk is full", id="no confirmation"),
        pytest.param(_store_locked, None, "podwire.db: database is locked", id="store locked by another"),
        pytest.param(_store_gone, None, "podwire.db: it was removed or replaced", id="store removed"),
        pytest.param(_table_gone, None, "ENOENT", id="nftables table gone"),
    ],
)
async def test_an_add_that_fails_half_way_leaves_nothing(
    rig: Rig, obstacle: Callable[[Rig], AbstractContextManager[None]], netns: str | None, says: str
) -> None:
    await rig.start_with_pods("a", "b", objects=service("web", 10, ("10.1.1.2",)))
    clean = dump()
    with obstacle(rig):
        result = await rig.add("x", netns)
        assert result.error is not None
        assert any(word in result.error for word in says.split("|")), result.error
        assert result.refusal is (Refusal.NOT_STORED if "podwire.db" in says else None)
        if obstacle is _store_gone:
            await rig.history_has("Resync healing of store")
        assert rig.rows() == 2
        assert rig.key("x") not in rig.running.controller.snapshot.attachments
        rig.running.linux.collect()
    assert dump() == clean
    assert await rig.drift() == []
    assert (await rig.add("x")).error is None
    respond(rig.space("x"), "x")
    assert ask(rig.pods["x"], "10.96.0.10").startswith("a ")
    assert (await rig.delete("x")).error is None
    rig.running.linux.collect()
    assert dump() == clean


@pytest.mark.parametrize("kind", ["{} dev lo", "{} dev lo proto static", "blackhole {}"])
async def test_another_route_to_a_new_pods_address_gives_way(rig: Rig, kind: str) -> None:
    """The address is ours to give: no route of others can keep it from its pod."""
    await rig.start_with_pods("a")
    sh("ip", "route", "add", *kind.format("10.1.1.3").split())
    assert (await rig.add("x")).error is None
    respond(rig.space("x"), "x")
    assert ask(None, "10.1.1.3", 8080).startswith("x ")
    assert await rig.drift() == []


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="pipe"),
        pytest.param(Path.mkdir, id="directory"),
        pytest.param(_socket, id="socket"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="device"),
        pytest.param(lambda path: path.symlink_to(path.name), id="link to itself"),
        pytest.param(Path.touch, id="file"),
    ],
)
async def test_whatever_is_in_a_namespaces_place_holds_nobody_up(
    rig: Rig, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Neither the ADD that names it, nor the resync of a pod that was there."""
    await rig.start_with_pods("a")
    clean, path = dump(), tmp_path / "netns"
    make(path)
    assert (await rig.add("x", str(path))).error is not None
    rig.running.linux.collect()
    assert dump() == clean
    link = tmp_path / "link"
    link.symlink_to(rig.space("y").path)
    assert (await rig.add("y", str(link))).error is None
    link.unlink()
    make(link)
    await rig.resync()
    assert (await rig.add("b")).error is None
    assert (await rig.delete("y")).error is None


async def test_on_a_full_disk_pods_go_and_none_comes_until_there_is_room(rig: Rig, tmp_path: Path) -> None:
    """What went is free at once, and its row goes when it can."""
    sh("mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path))
    try:
        await rig.start_with_pods("a", "b", objects=service("web", 10, ("10.1.1.2",)))
        clean = dump()
        assert (await rig.add("x")).error is None
        with (tmp_path / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        while (refused := await rig.add("y")).error is None:  # until what SQLite had in hand is used up
            await rig.delete("y")
        assert refused.refusal is Refusal.NOT_STORED
        assert "podwire.db: database or disk is full" in (refused.error or "")
        gone = await rig.delete("x")
        assert gone.error_without("store") is None
        assert rig.key("x") not in rig.running.controller.snapshot.attachments
        rig.running.linux.collect()
        assert dump() == clean
        (tmp_path / "ballast").unlink()
        assert (await rig.resync()).error is None
        assert rig.rows() == 2
        assert (await rig.add("y")).error is None
        assert await rig.drift() == []
        await rig.stop()
    finally:
        sh("umount", "--lazy", str(tmp_path))


async def test_a_link_has_one_queue_each_way(rig: Rig) -> None:
    """The kernel would make one for each processor, and take all but one away again before it answers."""
    await rig.start_with_pods("a")
    ends = [*interface(rig.space("a"), "eth0"), *interface(None, interface_name(rig.key("a")))]
    assert [(it["num_tx_queues"], it["num_rx_queues"]) for it in ends] == [(1, 1)] * 2


def interface(space: Space | None, name: str) -> list[Any]:
    where = [] if space is None else ["-n", space.name]
    return list(json.loads(sh("ip", *where, "-d", "-j", "link", "show", "dev", name)))


async def test_deleting_leaves_nothing_and_can_be_repeated(rig: Rig) -> None:
    await rig.start()
    clean = dump()
    await rig.add("a")
    for _ in range(2):
        assert (await rig.delete("a")).error is None
        rig.running.linux.collect()
        assert dump() == clean
        assert rig.rows() == 0
    assert "eth0" not in sh("ip", "-n", rig.pods["a"].name, "link")


async def test_deleting_succeeds_when_the_namespace_has_gone(rig: Rig) -> None:
    await rig.start()
    clean = dump()
    await rig.add("a")
    sh("ip", "netns", "del", rig.pods["a"].name)
    assert (await rig.delete("a")).error is None
    rig.running.linux.collect()
    assert dump() == clean
    assert await rig.drift() == []


async def test_a_repeated_add_changes_nothing(rig: Rig) -> None:
    await rig.start()
    await rig.add("a")
    before, writes = dump(), rig.writes()
    result = await rig.add("a")
    assert result.error is None
    assert (dump(), rig.writes()) == (before, writes)


async def test_a_repeated_add_mends_what_was_lost_with_its_namespace(rig: Rig) -> None:
    """The path is the same, the namespace is another: what was in the old one died with it."""
    await rig.start()
    await rig.add("a")
    space = rig.pods["a"]
    held = rig.running.controller.snapshot.attachments[rig.key("a")].addresses
    sh("ip", "netns", "del", space.name)
    sh("ip", "netns", "add", space.name)
    assert (await rig.add("a")).error is None
    assert rig.running.controller.snapshot.attachments[rig.key("a")].addresses == held
    respond(space, "a")
    assert ask(None, "10.1.1.2", 8080).startswith("a ")
    assert await rig.drift() == []


async def test_a_late_del_of_an_old_sandbox_does_not_touch_the_new_one(rig: Rig) -> None:
    await rig.start()
    await rig.add("a", sandbox="old")
    sh("ip", "netns", "del", rig.pods["a"].name)
    rig.pods.clear()
    await rig.add("a", sandbox="new")
    await rig.delete("a", sandbox="old")
    rig.running.linux.collect()
    respond(rig.pods["a"], "a")
    assert ask(None, "10.1.1.3", 8080).startswith("a ")
    assert await rig.drift() == []


async def test_a_block_that_comes_to_where_pods_live_takes_nobodys_address(rig: Rig) -> None:
    await rig.start_with_pods("a", "b", "c", "d", objects=service("s", 10, ("10.1.1.5",)))
    moved = Node((parse_prefix("10.1.1.4/30"), *NODE_OBJECT.pod_cidrs[1:]))  # the node's would be d's

    async def looks(own: str) -> None:
        assert f"inet {own}/32 " in sh("ip", "-4", "address", "show", "dev", "lo")
        assert ask(None, "10.1.1.5", TARGET_PORT) == f"d {own}"
        assert ask(rig.pods["a"], "10.96.0.10") == "d 10.1.1.2"
        assert await rig.drift() == []

    assert (await rig.change((NODE, moved))).error is None
    await looks("10.1.1.6")
    refused = await rig.add("e")
    assert refused.refusal is Refusal.EXHAUSTED
    await rig.stop()
    assert (await rig.start({NODE: moved, **service("s", 10, ("10.1.1.5",))})).error is None
    assert rig.writes() == {"store": 0, "linux": 0, "nftables": 0}
    await looks("10.1.1.6")
    assert (await rig.delete("d")).error is None
    assert "inet 10.1.1.5/32 " in sh("ip", "-4", "address", "show", "dev", "lo")
    assert await rig.drift() == []


async def test_an_address_is_not_given_again_at_once(rig: Rig) -> None:
    await rig.start()
    given = []
    for number in range(4):
        await rig.add("a", sandbox=f"s{number}")
        given.append(rig.running.controller.snapshot.attachments[rig.key("a", f"s{number}")].addresses[0][-1])
        await rig.delete("a", sandbox=f"s{number}")
        if number == 1:  # nor after a restart
            await rig.stop()
            await rig.start()
    assert given == [2, 3, 4, 5]


async def test_exhaustion_names_the_block_and_ends_with_a_release(rig: Rig) -> None:
    await rig.start({NODE: Node((parse_prefix("10.1.1.0/29"), parse_prefix("fd01::/64")))})
    for number in range(5):
        assert (await rig.add(f"p{number}")).error is None
    result = await rig.add("x")
    assert result.refusal is Refusal.EXHAUSTED
    assert result.error == "no address is free in 10.1.1.0/29: all 5 are in use"
    assert (await rig.delete("p3")).error is None
    assert (await rig.add("x")).error is None


@pytest.mark.parametrize(
    ("objects", "mtu", "says"),
    [({NODE: Node()}, 1500, "node one has no spec.podCIDRs yet"), ({}, 0, "the MTU of node one is not known")],
    ids=["no pod CIDR", "no MTU"],
)
async def test_a_node_that_is_not_ready_attaches_nothing(rig: Rig, objects, mtu: int, says: str) -> None:  # type: ignore[no-untyped-def]
    await rig.start(objects, mtu)
    result = await rig.add("x")
    assert result.refusal is Refusal.NOT_READY
    assert result.error is not None
    assert result.error.startswith(says)
    assert rig.running.not_ready() is not None
    assert rig.rows() == 0


@pytest.mark.parametrize("length", [1, 64, 200, 1000], ids=lambda n: f"{n} bytes")
async def test_names_of_any_length_are_attached(rig: Rig, length: int) -> None:
    """A sandbox ID longer than an altname, a pod name longer than an alias: what the kernel can't hold is hashed."""
    await rig.start()
    result = await rig.add("p" * length if length <= 63 else "p", sandbox="s" * length)
    assert result.error is None
    assert await rig.drift() == []
    await rig.delete("p" * length if length <= 63 else "p", sandbox="s" * length)
    assert await rig.drift() == []


async def test_many_adds_at_once_get_different_addresses(rig: Rig) -> None:
    await rig.start()
    spaces = [rig.space(f"p{number}") for number in range(12)]
    results = await asyncio.gather(*(rig.add(f"p{number}") for number in range(len(spaces))))
    assert [result.error for result in results] == [None] * len(spaces)
    held = [a for it in rig.running.controller.snapshot.attachments.values() for a in it.addresses]
    assert len(held) == len(set(held)) == 2 * len(spaces)
    assert await rig.drift() == []


async def test_links_are_deleted_in_groups_and_after_the_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "COLLECT_DELAY", 3600.0)  # killed before its time comes
    await rig.start()
    for pod in "abc":
        await rig.add(pod)
    for pod in "abc":
        assert (await rig.delete(pod)).error is None
    assert not sh("ip", "route", "show", "proto", "177", "10.1.1.0/24")
    await rig.stop()  # what the killed agent had still to delete, the next one finds
    assert len([name for name in os.listdir("/proc/self/net/dev_snmp6") if name.startswith("pw")]) == 3
    await rig.start()
    rig.running.linux.collect()
    assert not [name for name in os.listdir("/proc/self/net/dev_snmp6") if name.startswith("pw")]
    assert await rig.drift() == []
