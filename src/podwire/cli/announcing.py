"""The commands about what is announced: BGP sessions and routes, and who answers by ARP and NDP.

Invariants: as in `queries.py`.
"""

from datetime import UTC, datetime
from urllib.parse import urlencode

from cyclopts import App
from rich.console import Group, RenderableType
from rich.table import Table

from podwire.announcing.views import NO_SESSION, AddressView, L2View, PeerList, PeerView
from podwire.bgp.routes import Route, Routes
from podwire.cli.client import ask
from podwire.cli.queries import BYTES, tell
from podwire.cli.tables import columns
from podwire.cli.target import HERE, Output, Target

bgp = App(name="bgp", help="The node's BGP sessions, and the routes that go over them.", help_format="plaintext")


@bgp.command
def peers(*, target: Target = HERE, output: Output = "table") -> int:
    """All BGPPeers, and what became of this node's sessions with them."""
    tell(ask(target.socket(), "GET", "/bgp/peers"), output, PeerList, peers_table)
    return 0


@bgp.command
def routes(peer: str, /, *, target: Target = HERE, output: Output = "table") -> int:
    """What this node has told a peer, and taken from it.

    Parameters
    ----------
    peer
        The BGPPeer's name.
    """
    query = urlencode({"peer": peer}, errors=BYTES)
    tell(ask(target.socket(), "GET", f"/bgp/routes?{query}"), output, Routes, _routes)
    return 0


def l2(*, target: Target = HERE, output: Output = "table") -> int:
    tell(ask(target.socket(), "GET", "/l2"), output, L2View, _l2)
    return 0


# --- for people --------------------------------------------------------------------------------


def peers_table(seen: PeerList) -> RenderableType:
    if not seen.peers:
        return "no BGPPeers"
    table = columns("PEER", "ADDRESS", "ASN", "STATE", "SINCE", "SENT", "RECEIVED", "BFD", "ERROR")
    for it in seen.peers:
        state = it.state if it.state != NO_SESSION else "no session"
        table.add_row(it.peer, it.address, str(it.asn), state, _time(it.since), *_counts(it), it.bfd, it.error)
    return table


def _counts(it: PeerView) -> tuple[str, str]:
    sent, received = (
        " ".join(f"{family} {count}" for family, count in sorted(some.items())) for some in (it.sent, it.received)
    )
    return sent, received


def _routes(seen: Routes) -> RenderableType:
    if not seen.advertised and not seen.received:
        return "no routes"
    table = columns("WAY", "PREFIX", "NEXT HOPS", "PATH", "ATTRIBUTES")
    for way, some in (("told", seen.advertised), ("taken", seen.received)):
        for it in some:
            _add(table, way, it)
    return table


def _add(table: Table, way: str, it: Route) -> None:
    of = it.attributes
    preference = () if of.local_pref is None else (f"local preference {of.local_pref}",)
    hops = ", ".join(it.next_hops) or "this node"
    table.add_row(way, it.prefix, hops, it.path, " ".join((*of.communities, *of.large, *preference)))


def _l2(seen: L2View) -> RenderableType:
    if not seen.addresses and not seen.nodes:
        return "nothing is announced by ARP or NDP"
    table = columns("ADDRESS", "POOL", "ANSWERED BY", "ON", "SINCE", "REQUESTS", "WHY NOT")
    for it in seen.addresses:
        table.add_row(*_row(it))
    heard = columns("NODE", "HEARD")
    for name, state in seen.nodes.items():
        heard.add_row(name, state)
    parts: list[RenderableType] = [table] if seen.addresses else []
    return Group(*parts, *([heard] if seen.nodes else []))


def _row(it: AddressView) -> tuple[str, ...]:
    here = it.since is not None
    on = ", ".join(it.interfaces) if here else ""
    return it.address, it.pool, it.owner or "nobody", on, _time(it.since), str(it.requests) if here else "", it.why


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
