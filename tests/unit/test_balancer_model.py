"""Random pools, Services and statuses: who gets which address, against a model that knows nothing of the code's ways.

The model looks at everything anew for each Service, with numbers for addresses: slow, and easy to believe.
"""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.loadbalancer.allocation import Grant, allocate
from podwire.loadbalancer.pools import used
from podwire.loadbalancer.sharing import Holders
from podwire.model.addresses import IPV4, IPV6, Address, AddressRange, Family, parse_range
from podwire.model.balancers import AddressPool, AddressPoolKey, Request
from podwire.model.objects import Operator, Protocol, Requirement, ServiceKey

NAMESPACES = {"shop": (("team", "a"),), "lab": (("team", "b"),)}
SELECTORS = ((Requirement("team", Operator.IN, ("a",)),), (Requirement("team", Operator.EXISTS),))
FRONT = (Requirement("tier", Operator.IN, ("front",)),)


def number_of(address: Address) -> int:
    """IPv6 ones behind all IPv4 ones."""
    return int.from_bytes(address, "big") + (1 << 40) * (len(address) == 16)


def address(family: Family, number: int) -> Address:
    return Address((number if family == IPV4 else (0xFD << 120) + number).to_bytes(family.size, "big"))


numbers = st.integers(252, 262)
"""Around a .255 and a .0, so that pools meet, share and lack addresses."""
families = st.sampled_from((IPV4, IPV6))
addresses = st.builds(address, families, numbers)


@st.composite
def ranges(draw: st.DrawFn) -> AddressRange:
    family, first = draw(families), draw(numbers)
    return AddressRange(address(family, first), address(family, first + draw(st.integers(0, 3))))


@st.composite
def pools(draw: st.DrawFn) -> AddressPool:
    found: list[AddressRange] = []
    for each in draw(st.lists(ranges(), min_size=1, max_size=3)):
        if all(each.last < it.first or it.last < each.first or len(it.first) != len(each.first) for it in found):
            found.append(each)
    return AddressPool(
        tuple(found),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 2)),
        draw(st.sampled_from(((), (), ("shop",), ("lab",)))),
        draw(st.sampled_from(((), (), SELECTORS[:1], SELECTORS[1:]))),
        draw(st.sampled_from(((), (), (FRONT,)))),
    )


requests = st.builds(
    Request,
    st.sampled_from(((IPV4,), (IPV6,), (IPV4, IPV6), (IPV6, IPV4))),
    st.frozensets(st.tuples(st.sampled_from((Protocol.TCP, Protocol.UDP)), st.sampled_from((53, 80))), max_size=2),
    st.booleans(),
    st.lists(addresses, max_size=2, unique_by=len).map(tuple),
    st.sampled_from(("", "", "", "a", "b", "none")),
    st.sampled_from(("", "k", "l")),
    st.sampled_from(("", "", "app=web")),
    st.sampled_from(((), (("tier", "front"),))),
    st.lists(addresses, max_size=3, unique=True).map(tuple),
    st.lists(addresses, max_size=1).map(tuple),
    st.sampled_from(("1", "2", "3")),
    st.sampled_from(("", "", "", "unclear")),
)
known = st.dictionaries(st.sampled_from("abc").map(AddressPoolKey), pools(), max_size=3)
services = st.dictionaries(
    st.builds(ServiceKey, st.sampled_from(("shop", "lab", "other")), st.sampled_from("stuvw")), requests, max_size=6
)


class Model:
    def __init__(self, known: Mapping[AddressPoolKey, AddressPool], services: Mapping[ServiceKey, Request]) -> None:
        self.services = services
        self.pools: dict[str, AddressPool] = {}
        for key in sorted(known):
            taken = {number for it in self.pools.values() for number in self.all_of(it)}
            if taken.isdisjoint(self.all_of(known[key])):
                self.pools[key.name] = known[key]
        self.has: dict[ServiceKey, list[Address]] = {key: [] for key in services}
        order = sorted(services, key=lambda key: (services[key].created, key.namespace, key.name))
        for key in order:
            self.keep(key, services[key])
        for key in order:
            self.give(key, services[key])

    @staticmethod
    def all_of(pool: AddressPool) -> list[int]:
        return [number for it in pool.ranges for number in range(number_of(it.first), number_of(it.last) + 1)]

    def pool_of(self, it: Address) -> str | None:
        return next((name for name, pool in self.pools.items() if number_of(it) in self.all_of(pool)), None)

    def may_share(self, it: Address, request: Request) -> bool:
        others = [self.services[key] for key, has in self.has.items() if it in has]
        return all(
            request.sharing != ""
            and other.sharing == request.sharing
            and other.backends == request.backends
            and other.ports.isdisjoint(request.ports)
            for other in others
        )

    def is_for(self, name: str, key: ServiceKey, request: Request) -> bool:
        pool, labels = self.pools[name], dict(NAMESPACES.get(key.namespace, ()))
        here = key.namespace in pool.namespaces or any(
            all((labels.get(it.key) in it.values) if it.values else it.key in labels for it in each)
            for each in pool.namespace_selectors
        )
        chosen = not pool.service_selectors or ("tier", "front") in request.labels
        return (here or not (pool.namespaces or pool.namespace_selectors)) and chosen

    def keep(self, key: ServiceKey, request: Request) -> None:
        for it in sorted(request.holds, key=number_of):
            family = IPV4 if len(it) == 4 else IPV6
            if family not in request.families or len(it) in map(len, self.has[key]):
                continue
            if request.asked:
                wanted = it in request.asked
            elif it in request.gives_up:
                wanted = False
            else:
                wanted = request.pool not in self.pools or self.pool_of(it) == request.pool
            if wanted and self.may_share(it, request):
                self.has[key].append(it)

    def give(self, key: ServiceKey, request: Request) -> None:
        has = self.has[key]
        missing = [it for it in request.families if it.size not in map(len, has)]
        if request.unclear or not missing:
            return
        if request.asked:
            self.give_asked(key, request)
        elif has:
            names = {self.pool_of(it) for it in has}
            (name,) = names if len(names) == 1 else (None,)
            if name is not None and self.is_for(name, key, request):
                has += self.free(name, missing, request) or []
        else:
            for families in [missing] if request.all_families else [missing, *([it] for it in missing)]:
                for name in self.choice(key, request):
                    found = self.free(name, families, request)
                    if found is not None:
                        has += found
                        return

    def give_asked(self, key: ServiceKey, request: Request) -> None:
        has = self.has[key]
        more = [it for it in request.asked if it not in has]
        if request.all_families and len(request.asked) < len(request.families):
            return
        names = {self.pool_of(it) for it in request.asked}
        fit = all(
            (name := self.pool_of(it)) is not None
            and request.pool in ("", name)
            and self.is_for(name, key, request)
            and self.may_share(it, request)
            and len(it) in [family.size for family in request.families]
            for it in more
        )
        if fit and (not more or len(names) == 1):
            has += more

    def choice(self, key: ServiceKey, request: Request) -> list[str]:
        if request.pool:
            names = [name for name in self.pools if name == request.pool]
        else:
            names = [name for name, it in self.pools.items() if it.auto_assign]

        def place(name: str) -> tuple[int, int, str]:
            it = self.pools[name]
            choosing = it.namespaces or it.namespace_selectors or it.service_selectors
            return 0 if choosing else 1, it.priority or 99, name

        return sorted((name for name in names if self.is_for(name, key, request)), key=place)

    def free(self, name: str, families: list[Family], request: Request) -> list[Address] | None:
        found = []
        for family in families:
            for each in self.pools[name].ranges:
                if len(each.first) != family.size:
                    continue
                for number in range(int.from_bytes(each.first, "big"), int.from_bytes(each.last, "big") + 1):
                    it = Address(number.to_bytes(family.size, "big"))
                    if len(found) > families.index(family):
                        continue
                    holders = [key for key, has in self.has.items() if it in has]
                    buggy = self.pools[name].avoid_buggy and family == IPV4 and it[-1] in (0, 255)
                    if (not buggy or holders) and it not in request.gives_up and self.may_share(it, request):
                        found.append(it)
            if len(found) <= families.index(family):
                return None
        return found


def addresses_of(grants: Mapping[ServiceKey, Grant]) -> dict[ServiceKey, set[Address]]:
    return {key: set(it.addresses) for key, it in grants.items()}


@given(known, services)
def test_the_model_agrees(known: dict[AddressPoolKey, AddressPool], services: dict[ServiceKey, Request]) -> None:
    found = addresses_of(allocate(used(known), NAMESPACES, services))
    assert found == {key: set(has) for key, has in Model(known, services).has.items()}


@given(known, services, st.integers(0, 1000))
def test_the_order_of_the_objects_does_not_matter(
    known: dict[AddressPoolKey, AddressPool], services: dict[ServiceKey, Request], seed: int
) -> None:
    chance = Random(seed)
    shuffled = dict(chance.sample(sorted(services.items(), key=lambda it: it[0]), len(services)))
    others = dict(chance.sample(sorted(known.items(), key=lambda it: it[0]), len(known)))
    assert allocate(used(others), NAMESPACES, shuffled) == allocate(used(known), NAMESPACES, services)


@given(known, services)
def test_what_was_given_is_kept_and_nothing_more_is_due(
    known: dict[AddressPoolKey, AddressPool], services: dict[ServiceKey, Request]
) -> None:
    """As after a restart, once the statuses are written; unless a Service gives up what it just got."""
    first = allocate(used(known), NAMESPACES, services)
    written = {
        key: replace(it, holds=first[key].addresses, gives_up=tuple(set(it.gives_up) - set(first[key].addresses)))
        for key, it in services.items()
    }
    again = allocate(used(known), NAMESPACES, written)
    assert addresses_of(again) == addresses_of(first)
    assert not any(it.lost for it in again.values())


@given(known, known, services)
def test_other_pools_move_nobody(
    known: dict[AddressPoolKey, AddressPool],
    others: dict[AddressPoolKey, AddressPool],
    services: dict[ServiceKey, Request],
) -> None:
    first = allocate(used(known), NAMESPACES, services)
    written = {key: replace(it, holds=first[key].addresses, gives_up=(), pool="") for key, it in services.items()}
    for key, grant in allocate(used(others), NAMESPACES, written).items():
        assert set(grant.addresses) >= set(first[key].addresses)


@given(known, services)
def test_whoever_lacks_something_is_told_why(
    known: dict[AddressPoolKey, AddressPool], services: dict[ServiceKey, Request]
) -> None:
    for key, grant in allocate(used(known), NAMESPACES, services).items():
        it = services[key]
        whole = it.all_families or not it.asked
        wanted = max(len(it.asked), len(it.families)) if whole else len(it.asked)
        assert bool(grant.why) == (len(grant.addresses) < wanted or bool(it.unclear))
        assert {address for address, _ in grant.lost} == set(it.holds) - set(grant.addresses)


@pytest.mark.parametrize("ports", [1, 2], ids=["all want the same port", "half of them another"])
def test_an_address_is_looked_at_once_by_those_who_may_share(monkeypatch: pytest.MonkeyPatch, ports: int) -> None:
    """Many with one key, and no room for two of them at an address."""
    looks, has_room, count = [], Holders._has_room, 300

    def counted(self: Holders, address: Address, request: Request) -> bool:
        looks.append(address)
        return has_room(self, address, request)

    monkeypatch.setattr(Holders, "_has_room", counted)
    many = {
        ServiceKey("shop", f"s{n:03}"): Request(
            (IPV4,), frozenset({(Protocol.TCP, 80 + n * ports // count)}), sharing="one", created=f"{n:03}"
        )
        for n in range(count)
    }
    pool = AddressPool((parse_range("10.0.0.0/16"),))
    grants = allocate(used({AddressPoolKey("all"): pool}), {}, many)
    assert len({it for grant in grants.values() for it in grant.addresses}) == count // ports
    assert len(looks) <= 4 * count
