"""One look at connection tracking with many entries: in an empty namespace of its own.

    python -m tests.bench.flows ENTRIES

as root; prints one line of JSON, milliseconds of wall time and of the processor: a look at one frontend that has no
flow, one that has them all, and one at everything; the longest time for which an event loop beside the look had no
turn; and the deletion of all, in slices as the reconciler's. A walk costs what the machine's table is big, however many
entries are this namespace's.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from struct import pack
from typing import Any

from podwire.dataplane import netlink
from podwire.dataplane.conntrack import messages as m
from podwire.dataplane.conntrack.driver import Conntrack
from podwire.dataplane.messages import CREATE, EXCL, Message, attr, attrs, nest
from podwire.dataplane.reconciler import SLICE
from podwire.model.addresses import Address, parse_address
from podwire.model.network import Backend, Frontend, Slots
from podwire.model.objects import Protocol
from podwire.services.stale import Flow, stale
from tests.unit.test_stale_flows import entry

TO = Frontend(parse_address("10.96.0.10"), Protocol.UDP, 53)
OTHER = Frontend(parse_address("10.96.0.11"), Protocol.UDP, 54)
CLIENT = parse_address("10.2.0.0")
GONE, STAYS = Backend(parse_address("10.1.1.2"), 53), Backend(parse_address("10.1.1.3"), 53)


def fill(tracking: netlink.Socket, entries: int) -> None:
    flow = Flow(TO, GONE, CLIENT)
    for at in range(0, entries, SLICE):
        wanted = []
        for number in range(at, min(at + SLICE, entries)):
            body = entry(flow, Address(pack(">I", 0x0A020000 + number // 50_000)), 10_000 + number % 50_000)
            held = attrs(body, 4)
            parts = nest(1, held[1]) + nest(2, held[2]) + attr(7, pack(">I", 3600))
            wanted.append(Message(m.NEW, CREATE | EXCL, body[:4] + parts))
        errors = tracking.send(wanted)
        if errors:
            raise OSError(next(iter(errors.values())), "an entry was not taken: see nf_conntrack_max")


async def look(driver: Conntrack, frontend: Frontend | None) -> tuple[dict[str, float], list[m.Entry]]:
    """What the reconciler's thread does, and how long the loop beside it waits for a turn."""
    held: dict[Any, Any] = {TO: Slots(1, (STAYS,)), OTHER: Slots(1, (STAYS,))}
    spent: list[float] = []

    def read() -> list[m.Entry]:
        began = time.thread_time()
        found = [
            it
            for it in driver.read([frontend] if frontend is not None else [], frontend is None, lambda: False)
            if stale(it.flow, held, {}, (), lambda _: True)
        ]
        spent.append(time.thread_time() - began)
        return found

    began = last = time.perf_counter()
    reading = asyncio.ensure_future(asyncio.to_thread(read))
    longest = 0.0
    while not reading.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    times = {"wall_ms": last - began, "processor_ms": spent[0], "longest_without_turn_ms": longest}
    return {name: round(seconds * 1e3, 2) for name, seconds in times.items()}, await reading


def timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return (time.perf_counter() - began) * 1e3


async def measure(entries: int) -> dict[str, Any]:
    with netlink.inside(None):
        driver, tracking = Conntrack(), netlink.Socket(netlink.NETFILTER)
    fill(tracking, entries)
    others, _ = await look(driver, OTHER)
    all_, found = await look(driver, TO)
    everything, _ = await look(driver, None)
    assert len(found) == entries
    slices = [timed(lambda at=at: driver.delete(found[at : at + SLICE])) for at in range(0, entries, SLICE)]  # type: ignore[misc]
    assert driver.writes == entries
    return {
        "entries": entries,
        "frontend_without_flows": others,
        "frontend_with_all": all_,
        "everything": everything,
        "deleted_ms": round(sum(slices), 2),
        "longest_slice_ms": round(max(slices), 2),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1])))))
