"""A pod's attachment: its link, addresses, routes and neighbours. Pure.

Invariants: routed, never bridged. Each pod has host prefixes only; its gateway is the same link-local address on every
node, reached on-link, and both ends know the other by a permanent neighbour, so nothing is ever resolved. All names
and MAC addresses are derived from the attachment's key: a restarted agent finds what it made without a note.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha1
from types import MappingProxyType
from typing import Any

from podwire.model.addresses import FAMILIES, IPV4, IPV6, Address, Family, Prefix, family_of, parse_address
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
    Space,
    UpKey,
)
from podwire.model.objects import Attachment, AttachmentKey
from podwire.model.snapshot import Snapshot, Touched

GATEWAY: dict[Family, Address] = {IPV4: parse_address("169.254.1.1"), IPV6: parse_address("fe80::1")}
NODE_MAC = bytes.fromhex("eeeeeeeeeeee")
"""Of every node's end. A pod sees only its own, and ours are recognised by it."""
LINK_PREFIX = "pw"
ALTNAME_BYTES, ALIAS_BYTES = 127, 255
Sources = Mapping[Family, Address | None]
NO_SOURCES: Sources = MappingProxyType({})
LONG = ".long"
"""Ends the altname of a sandbox whose ID is longer than a name may be."""


def desired(now: Snapshot, touched: Touched | None) -> dict[str, dict[Any, Any]]:
    # Of two that share a namespace, as an older version has made them, the first has the routes in it.
    keys = sorted(now.attachments if touched is None else touched.attachments, reverse=True)
    rows: dict[Any, Any] = {}
    linux: dict[Any, Any] = {}
    local: dict[Any, Any] = {}
    sources = {family: now.source(family) for family in FAMILIES}
    for key in keys:
        attachment = now.attachments.get(key)
        if attachment is not None:
            rows[key] = attachment
            linux |= wiring(key, attachment, now.local.mtu, sources)
            local |= {LocalPodKey(address): True for address in attachment.addresses}
    if touched is None or touched.attachments:
        rows |= {CursorKey(block): cursor for block, cursor in now.cursors.items()}
    return {"store": rows, "linux": linux, "nftables": local}


def wiring(key: AttachmentKey, it: Attachment, mtu: int, sources: Sources = NO_SOURCES) -> dict[Any, Any]:
    """What the kernel holds for one attachment, in the node's namespace and in the pod's, where that is known.

    `sources`: with which address of its own the node answers the pod. Without one the kernel takes that on lo, and who
    asked a datagram server of the node by another address never hears of it.
    """
    name, mac, inside = interface_name(key), pod_mac(key), pod_index(it)
    altname = f"{key.sandbox}.{key.interface}"
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
            altname=altname if len(altname.encode()) <= ALTNAME_BYTES else name + LONG,
            alias=_cut(f"{it.pod.namespace}/{it.pod.name}", ALIAS_BYTES),
        ),
        UpKey("", it.index): True,
    }
    for address in it.addresses:
        family = family_of(address)
        found[RouteKey("", Prefix(address, family.bits))] = Route(it.index, source=sources.get(family))
        found[NeighbourKey("", it.index, address)] = PodMAC(name, mac)
    return found | _inside(it, inside, mtu) if seen else found


def _inside(it: Attachment, index: int, mtu: int) -> dict[Any, Any]:
    """The pod's end."""
    space = space_of(it)
    found: dict[Any, Any] = {UpKey(space, LOOPBACK): True, UpKey(space, index): mtu}
    for address in it.addresses:
        family = family_of(address)
        gateway = GATEWAY[family]
        found |= {
            AddressKey(space, index, address): True,
            RouteKey(space, Prefix(gateway, family.bits)): Route(index),
            RouteKey(space, Prefix(Address(bytes(family.size)), 0)): Route(index, via=gateway),
            NeighbourKey(space, index, gateway): NODE_MAC,
        }
    return found


def space_of(it: Attachment) -> Space:
    return Space(it.netns, it.device, it.inode)


def interface_name(key: AttachmentKey) -> str:
    """The node's end: 14 bytes of the kernel's 15, whatever the sandbox is called."""
    return LINK_PREFIX + _digest(key).hex()[:12]


def keys_of(altname: str) -> Iterator[AttachmentKey]:
    """Whose `sandbox.interface` that may be: either may have dots of its own, and all of these have one link's name."""
    parts = altname.split(".")
    for at in range(1, len(parts)):
        yield AttachmentKey(".".join(parts[:at]), ".".join(parts[at:]))


def name_from(altname: str) -> str:
    """The node's end's, from the altname of a sandbox whose ID is not too long for it."""
    return LINK_PREFIX + sha1(altname.encode(), usedforsecurity=False).hexdigest()[:12]


def pod_index(it: Attachment) -> int:
    """Of the pod's end, in its own namespace: far from what others have there (tunl0 is often born as 2), and not the
    node's end's, since the kernel leaves a link's other end out where both have one number."""
    return it.index + 1


def pod_mac(key: AttachmentKey) -> bytes:
    """Locally administered, unicast."""
    return b"\x02" + _digest(key)[:5]


def _digest(key: AttachmentKey) -> bytes:
    return sha1(f"{key.sandbox}.{key.interface}".encode(), usedforsecurity=False).digest()


def _cut(text: str, most: int) -> str:
    """At most that many bytes; a longer one ends in a hash of the whole, so that two never look the same."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    tail = sha1(encoded, usedforsecurity=False).hexdigest()[:8]
    return encoded[: most - 9].decode(errors="ignore") + "~" + tail
