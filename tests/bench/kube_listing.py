"""How long a start's listing takes, and what it leaves in memory: 10,000 Services and 10,000 slices of ten members.

    python -m tests.bench.kube_listing [SERVICES]

The API server is the tests' own, in another process; its time is in `seconds`, not in `cpu`. `longest` is the most CPU
time between two turns of the event loop.
"""

import asyncio
import gc
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from podwire.sources.kube_api import Api
from podwire.sources.kube_config import Access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_source import KubernetesObjects

MEMBERS = 10


def serve(count: int, ready: Connection) -> None:
    from tests.unit.kube_fake import FakeApi, node, service

    async def run() -> None:
        fake = FakeApi()
        fake.put("nodes", node("one", "10.1.1.0/24"))
        for number in range(count):
            fake.put(
                "services", service(f"service-{number}", f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}")
            )
            fake.put("endpointslices", _slice(number))
        fake.log.clear()
        async with fake.served() as server:
            ready.send(server)
            await asyncio.Event().wait()

    asyncio.run(run())


def _slice(number: int) -> dict[str, Any]:
    """As large as a real one: 2.3 KB."""
    fields = {"f:addressType": {}, "f:endpoints": {}, "f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:ports": {}}
    members = [
        {
            "addresses": [f"10.{1 + (number >> 8)}.{number & 255}.{2 + member}"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": f"node-{member}",
            "zone": "zone-a",
            "targetRef": {
                "kind": "Pod",
                "namespace": "default",
                "name": f"service-{number}-5d4f8c7b9-{member:05}",
                "uid": f"00000000-0000-4000-8000-{number:06}{member:06}",
            },
        }
        for member in range(MEMBERS)
    ]
    return {
        "metadata": {
            "name": f"service-{number}-abcde",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": f"service-{number}", "app": "bench"},
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": f"service-{number}", "controller": True}
            ],
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": members,
    }


def memory() -> float:
    """MB of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def longest_turn(longest: list[float]) -> None:
    """In CPU time: on a busy machine the rest is the others'."""
    before = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now = time.thread_time()
        longest[0] = max(longest[0], now - before)
        before = now


async def measure(server: str, turning: bool) -> None:
    """`turning`: what measures the longest turn takes all the CPU that is left, so CPU is measured without it."""
    access = Access((server,))
    api = Api(access, Credentials(access))
    source = KubernetesObjects(api, "one")
    before, longest = memory(), [0.0]
    began, cpu = time.perf_counter(), time.process_time()
    async with source.watching():
        turns = asyncio.create_task(longest_turn(longest)) if turning else None
        objects = await source.listing()
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        if turns is not None:
            turns.cancel()
        gc.collect()
        told = f"longest {longest[0] * 1e3:.1f} ms" if turning else f"cpu {used:.2f}"
        print(f"{len(objects)} objects: seconds {seconds:.2f}, {told}, memory {before:.0f} -> {memory():.0f} MB")
    await api.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(count, there))
    server.start()
    try:
        address = here.recv()
        asyncio.run(measure(address, turning=False))
        asyncio.run(measure(address, turning=True))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
