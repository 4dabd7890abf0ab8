"""Which node answers for an address: every one names the same, and few addresses move."""

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from podwire.loadbalancer.election import owner
from podwire.model.addresses import Address, parse_address

NODES = st.sets(st.text("abc-0123456789.", min_size=1, max_size=12), min_size=1, max_size=12)
ADDRESSES = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)).map(Address)


@given(NODES, ADDRESSES, st.randoms(use_true_random=False))
def test_all_name_the_same_node_in_whatever_order_they_know_them(nodes, address, random) -> None:
    mixed = sorted(nodes)
    random.shuffle(mixed)
    assert owner(address, mixed) == owner(address, sorted(nodes)) in nodes


@given(NODES, st.text("xyz", min_size=1, max_size=5), ADDRESSES)
def test_a_node_that_comes_takes_addresses_and_moves_no_other(nodes, new, address) -> None:
    assert owner(address, nodes | {new}) in {owner(address, nodes), new}


@given(NODES, ADDRESSES, st.data())
def test_a_node_that_goes_moves_its_own_addresses_alone(nodes, address, data) -> None:
    gone = data.draw(st.sampled_from(sorted(nodes)))
    assume(len(nodes) > 1)
    before, after = owner(address, nodes), owner(address, nodes - {gone})
    assert after == before or before == gone


def test_without_a_node_there_is_no_owner() -> None:
    assert owner(parse_address("192.0.2.1"), []) is None


def test_addresses_in_a_row_are_spread_over_the_nodes() -> None:
    nodes = [f"node-{n}" for n in range(4)]
    addresses = [parse_address(f"192.0.2.{n}") for n in range(256)] + [
        parse_address(f"2001:db8::{n:x}") for n in range(256)
    ]
    shares = Counter(owner(address, nodes) for address in addresses)
    assert all(90 <= shares[node] <= 170 for node in nodes), shares


def test_the_owner_is_worked_out_by_hand_too() -> None:
    """`printf 'a#192.0.2.1' | sha256sum` begins with 49af, of b with 82cc, of c with 46d1."""
    address = parse_address("192.0.2.1")
    assert [owner(address, nodes) for nodes in ("abc", "ab", "b")] == ["c", "a", "b"]
