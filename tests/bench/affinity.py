"""A backend goes that many clients are remembered for: how long until nobody is sent there any more, and at what cost.

    python -m tests.bench.affinity PLANE CLIENTS

as root; prints one line of JSON: seconds from the API server's word until the last client is forgotten, the processor
time of that, the clients that were remembered before. That backend is the only one, so all are remembered for it. The
clients are real ones, half of them at each of two Services: kube-proxy remembers 65,535 at most for one of each.
"""

import asyncio
import json
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from podwire.dataplane import netlink
from podwire.dataplane.messages import attrs, text
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.elements import elements
from podwire.model.addresses import IPV4, parse_address
from tests.bench import objects
from tests.bench.api_server import ApiServer
from tests.bench.nodes import Commits, commits, path
from tests.bench.planes import KubeProxy, Plane, Podwire, plane
from tests.bench.wires import CLIENTS, Wires, answering, backend, compiled, rate
from tests.kernel.rig import Space, entered, spaces

SERVICES = 2
LONGEST = 120.0


class Remembered:
    """The maps and sets in which a plane remembers clients."""

    def __init__(self, it: Plane, space: Space) -> None:
        self._table = w.head(IPV4) + text(1, it.table)
        with entered(space):
            self._socket = netlink.Socket(netlink.NETFILTER)

    def sets(self) -> list[str]:
        names = [attrs(body, 4)[2][:-1].decode() for body in self._socket.dump(w.GETSET, self._table)]
        return [name for name in names if name.startswith("affinity")]

    def count(self, address: str = "") -> int:
        """Those whose entry leads to that address, where entries say where they lead."""
        wanted = bytes(parse_address(address)) if address else b""
        dumped = (self._socket.dump(w.GETELEM, self._table + text(2, name)) for name in self.sets())
        return sum(it.data.startswith(wanted) for bodies in dumped for it in elements(bodies))

    def close(self) -> None:
        self._socket.close()


async def forgotten_by_podwire(it: Podwire, clients: int) -> None:
    """As its history tells."""
    since = deleted = 0
    while deleted < clients:
        told = await it.ask(f"/history?since={since}&wait=10")
        for record in told["records"]:
            since = max(since, record["number"])
            words = record["event"].split()
            deleted += int(words[1]) if words[0] == "FlowsReconciled" else 0


async def forgotten_by_kube_proxy(heard: Commits, left: Remembered, before: list[str]) -> None:
    """It drops whole sets."""
    while set(before) & set(left.sets()):
        await heard.next()


async def measure(name: str, clients: int) -> dict[str, Any]:
    api, (goes, stays) = ApiServer(), (backend(0), backend(1))
    api.put("nodes", objects.node())
    api.put("servicecidrs", objects.service_cidr())
    for number in range(SERVICES):
        api.put("services", objects.service(number, affinity=True))
        api.put("endpointslices", objects.slice_of(number, [goes], on=objects.NODE))
    with tempfile.TemporaryDirectory() as directory, spaces() as make_space:
        load, wires = compiled(Path(directory)), Wires(make_space, name, Path(directory))
        wires.many_clients()
        await api.serve(path(wires.node))
        it = plane(name, wires.node, Path(directory))
        left = Remembered(it, wires.node)
        try:
            await it.start()
            async with answering(load, wires.backends):
                for number in range(SERVICES):
                    address = objects.service_address(number)
                    await rate(load, wires.client, "clients", address, objects.PORT, CLIENTS, str(clients // SERVICES))
            known = left.count()
            assert known == clients, f"{known} of {clients} clients are remembered"
            with commits(wires.node) if isinstance(it, KubeProxy) else nullcontext() as heard:
                before, cost, began = left.sets(), it.cost().cpu, time.perf_counter()
                for number in range(SERVICES):
                    api.put("endpointslices", objects.slice_of(number, [stays], on=objects.NODE))
                if isinstance(it, Podwire):
                    await asyncio.wait_for(forgotten_by_podwire(it, clients), LONGEST)
                elif heard is not None:
                    await asyncio.wait_for(forgotten_by_kube_proxy(heard, left, before), LONGEST)
                seconds = time.perf_counter() - began
            assert left.count(goes if isinstance(it, Podwire) else "") == 0
            return {"seconds": seconds, "cpu_s": it.cost().cpu - cost, "clients": known}
        finally:
            left.close()
            await it.stop()
            await api.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
