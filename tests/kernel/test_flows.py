"""Flows whose Service changes under them, by real packets: who answers a client that keeps its socket.

Invariants: a client here sends from one socket, to connection tracking one flow. The node's default route leads to an
interface that nothing answers on, so what is translated by nobody goes there.
"""

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from podwire.controller.events import FlowsReconciled
from podwire.dataplane import netlink
from podwire.dataplane.conntrack import messages as m
from podwire.dataplane.messages import CREATE, EXCL, Message, attr, attrs, nest
from podwire.lab import sctp
from podwire.model.addresses import FAMILIES, parse_address, parse_host_port
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Backend, Frontend
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Node,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.services.stale import Flow
from tests.kernel.rig import NODE, NODE_OBJECT, Rig, Space, entered, in_space, sh
from tests.packets.answering import Answering
from tests.unit.test_stale_flows import entry

TCP, UDP, SCTP = Protocol.TCP, Protocol.UDP, Protocol.SCTP
A, B, NOBODY = ("10.1.1.2", "fd01::2"), ("10.1.1.3", "fd01::3"), ("10.1.1.200", "fd01::c8")
CLUSTER_IPS, EXTERNAL_IPS = ("10.96.0.10", "fd00:96::a"), ("203.0.113.5", "fd00:cc::5")
OUTSIDE_OF_RANGES = ("10.97.0.10", "fd00:97::a")
NODE_IPS = ("192.0.2.1", "fd00:2::1")
NODE_NETWORKS = ("192.0.2.1/24", "fd00:2::1/64")
NOWHERE = ("192.0.2.254", "fd00:2::fe")
NODE_PORT = 30080
PATIENCE = 10.0
"""Seconds for an answer: a limit against hanging, never a measure."""
KEY, SLICE = ServiceKey("default", "web"), SliceKey("default", "web-1")
Objects = dict[ObjectKey, Object]


def service(port: int = 80, cluster_ips: tuple[str, ...] = CLUSTER_IPS) -> Service:
    ports = tuple(ServicePort(it.name, it, port, NODE_PORT) for it in (TCP, UDP, SCTP))
    return Service(ports, tuple(map(parse_address, cluster_ips)), tuple(map(parse_address, EXTERNAL_IPS)))


def backends(*addresses: str) -> BackendSlice:
    ports = tuple(BackendPort(it.name, it, 8080) for it in (TCP, UDP, SCTP))
    return BackendSlice(KEY, ports, tuple(Member(parse_address(each)) for each in addresses))


def web(*addresses: str) -> Objects:
    return {KEY: service(), SLICE: backends(*addresses)}


class Pod:
    """As `Answering` knows it."""

    def __init__(self, name: str, addresses: tuple[str, str]) -> None:
        self.name, self._addresses = name, addresses

    def address(self, family: object) -> str:
        return self._addresses[FAMILIES.index(family)]  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def at_work(rig: Rig) -> AsyncIterator[Rig]:
    """Pods `a` and `b` answer, `c` asks. No Service yet."""
    for command in (
        "ip link set lo up",
        "ip link add void type veth peer name end",
        "ip link set void up",
        "ip link set end up",
        *(f"ip address add {address} dev void" + " nodad" * (":" in address) for address in NODE_NETWORKS),
        *(f"ip neigh add {it} lladdr 02:00:00:00:00:01 dev void nud permanent" for it in NOWHERE),
        *(f"ip route add default via {it}" for it in NOWHERE),
    ):
        sh(*command.split())
    node = Node(NODE_OBJECT.pod_cidrs, tuple(map(parse_address, NODE_IPS)))
    assert (await rig.start({NODE: node})).error is None
    pods = Answering()
    try:
        for name in ("a", "b", "c"):
            assert (await rig.add(name)).error is None
        for name, addresses in (("a", A), ("b", B)):
            pods.add(Pod(name, addresses), rig.space(name))  # type: ignore[arg-type]
        yield rig
    finally:
        pods.close()


def client(space: Space | None, to: str, port: int, kind: socket.SocketKind = socket.SOCK_DGRAM) -> socket.socket:
    it = in_space(space, socket.AF_INET6 if ":" in to else socket.AF_INET, kind)
    it.settimeout(PATIENCE)
    if kind == socket.SOCK_DGRAM:
        it.connect((to, port))
    return it


def say(it: socket.socket) -> str:
    """The name of who answers the next datagram, or of the error."""
    it.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # what the last refusal left
    try:
        it.send(b"?")
        return it.recv(100).decode().partition(" ")[0]
    except OSError as error:
        return type(error).__name__


async def change(rig: Rig, objects: dict[ObjectKey, Object | None]) -> None:
    """In force, and the flows in step with it."""
    assert (await rig.change(*objects.items())).error is None
    await rig.running.flows.until_quiet()


def deleted(rig: Rig) -> dict[str, int]:
    return {name: count for name, count in rig.running.controller.tally.flows_deleted.items() if count}


def kept() -> dict[bytes, bytes]:
    """All entries of this namespace: their tuples by ID."""
    found = {}
    with open_netlink() as tracking:
        for family in FAMILIES:
            for body in tracking.dump(m.GET, m.request_all(family)):
                held = attrs(body, 4)
                found[held[12]] = held[1]
    return found


@contextmanager
def open_netlink() -> Iterator[netlink.Socket]:
    it = netlink.Socket(netlink.NETFILTER)
    try:
        yield it
    finally:
        it.close()


WHO = pytest.mark.parametrize("who", ["pod", "node"])
KINDS = pytest.mark.parametrize(
    ("addresses", "port"),
    [
        pytest.param(CLUSTER_IPS, 80, id="cluster IP"),
        pytest.param(EXTERNAL_IPS, 80, id="external IP"),
        pytest.param(NODE_IPS, NODE_PORT, id="node port"),
    ],
)


def spaces_of(rig: Rig, who: str) -> Space | None:
    return rig.space("c") if who == "pod" else None


REFUSED = {"ConnectionRefusedError", "PermissionError"}


@WHO
@KINDS
async def test_a_flow_of_datagrams_goes_where_its_service_does(
    at_work: Rig, who: str, addresses: tuple[str, ...], port: int
) -> None:
    flows = [client(spaces_of(at_work, who), to, port) for to in addresses]
    all_, only_b, none = {SLICE: backends(*A, *B)}, {SLICE: backends(*B)}, {SLICE: backends()}

    def answers() -> set[str]:
        return {say(it) for it in flows}

    await change(at_work, {**web(*A)})
    assert answers() == {"a"}
    await change(at_work, {**all_})
    assert answers() == {"a"}, "a backend that stays keeps its flows"
    await change(at_work, {**only_b})
    assert answers() == {"b"}
    await change(at_work, {**none})
    assert answers() <= REFUSED
    await change(at_work, {**only_b})
    assert answers() == {"b"}, "a refused flow is none"
    if addresses != EXTERNAL_IPS:  # there nobody refuses it
        await change(at_work, {KEY: None, SLICE: None})
        assert answers() <= REFUSED
    for it in flows:
        it.close()


@WHO
@pytest.mark.parametrize(
    ("addresses", "port"),
    [
        pytest.param(OUTSIDE_OF_RANGES, 80, id="cluster IP outside of the service ranges"),
        pytest.param(EXTERNAL_IPS, 80, id="external IP"),
        pytest.param(NODE_IPS, NODE_PORT, id="node port"),
    ],
)
async def test_a_flow_that_was_there_before_its_service(
    at_work: Rig, who: str, addresses: tuple[str, ...], port: int
) -> None:
    """Its entry says that nothing is translated."""
    flows = [client(spaces_of(at_work, who), to, port) for to in addresses]
    for it in flows:
        it.send(b"?")
    assert len(kept()) >= len(flows)
    there = {KEY: service(cluster_ips=OUTSIDE_OF_RANGES), SLICE: backends(*A)}
    await change(at_work, {**there})
    assert [say(it) for it in flows] == ["a", "a"]
    for it in flows:
        it.close()


async def test_a_refused_datagram_leaves_no_entry(at_work: Rig) -> None:
    await change(at_work, {**web()})
    before = kept()
    for who in ("pod", "node"):
        for addresses, port in ((CLUSTER_IPS, 80), (CLUSTER_IPS, 81), (EXTERNAL_IPS, 80), (NODE_IPS, NODE_PORT)):
            for to in addresses:
                with client(spaces_of(at_work, who), to, port) as it:
                    assert say(it) in REFUSED
    assert kept().keys() <= before.keys()


@pytest.mark.parametrize(
    ("after", "answer"),
    [
        pytest.param(
            {SLICE: BackendSlice(KEY, (BackendPort("UDP", UDP, 8089),), (Member(parse_address(B[0])),))},
            "",
            id="another target port",
        ),
        pytest.param({KEY: service(port=81)}, "refused", id="another port of the Service"),
        pytest.param({KEY: None, SLICE: None}, "refused", id="the Service goes"),
    ],
)
async def test_a_flow_to_what_is_no_longer_there(
    at_work: Rig, after: dict[ObjectKey, Object | None], answer: str
) -> None:
    await change(at_work, {**web(*A)})
    with client(at_work.space("c"), CLUSTER_IPS[0], 80) as it:
        assert say(it) == "a"
        await change(at_work, after)
        # At the other port nobody listens: the pod itself refuses.
        assert say(it) == "ConnectionRefusedError"
    assert deleted(at_work) == {"UDP": 1}


# --- an agent that was away --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "answers"),
    [
        pytest.param(web(*B), {"b"}, id="another backend"),
        pytest.param(web(), REFUSED, id="no backend"),
        pytest.param({}, {"ConnectionRefusedError", "PermissionError", "TimeoutError"}, id="no Service"),
    ],
)
@pytest.mark.parametrize("programmed", [False, True], ids=["killed before the change", "killed after its commit"])
async def test_what_changed_while_the_agent_was_away(
    at_work: Rig, after: Objects, answers: set[str], programmed: bool
) -> None:
    node: Objects = {NODE: Node(NODE_OBJECT.pod_cidrs, tuple(map(parse_address, NODE_IPS)))}
    await change(at_work, {**web(*A)})
    flows = [client(at_work.space("c"), to, 80) for to in CLUSTER_IPS]
    assert {say(it) for it in flows} == {"a"}
    if programmed:
        at_work.running.controller.followers.clear()
        gone: dict[ObjectKey, Object | None] = {KEY: None, SLICE: None}
        await at_work.change(*(gone | after).items())
    await at_work.stop()
    assert (await at_work.start({**node, **after})).error is None
    await at_work.running.flows.until_quiet()
    assert {say(it) for it in flows} <= answers
    assert deleted(at_work) == {"UDP": 2}
    for it in flows:
        it.close()


async def test_a_restart_with_nothing_changed_deletes_nothing(at_work: Rig) -> None:
    node: Objects = {NODE: Node(NODE_OBJECT.pod_cidrs, tuple(map(parse_address, NODE_IPS)))}
    await change(at_work, {**web(*A, *B)})
    flows = [client(at_work.space("c"), to, 80) for to in (*CLUSTER_IPS, *EXTERNAL_IPS) for _ in range(4)]
    first = [say(it) for it in flows]
    await at_work.stop()
    before = kept()
    assert (await at_work.start({**node, **web(*A, *B)})).error is None
    await at_work.running.flows.until_quiet()
    assert at_work.running.flows.looks == 2
    assert at_work.running.conntrack.writes == 0
    assert before.keys() <= kept().keys()
    assert [say(it) for it in flows] == first
    for it in flows:
        it.close()


# --- others' flows -----------------------------------------------------------------------------


def made(to: str, answers: str, port: int, protocol: Protocol = UDP, zone: int = 0) -> None:
    """An entry of a client of pod `c`, by whoever may have made it."""
    there, its_port = parse_host_port(to)
    who = parse_address("10.1.1.4" if len(there) == 4 else "fd01::4")
    flow = Flow(Frontend(there, protocol, its_port), Backend(*parse_host_port(answers)), who)
    body = entry(flow, flow.client, port, attr(18, zone.to_bytes(2, "big")) if zone else b"")
    held = attrs(body, 4)
    parts = [nest(kind, held[kind]) for kind in (1, 2)] + [attr(kind, held[kind]) for kind in (7, 18) if kind in held]
    with open_netlink() as tracking:
        assert tracking.send([Message(m.NEW, CREATE | EXCL, body[:4] + b"".join(parts))]) == {}


async def test_others_flows_are_never_touched(at_work: Rig) -> None:
    """Whatever changes, and however often all is looked at."""
    other = ServiceKey("default", "other")
    there: Objects = {
        other: Service((ServicePort("p", UDP, 53),), (parse_address("10.96.0.53"),)),
        SliceKey("default", "other-1"): BackendSlice(
            other, (BackendPort("p", UDP, 53),), (Member(parse_address(B[0])),)
        ),
    }
    await change(at_work, {**web(*A, *B), **there})
    for number, (to, answers, zone) in enumerate(
        [
            ("10.96.0.53:53", "10.1.1.3:53", 0),  # another Service
            ("192.0.2.1:8053", "172.17.0.2:53", 0),  # a container's published port
            ("192.0.2.7:80", "172.17.0.2:53", 0),  # the same at the port of a frontend
            ("9.9.9.9:53", "9.9.9.9:53", 0),  # nobody's
            ("10.1.1.2:8080", "10.1.1.2:8080", 0),  # to the pod itself
            ("10.96.0.10:80", "10.1.1.77:8080", 7),  # in a zone of somebody else
        ]
    ):
        made(to, answers, 41000 + number, zone=zone)
    made("192.0.2.1:8053", "172.17.0.2:53", 41000, SCTP)
    before = kept()
    assert len(before) >= 7
    for objects in (web(*A), web(), {KEY: None, SLICE: None}):
        await change(at_work, {**objects})
    await at_work.resync()
    await at_work.running.flows.until_quiet()
    assert before.keys() <= kept().keys()
    assert deleted(at_work) == {}


async def test_only_the_stale_one_of_two_entries_goes_and_history_says_so(at_work: Rig) -> None:
    await change(at_work, {**web(*A, *B)})
    made("10.96.0.10:80", "10.1.1.2:8080", 41000)
    made("10.96.0.10:80", "10.1.1.3:8080", 41001)
    made("192.0.2.1:30080", "10.1.1.2:8080", 41001, SCTP)
    before = kept()
    await change(at_work, {SLICE: backends(*B)})
    assert len(before.keys() - kept().keys()) == 2
    assert deleted(at_work) == {"UDP": 1, "SCTP": 1}
    (record,) = (it for it in at_work.running.controller.history if it.event.startswith(FlowsReconciled.__name__))
    assert record.changes["services"] == (
        "frontend 10.96.0.10:80/UDP: 1 stale flow deleted",
        "frontend 192.0.2.1:30080/SCTP: 1 stale flow deleted",
    )
    assert record.operations == {"conntrack": 2}


# --- SCTP and TCP ------------------------------------------------------------------------------


@pytest.mark.parametrize("to", CLUSTER_IPS)
async def test_an_association_that_is_begun_again_from_its_port_reaches_who_is_there(at_work: Rig, to: str) -> None:
    await change(at_work, {**web(*A)})
    with entered(at_work.space("c")):
        raw = sctp.open_socket(socket.AF_INET6 if ":" in to else socket.AF_INET)
    with raw:
        raw.connect((to, 0))
        assert _associate(raw, to) == "a"
        await change(at_work, {SLICE: backends(*B)})
        assert _associate(raw, to) == "b"
    assert deleted(at_work) == {"SCTP": 1}


def _associate(raw: socket.socket, to: str) -> str:
    return sctp.ask(raw, to, 80, b"who?", PATIENCE, 45_000).decode().partition(" ")[0]


@pytest.mark.parametrize("to", [*CLUSTER_IPS, *EXTERNAL_IPS])
@pytest.mark.parametrize(
    "after",
    [{SLICE: backends(*B)}, {SLICE: backends()}, {KEY: None, SLICE: None}],
    ids=["its backend goes", "all backends go", "the Service goes"],
)
async def test_a_connection_lives_on(at_work: Rig, to: str, after: dict[ObjectKey, Object | None]) -> None:
    with listening(at_work.space("a"), to) as accept:
        await change(at_work, {KEY: service(), SLICE: _at_port(*A)})
        with client(at_work.space("c"), to, 80, socket.SOCK_STREAM) as it:
            it.connect((to, 80))
            with accept() as other:
                await change(at_work, after)
                await at_work.resync()
                await at_work.running.flows.until_quiet()
                it.sendall(b"still there?")
                assert other.recv(100) == b"still there?"
                other.sendall(b"yes")
                assert it.recv(100) == b"yes"
    assert deleted(at_work) == {}


@pytest.mark.parametrize("to", [*CLUSTER_IPS, *EXTERNAL_IPS])
async def test_a_connection_that_rests_is_remembered_as_long_as_under_kube_proxy(at_work: Rig, to: str) -> None:
    """A day, and an hour where the client has closed its half: a long answer may be waited for."""
    with listening(at_work.space("a"), to) as accept:
        await change(at_work, {KEY: service(), SLICE: _at_port(*A)})
        with client(at_work.space("c"), to, 80, socket.SOCK_STREAM) as it:
            it.connect((to, 80))
            with accept() as other:
                assert _remembered(80) == {"ESTABLISHED": 86400}
                it.shutdown(socket.SHUT_WR)
                assert other.recv(1) == b""
                other.sendall(b"late")
                assert it.recv(100) == b"late"
                assert _remembered(80) == {"CLOSE_WAIT": 3600}


def _remembered(port: int) -> dict[str, int]:
    """Of connections to a port: their states, and after how many seconds without a packet they are forgotten, to the
    next minute."""
    rows = [line.split() for line in Path("/proc/net/nf_conntrack").read_text().splitlines()]
    return {row[5]: -(-int(row[4]) // 60) * 60 for row in rows if row[2] == "tcp" and f"dport={port}" in row[:10]}


def _at_port(*addresses: str, port: int = 9090) -> BackendSlice:
    return BackendSlice(KEY, (BackendPort("TCP", TCP, port),), tuple(Member(parse_address(it)) for it in addresses))


@contextmanager
def listening(space: Space, to: str, port: int = 9090) -> Iterator[Callable[[], socket.socket]]:
    with in_space(space, socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_STREAM) as it:
        it.bind(("::" if ":" in to else "0.0.0.0", port))
        it.listen()
        it.settimeout(PATIENCE)

        def accept() -> socket.socket:
            other, _ = it.accept()
            other.settimeout(PATIENCE)
            return other

        yield accept


@pytest.mark.parametrize("to", CLUSTER_IPS)
async def test_a_connection_that_a_dead_backend_never_answered_reaches_a_living_one(at_work: Rig, to: str) -> None:
    """The client's next SYN, a second later, is drawn anew; else it would wait for minutes."""
    await change(at_work, {**web(*NOBODY)})
    with client(at_work.space("c"), to, 80, socket.SOCK_STREAM) as it:
        it.setblocking(False)
        with pytest.raises(BlockingIOError):
            it.connect((to, 80))
        await change(at_work, {SLICE: backends(*A)})
        assert deleted(at_work) == {"TCP": 1}
        it.settimeout(PATIENCE)
        assert it.recv(100).decode().partition(" ")[0] == "a"
