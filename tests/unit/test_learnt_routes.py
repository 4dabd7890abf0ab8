"""Transport bgp: which routes to other nodes are left to BGP, and what is said of them."""

from typing import Any

from podwire.announcing.speaker import sessions
from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.explain.places import places, where
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.announcements import BGPPeer, BGPPeerKey
from podwire.model.objects import Node, NodeKey
from podwire.model.snapshot import Local, Snapshot, Transport
from podwire.nodes.outside import unmasqueraded
from podwire.nodes.routes import desired, ways
from podwire.views import Facts, status

NODES: dict[Any, Any] = {
    NodeKey("one"): Node((parse_prefix("10.1.1.0/24"),), (parse_address("192.0.2.1"),)),
    NodeKey("two"): Node((parse_prefix("10.1.2.0/24"),), (parse_address("198.51.100.2"),)),
}
PEERS: dict[Any, Any] = {
    BGPPeerKey(name): BGPPeer(parse_address(address), 65001, 65001)
    for name, address in (("one", "192.0.2.1"), ("two", "198.51.100.2"))
}


def made(transport: Transport) -> Snapshot:
    networks = frozenset((parse_prefix("192.0.2.0/24"),))
    own = frozenset((parse_address("192.0.2.1"),))
    local = Local("one", 1500, addresses=own, networks=networks, transport=transport)
    return fold(Snapshot(local), e.Resync(e.ResyncReason.STARTUP, NODES | PEERS))[0]


def test_routes_to_other_nodes_are_none_of_ours() -> None:
    now = made(Transport.BGP)
    assert [way.learnt for _, _, way in ways(now) if not isinstance(way, str)] == [True]
    assert desired(now, None) == {"linux": {}}
    assert desired(made(Transport.AUTO), None) != {"linux": {}}


def test_pods_of_other_nodes_see_pods_as_they_are() -> None:
    assert parse_prefix("10.1.2.0/24") in unmasqueraded(made(Transport.BGP))


def test_it_is_said_that_bgp_leads_there() -> None:
    now = made(Transport.BGP)
    assert where(places(now), parse_address("10.1.2.9")) == "a pod of node two, by a route that BGP learns"
    assert status(now, Facts("1", None, 0.0, {})).others == {"by BGP": 1}


def test_no_node_has_a_session_with_itself() -> None:
    found = sessions(made(Transport.BGP))
    assert [it.name for it in found.sessions] == ["two"]
    assert found.elsewhere == ((BGPPeerKey("one"), "192.0.2.1 is this node's own address"),)
