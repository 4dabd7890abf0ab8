"""The table that asks the kernel to tell of one flow, as messages. Pure.

Invariants: it exists only while a trace goes on. The kernel removes it with the socket that made it
(NFT_TABLE_F_OWNER, Linux 5.12), so it does not outlive its agent; what an older kernel leaves is found by its name. It
marks packets of the one flow and lets all pass. In the table of the flow's family:

    begin       first of all: what the client sends is traced from here on
    answers     so are answers, once connection tracking knows them, where they come in
    ownanswers  and where the node itself sends them
    forwarding  tells that the packet is routed on,
    leaving     that it left the node by an interface,
    arriving    or was given to the node itself: nothing is decided there, being there is the message
"""

from struct import pack

from podwire.dataplane.messages import CREATE, Message, attr, nest, text
from podwire.dataplane.nftables.wire import (
    APPEND,
    DELTABLE,
    NEWCHAIN,
    NEWRULE,
    NEWTABLE,
    expression,
    head,
    u32,
)
from podwire.model.addresses import Address, Family
from podwire.model.network import Frontend
from podwire.model.objects import Value

TABLE = "podwire_trace"
BEGIN, ANSWERS, OWN_ANSWERS, FORWARDING, LEAVING, ARRIVING = (
    "begin",
    "answers",
    "ownanswers",
    "forwarding",
    "leaving",
    "arriving",
)
FIRST, LAST, TRACKED = -1000, 0x7FFF_FFFF, -199
"""Priorities: before all filters, after all, and just after connection tracking has looked."""
_PREROUTING, _INPUT, _FORWARD, _OUTPUT, _POSTROUTING = range(5)
_HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
_AT = {
    ANSWERS: _PREROUTING,
    OWN_ANSWERS: _OUTPUT,
    FORWARDING: _FORWARD,
    LEAVING: _POSTROUTING,
    ARRIVING: _INPUT,
}
_OWNER = 2
_META_IIF, _META_NFTRACE, _META_L4PROTO = 4, 12, 16
_CT_DIRECTION, _CT_PROTO_SRC, _CT_PROTO_DST, _CT_DST_IP, _CT_DST_IP6 = 1, 11, 12, 20, 22
_NETWORK, _TRANSPORT = 1, 2
_ORIGINAL, _REPLY = bytes((0,)), bytes((1,))
_REGISTER = 8


class Probe(Value, frozen=True):
    """The flow that is traced. `interface` is the index of the link by which it comes to the node; 0: the node itself
    sends it."""

    source: Address
    port: int
    to: Frontend
    interface: int = 0

    @property
    def family(self) -> Family:
        return self.to.family


def make(probe: Probe, owned: bool = True) -> list[Message]:
    """For an absent table. `owned`: it goes with the socket that sends this."""
    whole = _table(probe.family)
    priorities = {ANSWERS: TRACKED, OWN_ANSWERS: TRACKED, FORWARDING: FIRST, LEAVING: LAST, ARRIVING: LAST}
    hooks = [(BEGIN, _OUTPUT if not probe.interface else _PREROUTING, FIRST)]
    hooks += [(name, _AT[name], priority) for name, priority in priorities.items()]
    found = [Message(NEWTABLE, CREATE, whole + (u32(2, _OWNER) if owned else b""))]
    found += [Message(NEWCHAIN, CREATE, whole + _chain(*each)) for each in hooks]
    rules = ((BEGIN, _sent(probe)), (ANSWERS, _answered(probe)), (OWN_ANSWERS, _answered(probe)))
    found += [Message(NEWRULE, CREATE | APPEND, whole + text(2, name) + nest(4, *each)) for name, each in rules]
    return found


def hook_of(chain: str, link: str) -> str:
    """`link`: by which a pod's packet comes, "" for the node's own."""
    return _HOOKS[_PREROUTING if link else _OUTPUT] if chain == BEGIN else _HOOKS[_AT.get(chain, _PREROUTING)]


def remove(family: Family) -> list[Message]:
    return [Message(DELTABLE, 0, _table(family))]


def request(family: Family) -> bytes:
    """The body of the GETTABLE that asks whether it is there."""
    return _table(family)


def _table(family: Family) -> bytes:
    return head(family) + text(1, TABLE)


def _chain(name: str, hook: int, priority: int) -> bytes:
    return text(3, name) + nest(4, u32(1, hook), attr(2, pack(">i", priority))) + u32(5, 1) + text(7, "filter")


def _sent(probe: Probe) -> list[bytes]:
    family, to = probe.family, probe.to
    found: list[bytes] = []
    if probe.interface:
        found += [_meta(_META_IIF), _equal(pack("=I", probe.interface))]
    found += [_meta(_META_L4PROTO), _equal(bytes((to.protocol,)))]
    source, destination = (12, 16) if family.size == 4 else (8, 24)
    for base, offset, value in (
        (_NETWORK, source, bytes(probe.source)),
        (_NETWORK, destination, bytes(to.address)),
        (_TRANSPORT, 0, pack(">H", probe.port)),
        (_TRANSPORT, 2, pack(">H", to.port)),
    ):
        found += [_payload(base, offset, len(value)), _equal(value)]
    return [*found, *_TRACED]


def _answered(probe: Probe) -> list[bytes]:
    address = _CT_DST_IP if probe.family.size == 4 else _CT_DST_IP6
    found = [_ct(_CT_DIRECTION), _equal(_REPLY), _meta(_META_L4PROTO), _equal(bytes((probe.to.protocol,)))]
    for key, value in (
        (address, bytes(probe.to.address)),
        (_CT_PROTO_SRC, pack(">H", probe.port)),
        (_CT_PROTO_DST, pack(">H", probe.to.port)),
    ):
        found += [_ct(key, _ORIGINAL), _equal(value)]
    return [*found, *_TRACED]


def _meta(key: int) -> bytes:
    return expression("meta", u32(2, key), u32(1, _REGISTER))


def _ct(key: int, direction: bytes = b"") -> bytes:
    return expression("ct", u32(2, key), u32(1, _REGISTER), attr(3, direction) if direction else b"")


def _payload(base: int, offset: int, length: int) -> bytes:
    return expression("payload", u32(1, _REGISTER), u32(2, base), u32(3, offset), u32(4, length))


def _equal(value: bytes) -> bytes:
    return expression("cmp", u32(1, _REGISTER), u32(2, 0), nest(3, attr(1, value)))


_TRACED = (
    expression("immediate", u32(1, _REGISTER), nest(2, attr(1, pack("=I", 1)))),
    expression("meta", u32(2, _META_NFTRACE), u32(3, _REGISTER)),
)
