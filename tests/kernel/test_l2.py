"""Layer 2 on a real link: who answers, who takes over, and what a client sees of it."""

import os
import select
import signal
import time
from collections.abc import Iterator

import pytest

from podwire.l2.packets import ARP
from podwire.loadbalancer.election import owner as elected
from podwire.model.addresses import parse_address
from tests.kernel.lan import ECHO, FOURS, SIXES, Lan, Node, probing
from tests.kernel.process import until
from tests.kernel.rig import MakeSpace, ask, sh
from tests.kernel.test_l2_wires import ARP_TYPE, BROADCAST, Tap, asks


@pytest.fixture
def lan(make_space: MakeSpace) -> Iterator[Lan]:
    """Two nodes at work, who know each other."""
    lan = Lan(make_space)
    for _ in range(2):
        lan.node()
    for node in lan.nodes:
        node.start()
    for node in lan.nodes:
        until_alive(node, lan)
    yield lan
    lan.end()


def until_alive(node: Node, lan: Lan) -> None:
    others = {it.name for it in lan.nodes} - {node.name}
    node.until(lambda seen: {name for name, it in seen["liveness"].items() if it == "alive"} == others)


def owners(lan: Lan, *names: str) -> dict[str, str]:
    """By address: who should answer, of these nodes or of all."""
    among = names or tuple(node.name for node in lan.nodes)
    return {address: elected(parse_address(address), among) for address in (*FOURS, *SIXES)}


def by_name(lan: Lan, name: str) -> Node:
    return next(node for node in lan.nodes if node.name == name)


def owned(lan: Lan, name: str, family: str = ".") -> str:
    """An address that is that node's."""
    return next(address for address, owner in owners(lan).items() if owner == name and family in address)


def until_owns_its_own(lan: Lan, *names: str) -> None:
    should = owners(lan, *names)
    for node in lan.nodes:
        if not names or node.name in names:
            node.until(lambda _, n=node: n.owns() == {it for it, name in should.items() if name == n.name})


def test_a_client_finds_the_chosen_node_of_each_address(lan: Lan) -> None:
    until_owns_its_own(lan)
    for address, name in owners(lan).items():
        assert ask(lan.client, address, ECHO).split()[0] == name
        assert lan.neighbour(address) == by_name(lan, name).mac
    for node in lan.nodes:
        node.until(lambda seen: min(seen["requests"].values()) >= 1)
    assert all(it["also"] == "" for node in lan.nodes for it in node.seen["answers"].values())


def test_each_request_has_one_answer(lan: Lan) -> None:
    """Also while an agent comes back, but for the moment in which it takes its own."""
    until_owns_its_own(lan)
    tap = Tap(lan.client, of=lambda _: True)
    try:
        lan.nodes[0].kill()
        until_owns_its_own(lan, "n2")
        lan.nodes[0].start()
        until_owns_its_own(lan)
        while tap.heard(1.5):
            pass
        for address in FOURS:
            tap.send(BROADCAST, ARP_TYPE, asks(target=parse_address(address)))
            (it,) = tap.heard(1.0, 2)
            assert isinstance(it, ARP)
            assert it.mac.hex(":") == by_name(lan, owners(lan)[address]).mac
    finally:
        tap.close()


@pytest.mark.parametrize("family", [".", ":"])
def test_when_an_agent_is_killed_the_other_node_answers(lan: Lan, family: str) -> None:
    until_owns_its_own(lan)
    address = owned(lan, "n1", family)
    with probing(lan.client, address) as prober:
        prober.until("n1")
        lan.nodes[0].kill()
        killed = time.monotonic()
        prober.until("n2")
        until_owns_its_own(lan, "n2")
        # The node itself lives on, and answers whoever still sends there: nothing is lost.
        assert {name for at, name in prober.answers if at > killed} == {"n1", "n2"}
        lan.nodes[0].start()
        until_owns_its_own(lan)
        back = time.monotonic()
        prober.until("n1", after=back)
    assert prober.lost <= 2, "but for what was on its way at the end"


@pytest.mark.parametrize("family", [".", ":"])
def test_when_a_node_is_cut_off_the_other_answers_and_it_takes_its_own_back(lan: Lan, family: str) -> None:
    until_owns_its_own(lan)
    address = owned(lan, "n1", family)
    with probing(lan.client, address) as prober:
        prober.until("n1")
        sh("ip", "-n", lan.bridge.name, "link", "set", lan.nodes[0].port, "down")
        prober.until("n2")
        lan.nodes[0].until(lambda _: not lan.nodes[0].owns())  # it has no link to answer on
        sh("ip", "-n", lan.bridge.name, "link", "set", lan.nodes[0].port, "up")
        back = time.monotonic()
        prober.until("n1", after=back)
        until_owns_its_own(lan)


def test_who_is_heard_and_hears_nobody_is_told_by_the_others(lan: Lan) -> None:
    """A firewall on a node: it takes the others for dead, and answers for all beside them."""
    until_owns_its_own(lan)
    one, other = lan.nodes
    inside = ("ip", "netns", "exec", one.space.name, "nft")
    chain = "chain input { type filter hook input priority 0; meta l4proto udp drop; }"
    sh(*inside, f"table inet closed {{ {chain}; }}")
    words = f"node {one.name}: is heard and does not hear this one"
    other.until(lambda seen: any(it.startswith(words) for it in seen["troubles"]))
    assert not one.newest()["troubles"]
    sh(*inside, "delete table inet closed")
    other.until(lambda seen: not seen["troubles"])
    until_owns_its_own(lan)


@pytest.mark.parametrize("family", [".", ":"])
def test_who_was_cut_off_without_knowing_it_leaves_nothing_behind(lan: Lan, family: str) -> None:
    """It claims all addresses once it is back, until it hears of the others; they claim their own again."""
    until_owns_its_own(lan)
    address, port = owned(lan, "n2", family), lan.nodes[0].port
    with probing(lan.client, address) as prober:
        prober.until("n2")
        sh("ip", "-n", lan.bridge.name, "link", "set", port, "nomaster")
        until_owns_its_own(lan, "n1")
        until_owns_its_own(lan, "n2")
        sh("ip", "-n", lan.bridge.name, "link", "set", port, "master", "lan0")
        until_owns_its_own(lan)
        prober.until("n2", after=time.monotonic())
        until(lambda: lan.neighbour(address) == lan.nodes[1].mac)


def test_an_interface_that_comes_back_claims_nothing_that_is_not_its_own(lan: Lan) -> None:
    until_owns_its_own(lan)
    address = owned(lan, "n2")
    with probing(lan.client, address) as prober:
        prober.until("n2")
        for state in ("down", "up"):
            sh("ip", "-n", lan.bridge.name, "link", "set", lan.nodes[0].port, state)
            until_owns_its_own(lan, "n2") if state == "down" else until_owns_its_own(lan)
        prober.until("n2", after=time.monotonic())
    assert {name for _, name in prober.answers} == {"n2"}
    assert lan.nodes[1].newest()["answers"][address]["also"] == ""


def test_an_address_that_is_another_nodes_does_not_move(lan: Lan) -> None:
    until_owns_its_own(lan)
    address = owned(lan, "n2")
    with probing(lan.client, address) as prober:
        prober.until("n2")
        lan.nodes[0].kill()
        until_owns_its_own(lan, "n2")
        lan.nodes[0].start()
        until_owns_its_own(lan)
    assert {name for _, name in prober.answers} == {"n2"}
    assert prober.lost <= 2


def test_who_leaves_hands_over_at_once_and_without_loss(lan: Lan) -> None:
    until_owns_its_own(lan)
    address = owned(lan, "n1")
    with probing(lan.client, address, 0.005) as prober:
        prober.until("n1")
        lan.nodes[0].tell(leave=True)
        lan.nodes[0].program.wait(10)
        gone = time.monotonic()
        prober.until("n2")
        prober.until("n2", after=gone)
    assert lan.nodes[1].newest()["deaths"] in ([], ["n1"])
    assert prober.lost <= 2


def test_who_is_not_ready_gets_nothing(lan: Lan) -> None:
    until_owns_its_own(lan)
    lan.nodes[0].tell(ready=False)
    until_owns_its_own(lan, "n2")
    assert lan.nodes[1].seen["liveness"] == {"n1": "unready"}
    lan.nodes[0].until(lambda _: not lan.nodes[0].owns())
    lan.nodes[0].tell(ready=True)
    until_owns_its_own(lan)


def test_an_agent_that_is_halted_loses_its_addresses_and_gets_them_back(lan: Lan) -> None:
    """Its layer-2 process lives, but nobody tells it what to answer for."""
    until_owns_its_own(lan)
    lan.nodes[0].kill(signal.SIGSTOP)
    until_owns_its_own(lan, "n2")
    assert lan.nodes[1].seen["liveness"] == {"n1": "unready"}
    lan.forget()
    assert ask(lan.client, owned(lan, "n1"), ECHO).split()[0] == "n2"
    lan.nodes[0].kill(signal.SIGCONT)
    until_owns_its_own(lan)


def test_a_killed_process_comes_back_before_anybody_misses_it(lan: Lan) -> None:
    until_owns_its_own(lan)
    (child,) = lan.nodes[0].children()
    os.kill(child, signal.SIGKILL)
    lan.nodes[0].until(lambda seen: not seen["at_work"])
    until_owns_its_own(lan)
    until_alive(lan.nodes[0], lan)
    assert lan.nodes[0].children() not in ([], [child])


def test_nobody_is_taken_for_dead_on_a_busy_machine(lan: Lan) -> None:
    """An agent that computes in two threads and whose event loop halts again and again, and a machine without a free
    core."""
    until_owns_its_own(lan)
    for node in lan.nodes:
        node.tell(burn=2, halt=0.3)
    with probing(lan.client, owned(lan, "n1")) as prober:
        prober.until("n1")
        time.sleep(6)
    for node in lan.nodes:
        assert node.newest()["deaths"] == []
    assert {name for _, name in prober.answers} == {"n1"}


def test_there_is_a_process_only_while_there_is_something_to_do(lan: Lan) -> None:
    node = lan.nodes[0]
    node.tell(nodes={}, addresses={})
    node.until(lambda seen: (seen["at_work"], seen["liveness"], seen["answers"]) == (False, {}, {}))
    assert node.children() == []
    node.tell(nodes=lan.listed, addresses=lan.wanted)
    until_alive(node, lan)
    until_owns_its_own(lan)


def test_the_process_ends_with_its_agent(lan: Lan) -> None:
    (child,) = lan.nodes[0].children()
    ended = os.pidfd_open(child)
    try:
        lan.nodes[0].kill()
        assert select.select([ended], [], [], 10)[0], "it lives on"
    finally:
        os.close(ended)


def test_without_ipv4(make_space: MakeSpace) -> None:
    lan = Lan(make_space)
    try:
        for _ in range(2):
            node = lan.node()
            node.addresses = [it for it in node.addresses if ":" in it]
        for node in lan.nodes:
            node.start()
        for node in lan.nodes:
            until_alive(node, lan)
        until_owns_its_own(lan)
        assert lan.nodes[0].newest()["troubles"] == []
    finally:
        lan.end()


def test_nodes_with_different_keys_know_nothing_of_each_other(make_space: MakeSpace) -> None:
    lan = Lan(make_space)
    try:
        lan.key = "one"
        lan.node().start()
        lan.key = "another"
        lan.node()
        for node in lan.nodes[1:]:
            node.start()
        lan.nodes[0].tell(nodes=lan.listed)
        for node in lan.nodes:
            node.until(lambda seen: seen["ignored"].get("another key", 0) > 2)
            assert set(node.seen["liveness"].values()) == {"unknown"}
    finally:
        lan.end()
