"""Addresses of load balancers: pools of them, and what Services ask for. The words of the world, as in `objects.py`.

Invariants: as there. A Service is a `Request` only where it is one for us to serve (type LoadBalancer, our class, with
cluster IPs); whether it is, the sources know.
"""

from enum import StrEnum

from podwire.model.addresses import Address, AddressRange, Family
from podwire.model.objects import Protocol, Requirement, Value

Labels = tuple[tuple[str, str], ...]


class AddressPoolKey(Value, frozen=True):
    name: str

    def __str__(self) -> str:
        return f"addresspool/{self.name}"


class AnnouncedBy(StrEnum):
    """How the network around the cluster learns of an address: by a routing protocol, or by ARP and NDP (layer 2)."""

    BGP = "BGP"
    L2 = "L2"


class AddressPool(Value, frozen=True):
    """Addresses for Services of type LoadBalancer, given from the first range on. `auto_assign`: also to Services that
    ask for no pool. `avoid_buggy`: without IPv4 addresses that end in .0 or .255, which some hosts take for a network's
    or broadcasts. `priority`: of the pools that a Service is selected by, the lowest goes first; 0 goes last.

    The pool is for the Services in these `namespaces` or in those that one of `namespace_selectors` selects, and, of
    them, for those that one of `service_selectors` selects; where there is none of the first two, or none of the third,
    for all. `announce`: by which its addresses may be announced. `labels`: its own, by which advertisements choose it.
    `created`: the object's creationTimestamp, RFC 3339: of two pools that overlap the older is used.
    """

    ranges: tuple[AddressRange, ...]
    auto_assign: bool = True
    avoid_buggy: bool = False
    priority: int = 0
    namespaces: tuple[str, ...] = ()
    namespace_selectors: tuple[tuple[Requirement, ...], ...] = ()
    service_selectors: tuple[tuple[Requirement, ...], ...] = ()
    announce: tuple[AnnouncedBy, ...] = tuple(AnnouncedBy)
    labels: Labels = ()
    created: str = ""

    @property
    def chooses(self) -> bool:
        """Whether it is for some Services only: those find it before the pools for all."""
        return bool(self.namespaces or self.namespace_selectors or self.service_selectors)

    def __contains__(self, address: Address) -> bool:
        return any(address in each for each in self.ranges)

    def place(self, address: Address) -> tuple[int, Address]:
        """By which its addresses are in the order in which they are given."""
        return next(n for n, each in enumerate(self.ranges) if address in each), address


class Request(Value, frozen=True):
    """What a Service asks for, and what it has.

    `families`: of its cluster IPs, the first one first. `all_families`: one address of each, or none at all
    (ipFamilyPolicy RequireDualStack). `asked`: these addresses and no other. `pool`: of this one and no other, "": any.
    `sharing`: others with the same key may have the same address, where no two have a port and where `backends` is the
    same ("" for externalTrafficPolicy Cluster, else what selects its pods), "": nobody may. `holds`: the addresses in
    its status. `gives_up`: of these what its user wants to see replaced. `created`: its creation time, RFC 3339.
    `unclear`: why it can't be said what it asks for, "" where it can.
    """

    families: tuple[Family, ...]
    ports: frozenset[tuple[Protocol, int]]
    all_families: bool = False
    asked: tuple[Address, ...] = ()
    pool: str = ""
    sharing: str = ""
    backends: str = ""
    labels: Labels = ()
    holds: tuple[Address, ...] = ()
    gives_up: tuple[Address, ...] = ()
    created: str = ""
    unclear: str = ""


class Balanced(Value, frozen=True):
    """A Service that is one for us to serve, as the API has it. `ingress`: the addresses and modes of its status, as
    they stand there; `condition`: ours, as (status, reason, message). `version`: of the object, by which a write is
    refused where it has changed since."""

    request: Request
    version: str
    uid: str = ""
    generation: int = 0
    ingress: tuple[tuple[str, str], ...] = ()
    condition: tuple[str, str, str] | None = None


class Leftover(Value, frozen=True):
    """A Service that is for us no more, and still has the condition that we gave it."""

    version: str
