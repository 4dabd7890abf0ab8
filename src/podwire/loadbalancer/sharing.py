"""Who has which address, who may have it beside others, and which one is free. Pure, but for its own state.

Invariants: several may have an address where all have the same sharing key and the same backends, and no two a port: so
each packet has one Service, and the nodes that announce the address have backends of all. Whoever has it alone may
change its key. Of a pool the search for a free address goes on where the last one ended, since nothing is given back
meanwhile: each address is looked at once, however many Services there are. Nor does one get room again for ports of
which it has one already.
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from podwire.loadbalancer.pools import is_buggy
from podwire.model.addresses import Address, AddressRange, Family, family_of
from podwire.model.balancers import AddressPool, Request
from podwire.model.objects import Protocol, ServiceKey

_Group = tuple[str, str]
"""A sharing key, and backends."""


Ports = frozenset[tuple[Protocol, int]]


class _Open:
    """Addresses of a group that may have room for certain ports: a heap by their places in the pool. `looked`: how many
    of the group's addresses have been in it."""

    __slots__ = ("looked", "places")

    def __init__(self) -> None:
        self.looked = 0
        self.places: list[tuple[int, Address]] = []


class Holders:
    """During one allocation."""

    def __init__(self, given: Mapping[str, tuple[AddressRange, ...]]) -> None:
        """`given`: of each pool what it gives."""
        self._given = given
        self._of: dict[Address, dict[ServiceKey, Request]] = {}
        self._ports: dict[Address, set[tuple[Protocol, int]]] = {}
        """Of all who have an address."""
        self._together: dict[_Group, list[Address]] = {}
        """Who may share, and the addresses that some of them have."""
        self._open: dict[tuple[_Group, Ports, str, Family], _Open] = {}
        self._left: dict[tuple[str, Family], Iterator[Address]] = {}
        """Of a pool what was not looked at yet."""
        self._found: dict[tuple[str, Family], Address | None] = {}
        """The first address that nobody has, as last found."""

    def add(self, address: Address, key: ServiceKey, request: Request) -> None:
        if request.sharing and address not in self._of:
            self._together.setdefault((request.sharing, request.backends), []).append(address)
        self._of.setdefault(address, {})[key] = request
        self._ports.setdefault(address, set()).update(request.ports)

    def why_not(self, address: Address, request: Request) -> str | None:
        """Why it may not have an address beside those who have it: all of them may share it already."""
        holders = self._of.get(address)
        if not holders or self._fits(address, next(iter(holders.values())), request):
            return None
        for key, other in sorted(holders.items()):
            whose = f"{key} has it"
            if not request.sharing or other.sharing != request.sharing:
                return f"{whose}, and the two have no sharing key in common"
            if other.backends != request.backends:
                return f"{whose}, and with externalTrafficPolicy Local only Services of the same pods may share one"
            both = sorted(other.ports & request.ports)
            if both:
                protocol, port = both[0]
                return f"{whose}, and the same port {port}/{protocol.name}"
        return None

    def _fits(self, address: Address, other: Request, request: Request) -> bool:
        alike = (other.sharing, other.backends) == (request.sharing, request.backends)
        return bool(request.sharing) and alike and self._ports[address].isdisjoint(request.ports)

    def first_free(self, name: str, pool: AddressPool, family: Family, request: Request) -> Address | None:
        """The first that it may have, one that it shares as well as one that nobody has; none that it gives up."""
        free = self._lowest_free(name, pool, family)
        if free in request.gives_up:
            others = (it for it in self._addresses(name, pool, family) if it not in request.gives_up)
            free = next((it for it in others if it not in self._of), None)
        shared = self._lowest_shared(name, pool, family, request) if request.sharing else None
        return min((it for it in (shared, free) if it is not None), key=pool.place, default=None)

    def _lowest_shared(self, name: str, pool: AddressPool, family: Family, request: Request) -> Address | None:
        """Of those that others of its group have. All of them agree on the key, so that ports alone keep them apart."""
        group = request.sharing, request.backends
        there = self._together.get(group, [])
        open_ = self._open.setdefault((group, request.ports, name, family), _Open())
        for address in there[open_.looked :]:
            if len(address) == family.size and any(address in each for each in self._given[name]):
                heappush(open_.places, pool.place(address))
        open_.looked = len(there)
        while open_.places and not self._has_room(open_.places[0][1], request):
            heappop(open_.places)
        if open_.places and open_.places[0][1] in request.gives_up:
            kept = (it for it in open_.places if it[1] not in request.gives_up and self._has_room(it[1], request))
            return min(kept, default=(0, None))[1]
        return open_.places[0][1] if open_.places else None

    def _has_room(self, address: Address, request: Request) -> bool:
        return self._ports[address].isdisjoint(request.ports)

    def _lowest_free(self, name: str, pool: AddressPool, family: Family) -> Address | None:
        at = name, family
        if at in self._found and ((found := self._found[at]) is None or found not in self._of):
            return found
        left = self._left.setdefault(at, self._addresses(name, pool, family))
        self._found[at] = next((it for it in left if it not in self._of), None)
        return self._found[at]

    def _addresses(self, name: str, pool: AddressPool, family: Family) -> Iterator[Address]:
        """In the order in which they are given."""
        for each in self._given[name]:
            if family_of(each.first) == family:
                for number in range(int.from_bytes(each.first, "big"), int.from_bytes(each.last, "big") + 1):
                    address = Address(number.to_bytes(len(each.first), "big"))
                    if not (pool.avoid_buggy and is_buggy(address)):
                        yield address
