"""The bytes of a trace: what is asked of the kernel, and what it tells; any bytes are taken."""

import errno
from struct import pack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from podwire.dataplane.messages import Notice, attr, attrs, nest, text
from podwire.dataplane.nftables import wire
from podwire.dataplane.nftables.layout import rules_of
from podwire.model.addresses import IPV4, IPV6, parse_address
from podwire.model.objects import Protocol
from podwire.trace import answer, asked, events, flow, own, table, texts
from podwire.trace.answer import Outcome
from podwire.trace.events import Kind, TraceEvent
from tests.unit import trace_told
from tests.unit.served_agent import frontend, node

V4 = table.Probe(parse_address("10.1.1.2"), 40000, frontend("10.96.0.10"), 7)
V6 = table.Probe(parse_address("fd01::2"), 40000, frontend("fd00:96::a", 53, Protocol.UDP))
BYTES = st.binary(max_size=400)


@st.composite
def nested(draw: st.DrawFn) -> bytes:
    """Attributes in attributes, with whatever in them."""
    parts = draw(st.lists(st.tuples(st.integers(0, 30), BYTES | st.builds(lambda b: attr(1, b), BYTES)), max_size=12))
    return b"".join(attr(kind, body) for kind, body in parts)


@given(st.sampled_from([events.TRACE, 0, 2576]), st.binary(max_size=4), nested() | BYTES)
@example(events.TRACE, b"\2\0\0\0", attr(4, pack(">I", 3)) + attr(8, b"\x45" + bytes(18)) + attr(9, b"\0"))
@example(events.TRACE, b"\2\0\0\0", bytes(8))  # an attribute of no length
def test_any_message_gives_an_event_or_none(kind: int, head: bytes, rest: bytes) -> None:
    event = events.read(Notice(kind, head + rest, None))
    assert event is None or (kind == events.TRACE and isinstance(event, TraceEvent))


@given(nested() | BYTES)
def test_any_entry_is_taken_whole_or_not_at_all(body: bytes) -> None:
    for probe in (V4, V6):
        found = flow.entry(probe, bytes(4) + body)
        assert found is None or {len(found.server.address), len(found.client.address)} == {probe.family.size}


@given(BYTES)
def test_any_extended_error_is_taken(data: bytes) -> None:
    found = answer.icmp(data)
    assert found is None or data[4] in (2, 3)


@given(st.text(max_size=300))
@example("table ip x {\n\tchain c { # handle 1\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}")
def test_any_listing_is_taken(listing: str) -> None:
    assert all("# handle" not in rule or rule.count("# handle") for rule in texts.read(listing).rules.values())


IDENTITIES = st.integers(0, 3)


@given(
    st.lists(
        st.builds(
            TraceEvent,
            st.just("ip"),
            st.sampled_from(["podwire", table.TABLE, "filter"]),
            st.sampled_from([table.BEGIN, table.ANSWERS, "FORWARD"]),
            st.sampled_from(list(Kind)),
            st.sampled_from(["accept", "drop", "continue"]),
            identity=IDENTITIES,
        ),
        max_size=30,
    )
)
def test_every_packet_begins_with_a_mark_and_nothing_is_told_twice(some: list[TraceEvent]) -> None:
    found = events.packets(V4, some)
    told = [event for packet in found for event in packet.events]
    assert len(told) <= len(some)
    for packet in found:
        assert packet.events[0].marks
        assert packet.events[0].kind is Kind.RULE
        assert len({event.identity for event in packet.events}) == 1
        assert packet.answer is (packet.events[0].chain != table.BEGIN)


def test_what_another_trace_is_told_is_left_out() -> None:
    other = V4.__class__(parse_address("10.1.1.9"), 1, V4.to, 7)
    read = [event for notice in trace_told.TOLD if (event := events.read(notice)) is not None]
    unmarked = [event for event in read if not event.marks]
    assert events.packets(other, unmarked) == []
    assert events.packets(V4, unmarked) == []


@pytest.mark.parametrize(("probe", "hook"), [(V4, 0), (V6, 3)], ids=["a pod's", "the node's own"])
@pytest.mark.parametrize("owned", [True, False])
def test_the_table(probe: table.Probe, hook: int, owned: bool) -> None:
    made = table.make(probe, owned=owned)
    assert [message.kind for message in made] == [wire.NEWTABLE, *[wire.NEWCHAIN] * 6, *[wire.NEWRULE] * 3]
    assert all(attrs(message.body, 4)[1] == b"podwire_trace\0" for message in made)
    assert {message.body[0] for message in made} == {probe.family.number}
    assert (2 in attrs(made[0].body, 4)) is owned
    begin = attrs(attrs(made[1].body, 4)[4])
    assert int.from_bytes(begin[1], "big") == hook
    rule = made[-3].body
    for part in (probe.source, probe.to.address, pack(">H", probe.port), pack(">H", probe.to.port)):
        assert nest(3, attr(1, part)) in rule
    assert (attr(1, pack("=I", probe.interface)) in rule) is (probe.interface != 0)


def test_our_own_table_is_not_taken_for_it() -> None:
    assert text(1, "podwire") not in table.request(IPV4)
    assert table.remove(IPV6)[0].kind == wire.DELTABLE


LISTING = (
    "table inet filter {\n"
    "\tchain FORWARD { # handle 3\n"
    "\t\ttype filter hook forward priority filter + 10; policy drop;\n"
    "\t\tip saddr {\n"
    "\t\t\t 10.0.0.1, 10.0.0.2 } drop # handle 7\n"
    '\t\tiifname "reject0" accept comment "# handle 9" # handle 8\n'
    "\t}\n}\n"
)


def test_a_listing() -> None:
    found = texts.read(LISTING)
    assert (found.hook, found.priority) == ("forward", "filter + 10")
    assert found.rules == {
        7: "ip saddr { 10.0.0.1, 10.0.0.2 } drop",
        8: 'iifname "reject0" accept comment "# handle 9"',
    }


def test_our_own_rules_are_told_only_where_they_are_as_many() -> None:
    for chain in ("pre", "c4", "affine60", "affinein60", "learn60"):
        counts = [count for count in range(60) if own.listing(IPV4, chain, list(range(count))).rules]
        assert len(counts) == 1, chain
    rules = rules_of(IPV6)["pre"]
    assert own.listing(IPV6, "pre", list(range(6, 6 + len(rules)))).rules == dict(enumerate(rules, 6))
    assert own.listing(IPV4, "somebodys", [1]) == texts.NOTHING


def test_whose_text_is_asked_for() -> None:
    def event(table: str, chain: str, verdict: str, kind: Kind = Kind.RULE) -> TraceEvent:
        return TraceEvent("ip", table, chain, kind, verdict)

    some = (event("podwire", "pre", "goto"), event("a", "jumps", "jump"), event("a", "ends", "accept"))
    told = [events.Packet(False, (*some, event("a", "policy", "accept", Kind.POLICY), event("b", "drops", "drop")))]
    assert events.foreign(told, every=False) == [("ip", "b", "drops"), ("ip", "a", "ends")]
    assert {chain for _, _, chain in events.foreign(told, every=True)} == {"drops", "ends", "jumps", "policy"}


@pytest.mark.parametrize(
    ("rule", "rejects"),
    [
        ("tcp dport 80 reject with tcp reset", True),
        ('xt target "REJECT"', False),
        ("counter REJECT", True),
        ('iifname "reject0" drop comment "to reject"', False),
        ("jump rejected", False),
    ],
)
def test_who_is_told(rule: str, rejects: bool) -> None:
    assert texts.rejects(rule) is rejects


def extended(origin: int, kind: int, code: int, sender: str) -> bytes:
    packed = parse_address(sender)
    at = bytes(8) if len(packed) == 16 else bytes(4)
    return pack("=IBBBxII", 0, origin, kind, code, 0, 0) + at + packed


@pytest.mark.parametrize(
    ("code", "told", "protocol", "outcome", "words"),
    [
        (errno.ECONNREFUSED, b"", Protocol.TCP, Outcome.RESET, "refused by a reset after 1.0 ms"),
        (
            errno.ECONNREFUSED,
            extended(2, 3, 3, "10.1.1.3"),
            Protocol.UDP,
            Outcome.ICMP,
            "refused by ICMP (port unreachable, says 10.1.1.3) after 1.0 ms",
        ),
        (
            errno.EHOSTUNREACH,
            extended(3, 1, 1, "fd01::1"),
            Protocol.TCP,
            Outcome.ICMP,
            "refused by ICMP (administratively prohibited, says fd01::1) after 1.0 ms",
        ),
        (
            errno.EHOSTUNREACH,
            extended(2, 3, 77, "::"),
            Protocol.TCP,
            Outcome.ICMP,
            "refused by ICMP (type 3 code 77, says",
        ),
        (errno.EPERM, b"", Protocol.UDP, Outcome.NOT_PERMITTED, "not permitted (a packet filter dropped it"),
        (errno.ENETUNREACH, b"", Protocol.TCP, Outcome.UNREACHABLE, "no way there (Network is unreachable)"),
        (errno.EMFILE, b"", Protocol.TCP, Outcome.FAILED, "failed (Too many open files) after 1.0 ms"),
    ],
)
def test_what_the_client_was_told(code: int, told: bytes, protocol: Protocol, outcome: Outcome, words: str) -> None:
    found = answer.failed(code, answer.icmp(told), protocol, 1.0)
    assert found.outcome is outcome
    assert answer.in_words(found, protocol).startswith(words)


def test_silence_of_udp_proves_little() -> None:
    silent = answer.Answer(Outcome.SILENCE, 3000)
    assert answer.in_words(silent, Protocol.TCP) == "no answer within 3 s"
    assert answer.in_words(silent, Protocol.UDP).startswith("no answer within 3 s; of a UDP server that proves little")


@pytest.mark.parametrize(
    ("source", "to", "error"),
    [
        ("node", "10.96.0.10", "to: '10.96.0.10': expected IP:PORT"),
        ("node", "10.96.0.10:80/SCTP", "to: '10.96.0.10:80/SCTP': a trace sends TCP or UDP, not SCTP"),
        ("x", "10.96.0.10:80", "from: 'x': expected an IP address, node, or a pod"),
        ("192.0.2.9", "10.96.0.10:80", "192.0.2.9: no pod of node one; a trace is sent by one of these, or by node"),
        ("shop/none", "10.96.0.10:80", "no pod/shop/none on node one"),
    ],
)
def test_what_can_not_be_asked(source: str, to: str, error: str) -> None:
    with pytest.raises((ValueError, LookupError)) as raised:
        asked.asked(node(), source, to)
    assert str(raised.value).startswith(error)


def test_who_is_asked_to_send() -> None:
    found = asked.asked(node(), "shop/front", "10.96.0.10:80")
    assert found.attachment is not None
    assert (found.attachment.pod.name, found.link[:2], found.client) == ("front", "pw", parse_address("10.1.1.2"))
    assert asked.asked(node(), "10.1.1.2", "10.96.0.10:80") == found
    assert asked.asked(node(), "node", "10.96.0.10:80").attachment is None


@pytest.mark.parametrize("wrong", ["0", "0.05", "31", "nan", "inf", "-1", "", "3s"])
def test_a_wrong_time(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"timeout: expected seconds from 0\.1 to 30; found "):
        asked.seconds(wrong)
    assert asked.seconds(None) == 3.0
