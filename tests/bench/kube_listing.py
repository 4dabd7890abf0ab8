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

from podwire.sources.kube_api import Api
from podwire.sources.kube_config import Access
from podwire.sources.kube_credentials import Credentials
from podwire.sources.kube_source import KubernetesObjects
from tests.bench import objects
from tests.bench.figures import resident


def serve(count: int, ready: Connection) -> None:
    from tests.unit.kube_fake import FakeApi

    async def run() -> None:
        fake = FakeApi()
        fake.put("nodes", objects.node())
        for number in range(count):
            fake.put("services", objects.service(number))
            fake.put("endpointslices", objects.slice_of(number, objects.backends(number)))
        fake.log.clear()
        async with fake.served() as server:
            ready.send(server)
            await asyncio.Event().wait()

    asyncio.run(run())


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
    source = KubernetesObjects(api, objects.NODE)
    before, longest = resident("self"), [0.0]
    began, cpu = time.perf_counter(), time.process_time()
    async with source.watching():
        turns = asyncio.create_task(longest_turn(longest)) if turning else None
        found = await source.listing()
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
        if turns is not None:
            turns.cancel()
        gc.collect()
        told = f"longest {longest[0] * 1e3:.1f} ms" if turning else f"cpu {used:.2f}"
        print(f"{len(found)} objects: seconds {seconds:.2f}, {told}, memory {before:.0f} -> {resident('self'):.0f} MB")
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
