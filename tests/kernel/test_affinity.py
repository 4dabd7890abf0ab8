"""Session affinity by packets: a client keeps its backend, for as long as the Service says and the backend lives."""

import pytest
from msgspec.structs import replace

from podwire.model.addresses import parse_address
from podwire.model.objects import Protocol, Service, ServiceKey
from tests.kernel.outside import NODES, connect, members
from tests.kernel.rig import Rig, ask, by_hand, service, sh

PODS = {"a": 2, "b": 3, "c": 4, "d": 5}
HERE = tuple(address.format(n) for n in PODS.values() for address in ("10.1.1.{}", "fd01::{}"))
WEB, DNS = ServiceKey("default", "web"), ServiceKey("default", "dns")
PLACES = ["10.96.0.10", "fd00:96::a"]
ASKED = [(to, Protocol.TCP) for to in PLACES] + [(to, Protocol.UDP) for to in ("10.96.0.11", "fd00:96::b")]


def objects(seconds: int = 600, *backends: str) -> dict[object, object]:
    made = service("web", 10, backends or HERE) | service("dns", 11, backends or HERE, Protocol.UDP)
    for key in (WEB, DNS):
        it = made[key]
        assert isinstance(it, Service)
        made[key] = replace(it, affinity=seconds)
    return made


def who(rig: Rig, client: str | None, to: str, protocol: Protocol = Protocol.TCP, tries: int = 10) -> set[str]:
    space = rig.pods[client] if client else None
    return {ask(space, to, protocol=protocol).split()[0] for _ in range(tries)}


@pytest.fixture
async def at_work(rig: Rig) -> Rig:
    await rig.start_with_pods(*PODS, objects=objects())
    assert await rig.drift() == []
    return rig


@pytest.mark.parametrize("client", ["a", "b", "c", "d", None], ids=["a", "b", "c", "d", "the node"])
async def test_a_client_keeps_its_backend(at_work: Rig, client: str | None) -> None:
    for to, protocol in [(to, Protocol.TCP) for to in PLACES] + [
        ("10.96.0.11", Protocol.UDP),
        ("fd00:96::b", Protocol.UDP),
    ]:
        assert len(who(at_work, client, to, protocol)) == 1


async def test_clients_are_spread(at_work: Rig) -> None:
    """Each by itself: not all sixteen choices of four clients fall on one backend."""
    chosen = set()
    for to, protocol in [(to, Protocol.TCP) for to in PLACES] + [
        ("10.96.0.11", Protocol.UDP),
        ("fd00:96::b", Protocol.UDP),
    ]:
        for client in PODS:
            chosen |= who(at_work, client, to, protocol, 1)
    assert len(chosen) > 1


@pytest.mark.parametrize("to", PLACES, ids=["IPv4", "IPv6"])
async def test_a_client_whose_backend_goes_is_given_another_and_keeps_it(at_work: Rig, to: str) -> None:
    (first,) = who(at_work, "a", to)
    left = [a for a in HERE if not a.endswith((f".{PODS[first]}", f"::{PODS[first]}"))]
    await at_work.change(*objects(600, *left).items())
    await at_work.forgotten()
    (second,) = who(at_work, "a", to)
    assert second != first
    await at_work.change(*objects().items())
    assert who(at_work, "a", to) == {second}


async def test_who_keeps_a_backend_that_stays_is_not_moved_by_changes_of_others(at_work: Rig) -> None:
    (first,) = who(at_work, "a", PLACES[0])
    for count in (1, 2, 3):
        others = [n for name, n in PODS.items() if name != first][:count]
        kept = [f"10.1.1.{n}" for n in (PODS[first], *others)]
        await at_work.change(*objects(600, *kept).items())
        assert who(at_work, "a", PLACES[0]) == {first}


async def test_a_client_is_forgotten_after_its_time(rig: Rig) -> None:
    await rig.start_with_pods(*PODS, objects=objects(1))
    who(rig, "a", PLACES[0], tries=1)
    assert "10.1.1.2 . 10.96.0.10 . tcp . 80 expires" in sh("nft", "list", "map", "ip", "podwire", "affinity1")
    seen = set()
    for _ in range(8):
        seen |= who(rig, "a", PLACES[0], tries=1)
        while "expires" in sh("nft", "list", "map", "ip", "podwire", "affinity1"):
            pass  # the kernel tells nobody
    assert len(seen) > 1


async def test_a_restart_keeps_who_is_remembered_and_writes_nothing(at_work: Rig) -> None:
    before = {client: who(at_work, client, PLACES[0], tries=2) for client in PODS}
    await at_work.stop()
    await at_work.start(objects())
    assert at_work.writes() == dict.fromkeys(at_work.writes(), 0)
    assert {client: who(at_work, client, PLACES[0], tries=2) for client in PODS} == before


async def test_affinity_comes_and_goes_with_its_services(at_work: Rig) -> None:
    plain = {key: replace(it, affinity=0) if isinstance(it, Service) else it for key, it in objects().items()}
    await at_work.change(*plain.items())
    assert len(who(at_work, "a", PLACES[0], tries=40)) > 1
    assert "600" not in sh("nft", "list", "ruleset").replace("16000", "")
    await at_work.change(*(objects(60) | {DNS: objects(30)[DNS]}).items())
    assert len(who(at_work, "a", PLACES[0])) == 1
    listed = sh("nft", "list", "maps")
    assert [name in listed for name in ("affinity60 ", "affinity30 ", "affinity600 ")] == [True, True, False]
    await at_work.change(*objects(60).items())
    assert "affinity30" not in sh("nft", "list", "maps")
    assert await at_work.drift() == []


@pytest.mark.parametrize("family", ["ip", "ip6"])
@pytest.mark.parametrize(
    "hand",
    [
        "nft flush chain {} podwire affine600",
        "nft flush chain {} podwire learn600",
        "nft add rule {} podwire affinein600 drop",
        "nft delete chain {} podwire sealed600",
        "nft flush map {} podwire remembered",
        "nft flush map {} podwire drawn",
        "nft add chain {} podwire affine77",
    ],
)
async def test_what_hands_alter_is_seen_and_healed(at_work: Rig, family: str, hand: str) -> None:
    by_hand(hand.format(family))
    assert await at_work.drift() != []
    assert (await at_work.resync()).error is None
    assert await at_work.drift() == []
    for to in PLACES:
        assert len(who(at_work, "a", to)) == 1


async def test_all_of_it_is_listed_by_nft(at_work: Rig) -> None:
    listed = sh("nft", "list", "ruleset")
    for ip in ("ip", "ip6"):
        key = f"{ip} saddr . {ip} daddr . meta l4proto . tcp dport"
        assert f"dnat {ip} to {key} map @affinity600" in listed.replace("addr . port ", "")
        assert f"{ip} daddr . meta l4proto . th dport vmap @drawn" in listed
        assert "update @affinity600" in listed


@pytest.mark.parametrize("kind", ["192.0.2.1", "203.0.113.80"], ids=["node port", "load balancer"])
async def test_a_client_from_outside_keeps_its_backend_too(rig: Rig, kind: str) -> None:
    outside = connect(rig)
    made = objects()
    it = made[WEB]
    assert isinstance(it, Service)
    port = replace(it.ports[0], node_port=80)
    changed = replace(it, ports=(port,), balancer_ips=(parse_address("203.0.113.80"),), external_local=True)
    made |= NODES | {WEB: changed} | members("web", *HERE)
    await rig.start_with_pods(*PODS, objects=made)
    for space in (outside.client, rig.pods["a"]):
        assert len({ask(space, kind).split()[0] for _ in range(10)}) == 1
    assert await rig.drift() == []
