"""Addresses, routes and rules: a change to rtnetlink messages, and their dumps back. Pure.

Invariants: what a dump gives back equals what was rendered. Ours are recognised by their protocol number.
"""

from collections.abc import Iterator, Mapping
from struct import pack, unpack_from

from podwire.controller.difference import Change
from podwire.dataplane.linux.rtnetlink import (
    ANY_TABLE,
    DELADDR,
    DELROUTE,
    DELRULE,
    FAMILY_NUMBERS,
    LINK_SCOPE,
    LOCAL,
    LOCAL_TABLE,
    MAIN_TABLE,
    NEWADDR,
    NEWROUTE,
    NEWRULE,
    NO_DAD,
    NOWHERE,
    ONLINK,
    PROTOCOL,
    TO_TABLE,
    UNICAST,
    UNIVERSE,
    Seen,
)
from podwire.dataplane.messages import CREATE, EXCL, REPLACE, Message, attr, attrs, u32
from podwire.ipam.blocks import FIRST_INDEX
from podwire.model.addresses import Address, Family, Prefix, family_of, show_address
from podwire.model.network import AddressKey, Route, RouteKey, RuleKey

_FIRST, _DEFAULT = {2: 0, 10: 1}, {2: 0, 10: 1024}
"""By family: the metric of our routes on the node, before which none comes, and in pods, where others' come beside
them. The kernel puts its default in the place of IPv6's 0."""
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


def address(key: AddressKey, change: Change) -> list[Message]:
    family = family_of(key.address)
    head = pack("=BBBBI", family.number, family.bits, 0, 0, key.index)
    local = attr(2, key.address)
    if change.after is None:  # by itself: what a pod's owner made may have another peer's address
        return [Message(DELADDR, 0, head + local), *_local_route(key, gone=True)]
    quick = u32(8, NO_DAD if family.size == 16 else 0)
    body = head + local + attr(1, key.address) + quick + attr(11, bytes((PROTOCOL,)))
    return [Message(NEWADDR, CREATE | (EXCL if change.before is None else REPLACE), body), *_local_route(key)]


def _local_route(key: AddressKey, gone: bool = False) -> list[Message]:
    """By which a pod takes for itself what comes for an IPv6 address. The kernel makes one too, but in a task that has
    its turn later (addrconf_dad_work): until then the pod would throw away what comes. It goes with the pod's link."""
    family = family_of(key.address)
    if not key.space or family.size == 4:
        return []
    head = pack("=BBBBBBBBI", family.number, family.bits, 0, 0, LOCAL_TABLE, PROTOCOL, UNIVERSE, LOCAL, 0)
    body = head + attr(1, key.address) + u32(4, key.index)
    return [Message(DELROUTE, 0, body) if gone else Message(NEWROUTE, CREATE | REPLACE, body)]


def route(key: RouteKey, change: Change) -> list[Message]:
    value = change.after
    if value is None:
        return [Message(DELROUTE, 0, _no_route(key))]
    # A pod's address is ours to give: whoever else has a route to it there gives way.
    to_pod = not key.space and value.via is None and key.destination.length == key.destination.family.bits
    exclusive = change.before is None and not to_pod
    return [Message(NEWROUTE, CREATE | (EXCL if exclusive else REPLACE), _route(key, value))]


def rule(key: RuleKey, change: Change) -> list[Message]:
    """There is no replacing one."""
    old = [Message(DELRULE, 0, _rule(key))] if change.before is not None else []
    return old if change.after is None else [*old, Message(NEWRULE, CREATE | EXCL, _rule(key, change.after))]


def _rule(key: RuleKey, table: int = 0) -> bytes:
    family = family_of(key.address)
    head = pack("=BBBBBxxBI", family.number, 0, family.bits, 0, 0, TO_TABLE, 0)
    marks = attr(2, key.address) + u32(6, key.priority) + attr(21, bytes((PROTOCOL,)))
    return head + marks + (u32(15, table) if table else b"")


def _table(key: RouteKey) -> tuple[int, bytes]:
    """Of one with a larger number the header says only that it is one."""
    return (ANY_TABLE, u32(15, key.table)) if key.table else (MAIN_TABLE, b"")


def _metric(space: str, family: int) -> int:
    """Of a route that names none."""
    return (_DEFAULT if space else _FIRST)[family]


def _route(key: RouteKey, value: Route) -> bytes:
    destination = key.destination
    family = family_of(destination.first)
    scope = UNIVERSE if value.via is not None or family.size == 16 else LINK_SCOPE
    number, table = _table(key)
    head = pack(
        "=BBBBBBBBI", family.number, destination.length, 0, 0, number, PROTOCOL, scope, UNICAST, ONLINK * value.onlink
    )
    return (
        head
        + table
        + (attr(1, destination.first) if destination.length else b"")
        + (u32(4, value.index) if value.index else b"")
        + (attr(5, value.via) if value.via is not None else b"")
        + (attr(7, value.source) if value.source is not None else b"")
        + (u32(6, metric) if (metric := _metric(key.space, family.number)) else b"")
    )


def _no_route(key: RouteKey) -> bytes:
    """Any of ours to this destination, whatever its kind and next hops (type 0 and scope 255 match all)."""
    destination = key.destination
    family = family_of(destination.first)
    number, table = _table(key)
    head = pack("=BBBBBBBBI", family.number, destination.length, 0, key.tos, number, PROTOCOL, NOWHERE, 0, 0) + table
    metric = key.metric or _metric(key.space, family.number)
    first = attr(1, destination.first) if destination.length else b""
    return head + first + (u32(6, metric) if metric else b"")


# --- and back ----------------------------------------------------------------------------------


def address_of(space: str, body: bytes) -> tuple[AddressKey, bool] | None:
    seen = attrs(body, 8)
    local = seen.get(2, seen.get(1, b""))  # a pod's owner can make one without a peer's address
    if len(local) not in (4, 16):
        return None
    return AddressKey(space, unpack_from("=I", body, 4)[0], Address(local)), True


def route_of(space: str, body: bytes) -> tuple[RouteKey, Route] | None:
    family, length, tos, kind = body[0], body[1], body[3], body[7]
    if body[4] == LOCAL_TABLE:  # most of what is told of a new pod; no need to look closer
        return None
    seen = attrs(body, 12)
    table = unpack_from("=I", seen[15])[0] if 15 in seen else body[4]
    if family not in FAMILY_NUMBERS or (table != MAIN_TABLE and (not space or table < FIRST_INDEX)):
        return None
    via, source = seen.get(5), seen.get(7)
    destination = Prefix(Address(seen.get(1, bytes(16 if family == 10 else 4))), length)
    metric = unpack_from("=I", seen[6])[0] if 6 in seen else 0
    return (
        RouteKey(
            space,
            destination,
            0 if metric == _metric(space, family) else metric,
            tos,
            0 if table == MAIN_TABLE else table,
        ),
        Route(
            unpack_from("=I", seen[4])[0] if 4 in seen else 0,
            Address(via) if via else None,
            Address(source) if source else None,
            " ".join((*([_KINDS.get(kind, f"type {kind}")] if kind != UNICAST else ()), *_oddities(seen))),
            bool(unpack_from("=I", body, 8)[0] & ONLINK),
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


def rule_of(space: str, body: bytes) -> tuple[RuleKey, int] | None:
    """Of a pod; in the node's namespace there is none of ours."""
    seen = attrs(body, 12)
    if not space or 2 not in seen or 6 not in seen or body[0] not in FAMILY_NUMBERS:
        return None
    plain = body[2] == len(seen[2]) * 8 and body[1] == 0 and body[3] == 0 and body[7] == TO_TABLE and 15 in seen
    key = RuleKey(space, Address(seen[2]), unpack_from("=I", seen[6])[0])
    return key, unpack_from("=I", seen[15])[0] if plain else -1


def request(family: Family, protocol: int = PROTOCOL, table: int = MAIN_TABLE) -> bytes:
    """Only ours, of the main table: a dump honours its filter (NETLINK_GET_STRICT_CHK). 0 in place of protocol or
    table: all."""
    return pack("=BBBBBBBBI", family.number, 0, 0, 0, table, protocol, 0, 0, 0)
