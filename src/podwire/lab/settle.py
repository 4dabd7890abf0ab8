"""Waiting until the agents' networks hold what the published objects say.

Invariants: what to expect of an agent is decided by the agent's own pure rooms from the same objects; whether it is so
is what its admin API tells. Nothing is changed here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic

import msgspec

from podwire import views
from podwire.announcing.views import ESTABLISHED, NO_SESSION, L2View, PeerList, PeerView
from podwire.cli.client import Failed, ask
from podwire.lab.announced import Announced, change_of, seen_by
from podwire.lab.forms import Fields
from podwire.lab.process import run
from podwire.lab.topology import Station
from podwire.model.addresses import Address, show_address
from podwire.model.network import TUNNELS

PATIENCE = 15.0
_LOOK = 0.1
"""Seconds between two looks at what the agent only hears of FRR."""
_LONGEST_WAIT = 1
"""Seconds for an agent to do something; then it is looked at in any case."""
_SETTLED = {views.FrontendState.PROGRAMMED, views.FrontendState.REFUSED, views.FrontendState.DROPPED}


def expected(node: str, objects: Iterable[Fields]) -> tuple[views.ServiceView, ...]:
    """The Services as the agent of that node will decide them. Pure."""
    now = seen_by(node, change_of(objects))
    return tuple(views.service(now, key) for key in views.service_keys(now))


def settled(wanted: Iterable[views.ServiceView], held: Iterable[views.ServiceView]) -> bool:
    held = tuple(held)
    states = {frontend.state for service in held for frontend in service.frontends}
    return states <= _SETTLED and _stateless(wanted) == _stateless(held)


def _stateless(services: Iterable[views.ServiceView]) -> list[object]:
    return [
        (it.namespace, it.name, frontend.address, frontend.protocol, frontend.port, frontend.backends)
        for it in services
        for frontend in it.frontends
    ]


async def await_settled(sockets: Mapping[str, Path], objects: Iterable[Fields]) -> list[str]:
    """`sockets`: the admin socket of each node's agent. Answers what has not settled in time, a line for each."""
    listed = list(objects)
    return await _all(
        _awaited(node, path, partial(_unlike, path, expected(node, listed))) for node, path in sockets.items()
    )


async def await_pods(sockets: Mapping[str, Path], count: int) -> list[str]:
    """Until each agent knows of so many pods. Answers which does not in time, a line for each."""
    return await _all(_awaited(node, path, partial(_unknown, path, count)) for node, path in sockets.items())


async def await_owners(sockets: Mapping[str, Path], wanted: Mapping[Address, Announced]) -> list[str]:
    """Until each agent knows who answers by ARP or neighbour discovery, and whoever does is at it. Answers which has
    not in time, a line for each."""
    owners = {show_address(address): it.owner for address, it in wanted.items()}
    return await _all(_awaited(node, path, partial(_unanswered, node, path, owners)) for node, path in sockets.items())


async def await_routes(nodes: Collection[Station], sockets: Mapping[str, Path], spaces: Mapping[str, str]) -> list[str]:
    """Until each node has its routes to the others' pods: by those nodes' addresses, or where BGP has told, also by the
    router's own on the link. `spaces`: their network namespaces. Answers which has not in time, a line for each."""
    others = {name: [node for node in nodes if node.name != name] for name in sockets}
    return await _all(
        _awaited(name, path, partial(_unrouted, spaces[name], others[name])) for name, path in sockets.items()
    )


async def await_sessions(sockets: Mapping[str, Path]) -> list[str]:
    """Until each node's BGP sessions are up, and BFD watches over them. Answers which are not in time, a line for
    each."""
    return await _all(_with_sessions(node, path) for node, path in sockets.items())


async def _with_sessions(node: str, path: Path) -> str:
    until = monotonic() + PATIENCE
    while True:
        try:
            body = await asyncio.to_thread(ask, path, "GET", "/bgp/peers")
        except Failed as error:
            return f"{node}: {error}"
        peers = msgspec.json.decode(body, type=PeerList).peers
        down = [it for it in peers if it.state != NO_SESSION and (it.state != ESTABLISHED or it.bfd == "Down")]
        if not down:
            return ""
        if monotonic() > until:
            return f"{node}: {'; '.join(map(_down, down))}"
        await asyncio.sleep(_LOOK)


def _down(it: PeerView) -> str:
    bfd = f", BFD {it.bfd}" if it.bfd else ""
    return f"bgppeer/{it.peer} is {it.state}{bfd}{f': {it.error}' if it.error else ''}"


async def _all(waiting: Iterable[Awaitable[str]]) -> list[str]:
    return sorted(line for line in await asyncio.gather(*waiting) if line)


async def _awaited(node: str, path: Path, problem: Callable[[], Awaitable[str]]) -> str:
    """Looks whenever the agent has done something, until there is no problem or no patience."""
    until = monotonic() + PATIENCE
    try:
        newest = await _newest(path, "limit=1")
        while (found := await problem()) and monotonic() < until:
            newest = max(newest, await _newest(path, f"since={newest}&wait={_LONGEST_WAIT}"))
    except Failed as error:
        return f"{node}: {error}"
    return f"{node}: not programmed after {PATIENCE:.0f} s: {found}" if found else ""


async def _newest(path: Path, query: str) -> int:
    """The number of the newest record of that history, 0 where there is none. Raises Failed."""
    body = await asyncio.to_thread(ask, path, "GET", f"/history?{query}")
    return max((it.number for it in msgspec.json.decode(body, type=views.HistoryView).records), default=0)


async def _unlike(path: Path, wanted: tuple[views.ServiceView, ...]) -> str:
    """Raises Failed."""
    body = await asyncio.to_thread(ask, path, "GET", "/services")
    held = msgspec.json.decode(body, type=views.ServiceList).services
    return "" if settled(wanted, held) else _first_difference(wanted, held)


async def _unknown(path: Path, count: int) -> str:
    """Raises Failed."""
    body = await asyncio.to_thread(ask, path, "GET", "/status")
    known = msgspec.json.decode(body, type=views.StatusView).counts["pods"]
    return "" if known == count else f"it knows {known} pods of {count}"


async def _unanswered(node: str, path: Path, owners: Mapping[str, str]) -> str:
    """Raises Failed."""
    if not owners:
        return ""
    body = await asyncio.to_thread(ask, path, "GET", "/l2")
    held = {it.address: it for it in msgspec.json.decode(body, type=L2View).addresses}
    for address, owner in owners.items():
        it = held.get(address)
        if (it.owner if it else "") != owner or (owner == node and it and not it.interfaces):
            return f"{address}: {owner or 'nobody'} does not answer for it yet"
    return ""


async def _unrouted(space: str, others: Collection[Station]) -> str:
    held: dict[str, Fields] = {}
    for family in ("-4", "-6"):
        _, out, _ = await run("ip", "-json", family, "-n", space, "route", "show")
        held |= {it["dst"]: it for it in msgspec.json.decode(out or "[]")}
    missing = [
        f"{block} via {gateway}"
        for node in others
        for block, gateway in zip(map(str, node.pod_blocks), map(show_address, node.addresses), strict=True)
        if not _leads_to(gateway, held.get(block, {}))
    ]
    return f"no route to {', '.join(missing)}" if missing else ""


def _leads_to(gateway: str, route: Fields) -> bool:
    """What BGP has told may go by the router's address on the link: of two next hops (RFC 2545) FRR takes that one."""
    via = route.get("gateway", "")
    by_router = route.get("protocol") == "bgp" and via.startswith("fe80:")
    return via == gateway or by_router or route.get("dev") in TUNNELS.values()


def _first_difference(wanted: Iterable[views.ServiceView], held: Iterable[views.ServiceView]) -> str:
    known = {(it.namespace, it.name): it for it in held}
    for service in wanted:
        seen = known.pop((service.namespace, service.name), None)
        if seen is None or not settled([service], [seen]):
            return f"service/{service.namespace}/{service.name}"
    return ", ".join(f"service/{namespace}/{name} is still there" for namespace, name in sorted(known))
