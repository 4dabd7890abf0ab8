"""ARP and neighbour discovery as bytes: there and back, and what is not right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.l2.filters import arp as arp_filter
from podwire.l2.filters import neighbour_discovery
from podwire.l2.packets import (
    ALL_NODES,
    ARP,
    REPLY,
    REQUEST,
    Advertisement,
    Solicitation,
    advertisement,
    announcements,
    answer,
    arp,
    arp_reply,
    group_mac,
    parse_advertisement,
    parse_arp,
    parse_solicitation,
    solicitation,
    solicited_node,
)
from podwire.model.addresses import Address, parse_address

MAC, OTHER = bytes.fromhex("02a1b2c3d4e5"), bytes.fromhex("02ffeeddccbb")
FOUR, SIX = parse_address("192.0.2.32"), parse_address("2001:db8:5::1:2")
CLIENT4, CLIENT6 = parse_address("192.0.2.1"), parse_address("fe80::1")
MACS = st.binary(min_size=6, max_size=6)
FOURS = st.binary(min_size=4, max_size=4).map(Address)
UNICAST = st.binary(min_size=16, max_size=16).filter(lambda it: it[0] != 0xFF and it != bytes(16)).map(Address)


@given(st.builds(ARP, st.sampled_from((REQUEST, REPLY)), MACS, FOURS, MACS, FOURS), st.binary(max_size=20))
def test_arp_goes_there_and_back_with_any_padding(it, padding) -> None:
    assert parse_arp(arp(it) + padding) == it


@given(UNICAST, UNICAST, UNICAST, st.none() | MACS, st.binary(max_size=20))
def test_a_solicitation_goes_there_and_back_with_any_padding(source, destination, target, mac, padding) -> None:
    it = Solicitation(source, destination, target, mac)
    assert parse_solicitation(solicitation(it) + padding) == it


@given(UNICAST, MACS)
def test_an_answer_goes_to_who_asked_and_an_unasked_one_to_all(target, mac) -> None:
    asked = Solicitation(CLIENT6, solicited_node(target), target, OTHER)
    assert parse_advertisement(answer(asked, mac)) == Advertisement(target, CLIENT6, mac, True)
    (told,) = announcements(target, mac)
    assert parse_advertisement(told) == Advertisement(target, ALL_NODES, mac, False)


@given(st.binary(max_size=120))
def test_garbage_is_none(data) -> None:
    assert parse_arp(data[:27]) is None
    assert parse_solicitation(data) is None
    assert parse_advertisement(data) is None


@given(st.data())
def test_one_wrong_bit_of_a_solicitation_is_seen(data) -> None:
    """But of the IPv6 header's class and flow, which no checksum has."""
    packet = bytearray(solicitation(Solicitation(CLIENT6, solicited_node(SIX), SIX, OTHER)))
    bit = data.draw(st.integers(4 * 8, len(packet) * 8 - 1))
    packet[bit // 8] ^= 1 << bit % 8
    assert parse_solicitation(bytes(packet)) is None


def test_a_probe_is_answered_as_by_an_owner() -> None:
    """RFC 5227: the sender of a probe is 0.0.0.0."""
    probe = ARP(REQUEST, OTHER, parse_address("0.0.0.0"), bytes(6), FOUR)
    assert parse_arp(arp_reply(probe, MAC)) == ARP(REPLY, MAC, FOUR, OTHER, parse_address("0.0.0.0"))


def test_who_looks_for_a_duplicate_is_answered_to_all() -> None:
    """RFC 4862, and RFC 4861, section 7.2.4."""
    looks = Solicitation(None, solicited_node(SIX), SIX, None)
    assert parse_solicitation(solicitation(looks)) == looks
    assert parse_advertisement(answer(looks, MAC)) == Advertisement(SIX, ALL_NODES, MAC, False)


def test_gratuitous_arp_is_a_request_and_a_reply() -> None:
    found = [parse_arp(each) for each in announcements(FOUR, MAC)]
    assert found == [ARP(REQUEST, MAC, FOUR, bytes(6), FOUR), ARP(REPLY, MAC, FOUR, MAC, FOUR)]


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (0, b"\x00\x06", "another hardware"),
        (2, b"\x86\xdd", "another protocol"),
        (4, b"\x08", "a longer hardware address"),
        (5, b"\x10", "a longer protocol address"),
        (6, b"\x00\x03", "another operation (RARP)"),
    ],
)
def test_other_arp_is_none(at, value, what) -> None:
    good = arp(ARP(REQUEST, MAC, CLIENT4, bytes(6), FOUR))
    assert parse_arp(good) is not None
    assert parse_arp(good[:at] + value + good[at + len(value) :]) is None, what


@pytest.mark.parametrize(
    ("it", "what"),
    [
        (Solicitation(CLIENT6, SIX, parse_address("ff02::1"), OTHER), "a group as target"),
        (Solicitation(None, SIX, SIX, None), "from nobody, to the address itself"),
        (Solicitation(None, solicited_node(SIX), SIX, OTHER), "from nobody, with a MAC address"),
    ],
)
def test_solicitations_that_no_host_may_send_are_none(it, what) -> None:
    assert parse_solicitation(solicitation(it)) is None, what


def test_an_advertisement_without_a_mac_address_or_solicited_to_a_group_tells_nothing() -> None:
    assert parse_advertisement(advertisement(Advertisement(SIX, ALL_NODES, MAC, True))) is None


def test_groups() -> None:
    assert solicited_node(SIX) == parse_address("ff02::1:ff01:2")
    assert group_mac(solicited_node(SIX)) == bytes.fromhex("3333ff010002")


def run(program: bytes, packet: bytes, kind: int, interface: int) -> int:
    """Classic BPF as the kernel runs it; of its instructions those that are used."""
    import struct

    at, a = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            a = {0xFFFFF004: kind, 0xFFFFF008: interface}[value]
        elif code in (0x28, 0x30):
            size = 2 if code == 0x28 else 1
            if len(packet) < value + size:
                return 0
            a = int.from_bytes(packet[value : value + size], "big")
        else:
            at += yes if (a == value if code == 0x15 else a > value) else no


TO_US, BROADCAST, OTHERS, OUTGOING = 0, 1, 3, 4


@pytest.mark.parametrize(
    ("program", "packet", "kind", "interface", "heard"),
    [
        (arp_filter, arp(ARP(REQUEST, MAC, CLIENT4, bytes(6), FOUR)), BROADCAST, 7, True),
        (arp_filter, arp(ARP(REPLY, MAC, CLIENT4, bytes(6), FOUR)), TO_US, 7, True),
        (arp_filter, arp(ARP(3, MAC, CLIENT4, bytes(6), FOUR)), BROADCAST, 7, False),
        (arp_filter, arp(ARP(REQUEST, MAC, CLIENT4, bytes(6), FOUR)), OUTGOING, 7, False),
        (arp_filter, arp(ARP(REQUEST, MAC, CLIENT4, bytes(6), FOUR)), OTHERS, 7, False),
        (arp_filter, arp(ARP(REQUEST, MAC, CLIENT4, bytes(6), FOUR)), BROADCAST, 8, False),
        (neighbour_discovery, solicitation(Solicitation(CLIENT6, SIX, SIX, MAC)), TO_US, 7, True),
        (neighbour_discovery, advertisement(Advertisement(SIX, ALL_NODES, MAC)), BROADCAST, 7, True),
        (neighbour_discovery, solicitation(Solicitation(CLIENT6, SIX, SIX, MAC)), OUTGOING, 7, False),
        (neighbour_discovery, solicitation(Solicitation(CLIENT6, SIX, SIX, MAC)), TO_US, 1007, False),
        (neighbour_discovery, bytes(40), TO_US, 7, False),
        (neighbour_discovery, solicitation(Solicitation(CLIENT6, SIX, SIX, MAC))[:40] + b"\x80", TO_US, 7, False),
    ],
)
def test_filters(program, packet, kind, interface, heard) -> None:
    assert bool(run(program(7), packet, kind, interface)) is heard
