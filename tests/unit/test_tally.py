"""What is counted of each event."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controller.events import DeletePod, KubeStateChange, Refusal, Resync, ResyncReason, Shutdown
from podwire.controller.tally import BOUNDS, Durations, Tally
from podwire.controller.transaction import Result
from podwire.model.objects import AttachmentKey
from tests.unit.test_loop import ADD, Bench

CHANGE, DELETE = KubeStateChange(()), DeletePod(AttachmentKey("s1", "eth0"))


@pytest.mark.parametrize(
    ("result", "counted"),
    [
        pytest.param(Result(CHANGE, seconds=0.1), ("KubeStateChange", "done"), id="as wanted"),
        pytest.param(Result(DELETE, seconds=0.1, error="no"), ("DeletePod", "failed"), id="an error"),
        pytest.param(
            Result(ADD, seconds=0.1, error="no", reverted=True), ("AddPod", "reverted"), id="an error, undone"
        ),
        pytest.param(Result(ADD, error="no", refusal=Refusal.NOT_READY), ("AddPod", "refused"), id="not granted"),
    ],
)
def test_each_event_is_counted_by_kind_and_outcome(result: Result, counted: tuple[str, str]) -> None:
    tally = Tally()
    tally.add(result)
    tally.add(result)
    assert tally.events == {counted: 2}
    assert tally.healings == 0


def test_what_never_ran_has_no_duration() -> None:
    tally = Tally()
    tally.add(Result(ADD, error="no", refusal=Refusal.NOT_READY))
    assert tally.durations == {}


@pytest.mark.parametrize(("reason", "healings"), [(ResyncReason.HEALING, 1), (ResyncReason.ON_DEMAND, 0)])
def test_only_healing_resyncs_are_healings(reason: ResyncReason, healings: int) -> None:
    tally = Tally()
    tally.add(Result(Resync(reason)))
    assert tally.healings == healings


@given(st.lists(st.floats(0, 10) | st.sampled_from(BOUNDS)))
def test_a_bucket_holds_what_is_at_most_its_bound(seconds: list[float]) -> None:
    durations = Durations()
    for each in seconds:
        durations.add(each)
    assert sum(durations.counts) == len(seconds)
    for number, bound in enumerate(BOUNDS):
        assert sum(durations.counts[: number + 1]) == sum(each <= bound for each in seconds)
    assert durations.sum == pytest.approx(sum(seconds))


async def test_the_loop_counts_what_it_did() -> None:
    bench = Bench()
    loop = asyncio.create_task(bench.controller.run())
    await bench.controller.submit(Resync(ResyncReason.STARTUP))
    bench.linux.fails = lambda _: "no"
    await bench.controller.submit(ADD)
    await bench.controller.submit(Shutdown())
    await loop
    assert bench.controller.tally.events == {
        ("Resync", "done"): 1,
        ("AddPod", "reverted"): 1,
        ("Shutdown", "done"): 1,
    }
    assert set(bench.controller.tally.durations) == {"Resync", "AddPod", "Shutdown"}
