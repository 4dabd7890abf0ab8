"""Where pods' own addresses are kept: whom this node has a way to, and nobody else."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.model.addresses import Address, Prefix, prefix_around
from podwire.model.snapshot import Local, Snapshot
from podwire.nodes.outside import on_link


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    """Of either family, and near to each other."""
    head = draw(st.sampled_from((b"\x0a\0\0", b"\xfd" + bytes(14))))
    return Address(head + bytes((draw(st.integers(0, 15)) * draw(st.sampled_from((1, 16))),)))


@st.composite
def networks(draw: st.DrawFn) -> Prefix:
    around = draw(addresses())
    bits = len(around) * 8
    return prefix_around(around, draw(st.sampled_from((0, 7, bits - 8, bits - 6, bits - 3, bits - 1, bits))))


some_networks = st.frozensets(networks(), max_size=6)


@given(some_networks, some_networks, addresses())
def test_on_a_link_is_who_lies_in_one_of_its_networks(
    before: frozenset[Prefix], held: frozenset[Prefix], address: Address
) -> None:
    for local in (Local("one", networks=held), replace(Local("one", networks=before), networks=held)):
        assert on_link(Snapshot(local), address) == any(address in network for network in held)
