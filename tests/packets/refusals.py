"""What has to be refused at once, and how a socket is told that something is refused or dropped. Pure.

Invariants: rule 5 of `table.py`. A refusal always comes from the network or from the client's own node, never from a
backend.
"""

from enum import Enum
from itertools import product
from typing import NamedTuple

from podwire.model.addresses import FAMILIES, IPV4, Family
from podwire.model.objects import Protocol
from tests.packets.plan import EMPTY, ONE, ONE_BACKEND, Exposed, Node, Pod, Station, service_of
from tests.packets.table import CLIENTS, FRONTENDS, LED_HERE, Kind, frontend

UNKNOWN_PORT = 81
NOBODY = Exposed("nobody", 200)
"""A Service that isn't there."""


class Why(Enum):
    """There is no backend, no such port of a Service, or no Service with such an address."""

    NO_BACKEND = "no-backend"
    UNKNOWN_PORT = "unknown-port"
    UNKNOWN_ADDRESS = "unknown-address"


class Refusal(NamedTuple):
    client: str
    kind: Kind
    protocol: Protocol
    family: Family
    why: Why

    @property
    def id(self) -> str:
        return f"{self.client}-{self.kind.value}-{self.protocol.name}-{self.family}-{self.why.value}"

    @property
    def target(self) -> tuple[str, int]:
        if self.why is not Why.UNKNOWN_PORT:
            return frontend(EMPTY if self.why is Why.NO_BACKEND else NOBODY, self.kind, self.family)
        address, _ = frontend(service_of(ONE_BACKEND), self.kind, self.family)
        return address, UNKNOWN_PORT


def refusals() -> list[Refusal]:
    """Pod addresses are the pods' own to refuse. An address that no Service has is a ClusterIP by its range only.
    What a node sends to an address that is led here, and the router sends back, comes as from the node itself: to that
    the kernel answers no ICMP."""
    every = (Refusal(*each) for each in product(CLIENTS, FRONTENDS, Protocol, FAMILIES, Why))
    return [
        it
        for it in every
        if (it.why is not Why.UNKNOWN_ADDRESS or it.kind is Kind.CLUSTER_IP)
        and not (
            isinstance(CLIENTS[it.client], Node)
            and (it.why, it.family) == (Why.UNKNOWN_PORT, IPV4)
            and it.kind in LED_HERE
            and it.protocol is not Protocol.TCP
        )
    ]


def refused(asker: Station, kind: Kind, protocol: Protocol, why: Why) -> str:
    """How a socket tells it: TCP is reset, the rest gets an ICMP error. A datagram that its own node refuses to send is
    answered by EPERM; to a port that nobody has at its own address or at one that is led here it is sent, and comes
    back. What comes back from a pod of this node bears the node's address: nobody can tell that pod."""
    if isinstance(asker, Pod) and asker.node == ONE and kind in LED_HERE and why is Why.UNKNOWN_PORT:
        return SILENCE
    sent = kind is Kind.NODE_PORT and (asker != ONE or why is Why.UNKNOWN_PORT)
    sent = sent or (kind in LED_HERE and why is Why.UNKNOWN_PORT)
    at_once = isinstance(asker, Node) and not sent and protocol is not Protocol.TCP
    return "PermissionError" if at_once else "ConnectionRefusedError"


def dropped(asker: Station, kind: Kind, protocol: Protocol) -> str:
    """No answer; but a datagram that its own node drops as it is sent is answered by EPERM."""
    own = isinstance(asker, Node) and (kind is not Kind.NODE_PORT or asker == ONE)
    return "PermissionError" if own and protocol is not Protocol.TCP else SILENCE


SILENCE = "TimeoutError"
