"""From pod to pod on one node, by Podwire and by a bare routed pair of veths, side by side and in turn.

    python -m tests.bench.pod_to_pod SERVICES ROUNDS SECONDS

as root; prints one line of JSON: for `podwire` and `veth` the requests on one open connection (`rr`) and the bytes of
one stream (`throughput`) a second, of each round. Only one of them is loaded at a time, each round in another order.
The pods are of an agent at work, with SERVICES Services. The bare ones have addresses and routes as pods have them, and
nothing else: no rule, no connection tracking, no `rp_filter`.
"""

import asyncio
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from tests.bench.nodes import ip, prepare
from tests.bench.objects import TARGET
from tests.bench.packets import site
from tests.bench.wires import answering, backend, compiled, rate
from tests.kernel.rig import MakeSpace, Space, spaces

PODWIRE, VETH = "podwire", "veth"
KINDS = {"rr": ("serve", "ask", TARGET), "throughput": ("swallow", "send", TARGET + 1)}
"""By kind: what answers, what asks, and at which port."""
_GATEWAY = "169.254.1.1"
_CLIENT, _SERVER = "10.9.1.2", "10.9.1.3"


class Pair(NamedTuple):
    client: Space
    server: Space
    address: str


def bare(make_space: MakeSpace) -> Pair:
    node, client, server = (make_space(f"bare{name}") for name in "ncs")
    prepare(node)
    for number, (space, address) in enumerate(((client, _CLIENT), (server, _SERVER))):
        ip(node, f"link add pod{number} type veth peer name eth0 netns {space.name}", f"link set pod{number} up")
        ip(space, "link set lo up", "link set eth0 up", f"addr add {address}/32 dev eth0")
        ip(space, f"route add {_GATEWAY} dev eth0", f"route add default via {_GATEWAY}")
        ip(node, f"addr add {_GATEWAY}/32 dev pod{number}", f"route add {address} dev pod{number}")
    return Pair(client, server, _SERVER)


async def measure(services: int, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    with tempfile.TemporaryDirectory() as directory, spaces() as make_space:
        load = compiled(Path(directory))
        async with AsyncExitStack() as stack:
            wires = (await site(stack, make_space, PODWIRE, services, Path(directory, PODWIRE))).wires
            pairs = {PODWIRE: Pair(wires.client, wires.backends[0], backend(0)), VETH: bare(make_space)}
            for pair in pairs.values():
                for serves, _, port in KINDS.values():
                    await stack.enter_async_context(answering(load, [pair.server], port, serves))
            rates: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in pairs}
            for number in range(-1, rounds):
                for kind, (_, asks, port) in KINDS.items():
                    for name in pairs if number % 2 else reversed(pairs):
                        pair = pairs[name]
                        found = await rate(load, pair.client, asks, pair.address, port, f"{seconds:g}")
                        if number >= 0:  # the one before is for warming up
                            rates[name][kind].append(found)
            return rates


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
