"""Update, resync and revert on a network in memory: whatever fails, whoever meddles, the end is as wanted."""

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire import agent
from podwire.controller import events as e
from podwire.controller.difference import Desired, Outcome
from podwire.controller.snapshot import fold
from podwire.controller.transaction import Capability, Result, Transaction
from podwire.model.addresses import parse_prefix
from podwire.model.network import CursorKey, Frontend, LinkKey, RouteKey
from podwire.model.objects import AttachmentKey, PodKey
from podwire.model.snapshot import EVERYTHING, UNKNOWN, Snapshot, Touched
from tests.unit import world

KEY = AttachmentKey("s1", "eth0")
ADD = e.AddPod(KEY, PodKey("default", "a"), "/run/netns/s1")
RESYNC = e.Resync(e.ResyncReason.ON_DEMAND)


async def run(transaction: Transaction, now: Snapshot, event: e.Event) -> tuple[Snapshot, Result]:
    """As the loop does: a refusal changes nothing, an ADD is followed by its confirmation."""
    try:
        now, result = await transaction.run(now, event)
    except e.Refused as refused:
        return now, Result(event, error=str(refused))
    if isinstance(event, e.AddPod) and result.error is None:
        now, confirmed = await transaction.run(now, e.PodWired(event.key))
        if confirmed.error is not None:
            now, _ = await transaction.run(now, e.DeletePod(event.key))
            return now, confirmed
    return now, result


@settings(max_examples=100)
@given(st.lists(world.kube_changes | world.pod_events, max_size=12))
async def test_updates_alone_end_as_a_fresh_start_would(way: list[e.Event]) -> None:
    drivers = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    for event in way:
        now, _ = await run(transaction, now, event)
    fresh = world.memories()
    await world.transaction(fresh).run(now, RESYNC)
    assert world.contents(drivers) == world.contents(fresh)
    assert not any(transaction.drift(now).values())
    before = [driver.writes for driver in drivers]
    now, result = await transaction.run(now, RESYNC)
    assert result.error is None
    assert [driver.writes for driver in drivers] == before


@settings(max_examples=100)
@given(st.lists(st.tuples(world.kube_changes | world.pod_events, st.integers(0, 9)), max_size=12), st.data())
async def test_after_any_failures_and_meddling_one_resync_makes_it_right(
    way: list[tuple[e.Event, int]], data: st.DataObject
) -> None:
    drivers = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    for event, luck in way:
        for driver in drivers:
            driver.fails = lambda key, luck=luck: "no luck" if crc32(str(key).encode()) % 10 < luck - 5 else None
        now, _ = await run(transaction, now, event)
        victim = data.draw(st.sampled_from(drivers))
        if victim.held and luck % 3 == 0:
            del victim.held[data.draw(st.sampled_from(sorted(victim.held, key=str)))]
    for driver in drivers:
        driver.fails = lambda _: None
    now, result = await transaction.run(now, RESYNC)
    fresh = world.memories()
    await world.transaction(fresh).run(now, RESYNC)
    assert result.error is None
    assert world.contents(drivers) == world.contents(fresh)
    assert UNKNOWN not in [value for known in now.programmed.values() for value in known.values()]


def _but_cursors(drivers: tuple[world.Memory, ...]) -> dict[str, dict[Any, Any]]:
    """A cursor stays where it was moved to: what could not be had is not tried again at once."""
    return {
        name: {key: value for key, value in held.items() if not isinstance(key, CursorKey)}
        for name, held in world.contents(drivers).items()
    }


@pytest.mark.parametrize("driver", ["store", "linux", "nftables"])
@pytest.mark.parametrize("keep", range(4))
async def test_an_add_that_fails_anywhere_is_reverted(driver: str, keep: int) -> None:
    """The driver makes `keep` of its keys, then fails."""
    drivers = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    now, _ = await run(transaction, now, e.AddPod(AttachmentKey("s2", "eth0"), PodKey("default", "b"), "/b"))
    before, held = _but_cursors(drivers), now.attachments
    failing = next(d for d in drivers if d.name == driver)
    seen: list[Any] = []

    def fails(key: Any) -> str | None:
        if key in failing.held:  # what was made can be unmade
            return None
        seen.append(key)
        return "full" if len(set(seen)) > keep else None

    failing.fails = fails
    now, result = await transaction.run(now, ADD)
    if result.error is None:  # this driver has fewer keys than that
        assert len(set(seen)) <= keep
        return
    assert result.reverted
    assert (_but_cursors(drivers), now.attachments) == (before, held)
    failing.fails = lambda _: None
    now, result = await run(transaction, now, ADD)
    assert result.error is None
    assert not any(transaction.drift(now).values())


async def test_a_key_whose_change_failed_is_read_before_its_next_change() -> None:
    drivers = _, _, nftables = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    key, ports = world.ServiceKey("default", "a"), (world.ServicePort("p", world.Protocol.TCP, 80),)
    address = world.parse_address("10.96.0.1")
    nftables.fails = lambda _: "no luck"
    now, result = await transaction.run(now, e.KubeStateChange(((key, world.Service(ports, (address,))),)))
    assert result.error is not None
    assert not result.reverted
    frontend = Frontend(address, world.Protocol.TCP, 80)
    assert now.programmed["nftables"][frontend] is UNKNOWN
    nftables.fails = lambda _: None
    nftables.held[frontend] = "somebody's"  # what it holds can't be known
    changed = world.Service(ports, (address,), created="2026-01-01T00:00:00Z")
    now, result = await transaction.run(now, e.KubeStateChange(((key, changed),)))
    assert result.error is None
    assert not any(transaction.drift(now).values())


async def test_a_driver_that_cannot_be_read_fails_alone() -> None:
    drivers = _, linux, nftables = world.memories()
    linux.blind = True
    transaction = world.transaction(drivers)
    now, result = await transaction.run(world.start(), RESYNC)
    assert result.unsettled() == {"linux"}
    assert nftables.held
    linux.blind = False
    now, result = await transaction.run(now, RESYNC)
    assert result.error is None
    assert not any(transaction.drift(now).values())


async def test_what_is_lost_with_a_renewed_key_is_made_again_at_once() -> None:
    """A link made anew has lost its routes; the driver says so, and the same transaction reads again."""
    drivers = _, linux, _ = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    now, _ = await run(transaction, now, ADD)
    link = next(key for key in linux.held if isinstance(key, LinkKey))
    linux.held[link] = "another"
    one = linux._one

    def remake(key: Any, before: Any, after: Any) -> Outcome:
        outcome = one(key, before, after)
        if key == link and before == "another":
            for lost in [k for k in linux.held if k != link and getattr(k, "space", None) == ADD.netns]:
                del linux.held[lost]
            return Outcome(outcome.value, again=True)
        return outcome

    linux._one = remake  # type: ignore[method-assign]
    now, result = await transaction.run(now, ADD)
    assert result.error is None
    assert not any(transaction.drift(now).values())
    assert result.unsettled() == {"linux"}  # and a resync looks whether more than this pod's was lost


async def test_a_resync_of_one_driver_leaves_the_others_alone() -> None:
    drivers = _, linux, nftables = world.memories()
    transaction = world.transaction(drivers)
    await transaction.run(world.start(), e.Resync(e.ResyncReason.HEALING, drivers=frozenset({"nftables"})))
    assert nftables.held
    assert not linux.held


@pytest.mark.parametrize(
    ("event", "drivers"),
    [
        (e.Resync(e.ResyncReason.COLLECTION, drivers=frozenset(("store", "linux"))), ("store", "linux")),
        (e.Resync(e.ResyncReason.HEALING, drivers=frozenset(("linux",))), ("linux",)),
        (e.Resync(e.ResyncReason.HEALING, drivers=frozenset(("store",))), ("store",)),
        (e.Resync(e.ResyncReason.HEALING, drivers=frozenset(("nftables",))), ("nftables",)),
        (e.Disturbed("linux"), ("linux",)),
        (e.Disturbed("nftables", frozenset((LinkKey("x"),))), ("nftables",)),
        (RESYNC, ("store", "linux", "nftables")),
    ],
    ids=str,
)
async def test_only_who_decides_for_the_drivers_in_question_is_asked(event: e.Event, drivers: tuple[str, ...]) -> None:
    """A GC must not wait for a decision about ten thousand Services that nobody uses."""
    asked: set[str] = set()

    def counted(it: Capability) -> Capability:
        def desired(now: Snapshot, touched: Touched | None) -> Desired:
            asked.add(it.name)
            return it.desired(now, touched)

        return it._replace(desired=desired)

    transaction = Transaction([counted(it) for it in world.CAPABILITIES], world.memories())
    await transaction.run(world.start(), event)
    assert asked == {it.name for it in world.CAPABILITIES if not it.drivers.isdisjoint(drivers)}
    asked.clear()
    Transaction(transaction.capabilities, [it for it in transaction.drivers if it.name in drivers]).drift(world.start())
    assert asked == {it.name for it in world.CAPABILITIES if not it.drivers.isdisjoint(drivers)}


@given(st.lists(world.kube_changes | world.pod_events, max_size=12))
def test_capabilities_decide_for_the_drivers_that_they_name(way: list[e.Event]) -> None:
    assert agent.CAPABILITIES == world.CAPABILITIES
    now = world.start()
    for event in way:
        try:
            now, touched = fold(now, event)
        except e.Refused:
            continue
        for it in world.CAPABILITIES:
            for scope in (touched, EVERYTHING):
                assert it.desired(now, scope).keys() <= it.drivers


async def test_deleting_goes_backwards() -> None:
    drivers = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    now, _ = await run(transaction, now, ADD)
    now, result = await transaction.run(now, e.DeletePod(KEY))
    assert [step.driver for step in result.steps] == ["nftables", "linux", "store"]
    assert not any(transaction.drift(now).values())


async def test_nothing_is_swept_before_all_objects_were_listed() -> None:
    """A manifest is broken at the start: what it wants is not known, and not removed."""
    drivers = _, _, nftables = world.memories()
    key, ports = world.ServiceKey("default", "a"), (world.ServicePort("p", world.Protocol.TCP, 80),)
    address = world.parse_address("10.96.0.1")
    objects = {world.NODE: world.NODES[0], key: world.Service(ports, (address,))}
    transaction = world.transaction(drivers)
    await transaction.run(Snapshot(world.LOCAL), e.Resync(e.ResyncReason.STARTUP, objects))
    held = world.contents(drivers)
    now, _ = await transaction.run(Snapshot(world.LOCAL), e.Resync(e.ResyncReason.STARTUP, {}, whole=False))
    now, _ = await transaction.run(now, RESYNC)
    assert world.contents(drivers) == held
    now, _ = await transaction.run(now, e.KubeStateChange(((key, world.Service(ports, (address,))),)))
    now, result = await transaction.run(now, e.KubeStateChange(((key, None),)))  # what is known to go, goes
    assert result.error is None
    assert Frontend(address, world.Protocol.TCP, 80) not in nftables.held
    now, _ = await transaction.run(now, e.Resync(e.ResyncReason.SOURCE_RECONNECTED, {world.NODE: world.NODES[0]}))
    fresh = world.memories()
    await world.transaction(fresh).run(now, RESYNC)
    assert world.contents(drivers) == world.contents(fresh)


async def test_an_address_that_cannot_be_had_is_stepped_over() -> None:
    """Another tool's route holds it: each ADD fails once for it, and the next one goes on behind it."""
    drivers = _, linux, _ = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    taken = RouteKey("", parse_prefix("10.1.1.2/32"))
    linux.fails = lambda key: "EEXIST" if key == taken else None
    now, result = await run(transaction, now, ADD)
    assert result.error is not None
    now, result = await run(transaction, now, ADD)
    assert result.error is None
    assert now.attachments[KEY].addresses[0] == world.parse_address("10.1.1.3")


async def test_a_driver_is_at_work_though_a_key_of_it_is_refused() -> None:
    """Also after a restart, when that key is all that differs."""
    drivers = _, linux, _ = world.memories()
    transaction = world.transaction(drivers)
    await transaction.run(world.start(), RESYNC)
    refused = next(iter(linux.held))
    del linux.held[refused]
    linux.fails = lambda key: "ENETUNREACH" if key == refused else None
    _, result = await transaction.run(world.start(), RESYNC)
    assert result.unsettled() == {"linux"}
    assert [step.worked() for step in result.steps] == [True, True, True]
    linux.fails = lambda _: "EPERM"
    linux.held.clear()
    _, result = await transaction.run(world.start(), RESYNC)
    assert [step.worked() for step in result.steps] == [True, False, True]


async def test_a_driver_that_breaks_costs_the_others_nothing_and_the_change_is_kept() -> None:
    drivers = _, _, nftables = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), RESYNC)
    key, ports = world.ServiceKey("default", "a"), (world.ServicePort("p", world.Protocol.TCP, 80),)
    read, apply = nftables.read, nftables.apply

    def broken(*_: object) -> Any:
        raise ValueError("a bug")

    nftables.read = nftables.apply = broken  # type: ignore[method-assign]
    service = world.Service(ports, (world.parse_address("10.96.0.1"),))
    now, result = await transaction.run(now, e.KubeStateChange(((key, service),)))
    assert result.unsettled() == {"nftables"}
    now, result = await transaction.run(now, RESYNC)
    assert result.unsettled() == {"nftables"}
    nftables.read, nftables.apply = read, apply  # type: ignore[method-assign]
    now, result = await transaction.run(now, RESYNC)
    assert result.error is None
    assert key in now.services
    assert not any(transaction.drift(now).values())
