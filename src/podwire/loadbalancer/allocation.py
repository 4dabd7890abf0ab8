"""Which Service gets which addresses of pools. Pure.

Invariants: the outcome depends on the objects alone, statuses included, and not on their order: whoever has an address
keeps it, the oldest first, before anybody gets a new one, the oldest first. What a Service has it loses only where it
asks for others, for another pool or for less families, gives it up, or may not share any more what an older one has;
that is said (`lost`). A pool that is changed or removed takes nothing away: the address is `stale`, and it is said why.
What a Service gets is of one pool. No address has two holders that may not share it (`sharing.py`).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from podwire.loadbalancer import pools
from podwire.loadbalancer.pools import Namespaces, Used
from podwire.loadbalancer.sharing import Holders
from podwire.model.addresses import Address, Family, family_of, show_address
from podwire.model.balancers import Request
from podwire.model.objects import ServiceKey, Value

MOST_TOLD = 8
"""Pools that are named where none of them has what is asked for."""
Told = tuple[tuple[Address, str], ...]
"""Of addresses, why."""


class Grant(Value, frozen=True):
    """What a Service gets, and why, for people. `why`: it has not what it asks for; "" where it has. `stale`: it would
    not get these of its addresses today. `lost`: it has these in its status, and no more."""

    addresses: tuple[Address, ...] = ()
    pool: str = ""
    why: str = ""
    stale: Told = ()
    lost: Told = ()


class _State(NamedTuple):
    used: Used
    namespaces: Namespaces
    holders: Holders


def allocate(known: Used, namespaces: Namespaces, requests: Mapping[ServiceKey, Request]) -> dict[ServiceKey, Grant]:
    """For each request its grant."""
    state = _State(known, namespaces, Holders(known.given))
    oldest_first = sorted(requests, key=lambda key: (requests[key].created, key))
    kept = {key: _keep(state, key, requests[key]) for key in oldest_first if requests[key].holds}
    return {key: _complete(state, key, requests[key], *kept.get(key, ((), ()))) for key in oldest_first}


# --- what it has -------------------------------------------------------------------------------


def _keep(state: _State, key: ServiceKey, request: Request) -> tuple[tuple[Address, ...], Told]:
    """What of its addresses it keeps, one of a family at most; and what it loses."""
    kept: dict[Family, Address] = {}
    lost: dict[Address, str] = {}
    for address in sorted(request.holds, key=lambda it: (len(it), it)):
        why = _not_wanted(state, request, address) or state.holders.why_not(address, request)
        if why is None and family_of(address) in kept:
            why = f"it has another {family_of(address)} address"
        if why is None:
            kept[family_of(address)] = address
            state.holders.add(address, key, request)
        else:
            lost[address] = why
    return tuple(kept[family] for family in request.families if family in kept), tuple(lost.items())


def _not_wanted(state: _State, request: Request, address: Address) -> str | None:
    """Why the Service itself asks for an address of its own no more."""
    if family_of(address) not in request.families:
        return f"the Service has no {family_of(address)} cluster IP"
    if request.asked:  # goes before what it gives up
        return None if address in request.asked else "the Service asks for another"
    if address in request.gives_up:
        return "the Service gives it up"
    if request.pool in state.used.pools and state.used.pool_of(address) != request.pool:
        return f"the Service asks for one of pool {request.pool}"
    return None


def _stale(state: _State, key: ServiceKey, request: Request, kept: Iterable[Address]) -> Told:
    found: dict[Address, str] = {}
    for address in kept:
        name = state.used.pool_of(address)
        if name is None:
            found[address] = "it is in no pool that is used, so that no advertisement is for it"
        elif whose := state.used.taken.of(address):
            found[address] = f"it is {whose}"
        elif (why := pools.why_not(state.used.pools[name], key, request, state.namespaces)) is not None:
            found[address] = f"pool {name}: {why}"
    return tuple(found.items())


# --- what it gets ------------------------------------------------------------------------------


def _complete(state: _State, key: ServiceKey, request: Request, kept: tuple[Address, ...], lost: Told) -> Grant:
    has = Grant(kept, _pool_of(state, kept), stale=_stale(state, key, request, kept), lost=lost)
    missing = [it for it in request.families if it not in map(family_of, kept)]
    if request.unclear or not (missing or set(request.asked) - set(kept)):
        return replace(has, why=request.unclear)
    if request.asked:
        return _as_asked(state, key, request, has)
    if kept:
        return _with_more(state, key, request, has, missing)
    return _anew(state, key, request, has)


def _with_more(state: _State, key: ServiceKey, request: Request, has: Grant, missing: list[Family]) -> Grant:
    """It has one family's address, and may have another's: of the same pool, or later."""
    lacks = f"no {missing[0]} address"
    if not has.pool or has.stale:
        return replace(has, why=f"{lacks}: it would be of the pool of the other one, which is for it no more")
    found = _free(state, request, has.pool, missing)
    if found is None:
        return replace(has, why=f"{lacks}: {_lack(state, has.pool, missing[0])}, which the other is of")
    return _granted(state, key, request, has, found)


def _as_asked(state: _State, key: ServiceKey, request: Request, has: Grant) -> Grant:
    """These addresses and no other: of any pool that may be asked by name, also one without autoAssign."""
    more = [it for it in request.asked if it not in has.addresses]
    names = {address: state.used.pool_of(address) for address in request.asked}
    absent = [it for it in request.families if it not in map(family_of, request.asked)]
    if absent and request.all_families:
        return replace(has, why=f"no {absent[0]} address is asked for, and ipFamilyPolicy is RequireDualStack")
    for address in more:
        if (why := _why_not_this(state, key, request, address, names[address])) is not None:
            return replace(has, why=f"{show_address(address)}: {why}")
    if more and len(set(names.values())) > 1:
        listed = ", ".join(f"{show_address(it)} of {names[it] or 'none'}" for it in request.asked)
        return replace(has, why=f"the addresses asked for are of several pools ({listed}); expected one")
    return _granted(state, key, request, has, more)


def _why_not_this(state: _State, key: ServiceKey, request: Request, address: Address, name: str | None) -> str | None:
    if family_of(address) not in request.families:
        have = " and ".join(str(it) for it in request.families)
        return f"the Service has no {family_of(address)} cluster IP; expected {have}"
    if name is None:
        return "it is in no pool that is used"
    if whose := state.used.taken.of(address):
        return f"it is {whose}"
    if request.pool and name != request.pool:
        return f"it is in pool {name}, and pool {request.pool} is asked for"
    if (why := pools.why_not(state.used.pools[name], key, request, state.namespaces)) is not None:
        return f"pool {name}: {why}"
    return state.holders.why_not(address, request)


def _anew(state: _State, key: ServiceKey, request: Request, has: Grant) -> Grant:
    if request.pool:
        if (why := _why_not_of(state, key, request)) is not None:
            return replace(has, why=f"pool {request.pool}: {why}")
        names = [request.pool]
    else:
        names = pools.automatic(state.used, key, request, state.namespaces)
    if not names:
        return replace(has, why=_no_pool(state))
    for wanted in _tries(request):
        for name in names:
            found = _free(state, request, name, wanted)
            if found is not None:
                return _granted(state, key, request, has, found)
    return replace(has, why=_nothing_free(state, request, names))


def _tries(request: Request) -> list[list[Family]]:
    """Of all families; and where one will do, of the first, then of the second."""
    both = list(request.families)
    return [both] if request.all_families or len(both) == 1 else [both, *([it] for it in both)]


def _free(state: _State, request: Request, name: str, wanted: Iterable[Family]) -> tuple[Address, ...] | None:
    """One address of each family; None where the pool has not all of them."""
    pool = state.used.pools[name]
    found = [state.holders.first_free(name, pool, family, request) for family in wanted]
    return tuple(it for it in found if it is not None) if None not in found else None


def _granted(state: _State, key: ServiceKey, request: Request, has: Grant, more: Iterable[Address]) -> Grant:
    """What it has, and more. Where it still lacks a family, why that is."""
    for address in more:
        state.holders.add(address, key, request)
    of = {family_of(it): it for it in (*has.addresses, *more)}
    addresses = tuple(of[it] for it in request.families if it in of)
    pool = _pool_of(state, addresses)
    lacks = [it for it in request.families if it not in of]
    why = f"no {lacks[0]} address: {_lack(state, pool, lacks[0])}" if lacks and not request.asked else ""
    return replace(has, addresses=addresses, pool=pool, why=why)


def _pool_of(state: _State, addresses: Iterable[Address]) -> str:
    return min((name for it in addresses if (name := state.used.pool_of(it)) is not None), default="")


# --- why not -----------------------------------------------------------------------------------


def _why_not_of(state: _State, key: ServiceKey, request: Request) -> str | None:
    """Why nothing is to be had of the pool that is asked for."""
    pool = state.used.pools.get(request.pool)
    if pool is not None:
        return pools.why_not(pool, key, request, state.namespaces)
    unfit = next((why for it, why in state.used.unfit.items() if it.name == request.pool), None)
    return "there is no such AddressPool" if unfit is None else f"it is not used: {unfit}"


def _no_pool(state: _State) -> str:
    if not state.used.pools:
        return "there is no AddressPool"
    return "no AddressPool is for this Service by itself (spec.autoAssign, spec.namespaces and selectors)"


def _nothing_free(state: _State, request: Request, names: list[str]) -> str:
    need = " of both families, as ipFamilyPolicy RequireDualStack asks" if request.all_families else ""
    told = [_lacks(state, request, name) for name in names[:MOST_TOLD]]
    if len(names) > MOST_TOLD:
        told.append(f"and {len(names) - MOST_TOLD} more pools")
    return f"no address{need}: {'; '.join(told)}"


def _lacks(state: _State, request: Request, name: str) -> str:
    """Which families a pool has not, or else has none free of."""
    has = pools.families(state.used.pools[name])
    absent = [it for it in request.families if it not in has]
    told = absent if request.all_families and absent else request.families
    return " and ".join(_lack(state, name, it) for it in told)


def _lack(state: _State, name: str, family: Family) -> str:
    has = family in pools.families(state.used.pools[name])
    return f"pool {name} has no free {family} address" if has else f"pool {name} has no {family} addresses"
