"""Addresses by an IPAM plugin: whatever it does and whoever is killed, what it has given is given back.

Invariants: the plugin is a shell script that writes down each call. What it should do by a command stands in a file of
that name: a part of a script. The controller folds truly and has no network below.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from immutables import Map

from podwire.controller.events import AddPod, DeletePod, Event, SandboxGone
from podwire.controller.transaction import Result
from podwire.model.objects import AttachmentKey
from podwire.model.snapshot import Local, Snapshot
from podwire.sources import cni_ipam, cni_server
from podwire.sources.cni_calls import CallServer
from podwire.sources.ipam_leases import Leases
from tests.unit.test_cni_server import CONFIG, KEY, LIST, Fake, Served, message

PLUGIN = """#!/bin/sh
cd {directory}
cat >stdin.$CNI_COMMAND
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS" | sed 's/ *$//' >>calls
if [ -e "$CNI_COMMAND" ]; then . ./$CNI_COMMAND; fi
if [ "$CNI_COMMAND" = ADD ]; then cat answer; fi
"""
ANSWER: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "ips": [{"address": "10.9.0.7/16", "gateway": "10.9.0.1"}, {"address": "fd09::7/64"}],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd00::/8", "gw": "fd09::1"}],
    "dns": {"nameservers": ["10.96.0.10"]},
}
DELEGATED = CONFIG | {"ipam": {"type": "some", "of its own": [1, 2]}}
FAILS = """echo '{"code":4711,"msg":"no luck: not found"}'; exit 1"""
HANGS = "exec sleep 1000"


async def until(met: Callable[[], bool]) -> None:
    """What other processes do is told by nobody."""
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Told(Fake):
    """Tells of each event, as the loop does."""

    def __init__(self) -> None:
        super().__init__(Snapshot(Local("one", mtu=1450)))
        self.readers: list[asyncio.Future[Any]] = []

    def next_of_pods(self) -> asyncio.Future[Any]:
        self.readers.append(asyncio.get_running_loop().create_future())
        return self.readers[-1]

    def _handle(self, event: Event) -> Result:
        result = super()._handle(event)
        for each in self.readers:
            if not each.done():
                each.set_result(None)
        return result


class Node(Served):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory / "plugin"
        self.directory.mkdir()
        self.controller = self.told = Told()
        (self.directory / "some").write_text(PLUGIN.format(directory=self.directory))
        (self.directory / "some").chmod(0o755)
        self.answers(ANSWER)

    def answers(self, answer: Any) -> None:
        (self.directory / "answer").write_text(answer if isinstance(answer, str) else json.dumps(answer))

    def does(self, command: str, script: str) -> None:
        (self.directory / command).write_text(script + "\n")

    def behaves(self) -> None:
        for command in ("ADD", "DEL", "CHECK", "STATUS", "GC"):
            (self.directory / command).unlink(missing_ok=True)

    @property
    def calls(self) -> list[str]:
        path = self.directory / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def left(self) -> list[Path]:
        """Leases, and whatever belongs to none."""
        answers = {path.with_suffix(".answer") for path in self.leases.glob("*.lease")}
        return sorted(path for path in self.leases.iterdir() if path not in answers)

    async def ask(self, command: str, config: Any = DELEGATED, **changed: str) -> tuple[int, Any]:
        return await super().ask(command, config, **{"CNI_PATH": f"/nowhere:{self.directory}"} | changed)

    async def start(self) -> CallServer:
        self.held = Leases(self.leases)
        return await cni_server.serve(self.socket, self.spool, self.controller, self.held)

    @asynccontextmanager
    async def giving_back(self) -> AsyncIterator[None]:
        task = asyncio.create_task(cni_ipam.keep_giving_back(self.held, self.told))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until_nothing_is_owed(self) -> None:
        await until(lambda: not self.left)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(cni_server, "check_namespace", lambda path: (4, 4026532000 + ord(path[-1]) - ord("x")))
    monkeypatch.setattr(cni_ipam, "AGAIN_SECONDS", (0.01, 0.02))
    return Node(tmp_path)


@pytest.fixture
async def node(stopped: Node) -> AsyncIterator[Node]:
    server = await stopped.start()
    yield stopped
    await server.stop(None)


async def test_a_pod_has_what_the_plugin_gives(node: Node) -> None:
    code, said = await node.ask("ADD")
    assert code == 0
    assert [(ip["address"], ip["gateway"]) for ip in said["ips"]] == [
        ("10.9.0.7/32", "169.254.1.1"),
        ("fd09::7/128", "fe80::1"),
    ]
    assert [(it["dst"], it["gw"]) for it in said["routes"]] == [
        ("0.0.0.0/0", "169.254.1.1"),
        ("fd00::/8", "fe80::1"),
    ]
    assert said["dns"] == {"nameservers": ["10.96.0.10"]}
    assert json.loads((node.directory / "stdin.ADD").read_text()) == DELEGATED
    assert await node.ask("CHECK", DELEGATED | {"prevResult": said}) == (0, None)
    assert json.loads((node.directory / "stdin.CHECK").read_text())["prevResult"] == said
    assert len(node.left) == 1
    for _ in range(2):
        assert await node.ask("DEL", DELEGATED | {"prevResult": said}) == (0, None)
    assert node.left == []
    assert json.loads((node.directory / "stdin.DEL").read_text())["prevResult"] == said
    assert node.calls == [f"{it} c1 /run/netns/x" for it in ("ADD", "CHECK", "DEL", "DEL")]


async def test_of_configured_dns_and_the_plugins_the_configured_is_told(node: Node) -> None:
    _, said = await node.ask("ADD", DELEGATED | {"dns": {"domain": "d"}})
    assert said["dns"] == {"domain": "d"}


async def test_a_repeated_add_answers_the_same_and_asks_nobody(node: Node) -> None:
    first = await node.ask("ADD")
    node.answers({**ANSWER, "ips": [{"address": "10.9.0.8/16"}]})
    assert await node.ask("ADD") == first
    assert node.calls == ["ADD c1 /run/netns/x"]
    (node.leases / f"{node.left[0].stem}.answer").write_text("half of i")
    code, said = await node.ask("ADD")
    assert (code, said) == (0, {name: value for name, value in first[1].items() if name != "dns"})


ADDS = {
    "its own error": ("ADD", FAILS, 4711, "IPAM plugin some: no luck: not found"),
    "nothing": ("ADD", "exit 1", 999, "IPAM plugin some: ended with exit code 1 and printed nothing"),
    "killed": ("ADD", "kill -9 $$", 999, "IPAM plugin some: was ended by signal 9"),
    "hangs": ("ADD", HANGS, 11, "IPAM plugin some: ADD did not end within 0.5 s, and was killed"),
    "too much": ("ADD", "exec yes", 6, "IPAM plugin some: ADD: it printed more than 1 MiB"),
    "garbage": ("answer", "garbage", 6, "IPAM plugin some: its result: expected JSON; found 'garbage"),
    "no addresses": ("answer", "{}", 6, "IPAM plugin some: its result: ips: expected at least one address"),
}


@pytest.mark.parametrize("how", ADDS)
async def test_a_failed_add_of_the_plugin_is_undone_and_told(
    node: Node, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, script, code, says = ADDS[how]
    monkeypatch.setattr(cni_ipam, "ADD_SECONDS", 0.5 if how == "hangs" else 30)
    node.does(what, script)
    exit_code, said = await node.ask("ADD")
    assert (exit_code, said["code"]) == (1, code)
    assert says in said["msg"]
    assert node.calls == ["ADD c1 /run/netns/x", "DEL c1"]
    assert (node.left, node.controller.events) == ([], [])


async def test_where_the_network_fails_the_plugin_has_it_back(node: Node) -> None:
    node.controller.failing[AddPod] = "link pw0: No space left on device"
    code, said = await node.ask("ADD")
    assert (code, said["code"]) == (1, 5)
    assert (node.calls, node.left) == (["ADD c1 /run/netns/x", "DEL c1"], [])


async def test_an_address_that_a_pod_has_is_refused_by_name_and_given_back(node: Node) -> None:
    assert (await node.ask("ADD"))[0] == 0
    code, said = await node.ask("ADD", CNI_CONTAINERID="c2", CNI_NETNS="/run/netns/y", CNI_ARGS="")
    assert (code, said["code"]) == (1, 11)
    assert said["msg"] == "IPAM plugin some: its result: ips: 10.9.0.7 is given to pod shop/web-0 (sandbox c1)"
    assert node.calls[-1] == "DEL c2"
    assert len(node.left) == 1


async def test_what_can_not_be_given_back_at_once_is_given_back_later(node: Node) -> None:
    node.does("ADD", FAILS)
    node.does("DEL", FAILS)
    async with node.giving_back():
        assert (await node.ask("ADD"))[1]["code"] == 4711
        await until(lambda: node.calls.count("DEL c1") >= 4)
        assert len(node.left) == 1
        why = f"{KEY}: its lease can't be given back: IPAM plugin some: no luck: not found"
        assert node.held.troubles == (why,)
        node.behaves()
        await node.until_nothing_is_owed()
    assert node.held.troubles == ()
    assert node.calls[-1] == "DEL c1"


async def test_a_failed_del_is_told_by_its_code_and_comes_again(node: Node) -> None:
    await node.ask("ADD")
    node.does("DEL", FAILS)
    code, said = await node.ask("DEL")
    assert (code, said["code"], said["msg"]) == (1, 4711, "IPAM plugin some: no luck: missing")
    assert (node.controller.snapshot.attachments, len(node.left)) == (Map(), 1)
    node.behaves()
    assert await node.ask("DEL", CNI_NETNS="") == (0, None)
    assert (node.left, node.calls[-1]) == ([], "DEL c1")


async def test_a_hanging_del_is_given_up_in_time_for_our_plugin(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.ask("ADD")
    node.does("DEL", HANGS)
    monkeypatch.setattr(cni_ipam, "DEL_SECONDS", 0.3)
    code, said = await node.ask("DEL")
    assert (code, said["code"]) == (1, 11)
    assert len(node.left) == 1


@pytest.mark.parametrize("later", [CONFIG, CONFIG | {"ipam": {"type": "another"}}], ids=["none", "another"])
async def test_whoever_has_given_is_told_del_whatever_is_configured_by_then(node: Node, later: Any) -> None:
    await node.ask("ADD")
    assert await node.ask("DEL", later) == (0, None)
    assert json.loads((node.directory / "stdin.DEL").read_text()) == DELEGATED
    assert (node.calls[-1], node.left) == ("DEL c1 /run/netns/x", [])


async def test_a_sandbox_that_goes_without_a_del_gives_back_what_it_had(node: Node) -> None:
    await node.ask("ADD")
    async with node.giving_back():
        await node.controller.submit(SandboxGone(frozenset((KEY,))))
        await node.until_nothing_is_owed()
    assert node.calls == ["ADD c1 /run/netns/x", "DEL c1"]


# --- killed ------------------------------------------------------------------------------------


async def test_killed_while_the_plugin_gives_the_next_agent_gives_back(stopped: Node) -> None:
    """Before the plugin has answered, and before anything is in the store."""
    node = stopped
    server = await node.start()
    node.does("ADD", HANGS)
    call = asyncio.create_task(node.ask("ADD"))
    await until(lambda: bool(node.calls))
    (lease,) = node.left
    whole = lease.read_bytes()
    await server.stop(None)
    await asyncio.wait([call])
    assert call.exception() is not None
    assert lease.read_bytes() == whole
    node.behaves()
    node.controller = node.told = Told()
    server = await node.start()
    async with node.giving_back():
        await node.until_nothing_is_owed()
    await server.stop(None)
    assert node.calls == ["ADD c1 /run/netns/x", "DEL c1"]


async def test_a_living_pods_lease_outlives_the_agent(stopped: Node) -> None:
    server = await stopped.start()
    first = await stopped.ask("ADD")
    await server.stop(None)
    server = await stopped.start()
    async with stopped.giving_back():
        assert await stopped.ask("ADD") == first
        assert await stopped.ask("DEL", CONFIG) == (0, None)
    await server.stop(None)
    assert (stopped.calls[1:], stopped.left) == (["DEL c1 /run/netns/x"], [])


async def test_what_is_no_lease_is_set_aside(stopped: Node) -> None:
    stopped.leases.mkdir()
    for name in ("a.lease", "b.tmp", "c.answer"):
        (stopped.leases / name).write_bytes(b"\xff")
    server = await stopped.start()
    await server.stop(None)
    assert [path.name for path in stopped.left] == ["a.lease.bad"]


async def test_a_spooled_del_reaches_the_plugin_and_holds_up_nobody(stopped: Node) -> None:
    """However long the plugin takes."""
    node = stopped
    node.does("DEL", HANGS)
    for name in ("c1", "c2"):
        node.leave(f"{name}.del", message("DEL", DELEGATED, CNI_CONTAINERID=name, CNI_PATH=str(node.directory)))
    server = await node.start()
    assert (list(node.spool.iterdir()), len(node.left)) == ([], 2)
    async with node.giving_back():
        await until(lambda: len(node.calls) >= 2)
        code, _ = await node.ask("ADD", CNI_CONTAINERID="c3")
        assert code == 0
        node.behaves()
    await server.stop(None)
    server = await node.start()
    async with node.giving_back():
        await until(lambda: set(node.held.held) == {AttachmentKey("c3", "eth0")})
    await server.stop(None)
    assert sorted(node.calls[-2:]) == ["DEL c1", "DEL c2"]


async def test_a_del_that_can_not_be_written_down_stays_in_the_spool(stopped: Node) -> None:
    server = await stopped.start()
    spooled = stopped.leave("1.del", message("DEL", DELEGATED, CNI_CONTAINERID="c2"))
    (stopped.leases).chmod(0o700)
    stopped.held.directory = stopped.leases / "gone"
    code, said = await stopped.ask("ADD")
    assert (code, said["code"]) == (1, 5)
    assert "its lease can't be written: No such file" in said["msg"]
    assert (spooled.exists(), stopped.calls) == (True, [])
    await server.stop(None)


# --- at the same time --------------------------------------------------------------------------


async def test_an_add_goes_on_though_its_caller_is_gone_and_the_del_waits_for_it(node: Node) -> None:
    node.does("ADD", "while [ ! -e go ]; do sleep 0.01; done")
    call = asyncio.create_task(node.ask("ADD"))
    await until(lambda: bool(node.calls))
    call.cancel()
    await asyncio.wait([call])
    deleting = asyncio.create_task(node.ask("DEL"))
    other = await node.ask("ADD", CONFIG, CNI_CONTAINERID="c2", CNI_NETNS="/run/netns/y")
    assert other[1]["code"] == 11  # the node has no block; but it is answered
    assert not deleting.done()
    (node.directory / "go").touch()
    assert await deleting == (0, None)
    kinds = [type(event) for event in node.controller.events]
    assert kinds == [AddPod, AddPod, DeletePod]
    assert node.calls == ["ADD c1 /run/netns/x", "DEL c1 /run/netns/x"]
    assert (node.left, node.controller.snapshot.attachments) == ([], Map())


async def test_a_gc_lists_what_is_being_added_and_nothing_is_collected_without_a_list(node: Node) -> None:
    node.does("ADD", "while [ ! -e go ]; do sleep 0.01; done")
    gc = DELEGATED | {"cniVersion": "1.1.0"}
    call = asyncio.create_task(node.ask("ADD"))
    await until(lambda: bool(node.calls))
    assert await node.ask("GC", gc) == (0, None)
    assert node.calls == ["ADD c1 /run/netns/x"]
    assert await node.ask("GC", gc | {LIST: None}) == (0, None)
    told = json.loads((node.directory / "stdin.GC").read_text())
    assert told == gc | {LIST: [{"containerID": "c1", "ifname": "eth0"}]}
    (node.directory / "go").touch()
    assert (await call)[0] == 0
    node.does("GC", FAILS)
    code, said = await node.ask("GC", gc | {LIST: [{"containerID": "c1", "ifname": "eth0"}]})
    assert (code, said["code"], "IPAM plugin some: no luck" in said["msg"]) == (1, 5, True)
    assert KEY in node.controller.snapshot.attachments


# --- questions ---------------------------------------------------------------------------------


async def test_check_says_what_the_plugin_says(node: Node) -> None:
    _, said = await node.ask("ADD")
    node.does("CHECK", FAILS)
    code, error = await node.ask("CHECK", DELEGATED | {"prevResult": said})
    assert (code, error["code"]) == (1, 4711)


async def test_status_is_the_plugins_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no block of this node's is needed."""
    config = DELEGATED | {"cniVersion": "1.1.0"}
    assert await node.ask("STATUS", config) == (0, None)
    assert [it.split()[0] for it in node.calls] == ["STATUS"]
    assert (await node.ask("STATUS", CONFIG))[1]["code"] == 50
    node.does("STATUS", """echo '{"code":51,"msg":"half of it"}'; exit 1""")
    assert (await node.ask("STATUS", config))[1]["code"] == 51
    assert await node.ask("STATUS", DELEGATED) == (0, None)  # a version that has no STATUS
    node.does("STATUS", HANGS)
    monkeypatch.setattr(cni_ipam, "STATUS_SECONDS", 0.3)
    code, said = await node.ask("STATUS", config)
    assert (code, said["code"]) == (1, 50)
    assert "STATUS did not end within 0.3 s" in said["msg"]
    assert (await node.ask("STATUS", config, CNI_PATH="/nowhere"))[1]["code"] == 50
    node.controller.unsynced = frozenset(("linux",))
    assert (await node.ask("STATUS", config))[1]["code"] == 51


async def test_a_plugin_that_is_nowhere(node: Node) -> None:
    code, said = await node.ask("ADD", CNI_PATH="/nowhere")
    assert (code, said["code"]) == (1, 4)
    assert "expected a directory with the IPAM plugin some" in said["msg"]
    assert len(node.left) == 1  # it may come back
    code, said = await node.ask("DEL", CNI_PATH="/nowhere")
    assert (code, said["code"]) == (1, 4)
    assert await node.ask("DEL") == (0, None)
    # Who has given nothing that is known, and is not there, keeps no pod from its end.
    assert await node.ask("DEL", CNI_PATH="/nowhere") == (0, None)
