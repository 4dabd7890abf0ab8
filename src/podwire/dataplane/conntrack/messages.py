"""Tracked flows as ctnetlink tells them, and the messages that ask for them and delete them. Pure.

Invariants: a deletion always names one entry by its tuple and ID: without a tuple the kernel would take it for "all".
Filters only spare work: whatever comes is looked at again here, so a kernel that knows no filter (before 5.8) gives the
same result. Only the default zone is ours. The forms are those of linux/netfilter/nfnetlink_conntrack.h.
"""

from collections.abc import Iterable, Iterator
from struct import Struct, pack
from typing import ClassVar, NamedTuple

from podwire.dataplane.messages import NESTED, Message, attr, attrs, nest, u32
from podwire.model.addresses import FAMILIES, Address, Family, family_of
from podwire.model.network import Backend, Frontend
from podwire.model.objects import Protocol, Value
from podwire.services.stale import Flow

NEW, GET, DELETE = (1 << 8 | n for n in range(3))
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _PROTOINFO, _ID, _ZONE, _FILTER, _STATUS_MASK = 1, 2, 3, 4, 12, 18, 25, 26
_TUPLE_PROTO = 2
_PROTO_NUMBER, _PROTO_DESTINATION = 1, 3
_PROTOINFO_TCP, _TCP_STATE, _SYN_SENT = 1, 1, 1
_FILTER_ORIG = 1
_BY_PROTOCOL, _BY_PORT = 1 << 3, 1 << 5
_SEEN_REPLY = 1 << 1
_PORT, _WORD = Struct(">H"), Struct(">I")
_IN_A_ZONE = pack("=H", _ZONE)
"""The attribute that follows the tuples of an entry outside of the default zone."""
FEW = 2
"""Ports that are asked for one by one."""
_PROTOCOLS = {int(it): it for it in Protocol}


class Query(NamedTuple):
    """Flows of one family and protocol, all or those to one port; of TCP those that nobody has answered yet."""

    family: Family
    protocol: Protocol
    port: int | None = None


class Entry(Value, frozen=True):
    """`body`: as the kernel told it."""

    flow: Flow
    body: bytes
    others: ClassVar[tuple[Flow, ...]] = ()


def queries(frontends: Iterable[Frontend], everything: bool) -> list[Query]:
    """What to ask for to see all flows of these frontends, or of all. Each query is a walk through the whole table, so
    few ports are asked for one by one, and many at once."""
    if everything:
        return [Query(family, protocol) for family in FAMILIES for protocol in Protocol]
    ports: dict[Query, set[int]] = {}
    for frontend in frontends:
        ports.setdefault(Query(frontend.family, frontend.protocol), set()).add(frontend.port)
    found: list[Query] = []
    for kind, some in sorted(ports.items()):
        found += [kind] if len(some) > FEW else [kind._replace(port=port) for port in sorted(some)]
    return found


def request(query: Query) -> bytes:
    """The body of the GET that asks for it. Not by address: of IPv6 the kernel (6.18) then gives all others."""
    flags, parts = _BY_PROTOCOL, [attr(_PROTO_NUMBER, bytes((query.protocol,)))]
    if query.port is not None:
        flags |= _BY_PORT
        parts.append(attr(_PROTO_DESTINATION, _PORT.pack(query.port)))
    body = _header(query.family) + nest(_TUPLE_ORIG, nest(_TUPLE_PROTO, *parts))
    body += nest(_FILTER, u32(_FILTER_ORIG, flags))
    if query.protocol is Protocol.TCP:
        body += attr(_STATUS, _WORD.pack(0)) + attr(_STATUS_MASK, _WORD.pack(_SEEN_REPLY))
    return body


def request_all(family: Family) -> bytes:
    """The body of the GET that asks for all flows of a family, without a filter."""
    return _header(family)


def to_frontends(frontends: Iterable[Frontend]) -> frozenset[bytes]:
    """What the entries of these frontends have at three places of their bytes."""
    return frozenset(bytes(it.address) + bytes((it.protocol,)) + _PORT.pack(it.port) for it in frontends)


def entries(family: Family, bodies: Iterable[bytes], wanted: frozenset[bytes] | None = None) -> Iterator[Entry]:
    """Those of frontends' protocols, of the default zone; of TCP only what waits for its first answer. `wanted`: only
    those to these places, of which an address of all zeros stands for all, told from the others before anything else is
    made of an entry: there may be a hundred thousand."""
    layout, headers = _LAYOUTS[family]
    size, length = 4 + layout.size, family.size
    address, anywhere = slice(20 + length, 20 + 2 * length), bytes(length)
    protocol_at, port_at = 28 + 2 * length, slice(44 + 2 * length, 46 + 2 * length)
    for body in bodies:
        if len(body) < size:
            continue
        if wanted is not None:
            port = body[protocol_at : protocol_at + 1] + body[port_at]
            if body[address] + port not in wanted and anywhere + port not in wanted:
                continue
        one, client, to, protocol, port, other, source, its_port, following = layout.unpack_from(body, 4)
        known = _PROTOCOLS.get(protocol)
        if (one, other) != headers or following == _IN_A_ZONE or known is None:
            continue
        if known is Protocol.TCP and not _half_open(body):
            continue
        flow = Flow(Frontend(Address(to), known, port), Backend(Address(source), its_port), Address(client))
        yield Entry(flow, body)


def deletion(entry: Entry) -> Message:
    held = attrs(entry.body, 4)
    family = family_of(entry.flow.to.address)
    return Message(DELETE, 0, _header(family) + nest(_TUPLE_ORIG, held[_TUPLE_ORIG]) + attr(_ID, held[_ID]))


def _half_open(body: bytes) -> bool:
    held = attrs(body, 4)
    if int.from_bytes(held.get(_STATUS, b"\xff"), "big") & _SEEN_REPLY:
        return False
    return attrs(attrs(held.get(_PROTOINFO, b"")).get(_PROTOINFO_TCP, b"")).get(_TCP_STATE) == bytes((_SYN_SENT,))


def _header(family: Family) -> bytes:
    return bytes((family.number, 0, 0, 0))


def _layout(family: Family) -> tuple[Struct, tuple[bytes, bytes]]:
    """Both tuples of an entry as the kernel lays them out, and the kind of what follows; and the headers by which they
    are known to be so: longer tuples have other protocols' fields, or a zone of one direction."""
    size = family.size
    whole = 4 + 4 + 2 * (4 + size) + 4 + 3 * 8
    # header, (header of the addresses), source, destination, (header), protocol, source port, destination port
    orig = f"4s 4x 4x{size}s 4x{size}s 4x 4xB3x 8x 4xH2x"
    reply = f"4s 4x 4x{size}s {4 + size}x 4x 8x 4xH2x 8x"
    headers = pack("=HH", whole, _TUPLE_ORIG | NESTED), pack("=HH", whole, _TUPLE_REPLY | NESTED)
    return Struct(f">{orig} {reply} 2x2s"), headers


_LAYOUTS = {family: _layout(family) for family in FAMILIES}
