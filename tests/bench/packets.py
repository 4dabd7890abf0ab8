"""Connections and requests through a cluster IP, planes side by side on wires of their own, in turn.

    python -m tests.bench.packets SERVICES FEW ROUNDS SECONDS PLANE…

as root; prints one line of JSON: for each of `podwire`, `few` (Podwire with FEW Services) and the other planes the
connections and requests a second of each round. Only one of them is loaded at a time, and each round in another order.
"""

import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from tests.bench import objects
from tests.bench.api_server import ApiServer
from tests.bench.nodes import path
from tests.bench.planes import Podwire, plane, programmed
from tests.bench.wires import Wires, answering, backend, compiled, rate
from tests.kernel.rig import MakeSpace, spaces

FEW = "few"
KINDS = {"cps": "connect", "rr": "ask"}
Rates = dict[str, dict[str, list[float]]]
"""By plane and kind: of each round."""


class Site(NamedTuple):
    name: str
    wires: Wires


def api(services: int) -> ApiServer:
    """The first Service's backends are those that answer."""
    made = ApiServer()
    made.put("nodes", objects.node())
    made.put("servicecidrs", objects.service_cidr())
    answering_ones = [backend(number) for number in range(objects.BACKENDS)]
    for number in range(services):
        made.put("services", objects.service(number))
        members = objects.slice_of(number, objects.backends(number))
        made.put("endpointslices", members if number else objects.slice_of(0, answering_ones, on=objects.NODE))
    return made


async def site(stack: AsyncExitStack, make_space: MakeSpace, name: str, services: int, directory: Path) -> Site:
    """All of it at work."""
    wires = Wires(make_space, name, directory)
    serving = api(services)
    await serving.serve(path(wires.node))
    stack.push_async_callback(serving.close)
    it = plane(Podwire.name if name == FEW else name, wires.node, directory)
    stack.push_async_callback(it.stop)
    await it.start()
    assert programmed(it, wires.node) == services
    return Site(name, wires)


async def measure(services: int, few: int, rounds: int, seconds: float, names: list[str]) -> Rates:
    rates: Rates = {name: {kind: [] for kind in KINDS} for name in (*names, FEW)}
    with tempfile.TemporaryDirectory() as directory, spaces() as make_space:
        load = compiled(Path(directory))
        async with AsyncExitStack() as stack:
            sites = []
            for name in (*names, FEW):
                sites.append(
                    await site(stack, make_space, name, few if name == FEW else services, Path(directory, name))
                )
                await stack.enter_async_context(answering(load, sites[-1].wires.backends))
            for number in range(-1, rounds):
                for it in sites if number % 2 else reversed(sites):
                    for kind, what in KINDS.items():
                        found = await rate(
                            load, it.wires.client, what, objects.service_address(0), objects.PORT, f"{seconds:g}"
                        )
                        if number >= 0:  # the one before is for warming up
                            rates[it.name][kind].append(found)
    return rates


if __name__ == "__main__":
    found = asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:]))
    print(json.dumps(found))
