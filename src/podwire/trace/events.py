"""What the kernel tells of a traced packet: one event for each rule that matched and each chain that was left. Pure.

Invariants: any bytes give an event or none, never an exception. Rules that did not match are not told. The forms are
those of NFT_MSG_TRACE in linux/netfilter/nf_tables.h; the kernel sends a packet's headers with the first event of each
hook's chain only.
"""

from collections.abc import Iterable
from enum import Enum
from struct import Struct
from typing import NamedTuple

from podwire.dataplane.messages import Notice, attrs
from podwire.dataplane.nftables.layout import TABLE as OURS
from podwire.model.addresses import Address, show_host_port
from podwire.model.objects import Protocol
from podwire.trace.table import ANSWERS, BEGIN, OWN_ANSWERS, TABLE, Probe

GROUP = 9
"""NFNLGRP_NFTRACE."""
TRACE = 10 << 8 | 17
DROP, ACCEPT, CONTINUE, BREAK, JUMP, GOTO, RETURN = 0, 1, -1, -2, -3, -4, -5
_VERDICTS = {
    DROP: "drop",
    ACCEPT: "accept",
    2: "stolen",
    3: "queue",
    4: "repeat",
    CONTINUE: "continue",
    BREAK: "continue",
    JUMP: "jump",
    GOTO: "goto",
    RETURN: "return",
}
_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_PORTS = Struct(">HH")


class Kind(Enum):
    RULE = 3
    """A rule matched."""
    RETURN = 2
    """A rule that returns; the same to who reads."""
    POLICY = 1
    """The end of a hook's chain was reached: its policy decides."""
    END = -1
    """The end of a chain's rules, which the kernel tells like a rule without a handle: only what it shows counts."""


class Header(NamedTuple):
    """Addresses and ports that a packet has at some point."""

    source: Address
    destination: Address
    protocol: int
    source_port: int
    port: int

    def __str__(self) -> str:
        return f"{show_host_port(self.source, self.source_port)} → {show_host_port(self.destination, self.port)}"


class TraceEvent(NamedTuple):
    """`verdict` is a word of nft, `target` the chain of a jump. `identity` is the kernel's name for the packet, which
    may change where it comes in by another interface. `came`, `goes`: interface indexes, 0 where there is none yet."""

    family: str
    table: str
    chain: str
    kind: Kind
    verdict: str
    target: str = ""
    handle: int = 0
    identity: int = 0
    header: Header | None = None
    came: int = 0
    goes: int = 0
    opens: bool = False
    """Of TCP: it asks for a connection."""

    @property
    def ours(self) -> bool:
        return self.table == OURS

    @property
    def marks(self) -> bool:
        """It is of the table that makes the kernel tell."""
        return self.table == TABLE

    @property
    def stops(self) -> bool:
        return self.verdict == "drop"


class Packet(NamedTuple):
    answer: bool
    events: tuple[TraceEvent, ...]


def read(notice: Notice) -> TraceEvent | None:
    if notice.kind != TRACE or len(notice.body) < 4:
        return None
    seen = attrs(notice.body, 4)
    kind = _KINDS.get(_number(seen.get(4)))
    if kind is None:
        return None
    if kind is Kind.RULE and not _number(seen.get(3)):
        kind = Kind.END
    verdict = attrs(seen.get(5, b""))
    code, target = _signed(verdict.get(1)), _name(verdict.get(2))
    if kind is Kind.POLICY:
        code = _number(seen.get(16)) if 16 in seen else code
    return TraceEvent(
        family=_FAMILIES.get(notice.body[0], str(notice.body[0])),
        table=_name(seen.get(1)),
        chain=_name(seen.get(2)),
        kind=kind,
        verdict=_VERDICTS.get(code, str(code)),
        target=target,
        handle=_number(seen.get(3)),
        identity=_number(seen.get(6)),
        header=_header(seen.get(8, b""), seen.get(9, b"")),
        came=_number(seen.get(10)),
        goes=_number(seen.get(12)),
        opens=len(seen.get(9, b"")) > 13 and seen[9][13] & 0x12 == 0x02,
    )


_KINDS = {kind.value: kind for kind in Kind}


def packets(probe: Probe, events: Iterable[TraceEvent]) -> list[Packet]:
    """The flow's packets in the order of their beginning; other traces' are left out."""
    found: list[tuple[bool, list[TraceEvent]]] = []
    by_identity: dict[int, int] = {}
    shown: dict[int, TraceEvent] = {}
    for event in events:
        if event.marks and event.kind is Kind.RULE and event.chain in (BEGIN, ANSWERS, OWN_ANSWERS):
            by_identity[event.identity] = len(found)
            found.append((event.chain != BEGIN, []))
        elif event.identity not in by_identity:
            answer = _direction(probe, event.header)
            same = [at for at, (its, _) in enumerate(found) if its is answer]
            if answer is None or not same:
                continue
            by_identity[event.identity] = same[-1]  # it came in anew by lo
        if event.kind is Kind.END:
            shown[event.identity] = event
        else:
            found[by_identity[event.identity]][1].append(_with(event, shown.pop(event.identity, None)))
    return [Packet(answer, tuple(some)) for answer, some in found]


def foreign(packets: Iterable[Packet], every: bool) -> list[tuple[str, str, str]]:
    """The chains of others whose text is wanted, what stopped a packet first; `every`: also of what let it pass on.
    Listing them costs as much as their table is big."""
    seen = [event for packet in packets for event in packet.events if not event.ours and not event.marks]
    stops = [event for event in seen if event.stops]
    ends = [event for event in seen if event.kind is Kind.RULE and event.verdict == "accept"]
    return list(dict.fromkeys((it.family, it.table, it.chain) for it in (*stops, *ends, *(seen if every else ()))))


def _with(event: TraceEvent, end: TraceEvent | None) -> TraceEvent:
    """What the end of the rules showed of the packet belongs to what follows."""
    if end is None or event.header is not None:
        return event
    return event._replace(header=end.header, came=end.came, goes=end.goes)


def _direction(probe: Probe, header: Header | None) -> bool | None:
    """Whether it is an answer; None: not of this flow."""
    if header is None or header.protocol != probe.to.protocol:
        return None
    if header.source_port == probe.port and header.source == probe.source:
        return False
    if header.port == probe.port and header.destination == probe.source:
        return True
    return None


def _header(network: bytes, transport: bytes) -> Header | None:
    version = network[0] >> 4 if network else 0
    if len(transport) < _PORTS.size:
        return None
    if version == 4 and len(network) >= 20:
        source, destination, protocol = network[12:16], network[16:20], network[9]
    elif version == 6 and len(network) >= 40:
        source, destination, protocol = network[8:24], network[24:40], network[6]
    else:
        return None
    if protocol not in (Protocol.TCP, Protocol.UDP, Protocol.SCTP):
        return None
    return Header(Address(source), Address(destination), protocol, *_PORTS.unpack_from(transport))


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big")


def _signed(value: bytes | None) -> int:
    return int.from_bytes(value, "big", signed=True) if value else CONTINUE


def _name(value: bytes | None) -> str:
    return (value or b"").split(b"\0", 1)[0].decode(errors="replace")
