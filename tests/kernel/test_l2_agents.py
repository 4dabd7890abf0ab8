"""Layer 2 of whole agents: they agree on who answers, and hand over."""

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from podwire.loadbalancer.election import owner
from podwire.model.addresses import parse_address
from tests.kernel import process
from tests.kernel.l2_agents import ADDRESS, Agents
from tests.kernel.lan import Lan, probing
from tests.kernel.rig import MakeSpace, sh

OWNER = 1 if owner(parse_address(ADDRESS), ("n1", "n2")) == "n1" else 2
OTHER = 3 - OWNER


@pytest.fixture
def agents(make_space: MakeSpace, tmp_path: Path) -> Iterator[Agents]:
    """Two, who hear each other."""
    made = Agents(Lan(make_space), tmp_path)
    yield made
    made.end()


until = partial(process.until, seconds=90.0)


def answering(agents: Agents, number: int) -> bool:
    return any(it.interfaces for it in agents.seen_by(number).addresses)


def agreed(agents: Agents, who: int) -> bool:
    """Both hear each other, and that one alone answers."""
    seen = [agents.seen_by(n) for n in (1, 2)]
    words = {state for each in seen for state in each.nodes.values()}
    owners = {it.owner for each in seen for it in each.addresses}
    return words == {"alive"} and owners == {f"n{who}"} and answering(agents, who) and not answering(agents, 3 - who)


def test_the_agents_agree_without_any_further_event(agents: Agents) -> None:
    until(lambda: agreed(agents, OWNER))
    with probing(agents.lan.client, ADDRESS) as prober:
        prober.until("backend")
        assert agents.owner() == OWNER
    until(lambda: any(it.requests for it in agents.seen_by(OWNER).addresses))


def test_a_killed_agents_address_moves_and_comes_back(agents: Agents) -> None:
    until(lambda: agreed(agents, OWNER))
    agents.running[OWNER].kill()
    agents.running[OWNER].wait()
    until(lambda: answering(agents, OTHER))
    agents.start(OWNER)
    until(lambda: agreed(agents, OWNER))


def test_the_agent_of_a_cordoned_node_hands_over_when_it_ends(agents: Agents) -> None:
    until(lambda: agreed(agents, OWNER))
    agents.cordoned = {OWNER}
    agents.write()
    with probing(agents.lan.client, ADDRESS) as prober:
        prober.until("backend")
        until(lambda: f"KubeStateChange node/n{OWNER}" in agents.events(OWNER))
        agents.running[OWNER].send_signal(signal.SIGTERM)
        until(lambda: answering(agents, OTHER))
        until(lambda: agents.owner() == OTHER)
        prober.until("backend", after=time.monotonic())
    assert agents.running[OWNER].wait(30) == 0


CLOSED = (
    "add table inet w; add chain inet w i { type filter hook input priority 0; }; add rule inet w i udp dport 7948 drop"
)


def test_where_a_firewall_is_between_them_their_objects_decide_and_it_is_told(
    make_space: MakeSpace, tmp_path: Path
) -> None:
    made = Agents(Lan(make_space), tmp_path, first=lambda space: sh("ip", "netns", "exec", space.name, "nft", CLOSED))
    try:
        until(lambda: answering(made, OWNER) and set(made.seen_by(OTHER).nodes.values()) == {"unknown"})
        assert not answering(made, OTHER)
        port = "UDP port 7948 is closed between the nodes, or their agents are older or have another key"
        until(lambda: f"layer 2: never heard of n{OWNER}: {port}" in made.errors(OTHER))
    finally:
        made.end()
