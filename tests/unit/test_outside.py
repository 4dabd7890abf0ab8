"""Where pods' own addresses are kept: whom this node has a way to, and nobody else."""

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from podwire.model.addresses import Address, Prefix, family_of, parse_address, parse_prefix, prefix_around
from podwire.model.objects import Node, NodeKey
from podwire.model.snapshot import Local, Snapshot
from podwire.nodes import routes
from podwire.nodes.outside import on_link, unmasqueraded


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


BLOCKS = tuple(
    map(
        parse_prefix,
        ("0.0.0.0/0", "192.0.0.0/8", "10.0.0.0/8", "10.1.1.0/24", "10.1.2.0/24", "10.1.2.128/25", "::/0", "fd02::/64"),
    )
)
ADDRESSES = tuple(map(parse_address, ("192.0.2.1", "192.0.2.2", "198.51.100.2", "10.1.2.1", "fd99::1", "fd99::2")))
PROBES = (*ADDRESSES, *map(parse_address, ("8.8.8.8", "192.0.9.9", "10.1.1.9", "10.1.2.200", "10.9.9.9", "fd02::9")))
LOCAL = Local("one", networks=frozenset(map(parse_prefix, ("192.0.2.0/24", "fd99::/64"))))
nodes = st.builds(
    Node,
    st.lists(st.sampled_from(BLOCKS), max_size=3, unique=True).map(tuple),
    st.lists(st.sampled_from(ADDRESSES), max_size=2, unique=True).map(tuple),
)


def _direct(now: Snapshot, node: Node, address: Address) -> bool:
    """Whether the node's pods, and so the way back from it, are reached without VXLAN."""
    way = routes.way_to(now)(node, family_of(address))
    return isinstance(way, routes.Way) and not way.vxlan


@given(st.dictionaries(st.sampled_from(["one", "two", "three", "four"]).map(NodeKey), nodes))
def test_of_all_blocks_those_are_kept_that_are_own_or_routed(known: dict[NodeKey, Node]) -> None:
    """Else what goes there leaves with an address to which nobody knows the way back."""
    now = Snapshot(LOCAL, nodes=Map(known))
    routed = [key.destination for key in routes.desired(now, None)["linux"]]
    neighbours = {it for node in known.values() for it in node.addresses if on_link(now, it) and _direct(now, node, it)}
    for probe in PROBES:
        wanted = probe in neighbours or any(probe in block for block in (*now.node.pod_cidrs, *routed))
        assert any(probe in kept for kept in unmasqueraded(now)) == wanted
