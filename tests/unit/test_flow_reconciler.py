"""When connection tracking is looked at, how often, and what becomes of what could not be done."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from podwire.controller.difference import Change, Outcome
from podwire.controller.events import Event, FlowsReconciled, KubeStateChange, Reported, Resync, ResyncReason
from podwire.controller.loop import Controller
from podwire.controller.snapshot import fold
from podwire.controller.transaction import Result, Step, Transaction
from podwire.dataplane import reconciler
from podwire.dataplane.conntrack import messages as m
from podwire.model.addresses import Address
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
from podwire.model.snapshot import Local, Snapshot
from podwire.services.stale import Flow
from tests.unit.test_stale_flows import DNS, ME4, NODE_PORT, A, B, backend, frontend, serving

TO = frontend(DNS)


class Tracking:
    """A table in memory, in the place of the kernel's."""

    name = "conntrack"
    lasting = True

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self.asked: list[m.Query] = []
        self.broken = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.writes = 0

    def read(self, frontends: Mapping[Frontend, Any], everything: bool, _: Callable[[], bool]) -> Iterator[m.Entry]:
        self.asked += (asked := m.queries(frontends, everything))
        if self.broken:
            self.broken -= 1
            raise OSError(105, "No buffer space available")
        self.meanwhile()
        for flow in self.flows:
            if any((flow.to.family, flow.to.protocol) == query[:2] for query in asked):
                yield m.Entry(flow, b"")

    def delete(self, entries: Sequence[m.Entry]) -> tuple[list[m.Entry], OSError | None]:
        for it in entries:
            self.flows.remove(it.flow)
        return list(entries), None


class Notes:
    """In memory, in the place of the kernel's."""

    def __init__(self) -> None:
        self.held: dict[Frontend, frozenset[Backend]] = {}
        self.open: set[Frontend] = set()
        self.broken = 0

    def read(self) -> dict[Frontend, frozenset[Backend]]:
        if self.broken:
            self.broken -= 1
            raise OSError(105, "No buffer space available")
        return dict(self.held)

    def recall(self, notes: Mapping[Frontend, frozenset[Backend]]) -> None:
        self.open |= notes.keys()

    def forget(self, frontends: Iterable[Frontend]) -> None:
        for it in frontends:
            self.open.discard(it)
            self.held.pop(it, None)


class World:
    def __init__(self) -> None:
        self.tracking, self.other, self.notes = Tracking(), Tracking(), Notes()
        self.controller = Controller(Snapshot(Local("one"), whole=True), Transaction((), ()))
        self.flows = reconciler.Reconciler((self.tracking, self.other), self.notes, self.controller)

    def hold(self, key: Frontend, value: Slots | None, error: str | None = None) -> None:
        """As after a transaction that changed nftables so."""
        before = self.controller.snapshot.programmed.get("nftables", {}).get(key)
        outcome = Outcome(value, error)
        self.note(key, outcome)
        self.flows.follow(_result(KubeStateChange(()), {key: Change(before, value)}, {key: outcome}))

    def note(self, key: Frontend, outcome: Outcome) -> None:
        self.controller.snapshot, _ = fold(self.controller.snapshot, Reported("nftables", {key: outcome}))


def _result(event: Event, changes: dict[Any, Change], outcomes: dict[Any, Outcome] | None = None) -> Result:
    return Result(event, (Step("nftables", changes, outcomes or {}, len(changes)),))


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """At work, with no rest between looks."""
    for name in ("AGAIN", "REST", "SHARE", "PATIENCE"):
        monkeypatch.setattr(reconciler, name, 0.0)
    monkeypatch.setattr(reconciler, "RETRY_DELAYS", (0.0,))
    found = World()
    tasks = [asyncio.create_task(found.controller.run()), asyncio.create_task(found.flows.run())]
    yield found
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def reported(world: World) -> list[str]:
    """The records of what was deleted, once nothing is left to do."""
    await world.flows.until_quiet()
    await world.controller.submit(KubeStateChange(()))
    return [it.event for it in world.controller.history if it.event.startswith(FlowsReconciled.__name__)]


async def test_a_change_is_looked_after_twice(world: World) -> None:
    world.hold(TO, serving(A, B))
    world.hold(TO, serving(B))
    world.tracking.flows = [Flow(TO, backend(A), ME4), Flow(TO, backend(B), ME4)]
    assert await reported(world) == ["FlowsReconciled 1 deleted"]
    assert world.tracking.flows == [Flow(TO, backend(B), ME4)]
    assert world.flows.looks == 2
    assert world.controller.tally.flows_deleted == {"UDP": 1}


async def test_an_entry_that_was_made_behind_the_first_look_s_back_goes_with_the_second(world: World) -> None:
    late = iter([lambda: None, lambda: world.tracking.flows.append(Flow(TO, backend(A), ME4))])
    world.tracking.meanwhile = lambda: next(late)()
    world.hold(TO, serving(A))
    world.hold(TO, serving(B))
    assert await reported(world) == ["FlowsReconciled 1 deleted"]
    assert world.tracking.flows == []


@pytest.mark.parametrize("broken", ["tracking", "other"])
async def test_what_one_memory_can_t_do_keeps_the_other_from_nothing(world: World, broken: str) -> None:
    sick, well = world.tracking, world.other
    if broken == "other":
        sick, well = well, sick
    sick.broken = 1
    sick.flows, well.flows = [Flow(TO, backend(A), ME4)], [Flow(TO, backend(A), ME4)]
    world.hold(TO, serving(A))
    world.hold(TO, serving(B))
    first, second = await world.controller.next_record(), await world.controller.next_record()
    assert first.error == "conntrack: [Errno 105] No buffer space available"
    assert [first.event, second.event] == ["FlowsReconciled 1 deleted"] * 2
    assert (world.tracking.flows, world.other.flows) == ([], [])


async def test_a_burst_of_changes_shares_its_looks(world: World) -> None:
    for number in range(100):
        world.hold(TO, serving(B if number % 2 else A))
        world.hold(frontend(NODE_PORT), serving(A if number % 2 else B))
    await world.flows.until_quiet()
    assert (world.flows.looks, len(world.tracking.asked)) == (2, 4)


WEB = Frontend(TO.address, Protocol.TCP, 80)


def change(world: World, key: Frontend) -> None:
    world.hold(key, serving(A))
    world.hold(key, serving(B))


def many(world: World) -> None:
    world.flows.follow(_result(KubeStateChange(()), {it: Change(serving(A), None) for it in MANY}))


def resync(world: World) -> None:
    world.flows.follow(_result(Resync(ResyncReason.ON_DEMAND), {}))


@pytest.mark.parametrize("hurry", [lambda world: change(world, TO), resync, many], ids=["UDP", "a resync", "many"])
async def test_the_first_change_of_tcp_alone_is_looked_after_at_once_and_those_after_it_with_whatever_hurries(
    world: World, monkeypatch: pytest.MonkeyPatch, hurry: Callable[[World], None]
) -> None:
    monkeypatch.setattr(reconciler, "PATIENCE", 3600.0)
    looks, loop = asyncio.Semaphore(0), asyncio.get_running_loop()
    world.other.meanwhile = lambda: loop.call_soon_threadsafe(looks.release)
    change(world, WEB)
    await looks.acquire()
    for _ in range(3):
        change(world, WEB)
        await asyncio.sleep(0.01)  # far longer than a look takes: what does not come has no event
    assert (looks.locked(), world.flows.looks) == (True, 1)
    hurry(world)
    await looks.acquire()
    assert m.Query(WEB.family, Protocol.TCP, 80) in world.other.asked[1:] or hurry is resync


async def test_changes_of_tcp_alone_are_looked_after_twice_once_their_rest_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "PATIENCE", 0.01)
    change(world, WEB)
    await world.flows.until_quiet()
    assert world.flows.looks == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, Slots(None, (), refused=True)), (serving(A), serving(A, B)), (Slots(None, (), refused=True), None)],
    ids=["comes without backends", "gets another backend", "goes without backends"],
)
async def test_what_leaves_no_flow_stale_is_not_looked_after(world: World, before: Any, after: Any) -> None:
    world.note(TO, Outcome(before))
    world.hold(TO, after)
    assert await reported(world) == []
    assert world.flows.looks == 0


async def test_a_backend_that_came_while_the_table_was_read_keeps_its_flows(world: World) -> None:
    def meanwhile() -> None:
        world.note(TO, Outcome(serving(A, B)))

    world.hold(TO, serving(A))
    world.hold(TO, serving(B))
    world.tracking.flows, world.tracking.meanwhile = [Flow(TO, backend(A), ME4)], meanwhile
    assert await reported(world) == []
    assert world.tracking.flows == [Flow(TO, backend(A), ME4)]


async def test_a_failure_is_told_once_and_tried_again(world: World) -> None:
    world.tracking.broken = 3
    world.tracking.flows = [Flow(TO, backend(A), ME4)]
    world.hold(TO, serving(A))
    world.hold(TO, serving(B))
    while world.tracking.flows:
        await world.controller.next_record()
    assert await reported(world) == ["FlowsReconciled 0 deleted", "FlowsReconciled 1 deleted"]
    assert next(it.error for it in world.controller.history) == "conntrack: [Errno 105] No buffer space available"


async def test_a_frontend_whose_change_failed_waits_until_it_is_known(world: World) -> None:
    world.hold(TO, serving(A))
    world.hold(TO, None, error="no")
    world.tracking.flows = [Flow(TO, backend(A), ME4)]
    assert await reported(world) == []
    world.note(TO, Outcome(None))
    world.controller.snapshot = Snapshot(Local("one"), programmed=world.controller.snapshot.programmed)
    world.flows.follow(_result(Resync(ResyncReason.HEALING), {}))
    assert await reported(world) == ["FlowsReconciled 1 deleted"]


async def test_a_resync_looks_at_everything(world: World) -> None:
    world.note(TO, Outcome(serving(B)))
    gone = Backend(backend(A).address, 1)
    world.tracking.flows = [Flow(TO, gone, ME4), Flow(frontend("9.9.9.9:53"), backend("9.9.9.9:53"), ME4)]
    world.flows.follow(_result(Resync(ResyncReason.ON_DEMAND), {}))
    assert await reported(world) == ["FlowsReconciled 1 deleted"]
    assert len(world.tracking.asked) == 12


# --- what an earlier agent was killed over -----------------------------------------------------

EXTERNAL = frontend("203.0.113.5:53")
NOTED = {EXTERNAL: frozenset({backend(A)})}


async def test_what_is_noted_is_looked_at_twice_by_a_start_and_then_forgotten(world: World) -> None:
    late = iter([lambda: None, lambda: world.tracking.flows.append(Flow(EXTERNAL, backend(A), ME4))])
    world.tracking.meanwhile = lambda: next(late, lambda: None)()
    other = Flow(EXTERNAL, backend("172.17.0.2:53"), ME4)
    world.notes.held, world.tracking.flows = dict(NOTED), [other]
    world.flows.follow(_result(Resync(ResyncReason.STARTUP), {}))
    assert await reported(world) == ["FlowsReconciled 1 deleted"]
    assert (world.tracking.flows, world.notes.held) == ([other], {})


@pytest.mark.parametrize("broken", ["the notes", "connection tracking"])
async def test_a_note_stays_until_its_flows_could_be_looked_at(world: World, broken: str) -> None:
    held = []
    sick = world.notes if broken == "the notes" else world.tracking
    sick.broken = 2
    world.other.meanwhile = lambda: held.append(dict(world.notes.held))
    world.notes.held, world.tracking.flows = dict(NOTED), [Flow(EXTERNAL, backend(A), ME4)]
    world.flows.follow(_result(Resync(ResyncReason.STARTUP), {}))
    while world.tracking.flows:
        await world.controller.next_record()
    await reported(world)
    assert (held[:3], world.notes.held) == ([NOTED] * 3, {})


async def test_a_note_whose_frontend_is_in_force_costs_its_flows_nothing(world: World) -> None:
    world.note(EXTERNAL, Outcome(serving(A)))
    world.notes.held, world.tracking.flows = dict(NOTED), [Flow(EXTERNAL, backend(A), ME4)]
    world.flows.follow(_result(Resync(ResyncReason.STARTUP), {}))
    assert await reported(world) == []
    assert (len(world.tracking.flows), world.notes.held) == (1, {})


async def test_a_note_of_a_frontend_that_is_not_known_waits(world: World) -> None:
    world.hold(EXTERNAL, serving(A))
    world.hold(EXTERNAL, None, error="no")
    world.notes.held, world.notes.open = dict(NOTED), set(NOTED)
    await reported(world)
    assert world.notes.held == NOTED
    world.hold(EXTERNAL, None)
    await reported(world)
    assert world.notes.held == {}


# --- backends that serve whom they have --------------------------------------------------------

DNS_KEY, STAY = ServiceKey("default", "dns"), Flow(TO, backend(A), ME4)


def _objects(leaving: bool, serving: bool = True, service: bool = True) -> KubeStateChange:
    """A Service whose backend A may be on its way out, and whose backend B is ready."""
    out = Member(backend(A).address, ready=not leaving, serving=serving, terminating=leaving)
    there = BackendSlice(DNS_KEY, (BackendPort("", Protocol.UDP, 53),), (out, Member(backend(B).address)))
    it = Service((ServicePort("", Protocol.UDP, 53),), (TO.address,)) if service else None
    return KubeStateChange(((DNS_KEY, it), (SliceKey("default", "dns"), there)))


def _happens(world: World, event: KubeStateChange) -> None:
    """What nftables holds stays as it is."""
    world.controller.snapshot, _ = fold(world.controller.snapshot, event)
    world.flows.follow(Result(event))


@pytest.mark.parametrize("restarts", [False, True], ids=["one agent", "another agent meanwhile"])
@pytest.mark.parametrize("service", [True, False], ids=["it serves no more", "the Service goes"])
async def test_a_flow_stays_with_a_backend_on_its_way_out_until_that_serves_no_more(
    world: World, restarts: bool, service: bool
) -> None:
    _happens(world, _objects(leaving=False))
    world.hold(TO, serving(A, B))
    world.tracking.flows, world.other.flows = [STAY], [STAY]
    world.other.lasting = False
    noted = {TO: frozenset({backend(A)})}  # an agent that is killed meanwhile finds it, whatever becomes of the Service
    world.notes.held, world.notes.open = dict(noted), set(noted)
    _happens(world, _objects(leaving=True))
    if restarts:
        world.note(TO, Outcome(serving(B)))
        world.flows.follow(_result(Resync(ResyncReason.STARTUP), {}))
    else:
        world.hold(TO, serving(B))
    assert await reported(world) == ["FlowsReconciled 1 deleted"]
    assert (world.tracking.flows, world.other.flows) == ([STAY], [])
    looks = world.flows.looks
    _happens(world, KubeStateChange(((ServiceKey("default", "other"), Service(())),)))
    await reported(world)
    assert (world.tracking.flows, world.flows.looks, world.notes.held) == ([STAY], looks, noted)
    _happens(world, _objects(leaving=True, serving=False, service=service))
    await reported(world)
    assert (world.tracking.flows, world.notes.held) == ([], {})
    looks = world.flows.looks
    _happens(world, _objects(leaving=False))
    await reported(world)
    assert world.flows.looks == looks, "nobody is kept any more"


# --- many at once ------------------------------------------------------------------------------

MANY = [Frontend(Address((0x0A600000 + n).to_bytes(4, "big")), Protocol.UDP, 53) for n in range(4 * reconciler.TAKEN)]


@pytest.mark.parametrize("event", [KubeStateChange(()), Resync(ResyncReason.ON_DEMAND)], ids=["a change", "a resync"])
async def test_a_change_of_many_frontends_is_gone_through_in_slices(
    world: World, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two turns of the event loop never more than one of them, and none is forgotten."""
    since_turn, longest, add = 0, 0, reconciler.Work.add

    def counted(self: reconciler.Work, it: Frontend, gone: frozenset[Backend]) -> None:
        nonlocal since_turn, longest
        since_turn += 1
        longest = max(longest, since_turn)
        add(self, it, gone)

    async def turns() -> None:
        nonlocal since_turn
        while True:
            since_turn = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(reconciler.Work, "add", counted)
    turning = asyncio.create_task(turns())
    world.tracking.flows = [Flow(MANY[-1], backend(A), ME4), Flow(MANY[0], backend(A), ME4)]
    world.flows.follow(_result(event, {it: Change(serving(A), None) for it in MANY}))
    assert await reported(world) == ["FlowsReconciled 2 deleted"]
    turning.cancel()
    assert 0 < longest <= reconciler.TAKEN


async def test_no_note_is_forgotten_while_a_change_has_not_been_gone_through(world: World) -> None:
    held: list[bool] = []
    world.notes.held, world.notes.open = {MANY[-1]: frozenset({backend(A)})}, {MANY[-1]}
    world.tracking.meanwhile = lambda: held.append(MANY[-1] in world.notes.held)
    world.flows.follow(_result(KubeStateChange(()), {it: Change(serving(A), None) for it in MANY}))
    await reported(world)
    assert (held[:2], world.notes.held) == ([True, True], {})
