"""What becomes of the kernel's notices of the node's addresses: what to act on, however many they are."""

from struct import pack
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controller.events import NodeAddressesChanged
from podwire.dataplane.linux.addresses import Held, State, heard
from podwire.dataplane.messages import Notice, attr
from podwire.model.addresses import Address, parse_address, prefix_around

NEWADDR, DELADDR, LOCAL, PEER = 20, 21, 2, 1
"""rtnetlink(7)."""
LINK_SCOPE = 253
MANY = 2000


class Told(NamedTuple):
    """An address of an interface came or went; `peer` is its other end's, where it is a tunnel's."""

    there: bool
    address: Address
    length: int = 32
    interface: int = 5
    peer: Address | None = None
    scope: int = 0

    @property
    def notice(self) -> Notice:
        family = 2 if len(self.address) == 4 else 10
        body = pack("=BBBBI", family, self.length, 0, self.scope, self.interface)
        body += attr(LOCAL, self.address) + attr(PEER, self.peer or self.address)
        return Notice(NEWADDR if self.there else DELADDR, body, None)


def address(number: int) -> Address:
    return Address(pack(">I", 0x0A600000 + number))


@st.composite
def tellings(draw: st.DrawFn) -> Told:
    own = draw(st.sampled_from([*map(address, range(3)), *map(parse_address, ("fd00::1", "fd00::2"))]))
    length = draw(st.sampled_from((16, 24) if len(own) == 4 else (64,)))
    return Told(draw(st.booleans()), own, length, draw(st.integers(1, 2)), scope=draw(st.sampled_from((0, LINK_SCOPE))))


def naive(told: list[Told]) -> list[State]:
    """Each state after another."""
    there: set[Told] = set()
    states = [State(frozenset(), frozenset())]
    for it in told:
        there = {each for each in there if each[1:4] != it[1:4]} | ({it} if it.there and not it.scope else set())
        networks = frozenset(prefix_around(each.address, each.length) for each in there)
        states.append(State(frozenset(each.address for each in there), networks))
    return states


@given(st.lists(tellings(), max_size=8), st.lists(tellings(), max_size=12))
def test_who_was_away_meanwhile_is_told_and_then_who_is_there(before: list[Told], told: list[Told]) -> None:
    held: Held = {}
    heard(held, [it.notice for it in before])
    passed = naive([*before, *told])[len(before) :]
    found = heard(held, [it.notice for it in told])
    assert len(found) <= 2
    assert ([passed[0], *found])[-1] == passed[-1]
    assert {state.networks for state in found} <= {passed[-1].networks}
    both = passed[0].addresses & passed[-1].addresses
    always = frozenset.intersection(*(state.addresses for state in passed))
    assert frozenset.intersection(both, *(state.addresses for state in found)) == always


@pytest.mark.parametrize("back", [False, True], ids=["gone", "gone and back"])
def test_many_that_go_are_one_change(back: bool) -> None:
    """As with a link that had an address for each Service."""
    stays = Told(True, parse_address("192.0.2.1"), 24)
    held: Held = {}
    heard(held, [stays.notice, *(Told(True, address(n)).notice for n in range(MANY))])
    gone = [Told(False, address(n)).notice for n in range(MANY)]
    came = [Told(True, address(n)).notice for n in range(MANY)] if back else []
    found = heard(held, gone + came)
    assert [len(state.addresses) for state in found] == ([1, MANY + 1] if back else [1])


def test_another_other_end_takes_the_place_of_the_first() -> None:
    """Of IPv6 the kernel has an address of an interface once (RFC 4862)."""
    held: Held = {}
    one, ends = parse_address("fd00::7"), [parse_address(f"fd00:{n}::1") for n in (3, 4)]
    found = [heard(held, [Told(True, one, 128, peer=end).notice]) for end in ends]
    assert found == [[State(frozenset((one,)), frozenset((prefix_around(end, 128),)))] for end in ends]


def test_an_event_with_many_addresses_is_shown_in_one_line() -> None:
    shown = str(NodeAddressesChanged(frozenset(map(address, range(MANY)))))
    assert shown.startswith("NodeAddressesChanged 10.96.0.0, 10.96.0.1, ")
    assert shown.endswith(" more")
    assert len(shown) < 200
    assert str(NodeAddressesChanged(frozenset())) == "NodeAddressesChanged none"
