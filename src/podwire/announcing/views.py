"""What is told of sessions and of addresses that are answered for: the admin API's JSON. Pure."""

from collections.abc import Mapping

from msgspec import Struct

ESTABLISHED, NO_SESSION = "Established", "None"


class PeerView(Struct, frozen=True):
    """`state`: of the session (RFC 4271, section 8.2.2), `Unknown` where nobody can say, `None` where this node has
    none. `since`: in seconds of the epoch, when it came up or was lost. `received`, `sent`: prefixes of each family.
    `bfd`: `Up`, `Down`, "": none. `error`: why it is not up, or was lost last."""

    peer: str
    address: str
    asn: int
    state: str
    since: float | None = None
    received: Mapping[str, int] = {}
    sent: Mapping[str, int] = {}
    bfd: str = ""
    error: str = ""


class PeerList(Struct, frozen=True):
    peers: tuple[PeerView, ...]


class AddressView(Struct, frozen=True):
    """`owner`: the node that answers for the address, "" nobody: `why`. `interfaces`, `since`, `requests`: of this
    node's answers."""

    address: str
    pool: str
    owner: str
    interfaces: tuple[str, ...] = ()
    since: float | None = None
    requests: int = 0
    why: str = ""


class L2View(Struct, frozen=True):
    """`nodes`: what is heard of the others. `ignored`: datagrams that were no heartbeats, by reason. `late`: in
    seconds, the longest that layer 2 was kept from its work."""

    addresses: tuple[AddressView, ...]
    nodes: Mapping[str, str] = {}
    ignored: Mapping[str, int] = {}
    late: float = 0.0
