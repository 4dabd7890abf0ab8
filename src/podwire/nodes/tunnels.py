"""What it takes to reach another node's pods by VXLAN. Pure.

Invariants: one device for each family of outer addresses that is used; it learns nothing and floods nothing. A node's
device has the same MAC address on each of them, which follows from the node's name, so that nobody has to tell it. The
next hop is a name for that MAC address: for IPv4 the block's first address, which nobody has, for IPv6 a link-local
one, since the kernel refuses a gateway that some other route leads to. The device has the node's own addresses, so that
they are what the kernel puts in a client's place on the way into it.
"""

from collections.abc import Iterable
from hashlib import sha1
from typing import Any

from podwire.ipam.own import own_address_of, own_addresses
from podwire.model.addresses import FAMILIES, IPV4, Address, Family, Prefix, family_of
from podwire.model.network import (
    TUNNEL_INDEX,
    AddressKey,
    ForwardKey,
    NeighbourKey,
    Route,
    RouteKey,
    Tunnel,
    TunnelKey,
    UpKey,
)
from podwire.model.objects import NodeKey
from podwire.model.snapshot import Snapshot
from podwire.nodes.own import gateway_to


def wiring(now: Snapshot, far: Iterable[tuple[NodeKey, Prefix, Address]]) -> dict[Any, Any]:
    """`far`: whose block is reached by VXLAN, and the outer address of that node."""
    found: dict[Any, Any] = {}
    sources = {family: own_address_of(now, family) for family in FAMILIES}
    for key, block, address in far:
        outer = family_of(address)
        index, mac = TUNNEL_INDEX[outer], mac_of(key.name)
        if TunnelKey(outer) not in found:
            found |= {TunnelKey(outer): device(now, outer), UpKey("", index): True}
            found |= {AddressKey("", index, own): True for own in own_addresses(now)}
        hop = next_hop(block, mac)
        found[ForwardKey(index, mac)] = address
        found[NeighbourKey("", index, hop)] = mac
        onlink = block.family == IPV4
        found[RouteKey("", block)] = Route(index, via=hop, source=sources[block.family], onlink=onlink)
    return found


def device(now: Snapshot, outer: Family) -> Tunnel:
    """With the InternalIP that others send to, even while the kernel has it not: it may be back in an instant."""
    local = now.local
    return Tunnel(
        index=TUNNEL_INDEX[outer],
        vni=local.vxlan_vni,
        port=local.vxlan_port,
        mac=mac_of(local.name),
        mtu=now.tunnel_mtu(outer),
        local=gateway_to(now.node, outer),
    )


def mac_of(node: str) -> bytes:
    """Of a node's VXLAN devices: locally administered, unicast."""
    return b"\x02" + sha1(node.encode(), usedforsecurity=False).digest()[:5]


def next_hop(block: Prefix, mac: bytes) -> Address:
    """For IPv6 as RFC 4291 makes it of the MAC address (appendix A)."""
    if block.family == IPV4:
        return block.first
    return Address(b"\xfe\x80" + bytes(6) + bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:])
