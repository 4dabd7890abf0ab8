"""How a lab expects its load balancers' addresses to be announced, from manifests to the words of its table."""

from io import StringIO

import pytest
from rich.console import Console

from podwire.lab import tables
from podwire.lab.announced import NOTHING, Announced, announced, routes_of
from podwire.lab.expand import expand, objects
from podwire.lab.views import BalancerView, LabView, ServiceView
from podwire.loadbalancer.election import owner
from podwire.model.addresses import parse_address, show_address
from tests.unit.lab_manifests import manifests, running, service, workload

OWN = "apiVersion: podwire.io/v1alpha1\n"
POOL = OWN + "kind: AddressPool\nmetadata: {name: public}\nspec: {addresses: [192.168.99.251-192.168.99.253]}\n"
L2 = OWN + "kind: L2Advertisement\nmetadata: {name: public}\nspec: {addressPools: [public]}\n"
BGP = OWN + "kind: BGPAdvertisement\nmetadata: {name: public}\nspec: {addressPools: [public]}\n"
PEER = (
    OWN + "kind: BGPPeer\nmetadata: {name: router}\nspec: {peerAddress: 192.168.99.254, peerASN: 64512, myASN: 64513}\n"
)
FIRST = parse_address("192.168.99.251")


def of(*more: str, absent: tuple[str, ...] = (), off: tuple[str, ...] = ()) -> dict[str, Announced]:
    """Of a Service with one pod on each of two nodes."""
    plan = expand(manifests(POOL, service("web", "type: LoadBalancer"), workload(spec="replicas: 2"), *more), 2)
    found = announced(objects(plan, running(plan)).values(), ["node1", "node2"], absent, off)
    return {show_address(address): it for address, it in found.items()}


def test_without_an_advertisement_nothing_is_announced() -> None:
    assert of() == {}


def test_one_node_answers() -> None:
    assert of(L2) == {"192.168.99.251": Announced(owner(FIRST, ["node1", "node2"]) or "")}


@pytest.mark.parametrize(("absent", "left"), [("node1", "node2"), ("node2", "node1")])
def test_a_node_without_an_agent_announces_nothing(absent: str, left: str) -> None:
    assert of(L2, BGP, PEER, absent=(absent,), off=(absent,)) == {"192.168.99.251": Announced(left, (left,))}
    assert of(L2, BGP, PEER, absent=(absent,)) == {"192.168.99.251": Announced(left, ("node1", "node2"))}, "FRR goes on"
    both = ("node1", "node2")
    assert of(L2, absent=both) == {"192.168.99.251": NOTHING}
    assert of(L2, absent=both, off=both) == {}


def test_all_nodes_tell_a_router() -> None:
    assert of(BGP, PEER)["192.168.99.251"].routes == ("node1", "node2")
    assert of(BGP)["192.168.99.251"] == NOTHING


def test_the_table_says_how() -> None:
    balancers = (
        BalancerView("192.168.99.251", "node2"),
        BalancerView("fd00:99::1:0", "node1", ("node1", "node2")),
        BalancerView("192.168.99.252"),
    )
    it = ServiceView("default", "web", "LoadBalancer", (), (), (), ("80/TCP",), (), balancers)
    lab = LabView("lab", "/m", (), (it,), (), (), (), (), "", ())
    console = Console(width=300, file=StringIO())
    console.print(tables.lab(lab))
    assert (
        "192.168.99.251 (ARP: node2), fd00:99::1:0 (NDP: node1; BGP: node1, node2), 192.168.99.252 (not announced)"
        in console.file.getvalue()
    )


PODS = OWN + "kind: BGPAdvertisement\nmetadata: {name: pods}\nspec: {advertise: [PodCIDR]}\n"
OTHER = OWN + (
    "kind: BGPPeer\nmetadata: {name: other}\nspec: {peerAddress: 192.168.99.240, peerASN: 64514, myASN: 64513}\n"
)
TO_OTHER = OWN + "kind: BGPAdvertisement\nmetadata: {name: public}\nspec: {addressPools: [public], peers: [other]}\n"


@pytest.mark.parametrize(
    ("told", "more"),
    [
        (["192.168.99.251/32"], [BGP, PEER]),
        (["10.244.1.0/24", "fd00:244:0:1::/64"], [PODS, PEER]),
        (
            ["10.244.1.0/24"],
            [PODS, PEER.replace("}", ", families: [IPv4]}", 2).replace("router, families: [IPv4]", "router")],
        ),
        ([], [TO_OTHER, OTHER, PEER]),
        ([], [BGP, OTHER]),
    ],
    ids=["an address", "the pods' ranges", "of one family", "told to another peer alone", "no peer here"],
)
def test_what_the_router_on_the_fabric_is_told(told: list[str], more: list[str]) -> None:
    plan = expand(manifests(POOL, service("web", "type: LoadBalancer"), workload(spec="replicas: 2"), *more), 2)
    assert sorted(map(str, routes_of("node1", objects(plan, running(plan)).values()))) == told
