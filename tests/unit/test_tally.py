"""What is counted of each event."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.controller.difference import Change, Outcome
from podwire.controller.events import DeletePod, Disturbed, KubeStateChange, Refusal, Resync, ResyncReason, Shutdown
from podwire.controller.tally import BOUNDS, Durations, Tally
from podwire.controller.transaction import Result, Step
from podwire.model.addresses import IPV4, parse_prefix
from podwire.model.network import Link, LinkKey, PodMTUKey, Route, RouteKey, SysctlKey, TunnelPortKey
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


LINK = Link(7, b"", "", 8, "eth0", b"", 1500, (), "")


@pytest.mark.parametrize(
    ("key", "change", "what"),
    [
        (SysctlKey("net/ipv4/ip_forward"), Change("0", "1"), {"net/ipv4/ip_forward"}),
        (RouteKey("", parse_prefix("10.1.1.2/32")), Change(None, Route(7)), {"route"}),
        (PodMTUKey(), Change(None, 1500), {"pod mtu"}),
        (TunnelPortKey(IPV4, 4789), Change(None, True), {"tunnel port"}),
        (LinkKey("pw0"), Change(None, LINK), {"link"}),
        (LinkKey("pw0"), Change(replace(LINK, astray=("renamed to x",)), LINK), {"link"}),
        (
            LinkKey("pw0"),
            Change(replace(LINK, astray=("ipv4/conf/pw0/rp_filter", "ipv6/conf/pw0/forwarding")), LINK),
            {"net/ipv4/conf/*/rp_filter", "net/ipv6/conf/*/forwarding"},
        ),
        (LinkKey("pw0"), Change(LINK, replace(LINK, localnet=True)), {"net/ipv4/conf/*/route_localnet"}),
    ],
)
def test_what_others_had_changed_is_counted_by_name_where_it_was_put_right(key: Any, change: Change, what: Any) -> None:
    for error, event in ((None, Disturbed("linux", None)), ("no", Disturbed("linux", None)), (None, CHANGE)):
        tally = Tally()
        tally.add(Result(event, (Step("linux", {key: change}, {key: Outcome(change.after, error)}, 1),)))
        wanted = what if error is None and event is not CHANGE else set()
        assert tally.mended == {("linux", it): 1 for it in wanted}


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
