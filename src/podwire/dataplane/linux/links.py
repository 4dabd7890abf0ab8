"""Pods' links, and interfaces that are up: a change to rtnetlink messages, and their dumps back. Pure.

Invariants: what a dump gives back equals what was rendered. A link is recognised by its kind and the form of its name
(alias and altname follow in messages of their own and may be missing). The name and MAC address of a pod's end are the
pod's own after its birth. A link that goes is only moved to the group of the doomed: the kernel takes some 20 ms for a
deletion, however many it deletes.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from struct import pack, unpack_from
from typing import Any

from podwire.controller.difference import Change
from podwire.dataplane.linux.rtnetlink import (
    DELLINK,
    DELPROP,
    DOOMED,
    FLAGS,
    IFLA_ADDRESS,
    IFLA_AF_SPEC,
    IFLA_ALT_IFNAME,
    IFLA_GROUP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_LINK,
    IFLA_LINK_NETNSID,
    IFLA_LINKINFO,
    IFLA_MTU,
    IFLA_NET_NS_FD,
    IFLA_NUM_RX_QUEUES,
    IFLA_NUM_TX_QUEUES,
    IFLA_PROP_LIST,
    NETNSA_FD,
    NETNSA_NSID,
    NEWLINK,
    NEWPROP,
    NO_NUMBER,
    UP,
    Seen,
)
from podwire.dataplane.messages import CREATE, EXCL, Message, attr, attrs, nest, text, u32, walk
from podwire.model.network import LOOPBACK, Link, LinkKey, UpKey
from podwire.pods.names import LINK_PREFIX, link_by
from podwire.pods.wiring import NODE_MAC

Settings = Mapping[str, int]
WANTED_SETTINGS: Settings = {"forwarding": 1, "send_redirects": 0, "rp_filter": 1}
"""Of each node's end, those of both families alike."""
_IPV4_SETTINGS = {1: "forwarding", 6: "send_redirects", 8: "rp_filter"}
"""By their numbers (IPV4_DEVCONF)."""
_ROUTE_LOCALNET = 26
NO_LINK_LOCAL = b"\x01"  # IN6_ADDR_GEN_MODE_NONE
_QUEUES = u32(IFLA_NUM_TX_QUEUES, 1) + u32(IFLA_NUM_RX_QUEUES, 1)
"""A veth uses one of each (veth_init_queues), but untold is born with one for each processor. To make them and take
them away again, with a wait for all processors, is a third of the time that the kernel takes for a link."""
_NAME = re.compile(rf"{LINK_PREFIX}[0-9a-f]{{12}}\Z")

Ends = dict[tuple[int, int], tuple[str, int, str, bytes]]
"""Pods' ends of links, by the number that the node has for their namespace, and index: namespace, index, name, MAC."""


def delete_doomed() -> list[Message]:
    return [Message(DELLINK, 0, header(0) + u32(IFLA_GROUP, DOOMED))]


def delete_link(index: int) -> list[Message]:
    return [Message(DELLINK, 0, header(index))]


def remade(change: Change) -> bool:
    """Whether a link's change means another link: what lay on it is lost."""
    before, after = change
    return before is not None and after is not None and identity(before) != identity(after)


def disturbs(change: Change) -> bool:
    """Whether other keys go with a link's change."""
    before, after = change
    return remade(change) or (before is not None and after is not None and before.node_mac != after.node_mac)


def identity(it: Link) -> tuple[int, str, int]:
    return it.index, it.space, it.inner


def header(index: int, up: bool = False) -> bytes:
    return pack("=BxHiII", 0, 0, index, UP * up, UP * up)


def bring_up(key: UpKey, value: Any) -> list[Message]:
    """`value`: as `UpKey` says."""
    index = key.index
    up = Message(NEWLINK, 0, header(index, up=True))
    if not key.space or index == LOOPBACK:
        return [up]
    return [Message(NEWLINK, 0, header(index) + u32(IFLA_MTU, value) + quiet()), up]


def quiet() -> bytes:
    """No link-local address: nothing to detect a duplicate of, no router to solicit."""
    return nest(IFLA_AF_SPEC, nest(10, attr(8, NO_LINK_LOCAL)))


def link(name: str, change: Change, descriptor: int) -> list[Message]:
    before, after = change
    if after is None:
        return [Message(NEWLINK, 0, header(before.index) + u32(IFLA_GROUP, DOOMED))]
    if before is None:
        return _new_link(name, after, descriptor)
    if remade(change):
        return [*delete_link(before.index), *_new_link(name, after, descriptor)]
    found = []
    old, new = before.altnames, after.altnames
    found += [Message(DELPROP, EXCL, _altname(after.index, name)) for name in old if name not in new]
    found += [Message(NEWPROP, CREATE | EXCL, _altname(after.index, name)) for name in new if name not in old]
    settings = u32(IFLA_MTU, after.mtu) + attr(IFLA_IFALIAS, after.alias.encode())
    if before.astray:
        settings += text(IFLA_IFNAME, name)
    if before.astray or before.localnet != after.localnet:
        settings += per_interface(localnet=after.localnet)
    if before.node_mac != after.node_mac:  # only then: the kernel forgets the neighbours, even for the same address
        settings += attr(IFLA_ADDRESS, after.node_mac)
    return [*found, Message(NEWLINK, 0, header(after.index) + settings)]


def _new_link(name: str, it: Link, descriptor: int) -> list[Message]:
    # The peer can't be born up: its driver wants the other end first (ENOTCONN).
    peer = (
        header(it.inner)
        + text(IFLA_IFNAME, it.interface)
        + attr(IFLA_ADDRESS, it.mac)
        + u32(IFLA_MTU, it.mtu)
        + u32(IFLA_NET_NS_FD, descriptor)
        + _QUEUES
    )
    born = (
        header(it.index)
        + text(IFLA_IFNAME, name)
        + attr(IFLA_ADDRESS, it.node_mac)
        + u32(IFLA_MTU, it.mtu)
        + _QUEUES
        + nest(IFLA_LINKINFO, attr(1, b"veth"), nest(2, attr(1, peer)))
    )
    return [
        Message(NEWLINK, CREATE | EXCL, born),
        Message(
            NEWLINK, 0, header(it.index) + attr(IFLA_IFALIAS, it.alias.encode()) + per_interface(localnet=it.localnet)
        ),
        *(Message(NEWPROP, CREATE | EXCL, _altname(it.index, name)) for name in it.altnames),
    ]


def per_interface(wanted: Settings = WANTED_SETTINGS, localnet: bool = False) -> bytes:
    """The settings that a message can make, and no link-local address. `localnet`: as a Link has it."""
    ipv4 = (u32(number, wanted[path]) for number, path in _IPV4_SETTINGS.items())
    own = u32(_ROUTE_LOCALNET, int(localnet))
    return nest(IFLA_AF_SPEC, nest(2, nest(1, *ipv4, own)), nest(10, attr(8, NO_LINK_LOCAL)))


def _altname(index: int, name: str) -> bytes:
    return header(index) + nest(IFLA_PROP_LIST, text(IFLA_ALT_IFNAME, name))


# --- and back ----------------------------------------------------------------------------------


def get_links() -> bytes:
    return header(0)


def get_link(index: int) -> bytes:
    return header(index)


def by_index(dump: list[bytes]) -> dict[int, Seen]:
    return {unpack_from("=i", body, 4)[0]: attrs(body, 16) | {FLAGS: body[8:12]} for body in dump}


def name_of(seen: Seen) -> str:
    return seen[IFLA_IFNAME][:-1].decode(errors="replace")


def kind_of(seen: Seen) -> bytes:
    return attrs(seen.get(IFLA_LINKINFO, b"")).get(1, b"").rstrip(b"\0")


def is_ours(seen: Seen) -> bool:
    return our_name(seen) is not None


def our_name(seen: Seen) -> str | None:
    """The name that a link of ours was born with, also where somebody has renamed it; None: it is none of ours."""
    if kind_of(seen) != b"veth":
        return None
    name, others = name_of(seen), [link_by(altname) for altname in _altnames(seen)]
    marked = seen.get(IFLA_ADDRESS) == NODE_MAC
    if _NAME.match(name) and (marked or name in others):  # a name alone may be anybody's
        return name
    return next(iter(others), None) if marked else None


def _altnames(seen: Seen) -> list[str]:
    """Of ours: others may have given it names too."""
    listed = (v[:-1].decode(errors="replace") for k, v in walk(seen.get(IFLA_PROP_LIST, b"")) if k == IFLA_ALT_IFNAME)
    return [name for name in listed if "." in name]


def settings(seen: Seen) -> dict[str, int]:
    """Of a node's end: by its path below net/, each setting that we give to all alike."""
    ipv6 = attrs(attrs(seen.get(IFLA_AF_SPEC, b"")).get(10, b"")).get(2, b"")
    name = name_of(seen)
    found = {}
    for number, path in _IPV4_SETTINGS.items():
        value = _ipv4_setting(seen, number)
        if value is not None:
            found[f"ipv4/conf/{name}/{path}"] = value
    if ipv6:
        found[f"ipv6/conf/{name}/forwarding"] = unpack_from("=i", ipv6)[0]
    return found


def _ipv4_setting(seen: Seen, number: int) -> int | None:
    """None where the kernel does not tell."""
    told = attrs(attrs(seen.get(IFLA_AF_SPEC, b"")).get(2, b"")).get(1, b"")
    return int(unpack_from("=i", told, (number - 1) * 4)[0]) if len(told) >= number * 4 else None


def astray(seen: Seen, name: str | None, off: frozenset[str], wanted: Settings = WANTED_SETTINGS) -> Iterator[str]:
    """What is not as it was born: `name` is what it was called, `off` as `link_of` has it."""
    if name_of(seen) != name:
        yield f"renamed to {name_of(seen)}"
    for path, value in settings(seen).items():
        setting = path.rpartition("/")[2]
        if value != wanted[setting] and not (setting == "forwarding" and path.partition("/")[0] in off):
            yield path


def is_doomed(seen: Seen) -> bool:
    return is_ours(seen) and in_group(seen, DOOMED)


def in_group(seen: Seen, group: int) -> bool:
    return IFLA_GROUP in seen and unpack_from("=I", seen[IFLA_GROUP])[0] == group


def is_up(seen: Seen) -> bool:
    return bool(seen[FLAGS][0] & UP)


def number_of_space(seen: Seen) -> int:
    """That of the other end's namespace in this one; -1: it has none, or lies in this one."""
    return _signed(seen[IFLA_LINK_NETNSID]) if IFLA_LINK_NETNSID in seen else NO_NUMBER


def other_end(seen: Seen) -> tuple[int, int]:
    """The number of the other end's namespace in this one, and its index there."""
    return number_of_space(seen), _signed(seen.get(IFLA_LINK, b""))


def is_dying(seen: Seen) -> bool:
    """Whether the kernel is taking down the namespace of the other end, and this link with it."""
    return is_ours(seen) and IFLA_LINK_NETNSID in seen and number_of_space(seen) == NO_NUMBER


def ends_in(seen: Seen, number: int) -> bool:
    """Whether the other end of a node's link is in the namespace of that number."""
    return number != NO_NUMBER and number_of_space(seen) == number


def get_number(descriptor: int) -> bytes:
    return bytes(4) + u32(NETNSA_FD, descriptor)


def number_of(answer: list[bytes]) -> int:
    """The number that the node has for a namespace (rtnetlink(7), RTM_GETNSID)."""
    return next((_signed(seen[NETNSA_NSID]) for body in answer if NETNSA_NSID in (seen := attrs(body, 4))), NO_NUMBER)


def _signed(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder, signed=True)


def up(space: str, seen: Mapping[int, Seen], ours: Collection[int]) -> dict[UpKey, Any]:
    """Only the loopback and the ends of our links (`ours`) are ours to hold up: what else a pod has is its own."""
    return {
        UpKey(space, index): unpack_from("=I", one[IFLA_MTU])[0] if space and index != LOOPBACK else True
        for index, one in seen.items()
        if is_up(one) and (index == LOOPBACK or index in ours)
    }


def inner(living: Mapping[int, Seen], others: Ends) -> dict[str, set[int]]:
    """By pod's namespace: the interfaces in which links of ours end. `living`: the node's links."""
    found: dict[str, set[int]] = {}
    for seen in living.values():
        if is_ours(seen) and (end := others.get(other_end(seen))) is not None:
            found.setdefault(end[0], set()).add(end[1])
    return found


def ends(space: str, number: int, seen: dict[int, Seen]) -> Ends:
    """What may be a pod's end of a link. Whether it is, only the node's end says: what a pod's interface says of its
    peer is the pod's to choose."""
    if number == NO_NUMBER:
        return {}
    return {
        (number, index): (space, index, name_of(one), one.get(IFLA_ADDRESS, b""))
        for index, one in seen.items()
        if IFLA_LINK in one
    }


def link_of(index: int, seen: Seen, others: Ends, off: frozenset[str] = frozenset()) -> tuple[LinkKey, Link]:
    """`others`: the pods' ends. One that is in no namespace we know has space "". `off`: the families that the node
    doesn't forward at all, "ipv4" or "ipv6": that no link of ours does is a consequence."""
    name = our_name(seen) or name_of(seen)
    space, inner, interface, mac = others.get(other_end(seen), ("", 0, "", b""))
    return LinkKey(name), Link(
        index=index,
        node_mac=seen.get(IFLA_ADDRESS, b""),
        space=space,
        inner=inner,
        interface=interface,
        mac=mac,
        mtu=unpack_from("=I", seen[IFLA_MTU])[0],
        altnames=tuple(sorted(it for it in _altnames(seen) if link_by(it) == name)),
        alias=seen.get(IFLA_IFALIAS, b"\0")[:-1].decode(errors="replace"),
        localnet=bool(_ipv4_setting(seen, _ROUTE_LOCALNET)),
        astray=tuple(astray(seen, our_name(seen), off)),
    )
