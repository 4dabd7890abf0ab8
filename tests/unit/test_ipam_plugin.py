"""IPAM plugins as processes, good ones and hostile ones: none is waited for beyond its deadline, and none is left."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from podwire.cni import shim
from podwire.cni.delegation import Delegation
from podwire.cni.errors import CniError, ErrorCode
from podwire.sources import cni_ipam
from podwire.sources.ipam_plugin import MOST_SAID, ask

Make = Callable[[str], Delegation]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A plugin by its shell script; `$P` is a Python, `$D` a directory of its own."""

    def made(script: str) -> Delegation:
        path = tmp_path / "some"
        path.write_text(f"#!/bin/sh\nP={sys.executable}\nD={tmp_path}\n{script}\n")
        path.chmod(0o755)
        return Delegation("some", (f"CNI_PATH=/nowhere:{tmp_path}", "CNI_COMMAND=ADD", "CNI_ARGS=a=b"), b'{"name":"n"}')

    return made


def children() -> str:
    return Path("/proc/thread-self/children").read_text()


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No process, nor any file."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before
    assert children() == ""


async def test_it_is_told_what_we_were_and_its_answer_is_handed_on(make: Make) -> None:
    told = make('env | grep ^CNI_ | sort; cat; echo said >&2; test -n "$PATH"')
    said = (await ask(told, "CHECK", 30, CNI_NETNS="")).decode()
    assert (
        said
        == f'CNI_ARGS=a=b\nCNI_COMMAND=CHECK\nCNI_NETNS=\nCNI_PATH=/nowhere:{Path(told.directories[1])}\n{{"name":"n"}}'
    )


async def test_sixteen_megabytes_of_configuration_arrive_whole(make: Make) -> None:
    told = make("wc -c")
    assert int(await ask(told, "ADD", 60, stdin=bytes(16 << 20))) == 16 << 20


async def test_an_answer_as_long_as_it_may_be_arrives_whole(make: Make) -> None:
    assert len(await ask(make(f"head -c {MOST_SAID} /dev/zero"), "ADD", 60)) == MOST_SAID


HOSTILE = {
    "hangs": ("exec sleep 1000", 11, "ADD did not end within 0.3 s, and was killed"),
    "hangs and minds no signal": ("trap '' TERM INT HUP; while :; do sleep 1000; done", 11, "did not end within 0.3 s"),
    "hangs with children": ("sleep 1000 & sleep 1000 & wait", 11, "did not end within 0.3 s"),
    "talks without end": ("exec yes", 6, "it printed more than 1 MiB, and was killed"),
    "talks beside it without end": ("exec yes >&2", 6, "it printed more than 1 MiB, and was killed"),
    "says too much at once": (f"head -c {MOST_SAID + 1} /dev/zero", 6, "it printed more than 1 MiB"),
    "says nothing": ("exit 1", 999, "ended with exit code 1 and printed nothing"),
    "is killed": ("kill -9 $$", 999, "was ended by signal 9 and printed nothing"),
    "prints garbage": ("echo garbage; exit 3", 999, "ended with exit code 3 and printed 'garbage"),
    "tells an error": ("""echo '{"code":7,"msg":"bad subnet"}'; exit 1""", 7, "IPAM plugin some: bad subnet"),
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_a_hostile_plugin_costs_its_caller_an_error_and_nobody_else_anything(make: Make, how: str) -> None:
    script, code, says = HOSTILE[how]
    seconds = 0.3 if code == 11 else 60
    begun = asyncio.get_running_loop().time()
    with pytest.raises(CniError) as raised:
        await ask(make(script), "ADD", seconds)
    assert raised.value.code == code
    assert says in raised.value.text
    assert asyncio.get_running_loop().time() - begun < 30


def ended(pid: int) -> bool:
    """Whether a process is no more, or only waits for whoever looks after it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_the_whole_group_goes(make: Make, tmp_path: Path) -> None:
    told = make("sleep 1000 & echo $! >$D/child.new; mv $D/child.new $D/child; wait")
    asking = asyncio.create_task(ask(told, "ADD", 60))
    while not (tmp_path / "child").exists():  # noqa: ASYNC110 - another process's doing
        await asyncio.sleep(0.01)
    child = int((tmp_path / "child").read_text())
    gone = os.pidfd_open(child)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_reader(gone, over.set_result, None)
    async with asyncio.timeout(30):
        await over
    asyncio.get_running_loop().remove_reader(gone)
    os.close(gone)
    assert ended(child)


async def test_who_keeps_its_output_open_is_not_waited_for(make: Make, tmp_path: Path) -> None:
    """As a daemon that a plugin has started: what the plugin itself has said counts."""
    told = make("echo answer; sleep 1000 & echo $! >$D/child")
    assert await ask(told, "ADD", 30) == b"answer\n"
    child = int((tmp_path / "child").read_text())
    assert not ended(child)
    os.kill(child, signal.SIGKILL)


async def test_the_loop_goes_on_while_plugins_hang(make: Make) -> None:
    told = make("exec sleep 1000")
    asking = [asyncio.create_task(ask(told, "ADD", 2)) for _ in range(40)]
    turns = 0
    while not all(task.done() for task in asking):
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 20
    assert all(isinstance(task.exception(), CniError) for task in asking)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "CNI_PATH: expected a directory with the IPAM plugin some, as podwire's agent sees it; it is empty"),
        ("/nowhere", "there is none in /nowhere"),
        ("relative", "there is none in relative"),
    ],
)
async def test_a_plugin_that_is_nowhere(path: str, says: str) -> None:
    with pytest.raises(CniError) as raised:
        await ask(Delegation("some", (f"CNI_PATH={path}",)), "ADD", 1)
    assert (raised.value.code, says in raised.value.text) == (ErrorCode.INVALID_ENVIRONMENT, True)


async def test_what_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "some").write_bytes(b"\x7fELF")
    (tmp_path / "some").chmod(0o755)
    with pytest.raises(CniError, match="can't be executed: Exec format error") as raised:
        await ask(Delegation("some", (f"CNI_PATH={tmp_path}",)), "ADD", 1)
    assert raised.value.code == ErrorCode.IO_FAILURE
    (tmp_path / "some").chmod(0o644)
    with pytest.raises(CniError, match="there is none in"):
        await ask(Delegation("some", (f"CNI_PATH={tmp_path}",)), "ADD", 1)


def test_its_deadlines_fit_into_those_of_our_plugin() -> None:
    it = cni_ipam
    assert it.LATER_SECONDS + 2 * it.UNDO_SECONDS + it.ADD_SECONDS < shim.SECONDS_OF_OTHERS
    assert shim.SECONDS[b"DEL"] > it.DEL_SECONDS
    assert shim.SECONDS[b"STATUS"] > it.STATUS_SECONDS
    assert max(it.CHECK_SECONDS, it.GC_SECONDS) < shim.SECONDS_OF_OTHERS
