"""The loop: order of events, when an ADD is answered, and that nothing ends it but Shutdown."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from podwire.controller import history as history_module
from podwire.controller import loop as loop_module
from podwire.controller.difference import Scope
from podwire.controller.events import (
    AddPod,
    DeletePod,
    Event,
    KubeStateChange,
    Refusal,
    Resync,
    ResyncReason,
    Shutdown,
)
from podwire.controller.loop import Controller
from podwire.model.network import Frontend
from podwire.model.objects import AttachmentKey, NodeKey, PodKey, ServiceKey, SliceKey
from podwire.model.snapshot import Touched
from podwire.pods import wiring
from tests.unit import world
from tests.unit.world import Memory

KEY = AttachmentKey("s1", "eth0")
ADD = AddPod(KEY, PodKey("default", "a"), "/run/netns/s1")


class Bench:
    def __init__(self) -> None:
        self.drivers = self.store, self.linux, self.nftables = world.memories()
        self.controller = Controller(world.start(), world.transaction(self.drivers), clock=lambda: 1000.0)

    def events(self) -> list[str]:
        return [record.event.split()[0] for record in self.controller.history]

    async def until(self, event: str) -> None:
        while event not in [record.event for record in self.controller.history]:
            await self.controller.next_record()


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    running = asyncio.create_task(bench.controller.run())
    assert (await bench.controller.submit(Resync(ResyncReason.STARTUP))).error is None
    yield bench
    await bench.controller.submit(Shutdown())
    await running


async def test_an_add_is_confirmed_before_what_waits_and_before_its_answer(bench: Bench) -> None:
    submit = bench.controller.submit
    add, delete = submit(ADD), submit(DeletePod(AttachmentKey("other", "eth0")))
    add.add_done_callback(lambda _: confirmed.append(bench.store.held[KEY].confirmed))
    confirmed: list[bool] = []
    await asyncio.gather(add, delete)
    assert bench.events()[-3:] == ["AddPod", "PodWired", "DeletePod"]
    assert confirmed == [True]


async def test_an_add_that_cannot_be_confirmed_is_undone_before_its_answer(bench: Bench) -> None:
    bench.store.fails = lambda key: (
        "full" if key in bench.store.held and not bench.events()[-1].startswith("PodW") else None
    )
    result = await bench.controller.submit(ADD)
    assert result.error is not None
    assert "full" in result.error
    assert KEY not in bench.controller.snapshot.attachments
    assert KEY not in bench.store.held
    assert not [key for key in bench.linux.held if getattr(key, "space", "")]


async def test_a_refused_request_is_answered_and_recorded(bench: Bench) -> None:
    await bench.controller.submit(KubeStateChange(((NodeKey("one"), None),)))
    result = await bench.controller.submit(ADD)
    assert result.refusal is Refusal.NOT_READY
    record = list(bench.controller.history)[-1]
    assert (record.error, record.time) == ("node one has no spec.podCIDRs yet", 1000.0)


async def test_a_bug_in_an_event_is_answered_and_the_loop_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "HEALING_DELAYS", (0.0,))

    def broken(*_: object) -> object:
        raise KeyError("bug")

    place, bench.linux.place = bench.linux.place, broken  # type: ignore[method-assign]
    result = await bench.controller.submit(ADD)
    assert result.error == "linux: internal error: KeyError('bug')"
    bench.linux.place = place  # type: ignore[method-assign]
    await bench.until("Resync healing of linux")
    assert (await bench.controller.submit(ADD)).error is None
    assert await bench.controller.verify() == {}


class Made(dict[Any, Any]):
    """One that can be watched."""


async def test_what_an_event_came_to_is_let_go_before_the_next_one_comes(bench: Bench) -> None:
    capability = world.CAPABILITIES[0]
    made: list[weakref.ref[Made]] = []

    def watched(*of: Any) -> dict[str, dict[Any, Any]]:
        found = {driver: Made(wanted) for driver, wanted in capability.desired(*of).items()}
        made.extend(map(weakref.ref, found.values()))
        return dict(found)

    bench.controller._transaction.capabilities = (capability._replace(desired=watched), *world.CAPABILITIES[1:])
    assert (await bench.controller.submit(Resync(ResyncReason.ON_DEMAND))).error is None
    await asyncio.sleep(0)
    assert made
    assert [it() for it in made] == [None] * len(made)


def _bug(*_: object) -> object:
    raise KeyError("bug")


@pytest.mark.parametrize(
    ("where", "what"),
    [
        pytest.param(lambda it: it, "_clock", id="the clock"),
        pytest.param(lambda it: it.history, "add", id="the history"),
        pytest.param(lambda _: history_module, "record_of", id="a record's words"),
        pytest.param(lambda it: it.tally, "add", id="the tally"),
        pytest.param(lambda _: AddPod, "__str__", id="an event's name"),
        pytest.param(lambda _: loop_module.log, "log", id="the log"),
        pytest.param(lambda it: it, "_heal_later", id="the healing"),
        pytest.param(lambda it: it, "_follow_up", id="the follow-up"),
    ],
)
@pytest.mark.parametrize("fails", [False, True], ids=["of an ADD", "of a failed ADD"])
async def test_a_bug_beside_an_event_costs_no_answer_and_no_later_event(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: Callable[[Controller], object], what: str, fails: bool
) -> None:
    bench.linux.fails = lambda key: "no luck" if fails and getattr(key, "space", "") else None
    with monkeypatch.context() as broken:
        broken.setattr(where(bench.controller), what, _bug)
        result = await bench.controller.submit(ADD)
        assert (result.error is not None) == (fails or what == "_follow_up")
    bench.linux.fails = lambda _: None
    waiting = bench.controller.next_record()
    assert (await bench.controller.submit(ADD)).error is None
    assert (await waiting).event == str(ADD)
    assert await bench.controller.verify() == {}


SERVICE, SLICE = ServiceKey("default", "web"), SliceKey("default", "web-1")


@pytest.mark.parametrize(
    ("event", "concerned"),
    [
        pytest.param(KubeStateChange(((SERVICE, None), (SLICE, None))), False, id="a Service and its slice"),
        pytest.param(KubeStateChange(((SERVICE, None), (NodeKey("far"), None))), True, id="a node beside it"),
        pytest.param(KubeStateChange(((PodKey("default", "a"), None),)), True, id="a pod"),
        pytest.param(KubeStateChange(()), True, id="nothing"),
        pytest.param(Resync(ResyncReason.ON_DEMAND), True, id="a resync"),
        pytest.param(ADD, True, id="an ADD"),
    ],
)
async def test_who_looks_after_pods_hears_of_no_event_of_services_alone(
    bench: Bench, event: Event, concerned: bool
) -> None:
    every, of_pods = bench.controller.next_record(), bench.controller.next_of_pods()
    await bench.controller.submit(event)
    assert (await every).event == str(event)
    assert of_pods.done() == concerned
    await bench.controller.submit(DeletePod(KEY))
    assert (await of_pods).event == (str(event) if concerned else str(DeletePod(KEY)))


async def test_what_cannot_be_told_is_a_record_that_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for an event to end learns that it has."""
    monkeypatch.setattr(history_module, "record_of", _bug)
    waiting = bench.controller.next_record()
    await bench.controller.submit(Resync(ResyncReason.ON_DEMAND))
    record = await waiting
    assert (record.event, record.error) == ("Resync", "internal error: can't be told: KeyError('bug')")


async def test_failures_lead_to_one_healing_resync_of_what_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "HEALING_DELAYS", (0.3,))
    bench.nftables.fails = lambda _: "no luck"
    key, ports = world.ServiceKey("default", "a"), (world.ServicePort("p", world.Protocol.TCP, 80),)
    for created in ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"):
        service = world.Service(ports, (world.parse_address("10.96.0.1"),), created=created)
        assert (await bench.controller.submit(KubeStateChange(((key, service),)))).error is not None
    bench.nftables.fails = lambda _: None
    await bench.until("Resync healing of nftables")
    assert bench.events().count("Resync") == 2
    assert await bench.controller.verify() == {}


@pytest.mark.parametrize("failures", [1, 3, 7], ids=lambda n: f"{n} in a row")
async def test_healing_waits_longer_each_time_and_starts_anew_after_success(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    waits: list[float] = []
    running = asyncio.get_running_loop()
    real = running.call_later

    def soon(delay: float, callback, *args):  # type: ignore[no-untyped-def]
        waits.append(delay)
        return real(0, callback, *args)

    bench.nftables.fails = lambda _: "no luck" if len(waits) < failures else None
    monkeypatch.setattr(running, "call_later", soon)
    key, service = (
        world.ServiceKey("default", "a"),
        world.Service((world.ServicePort("p", world.Protocol.TCP, 80),), (world.parse_address("10.96.0.1"),)),
    )
    await bench.controller.submit(KubeStateChange(((key, service),)))
    while not list(bench.controller.history)[-1].event.startswith("Resync") or list(bench.controller.history)[-1].error:
        await bench.controller.next_record()
    delays = [*loop_module.HEALING_DELAYS, *[loop_module.HEALING_DELAYS[-1]] * 10]
    assert waits == delays[:failures]
    assert await bench.controller.verify() == {}


def services(*numbers: int) -> KubeStateChange:
    """One comes for each number; for each negative one goes."""
    ports = (world.ServicePort("p", world.Protocol.TCP, 80),)
    return KubeStateChange(
        tuple(
            (
                world.ServiceKey("default", f"s{abs(n)}"),
                world.Service(ports, (world.parse_address(f"10.96.0.{n}"),)) if n > 0 else None,
            )
            for n in numbers
        )
    )


async def test_what_finds_no_room_is_refused_until_something_goes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no healing, no resync and no other Service anything, and is no drift; what it holds is known."""
    monkeypatch.setattr(loop_module, "ROOM_DELAY", 0)
    bench.nftables.most = 3
    result = await bench.controller.submit(services(1, 2, 3, 4, 5))
    assert "ENFILE" in (result.error or "")
    assert bench.controller.snapshot.waiting["nftables"] == {
        Frontend(world.parse_address(f"10.96.0.{n}"), world.Protocol.TCP, 80) for n in (4, 5)
    }
    assert (await bench.controller.submit(services(6))).error is not None
    assert (await bench.controller.submit(Resync(ResyncReason.ON_DEMAND))).error is not None
    assert await bench.controller.verify() == {}
    assert len(bench.controller.snapshot.waiting["nftables"]) == 3
    await bench.controller.submit(services(-1, -2))
    await bench.until("RoomMade nftables")
    assert bench.nftables.frontends() == 3
    assert len(bench.controller.snapshot.waiting["nftables"]) == 1
    await bench.controller.submit(services(-3, -4, -5))
    while bench.controller.snapshot.waiting:
        await bench.controller.next_record()
    assert bench.nftables.frontends() == 1
    assert bench.controller.tally.healings == 0
    assert await bench.controller.verify() == {}


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_what_goes_makes_room_for_what_comes_with_it(bench: Bench, most: int) -> None:
    bench.nftables.most = most
    assert (await bench.controller.submit(services(*range(1, most + 1)))).error is None
    gone, come = range(-most, 0), range(10, 10 + most)
    assert (await bench.controller.submit(services(*come, *gone))).error is None
    assert bench.nftables.frontends() == most
    assert not bench.controller.snapshot.waiting


async def test_drivers_are_in_sync_once_a_resync_has_brought_them_to_work() -> None:
    bench = Bench()
    bench.linux.blind = True
    running = asyncio.create_task(bench.controller.run())
    assert bench.controller.unsynced == {"store", "linux", "nftables"}
    await bench.controller.submit(Resync(ResyncReason.STARTUP))
    assert bench.controller.unsynced == {"linux"}
    bench.linux.blind = False
    await bench.until("Resync healing of linux")
    assert bench.controller.unsynced == frozenset()
    await bench.controller.submit(Shutdown())
    await running


async def test_a_driver_that_can_do_nothing_is_broken_until_a_resync_has_mended_it(bench: Bench) -> None:
    """One refused key is none of that: the rest of what it holds works."""
    key, service = (
        world.ServiceKey("default", "a"),
        world.Service((world.ServicePort("p", world.Protocol.TCP, 80),), (world.parse_address("10.96.0.1"),)),
    )
    refused = Frontend(service.cluster_ips[0], world.Protocol.TCP, 80)
    bench.nftables.fails = lambda it: "no room" if it == refused else None
    await bench.controller.submit(KubeStateChange(((key, service),)))
    await bench.until("Resync healing of nftables")
    assert bench.controller.broken == frozenset()
    bench.nftables.blind = True
    await bench.controller.submit(Resync(ResyncReason.ON_DEMAND))
    assert bench.controller.broken == {"nftables"}
    bench.nftables.blind, bench.nftables.fails = False, lambda _: None
    while bench.controller.broken:
        await bench.controller.next_record()
    assert await bench.controller.verify() == {}


def test_memory_is_as_strict_as_the_kernel() -> None:
    driver = Memory("linux")
    assert driver._one("a", 1, 2).error == "a: ENOENT"
    assert driver._one("a", None, 1).value == 1
    assert driver._one("a", None, 1).error == "a: EEXIST"
    assert driver._one("a", 1, None).error is None
    assert driver.held == {}


async def test_a_reverted_failure_heals_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ADD that fails for what others did to the network (its table is gone) tells that the network wants a look."""
    monkeypatch.setattr(loop_module, "HEALING_DELAYS", (0.0,))
    bench.nftables.held.clear()
    bench.nftables.fails = lambda _: "ENOENT" if not bench.nftables.held else None
    assert (await bench.controller.submit(ADD)).error is not None
    bench.nftables.fails = lambda _: None
    await bench.until("Resync healing of nftables")
    assert await bench.controller.verify() == {}


async def test_a_driver_that_fails_for_ever_does_not_delay_the_healing_of_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "HEALING_DELAYS", (0.0, 3600.0))
    bench.linux.fails = lambda key: "ENETUNREACH" if key in refused else None
    refused = {next(key for key in bench.linux.held)}
    bench.linux.held.clear()
    await bench.controller.submit(Resync(ResyncReason.ON_DEMAND))
    await bench.until("Resync healing of linux")  # and the next one is an hour away
    bench.nftables.held.clear()
    bench.nftables.fails = lambda _: "no luck"
    key, ports = world.ServiceKey("default", "a"), (world.ServicePort("p", world.Protocol.TCP, 80),)
    service = world.Service(ports, (world.parse_address("10.96.0.1"),))
    await bench.controller.submit(KubeStateChange(((key, service),)))
    bench.nftables.fails = lambda _: None
    await bench.until("Resync healing of nftables")


async def test_a_check_of_a_pod_reads_what_is_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others there are, and whatever is wrong with them."""
    other = AttachmentKey("s2", "eth0")
    for event in (ADD, AddPod(other, PodKey("default", "b"), "/run/netns/s2")):
        assert (await bench.controller.submit(event)).error is None
    own, now = Touched(attachments=frozenset((KEY,))), bench.controller.snapshot
    mine, theirs = wiring.desired(now, own), wiring.desired(now, Touched(attachments=frozenset((other,))))
    scopes: dict[str, Scope] = {}
    for driver in bench.drivers:

        def read(scope: Scope, name: str = driver.name, read: Callable[[Scope], dict[Any, Any]] = driver.read) -> Any:
            scopes[name] = scope
            return read(scope)

        monkeypatch.setattr(driver, "read", read)
    assert not any((await bench.controller.check(own)).values())
    assert {name: set(scope.keys or ()) for name, scope in scopes.items()} == {name: set(mine[name]) for name in mine}
    assert {space for scope in scopes.values() for space in scope.spaces} == {"/run/netns/s1"}
    for name, drivers in (("linux", bench.linux), ("nftables", bench.nftables)):
        del drivers.held[next(key for key in theirs[name] if key not in mine[name])]
    assert not any((await bench.controller.check(own)).values())
    del bench.linux.held[next(iter(mine["linux"]))]
    found = await bench.controller.check(own)
    assert set(found["linux"]) == {next(iter(mine["linux"]))}
