"""A pod's namespace is known by itself, not by the path that led to it: nothing is done where the path leads later."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from podwire.controller.events import Refusal
from podwire.model.addresses import parse_prefix
from podwire.model.objects import Attachment, Node
from podwire.pods.names import interface_name
from tests.kernel.hands import links_gone
from tests.kernel.rig import NODE, Rig, Space, ask, by_hand, dump, identity, respond, service, sh, silence

OBJECTS = service("web", 10, ("10.1.1.2", "fd01::2"))


def seen_in(space: Space) -> str:
    """All that somebody else's namespace has."""
    return "\n".join(
        sh("ip", "-n", space.name, *what)
        for what in (("-o", "link"), ("-o", "address"), ("-4", "route"), ("-6", "route"), ("neigh",))
    )


class By:
    """A pod whose namespace is reached by a file that anybody may replace."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        self.rig, self.space, self.path = rig, rig.space("a"), directory / "netns"
        self.stranger = rig.make_space("stranger")
        self.path.symlink_to(self.space.path)

    def to(self, target: str) -> None:
        self.path.unlink()
        self.path.symlink_to(target)

    def mount(self, target: str) -> None:
        self.path.unlink()
        self.path.touch()
        sh("mount", "--bind", target, str(self.path))

    def file(self) -> None:
        self.path.unlink()
        self.path.write_text("no namespace")

    def directory(self) -> None:
        self.path.unlink()
        self.path.mkdir()

    def pipe(self) -> None:
        self.path.unlink()
        os.mkfifo(self.path)


HANDS: dict[str, Callable[[By], None]] = {
    "the node, by a symlink": lambda by: by.to(f"/proc/{os.getpid()}/task/{os.getpid()}/ns/net"),
    "the node, by a mount": lambda by: by.mount("/proc/thread-self/ns/net"),
    "a stranger, by a symlink": lambda by: by.to(by.stranger.path),
    "a stranger, by a mount": lambda by: by.mount(by.stranger.path),
    "a namespace of another kind": lambda by: by.to("/proc/self/ns/uts"),
    "a regular file": By.file,
    "a directory": By.directory,
    "a pipe": By.pipe,
    "nowhere": lambda by: by.path.unlink(),
    "something below a file": lambda by: by.to("/etc/passwd/netns"),
}


@pytest.fixture
async def by(rig: Rig, tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "pods").mkdir()
    by = By(rig, tmp_path / "pods")
    assert (await rig.start(OBJECTS)).error is None
    assert (await rig.add("a", str(by.path))).error is None
    assert (await rig.add("b")).error is None
    respond(by.space, "a")
    yield by
    if str(by.path) in sh("cat", "/proc/self/mounts"):
        sh("umount", str(by.path))


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("hand", HANDS.values(), ids=HANDS)
async def test_where_a_path_leads_later_nothing_is_touched(by: By, hand: Callable[[By], None], restarted: bool) -> None:
    """And the pod that lives on is not cut."""
    rig = by.rig
    node, stranger = dump(), seen_in(by.stranger)
    hand(by)
    if restarted:
        await rig.stop()
        await rig.start(OBJECTS)
    for _ in range(2):
        await rig.resync()
        assert ask(rig.pods["b"], "10.96.0.10").startswith("a ")
    assert await rig.drift() == []
    assert (dump(), seen_in(by.stranger)) == (node, stranger)
    assert (await rig.delete("a")).error is None
    assert seen_in(by.stranger) == stranger
    assert await rig.drift() == []


@pytest.mark.parametrize(
    "target",
    ["loop", "/proc/1/ns/net/x"],
    ids=["a symlink to itself", "something below a namespace"],
)
async def test_a_path_that_cannot_be_followed_costs_only_its_pod(by: By, target: str) -> None:
    """All else is in sync, also after a restart; and once the path is right, all is."""
    rig = by.rig
    by.to(str(by.path) if target == "loop" else target)
    await rig.stop()
    result = await rig.start(OBJECTS)
    assert rig.running.not_ready() is None
    assert (await rig.add("c")).error is None
    assert ask(rig.pods["b"], "10.96.0.10").startswith("a ")
    if target == "loop":
        assert result.error is not None
        assert str(by.path) in result.error
        assert all(str(by.path) in key or key.startswith("link") for key in await rig.drift())
    by.to(by.space.path)
    await rig.resync()
    assert (await rig.add("a", str(by.path))).error is None
    assert await rig.drift() == []
    assert ask(rig.pods["b"], "10.96.0.10").startswith("a ")


async def test_an_add_by_another_path_of_the_same_namespace_changes_only_the_row(by: By, tmp_path: Path) -> None:
    rig = by.rig
    other = tmp_path / "pods" / "other"
    other.symlink_to(by.space.path)
    node, writes = dump(), rig.writes()
    assert (await rig.add("a", str(other))).error is None
    assert (dump(), rig.writes() | {"store": 0}) == (node, writes | {"store": 0})
    assert ask(rig.pods["b"], "10.96.0.10").startswith("a ")
    by.path.unlink()
    sh("ip", "-n", by.space.name, "route", "del", "default")
    assert (await rig.resync()).error is None  # by the path that was named last
    assert ask(rig.pods["b"], "10.96.0.10").startswith("a ")
    assert await rig.drift() == []


@pytest.mark.parametrize("way", ["the same path", "another path", "the same path, the old namespace held"])
async def test_a_success_means_ready_in_the_namespace_that_was_named(by: By, tmp_path: Path, way: str) -> None:
    """Whatever has become of the old one: alive, dead, or about to die."""
    rig = by.rig
    for number in range(20):
        fresh = rig.make_space(f"n{number}")
        if way == "another path":
            path = fresh.path
            sh("ip", "netns", "del", rig.pods["b"].name)
        else:
            path = str(tmp_path / "pods" / "b")
            sh("ln", "-sfn", fresh.path, path)
            if "held" not in way:
                sh("ip", "netns", "del", rig.pods["b"].name)
        rig.pods["b"] = fresh
        assert (await rig.add("b", path)).error is None
        assert ask(fresh, "10.96.0.10").startswith("a ")
        assert ask(fresh, "fd01::2", 8080).startswith("a ")
    rig.running.linux.collect()
    assert await rig.drift() == []


@pytest.mark.parametrize("where", ["within the pod", "into a namespace of its own"])
async def test_what_a_pod_says_of_its_interfaces_ends_concerns_nobody_else(by: By, where: str) -> None:
    """An interface with the index that another pod's has, whose peer has the index of that other's end on the node."""
    rig = by.rig
    attached = rig.running.controller.snapshot.attachments[rig.key("a")]
    pod, far = rig.pods["b"].name, f" netns {rig.make_space('far').name}" if "own" in where else ""
    by_hand(
        f"ip -n {pod} link add v1 index {attached.index + 1} type veth peer name v0 index {attached.index}{far};"
        f"ip -n {pod} link add v3 type veth peer name v2 index {attached.index + 100}{far}"
    )
    node, writes = dump(), rig.writes()
    for _ in range(2):
        assert await rig.drift() == []
        assert (await rig.resync()).error is None
    assert (dump(), rig.writes()) == (node, writes)


def forget_namespaces(rig: Rig) -> None:
    """The store as an older version wrote it."""
    for sandbox, value in rig.sql("SELECT sandbox, value FROM attachment"):
        row = msgspec.msgpack.decode(value)
        for name in ("device", "inode"):
            del row[name]
        old = msgspec.msgpack.encode(row)
        assert msgspec.msgpack.decode(old, type=Attachment).inode == 0
        rig.sql(f"UPDATE attachment SET value = x'{old.hex()}' WHERE sandbox = '{sandbox}'")


@pytest.mark.parametrize("moved", [False, True], ids=["in place", "a path leads to a stranger"])
async def test_rows_of_an_older_version_learn_their_namespaces(by: By, moved: bool) -> None:
    rig = by.rig
    node, stranger = dump(), seen_in(by.stranger)
    forget_namespaces(rig)
    if moved:
        by.to(by.stranger.path)
    await rig.stop()
    await rig.start(OBJECTS)
    await rig.resync()
    assert rig.writes()["linux"] == 0
    attached = rig.running.controller.snapshot.attachments
    assert (attached[rig.key("b")].device, attached[rig.key("b")].inode) == identity(rig.pods["b"].path)
    assert (attached[rig.key("a")].inode == 0) is moved
    assert (dump(), seen_in(by.stranger)) == (node, stranger)
    assert await rig.drift() == []
    assert ask(rig.pods["b"], "10.96.0.10").startswith("a ")


async def test_a_dead_sandbox_whose_inode_another_has_is_in_nobodys_way(by: By) -> None:
    """Its link went with its namespace; the number is given to the next namespace at once."""
    rig = by.rig
    dead, fresh = rig.key("b"), rig.space("c")
    sh("ip", "netns", "del", rig.pods["b"].name)
    links_gone(rig, "b")
    now = rig.running.controller.snapshot
    device, inode = identity(fresh.path)
    there = replace(now.attachments[dead], device=device, inode=inode)
    housed = now.housed.set(f"{device}:{inode}", frozenset((dead,)))
    rig.running.controller.snapshot = replace(now, attachments=now.attachments.set(dead, there), housed=housed)
    assert (await rig.add("c")).error is None
    assert set(rig.running.controller.snapshot.attachments) == {rig.key("a"), rig.key("c")}
    assert ask(fresh, "10.96.0.10").startswith("a ")
    assert await rig.drift() == []


@pytest.mark.parametrize("lives", [False, True], ids=["dead", "alive"])
async def test_who_came_by_a_path_that_leads_elsewhere_now_has_lost_it(by: By, lives: bool) -> None:
    rig = by.rig
    fresh = rig.make_space("fresh")
    if not lives:
        silence()
        sh("ip", "netns", "del", by.space.name)
        links_gone(rig, "a")
    by.to(fresh.path)
    assert (await rig.add("c", str(by.path))).error is None
    await rig.history_has(f"Sandbox{'Unseen' if lives else 'Gone'} sandbox-a/eth0")
    assert (rig.key("a") in rig.running.controller.snapshot.attachments) is lives
    if lives:
        assert ask(rig.pods["b"], "10.96.0.10").startswith("a ")
    respond(fresh, "new")
    assert ask(rig.pods["b"], "10.1.1.4", 8080).startswith("new ")
    assert await rig.drift() == []


async def test_an_address_that_only_a_dead_pod_has_is_free(rig: Rig) -> None:
    """Nobody has told its end, and the block is full."""
    await rig.start({NODE: Node((parse_prefix("10.1.1.0/29"), parse_prefix("fd01::/64")))})
    for number in range(5):
        assert (await rig.add(f"p{number}")).error is None
    assert (await rig.add("x")).refusal is Refusal.EXHAUSTED
    sh("ip", "netns", "del", rig.pods["p3"].name)
    links_gone(rig, "p3")
    sh("ip", "link", "del", interface_name(rig.key("p1")))  # lives, and gets its link again
    assert (await rig.add("x")).error is None
    held = rig.running.controller.snapshot.attachments
    assert rig.key("p3") not in held
    assert rig.key("p1") in held
    await rig.resync()
    assert await rig.drift() == []


@pytest.mark.parametrize("names", [("all", "default"), ("default",), ("lo",)], ids=" and ".join)
async def test_ipv6_is_switched_on_in_a_pod_that_has_an_address_of_it(rig: Rig, names: tuple[str, ...]) -> None:
    """Runtimes switch it off there; a pod's owner does it later."""
    assert (await rig.start(OBJECTS)).error is None
    pod = rig.space("a").name
    for name in names:
        sh("ip", "netns", "exec", pod, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
    assert (await rig.add("a")).error is None
    respond(rig.pods["a"], "a")
    assert ask(None, "fd01::2", 8080).startswith("a ")
    assert await rig.drift() == []
    sh("ip", "netns", "exec", pod, "sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1")
    await rig.resync()
    assert ask(None, "fd01::2", 8080).startswith("a ")
    assert await rig.drift() == []


async def test_on_a_node_without_ipv6_an_add_says_what_to_do(rig: Rig) -> None:
    """And a node that has no IPv6 pod CIDR has no need of it."""
    for name in ("all", "default"):
        sh("sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
    await rig.start()
    result = await rig.add("a")
    assert result.error is not None
    assert "net.ipv6.conf.all.disable_ipv6 = 1" in result.error
    assert "set that to 0, or give the node no IPv6 pod CIDR" in result.error
    assert rig.rows() == 0
    assert (await rig.change((NODE, Node((parse_prefix("10.1.1.0/24"),))))).error is None
    assert (await rig.add("a")).error is None
    respond(rig.pods["a"], "a")
    assert ask(None, "10.1.1.3", 8080).startswith("a ")
    assert await rig.drift() == []
