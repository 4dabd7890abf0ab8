"""One change of a link, address, route or neighbour to rtnetlink messages, and their dumps back. Pure.

Invariants: what a dump gives back equals what was rendered. Ours are recognised by marks given at birth: a route,
address or neighbour by its protocol number, a link by its kind and the form of its name (alias and altname follow in
messages of their own and may be missing). The name and MAC address of a pod's end are the pod's own after its birth.
A link that goes is only moved to the group of the doomed: the kernel takes some 20 ms for a deletion, however many it
deletes.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from struct import pack, unpack_from
from typing import Any

from msgspec.structs import replace

from podwire.controller.difference import Change
from podwire.dataplane.messages import CREATE, EXCL, REPLACE, Message, attr, attrs, nest, text, u32, walk
from podwire.ipam.blocks import FIRST_INDEX
from podwire.model.addresses import FAMILIES, Address, Family, Prefix, family_of, show_address
from podwire.model.network import (
    LOOPBACK,
    AddressKey,
    Link,
    LinkKey,
    NeighbourKey,
    PodMAC,
    Route,
    RouteKey,
    RuleKey,
    SysctlKey,
    UpKey,
)
from podwire.pods.names import LINK_PREFIX, link_by
from podwire.pods.wiring import NODE_MAC

PROTOCOL = 177
"""Ours: of routes (rtm_protocol), addresses (IFA_PROTO) and neighbours (NDA_PROTOCOL)."""
DOOMED = 0x7077
"""The link group of what waits for its deletion."""
NEWLINK, DELLINK, GETLINK, NEWADDR, DELADDR, GETADDR, NEWROUTE, DELROUTE, GETROUTE = (
    16,
    17,
    18,
    20,
    21,
    22,
    24,
    25,
    26,
)
NEWNEIGH, DELNEIGH, GETNEIGH, NEWNETCONF, NEWPROP, DELPROP = 28, 29, 30, 80, 108, 109
NEWRULE, DELRULE, GETRULE = 32, 33, 34
UP, PERMANENT, NO_DAD = 1, 0x80, 0x02
MAIN_TABLE, UNIVERSE, LINK_SCOPE, NOWHERE, UNICAST = 254, 0, 253, 255, 1
ANY_TABLE, TO_TABLE = 0, 1  # RT_TABLE_UNSPEC, FR_ACT_TO_TBL
_METRIC = {2: 0, 10: 1024}
"""By family: the metric of a route that is made without one."""
_KINDS = {2: "local", 3: "broadcast", 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_ODD = {8: "with settings of its own", 9: "several next hops", 18: "gateway of another family", 22: "encapsulated"}
_PROTOCOLS = {
    2: "kernel",
    3: "boot",
    4: "static",
    9: "ra",
    12: "bird",
    16: "dhcp",
    186: "bgp",
    188: "ospf",
    11: "zebra",
}
"""As `ip route` names them (/etc/iproute2/rt_protos)."""
WANTED_SETTINGS = {"forwarding": 1, "send_redirects": 0, "rp_filter": 1}
"""Of each node's end, those of both families alike."""
_IPV4_SETTINGS = {1: "forwarding", 6: "send_redirects", 8: "rp_filter"}
"""By their numbers (IPV4_DEVCONF)."""
NO_LINK_LOCAL = b"\x01"  # IN6_ADDR_GEN_MODE_NONE
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_LINKINFO, IFLA_IFALIAS, IFLA_AF_SPEC, IFLA_GROUP = (
    1, 3, 4, 5, 18, 20, 26, 27,
)  # fmt: skip
IFLA_NET_NS_FD, IFLA_LINK_NETNSID, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 28, 37, 52, 53
_FAMILY_NUMBERS = frozenset(family.number for family in FAMILIES)
GETNSID, NETNSA_NSID, NETNSA_FD = 90, 1, 3
NO_NUMBER = -1
"""Of a namespace without a link to the node's, and of one that is being taken down (NETNSA_NSID_NOT_ASSIGNED)."""
FLAGS = -1  # beside a link's attributes, the flags of its header
_NAME = re.compile(rf"{LINK_PREFIX}[0-9a-f]{{12}}\Z")
ORDER = (SysctlKey, LinkKey, UpKey, AddressKey, NeighbourKey, RouteKey, RuleKey)

Seen = dict[int, bytes]
Ends = dict[tuple[int, int], tuple[str, int, str, bytes]]
"""Pods' ends of links, by the number that the node has for their namespace, and index: namespace, index, name, MAC."""


def rank(key: Any) -> tuple[int, int]:
    """Create in this order, delete in the reverse: a default route needs the route to its gateway, and no packet may
    ask for a neighbour before it is told."""
    return ORDER.index(type(key)), -key.destination.length if isinstance(key, RouteKey) else 0


def place(wanted: Any, actual: Any) -> Any:
    """A route by its gateway alone is content with whatever interface the kernel found for it; a link with the name
    and MAC address that its pod has given it."""
    if isinstance(wanted, Route) and wanted.index == 0 and isinstance(actual, Route):
        return actual if replace(actual, index=0) == wanted else wanted
    if isinstance(wanted, Link) and isinstance(actual, Link) and _identity(wanted) == _identity(actual):
        return replace(wanted, interface=actual.interface, mac=actual.mac)
    return wanted


def settle(wanted: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The node's neighbours follow the MAC addresses that the pods' ends really have: an owner may change them, as
    virtual machines in pods do. Where that end can't be seen, the neighbour stays as it is."""
    found: dict[Any, Any] = {}
    for key, value in wanted.items():
        if isinstance(value, PodMAC):
            made, will = actual.get(LinkKey(value.link)), wanted.get(LinkKey(value.link))
            found[key] = value.born
            if isinstance(made, Link) and isinstance(will, Link):
                seen = bool(will.space) and _identity(made) == _identity(will)
                if seen or not made.space:
                    found[key] = (made.mac if seen else actual.get(key)) or value.born
    return {**wanted, **found} if found else wanted


def render(key: Any, change: Change, descriptor: int) -> list[Message]:
    """`descriptor` is the pod's namespace, opened, where a link is to end in it."""
    gone = change.after is None
    flags = 0 if gone else CREATE | (REPLACE if change.before is not None else EXCL)
    value = change.before if gone else change.after
    match key:
        case LinkKey(name):
            return _link(name, change, descriptor)
        case UpKey(space, index):
            return [] if gone else _up(space, index, value)
        case AddressKey(_, index, address):
            family = family_of(address)
            head = pack("=BBBBI", family.number, family.bits, 0, 0, index)
            quick = u32(8, NO_DAD if family.size == 16 else 0)
            if gone:  # by itself: what a pod's owner made may have another peer's address
                return [Message(NEWADDR + gone, flags, head + attr(2, address))]
            body = head + attr(2, address) + attr(1, address) + quick + attr(11, bytes((PROTOCOL,)))
            return [Message(NEWADDR + gone, flags, body)]
        case RouteKey():
            if gone:
                return [Message(DELROUTE, 0, _no_route(key))]
            # A pod's address is ours to give: whoever else has a route to it there gives way.
            to_pod = not key.space and value.via is None and key.destination.length == key.destination.family.bits
            return [Message(NEWROUTE, CREATE | REPLACE if to_pod else flags, _route(key, value))]
        case RuleKey():  # there is no replacing one
            old = [Message(DELRULE, 0, _rule(key))] if change.before is not None else []
            return old if gone else [*old, Message(NEWRULE, CREATE | EXCL, _rule(key, value))]
        case NeighbourKey(_, index, address):
            head = pack("=BxHiHBB", family_of(address).number, 0, index, PERMANENT, 0, 0)
            body = head + attr(1, address) + attr(2, value) + attr(12, bytes((PROTOCOL,)))
            # Always in place of what is there: a packet in between leaves an entry that the kernel made by itself.
            return [Message(NEWNEIGH + gone, 0 if gone else CREATE | REPLACE, body)]
    raise TypeError(key)


def delete_doomed() -> list[Message]:
    return [Message(DELLINK, 0, _header(0) + u32(IFLA_GROUP, DOOMED))]


def delete_link(index: int) -> list[Message]:
    return [Message(DELLINK, 0, _header(index))]


def remade(change: Change) -> bool:
    """Whether a link's change means another link: what lay on it is lost."""
    before, after = change
    return before is not None and after is not None and _identity(before) != _identity(after)


def disturbs(change: Change) -> bool:
    """Whether other keys go with a link's change."""
    before, after = change
    return remade(change) or (before is not None and after is not None and before.node_mac != after.node_mac)


def _identity(it: Link) -> tuple[int, str, int]:
    return it.index, it.space, it.inner


def _header(index: int, up: bool = False) -> bytes:
    return pack("=BxHiII", 0, 0, index, UP * up, UP * up)


def _up(space: str, index: int, value: Any) -> list[Message]:
    up = Message(NEWLINK, 0, _header(index, up=True))
    if not space or index == LOOPBACK:
        return [up]
    # No link-local address: nothing to detect a duplicate of, no router to solicit.
    quiet = nest(IFLA_AF_SPEC, nest(10, attr(8, NO_LINK_LOCAL)))
    return [Message(NEWLINK, 0, _header(index) + u32(IFLA_MTU, value) + quiet), up]


def _rule(key: RuleKey, table: int = 0) -> bytes:
    family = family_of(key.address)
    head = pack("=BBBBBxxBI", family.number, 0, family.bits, 0, 0, TO_TABLE, 0)
    marks = attr(2, key.address) + u32(6, key.priority) + attr(21, bytes((PROTOCOL,)))
    return head + marks + (u32(15, table) if table else b"")


def _table(key: RouteKey) -> tuple[int, bytes]:
    """Of one with a larger number the header says only that it is one."""
    return (ANY_TABLE, u32(15, key.table)) if key.table else (MAIN_TABLE, b"")


def _route(key: RouteKey, value: Route) -> bytes:
    destination = key.destination
    family = family_of(destination.first)
    scope = UNIVERSE if value.via is not None or family.size == 16 else LINK_SCOPE
    number, table = _table(key)
    head = pack("=BBBBBBBBI", family.number, destination.length, 0, 0, number, PROTOCOL, scope, UNICAST, 0)
    return (
        head
        + table
        + (attr(1, destination.first) if destination.length else b"")
        + (u32(4, value.index) if value.index else b"")
        + (attr(5, value.via) if value.via is not None else b"")
        + (attr(7, value.source) if value.source is not None else b"")
    )


def _no_route(key: RouteKey) -> bytes:
    """Any of ours to this destination, whatever its kind and next hops (type 0 and scope 255 match all)."""
    destination = key.destination
    family = family_of(destination.first)
    number, table = _table(key)
    head = pack("=BBBBBBBBI", family.number, destination.length, 0, key.tos, number, PROTOCOL, NOWHERE, 0, 0) + table
    metric = key.metric or _METRIC[family.number]
    first = attr(1, destination.first) if destination.length else b""
    return head + first + (u32(6, metric) if metric else b"")


def _link(name: str, change: Change, descriptor: int) -> list[Message]:
    before, after = change
    if after is None:
        return [Message(NEWLINK, 0, _header(before.index) + u32(IFLA_GROUP, DOOMED))]
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
        settings += text(IFLA_IFNAME, name) + _per_interface()
    if before.node_mac != after.node_mac:  # only then: the kernel forgets the neighbours, even for the same address
        settings += attr(IFLA_ADDRESS, after.node_mac)
    return [*found, Message(NEWLINK, 0, _header(after.index) + settings)]


def _new_link(name: str, it: Link, descriptor: int) -> list[Message]:
    # The peer can't be born up: its driver wants the other end first (ENOTCONN).
    peer = (
        _header(it.inner)
        + text(IFLA_IFNAME, it.interface)
        + attr(IFLA_ADDRESS, it.mac)
        + u32(IFLA_MTU, it.mtu)
        + u32(IFLA_NET_NS_FD, descriptor)
    )
    born = (
        _header(it.index)
        + text(IFLA_IFNAME, name)
        + attr(IFLA_ADDRESS, it.node_mac)
        + u32(IFLA_MTU, it.mtu)
        + nest(IFLA_LINKINFO, attr(1, b"veth"), nest(2, attr(1, peer)))
    )
    return [
        Message(NEWLINK, CREATE | EXCL, born),
        Message(NEWLINK, 0, _header(it.index) + attr(IFLA_IFALIAS, it.alias.encode()) + _per_interface()),
        *(Message(NEWPROP, CREATE | EXCL, _altname(it.index, name)) for name in it.altnames),
    ]


def _per_interface() -> bytes:
    ipv4 = (u32(number, WANTED_SETTINGS[path]) for number, path in _IPV4_SETTINGS.items())
    return nest(IFLA_AF_SPEC, nest(2, nest(1, *ipv4)), nest(10, attr(8, NO_LINK_LOCAL)))


def _altname(index: int, name: str) -> bytes:
    return _header(index) + nest(IFLA_PROP_LIST, text(IFLA_ALT_IFNAME, name))


# --- and back ----------------------------------------------------------------------------------


def get_links() -> bytes:
    return _header(0)


def get_link(index: int) -> bytes:
    return _header(index)


def links(dump: list[bytes]) -> dict[int, Seen]:
    """By interface index."""
    return {unpack_from("=i", body, 4)[0]: attrs(body, 16) | {FLAGS: body[8:12]} for body in dump}


def name_of(seen: Seen) -> str:
    return seen[IFLA_IFNAME][:-1].decode(errors="replace")


def is_ours(seen: Seen) -> bool:
    return our_name(seen) is not None


def our_name(seen: Seen) -> str | None:
    """The name that a link of ours was born with, also where somebody has renamed it; None: it is none of ours."""
    if attrs(seen.get(IFLA_LINKINFO, b"")).get(1, b"").rstrip(b"\0") != b"veth":
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
    """Of a node's end: by its path below net/, each setting that we give it."""
    families = attrs(seen.get(IFLA_AF_SPEC, b""))
    ipv4, ipv6 = attrs(families.get(2, b"")).get(1, b""), attrs(families.get(10, b"")).get(2, b"")
    name = name_of(seen)
    found = {}
    for number, path in _IPV4_SETTINGS.items():
        if len(ipv4) >= number * 4:
            found[f"ipv4/conf/{name}/{path}"] = unpack_from("=i", ipv4, (number - 1) * 4)[0]
    if ipv6:
        found[f"ipv6/conf/{name}/forwarding"] = unpack_from("=i", ipv6)[0]
    return found


def _astray(seen: Seen, off: frozenset[str]) -> Iterator[str]:
    if name_of(seen) != our_name(seen):
        yield f"renamed to {name_of(seen)}"
    for path, value in settings(seen).items():
        setting = path.rpartition("/")[2]
        if value != WANTED_SETTINGS[setting] and not (setting == "forwarding" and path.partition("/")[0] in off):
            yield path


def is_doomed(seen: Seen) -> bool:
    return is_ours(seen) and IFLA_GROUP in seen and unpack_from("=I", seen[IFLA_GROUP])[0] == DOOMED


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
        astray=tuple(_astray(seen, off)),
    )


def is_marked(kind: int, body: bytes) -> bool:
    """Whether an address, route or neighbour has our protocol number."""
    if kind in (NEWROUTE, DELROUTE):
        return body[5] == PROTOCOL
    at, mark = (8, 11) if kind in (NEWADDR, DELADDR) else (12, 21) if kind in (NEWRULE, DELRULE) else (12, 12)
    return attrs(body, at).get(mark) == bytes((PROTOCOL,))


def address_of(space: str, body: bytes) -> tuple[AddressKey, bool] | None:
    seen = attrs(body, 8)
    local = seen.get(2, seen.get(1, b""))  # a pod's owner can make one without a peer's address
    if len(local) not in (4, 16):
        return None
    return AddressKey(space, unpack_from("=I", body, 4)[0], Address(local)), True


def route_of(space: str, body: bytes) -> tuple[RouteKey, Route] | None:
    family, length, tos, kind = body[0], body[1], body[3], body[7]
    seen = attrs(body, 12)
    table = unpack_from("=I", seen[15])[0] if 15 in seen else body[4]
    if family not in _FAMILY_NUMBERS or (table != MAIN_TABLE and (not space or table < FIRST_INDEX)):
        return None
    via, source = seen.get(5), seen.get(7)
    destination = Prefix(Address(seen.get(1, bytes(16 if family == 10 else 4))), length)
    metric = unpack_from("=I", seen[6])[0] if 6 in seen else 0
    return (
        RouteKey(
            space,
            destination,
            0 if metric == _METRIC[family] else metric,
            tos,
            0 if table == MAIN_TABLE else table,
        ),
        Route(
            unpack_from("=I", seen[4])[0] if 4 in seen else 0,
            Address(via) if via else None,
            Address(source) if source else None,
            " ".join((*([_KINDS.get(kind, f"type {kind}")] if kind != UNICAST else ()), *_oddities(seen))),
        ),
    )


def _oddities(seen: Seen) -> Iterator[str]:
    if 30 in seen:
        yield f"next hop object {unpack_from('=I', seen[30])[0]}"
    yield from (word for kind, word in _ODD.items() if kind in seen)


def is_to(destination: Prefix, body: bytes) -> bool:
    """Whether a route of the main table, of whatever protocol, is to the same destination."""
    item = route_of("", body)
    return item is not None and item[0].destination == destination


def whose(body: bytes, names: Mapping[int, str]) -> str:
    """Another's route in words, by protocol, gateway and interface (its name from `names`)."""
    item = route_of("", body)
    value = item[1] if item is not None else Route(0)
    kind = f" ({value.odd})" if value.odd else ""
    via = f" by way of {show_address(value.via)}" if value.via is not None else ""
    on = f" on {names.get(value.index, value.index)}" if value.index else ""
    return f"protocol {_PROTOCOLS.get(body[5], body[5])}{via}{on}{kind}"


def neighbour_of(space: str, body: bytes) -> tuple[NeighbourKey, bytes] | None:
    """One that is no longer permanent has no MAC address that counts."""
    seen = attrs(body, 12)
    if 1 not in seen or body[0] not in _FAMILY_NUMBERS:
        return None
    state = unpack_from("=H", body, 8)[0]
    return (
        NeighbourKey(space, unpack_from("=i", body, 4)[0], Address(seen[1])),
        seen.get(2, b"") if state & PERMANENT else b"",
    )


def rule_of(space: str, body: bytes) -> tuple[RuleKey, int] | None:
    """Of a pod; in the node's namespace there is none of ours."""
    seen = attrs(body, 12)
    if not space or 2 not in seen or 6 not in seen or body[0] not in _FAMILY_NUMBERS:
        return None
    plain = body[2] == len(seen[2]) * 8 and body[1] == 0 and body[3] == 0 and body[7] == TO_TABLE and 15 in seen
    key = RuleKey(space, Address(seen[2]), unpack_from("=I", seen[6])[0])
    return key, unpack_from("=I", seen[15])[0] if plain else -1


def routes_request(family: Family, protocol: int = PROTOCOL, table: int = MAIN_TABLE) -> bytes:
    """Only ours, of the main table: a dump honours its filter (NETLINK_GET_STRICT_CHK). 0 in place of protocol or
    table: all."""
    return pack("=BBBBBBBBI", family.number, 0, 0, 0, table, protocol, 0, 0, 0)
