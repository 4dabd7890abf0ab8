"""What a trace is asked for: who sends, and where to. Pure."""

from msgspec import Struct

from podwire.explain.packets import NODE, parse_destination, parse_source
from podwire.explain.places import places as places_of
from podwire.explain.places import where
from podwire.model.addresses import Address
from podwire.model.network import Frontend
from podwire.model.objects import Attachment, AttachmentKey, Protocol
from podwire.model.snapshot import Snapshot
from podwire.pods.names import link_of

SHORTEST, LONGEST, USUAL = 0.1, 30.0, 3.0
"""Seconds that a trace waits for an answer."""


class Asked(Struct, frozen=True):
    """`attachment` None: the node itself sends. `client` as for explain: None is the node, by the address it chooses;
    `source`: the same in words."""

    to: Frontend
    client: Address | None
    source: str
    link: str
    attachment: Attachment | None


def asked(now: Snapshot, source: str, destination: str) -> Asked:
    """Raises ValueError with the right form, LookupError where this node has no such pod."""
    try:
        to = parse_destination(destination)
    except ValueError as error:
        raise ValueError(f"to: {error}") from None
    if to.protocol not in (Protocol.TCP, Protocol.UDP):
        raise ValueError(f"to: {destination!r}: a trace sends TCP or UDP, not {to.protocol.name}")
    try:
        client = parse_source(now, source, to.family)
    except ValueError as error:
        raise ValueError(f"from: {error}") from None
    if client is None:
        return Asked(to, None, "this node itself", "", None)
    key: AttachmentKey | None = now.ledger.get(client)
    if key is None:
        raise LookupError(f"{source}: no pod of node {now.local.name}; a trace is sent by one of these, or by {NODE}")
    it = now.attachments[key]
    if not it.netns:
        raise LookupError(f"{source}: the path of its network namespace is not known any more")
    return Asked(to, client, where(places_of(now), client), link_of(key, it), it)


def seconds(text: str | None) -> float:
    """Raises ValueError with the right form."""
    try:
        found = USUAL if text is None else float(text)
    except ValueError:
        found = 0.0
    if not SHORTEST <= found <= LONGEST:
        raise ValueError(f"timeout: expected seconds from {SHORTEST:g} to {LONGEST:g}; found {text!r}")
    return found
