"""A map of session affinity that is full of one Service's clients: what becomes of the others'."""

import pytest

from podwire.dataplane import netlink
from podwire.dataplane.messages import attr
from podwire.dataplane.nftables import affinity, wire
from podwire.dataplane.nftables.clients import Client
from podwire.dataplane.nftables.render import frontend_key
from podwire.model.addresses import IPV4, IPV6, parse_address
from podwire.model.network import Frontend
from podwire.model.objects import Protocol
from tests.kernel.rig import Rig
from tests.kernel.test_affinity import HERE, PLACES, PODS, objects, who

MOST = 16
CROWD = Frontend(parse_address("10.96.0.11"), Protocol.UDP, 80)
"""Whose clients are so many."""
FULL = (
    "session affinity of 600 s, IPv4: 16 clients are remembered, as many as there is room for: "
    "whoever is new keeps no backend"
)


@pytest.fixture
async def at_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """With room for few clients."""
    monkeypatch.setattr(affinity, "MOST_CLIENTS", MOST)
    await rig.start_with_pods(*PODS, objects=objects())
    await rig.running.flows.until_quiet()
    return rig


def crowd() -> int:
    """As if clients had come to that Service until there was no room; how many found some."""
    backend = attr(1, parse_address("10.1.1.2") + (8080).to_bytes(2, "big") + bytes(2))
    there = netlink.Socket(netlink.NETFILTER)
    for count in range(MOST + 1):
        client = wire.element(bytes((11, 0, 0, count)) + frontend_key(CROWD), backend)
        if there.send(wire.batch(wire.messages(IPV4, "affinity600", [client]))):
            break
    there.close()
    return count


def crowded(rig: Rig) -> list[Client]:
    return [it for it in rig.running.clients.read({}, True, lambda: False) if it.flow.to == CROWD]


async def test_who_is_remembered_stays_so_and_who_is_new_is_served_without(at_work: Rig) -> None:
    (kept,) = who(at_work, "a", PLACES[0])
    assert crowd() == MOST - 1
    assert who(at_work, "a", PLACES[0], tries=20) == {kept}
    assert len(who(at_work, "b", PLACES[0], tries=60)) > 1
    assert len(who(at_work, None, PLACES[0], tries=60)) > 1
    assert len(who(at_work, "b", PLACES[1])) == 1, "the other family has room of its own"
    assert len(crowded(at_work)) == MOST - 1
    assert await at_work.drift() == []


async def test_it_is_told_while_it_is_so(at_work: Rig) -> None:
    assert at_work.running.facts().source_errors == ()
    crowd()
    assert at_work.running.facts().source_errors == (FULL,)
    at_work.running.clients.delete(crowded(at_work)[:1])
    assert at_work.running.facts().source_errors == ()


async def test_it_is_told_by_a_kernel_that_does_not_count(at_work: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podwire.dataplane.nftables.clients._COUNT", 99)
    crowd()
    await at_work.resync()
    await at_work.running.flows.until_quiet()
    assert at_work.running.facts().source_errors == (FULL,)


async def test_who_loses_his_backend_is_given_another_one_and_room_makes_memory_again(at_work: Rig) -> None:
    """Nobody is sent to a backend that has gone, full or not; and once clients are forgotten others are remembered."""
    (first,) = who(at_work, "a", PLACES[0])
    crowd()
    left = [a for a in HERE if not a.endswith((f".{PODS[first]}", f"::{PODS[first]}"))]
    await at_work.change(*objects(600, *left).items())
    assert first not in who(at_work, "a", PLACES[0], tries=20)
    await at_work.running.flows.until_quiet()
    at_work.running.clients.delete(crowded(at_work))
    for client in ("a", "b"):
        assert len(who(at_work, client, PLACES[0], tries=20)) == 1
    assert crowded(at_work) == []
    assert {it.family for it in at_work.running.clients.read({}, True, lambda: False)} <= {IPV4, IPV6}
