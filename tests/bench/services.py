"""One backend changed among many Services, and a restart over them: in a namespace of its own, one size a process.

    python -m tests.bench.services DIRECTORY SERVICES CHANGES

prints one line of JSON: seconds to program all from nothing, kernel writes and seconds of a restart, milliseconds of
each change from the event to the kernel's commit, resident memory in MB.
"""

import asyncio
import gc
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from podwire.model.addresses import parse_address
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Object,
    ObjectKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from tests.kernel.rig import Rig, Space

BACKENDS = 10


def objects(number: int, backends: list[str]) -> dict[ObjectKey, Object]:
    key = ServiceKey("default", f"s{number}")
    ip = number + 20
    members = tuple(Member(parse_address(address)) for address in backends)
    return {
        key: Service((ServicePort("p", Protocol.TCP, 80),), (parse_address(f"10.96.{ip >> 8}.{ip & 255}"),)),
        SliceKey("default", f"s{number}-1"): BackendSlice(key, (BackendPort("p", Protocol.TCP, 8080),), members),
    }


def address(number: int) -> str:
    return f"10.{2 + number // 65000}.{number // 250 % 250}.{number % 250 + 1}"


async def measure(directory: Path, services: int, changes: int) -> dict[str, object]:
    held = {n: [address(n * BACKENDS + k) for k in range(BACKENDS)] for n in range(services)}
    listed: dict[ObjectKey, Object] = {}
    for number, backends in held.items():
        listed |= objects(number, backends)
    rig = Rig(directory, _no_space)
    started = time.perf_counter()
    assert (await rig.start(listed)).error is None
    loaded = time.perf_counter() - started
    await rig.stop()
    started = time.perf_counter()
    assert (await rig.start(listed)).error is None
    restarted, writes = time.perf_counter() - started, sum(rig.writes().values())
    gc.collect()
    gc.freeze()
    chance, times = random.Random(services), []
    for _ in range(changes):
        number = chance.randrange(services)
        held[number][chance.randrange(BACKENDS)] = f"10.200.{chance.randrange(256)}.{chance.randrange(1, 255)}"
        change = tuple(objects(number, held[number]).items())
        started = time.perf_counter()
        assert (await rig.change(*change)).error is None
        times.append((time.perf_counter() - started) * 1e3)
    memory = resident_mb()
    await rig.stop()
    return {
        "load_s": loaded,
        "restart_s": restarted,
        "restart_writes": writes,
        "change_ms": times,
        "rss_mb": memory,
    }


def resident_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def _no_space(label: str) -> Space:
    raise AssertionError(f"no pod is attached here: {label}")


if __name__ == "__main__":
    if not subprocess.run(["ip", "netns", "identify"], check=True, capture_output=True).stdout.strip():
        sys.exit("in a network namespace of its own, please: this programs whatever it is run in")
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))))
