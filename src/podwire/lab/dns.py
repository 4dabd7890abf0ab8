"""A name server's answer to one message: RFC 1035, with EDNS (RFC 6891) and NSID (RFC 5001). Pure but for order.

Invariants: it is the authority for its zones and asks nobody else: what is not below them is refused. Every request
that can be read as one gets an answer; a response gets none, or two servers would never stop. The order of addresses
in an answer is by chance, so that a client that takes the first one spreads.
"""

from collections.abc import Iterator, Mapping

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from dns.rdatatype import RdataType

from podwire.lab.names import ZONES, Zone

TTL = 5
"""Seconds, as CoreDNS has it: pods come and go."""
_SHORTEST, _DATAGRAM, _STREAM = 512, 1232, 65_535
"""The longest message: in a datagram without EDNS, in one with it (so that nothing is fragmented), in a stream."""
_HEADER = 12
_LINKS = 8
"""So many CNAMEs are followed."""


def answer(zone: Zone, asked: bytes, stream: bool, identity: bytes) -> bytes | None:
    """`identity`: who answers, for those who ask (NSID). None: nothing is to be said."""
    if len(asked) < _HEADER or asked[2] & 0x80:
        return None
    try:
        query = dns.message.from_wire(asked)
    except dns.exception.DNSException:
        return _failure(asked, dns.rcode.FORMERR)
    try:
        response = dns.message.make_response(query, our_payload=_DATAGRAM)
        _say_who(query, response, identity)
        response.set_rcode(_refusal(query))
        if response.rcode() == dns.rcode.NOERROR:
            _fill(zone, response)
        longest = _STREAM if stream else max(_SHORTEST, min(query.payload, _DATAGRAM))
        return response.to_wire(max_size=longest, prefer_truncation=True)
    except dns.exception.DNSException:
        return _failure(asked, dns.rcode.SERVFAIL)


def _failure(asked: bytes, rcode: int) -> bytes:
    """Number, opcode and recursion desired as they were asked; no more of it can be trusted."""
    return asked[:2] + bytes([0x80 | asked[2] & 0x79, rcode]) + bytes(8)


def _say_who(query: dns.message.Message, response: dns.message.Message, identity: bytes) -> None:
    if any(option.otype == dns.edns.OptionType.NSID for option in query.options):
        response.use_edns(0, 0, _DATAGRAM, query.payload, [dns.edns.NSIDOption(identity)])


def _refusal(query: dns.message.Message) -> dns.rcode.Rcode:
    if query.opcode() != dns.opcode.QUERY:
        return dns.rcode.NOTIMP
    if query.edns > 0:
        return dns.rcode.BADVERS
    if len(query.question) != 1:
        return dns.rcode.FORMERR
    question = query.question[0]
    transfer = question.rdtype in (RdataType.AXFR, RdataType.IXFR)
    if question.rdclass != dns.rdataclass.IN or transfer or _apex(_text(question.name)) is None:
        return dns.rcode.REFUSED
    return dns.rcode.NOERROR


def _fill(zone: Zone, response: dns.message.Message) -> None:
    question = response.question[0]
    response.flags |= dns.flags.AA
    name, records = question.name, _at(zone, question.name)
    for _ in range(_LINKS):
        if "CNAME" not in records or question.rdtype in (RdataType.CNAME, RdataType.ANY):
            break
        response.answer.append(_rrset(name, "CNAME", records["CNAME"]))
        name = dns.name.from_text(records["CNAME"][0])
        if _apex(_text(name)) is None:
            return  # the rest of the way is not ours to tell
        records = _at(zone, name)
    wanted = [kind for kind in records if question.rdtype in (RdataType.ANY, dns.rdatatype.from_text(kind))]
    response.answer += [_rrset(name, kind, records[kind]) for kind in wanted]
    if wanted:
        response.additional.extend(_targets(zone, records.get("SRV", ())))
        return
    if _text(name) not in zone.names:
        response.set_rcode(dns.rcode.NXDOMAIN)
    apex = _apex(_text(name))
    assert apex is not None
    response.authority.append(_rrset(dns.name.from_text(apex), "SOA", zone.records[apex]["SOA"]))


def _targets(zone: Zone, services: tuple[str, ...]) -> Iterator[dns.rrset.RRset]:
    """The addresses of what SRV records name."""
    for target in sorted({data.rpartition(" ")[2] for data in services}):
        name = dns.name.from_text(target)
        records = _at(zone, name)
        yield from (_rrset(name, kind, records[kind]) for kind in ("A", "AAAA") if kind in records)


def _at(zone: Zone, name: dns.name.Name) -> Mapping[str, tuple[str, ...]]:
    return zone.records.get(_text(name), {})


def _text(name: dns.name.Name) -> str:
    return name.to_text(omit_final_dot=True).lower()


def _apex(name: str) -> str | None:
    return next((apex for apex in ZONES if name == apex or name.endswith(f".{apex}")), None)


def _rrset(name: dns.name.Name, kind: str, data: tuple[str, ...]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(name, TTL, "IN", kind, data)
