"""Leases against a plugin that remembers, whatever it does, whoever is killed, and whatever comes at the same time.

The model is one sentence: once all is quiet, the plugin holds what pods have and nothing else, and so do the files. And
at no time has it got back what a pod has.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from podwire.cni.delegation import Delegation
from podwire.cni.errors import CniError, ErrorCode
from podwire.controller.events import AddPod, SandboxGone
from podwire.model.objects import AttachmentKey
from podwire.sources import cni_ipam, cni_server
from podwire.sources.ipam_leases import Leases
from tests.unit.test_cni_ipam import CONFIG, DELEGATED, Told, until
from tests.unit.test_cni_server import message

SANDBOXES = ("a", "b", "c")
sandboxes = st.sampled_from(SANDBOXES)
GOOD, REFUSES, GIVES_AND_FAILS, GARBAGE, HANGS, GIVES_AND_HANGS = "good", "refuses", "fails", "garbage", "hangs", "late"
adds = st.sampled_from((GOOD, GOOD, REFUSES, GIVES_AND_FAILS, GARBAGE, HANGS, GIVES_AND_HANGS))
dels = st.sampled_from((GOOD, GOOD, REFUSES, GIVES_AND_FAILS))


class Plugin:
    """`holds`: what it has given. `adds` and `dels`: how it answers next; else well. `robbed`: what it was given back
    while a pod had it."""

    def __init__(self, has: Callable[[], set[str]]) -> None:
        self.has, self.robbed = has, set[str]()
        self.holds: set[str] = set()
        self.adds: list[str] = []
        self.dels: list[str] = []

    async def ask(self, told: Delegation, command: str, *_: object, **__: object) -> bytes:
        sandbox = told.variables(command)["CNI_CONTAINERID"]
        modes = {"ADD": self.adds, "DEL": self.dels}[command]
        mode = modes.pop() if modes else GOOD
        if command == "DEL":
            self.robbed |= {sandbox} & self.has()
        await asyncio.sleep(0)
        if mode == HANGS:
            await asyncio.get_running_loop().create_future()
        if mode != REFUSES:
            (self.holds.add if command == "ADD" else self.holds.discard)(sandbox)
        if mode == GIVES_AND_HANGS:
            await asyncio.get_running_loop().create_future()
        if mode in (REFUSES, GIVES_AND_FAILS):
            raise CniError(ErrorCode.IO_FAILURE, f"{command} of {sandbox}: no luck")
        if mode == GARBAGE:
            return b"garbage"
        return json.dumps({"ips": [{"address": f"10.9.0.{1 + SANDBOXES.index(sandbox)}/24"}]}).encode()


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.plugin, self.controller = Plugin(self.has), Told()
        self.hanging: dict[str, asyncio.Task[Any]] = {}
        self.patches = contextlib.ExitStack()
        self.patches.enter_context(mock.patch.object(cni_ipam, "ask", self.plugin.ask))
        self.patches.enter_context(mock.patch.object(cni_ipam, "is_there", return_value=True))
        self.patches.enter_context(mock.patch.object(cni_ipam, "AGAIN_SECONDS", (0.001,)))
        spaces = {f"/{name}": (4, number + 1) for number, name in enumerate(SANDBOXES)}
        self.patches.enter_context(mock.patch.object(cni_server, "check_namespace", spaces.__getitem__))
        self.runner.run(self._start())

    def teardown(self) -> None:
        try:
            self.all_is_quiet()
        finally:
            self.runner.close()
            self.patches.close()
            shutil.rmtree(self.directory)

    async def _start(self) -> None:
        self.files = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(self.files)
        self.leases = Leases(self.directory / "leases")
        self.cni = cni_server.calls(self.controller, self.directory / "spool", self.leases)
        self.keeping = asyncio.create_task(cni_ipam.keep_giving_back(self.leases, self.controller))

    async def _call(self, command: str, sandbox: str, config: Any = DELEGATED) -> int:
        body = message(command, config, CNI_CONTAINERID=sandbox, CNI_NETNS=f"/{sandbox}", CNI_ARGS="")
        return int((await cni_server.answer(self.cni, body)).exit_code)

    def has(self) -> set[str]:
        return {key.sandbox for key in self.controller.snapshot.attachments}

    @rule(sandbox=sandboxes, mode=adds, delegated=st.sampled_from((True, True, True, False)), refused=st.booleans())
    def add(self, sandbox: str, mode: str, delegated: bool, refused: bool) -> None:
        if sandbox in self.hanging:
            return
        asked = delegated and sandbox not in self.has()
        self.plugin.adds = [mode] * asked
        self.plugin.dels.clear()  # an ADD that finds the lease of an earlier one fails where that can't be given back
        self.controller.failing = {AddPod: "no space left"} if refused and asked else {}
        work = self._call("ADD", sandbox, DELEGATED if delegated else CONFIG)
        if asked and mode in (HANGS, GIVES_AND_HANGS):
            self.hanging[sandbox] = self.runner.run(self._begun(work))
            return
        code = self.runner.run(work)
        if asked:
            assert (code == 0) == (mode == GOOD and not refused)
        assert (sandbox in self.has()) == (code == 0)
        self.plugin.adds.clear()

    async def _begun(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        await until(lambda: not self.plugin.adds)
        for _ in range(3):
            await asyncio.sleep(0)
        return task

    @rule(sandbox=sandboxes, mode=dels, config=st.sampled_from((DELEGATED, CONFIG)))
    def delete(self, sandbox: str, mode: str, config: Any) -> None:
        if sandbox in self.hanging:
            return
        self.plugin.dels = [mode]
        code = self.runner.run(self._call("DEL", sandbox, config))
        assert code == 0 or mode != GOOD
        assert sandbox not in self.has()

    @rule(sandbox=sandboxes)
    def delete_by_the_spool(self, sandbox: str) -> None:
        if sandbox in self.hanging:
            return
        spool = self.directory / "spool"
        spool.mkdir(exist_ok=True)
        (spool / "1.del").write_bytes(message("DEL", DELEGATED, CNI_CONTAINERID=sandbox))
        self.runner.run(cni_server._replay(self.cni))
        assert sandbox not in self.has()
        assert list(spool.iterdir()) == []

    @rule(sandbox=sandboxes, mode=dels)
    def the_sandbox_goes(self, sandbox: str, mode: str) -> None:
        self.plugin.dels = [mode]
        gone = SandboxGone(frozenset((AttachmentKey(sandbox, "eth0"),)))
        self.runner.run(self._submit(gone))

    async def _submit(self, event: Any) -> None:
        await self.controller.submit(event)

    @rule()
    def the_agent_is_killed(self) -> None:
        """The store knows what was confirmed."""
        self.runner.run(self._kill())
        self.runner.run(self._start())

    @rule(sandbox=sandboxes, command=st.sampled_from(("ADD", "DEL")), turns=st.integers(0, 12))
    def the_agent_is_killed_in_the_middle(self, sandbox: str, command: str, turns: int) -> None:
        if sandbox not in self.hanging:
            self.runner.run(self._begin_and_kill(command, sandbox, turns))
            self.runner.run(self._start())

    async def _begin_and_kill(self, command: str, sandbox: str, turns: int) -> None:
        self.hanging[sandbox] = asyncio.create_task(self._call(command, sandbox))
        for _ in range(turns):
            await asyncio.sleep(0)
        await self._kill()

    async def _kill(self) -> None:
        tasks = (self.keeping, *self.hanging.values())
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self.files.shutdown()  # what a thread was to write is written, or never begun
        self.hanging.clear()

    @rule()
    @precondition(lambda self: not self.hanging)
    def all_is_quiet(self) -> None:
        self.plugin.dels.clear()
        if self.hanging:
            self.the_agent_is_killed()
        self.runner.run(until(lambda: {key.sandbox for key in self.leases.held} <= self.has()))
        files = {path.stem for path in (self.directory / "leases").iterdir()}
        held = {key.sandbox for key, it in self.controller.snapshot.attachments.items() if it.delegated}
        assert self.plugin.holds == held == {key.sandbox for key in self.leases.held}
        assert len(files) == len(list((self.directory / "leases").glob("*.lease"))) == len(held)

    @invariant()
    def nothing_that_a_pod_has_is_given_back(self) -> None:
        delegated = {key.sandbox for key, it in self.controller.snapshot.attachments.items() if it.delegated}
        assert self.plugin.holds >= delegated
        assert self.plugin.robbed == set()


def test_once_all_is_quiet_the_plugin_holds_what_pods_have() -> None:
    run_state_machine_as_test(Node, settings=settings(max_examples=40, stateful_step_count=25, deadline=None))
