"""Long work in slices: by weight, whole, in order; and nothing tried again at once that has no chance."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controller.difference import Change, Difference, Outcome, Scope
from podwire.controller.events import KubeStateChange, Resync, ResyncReason, Shutdown
from podwire.controller.loop import Controller
from podwire.controller.slicing import slices
from podwire.dataplane.nftables.driver import NFTables
from podwire.model.addresses import parse_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Backend, Frontend, Slots
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.sources.batches import MEMBERS, MOST_CHANGES, batches
from tests.unit import world


@given(st.lists(st.integers(1, 30)), st.integers(1, 20))
def test_slices_are_whole_in_order_and_as_long_as_they_may_be(weights: list[int], most: int) -> None:
    parts = list(slices(weights, lambda weight: weight, most))
    assert [weight for part in parts for weight in part] == weights
    assert all(part and (sum(part) <= most or len(part) == 1) for part in parts)
    assert all(sum(one) + after[0] > most for one, after in itertools.pairwise(parts))


def members(count: int) -> BackendSlice:
    held = tuple(Member(parse_address(f"10.2.{n >> 8}.{n & 255}")) for n in range(count))
    return BackendSlice(ServiceKey("default", "a"), (BackendPort("p", Protocol.TCP, 80),), held)


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        pytest.param([0] * 600, [250, 250, 100], id="objects count"),
        pytest.param([1000] * 8, [2, 2, 2, 2], id="members count"),
        pytest.param([MEMBERS * MOST_CHANGES * 3, 0], [1, 1], id="one that is too big is an event of its own"),
        pytest.param([], [], id="nothing is no event"),
    ],
)
def test_events_are_cut_by_what_they_hold(sizes: list[int], lengths: list[int]) -> None:
    changes: list[tuple[ObjectKey, Object | None]] = [
        (SliceKey("default", f"s{n}"), members(size) if size else None) for n, size in enumerate(sizes)
    ]
    parts = list(batches(changes))
    assert [len(part) for part in parts] == lengths
    assert [change for part in parts for change in part] == changes


def test_a_frontend_weighs_as_much_as_its_elements() -> None:
    held = Slots(4, tuple(Backend(parse_address(f"10.2.0.{n}"), 80) for n in range(4)))
    weight = NFTables.weight
    driver = NFTables.__new__(NFTables)
    assert [weight(driver, change) for change in (Change(None, held), Change(held, held), Change(held, None))] == [
        5,
        9,
        5,
    ]
    assert weight(driver, Change(None, True)) == 1


async def test_what_has_no_room_is_not_tried_again_at_once_and_costs_nobody_else() -> None:
    """Of the kernel's memory. Each change once: to read and to send it all again would take as long as before."""
    drivers = _, _, nftables = world.memories()
    transaction = world.transaction(drivers)
    now, _ = await transaction.run(world.start(), Resync(ResyncReason.STARTUP))
    tried: list[Frontend] = []
    real = nftables.apply

    def full(difference: Difference) -> dict[object, Outcome]:
        done = real({key: change for key, change in difference.items() if not isinstance(key, Frontend)})
        tried.extend(key for key in difference if isinstance(key, Frontend))
        return done | {
            key: Outcome(error=f"{key}: ENOMEM", later=True) for key in difference if isinstance(key, Frontend)
        }

    nftables.apply = full  # type: ignore[method-assign]
    services = tuple(
        (
            ServiceKey("default", f"s{n}"),
            Service((ServicePort("p", Protocol.TCP, 80),), (parse_address(f"10.96.0.{n}"),)),
        )
        for n in range(1, 8)
    )
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    _, result = await transaction.run(now, KubeStateChange(services))
    beside.cancel()
    assert "ENOMEM" in (result.error or "")
    assert len(tried) == len(set(tried)) == 7
    assert turns >= 3
    assert result.unsettled() == {"nftables"}


@pytest.mark.parametrize("asked", ["resync", "verify"])
async def test_the_loop_turns_while_all_is_read(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """A reader that waits for a turn of the loop gets it: it does not sit in the loop itself."""
    drivers = world.memories()
    controller = Controller(world.start(), world.transaction(drivers))
    running = asyncio.create_task(controller.run())
    assert (await controller.submit(Resync(ResyncReason.STARTUP))).error is None
    turned, seen, loop = threading.Event(), [], asyncio.get_running_loop()
    for driver in drivers[1:]:
        read = driver.read

        def waiting(scope: Scope, read: Callable[[Scope], dict[Any, Any]] = read) -> dict[Any, Any]:
            turned.clear()
            loop.call_soon_threadsafe(turned.set)
            seen.append(turned.wait(PATIENCE))
            return read(scope)

        monkeypatch.setattr(driver, "read", waiting)
    if asked == "verify":
        assert await controller.verify() == {}
    else:
        result = await controller.submit(Resync(ResyncReason.ON_DEMAND))
        assert (result.error, [step.difference for step in result.steps]) == (None, [{}, {}, {}])
    assert seen == [True, True]
    await controller.submit(Shutdown())
    await running


PATIENCE = 10.0
"""Seconds: a limit against hanging, never a measure."""
