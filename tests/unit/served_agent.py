"""A node with a bit of everything, folded by the real fold, and a strict stand-in for its controller."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from podwire import views
from podwire.admin import server as admin
from podwire.admin.announcing import Announcers
from podwire.controller.difference import Difference, Outcome
from podwire.controller.events import AddPod, Event, PodWired, Reported, Resync, ResyncReason
from podwire.controller.history import Record
from podwire.controller.snapshot import fold
from podwire.controller.tally import Tally
from podwire.controller.transaction import Result
from podwire.explain.packets import explain_packet
from podwire.explain.places import places
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.network import Backend, Frontend, Slots
from podwire.model.objects import (
    AttachmentKey,
    BackendPort,
    BackendSlice,
    Member,
    Node,
    NodeKey,
    PodKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.snapshot import Local, Snapshot
from podwire.pods.wiring import wiring
from podwire.statistics.collector import PodCounts
from podwire.statistics.counted import COUNTS
from podwire.statistics.kept import ServiceTotals
from podwire.statistics.totals import Counts, add, nothing
from podwire.trace import answer
from podwire.trace.asked import Asked
from podwire.trace.views import TraceView
from podwire.trace.words import Seen, told

WEB, DNS, EMPTY, COPY = (ServiceKey("shop", name) for name in ("web", "dns", "empty", "copy"))
FRONT, BACK = AttachmentKey("sandbox-front", "eth0"), AttachmentKey("sandbox-back", "eth0")


def service(created: str, *addresses: str, protocol: Protocol = Protocol.TCP, port: int = 80) -> Service:
    return Service((ServicePort("p", protocol, port),), tuple(map(parse_address, addresses)), created=created)


def backends(of: ServiceKey, *addresses: str, protocol: Protocol = Protocol.TCP) -> BackendSlice:
    members = tuple(Member(parse_address(address)) for address in addresses)
    return BackendSlice(of, (BackendPort("p", protocol, 8080),), members)


OBJECTS = {
    NodeKey("one"): Node((parse_prefix("10.1.1.0/24"), parse_prefix("fd01::/120")), (parse_address("192.0.2.1"),)),
    WEB: service("2026-01-01T00:00:00Z", "10.96.0.10", "fd96::a"),
    SliceKey("shop", "web-1"): backends(WEB, "10.1.1.3", "10.1.1.2"),
    SliceKey("shop", "web-2"): backends(WEB, "fd01::2"),
    COPY: service("2026-02-01T00:00:00Z", "10.96.0.10"),
    EMPTY: service("2026-01-01T00:00:00Z", "10.96.0.12"),
    DNS: service("2026-01-01T00:00:00Z", "10.96.0.11", protocol=Protocol.UDP, port=53),
    SliceKey("shop", "dns-1"): backends(DNS, "10.1.1.3", protocol=Protocol.UDP),
}


def frontend(address: str, port: int = 80, protocol: Protocol = Protocol.TCP) -> Frontend:
    return Frontend(parse_address(address), protocol, port)


def slots(*members: str) -> Slots:
    held = tuple(Backend(parse_address(address), 8080) for address in members)
    return Slots(len(held), held)


def node() -> Snapshot:
    """`web` is programmed over IPv4 and failed over IPv6, `empty` refused, `dns` not yet programmed; `copy` claims
    what `web` has. `front` is wired; of `back` one part is missing."""
    now = Snapshot(Local("one", 1450, (parse_prefix("10.96.0.0/16"),)))
    pods = {FRONT: "front", BACK: "back"}
    for event in (
        Resync(ResyncReason.STARTUP, OBJECTS),
        *(AddPod(key, PodKey("shop", name), f"/run/netns/{name}") for key, name in pods.items()),
        PodWired(FRONT),
    ):
        now, _ = fold(now, event)
    linux = {
        part: Outcome(value)
        for key in pods
        for part, value in list(wiring(key, now.attachments[key], 1450).items())[0 if key == FRONT else 1 :]
    }
    nftables = {
        frontend("10.96.0.10"): Outcome(slots("10.1.1.2", "10.1.1.3")),
        frontend("fd96::a"): Outcome(error="no room"),
        frontend("10.96.0.12"): Outcome(Slots(None, (), True)),
    }
    for name, outcomes in (("linux", linux), ("nftables", nftables)):
        now, _ = fold(now, Reported(name, outcomes))
    return now


def record(number: int) -> Record:
    return Record(
        number=number,
        time=1_790_000_000.0 + number,
        event=f"KubeStateChange service/shop/s{number}",
        changes={"services": (f"frontend 10.96.1.{number}:80/TCP: +10.1.1.2:8080",)},
        operations={"nftables": 2},
        milliseconds=0.125,
        error="nftables: no room" if number == 14 else None,
    )


RECORDS = tuple(map(record, range(11, 16)))


class FakeController:
    """Takes what the real one takes, and nothing else; remembers what it was given."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.history: Iterable[Record] = RECORDS
        self.tally = Tally()
        self.drift: dict[str, Difference] | OSError = {}
        self.error: str | None = None
        self.submitted: list[Event] = []
        self.asked = asyncio.Event()
        """Somebody waits for the next record."""
        self._readers: list[asyncio.Future[Record]] = []

    def next_record(self) -> asyncio.Future[Record]:
        self._readers.append(asyncio.get_running_loop().create_future())
        self.asked.set()
        return self._readers[-1]

    def happen(self, record: Record) -> None:
        self.history = (*self.history, record)
        self.asked.clear()
        for reader in self._readers:
            if not reader.done():
                reader.set_result(record)
        self._readers.clear()

    async def verify(self) -> dict[str, Difference]:
        if isinstance(self.drift, OSError):
            raise self.drift
        return {driver: found for driver, found in self.drift.items() if found}

    def submit(self, event: Event) -> asyncio.Future[Result]:
        assert isinstance(event, Event)
        self.submitted.append(event)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answer.set_result, Result(event, seconds=0.25, error=self.error))
        return answer


class FakeStatistics:
    """What was counted is what the test says; an error is raised instead."""

    def __init__(self, controller: FakeController) -> None:
        self._controller = controller
        self.frontends: dict[Frontend, Counts] = {
            frontend("10.96.0.10"): (3, 180, 9, 1_920, 9, 48_000),
            frontend("fd96::a"): (1, 60, 3, 640, 3, 16_000),
        }
        self.attachments: dict[AttachmentKey, Counts] = {FRONT: (9, 1_000, 7, 800)}
        self.error: OSError | None = None
        self.traffic = True

    async def services(self) -> ServiceTotals:
        if self.error is not None:
            raise self.error
        owners = dict.fromkeys(self.frontends, WEB)
        return add(nothing(COUNTS), self.frontends, owners, self._controller.snapshot.services)

    async def pods(self) -> PodCounts:
        if self.error is not None:
            raise self.error
        return self.attachments


class ServedAgent:
    def __init__(self, state_dir: Path) -> None:
        self.controller = FakeController(node())
        self.statistics = FakeStatistics(self.controller)
        self.socket = state_dir / "admin.sock"
        self.facts: dict[str, Any] = {
            "version": "0.1.0",
            "not_ready": None,
            "uptime": 93784.5,
            "writes": {"store": 4, "linux": 31, "nftables": 9},
            "source_errors": (),
        }
        self.all_rules = False
        self.tracing, self.ended = asyncio.Event(), asyncio.Event()
        """A trace began; it ended, whatever ended it."""

    async def trace(self, now: Snapshot, asked: Asked, patience: float, all_rules: bool) -> TraceView:
        """No packet is sent: nobody answers until `patience` is over."""
        self.tracing.set()
        self.all_rules = all_rules
        try:
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=patience)
        finally:
            self.ended.set()
        seen = Seen(None, [], None, answer.Answer(answer.Outcome.SILENCE, patience * 1000), asked.link, {}, {})
        return told(seen, places(now), explain_packet(now, asked.client, asked.to), asked.source)


@asynccontextmanager
async def serving(state_dir: Path, announcers: Announcers | None = None) -> AsyncIterator[ServedAgent]:
    agent = ServedAgent(state_dir)
    runner = await admin.serve(
        agent.socket, agent.controller, lambda: views.Facts(**agent.facts), agent.trace, agent.statistics, announcers
    )
    try:
        yield agent
    finally:
        await runner.cleanup()
