"""Connection tracking's entry for one flow: the message that asks for it, and what it says. Pure.

Invariants: any bytes give an entry or none, never an exception. The forms are those of
linux/netfilter/nfnetlink_conntrack.h.
"""

from struct import pack

from podwire.dataplane.messages import attr, attrs, nest
from podwire.dataplane.nftables.wire import head
from podwire.model.addresses import Address
from podwire.model.network import Backend
from podwire.model.objects import Protocol, Value
from podwire.trace.table import Probe

GET = 1 << 8 | 1
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _PROTOINFO = 1, 2, 3, 4
_TUPLE_IP, _TUPLE_PROTO = 1, 2
_ANSWERED = 1 << 1
_STATES = (
    "none",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
)
"""Of TCP (linux/netfilter/nf_conntrack_tcp.h)."""


class Entry(Value, frozen=True):
    """`server`: from where answers come, so where the packet went; `client`: where they go, so whom the server saw.
    `state` is TCP's, "" for others; `answered`: something came back."""

    server: Backend
    client: Backend
    answered: bool
    state: str = ""


def request(probe: Probe) -> bytes:
    """The body of the GET for it; there is no entry where the packet was stopped before it left."""
    source, destination = (1, 2) if probe.family.size == 4 else (3, 4)
    addresses = nest(_TUPLE_IP, attr(source, probe.source), attr(destination, probe.to.address))
    ports = (attr(2, pack(">H", probe.port)), attr(3, pack(">H", probe.to.port)))
    protocol = nest(_TUPLE_PROTO, attr(1, bytes((probe.to.protocol,))), *ports)
    return head(probe.family) + nest(_TUPLE_ORIG, addresses, protocol)


def entry(probe: Probe, body: bytes) -> Entry | None:
    seen = attrs(body, 4)
    reply = attrs(seen.get(_TUPLE_REPLY, b""))
    addresses, ports = attrs(reply.get(_TUPLE_IP, b"")), attrs(reply.get(_TUPLE_PROTO, b""))
    size = probe.family.size
    ends = [addresses.get(kind, b"") for kind in ((1, 2) if size == 4 else (3, 4))]
    if any(len(end) != size for end in ends):
        return None
    server, client = (
        Backend(Address(end), int.from_bytes(ports.get(kind, b"")[:2], "big"))
        for end, kind in zip(ends, (2, 3), strict=True)
    )
    answered = bool(int.from_bytes(seen.get(_STATUS, b""), "big") & _ANSWERED)
    return Entry(server, client, answered, _state(seen) if probe.to.protocol is Protocol.TCP else "")


def _state(seen: dict[int, bytes]) -> str:
    number = attrs(attrs(seen.get(_PROTOINFO, b"")).get(1, b"")).get(1, b"")[:1]
    return _STATES[number[0]] if number and number[0] < len(_STATES) else ""
