"""Which tracked flows are stale, what is asked of the kernel, and what a deletion says."""

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controller.events import KubeStateChange
from podwire.controller.snapshot import fold
from podwire.dataplane.conntrack import messages as m
from podwire.dataplane.messages import attr, attrs, nest
from podwire.model.addresses import FAMILIES, IPV4, IPV6, Address, Family, parse_address, parse_host_port, parse_prefix
from podwire.model.network import Backend, ExternalKey, Frontend, HostPortKey, InternalKey, Slots
from podwire.model.objects import Node, NodeKey, Protocol
from podwire.model.snapshot import UNKNOWN, Local, Snapshot
from podwire.services.stale import Flow, frontend_of, is_inside, lost, stale, watched

RANGES = (parse_prefix("10.96.0.0/16"),)
A, B, C = "10.1.1.2:53", "10.1.1.3:53", "10.1.1.4:53"
NONE, DROPPED = Slots(None, (), refused=True), Slots(None, (), dropped=True)


def backend(text: str) -> Backend:
    return Backend(*parse_host_port(text))


def frontend(text: str, protocol: Protocol = Protocol.UDP) -> Frontend:
    address, port = parse_host_port(text)
    return Frontend(address, protocol, port)


def serving(*texts: str) -> Slots:
    """The first slot is empty, as one is that lost its backend."""
    return Slots(4, (None, *map(backend, texts)))


DNS, NODE_PORT, GONE = "10.96.0.10:53", "192.0.2.1:30053", "10.96.0.11:53"
HELD: dict[Any, Any] = {
    frontend(DNS): serving(A, B),
    frontend(NODE_PORT): serving(A, "192.0.2.1:30053"),
    frontend("10.96.0.12:53"): NONE,
    frontend("203.0.113.1:53"): NONE,
    frontend("203.0.113.2:53"): serving(A),
    frontend("10.96.0.13:53"): UNKNOWN,
    frontend("203.0.113.3:53"): serving(A),
    InternalKey(frontend("203.0.113.3:53")): serving(A, B),
    frontend("203.0.113.4:53"): serving(A),
    InternalKey(frontend("203.0.113.4:53")): UNKNOWN,
    frontend("192.0.2.1:30055"): DROPPED,
    InternalKey(frontend("192.0.2.1:30055")): serving(A),
    frontend("203.0.113.5:53"): serving(A),
    InternalKey(frontend("203.0.113.5:53")): serving(B),
}
POD, OUTSIDE = parse_address("10.1.1.9"), parse_address("198.51.100.9")
FORMER = {frontend("192.0.2.1:30054"): frozenset({backend(C)})}


@pytest.mark.parametrize(
    ("to", "answers", "is_stale"),
    [
        pytest.param(DNS, A, False, id="to a backend in force"),
        pytest.param(DNS, C, True, id="to a backend that is gone"),
        pytest.param(DNS, "10.1.1.2:54", True, id="to another port of a backend"),
        pytest.param(DNS, DNS, True, id="made before the frontend had backends"),
        pytest.param(NODE_PORT, NODE_PORT, False, id="to a backend that is where the frontend is"),
        pytest.param("10.96.0.12:53", A, True, id="to the last backend, which is gone"),
        pytest.param("203.0.113.1:53", "203.0.113.1:53", False, id="never the Service's, which has no backend"),
        pytest.param("203.0.113.2:53", "203.0.113.2:53", True, id="never the Service's, which now has backends"),
        pytest.param("10.96.0.13:53", C, False, id="to a frontend of which nothing is known"),
        pytest.param("203.0.113.3:53", B, False, id="to a backend in force for clients in the cluster alone"),
        pytest.param("203.0.113.3:53", C, True, id="to a backend that is gone from both lists"),
        pytest.param("203.0.113.4:53", C, False, id="to a frontend whose list for the cluster is not known"),
        pytest.param("192.0.2.1:30055", A, False, id="to a backend of clients in the cluster, others being dropped"),
        pytest.param("192.0.2.1:30055", C, True, id="to nobody's backend, others being dropped"),
        pytest.param(GONE, A, True, id="to a cluster IP that no Service has any more"),
        pytest.param(GONE, GONE, False, id="refused anyway"),
        pytest.param("192.0.2.1:30054", C, True, id="to the backend of a node port that has just gone"),
        pytest.param("192.0.2.1:30054", "172.17.0.2:53", False, id="to a container, by another's rules, in its place"),
        pytest.param("192.0.2.1:8053", "172.17.0.2:53", False, id="another's rules"),
        pytest.param("9.9.9.9:53", "9.9.9.9:53", False, id="nobody's rules"),
        pytest.param("10.1.1.4:53", "10.1.1.4:53", False, id="to a pod itself"),
        pytest.param("10.96.0.10:54", "10.96.0.10:54", False, id="another port of the Service's address"),
    ],
)
def test_a_flow_is_stale_where_its_service_sends_nobody(to: str, answers: str, is_stale: bool) -> None:
    flow = Flow(frontend(to), backend(answers), POD)
    assert stale(flow, HELD, FORMER, RANGES, POD.__eq__) is is_stale


NODE, OTHER_NODE, ZEROS = "192.0.2.1", "192.0.2.2", "0.0.0.0"
MAPPED = HELD | {
    HostPortKey(frontend(f"{ZEROS}:8053")): backend(A),
    HostPortKey(frontend(f"{NODE}:8054")): backend(A),
    HostPortKey(frontend(f"{ZEROS}:8054")): backend(B),
    HostPortKey(frontend(f"{ZEROS}:8055")): UNKNOWN,
    HostPortKey(frontend(f"{ZEROS}:30053")): backend(C),
}
FREED = {frontend(f"{ZEROS}:8056"): frozenset({backend(A)}), frontend(f"{NODE}:8057"): frozenset({backend(A)})}


@pytest.mark.parametrize(
    ("to", "answers", "is_stale"),
    [
        pytest.param(f"{NODE}:8053", A, False, id="to the pod that has the port"),
        pytest.param(f"{NODE}:8053", B, True, id="to one that had it"),
        pytest.param(f"{NODE}:8053", f"{NODE}:8053", True, id="made before a pod had it"),
        pytest.param(f"{OTHER_NODE}:8053", f"{OTHER_NODE}:8053", False, id="to another node's port"),
        pytest.param("9.9.9.9:8053", "9.9.9.9:8053", False, id="to that port anywhere"),
        pytest.param("9.9.9.9:8053", "172.17.0.2:53", False, id="to that port anywhere, by another's rules"),
        pytest.param(f"{NODE}:8054", A, False, id="to the pod that has it at this address"),
        pytest.param(f"{NODE}:8054", B, True, id="to the pod that has it at all others"),
        pytest.param("127.0.0.1:8054", B, False, id="at another address"),
        pytest.param(f"{NODE}:8055", C, False, id="to a port of which nothing is known"),
        pytest.param(NODE_PORT, A, False, id="to the Service that goes before it"),
        pytest.param(NODE_PORT, C, True, id="to the pod, where a Service goes before it"),
        pytest.param("127.0.0.1:30053", C, False, id="to the pod, where the Service is not"),
        pytest.param(f"{NODE}:8056", A, True, id="to a pod that has just lost it"),
        pytest.param(f"{NODE}:8056", f"{NODE}:8056", False, id="never to the pod that has just lost it"),
        pytest.param(f"{NODE}:8056", "172.17.0.2:53", False, id="to a container in its place, by another's rules"),
        pytest.param(f"{NODE}:8057", A, True, id="to a pod that has just lost it at this address"),
        pytest.param("127.0.0.1:8057", A, False, id="to a pod that has just lost it elsewhere"),
    ],
)
def test_a_flow_is_stale_where_its_host_port_leads_to_nobody_or_elsewhere(
    to: str, answers: str, is_stale: bool
) -> None:
    own = {parse_address(NODE), parse_address("127.0.0.1")}
    flow = Flow(frontend(to), backend(answers), OUTSIDE)
    assert stale(flow, MAPPED, FORMER | FREED, RANGES, POD.__eq__, own.__contains__) is is_stale


def test_a_port_that_goes_to_another_pod_leaves_flows_stale() -> None:
    at = HostPortKey(frontend(f"{ZEROS}:8053"))
    assert watched(at) == at.frontend
    assert lost(backend(A), backend(B)) == {backend(A)}
    assert lost(backend(A), None) == {backend(A)}
    assert lost(None, backend(A)) == frozenset()
    assert lost(backend(A), backend(A)) is None


@pytest.mark.parametrize(
    ("client", "to", "answers", "is_stale"),
    [
        pytest.param(OUTSIDE, "203.0.113.3:53", A, False, id="outside, to the list of all"),
        pytest.param(OUTSIDE, "203.0.113.3:53", B, True, id="outside, to a backend for the cluster alone"),
        pytest.param(POD, "203.0.113.3:53", B, False, id="a pod, to a backend for the cluster alone"),
        pytest.param(OUTSIDE, "192.0.2.1:30055", A, True, id="outside, where it is dropped now"),
        pytest.param(POD, "192.0.2.1:30055", A, False, id="a pod, where others are dropped"),
        pytest.param(POD, "203.0.113.5:53", A, True, id="a pod, to a backend for all others alone"),
        pytest.param(OUTSIDE, "203.0.113.5:53", A, False, id="outside, to a backend for all others alone"),
        pytest.param(OUTSIDE, DNS, B, False, id="outside, where there is one list"),
    ],
)
def test_a_flow_is_judged_by_the_list_of_its_client(client: Address, to: str, answers: str, is_stale: bool) -> None:
    flow = Flow(frontend(to), backend(answers), client)
    assert stale(flow, HELD, FORMER, RANGES, POD.__eq__) is is_stale


@pytest.mark.parametrize(
    ("client", "inside"),
    [
        pytest.param("10.1.2.9", True, id="a pod of another node"),
        pytest.param("192.0.2.1", True, id="the node"),
        pytest.param("192.0.2.77", True, id="the node, by what only its kernel says"),
        pytest.param("127.0.0.1", True, id="the node's loopback"),
        pytest.param("::1", True, id="the node's IPv6 loopback"),
        pytest.param("192.0.2.2", False, id="another node"),
        pytest.param("198.51.100.9", False, id="somebody else"),
        pytest.param("2001:db8::1", False, id="somebody else's IPv6"),
    ],
)
def test_pods_and_the_node_find_the_list_for_the_cluster(client: str, inside: bool) -> None:
    local = Local("one", addresses=frozenset({parse_address("192.0.2.77")}))
    nodes: list[tuple[NodeKey, Node]] = [
        (NodeKey("one"), Node((parse_prefix("10.1.1.0/24"),), (parse_address("192.0.2.1"),))),
        (NodeKey("two"), Node((parse_prefix("10.1.2.0/24"),), (parse_address("192.0.2.2"),))),
    ]
    now, _ = fold(Snapshot(local), KubeStateChange(tuple(nodes)))
    assert is_inside(now, parse_address(client)) is inside


def test_a_flow_of_another_protocol_is_another_frontend_s() -> None:
    assert not stale(Flow(frontend("192.0.2.1:30053", Protocol.SCTP), backend(C), POD), HELD, {}, RANGES, POD.__eq__)


def test_while_not_all_is_known_a_cluster_ip_without_frontend_may_be_somebody_s() -> None:
    assert not stale(Flow(frontend(GONE), backend(A), POD), HELD, {}, (), POD.__eq__)


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        pytest.param(None, serving(A), set(), id="comes with backends"),
        pytest.param(NONE, serving(A), set(), id="gets its first backend"),
        pytest.param(serving(A), serving(A, B), None, id="gets another one"),
        pytest.param(serving(A, B), serving(A), {B}, id="loses one"),
        pytest.param(serving(A), serving(B), {A}, id="moves"),
        pytest.param(serving(A, B), NONE, {A, B}, id="loses all"),
        pytest.param(serving(A), None, {A}, id="goes"),
        pytest.param(None, NONE, None, id="comes without backends"),
        pytest.param(NONE, None, None, id="goes without backends"),
        pytest.param(serving(A), Slots(1, (backend(A),)), None, id="changes slots only"),
    ],
)
def test_a_change_is_looked_after_where_it_can_leave_stale_flows(
    before: Any, after: Any, gone: set[str] | None
) -> None:
    found = lost(before, after)
    assert found == (None if gone is None else {backend(it) for it in gone})


def test_the_list_for_the_cluster_is_its_frontend_s() -> None:
    it = frontend(NODE_PORT)
    assert (frontend_of(it), frontend_of(InternalKey(it)), frontend_of(ExternalKey(it))) == (it, it, None)


# --- netlink -----------------------------------------------------------------------------------


def _tuple(kind: int, source: Address, to: Address, protocol: int, ports: tuple[int, int], zone: bytes = b"") -> bytes:
    first = 1 if len(source) == 4 else 3
    inner = nest(1, attr(first, source), attr(first + 1, to))
    inner += nest(2, attr(1, bytes((protocol,))), *(attr(2 + n, pack(">H", port)) for n, port in enumerate(ports)))
    return nest(kind, inner + zone)


def entry(flow: Flow, client: Address, port: int, extra: bytes = b"", zone: bytes = b"", status: int = 0x188) -> bytes:
    """As the kernel (6.18) told it."""
    protocol = int(flow.to.protocol)
    body = bytes((2 if len(client) == 4 else 10, 0, 0, 0))
    body += _tuple(1, client, flow.to.address, protocol, (port, flow.to.port), zone)
    body += _tuple(2, flow.answers.address, client, protocol, (flow.answers.port, port))
    return body + extra + attr(3, pack(">I", status)) + attr(7, pack(">I", 60)) + attr(12, pack(">I", 0xC0FFEE))


def _addresses(family: Family) -> st.SearchStrategy[Address]:
    return st.binary(min_size=family.size, max_size=family.size).map(Address)


PORTS = st.integers(0, 65535)


@given(st.data(), st.sampled_from(FAMILIES), st.sampled_from([Protocol.UDP, Protocol.SCTP]))
def test_what_an_entry_says_is_read_back(data: st.DataObject, family: Family, protocol: Protocol) -> None:
    addresses = _addresses(family)
    to = Frontend(data.draw(addresses), protocol, data.draw(PORTS))
    flow = Flow(to, Backend(data.draw(addresses), data.draw(PORTS)), data.draw(addresses))
    body = entry(flow, flow.client, data.draw(PORTS))
    assert list(m.entries(family, [body])) == [m.Entry(flow, body)]


@given(st.data(), st.sampled_from(FAMILIES))
def test_only_the_entries_of_the_frontends_asked_for_are_read(data: st.DataObject, family: Family) -> None:
    """The same as all of them, and then only those: few addresses and ports, so that they differ in one part only."""
    addresses = st.sampled_from([Address(bytes([n] * family.size)) for n in range(3)])
    protocols, ports = st.sampled_from([Protocol.UDP, Protocol.SCTP]), st.sampled_from([0, 1, 256, 257])
    frontends = st.builds(Frontend, addresses, protocols, ports)
    flows = st.builds(Flow, frontends, st.builds(Backend, addresses, ports))
    bodies = [entry(flow, data.draw(addresses), data.draw(ports)) for flow in data.draw(st.lists(flows))]
    asked = data.draw(st.frozensets(frontends))
    zeros = Address(bytes(family.size))  # as an address it stands for all
    expected = [
        it
        for it in m.entries(family, bodies)
        if it.flow.to in asked or Frontend(zeros, it.flow.to.protocol, it.flow.to.port) in asked
    ]
    assert list(m.entries(family, bodies, m.to_frontends(asked))) == expected


@given(st.binary(max_size=400), st.sampled_from(FAMILIES))
def test_what_is_no_entry_is_none(body: bytes, family: Family) -> None:
    assert list(m.entries(family, [body])) == []


ME4, ME6 = parse_address("10.1.1.9"), parse_address("fd01::9")
FLOW4 = Flow(frontend(DNS), backend(C), ME4)
FLOW6 = Flow(frontend("[fd00:96::a]:53"), backend("[fd01::2]:53"), ME6)


@pytest.mark.parametrize("flow", [FLOW4, FLOW6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(
    ("extra", "zone"),
    [
        pytest.param(attr(18, pack(">H", 7)), b"", id="both directions"),
        pytest.param(b"", attr(3, pack(">H", 7)), id="the client's direction"),
    ],
)
def test_an_entry_of_another_zone_is_nobody_s(flow: Flow, extra: bytes, zone: bytes) -> None:
    client = ME4 if len(flow.to.address) == 4 else ME6
    assert list(m.entries(flow.to.family, [entry(flow, client, 40000, extra, zone)])) == []


@pytest.mark.parametrize(
    ("status", "state", "taken"),
    [
        pytest.param(0x188, 1, True, id="SYN sent, no answer yet"),
        pytest.param(0x18A, 2, False, id="SYN received"),
        pytest.param(0x18A, 3, False, id="established"),
        pytest.param(0x188, 3, False, id="picked up in the middle"),
        pytest.param(0x188, None, False, id="of unknown state"),
    ],
)
def test_of_tcp_only_what_waits_for_its_first_answer(status: int, state: int | None, taken: bool) -> None:
    flow = Flow(frontend(DNS, Protocol.TCP), backend(C), ME4)
    extra = b"" if state is None else nest(4, nest(1, attr(1, bytes((state,)))))
    assert bool(list(m.entries(IPV4, [entry(flow, ME4, 40000, extra, status=status)]))) is taken


@pytest.mark.parametrize(("flow", "client", "family"), [(FLOW4, ME4, 2), (FLOW6, ME6, 10)], ids=["IPv4", "IPv6"])
def test_a_deletion_names_its_entry_by_tuple_and_id(flow: Flow, client: Address, family: int) -> None:
    """Without a tuple it would be a flush."""
    body = entry(flow, client, 40000)
    kind, flags, said = m.deletion(m.Entry(flow, body))
    assert (kind, flags, said[0]) == (0x102, 0, family)
    found = attrs(said, 4)
    assert found == {1: attrs(body, 4)[1], 12: pack(">I", 0xC0FFEE)}


def ports_asked(found: list[m.Query]) -> list[tuple[str, str, int | None]]:
    return [(query.family.name, query.protocol.name, query.port) for query in found]


def test_few_ports_are_asked_for_one_by_one_and_many_at_once() -> None:
    few = [frontend("10.96.0.1:53"), frontend("10.96.0.2:53"), frontend("[fd00::1]:54")]
    many = [frontend(f"10.96.0.1:{port}", Protocol.SCTP) for port in range(1, 4)]
    assert ports_asked(m.queries(few, False)) == [("IPv4", "UDP", 53), ("IPv6", "UDP", 54)]
    assert ports_asked(m.queries(many + few, False)) == [
        ("IPv4", "UDP", 53),
        ("IPv4", "SCTP", None),
        ("IPv6", "UDP", 54),
    ]
    kinds = [(family.name, protocol.name, None) for family in (IPV4, IPV6) for protocol in Protocol]
    assert ports_asked(m.queries(few, True)) == kinds
