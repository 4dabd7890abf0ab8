"""Between whose addresses VXLAN goes, which is all that its port takes and gives. Pure.

Invariants: the ends are those that the routes by VXLAN lead to, and this node's own of the same family: packets go from
one first InternalIP to another, and from or to no other address of a node. A port is guarded only while this node has a
device of that family; without one it is whoever's. An address that is away stays an end: it may be back in an instant.
"""

from typing import Any

from podwire.model.addresses import Family, family_of
from podwire.model.network import TunnelEndKey, TunnelPortKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.nodes.own import gateway_to
from podwire.nodes.routes import Way, ways


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not touched.nodes:
        return {}
    others = {way.address for _, _, way in ways(now) if isinstance(way, Way) and way.vxlan}
    families: set[Family] = {family_of(address) for address in others}
    own = {first for family in families if (first := gateway_to(now.node, family)) is not None}
    ports = {TunnelPortKey(family, now.local.vxlan_port): True for family in families}
    return {"nftables": {TunnelEndKey(address): True for address in others | own} | ports}
