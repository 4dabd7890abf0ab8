"""One plane with many Services, in a process and a namespace of its own: its start, its changes, its restart, its cost.

    python -m tests.bench.services PLANE SERVICES CHANGES PACED

as root; prints one line of JSON. After the start come PACED changes at a steady pace, whose processor time counts; then
a restart over what is there, and CHANGES changes one after the other, each as soon as the last one is in the kernel.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench import objects
from tests.bench.api_server import ApiServer
from tests.bench.nodes import commits, generation, path, prepare
from tests.bench.planes import KubeProxy, Plane, Podwire, programmed
from tests.kernel.rig import Space, spaces

PER_SECOND = 20
"""The pace: a rolling update of a few large Deployments."""
STRIDE = 7919
"""From the Service of one change to that of the next."""
LONGEST = 60.0
"""Seconds for one change: a limit against hanging."""


class Cluster:
    """The API server's objects, and what changes in them."""

    def __init__(self, services: int) -> None:
        self.services, self.changes = services, 0
        self.api = ApiServer()
        self.api.put("nodes", objects.node())
        self.api.put("servicecidrs", objects.service_cidr())
        for number in range(services):
            self.api.put("services", objects.service(number))
            self.api.put("endpointslices", objects.slice_of(number, objects.backends(number)))

    @property
    def next_address(self) -> str:
        return objects.changed_address(self.changes)

    def change(self) -> None:
        """One backend of one Service becomes another one."""
        number = self.changes * STRIDE % self.services
        self.api.put("endpointslices", objects.slice_of(number, objects.backends(number, self.changes)))
        self.changes += 1


async def started(it: Plane, space: Space, services: int) -> float:
    seconds = await it.start()
    found = programmed(it, space)
    assert found == services, f"{it.name} has programmed {found} of {services} Services"
    return seconds


async def paced(it: Plane, space: Space, cluster: Cluster, count: int) -> dict[str, float]:
    """The processor time of so many changes, until the last is in the kernel."""
    before, began = it.cost(), time.perf_counter()
    with commits(space) as heard:
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
            last = heard.expect(cluster.next_address) if number == count - 1 else None
            cluster.change()
        if last is not None:
            await asyncio.wait_for(last, LONGEST)
    return {"paced_cpu_s": it.cost().cpu - before.cpu, "paced_rss_mb": it.cost().rss}


async def in_turn(space: Space, cluster: Cluster, count: int) -> list[float]:
    """Milliseconds of each change, from the API server's word to the commit as another process hears of it."""
    times = []
    with commits(space) as heard:
        for _ in range(count):
            seen = heard.expect(cluster.next_address)
            began = time.perf_counter()
            cluster.change()
            times.append((await asyncio.wait_for(seen, LONGEST) - began) * 1e3)
    return times


def noted(out: Path) -> list[float]:
    times: list[float] = json.loads(out.read_text())
    return times


async def measure_podwire(space: Space, cluster: Cluster, directory: Path, changes: int, paced: int) -> dict[str, Any]:
    out = directory / "times.json"
    it, clocked = Podwire(space, directory), [sys.executable, "-m", "tests.bench.watched_agent", str(out)]
    try:
        found = await at_first(it, space, cluster, paced)
        before = generation(space)
        found["restart_s"] = await started(it, space, cluster.services)
        found["restart_writes"] = max(await it.writes(), generation(space) - before)
        await it.stop()
        it = Podwire(space, directory, clocked)
        await started(it, space, cluster.services)
        found["seen_ms"] = await in_turn(space, cluster, changes)
    finally:
        await it.stop()
    found["change_ms"] = noted(out)
    assert len(found["change_ms"]) == changes, f"{len(found['change_ms'])} commits for {changes} changes"
    return found


async def measure_kube_proxy(
    space: Space, cluster: Cluster, directory: Path, changes: int, paced: int
) -> dict[str, Any]:
    it = KubeProxy(space, directory)
    try:
        found = await at_first(it, space, cluster, paced)
        it = KubeProxy(space, directory, at_once=True)
        found["restart_s"] = await started(it, space, cluster.services)
        found["seen_ms"] = found["change_ms"] = await in_turn(space, cluster, changes)
    finally:
        await it.stop()
    return found


async def at_first(it: Plane, space: Space, cluster: Cluster, count: int) -> dict[str, Any]:
    """The start, with nothing in the kernel, and changes at a pace; it is ended then."""
    found = {"load_s": await started(it, space, cluster.services), "rss_mb": it.cost().rss}
    if count:
        found |= await paced(it, space, cluster, count)
    await it.stop()
    return found


async def measure(name: str, services: int, changes: int, paced_changes: int) -> dict[str, Any]:
    measured = measure_podwire if name == Podwire.name else measure_kube_proxy
    with tempfile.TemporaryDirectory() as directory, spaces() as make_space:
        space, cluster = make_space("bench"), Cluster(services)
        prepare(space)
        await cluster.api.serve(path(space))
        try:
            return await measured(space, cluster, Path(directory), changes, paced_changes)
        finally:
            await cluster.api.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], *map(int, sys.argv[2:])))))
