"""A node that was booted anew, and a store that was lost: the dead are released, who lives is kept."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from podwire import views
from podwire.agent import running
from podwire.cni import mark
from podwire.cni.cni_pb2 import CniRequest
from podwire.config import BOOT_ID_FILE, read_config
from podwire.controller import loop
from podwire.model.addresses import show_address
from podwire.model.objects import PodKey
from podwire.sources import cni_server
from podwire.sources.ipam_leases import Leases
from tests.kernel.hands import links_gone
from tests.kernel.process import AgentProcess
from tests.kernel.rig import Rig, Space, ask, by_hand, dump, identity, respond, service, sh, silence

OBJECTS = service("web", 10, ("10.1.1.2", "fd01::2"))


class Node:
    """A rig whose kernel can be started anew."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig, self.boots = rig, 1
        rig.boot_id = directory / "boot_id"
        rig.boot_id.write_text("00000000-0000-4000-8000-000000000001\n")

    async def power_off(self) -> None:
        """Of what the kernel had nothing is left, but for namespaces: which of these are there is the test's matter."""
        await self.rig.stop()
        silence()
        for line in sh("ip", "-o", "link").splitlines():
            name = line.split(": ")[1].partition("@")[0]
            if name.startswith("pw"):
                sh("ip", "link", "del", name)
        sh("nft", "flush", "ruleset")
        for family in ("-4", "-6"):
            sh("ip", family, "route", "flush", "proto", "177")
        self.boots += 1
        self.rig.boot_id.write_text(f"00000000-0000-4000-8000-00000000000{self.boots}\n")

    async def boot(self) -> None:
        assert (await self.rig.start(OBJECTS)).error is None

    @property
    def used(self) -> list[int]:
        """Addresses, by block."""
        now = self.rig.running.controller.snapshot
        return [block.used for block in views.status(now, self.rig.running.facts()).pod_cidrs]

    @property
    def pods(self) -> set[str]:
        return {it.pod.name for it in self.rig.running.controller.snapshot.attachments.values()}

    @property
    def addresses(self) -> set[str]:
        return {
            show_address(a) for it in self.rig.running.controller.snapshot.attachments.values() for a in it.addresses
        }

    @property
    def events(self) -> list[str]:
        return [record.event for record in self.rig.running.controller.history]


@pytest.fixture
async def booted(rig: Rig, tmp_path: Path) -> Node:
    node = Node(rig, tmp_path)
    await rig.start_with_pods("web", "b", "c", objects=OBJECTS)
    return node


def remake(space: Space) -> None:
    sh("ip", "netns", "del", space.name)
    sh("ip", "netns", "add", space.name)


async def test_after_a_boot_the_addresses_of_dead_sandboxes_are_free(booted: Node) -> None:
    """Without a single DEL: as many are used as pods come again, not twice as many."""
    rig = booted.rig
    old = dict(rig.pods)
    await booted.power_off()
    for space in old.values():
        sh("ip", "netns", "del", space.name)
    rig.pods.clear()
    await booted.boot()
    assert (booted.used, booted.pods) == ([0, 0], set())
    assert "Restored 0 attachments, released 3 of an earlier boot" in booted.events
    assert rig.rows() == 0
    for pod in old:
        assert (await rig.add(pod, sandbox=f"new-{pod}")).error is None
    assert booted.used == [3, 3]
    assert not booted.addresses & {"10.1.1.2", "10.1.1.3", "10.1.1.4"}  # not given again at once
    for pod in old:
        assert (await rig.delete(pod)).error is None  # late ones, of the boot before
    assert booted.used == [3, 3]
    respond(rig.pods["web"], "web")
    assert ask(rig.pods["b"], "10.1.1.5", 8080) == "web 10.1.1.6"
    assert await rig.drift() == []
    await rig.stop()
    await booted.boot()
    assert booted.used == [3, 3]
    assert rig.writes() == {"store": 0, "linux": 0, "nftables": 0}


async def test_after_a_boot_who_lives_keeps_its_addresses(booted: Node) -> None:
    """`web` was frozen with its link; of `b` the runtime has made the namespace again before the agent came."""
    rig = booted.rig
    await rig.stop()
    rig.boot_id.write_text("another\n")
    silence()
    respond(rig.pods["web"], "web")
    remake(rig.pods["b"])
    sh("ip", "netns", "del", rig.pods["c"].name)
    for pod in "bc":
        links_gone(rig, pod)
    await booted.boot()
    assert booted.pods == {"web", "b"}
    assert booted.addresses == {"10.1.1.2", "10.1.1.3", "fd01::2", "fd01::3"}
    held = rig.running.controller.snapshot.attachments[rig.key("b")]
    assert ((held.device, held.inode), held.boot) == (identity(rig.pods["b"].path), "another")
    assert ask(rig.pods["b"], "10.96.0.10") == "web 10.1.1.3"
    assert await rig.drift() == []
    assert (await rig.add("b")).error is None
    assert (await rig.add("d")).error is None
    assert booted.used == [3, 3]


async def test_a_process_s_path_says_nothing_after_a_boot(booted: Node) -> None:
    """Its number is another process's by then: nobody's namespace gets a dead pod's interface."""
    rig = booted.rig
    stranger = rig.space("stranger")
    with process_in(stranger) as path:
        assert (await rig.add("d", path)).error is None
        await booted.power_off()
        await booted.boot()
        assert "d" not in booted.pods
        assert "eth0" not in sh("ip", "-n", stranger.name, "-o", "link")


@contextmanager
def process_in(space: Space) -> Iterator[str]:
    """The path of the namespace, by a process in it."""
    command = ["ip", "netns", "exec", space.name, "sh", "-c", "echo ready; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield f"/proc/{process.pid}/ns/net"
        process.stdin.close()


def spooled(rig: Rig, sandbox: str) -> None:
    directory = rig.directory / "spool"
    directory.mkdir(exist_ok=True)
    environment = ["CNI_COMMAND=DEL", f"CNI_CONTAINERID={sandbox}", "CNI_IFNAME=eth0"]
    stdin = b'{"cniVersion": "1.0.0", "name": "podwire"}'
    body = CniRequest(environment=environment, stdin=stdin).SerializeToString()
    (directory / f"{len(list(directory.iterdir())):020}-1.del").write_bytes(body)


async def test_spooled_dels_of_the_boot_before_are_harmless(booted: Node) -> None:
    """Of who lives on the runtime has asked it, whenever that was; all others have gone, or have come since."""
    rig = booted.rig
    await booted.power_off()
    for pod in "bc":
        sh("ip", "netns", "del", rig.pods.pop(pod).name)
        spooled(rig, f"sandbox-{pod}")
    await booted.boot()
    server = await cni_server.serve(
        rig.directory / "cni.sock", rig.directory / "spool", rig.running.controller, Leases(rig.directory / "leases")
    )
    try:
        assert booted.pods == {"web"}
        assert list((rig.directory / "spool").iterdir()) == []
        assert (await rig.add("b", sandbox="new")).error is None
        assert ask(rig.pods["b"], "10.1.1.2", 8080) == "ConnectionRefusedError"  # it is there, and nobody listens
        assert await rig.drift() == []
    finally:
        await server.stop(None)


async def test_an_agent_is_told_of_a_boot_by_its_environment(node: Space, tmp_path: Path) -> None:
    process = AgentProcess(tmp_path)
    told = tmp_path / "boot_id"
    told.write_text("one\n")
    config = read_config(process.config, {BOOT_ID_FILE: str(told)})
    async with running(config) as agent:
        assert agent.controller.snapshot.local.boot == "one"
        leaving = asyncio.create_task(agent.leave_mark())
        await asyncio.sleep(0)
        leaving.cancel()
    assert config.ready_mark.read_bytes() == mark.present(told)
    assert read_config(process.config, {}).boot_id == Path("/proc/sys/kernel/random/boot_id")


# --- the store ---------------------------------------------------------------------------------


class OlderAttachment(Struct, frozen=True):
    """As versions before read it."""

    pod: PodKey
    netns: str
    addresses: tuple[bytes, ...]
    index: int
    confirmed: bool = False
    device: int = 0
    inode: int = 0


async def test_rows_go_up_and_down_the_versions(booted: Node) -> None:
    rig = booted.rig
    held = dict(rig.running.controller.snapshot.attachments)
    for sandbox, value in rig.sql("SELECT sandbox, value FROM attachment"):
        older = msgspec.msgpack.decode(value, type=OlderAttachment)
        key = rig.key("", sandbox)
        assert (older.pod, older.index, older.confirmed) == (held[key].pod, held[key].index, True)
        blob = msgspec.msgpack.encode(older).hex()
        rig.sql(f"UPDATE attachment SET value = x'{blob}' WHERE sandbox = '{sandbox}'")
    await rig.stop()
    await booted.boot()
    assert booted.pods == {"web", "b", "c"}
    assert rig.writes()["linux"] == 0
    assert await rig.drift() == []
    assert (await rig.add("b")).error is None  # which tells its boot
    assert rig.running.controller.snapshot.attachments[rig.key("b")].boot != ""


def lose_store(rig: Rig) -> None:
    for part in rig.directory.glob("podwire.db*"):
        if "damaged" not in part.name:
            part.unlink()


@pytest.mark.parametrize("damaged", [False, True], ids=["removed", "damaged"])
async def test_a_lost_store_is_told(booted: Node, damaged: bool) -> None:
    rig = booted.rig
    before = booted.addresses
    await rig.stop()
    database = rig.directory / "podwire.db"
    lose_store(rig)
    if damaged:
        database.write_bytes(b"\xff" * 9000)
    await booted.boot()
    assert "Restored 3 attachments, 3 from the kernel, since the store was lost" in booted.events
    lost = f"store: {database}: was lost: 3 attachments are taken from the kernel"
    assert lost in views.status(rig.running.controller.snapshot, rig.running.facts()).source_errors
    assert booted.addresses == before
    assert (await rig.add("d")).error is None
    assert len(booted.addresses) == 8
    lose_store(rig)
    assert (await rig.add("e")).error is not None
    await rig.history_has("Resync healing of store")
    assert any("made anew while the agent was at work" in error for error in rig.running.source_errors)
    assert rig.rows() == 4


@pytest.mark.parametrize("alone", [False, True], ids=["told all objects", "without the API"])
async def test_a_lost_store_is_made_again_whenever_a_start_is_killed(booted: Node, alone: bool) -> None:
    """At each turn of the event loop from the opening of the store to the end of the first resync."""
    rig = booted.rig
    before = booted.addresses, dump()
    turns, ended = 0, False
    while not ended:
        await rig.stop()
        lose_store(rig)
        by_hand("nft flush ruleset; ip route flush proto 177 root 10.96.0.0/16")  # so that there is something to do
        start = asyncio.create_task(rig.start_alone() if alone else rig.start(OBJECTS))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        ended = start.done()
        await rig.kill()
        start.cancel()
        await booted.boot()
        assert (booted.addresses, dump()) == before
        assert (rig.rows(), await rig.drift()) == (3, [])
        turns += 1
    assert turns > 2


async def test_a_store_that_is_lost_at_work_and_not_filled_before_a_kill(
    booted: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whom the new file knows already it knows more than the kernel does."""
    rig = booted.rig
    monkeypatch.setattr(loop, "HEALING_DELAYS", (3600.0,))
    lose_store(rig)
    assert (await rig.add("d")).error is not None  # it was renewed
    assert (await rig.add("e")).error is None
    assert (await rig.delete("c")).error is None
    before = booted.addresses
    await rig.kill()
    await booted.boot()
    assert (booted.pods, booted.addresses) == ({"web", "b", "e"}, before)
    assert "Restored 3 attachments, 2 from the kernel, since the store was lost" in booted.events
    assert rig.running.controller.snapshot.attachments[rig.key("e")].netns == rig.pods["e"].path
    assert ask(rig.pods["b"], "10.96.0.10") == "web 10.1.1.3"
    assert (rig.rows(), await rig.drift()) == (3, [])
