"""Killed and started again: nothing is lost, nothing is written, nothing leaks."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from podwire.agent import Agent
from podwire.config import Config
from podwire.preflight import CannotStart
from tests.kernel.rig import SERVICE_CIDRS, Rig, ask, dump, service, sh

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
OBJECTS = service("web", 10, ("10.1.1.2", "10.1.1.3", "fd01::2", "fd01::3"))
QUIET = ("STALE", "REACHABLE", "DELAY", "PROBE")
"""Neighbour states that the kernel changes by itself."""


def monitored(*what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(["ip", "monitor", *what], stdout=subprocess.PIPE, text=True)


def run_script(text: str, *arguments: str) -> int:
    """The exit status of a Python program in this namespace."""
    return subprocess.run([sys.executable, "-c", text, *arguments], cwd=ROOT).returncode


async def test_a_restart_of_an_unchanged_node_writes_nothing(rig: Rig) -> None:
    await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
    generation, before = rig.running.nftables.generation(), dump()
    await rig.stop()
    monitor = monitored("link", "address", "route", "neigh")
    result = await rig.start(OBJECTS)
    assert result.error is None
    assert rig.writes() == {"store": 0, "linux": 0, "nftables": 0}
    assert (rig.running.nftables.generation(), dump()) == (generation, before)
    assert await rig.drift() == []
    monitor.terminate()
    told = [line for line in monitor.communicate()[0].splitlines() if not any(word in line for word in QUIET)]
    assert told == []


CRASH = """
import asyncio, os, sys
from pathlib import Path
from tests.kernel.rig import Rig
async def main():
    rig = Rig(Path(sys.argv[1]), None)
    await rig.start()
    agent, where = rig.running, sys.argv[2]
    def die(*_): os._exit(9)
    if where == "after the pending row": agent.linux.apply = die
    if where == "after the pod's wiring": agent.nftables.apply = die
    if where == "before the confirmation":
        apply = agent.store.apply
        agent.store.apply = lambda d: die() if any(c.before is not None for c in d.values()) else apply(d)
    if where == "inside the wiring":
        driver = agent.linux
        send, calls = driver._send, []
        def second(*a):
            calls.append(1)
            return die() if len(calls) == 2 else send(*a)
        driver._send = second
    await rig.add("x", netns=sys.argv[3])
    os._exit(9)    # confirmed, and killed before the answer
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "where",
    [
        "after the pending row",
        "inside the wiring",
        "after the pod's wiring",
        "before the confirmation",
        "before the answer",
    ],
)
async def test_killed_in_an_add_nothing_leaks_and_the_repeated_one_works(rig: Rig, where: str) -> None:
    await rig.start_with_pods("a")
    clean = dump()
    await rig.stop()
    netns = rig.space("x").path
    died = run_script(CRASH, str(rig.directory), where, netns)
    assert died == 9
    assert (await rig.start()).error is None
    rig.running.linux.collect()
    assert await rig.drift() == []
    if where != "before the answer":  # then it is confirmed, and only a DEL may remove it
        assert dump() == clean
        assert rig.rows() == 1
    assert (await rig.add("x")).error is None
    held = [a for it in rig.running.controller.snapshot.attachments.values() for a in it.addresses]
    assert len(held) == len(set(held)) == 4
    assert (await rig.delete("x")).error is None
    rig.running.linux.collect()
    assert dump() == clean
    assert rig.rows() == 1


async def test_traffic_goes_on_without_an_agent(rig: Rig) -> None:
    await rig.start_with_pods("a", "b", "c", objects=OBJECTS)
    lost: list[str] = []
    halfway, over = threading.Event(), threading.Event()

    def client() -> None:
        for number in range(1000):
            seen = ask(rig.pods["c"], ("10.96.0.10", "fd00:96::a")[number % 2])
            if seen[0] not in "ab":
                lost.append(seen)
            if number == 300:
                halfway.set()
        over.set()

    thread = threading.Thread(target=client)
    thread.start()
    halfway.wait()
    await rig.stop()
    assert (await rig.start(OBJECTS)).error is None
    thread.join()
    assert lost == []
    assert rig.writes() == {"store": 0, "linux": 0, "nftables": 0}
    assert sh("ip", "route", "show", "proto", "177")


def _removed(database: Path) -> None:
    for part in database.parent.glob("podwire.db*"):
        part.unlink()


def _overwritten(database: Path) -> None:
    database.write_bytes(b"\x00\xff" * 20_000)


@pytest.mark.parametrize("hand", [_removed, _overwritten], ids=lambda hand: hand.__name__[1:])
async def test_a_lost_store_is_made_again_from_the_kernel(rig: Rig, hand: Callable[[Path], None]) -> None:
    """Nothing that lives is cut, nothing in use is given again, and a DEL finds its pod."""
    await rig.start_with_pods("a", "b", objects=OBJECTS)
    held = {key: it.addresses for key, it in rig.running.controller.snapshot.attachments.items()}
    await rig.stop()
    hand(rig.directory / "podwire.db")
    assert (await rig.start(OBJECTS)).error is None
    aside = rig.directory / "podwire.db.damaged-1"
    assert aside.exists() == (hand is _overwritten)
    assert any(str(aside) in error for error in rig.running.source_errors) == aside.exists()
    assert {key: it.addresses for key, it in rig.running.controller.snapshot.attachments.items()} == held
    assert rig.rows() == 2
    assert ask(rig.pods["b"], "10.96.0.10")[0] in "ab"
    assert (await rig.add("x")).error is None
    given = [a for it in rig.running.controller.snapshot.attachments.values() for a in it.addresses]
    assert len(given) == len(set(given)) == 6
    assert await rig.drift() == []
    for pod in "abx":
        assert (await rig.delete(pod)).error is None
    rig.running.linux.collect()
    assert rig.rows() == 0
    assert "10.1.1." not in sh("ip", "route", "show", "scope", "link", "root", "10.1.1.0/24")
    assert await rig.drift() == []


async def test_the_pods_of_another_node_are_left_alone(rig: Rig) -> None:
    """A wrong node_name would give out another node's addresses a second time; without pods it is nobody's harm."""
    await rig.start_with_pods("a")
    await rig.stop()
    other = Agent(Config("two", rig.directory, service_cidrs=SERVICE_CIDRS, mtu=1500))
    with pytest.raises(CannotStart, match="holds 1 pods of node one, and node_name is two: set node_name back"):
        other.restore()
    other.close()
    assert (await rig.start()).error is None
    assert (await rig.delete("a")).error is None
    await rig.stop()
    other = Agent(Config("two", rig.directory, service_cidrs=SERVICE_CIDRS, mtu=1500))
    other.restore()
    other.close()
