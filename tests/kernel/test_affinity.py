"""Session affinity by packets: a client keeps its backend, for as long as the Service says and the backend lives."""

import itertools
import time

import pytest
from msgspec.structs import replace

from podwire.dataplane import netlink
from podwire.dataplane.messages import attr
from podwire.dataplane.nftables import wire
from podwire.dataplane.nftables.render import frontend_key
from podwire.model.addresses import IPV4, parse_address, show_address
from podwire.model.network import Frontend
from podwire.model.objects import BackendSlice, Protocol, Service, ServiceKey
from tests.kernel.outside import FAR, NODES, connect, members
from tests.kernel.rig import Rig, ask, by_hand, service, sh

PODS = {"a": 2, "b": 3, "c": 4, "d": 5}
HERE = tuple(address.format(n) for n in PODS.values() for address in ("10.1.1.{}", "fd01::{}"))
WEB, DNS = ServiceKey("default", "web"), ServiceKey("default", "dns")
PATIENCE = 30.0
"""Seconds: a limit against hanging, never a measure."""
PLACES = ["10.96.0.10", "fd00:96::a"]
ASKED = [(to, Protocol.TCP) for to in PLACES] + [(to, Protocol.UDP) for to in ("10.96.0.11", "fd00:96::b")]


def objects(seconds: int = 600, *backends: str) -> dict[object, object]:
    made = service("web", 10, backends or HERE) | service("dns", 11, backends or HERE, Protocol.UDP)
    for key in (WEB, DNS):
        it = made[key]
        assert isinstance(it, Service)
        made[key] = replace(it, affinity=seconds)
    return made


PORTS = itertools.count(10_000)


def who(rig: Rig, client: str | None, to: str, protocol: Protocol = Protocol.TCP, tries: int = 10) -> set[str]:
    """Each time by a flow that there never was."""
    space = rig.pods[client] if client else None
    return {ask(space, to, protocol=protocol, source=next(PORTS)).split()[0] for _ in range(tries)}


@pytest.fixture
async def at_work(rig: Rig) -> Rig:
    await rig.start_with_pods(*PODS, objects=objects())
    assert await rig.drift() == []
    return rig


@pytest.mark.parametrize("client", ["a", "b", "c", "d", None], ids=["a", "b", "c", "d", "the node"])
async def test_a_client_keeps_its_backend(at_work: Rig, client: str | None) -> None:
    for to, protocol in ASKED:
        assert len(who(at_work, client, to, protocol)) == 1


async def test_clients_are_spread(at_work: Rig) -> None:
    """Each by itself: not all sixteen choices of four clients fall on one backend."""
    chosen = set()
    for to, protocol in ASKED:
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


def change(made: dict[object, object], leave: str, how: str, everybody: bool = False) -> dict[object, object]:
    """The objects with the backends of that pod (or all) gone, or on their way out while others are ready."""
    gone = (f".{PODS[leave]}", f"::{PODS[leave]}")
    found = dict(made)
    for key, it in made.items():
        if isinstance(it, BackendSlice):
            stay = [m for m in it.members if not everybody and not show_address(m.address).endswith(gone)]
            out = [replace(m, ready=False, terminating=True) for m in it.members if m not in stay]
            found[key] = replace(it, members=tuple(stay if how == "gone" else stay + out))
    return found


@pytest.mark.parametrize("how", ["gone", "terminating"])
@pytest.mark.parametrize("client", ["a", None], ids=["a pod", "the node"])
async def test_no_new_connection_goes_to_a_backend_that_left(at_work: Rig, client: str | None, how: str) -> None:
    """At once after the transaction, while all that is remembered of it is still there."""
    await at_work.nobody_forgets()
    for to, protocol in ASKED:
        (first,) = who(at_work, client, to, protocol)
        await at_work.change(*change(objects(), first, how).items())
        seen = who(at_work, client, to, protocol, 20)
        assert len(seen) == 1
        assert seen != {first}
        await at_work.change(*objects().items())
        assert who(at_work, client, to, protocol) == seen  # who has come back has lost its clients
    assert await at_work.drift() == []


async def test_the_last_ones_on_their_way_out_keep_their_clients(at_work: Rig) -> None:
    await at_work.nobody_forgets()
    for to, protocol in ASKED:
        (first,) = who(at_work, "a", to, protocol)
        await at_work.change(*change(objects(), first, "terminating", everybody=True).items())
        assert who(at_work, "a", to, protocol) == {first}
        await at_work.change(*objects().items())


async def test_no_policy_leaves_a_remembered_client_at_a_backend_elsewhere(rig: Rig) -> None:
    """externalTrafficPolicy became Local: clients from outside lose what is elsewhere, those in the cluster keep it."""
    outside = connect(rig)
    made = objects() | NODES | members("web", *FAR.values())
    it = made[WEB]
    assert isinstance(it, Service)
    made[WEB] = replace(it, balancer_ips=tuple(map(parse_address, ("203.0.113.80", "2001:db8::80"))))
    await rig.start_with_pods(*PODS, objects=made)
    await rig.nobody_forgets()
    asked = [(space, to) for space in (outside.client, rig.pods["a"]) for to in ("203.0.113.80", "2001:db8::80")]
    assert {ask(space, to).split()[0] for space, to in asked} == {"far"}
    local = made | {WEB: replace(made[WEB], external_local=True)} | members("web", *FAR.values(), *HERE)
    await rig.change(*local.items())
    seen = [{ask(space, to).split()[0] for _ in range(5)} for space, to in asked]
    assert all(len(each) == 1 and each != {"far"} for each in seen[:2])
    assert seen[2:] == [{"far"}, {"far"}]
    assert await rig.drift() == []


async def test_a_hundred_thousand_clients_of_one_backend_cost_its_going_nothing(at_work: Rig) -> None:
    """Not one of them is written by the change, however many they are."""
    before = at_work.writes()["nftables"]
    await at_work.change(*change(objects(), "d", "gone").items())
    few = at_work.writes()["nftables"] - before
    await at_work.change(*objects().items())
    await at_work.nobody_forgets()
    remember(100_000)
    before = at_work.writes()["nftables"]
    await at_work.change(*change(objects(), "d", "gone").items())
    assert at_work.writes()["nftables"] - before == few


def remember(clients: int) -> None:
    """As if so many had come to `d` by the Service web's IPv4 address."""
    backend = parse_address("10.1.1.5") + (8080).to_bytes(2, "big") + bytes(2)
    frontend = frontend_key(Frontend(parse_address(PLACES[0]), Protocol.TCP, 80))
    socket = netlink.Socket(netlink.NETFILTER)
    for first in range(0, clients, 10_000):
        numbers = range(first, first + 10_000)
        listed = [wire.element((0x0B000000 + n).to_bytes(4, "big") + frontend, attr(1, backend)) for n in numbers]
        assert socket.send(wire.batch(wire.messages(IPV4, "affinity600", listed))) == {}
    socket.close()


async def test_who_keeps_a_backend_that_stays_is_not_moved_by_changes_of_others(at_work: Rig) -> None:
    (first,) = who(at_work, "a", PLACES[0])
    for count in (1, 2, 3):
        others = [n for name, n in PODS.items() if name != first][:count]
        kept = [f"10.1.1.{n}" for n in (PODS[first], *others)]
        await at_work.change(*objects(600, *kept).items())
        assert who(at_work, "a", PLACES[0]) == {first}


async def test_a_client_is_forgotten_after_its_time(rig: Rig) -> None:
    await rig.start_with_pods(*PODS, objects=objects(1))
    remembered = ""
    limit = time.monotonic() + PATIENCE
    while "10.1.1.2 . 10.96.0.10 . tcp . 80 expires" not in remembered:  # on a busy machine a second may have gone by
        assert time.monotonic() < limit, "it is never remembered"
        who(rig, "a", PLACES[0], tries=1)
        remembered = sh("nft", "list", "map", "ip", "podwire", "affinity1")
    seen = set()
    for _ in range(8):
        seen |= who(rig, "a", PLACES[0], tries=1)
        limit = time.monotonic() + PATIENCE
        while "expires" in sh("nft", "list", "map", "ip", "podwire", "affinity1"):  # the kernel tells nobody
            assert time.monotonic() < limit, "it is remembered for ever"
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
        "nft flush map {} podwire shared",
        "nft add element {0} podwire shared '{{ {1} . tcp . 81 : {1} . 80 }}'",
        "nft flush map {} podwire drawn",
        "nft flush set {} podwire serving",
        "nft add element {0} podwire serving_internal '{{ {1} . tcp . 80 . {1} . 80 }}'",
        "nft add chain {} podwire affine77",
    ],
)
async def test_what_hands_alter_is_seen_and_healed(at_work: Rig, family: str, hand: str) -> None:
    by_hand(hand.format(family, {"ip": "10.96.0.10", "ip6": "fd00:96::a"}[family]))
    assert await at_work.drift() != []
    assert (await at_work.resync()).error is None
    assert await at_work.drift() == []
    for to in PLACES:
        assert len(who(at_work, "a", to)) == 1


async def test_all_of_it_is_listed_by_nft(at_work: Rig) -> None:
    listed = sh("nft", "list", "ruleset")
    for ip in ("ip", "ip6"):
        frontend = f"{ip} daddr . meta l4proto . tcp dport"
        serves = f"{frontend} . ct reply {ip} saddr . ct reply proto-src"
        assert f"{serves} @serving dnat {ip} to {ip} saddr . {frontend} map @affinity600" in listed
        assert f"{serves} @serving_internal dnat {ip} to {ip} saddr . {frontend} map @affinity600" in listed
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


async def test_a_client_that_has_expired_meanwhile_does_not_keep_the_others(at_work: Rig) -> None:
    for client in PODS:
        who(at_work, client, PLACES[0], tries=1)
    clients = at_work.running.clients
    known = list(clients.read({}, True, lambda: False))
    assert len(known) > 1
    expired = known[0]._replace(key=b"\x01" + known[0].key[1:])
    done, error = clients.delete([expired, *known])
    assert (done, error) == (known, None)
    assert list(clients.read({}, True, lambda: False)) == []
    assert clients.delete([]) == ([], None)
