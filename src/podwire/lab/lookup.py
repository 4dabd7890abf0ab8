"""A question to a name server as a message, and what its answer says. Pure but for the message's number.

Invariants: it asks who answers, too (NSID, RFC 5001): behind a Service that may be any of several.
"""

import dns.edns
import dns.exception
import dns.message
import dns.rcode

from podwire.lab.questions import Lookup

_ENOUGH = 1232
"""Bytes of the longest answer in a datagram."""


def query(asked: Lookup) -> bytes:
    who = dns.edns.GenericOption(dns.edns.OptionType.NSID, b"")
    return dns.message.make_query(asked.name, asked.kind, use_edns=0, payload=_ENOUGH, options=[who]).to_wire()


def read(message: bytes) -> tuple[bytes, frozenset[str]]:
    """Who it is, and the data of all records in the answer: none where there is no such name."""
    try:
        response = dns.message.from_wire(message)
    except dns.exception.DNSException:
        return b"no message", frozenset()
    identity = next((it.to_wire() for it in response.options if it.otype == dns.edns.OptionType.NSID), b"")
    return identity or b"", frozenset(str(data) for rrset in response.answer for data in rrset)
