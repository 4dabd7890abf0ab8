"""A pod's attachment: its link, addresses, routes, neighbours and host ports. Pure.

Invariants: routed, never bridged. Each pod has host prefixes only; its gateway is the same link-local address on every
node, reached on-link, and both ends know the other by a permanent neighbour, so nothing is ever resolved. Of several
interfaces in one namespace each answers for itself: routes by source address lead back by where the question came.
"""

from collections.abc import Mapping
from hashlib import sha1
from types import MappingProxyType
from typing import Any

from podwire.model.addresses import FAMILIES, IPV4, IPV6, Address, Family, Prefix, family_of, host_prefix, parse_address
from podwire.model.network import (
    LOOPBACK,
    AddressKey,
    CursorKey,
    Link,
    LinkKey,
    LocalPodKey,
    NeighbourKey,
    PodMAC,
    Route,
    RouteKey,
    RuleKey,
    Space,
    UpKey,
)
from podwire.model.objects import Attachment, AttachmentKey
from podwire.model.snapshot import Snapshot, Touched
from podwire.pods import hostports, shaping
from podwire.pods.names import ALIAS_BYTES, altnames, link_of, mac_of

GATEWAY: dict[Family, Address] = {IPV4: parse_address("169.254.1.1"), IPV6: parse_address("fe80::1")}
NODE_MAC = bytes.fromhex("eeeeeeeeeeee")
"""Of every node's end. A pod sees only its own, and ours are recognised by it."""
Sources = Mapping[Family, Address | None]
NO_SOURCES: Sources = MappingProxyType({})


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    if touched is not None and not (touched.attachments or touched.rows):
        return {}
    keys = sorted(now.attachments if touched is None else touched.attachments)
    rows: dict[Any, Any] = {key: now.attachments[key] for key in (touched.rows if touched is not None else ())}
    linux: dict[Any, Any] = {}
    local: dict[Any, Any] = {}
    sources = {family: now.source(family) for family in FAMILIES}
    for key in keys:
        attachment = now.attachments.get(key)
        if attachment is not None:
            rows[key] = attachment
            linux |= wiring(key, attachment, now.pod_mtu, sources, leads(now, key))
            local |= {LocalPodKey(address): True for address in attachment.addresses}
    rows |= {CursorKey(block): cursor for block, cursor in now.cursors.items()}
    return {"store": rows, "linux": linux, "nftables": local | hostports.desired(now, keys)}


def leads(now: Snapshot, key: AttachmentKey) -> bool:
    """Whether the pod sends by this interface what has no source address yet: of several in one namespace by the one
    that came first."""
    it = now.attachments[key]
    mates = now.housed.get(space_of(it), ())
    return all((it.serial, key) <= (now.attachments[mate].serial, mate) for mate in mates)


def wiring(
    key: AttachmentKey, it: Attachment, mtu: int, sources: Sources = NO_SOURCES, leading: bool = True
) -> dict[Any, Any]:
    """What the kernel holds for one attachment, in the node's namespace and in the pod's, where that is known.

    `sources`: with which address of its own the node answers the pod. Without one the kernel takes that on lo, and who
    asked a datagram server of the node by another address never hears of it. `leading`: as `leads` says.
    """
    name, inside = link_of(key, it), pod_index(it)
    mac = mac_of(key, it)
    seen = bool(it.netns)
    found: dict[Any, Any] = {
        LinkKey(name): Link(
            index=it.index,
            node_mac=NODE_MAC,
            space=space_of(it),
            inner=inside if seen else 0,
            interface=key.interface if seen else "",
            mac=mac if seen else b"",
            mtu=mtu,
            altnames=altnames(key, it),
            alias=_cut(f"{it.pod.namespace}/{it.pod.name}", ALIAS_BYTES),
            localnet=hostports.from_loopback(it),
        ),
        UpKey("", it.index): True,
    }
    found |= shaping.desired(name, it, mtu)
    for address in it.addresses:
        family = family_of(address)
        found[RouteKey("", host_prefix(address))] = Route(it.index, source=sources.get(family))
        found[NeighbourKey("", it.index, address)] = PodMAC(name, mac)
    return found | _inside(it, inside, mtu, leading) if seen else found


def _inside(it: Attachment, index: int, mtu: int, leading: bool) -> dict[Any, Any]:
    """The pod's end. One that doesn't lead has a table of its own, by its index, for what is sent from its addresses:
    the node takes from a link only what comes from the addresses that it leads to."""
    space, table = space_of(it), 0 if leading else index
    found: dict[Any, Any] = {UpKey(space, LOOPBACK): True, UpKey(space, index): mtu}
    for address in it.addresses:
        family = family_of(address)
        gateway = GATEWAY[family]
        for each in sends_to(it, family):
            found[RouteKey(space, each, table=table)] = Route(index, via=gateway)
        found |= {
            AddressKey(space, index, address): True,
            RouteKey(space, host_prefix(gateway), table=table): Route(index),
            NeighbourKey(space, index, gateway): NODE_MAC,
        }
        if table:
            found[RuleKey(space, address)] = table
    return found


def sends_to(it: Attachment, family: Family) -> tuple[Prefix, ...]:
    """Where the pod sends by this interface."""
    everywhere = Prefix(Address(bytes(family.size)), 0)
    return (everywhere,) if it.routes is None else tuple(each for each in it.routes if each.family == family)


def space_of(it: Attachment) -> Space:
    return Space(it.netns, it.device, it.inode)


def pod_index(it: Attachment) -> int:
    """Of the pod's end, in its own namespace: far from what others have there (tunl0 is often born as 2), and not the
    node's end's, since the kernel leaves a link's other end out where both have one number."""
    return it.index + 1


def _cut(text: str, most: int) -> str:
    """At most that many bytes; a longer one ends in a hash of the whole, so that two never look the same."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    tail = sha1(encoded, usedforsecurity=False).hexdigest()[:8]
    return encoded[: most - 9].decode(errors="ignore") + "~" + tail
