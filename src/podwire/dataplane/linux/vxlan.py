"""The node's VXLAN devices: a change to rtnetlink messages, and their dump back. Pure.

Invariants: what a dump gives back equals what was rendered. A device is ours by its kind and a link group that it is
born with, or, where somebody has changed that, its name. It learns nothing and floods nothing: where frames go stands
in its entries (`neighbours.py`). Its MAC address is given at its birth, so that udev leaves it alone (addr_assign_type
NET_ADDR_SET). Numbers are those of linux/if_link.h, IFLA_VXLAN_*.
"""

import errno
from collections.abc import Iterator, Mapping
from struct import unpack_from

from podwire.controller.difference import Change
from podwire.dataplane.linux import links
from podwire.dataplane.linux.rtnetlink import (
    IFLA_ADDRESS,
    IFLA_GROUP,
    IFLA_IFNAME,
    IFLA_LINKINFO,
    IFLA_MTU,
    NEWLINK,
    Seen,
)
from podwire.dataplane.messages import CREATE, EXCL, Message, attr, attrs, nest, text, u32
from podwire.model.addresses import FAMILIES, IPV4, IPV6, Address, Family
from podwire.model.network import TUNNEL_INDEX, TUNNELS, Tunnel, TunnelKey

_GROUP = {IPV4: 0x7076, IPV6: 0x7078}
_ID, _REMOTE, _LINK, _LEARNING, _PORT, _REMOTE6, _METADATA = 1, 2, 3, 7, 15, 16, 25
_LOCAL = {IPV4: 4, IPV6: 17}
WANTED_SETTINGS = {**links.WANTED_SETTINGS, "rp_filter": 2}
"""As a pod's link, but loose: another node's pods may be reached by another way than they come."""


def device(key: TunnelKey, change: Change) -> list[Message]:
    before, after = change
    if after is None:
        return links.delete_link(before.index)
    if before is None:
        return _new(key, after)
    if remade(change):
        return [*links.delete_link(before.index), *_new(key, after)]
    body = links.header(after.index) + u32(IFLA_MTU, after.mtu)
    if before.mac != after.mac:  # only then: the kernel forgets the neighbours, even for the same address
        body += attr(IFLA_ADDRESS, after.mac)
    if before.astray:
        body += text(IFLA_IFNAME, TUNNELS[key.family]) + u32(IFLA_GROUP, _GROUP[key.family])
        body += links.per_interface(WANTED_SETTINGS)
    found = [Message(NEWLINK, 0, body)]
    if before.local != after.local:  # by itself: with what is VXLAN's own the kernel takes no MTU
        found.append(Message(NEWLINK, 0, links.header(after.index) + _info(_local(key.family, after))))
    return found


def remade(change: Change) -> bool:
    """Whether it takes another device: what lay on the old one is lost."""
    before, after = change
    return before is not None and after is not None and _identity(before) != _identity(after)


def disturbs(change: Change) -> bool:
    """Whether other keys go with the change."""
    before, after = change
    return remade(change) or (before is not None and after is not None and before.mac != after.mac)


def _identity(it: Tunnel) -> tuple[int, int, int, tuple[str, ...]]:
    return it.index, it.vni, it.port, it.odd


def _new(key: TunnelKey, it: Tunnel) -> list[Message]:
    data = u32(_ID, it.vni) + attr(_PORT, it.port.to_bytes(2, "big")) + attr(_LEARNING, b"\0")
    born = (
        links.header(it.index)
        + text(IFLA_IFNAME, TUNNELS[key.family])
        + attr(IFLA_ADDRESS, it.mac)
        + u32(IFLA_MTU, it.mtu)
        + u32(IFLA_GROUP, _GROUP[key.family])
        + _info(data + _local(key.family, it))
    )
    return [
        Message(NEWLINK, CREATE | EXCL, born),
        Message(NEWLINK, 0, links.header(it.index) + links.per_interface(WANTED_SETTINGS)),
    ]


def _info(data: bytes) -> bytes:
    return nest(IFLA_LINKINFO, attr(1, b"vxlan"), nest(2, data))


def _local(family: Family, it: Tunnel) -> bytes:
    """Also where there is none: that of an IPv6 device says that it is one."""
    return attr(_LOCAL[family], it.local if it.local is not None else bytes(family.size))


# --- and back ----------------------------------------------------------------------------------


def key_of(seen: Seen) -> TunnelKey | None:
    """None: it is none of ours."""
    if links.kind_of(seen) != b"vxlan":
        return None
    group, name = _number(seen, IFLA_GROUP), links.name_of(seen)
    by_group = (family for family in FAMILIES if _GROUP[family] == group)
    by_name = (family for family in FAMILIES if TUNNELS[family] == name)
    return next((TunnelKey(family) for each in (by_group, by_name) for family in each), None)


def device_of(index: int, seen: Seen, key: TunnelKey, off: frozenset[str] = frozenset()) -> tuple[TunnelKey, Tunnel]:
    """`off` as for a pod's link (`links.link_of`)."""
    data = _data(seen)
    local, (vni, port) = data.get(_LOCAL[key.family]), numbers_of(seen) or (0, 0)
    found = [] if _number(seen, IFLA_GROUP) == _GROUP[key.family] else ["in another link group"]
    found += links.astray(seen, TUNNELS[key.family], off, WANTED_SETTINGS)
    return key, Tunnel(
        index=index,
        vni=vni,
        port=port,
        mac=seen.get(IFLA_ADDRESS, b""),
        mtu=_number(seen, IFLA_MTU),
        local=Address(local) if local is not None else None,
        odd=tuple(_oddities(data)),
        astray=tuple(found),
    )


def numbers_of(seen: Seen) -> tuple[int, int] | None:
    """VNI and UDP port of whosever VXLAN device; None: it is none."""
    data = _data(seen)
    return (
        (_number(data, _ID), int.from_bytes(data.get(_PORT, b""), "big")) if links.kind_of(seen) == b"vxlan" else None
    )


def _number(seen: Seen, kind: int) -> int:
    return int(unpack_from("=I", seen.get(kind, bytes(4)))[0])


def _data(seen: Seen) -> Seen:
    return attrs(attrs(seen.get(IFLA_LINKINFO, b"")).get(2, b""))


def _oddities(data: Seen) -> Iterator[str]:
    if any(data.get(_LEARNING, b"")):
        yield "it learns"
    if any(data.get(_REMOTE, b"")) or any(data.get(_REMOTE6, b"")):
        yield "it floods"
    if any(data.get(_LINK, b"")):
        yield "it is bound to an interface"
    if any(data.get(_METADATA, b"")):
        yield "it is for any network"


def key_by(index: int) -> TunnelKey | None:
    return next((TunnelKey(family) for family in FAMILIES if TUNNEL_INDEX[family] == index), None)


def why_refused(key: TunnelKey, it: Tunnel, code: int, there: Mapping[int, Seen]) -> str | None:
    """In words, where more is known than the error's own; `there`: the node's interfaces."""
    if code == errno.EOPNOTSUPP:
        return f'{key}: this kernel has no VXLAN: load its module vxlan, or set transport = "direct"'
    for index, seen in sorted(there.items()):
        name = links.name_of(seen)
        if code == errno.EEXIST and name == TUNNELS[key.family] and key_of(seen) is None:
            return f"{key}: another's interface has this name: rename or remove it"
        if (numbers := numbers_of(seen)) is not None and index != TUNNEL_INDEX[key.family]:
            vni, port = numbers
            if port == it.port and (code == errno.EADDRINUSE or vni == it.vni):
                what = f"VXLAN device {name} has UDP port {port}"
                other = "" if code == errno.EADDRINUSE else f" and VNI {it.vni}"
                return f"{key}: {what}{other} already: set another vxlan_port{' or vxlan_vni' if other else ''}"
    return (
        f"{key}: UDP port {it.port} is another program's: set another vxlan_port" if code == errno.EADDRINUSE else None
    )
