"""What is counted of Services and pods, by real packets: exactly so many, and for whom."""

import socket
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from podwire.model.addresses import parse_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Frontend
from podwire.model.objects import AttachmentKey, Protocol, Service, ServiceKey, SliceKey
from podwire.pods.names import interface_name
from podwire.statistics import views
from podwire.statistics.counted import told
from podwire.statistics.totals import Counts
from tests.kernel.outside import NODES, connect
from tests.kernel.rig import Rig, Space, ask, by_hand, in_space, service, sh

WEB, DNS = ServiceKey("default", "web"), ServiceKey("default", "dns")
TCP, UDP = Protocol.TCP, Protocol.UDP
WEB_PORT, DNS_PORT = 30080, 30053
PLACES = {
    "cluster IP, IPv4": ("10.96.0.10", 80, "10.96.0.11", 53),
    "cluster IP, IPv6": ("fd00:96::a", 80, "fd00:96::b", 53),
    "node port, IPv4": ("192.0.2.1", WEB_PORT, "192.0.2.1", DNS_PORT),
    "node port, IPv6": ("fd99::1", WEB_PORT, "fd99::1", DNS_PORT),
}
HEADERS = {4: 20, 16: 40}
"""Bytes of an IP header without options."""
UDP_HEADER = 8


def objects() -> dict[ObjectKey, Object]:
    made = service("web", 10, ("10.1.1.3", "fd01::3")) | service("dns", 11, ("10.1.1.3", "fd01::3"), UDP, 53)
    for key, port, number in ((WEB, 80, WEB_PORT), (DNS, 53, DNS_PORT)):
        it = made[key]
        assert isinstance(it, Service)
        made[key] = replace(it, ports=(replace(it.ports[0], port=port, node_port=number),))
    return NODES | made


def frontend(to: str, port: int, protocol: Protocol) -> Frontend:
    return Frontend(parse_address(to), protocol, port)


async def counts(rig: Rig) -> dict[Frontend, Counts]:
    """Of those that have any."""
    totals = await rig.running.statistics.read_services()
    return {key: told(series.total) for key, series in totals.series.items() if any(series.total)}


async def sums(rig: Rig) -> Mapping[ServiceKey, Counts]:
    return {it: told(sum_) for it, sum_ in (await rig.running.statistics.read_services()).of_owners().items()}


def datagrams(space: Space | None, to: str, port: int, count: int, size: int) -> int:
    """Sent by one socket, and all answered; the bytes of all answers."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with in_space(space, family, socket.SOCK_DGRAM) as client:
        client.settimeout(3)
        client.connect((to, port))
        got = 0
        for _ in range(count):
            client.send(bytes(size))
            got += len(client.recv(100))
        return got


@pytest.fixture
async def at_work(rig: Rig) -> Rig:
    """Pods `a` (10.1.1.2), the client, and `b` (10.1.1.3), the backend; a client outside is `world`."""
    outside = connect(rig)
    rig.pods["world"] = outside.client
    await rig.start_with_pods("a", "b", objects=objects(), service_traffic=True)
    assert await rig.drift() == []
    assert await counts(rig) == {}
    return rig


@pytest.mark.parametrize("client", ["a", "world", None], ids=["from a pod", "from outside", "from the node"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
async def test_datagrams_are_counted_to_the_byte(
    at_work: Rig, place: tuple[str, int, str, int], client: str | None
) -> None:
    *_, to, port = place
    got = datagrams(at_work.pods[client] if client else None, to, port, count=7, size=33)
    it = frontend(to, port, UDP)
    headers = HEADERS[it.family.size] + UDP_HEADER
    assert await counts(at_work) == {it: (1, 7, 7 * (33 + headers), 7, got + 7 * headers)}
    assert (await sums(at_work))[DNS] == (1, 7, 7 * (33 + headers), 7, got + 7 * headers)


@pytest.mark.parametrize("client", ["a", "world", None], ids=["from a pod", "from outside", "from the node"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
async def test_connections_are_counted_each_once(
    at_work: Rig, place: tuple[str, int, str, int], client: str | None
) -> None:
    """A segment more or less is TCP's to choose, and the last ones may be on their way yet; each has a header of 20
    bytes, and options of at most 40."""
    to, port, *_ = place
    space = at_work.pods[client] if client else None
    answers = [ask(space, to, port) for _ in range(5)]
    assert all(it.startswith("b ") for it in answers)
    ((it, (connections, packets, size, back, size_back)),) = (await counts(at_work)).items()
    assert (it, connections) == (frontend(to, port, TCP), 5)
    ip = HEADERS[it.family.size]
    assert 5 * 3 <= packets <= 5 * 8
    assert 5 * 2 <= back <= 5 * 8
    assert packets * (ip + 20) <= size <= packets * (ip + 60)
    answered = sum(map(len, answers))
    assert back * (ip + 20) <= size_back - answered <= back * (ip + 60)


def datagram(count: int) -> Counts:
    """What so many connections of one datagram of 33 bytes each come to; `b 10.1.1.2` is the answer."""
    headers = HEADERS[4] + UDP_HEADER
    return count, count, count * (33 + headers), count, count * (len("b 10.1.1.2") + headers)


async def test_a_restart_counts_on_and_writes_nothing(at_work: Rig) -> None:
    dns = frontend("10.96.0.11", 53, UDP)
    datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33)
    assert await counts(at_work) == {dns: datagram(1)}
    generation = at_work.running.nftables.generation()
    await at_work.stop()
    datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33)
    assert (await at_work.start(objects(), service_traffic=True)).error is None
    assert at_work.writes() == {"store": 0, "linux": 0, "nftables": 0}
    assert await counts(at_work) == {dns: datagram(2)}
    assert await at_work.drift() == []
    assert at_work.running.nftables.generation() == generation


async def test_what_was_carried_over_outlives_a_restart(at_work: Rig) -> None:
    """Counters that hands have removed, and a frontend that its Service has no more, even since no agent ran."""
    for to in PLACES.values():
        datagrams(at_work.pods["a"], to[2], to[3], 3, 33)
    before = (await sums(at_work))[DNS]
    by_hand("nft flush set ip podwire connections")
    by_hand("nft flush set ip podwire traffic")
    changed = objects()
    it = changed[DNS]
    assert isinstance(it, Service)
    changed[DNS] = replace(it, cluster_ips=it.cluster_ips[:1])
    assert (await sums(at_work))[DNS] == before
    written = (at_work.directory / "counts").stat()
    await at_work.stop()
    assert (await at_work.start(objects(), service_traffic=True)).error is None
    assert (await sums(at_work))[DNS] == before
    assert (at_work.directory / "counts").stat() == written
    await at_work.stop()
    assert (await at_work.start(changed, service_traffic=True)).error is None
    assert (await sums(at_work))[DNS] == before
    assert told((await at_work.running.statistics.read_services()).whole) == before


@pytest.mark.parametrize("what", ["delete table ip podwire", "delete table ip6 podwire"])
async def test_tables_that_went_while_no_agent_ran_begin_at_zero(at_work: Rig, what: str) -> None:
    """All of them, also what the other family's counters still have: of the sum nobody could tell what is new."""
    for to in PLACES.values():
        datagrams(at_work.pods["a"], to[2], to[3], 3, 33)
    assert (await sums(at_work))[DNS][0] == len(PLACES)
    await at_work.stop()
    by_hand(f"nft {what}")
    assert (await at_work.start(objects(), service_traffic=True)).error is None
    assert not any((await sums(at_work)).get(DNS, ()))
    datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33)
    assert (await sums(at_work))[DNS] == datagram(1)


@pytest.mark.parametrize("backends", [("10.1.1.3",), (), ("10.1.1.3", "10.1.1.2", "10.1.1.9")], ids=[1, 0, 3])
async def test_a_changed_number_of_backends_changes_no_count(at_work: Rig, backends: tuple[str, ...]) -> None:
    """Another capacity class is another verdict; without a backend the frontend is refused, which is no connection."""
    dns = frontend("10.96.0.11", 53, UDP)
    datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33)
    changed = service("dns", 11, backends, UDP, 53)
    await at_work.change((SliceKey("default", "dns-1"), changed[SliceKey("default", "dns-1")]))
    if not backends:
        assert ask(at_work.pods["a"], "10.96.0.11", 53, UDP) in ("ConnectionRefusedError", "TimeoutError")
    assert await counts(at_work) == {dns: datagram(1)}


async def test_a_removed_service_is_forgotten_and_its_successor_begins_anew(at_work: Rig) -> None:
    gone: tuple[ObjectKey, ...] = (DNS, SliceKey("default", "dns-1"))
    datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33)
    assert (await sums(at_work))[DNS] == datagram(1)
    await at_work.change(*((key, None) for key in gone))
    assert await sums(at_work) == {}
    await at_work.running.flows.until_quiet()  # until then its flows are noted
    assert "10.96.0.11" not in sh("nft", "list", "ruleset")
    heir = service("heir", 11, ("10.1.1.3",), UDP, 53)
    await at_work.change(*heir.items())
    datagrams(at_work.pods["a"], "10.96.0.11", 53, 1, 33)
    assert await sums(at_work) == {ServiceKey("default", "heir"): datagram(1)}
    assert told((await at_work.running.statistics.read_services()).whole) == datagram(2)


async def test_what_others_rewrite_is_not_counted(at_work: Rig) -> None:
    """A table of another's sends a port of the node to a pod: no frontend, and no element."""
    rule = "add rule ip alien pre tcp dport 9999 dnat to 10.1.1.3:8080"
    by_hand("nft 'add table ip alien; add chain ip alien pre { type nat hook prerouting priority -100; }'")
    by_hand(f"nft '{rule}'")
    assert ask(at_work.pods["world"], "192.0.2.1", 9999).startswith("b ")
    assert await at_work.drift() == []
    for name in ("connections", "traffic"):
        assert "elements" not in sh("nft", "list", "set", "ip", "podwire", name)


async def test_what_hands_put_into_the_counters_or_take_away_harms_nobody(at_work: Rig) -> None:
    ask(at_work.pods["a"], "10.96.0.10")
    ((it, before),) = (await counts(at_work)).items()
    by_hand("nft add element ip podwire connections { 10.96.0.99 . tcp . 80 }")
    by_hand("nft flush set ip podwire traffic")
    assert await counts(at_work) == {it: before}
    assert "10.96.0.99" not in sh("nft", "list", "set", "ip", "podwire", "connections")
    ask(at_work.pods["a"], "10.96.0.10")
    connections, *rest = (await counts(at_work))[it]
    assert connections == before[0] + 1
    assert all(now > was for now, was in zip(rest, before[1:], strict=True))
    assert await at_work.drift() == []


async def test_a_table_that_is_made_anew_takes_no_count_back(at_work: Rig) -> None:
    for _ in range(3):
        ask(at_work.pods["a"], "10.96.0.10")
    before = await counts(at_work)
    by_hand("nft delete table ip podwire")
    assert await counts(at_work) == before
    await at_work.resync()
    await at_work.resync()  # what lies on a renewed table is read again
    assert await counts(at_work) == before
    ask(at_work.pods["a"], "10.96.0.10")
    ((it, (connections, *_)),) = (await counts(at_work)).items()
    assert connections == before[it][0] + 1


async def test_a_long_flow_is_counted_packet_by_packet(at_work: Rig) -> None:
    got = datagrams(at_work.pods["a"], "10.96.0.11", 53, 50, 90)
    read = (await counts(at_work))[frontend("10.96.0.11", 53, UDP)]
    assert read == (1, 50, 50 * 118, 50, got + 50 * 28)


async def test_pods_are_counted_at_their_interface(at_work: Rig) -> None:
    """From the pod's side, with Ethernet's header of 14 bytes; neighbours are permanent, so nobody asks for them."""
    pods = at_work.running.statistics
    key = AttachmentKey("sandbox-a", "eth0")
    before = (await pods.read_pods())[key]
    got = datagrams(at_work.pods["a"], "10.96.0.11", 53, 10, 33)
    received_packets, received_bytes, sent_packets, sent_bytes = (
        now - was for now, was in zip((await pods.read_pods())[key], before, strict=True)
    )
    headers = 14 + HEADERS[4] + UDP_HEADER
    assert (received_packets, received_bytes) == (10, got + 10 * headers)
    assert sent_packets >= 10  # a new interface still tells its neighbours of its groups (MLD)
    assert sent_bytes >= 10 * (33 + headers)
    assert interface_name(key) in sh("ip", "-o", "link")


async def test_a_pod_that_goes_ends_its_series(at_work: Rig) -> None:
    assert (await at_work.delete("a")).error is None
    assert AttachmentKey("sandbox-a", "eth0") not in await at_work.running.statistics.read_pods()


@pytest.mark.parametrize("client", ["a", "world", None], ids=["from a pod", "from outside", "from the node"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
async def test_without_packets_connections_are_counted_all_the_same(
    rig: Rig, place: tuple[str, int, str, int], client: str | None
) -> None:
    rig.pods["world"] = connect(rig).client
    await rig.start_with_pods("a", "b", objects=objects())
    assert await counts(rig) == {}
    space = rig.pods[client] if client else None
    assert all(ask(space, place[0], place[1]).startswith("b ") for _ in range(3))
    assert datagrams(space, place[2], place[3], count=7, size=33)
    web, dns = frontend(place[0], place[1], TCP), frontend(place[2], place[3], UDP)
    assert {it: told_[0] for it, told_ in (await counts(rig)).items()} == {web: 3, dns: 1}
    totals, now = await rig.running.statistics.read_services(), rig.running.controller.snapshot
    seen = views.service(now, DNS, totals, totals.of_owners(), rig.running.statistics.traffic)
    assert (seen.connections, seen.traffic) == (1, None)
    assert await rig.drift() == []


async def test_counting_packets_is_switched_by_a_restart_and_no_connection_or_count_is_lost(rig: Rig) -> None:
    await rig.start_with_pods("a", "b", objects=objects())
    assert await counts(rig) == {}
    dns = frontend("10.96.0.11", 53, UDP)
    with in_space(rig.pods["a"], socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(3)
        client.connect(("10.96.0.11", 53))

        def answered() -> int:
            client.send(bytes(33))
            return len(client.recv(100))

        assert answered()
        await counts(rig)  # whose it is is known from here on
        # Of each round one datagram passes by the rules as they were, one by the new ones. The first of all counts as
        # the connection's.
        for traffic, datagrams_counted in ((True, 1), (False, 2), (True, 3)):
            await rig.stop()
            assert answered()
            assert (await rig.start(objects(), service_traffic=traffic)).error is None
            assert answered()
            connections, to, _, back, _ = (await counts(rig))[dns]
            assert (connections, to, back) == (1, 1 + datagrams_counted, datagrams_counted)
            assert await rig.drift() == []
