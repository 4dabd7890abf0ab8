"""How late a timer of the event loop is while all is read: in a namespace of its own.

    python -m tests.bench.late DIRECTORY SERVICES

prints one line of JSON: for a resync and a verify at run time, seconds that it took, and by how many milliseconds the
latest timer came too late.
"""

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from podwire.model.kinds import Object, ObjectKey
from podwire.sources.kubernetes import translate
from tests.bench import objects
from tests.bench.api_server import KINDS
from tests.kernel.rig import Rig, Space

TICK = 0.005


def listed(services: int) -> dict[ObjectKey, Object]:
    found: dict[ObjectKey, Object] = {}
    for number in range(services):
        parts = objects.service(number), objects.slice_of(number, objects.backends(number))
        for kind, part in zip(("services", "endpointslices"), parts, strict=True):
            key, value, _ = translate(KINDS[kind].head() | part)
            assert value is not None
            found[key] = value
    return found


async def late(work: Awaitable[Any]) -> dict[str, float]:
    """While that goes on, how late the latest tick was."""
    task, worst = asyncio.ensure_future(work), 0.0
    began = time.perf_counter()
    while not task.done():
        due = time.perf_counter() + TICK
        await asyncio.sleep(TICK)
        worst = max(worst, time.perf_counter() - due)
    await task
    return {"seconds": time.perf_counter() - began, "late_ms": worst * 1e3}


async def measure(directory: Path, services: int) -> dict[str, object]:
    rig = Rig(directory, _no_space)
    assert (await rig.start(listed(services))).error is None
    gc.collect()
    gc.freeze()
    found: dict[str, object] = {"resync": await late(rig.resync()), "verify": await late(rig.drift())}
    await rig.stop()
    return found


def _no_space(label: str) -> Space:
    raise AssertionError(f"no pod is attached here: {label}")


if __name__ == "__main__":
    if not subprocess.run(["ip", "netns", "identify"], check=True, capture_output=True).stdout.strip():
        sys.exit("in a network namespace of its own, please: this programs whatever it is run in")
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2])))))
