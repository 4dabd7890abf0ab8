"""Killed between the commit that takes a backend away and the looks at its flows: the next start deletes them, though
the frontend went with it, or while no agent was there.

Invariants: `made` entries are as connection tracking keeps those of a client that goes on sending; each is made after
the commit, as late as may be, so that only a look that comes after it deletes it.
"""

import os
import subprocess
import sys

import pytest

from podwire.dataplane.conntrack import messages as m
from podwire.dataplane.nftables import departed
from podwire.dataplane.nftables.steady import generation
from podwire.model.addresses import FAMILIES, parse_address, show_host_port
from podwire.model.network import Backend, Frontend
from podwire.model.objects import Node, Protocol
from tests.kernel.rig import NODE, NODE_OBJECT, Rig, sh
from tests.kernel.test_flows import (
    EXTERNAL_IPS,
    KEY,
    NODE_IPS,
    NODE_PORT,
    OUTSIDE_OF_RANGES,
    SLICE,
    A,
    B,
    Objects,
    backends,
    change,
    made,
    open_netlink,
    web,
)
from tests.kernel.test_flows import at_work as at_work

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
NODE_ALONE: Objects = {NODE: Node(NODE_OBJECT.pod_cidrs, tuple(map(parse_address, NODE_IPS)))}
PLACES = [(EXTERNAL_IPS[0], 80), (EXTERNAL_IPS[1], 80), (NODE_IPS[0], NODE_PORT), (OUTSIDE_OF_RANGES[0], 80)]
KINDS = (Protocol.UDP, Protocol.SCTP)
FRONTENDS = {Frontend(parse_address(to), kind, port) for to, port in PLACES for kind in KINDS}

VICTIM = """
import asyncio, os, sys, traceback
from pathlib import Path
from tests.kernel import test_killed_in_between as test
from tests.kernel.rig import Rig
from tests.kernel.test_flows import KEY, SLICE, A, B, backends, service
async def main():
    _, directory, what, where = sys.argv
    rig = Rig(Path(directory), None)
    before = {KEY: service(cluster_ips=test.OUTSIDE_OF_RANGES), SLICE: backends(*A)}
    assert (await rig.start({**test.NODE_ALONE, **before})).error is None
    await rig.running.flows.until_quiet()
    agent, late = rig.running, []
    def die(*_):
        try:
            test.make_late_entries() if where != "before the forgetting" else None
            os._exit(9)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    def nth(count, call):
        return lambda *a: die() if late.append(1) or len(late) == count else call(*a)
    changes = {
        "the Service goes": [{KEY: None, SLICE: None}],
        "its last backend goes": [{SLICE: backends()}],
        "its backends go one by one, then it": [{SLICE: backends(*B)}, {SLICE: backends()}, {KEY: None}],
        "it moves": [{SLICE: backends(*B)}],
        "it moves, then it goes": [{SLICE: backends(*B)}, {KEY: None}],
        "its ports change": [{KEY: service(81, test.OUTSIDE_OF_RANGES)}, {KEY: None}],
    }[what]
    if where == "in the first look":
        agent.conntrack.read = die
    if where == "between the looks":
        agent.conntrack.read = nth(2, agent.conntrack.read)
    if where == "before the forgetting":
        agent.nftables.departed.forget = die
    for change in changes[:-1]:
        assert (await rig.change(*change.items())).error is None
    if where == "after the commit":
        agent.controller.followers[:] = [die]
    assert (await rig.change(*changes[-1].items())).error is None
    await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""


def end_of_victim(*arguments: str) -> int:
    """The exit status of an agent that dies there."""
    return subprocess.run([sys.executable, "-c", VICTIM, *arguments], cwd=ROOT, timeout=60).returncode


def make_late_entries() -> None:
    for number, (to, port) in enumerate(PLACES):
        there = parse_address(to)
        answers = A[":" in to]
        for kind in KINDS:
            made(show_host_port(there, port), show_host_port(parse_address(answers), 8080), 41000 + number, kind)


def tracked() -> list[tuple[Frontend, Backend]]:
    """The flows to what were frontends."""
    with open_netlink() as tracking:
        found = [it for f in FAMILIES for it in m.entries(f, tracking.dump(m.GET, m.request_all(f)))]
    return [(it.flow.to, it.flow.answers) for it in found if it.flow.to in FRONTENDS]


def noted() -> dict[Frontend, frozenset[Backend]]:
    with open_netlink() as there:
        return departed.read(there, FAMILIES[0]) | departed.read(there, FAMILIES[1])


WHAT = (
    "the Service goes",
    "its last backend goes",
    "its backends go one by one, then it",
    "it moves",
    "it moves, then it goes",
    "its ports change",
)
WHERE = ("after the commit", "in the first look", "between the looks", "before the forgetting")


@pytest.mark.parametrize(
    ("what", "where"),
    [
        *((it, "after the commit") for it in WHAT),
        *((it, where) for it in ("the Service goes", "it moves") for where in WHERE[1:]),
        ("it moves, then it goes", "between the looks"),
    ],
)
async def test_the_next_start_deletes_what_a_killed_agent_left(at_work: Rig, what: str, where: str) -> None:
    """By then there is no Service at all: no frontend tells that these addresses ever were Services'. Where it only
    moved, it has gone while no agent was there."""
    await at_work.stop()
    assert end_of_victim(str(at_work.directory), what, where) == 9
    assert len(tracked()) == (0 if where == "before the forgetting" else 2 * len(PLACES))
    assert noted()
    made("192.0.2.1:30080", "172.17.0.2:53", 41099)  # a container has taken its place meanwhile
    assert (await at_work.start(NODE_ALONE)).error is None
    await at_work.running.flows.until_quiet()
    (other,) = tracked()
    assert str(other[1]) == "172.17.0.2:53"
    assert noted() == {}
    assert await at_work.drift() == []


async def test_a_restart_finds_no_note_where_all_was_looked_at_and_writes_nothing(at_work: Rig) -> None:
    await change(at_work, {**web(*A, *B)})
    await change(at_work, {KEY: None, SLICE: None})
    assert noted() == {}
    assert "elements" not in sh("nft", "list", "set", "ip", "podwire", "departed")
    await at_work.stop()
    with open_netlink() as there:
        before = generation(there)
    assert (await at_work.start(NODE_ALONE)).error is None
    await at_work.running.flows.until_quiet()
    assert at_work.writes() == {"store": 0, "linux": 0, "nftables": 0}
    assert at_work.running.nftables.generation() == before


async def test_what_comes_and_what_is_no_datagram_s_costs_no_note(at_work: Rig) -> None:
    await at_work.nobody_forgets()
    await at_work.change(*web(*A).items())
    await at_work.change((SLICE, backends(*A, *B)))
    assert noted() == {}
    await at_work.change((SLICE, backends(*A)))
    assert {it.protocol for it in noted()} == set(KINDS)
    gone = {Backend(parse_address(it), 8080) for it in B}
    assert {backend for them in noted().values() for backend in them} == gone
