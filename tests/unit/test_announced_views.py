"""What people and programs are told of announcing: `podwire explain`, `bgp`, `l2`, and metrics."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from podwire.announcing.views import AddressView, L2View, PeerView
from podwire.bgp.routes import Route, Routes
from podwire.bgp.vty import Gone
from podwire.cli.explanations import service as explanation
from podwire.explain.services import explain_service
from podwire.metrics import announced
from podwire.model.addresses import parse_address
from podwire.model.announcements import (
    Attributes,
    BGPAdvertisement,
    BGPAdvertisementKey,
    BGPPeerKey,
    Choice,
    Kind,
    L2Advertisement,
    L2AdvertisementKey,
)
from tests.unit.screen import lines
from tests.unit.served_agent import serving
from tests.unit.test_announcing import EXCLUDED, GREEN, LOCAL, NODES, THREE, TOR, TWO, USUAL, VIP, WEB, made, service
from tests.unit.test_cli import Ran, ask, rows

PEERS = (
    PeerView("gone", "192.0.2.253", 64513, "Active", 60.0, error="no TCP connection"),
    PeerView("other", "192.0.2.252", 64513, "None", error="its spec.nodeSelectors do not select node one"),
    PeerView("tor", "192.0.2.254", 64512, "Established", 0.0, {"IPv4": 1, "IPv6": 0}, {"IPv4": 3, "IPv6": 2}, "Up"),
)
LAYER2 = L2View(
    (
        AddressView("203.0.113.1", "public", "one", ("eth0", "eth1"), 0.0, 7),
        AddressView("203.0.113.2", "public", "two"),
        AddressView("203.0.113.3", "", "", why="it is in no AddressPool that is used"),
    ),
    {"three": "dead", "two": "alive"},
)
ROUTES = Routes(
    (Route("10.50.0.0/16", ("192.0.2.254",), "64512 64999"),),
    (Route("203.0.113.1/32", attributes=Attributes(("64600:100", "no-export"), ("64600:1:2",), 150)),),
)


class Told:
    """An agent's announcers; `away`: FRR can't be asked."""

    away = False

    def peers(self) -> tuple[PeerView, ...]:
        return PEERS

    async def routes(self, peer: str) -> Routes:
        if self.away:
            raise Gone("FRR's bgpd does not run")
        return {"tor": ROUTES}[peer]

    def layer2(self) -> L2View:
        return LAYER2


# --- explain -----------------------------------------------------------------------------------


NO_LOCAL = "service/shop/web has no backend on this node, and its traffic policy is Local"
NOT_ADVERTISED = f"no BGPAdvertisement advertises ExternalIPs of {WEB} from this node"
ATTRIBUTES = Attributes(("64600:100",), ("64600:1:2",), 150)
EXPLAINED: dict[str, tuple[Any, list[str]]] = {
    "by whom, and who not and why": (
        {**LOCAL, TWO: replace(NODES[TWO], labels=EXCLUDED)},
        [
            "203.0.113.1, of pool public",
            "BGP       node one    203.0.113.1/32 to tor",
            f"BGP       node three  tells nobody: {NO_LOCAL}",
            f"BGP       node two    tells nobody: it has the label {EXCLUDED[0][0]}",
            "ARP, NDP  node one    answers",
        ],
    ),
    "with which attributes, of which a preference goes to routers of the nodes' own AS": (
        {
            BGPPeerKey("inner"): replace(TOR, address=parse_address("192.0.2.253"), asn=TOR.my_asn),
            BGPAdvertisementKey("all"): BGPAdvertisement(attributes=ATTRIBUTES, lengths=(24, 64)),
            L2AdvertisementKey("all"): L2Advertisement(interfaces=("eth1",)),
            **{key: replace(NODES[key], leaving=True) for key in (TWO, THREE)},
        },
        [
            "203.0.113.1, of pool public",
            "BGP       node one    203.0.113.0/24 to inner, communities 64600:100 64600:1:2, local preference 150",
            "BGP       node one    203.0.113.0/24 to tor, communities 64600:100 64600:1:2",
            "BGP       node three  tells nobody: it is being deleted",
            "BGP       node two    tells nobody: it is being deleted",
            "ARP, NDP  node one    answers on eth1",
        ],
    ),
    "of other addresses that an advertisement is for, too": (
        {
            WEB: service(balancer_ips=(), external_ips=(VIP,)),
            BGPAdvertisementKey("all"): BGPAdvertisement(
                Choice(service_selectors=((GREEN,),)), kinds=(Kind.EXTERNAL_IP,)
            ),
            **{key: replace(NODES[key], leaving=True) for key in (TWO, THREE)},
        },
        [
            "203.0.113.1, of pool public",
            *(f"BGP       node {name:5}  tells nobody: {NOT_ADVERTISED}" for name in ("one", "three", "two")),
            "ARP, NDP  nobody      only addresses of load balancers are announced by L2",
        ],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), EXPLAINED.values(), ids=EXPLAINED)
def test_explain_says_who_tells_whom_and_who_does_not_and_why(changes: Any, expected: list[str]) -> None:
    told = [it.strip() for it in lines(explanation(explain_service(made(USUAL | changes), WEB)))]
    assert told[told.index(expected[0]) :] == expected


# --- sessions, routes, layer 2 -----------------------------------------------------------------


def shown(ran: Ran) -> list[str]:
    return [" ".join(row) for row in rows(ran.out)]


async def test_what_is_shown(tmp_path: Path) -> None:
    async with serving(tmp_path, Told()) as agent:
        assert shown(await ask(agent, "bgp", "peers")) == [
            "PEER ADDRESS ASN STATE SINCE SENT RECEIVED BFD ERROR",
            "gone 192.0.2.253 64513 Active 1970-01-01 00:01:00Z no TCP connection",
            "other 192.0.2.252 64513 no session its spec.nodeSelectors do not select node one",
            "tor 192.0.2.254 64512 Established 1970-01-01 00:00:00Z IPv4 3 IPv6 2 IPv4 1 IPv6 0 Up",
        ]
        assert shown(await ask(agent, "bgp", "routes", "tor")) == [
            "WAY PREFIX NEXT HOPS PATH ATTRIBUTES",
            "told 203.0.113.1/32 this node 64600:100 no-export 64600:1:2 local preference 150",
            "taken 10.50.0.0/16 192.0.2.254 64512 64999",
        ]
        assert shown(await ask(agent, "l2")) == [
            "ADDRESS POOL ANSWERED BY ON SINCE REQUESTS WHY NOT",
            "203.0.113.1 public one eth0, eth1 1970-01-01 00:00:00Z 7",
            "203.0.113.2 public two",
            "203.0.113.3 nobody it is in no AddressPool that is used",
            "NODE HEARD",
            "three dead",
            "two alive",
        ]


async def test_why_there_is_no_answer(tmp_path: Path) -> None:
    told = Told()
    async with serving(tmp_path, told) as agent:
        ran = await ask(agent, "bgp", "routes", "else")
        assert (ran.code, "this node has no session with 'else'; it has: gone, tor" in ran.err) == (1, True)
        told.away = True
        ran = await ask(agent, "bgp", "routes", "tor")
        assert (ran.code, "FRR can't be asked: FRR's bgpd does not run" in ran.err) == (1, True)


def test_metrics() -> None:
    found = {
        " ".join((it.name, *it.labels.values())): it.value
        for family in announced(PEERS, LAYER2)
        for it in family.samples
    }
    assert found == {
        "podwire_bgp_session_up gone": 0,
        "podwire_bgp_session_up tor": 1,
        "podwire_bgp_prefixes tor IPv4 sent": 3,
        "podwire_bgp_prefixes tor IPv6 sent": 2,
        "podwire_bgp_prefixes tor IPv4 received": 1,
        "podwire_bgp_prefixes tor IPv6 received": 0,
        "podwire_l2_addresses": 1,
        "podwire_l2_nodes alive": 1,
        "podwire_l2_nodes unready": 0,
        "podwire_l2_nodes dead": 1,
        "podwire_l2_nodes unknown": 0,
    }
