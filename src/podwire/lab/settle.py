"""Waiting until the agents' networks hold what the published objects say.

Invariants: what to expect of an agent is decided by the agent's own pure rooms from the same objects; whether it is so
is what its admin API tells. Nothing is changed here.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from time import monotonic

import msgspec

from podwire import views
from podwire.cli.client import Failed, ask
from podwire.controller.events import KubeStateChange
from podwire.controller.snapshot import fold
from podwire.lab.forms import Fields
from podwire.lab.process import run
from podwire.lab.topology import MTU, SERVICE_RANGES, Station, ways_to_pods
from podwire.model.snapshot import Local, Snapshot
from podwire.sources.kubernetes import translate

PATIENCE = 15.0
_PAUSE = 0.02
_SETTLED = {views.FrontendState.PROGRAMMED, views.FrontendState.REFUSED}


def expected(node: str, objects: Iterable[Fields]) -> tuple[views.ServiceView, ...]:
    """The Services as the agent of that node will decide them. Pure."""
    understood = (translate(dict(thing)) for thing in objects)
    changes = tuple((it.key, it.value) for it in understood if it.value is not None)
    now, _ = fold(Snapshot(Local(node, MTU, tuple(SERVICE_RANGES.values()))), KubeStateChange(changes))
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
    lines = await asyncio.gather(*(_await_one(node, path, listed) for node, path in sorted(sockets.items())))
    return [line for line in lines if line]


async def _await_one(node: str, path: Path, objects: list[Fields]) -> str:
    wanted = expected(node, objects)
    until = monotonic() + PATIENCE
    problem = ""
    while monotonic() < until:
        try:
            body = await asyncio.to_thread(ask, path, "GET", "/services")
        except Failed as error:
            return f"{node}: {error}"
        held = msgspec.json.decode(body, type=views.ServiceList).services
        if settled(wanted, held):
            return ""
        problem = _first_difference(wanted, held)
        await asyncio.sleep(_PAUSE)  # the admin API has no event to wait for
    return f"{node}: not programmed after {PATIENCE:.0f} s: {problem}"


async def await_routes(nodes: Collection[Station], spaces: Mapping[str, str]) -> list[str]:
    """Until each of the nodes in `spaces` (name → network namespace) has its routes to the others' pods. Answers
    which has not in time, a line for each."""
    lines = await asyncio.gather(*(_await_routes(name, space, nodes) for name, space in sorted(spaces.items())))
    return [line for line in lines if line]


async def _await_routes(name: str, space: str, nodes: Collection[Station]) -> str:
    wanted = ways_to_pods([node for node in nodes if node.name != name])
    until = monotonic() + PATIENCE
    while monotonic() < until:
        held: dict[str, str] = {}
        for family in ("-4", "-6"):
            _, out, _ = await run("ip", "-json", family, "-n", space, "route", "show")
            held |= {it["dst"]: it.get("gateway", "") for it in msgspec.json.decode(out or "[]")}
        if wanted.items() <= held.items():
            return ""
        await asyncio.sleep(_PAUSE)  # only the kernel knows
    return f"{name}: no route to all other nodes after {PATIENCE:.0f} s"


def _first_difference(wanted: Iterable[views.ServiceView], held: Iterable[views.ServiceView]) -> str:
    known = {(it.namespace, it.name): it for it in held}
    for service in wanted:
        seen = known.pop((service.namespace, service.name), None)
        if seen is None or not settled([service], [seen]):
            return f"service/{service.namespace}/{service.name}"
    return ", ".join(f"service/{namespace}/{name} is still there" for namespace, name in sorted(known))
