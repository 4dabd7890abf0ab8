"""What the node itself needs to carry pods: forwarding, its own addresses, a way to the Services; and what it has to
remember to go on without the cluster's objects. Pure.

Invariants: the node's own addresses lie on lo, so that they live as long as the node: they are what a pod of this node
sees in the place of a client that has to be hidden, and the source where the node has no InternalIP. The route to the
service ranges only lets a socket choose the source; no packet follows it, since a Service's address is rewritten first
and any other is refused.
"""

from typing import Any

from podwire.ipam.own import own_addresses
from podwire.model.addresses import FAMILIES, Address, Family, family_of, parse_prefix
from podwire.model.homes import Home
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import (
    LOOPBACK,
    AddressKey,
    HoldersKey,
    PodMTUKey,
    Route,
    RouteKey,
    RulesKey,
    SysctlKey,
    UpKey,
)
from podwire.model.objects import Node, PodBlockKey
from podwire.model.snapshot import Snapshot, Touched

SYSCTLS: dict[str, str] = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/netfilter/nf_conntrack_tcp_timeout_established": "86400",
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait": "3600",
}
"""By path below /proc/sys. Of connection tracking: seconds without a packet after which a TCP connection is forgotten,
as KubeProxyConntrackConfiguration has them by default; the kernel alone gives a half-closed one a minute."""

LOOPBACKS = (parse_prefix("127.0.0.0/8"), parse_prefix("::1/128"))


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and now.local.key not in touched.nodes and not touched.ranges:
        return {}
    linux: dict[Any, Any] = {SysctlKey(path): value for path, value in SYSCTLS.items()}
    linux[UpKey("", LOOPBACK)] = True
    own = own_addresses(now)
    linux |= {AddressKey("", LOOPBACK, address): True for address in own}
    for block in now.service_ranges:
        own_source = next((address for address in own if len(address) == block.family.size), None)
        if own_source is not None:
            linux[RouteKey("", block)] = Route(LOOPBACK, source=now.source(block.family) or own_source)
    rows: dict[Any, Any] = dict(remembered(now))
    if now.pod_mtu:
        rows[PodMTUKey()] = now.pod_mtu
    tables: dict[Any, Any] = {HoldersKey(family): True for family in FAMILIES}
    if now.whole:  # those of an older layout work until all that new ones ask for can be filled in
        tables |= {RulesKey(family): True for family in FAMILIES}
    return {"store": rows, "linux": linux, "nftables": tables}


def gateway_to(node: Node | Home, family: Family) -> Address | None:
    """The node's first address of that family."""
    return next((address for address in node.addresses if family_of(address) == family), None)


def is_own(now: Snapshot, address: Address) -> bool:
    """Whether it is this node's, as far as is known: of link-local ones the kernel alone knows."""
    return (
        address in now.node.addresses
        or address in now.local.addresses
        or address in own_addresses(now)
        or any(address in loopback for loopback in LOOPBACKS)
    )


def remembered(now: Snapshot) -> dict[ObjectKey, Object]:
    """What an ADD needs of the cluster's objects: this node's own, its blocks, the pools of these, and the ranges in
    which no pod may lie."""
    node = now.nodes.get(now.local.key)
    found: dict[ObjectKey, Object] = {} if node is None else {now.local.key: node}
    found.update(now.service_cidrs.items())
    found.update(now.pools.items())
    found.update((key, now.blocks[key]) for key in map(PodBlockKey, now.blocks_of.get(now.local.key, ())))
    return found
