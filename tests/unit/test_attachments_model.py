"""Attachments and store against a simple model, whatever a runtime, a boot or a lost file does to them.

The agent is the real one from CNI's messages to SQLite; below it are a kernel and nftables in memory. The model knows
which attachments there should be, and looks at the agent only for the addresses that it gave. Of a dead sandbox, whose
namespace went without a DEL, it allows both: that it has been noticed, and that it has not.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from podwire import restoring
from podwire.cni.cni_pb2 import CniReply, CniRequest
from podwire.cni.errors import CniError, ErrorCode
from podwire.config import Config
from podwire.controller.difference import Outcome, Scope
from podwire.controller.events import Resync, ResyncReason, SandboxGone, Shutdown
from podwire.controller.loop import Controller
from podwire.model.addresses import show_address
from podwire.model.network import Link, LinkKey, Route, RouteKey, Space
from podwire.model.objects import AttachmentKey
from podwire.model.snapshot import Snapshot
from podwire.pods.names import interface_name
from podwire.sources import cni_server
from podwire.sources.ipam_leases import Leases
from podwire.store.rows import Store
from tests.unit import world
from tests.unit.world import Memory

CAPACITY = 5


class Pod(NamedTuple):
    name: str
    uid: str


SANDBOXES: Mapping[str, Pod] = {
    "a1": Pod("a", "1"),
    "a2": Pod("a", "1"),  # the same pod in another sandbox
    "a3": Pod("a", "3"),  # another pod of that name
    "b1": Pod("b", "1"),
    "b2": Pod("b", ""),  # whose UID nobody tells
    "c.d": Pod("c", "1"),
    "c": Pod("c", "1"),
    "l" * 200: Pod("l" * 250, "1"),
}
NETWORKS = {"eth0": "podwire", "net1": "other", "d.eth0": "other"}
KEYS = sorted(AttachmentKey(sandbox, interface) for sandbox in SANDBOXES for interface in NETWORKS)
keys = st.sampled_from(KEYS)


class Kernel(Memory):
    """Knows which namespaces there are: what should lie in another is gone for ever."""

    def __init__(self) -> None:
        super().__init__("linux")
        self.spaces: dict[str, Space] = {}
        self.made = 0

    def make(self, path: str) -> None:
        self.made += 1
        self.spaces[path] = Space(path, 4, 1000 + self.made)

    def remove(self, path: str) -> None:
        """A namespace takes its links along, and they what lies on them."""
        space = self.spaces.pop(path)
        links = {key: it.index for key, it in self.held.items() if isinstance(it, Link) and it.space == space}
        for key in list(self.held):
            on = getattr(key, "index", 0) or getattr(self.held[key], "index", 0)
            if getattr(key, "space", "") == space or (on in links.values() and not getattr(key, "space", "")):
                del self.held[key]

    def read(self, scope: Scope) -> dict[Any, Any]:
        """A pod's end of a link is seen only by who looks into its namespace."""
        found = super().read(scope)
        for key, it in found.items():
            if isinstance(it, Link) and it.space not in scope.spaces:
                found[key] = replace(it, space="", inner=0, interface="", mac=b"")
        return {key: it for key, it in found.items() if not getattr(key, "space", "") or key.space in scope.spaces}

    def identities(self, _: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        raise AssertionError("rows of this version know their namespaces")

    def check(self, path: str) -> tuple[int, int]:
        """As `check_namespace`."""
        if path not in self.spaces:
            raise CniError(ErrorCode.INVALID_ENVIRONMENT, f"CNI_NETNS: {path} does not exist")
        device, _, inode = self.spaces[path].partition(":")
        return int(device), int(inode)

    def _one(self, key: Any, before: Any, after: Any) -> Outcome:
        space = after.space if isinstance(after, Link) else getattr(key, "space", "")
        if (space or isinstance(after, Link)) and space not in self.spaces.values():
            return Outcome() if after is None else Outcome(error=f"{key}: no such namespace", gone=True)
        return super()._one(key, before, after)


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.config = Config("one", self.directory, boot_id=self.directory / "boot_id")
        self.kernel, self.nftables, self.boots = Kernel(), Memory("nftables"), 0
        self.runner = asyncio.Runner()
        self.given: dict[AttachmentKey, tuple[str, ...]] = {}
        self.network: dict[AttachmentKey, str] = {}
        """Of an attachment; "" where it was lost with the store."""
        self.results: dict[AttachmentKey, Any] = {}
        self.came: dict[AttachmentKey, int] = {}
        """When an attachment came: a number that rises; 0 where that was lost with the store."""
        self.number = 0
        self.spooled: list[AttachmentKey] = []
        self.patches = contextlib.ExitStack()
        for where in (restoring, cni_server):
            self.patches.enter_context(mock.patch.object(where, "check_namespace", self.kernel.check))
        self.boot()
        self.start()

    def teardown(self) -> None:
        self.stop()
        self.runner.close()
        self.patches.close()
        shutil.rmtree(self.directory)

    # --- the agent -----------------------------------------------------------------------------

    def boot(self) -> None:
        self.boots += 1
        self.config.boot_id.write_text(f"boot {self.boots}\n")

    def start(self) -> None:
        self.runner.run(self._start())

    async def _start(self) -> None:
        boot = restoring.boot_of(self.config.boot_id)
        self.store = Store(self.config.database)
        drivers = (self.store, self.kernel, self.nftables)
        local = replace(world.LOCAL, boot=boot)
        self.controller = Controller(Snapshot(local), world.transaction(drivers))
        self.loop = asyncio.create_task(self.controller.run())
        restored = restoring.restored(self.config, self.store, self.kernel, self.nftables, boot)  # type: ignore[arg-type]
        await self.controller.submit(restored)
        await self.controller.submit(Resync(ResyncReason.STARTUP, {world.NODE: world.NODES[0]}))
        await self._caught_up()
        self.cni = cni_server.calls(self.controller, self.config.spool, Leases(self.config.leases))

    async def _killed(self, turns: int) -> None:
        """A start that is killed after so many turns of the event loop."""
        asyncio.create_task(self._start())  # noqa: RUF006 - it is among all tasks
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.store.close()

    def stop(self) -> None:
        self.runner.run(self._stop())

    async def _stop(self) -> None:
        """Also where a start came to nothing: that is what is to be seen, and not a wait for nobody's answer."""
        if not self.loop.done():
            async with asyncio.timeout(60):  # against hanging, never a measure
                await self.controller.submit(Shutdown())
                await self.loop
        self.store.close()

    def ask(self, command: str, key: AttachmentKey | None = None, **config: Any) -> CniReply:
        return self.runner.run(self._answered(message(command, key, **config)))

    async def _answered(self, body: bytes) -> CniReply:
        async with asyncio.timeout(60):  # against hanging, never a measure
            reply = await cni_server.answer(self.cni, body)
            await self._caught_up()
            return reply

    async def _caught_up(self) -> None:
        """What follows an event has ended: it goes before whatever else comes."""
        await self.controller.submit(SandboxGone(frozenset()))

    @property
    def attached(self) -> dict[AttachmentKey, tuple[str, ...]]:
        held = self.controller.snapshot.attachments
        return {key: tuple(map(show_address, it.addresses)) for key, it in held.items()}

    def dead(self, key: AttachmentKey) -> bool:
        """That nobody sees its namespace any more."""
        return path_of(key) not in self.kernel.spaces or key not in self.wired

    @property
    def wired(self) -> set[AttachmentKey]:
        """Whose link is there."""
        return {key for key in self.given if LinkKey(interface_name(key)) in self.kernel.held}

    def forget(self, keys: Any) -> None:
        for key in list(keys):
            self.given.pop(key, None)
            self.came.pop(key, None)

    def noticed(self) -> None:
        """Of the dead the agent may have released any."""
        self.forget(key for key in self.given if self.dead(key) and key not in self.attached)

    def replayed(self) -> None:
        self.forget(self.spooled)
        self.spooled.clear()

    # --- what happens --------------------------------------------------------------------------

    @rule(key=keys)
    def add(self, key: AttachmentKey) -> None:
        if path_of(key) not in self.kernel.spaces:
            for other in [it for it in self.given if it.sandbox == key.sandbox and it != key]:
                self.delete(other)  # as runtimes do before they make a namespace anew
            self.kernel.make(path_of(key))
        before = self.attached
        self.replayed()
        reply = self.ask("ADD", key)
        self.noticed()
        former = [other for other in self.given if self.comes_after(key, other)]
        if reply.exit_code:
            assert json.loads(reply.stdout)["code"] == ErrorCode.TRY_AGAIN_LATER, reply.stdout
            assert len(self.attached) == CAPACITY
            assert key not in self.given
            assert not former
            assert not [other for other in self.given if self.dead(other)]
            return
        self.forget(former)
        result = json.loads(reply.stdout)
        addresses = tuple(ip["address"].partition("/")[0] for ip in result["ips"])
        if key in self.given:
            assert addresses == self.given[key] == before[key]
        else:
            self.number += 1
            self.came[key] = self.number
        self.given[key], self.network[key] = addresses, NETWORKS[key.interface]
        self.results[key] = result

    def comes_after(self, key: AttachmentKey, other: AttachmentKey) -> bool:
        """Whether `other` has to go for an ADD of `key`."""
        new, old = SANDBOXES[key.sandbox], SANDBOXES[other.sandbox]
        earlier = key not in self.came or self.came[other] < self.came[key]
        return (
            new.name == old.name
            and key.interface == other.interface
            and key.sandbox != other.sandbox
            and earlier
            and (self.uid_of(key, new) in ("", self.uid_of(other, old)) or self.uid_of(other, old) == "")
        )

    def uid_of(self, key: AttachmentKey, pod: Pod) -> str:
        """As far as the agent knows it."""
        held = self.controller.snapshot.attachments.get(key)
        return pod.uid if held is None else held.uid

    @rule(key=keys)
    def delete(self, key: AttachmentKey) -> None:
        for _ in range(2):
            assert self.ask("DEL", key).exit_code == 0
        self.forget((key,))

    @rule(key=keys)
    def check(self, key: AttachmentKey) -> None:
        reply = self.ask("CHECK", key, prevResult=self.results.get(key, {}))
        code = json.loads(reply.stdout)["code"] if reply.exit_code else 0
        if path_of(key) not in self.kernel.spaces:
            assert code == ErrorCode.INVALID_ENVIRONMENT
        elif key not in self.given:
            assert code == ErrorCode.UNKNOWN_CONTAINER
        elif self.seen(key) and self.results[key]["ips"][0]["address"] == f"{self.given[key][0]}/32":
            assert code == (ErrorCode.DIFFERS if self.dead(key) else 0), reply.stdout

    def seen(self, key: AttachmentKey) -> bool:
        return bool(self.controller.snapshot.attachments[key].netns)

    @rule(network=st.sampled_from(("podwire", "other", "third")), valid=st.none() | st.sets(keys))
    def collect(self, network: str, valid: set[AttachmentKey] | None) -> None:
        listed = [{"containerID": key.sandbox, "ifname": key.interface} for key in sorted(valid or ())]
        self.replayed()
        config = {"cni.dev/valid-attachments": listed if valid is not None else None}
        assert self.ask("GC", name=network, **config).exit_code == 0
        self.forget(key for key in self.given if self.network[key] == network and key not in (valid or ()))
        self.settled()

    @rule(network=st.sampled_from(("podwire", "other")))
    def collect_without_a_list(self, network: str) -> None:
        assert self.ask("GC", name=network).exit_code == 0

    @precondition(lambda self: self.kernel.spaces)
    @rule(data=st.data())
    def lose_a_namespace(self, data: st.DataObject) -> None:
        self.kernel.remove(data.draw(st.sampled_from(sorted(self.kernel.spaces))))

    @rule(gone=st.lists(keys, max_size=2))
    def restart(self, gone: list[AttachmentKey]) -> None:
        """Killed, and DELs come while it is away."""
        self.stop()
        self.config.spool.mkdir(exist_ok=True)
        for key in gone:
            self.spooled.append(key)
            (self.config.spool / f"{len(self.spooled):020}-1.del").write_bytes(message("DEL", key))
        self.start()
        self.settled()

    @rule(data=st.data())
    def reboot(self, data: st.DataObject) -> None:
        """Nothing is left of what the kernel had; some namespaces the runtime has made again before the agent comes."""
        self.stop()
        left = data.draw(st.sets(st.sampled_from(sorted(self.kernel.spaces) or ["none"])))
        for path in list(self.kernel.spaces):
            self.kernel.remove(path)
        self.kernel.held, self.nftables.held = {}, {}
        for path in sorted(left - {"none"}):
            self.kernel.make(path)
        self.forget(key for key in self.given if path_of(key) not in left or not self.seen(key))
        self.boot()
        self.start()
        assert self.attached == self.given

    @rule(damaged=st.booleans(), killed=st.lists(st.integers(0, 12), max_size=2))
    def lose_the_store(self, damaged: bool, killed: list[int]) -> None:
        """`killed`: starts that come to nothing before one is left alone."""
        self.stop()
        living = self.wired
        for part in self.directory.glob("podwire.db*"):
            part.unlink()
        if damaged:
            self.config.database.write_bytes(b"\xff" * 5000)
        for turns in killed:
            self.runner.run(self._killed(turns))
        self.start()
        self.forget(set(self.given) - living)
        self.came = dict.fromkeys(self.given, 0)
        self.network = dict.fromkeys(self.network, "")
        assert self.attached == self.given

    def settled(self) -> None:
        """All has been looked at: the dead are noticed."""
        self.forget(key for key in self.given if self.dead(key))

    # --- what holds always ---------------------------------------------------------------------

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        self.noticed()
        assert self.attached == self.given

    @invariant()
    def nothing_is_given_twice_and_nothing_leaks(self) -> None:
        now = self.controller.snapshot
        held = [item for it in now.attachments.values() for item in (*it.addresses, it.index)]
        assert len(held) == len(set(held)) == len(now.ledger)
        rows = {
            key: it for key, it in self.store.read(Scope(None, frozenset())).items() if isinstance(key, AttachmentKey)
        }
        assert rows == dict(now.attachments)
        assert all(it.confirmed for it in rows.values())
        routes = {
            key.destination.first: value.index
            for key, value in self.kernel.held.items()
            if isinstance(key, RouteKey) and not key.space and isinstance(value, Route) and value.index > 1
        }
        assert routes.items() <= {address: it.index for it in rows.values() for address in it.addresses}.items()
        links = {key.name for key in self.kernel.held if isinstance(key, LinkKey)}
        assert links == {interface_name(key) for key in self.given if not self.dead(key)}


def path_of(key: AttachmentKey) -> str:
    return f"/run/netns/{key.sandbox}"


def message(command: str, key: AttachmentKey | None = None, **config: Any) -> bytes:
    environment = [f"CNI_COMMAND={command}"]
    if key is not None:
        pod = SANDBOXES[key.sandbox]
        uid = f";K8S_POD_UID={pod.uid}" if pod.uid else ""
        environment += [
            f"CNI_CONTAINERID={key.sandbox}",
            f"CNI_IFNAME={key.interface}",
            f"CNI_NETNS={path_of(key)}",
            f"CNI_ARGS=K8S_POD_NAMESPACE=n;K8S_POD_NAME={pod.name}{uid}",
        ]
        config = {"name": NETWORKS[key.interface]} | config
    stdin = json.dumps({"cniVersion": "1.1.0", **config}).encode()
    return CniRequest(environment=environment, stdin=stdin).SerializeToString()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_attachments_and_store_are_as_a_simple_model_says() -> None:
    run_state_machine_as_test(Node, settings=settings(stateful_step_count=30, deadline=None))
