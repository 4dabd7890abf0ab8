"""When counters are read, whose they are, and what of that outlives an agent."""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from podwire.controller.events import Resync, ResyncReason
from podwire.controller.snapshot import fold
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Frontend
from podwire.model.objects import ServiceKey
from podwire.model.snapshot import Local, Snapshot
from podwire.statistics.collector import Collector
from podwire.statistics.counted import COUNTS
from podwire.statistics.kept import Kept
from podwire.statistics.totals import Counts, nothing
from tests.unit.served_agent import WEB, frontend, node, service

NOTHING: Counts = (0,) * COUNTS


class Kernel:
    """Counts as often as it is read; a reading ends when the test says so."""

    def __init__(self) -> None:
        self.held: dict[Frontend, Counts] = {}
        self.readings, self.go_on, self.number = 0, threading.Event(), 1
        self.go_on.set()
        self.forgotten: list[Frontend] = []

    def identity(self) -> str:
        return f"table {self.number}"

    def read(self) -> dict[Frontend, Counts]:
        self.readings += 1
        assert self.go_on.wait(10)
        return dict(self.held)

    def forget(self, frontends: Iterable[Frontend]) -> None:
        for it in frontends:
            self.forgotten.append(it)
            del self.held[it]

    def count(self, address: str, number: int) -> None:
        it = frontend(address)
        self.held[it] = tuple(count + number for count in self.held.get(it, NOTHING))


class Links:
    def read(self) -> dict[int, Counts]:
        return {}


class Settled:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[Snapshot]:
        yield self.snapshot


def world(services: Mapping[str, Iterable[str]], whole: bool = True) -> Snapshot:
    """These Services with their addresses; who is named first in the alphabet is the oldest."""
    objects: dict[ObjectKey, Object] = {
        ServiceKey("shop", name): service(name, *addresses) for name, addresses in services.items()
    }
    return fold(Snapshot(Local("one", 1500)), Resync(ResyncReason.STARTUP, objects, whole=whole))[0]


def made(directory: Path, kernel: Kernel, snapshot: Snapshot) -> Collector:
    """Of an agent that has just started."""
    return Collector(Settled(snapshot), kernel, Links(), Kept(directory / "counts"))


async def told(collector: Collector) -> dict[str, int]:
    """The connections of each Service, and of all ("")."""
    totals = await collector.read_services()
    return {key.name: counts[0] for key, counts in totals.of_owners().items()} | {"": totals.whole[0]}


async def test_who_asks_during_a_reading_shares_it_and_who_stops_waiting_ends_nothing(tmp_path: Path) -> None:
    kernel = Kernel()
    collector = made(tmp_path, kernel, node())
    await collector.read_services()
    kernel.count("10.96.0.10", 1)
    kernel.go_on.clear()
    asking = [asyncio.create_task(collector.services()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    kernel.go_on.set()
    second, third = await asyncio.gather(*asking[1:])
    assert (second, kernel.readings) == (third, 2)
    assert second.of_owners() == {WEB: (1,) * COUNTS}
    await collector.settle()


@pytest.mark.parametrize("whole", [True, False], ids=["all Services are known", "not all are known yet"])
async def test_what_no_service_claims_is_forgotten_once_all_are_known(whole: bool, tmp_path: Path) -> None:
    kernel = Kernel()
    collector = made(tmp_path, kernel, replace(node(), whole=whole))
    await collector.read_services()
    kernel.count("10.96.0.10", 1)
    kernel.count("10.96.0.99", 9)
    assert (await collector.read_services()).of_owners() == {WEB: (1,) * COUNTS}
    assert kernel.forgotten == ([frontend("10.96.0.99")] if whole else [])


async def test_who_comes_by_a_forgotten_frontend_has_all_that_counts_then(tmp_path: Path) -> None:
    kernel, controller = Kernel(), Settled(world({"x": (A,)}))
    collector = Collector(controller, kernel, Links(), Kept(tmp_path / "counts"))
    kernel.count(B, 3)
    assert await told(collector) == {"": 0}
    controller.snapshot = world({"x": (A, B)})
    kernel.count(B, 4)
    assert await told(collector) == {"x": 4, "": 4}


async def test_a_service_that_is_not_known_again_yet_keeps_what_it_had(tmp_path: Path) -> None:
    kernel, controller = Kernel(), Settled(node())
    collector = Collector(controller, kernel, Links(), Kept(tmp_path / "counts"))
    await collector.read_services()
    kernel.count("10.96.0.10", 1)
    before = (await collector.read_services()).of_owners()
    now = controller.snapshot
    controller.snapshot = replace(now, whole=False, services=Map(), claims=Map())
    assert (await collector.read_services()).of_owners() == before
    assert kernel.forgotten == []


# --- an agent that is started again ------------------------------------------------------------

A, B, C = "10.96.0.1", "10.96.0.2", "10.96.0.3"
BOTH = {"x": (A, B), "y": (C,)}


async def after_a_life(directory: Path, kernel: Kernel) -> dict[str, int]:
    """Service x has had 100 by B that were carried over, and 1 by A; y, 7 by C; gone is another, with 1000."""
    collector = made(directory, kernel, world(BOTH | {"z": (D,)}))
    await collector.read_services()
    for address, number in ((A, 1), (B, 100), (C, 7), (D, 1000)):
        kernel.count(address, number)
    await collector.read_services()
    for it in (B, D):  # by hands, or since its Service went
        del kernel.held[frontend(it)]
    collector = made(directory, kernel, world(BOTH))
    return await told(collector)


D = "10.96.0.4"


async def test_sums_go_on_where_they_were(tmp_path: Path) -> None:
    kernel = Kernel()
    before = await after_a_life(tmp_path, kernel)
    assert before == {"x": 101, "y": 7, "": 1108}
    kernel.count(A, 5)  # while no agent runs
    assert await told(made(tmp_path, kernel, world(BOTH))) == {"x": 106, "y": 7, "": 1113}


@pytest.mark.parametrize(
    ("services", "expected"),
    [
        pytest.param({"x": (A,), "y": (C,)}, {"x": 106, "y": 7, "": 1113}, id="an address of one"),
        pytest.param({"x": (A, B)}, {"x": 106, "": 1113}, id="one of them"),
        pytest.param({"x": (B,), "y": (A, C)}, {"x": 101, "y": 12, "": 1113}, id="one's address to the other"),
    ],
)
async def test_what_changed_while_no_agent_ran_takes_nothing_back(
    services: Mapping[str, tuple[str, ...]], expected: dict[str, int], tmp_path: Path
) -> None:
    kernel = Kernel()
    await after_a_life(tmp_path, kernel)
    kernel.count(A, 5)
    assert await told(made(tmp_path, kernel, world(services))) == expected


async def test_a_restart_writes_nothing(tmp_path: Path) -> None:
    kernel = Kernel()
    await after_a_life(tmp_path, kernel)
    written = (tmp_path / "counts").stat()
    for _ in range(2):
        collector = made(tmp_path, kernel, world(BOTH))
        for _ in range(2):
            kernel.count(A, 1)
            await collector.read_services()
    now = (tmp_path / "counts").stat()
    assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def other_tables(kernel: Kernel, _: Path) -> None:
    kernel.number += 1


def lost(_: Kernel, path: Path) -> None:
    path.unlink()


def cut(_: Kernel, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def strange(_: Kernel, path: Path) -> None:
    path.write_bytes(b"\x94\xa7table 1\x90\x90\x91\x01")


@pytest.mark.parametrize("spoil", [other_tables, lost, cut, strange])
async def test_where_it_is_not_known_what_was_told_all_begins_at_zero(spoil: Any, tmp_path: Path) -> None:
    """Not at what the kernel's counters have: that would be taken for traffic of a moment."""
    kernel = Kernel()
    await after_a_life(tmp_path, kernel)
    spoil(kernel, tmp_path / "counts")
    collector = made(tmp_path, kernel, world(BOTH))
    assert set((await told(collector)).values()) == {0}
    kernel.count(A, 2)
    assert await told(collector) == {"x": 2, "y": 0, "": 2}
    assert await told(made(tmp_path, kernel, world(BOTH))) == {"x": 2, "y": 0, "": 2}


async def test_what_can_t_be_written_down_is_not_believed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel()
    await after_a_life(tmp_path, kernel)
    collector = made(tmp_path, kernel, world(BOTH))
    await collector.read_services()
    (tmp_path / "counts").unlink()
    (tmp_path / "counts").mkdir()
    for _ in range(2):
        kernel.held[frontend(A)] = NOTHING
        kernel.count(A, 1)
        await collector.read_services()
        kernel.held[frontend(A)] = NOTHING
        await collector.read_services()
    assert sum("begin anew at the next start" in it.getMessage() for it in caplog.records) == 1
    (tmp_path / "counts").rmdir()
    assert set((await told(made(tmp_path, kernel, world(BOTH)))).values()) == {0}


ADDRESSES = (A, B, C)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("count"), st.sampled_from(ADDRESSES), st.integers(1, 9)),
        st.tuples(st.just("read"), st.none(), st.none()),
        st.tuples(st.just("start"), st.none(), st.none()),
        st.tuples(st.just("tables"), st.none(), st.none()),
        st.tuples(st.just("hands"), st.sampled_from(ADDRESSES), st.none()),
        st.tuples(
            st.just("services"),
            st.dictionaries(st.sampled_from("xy"), st.sets(st.sampled_from(ADDRESSES), min_size=1)),
            st.booleans(),
        ),
    ),
    max_size=20,
)


@given(STEPS)
def test_a_sum_rises_or_begins_at_zero_whatever_becomes_of_agents_services_and_tables(steps: list[Any]) -> None:
    async def live(directory: Path) -> None:
        kernel, now, before, begun = Kernel(), world(BOTH), dict[str, int](), True
        counted = 0
        collector = made(directory, kernel, now)
        for what, one, other in (*steps, ("start", None, None), ("read", None, None)):
            match what:
                case "count":
                    kernel.count(one, other)
                    counted += other
                    continue
                case "start":
                    collector = made(directory, kernel, now)
                    continue
                case "tables":
                    kernel.held, kernel.number, begun = {}, kernel.number + 1, True
                case "hands":  # while an agent runs: it reads before the next one starts
                    await collector.read_services()
                    kernel.held.pop(frontend(one), None)
                case "services":
                    now = world({name: sorted(some) for name, some in one.items()}, whole=other)
                    collector._controller = Settled(now)
            sums = await told(collector)
            for name in before.keys() & sums.keys():
                assert sums[name] >= before[name] or (begun and sums[name] == 0)
            before, begun = sums, False
            assert sums[""] <= counted

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(live(Path(directory)))


async def test_nothing_is_kept_before_anything_was_counted(tmp_path: Path) -> None:
    assert Kept(tmp_path / "counts").recall("table 1") is None
    totals = nothing(COUNTS)  # type: ignore[var-annotated]
    Kept(tmp_path / "counts").keep("table 1", totals)
    assert Kept(tmp_path / "counts").recall("table 1") == totals
