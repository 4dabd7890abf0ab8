"""Statuses on their way to the API: what is refused, what hangs, and who may write at all. Time is the test's."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from podwire.clustercontroller import allocator as at_work
from podwire.clustercontroller.allocator import RESTS, Allocator
from podwire.clustercontroller.backoff import FIRST_DELAY, LONGEST_DELAY, Refused
from podwire.clustercontroller.process import Controller, Settings
from podwire.loadbalancer.allocation import allocate
from podwire.loadbalancer.others import NOBODYS
from podwire.loadbalancer.pools import Pools
from podwire.loadbalancer.statuses import News, Status
from podwire.model.addresses import IPV4, parse_address, parse_range
from podwire.model.balancers import AddressPool, AddressPoolKey, Balanced, Labels, Request
from podwire.model.objects import ServiceKey
from podwire.sources import lease as leases
from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kube_watch import Chance
from podwire.sources.lease import Lease, LeaseMeta, LeaseObject, LeaseSpec, Lost

WEB, DNS = (ServiceKey("shop", name) for name in ("web", "dns"))
GUARD = 30


def service(created: str) -> Balanced:
    return Balanced(Request((IPV4,), frozenset(), created=created), "1")


class Cluster:
    """What is written is seen at once, but what `hangs` or is `refused`."""

    def __init__(self, **services: Balanced) -> None:
        self.pools: Pools = {AddressPoolKey("a"): AddressPool((parse_range("192.0.2.1-192.0.2.9"),))}
        self.namespaces: Mapping[str, Labels] = {}
        self.taken = NOBODYS
        self.services: dict[ServiceKey, Balanced] = {ServiceKey("shop", name): it for name, it in services.items()}
        self.now = 0.0
        self.refused: dict[ServiceKey, Refused] = {}
        self.hangs: dict[ServiceKey, asyncio.Event] = {}
        self.began: defaultdict[ServiceKey, asyncio.Event] = defaultdict(asyncio.Event)
        self.tries: list[tuple[float, ServiceKey, str]] = []
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.rests: asyncio.Queue[float] = asyncio.Queue()
        self.allocator = Allocator(self, self._write, self._tell, Chance(self.rests.put, clock=lambda: self.now))

    async def _write(self, key: ServiceKey, held: Balanced, status: Status) -> Balanced:
        self.tries.append((self.now, key, ", ".join(ip for ip, _ in status.ingress)))
        self.began[key].set()
        if key in self.hangs:
            await self.hangs[key].wait()
        if key in self.refused:
            raise self.refused[key]
        if self.services[key].version != held.version:
            raise Refused("409", changed=True)
        holds = tuple(parse_address(ip) for ip, _ in status.ingress)
        request = replace(held.request, holds=holds)
        after = replace(held, request=request, ingress=status.ingress, condition=status.condition, version="2")
        self.services[key] = after
        return after

    async def _tell(self, key: ServiceKey, _: Balanced, news: News) -> None:
        self.told.put_nowait(f"{key.name}: {news.message}")

    def times(self, key: ServiceKey) -> list[float]:
        return [now for now, of, _ in self.tries if of == key]

    async def after(self, now: float) -> None:
        self.now = now
        await self.allocator.once()


async def test_what_is_refused_waits_longer_each_time_whatever_else_changes() -> None:
    it = Cluster(web=service("1"))
    it.refused[WEB] = Refused("403")
    for number in range(4000):
        it.services[DNS] = replace(service("2"), version=f"v{number}")
        await it.after(number / 10)
    seen = it.times(WEB)
    waits = [round(later - before, 1) for before, later in pairwise(seen)]
    assert waits[:8] == [min(LONGEST_DELAY, FIRST_DELAY * 2**n) for n in range(8)]
    assert set(waits[8:]) == {LONGEST_DELAY}
    assert len(it.times(DNS)) == 4000, "others have theirs at once"


async def test_a_server_that_says_how_long_to_stay_away_is_heard() -> None:
    it = Cluster(web=service("1"))
    it.refused[WEB] = Refused("429", later=20)
    for now in (0, 1, 19.9, 20):
        await it.after(now)
    assert it.times(WEB) == [0, 20]


async def test_what_has_changed_is_written_at_once_in_its_new_version_and_not_in_the_old_one() -> None:
    it = Cluster(web=service("1"))
    it.refused[WEB] = Refused("409", changed=True)
    await it.after(0)
    await it.after(0.1)
    it.services[WEB] = replace(it.services[WEB], version="1b")
    await it.after(0.2)
    assert it.times(WEB) == [0, 0.2]


async def test_once_it_may_be_written_it_is_and_nothing_is_left_to_do() -> None:
    it = Cluster(web=service("1"))
    it.refused[WEB] = Refused("500")
    await it.after(0)
    it.refused.clear()
    for now in (0.4, 0.5, 0.6, 100):
        await it.after(now)
    assert it.times(WEB) == [0, 0.5]
    assert await it.told.get() == "web: 192.0.2.1 of pool a"


async def test_a_pool_that_is_not_used_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    it = Cluster(web=service("1"))
    it.pools = {AddressPoolKey(name): AddressPool((parse_range("192.0.2.1-192.0.2.9"),)) for name in "ab"}
    await it.after(0)
    await it.after(1)
    told = "addresspool/b is not used: 192.0.2.1-192.0.2.9 overlaps 192.0.2.1-192.0.2.9 of pool a, which comes first"
    assert caplog.messages == [told]
    it.pools = {AddressPoolKey("b"): it.pools[AddressPoolKey("b")]}
    await it.after(2)
    it.pools = {**it.pools, AddressPoolKey("a"): it.pools[AddressPoolKey("b")]}
    await it.after(3)
    assert caplog.messages == [told, told]


@asynccontextmanager
async def running(it: Cluster) -> AsyncIterator[None]:
    task = asyncio.create_task(it.allocator.run())
    try:
        async with asyncio.timeout(GUARD):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_decision_that_takes_long_is_rested_from(monkeypatch: pytest.MonkeyPatch) -> None:
    it, loop = Cluster(), asyncio.get_running_loop()
    decided: asyncio.Queue[None] = asyncio.Queue()

    def slow(*given: Any) -> Any:
        it.now += 1
        loop.call_soon_threadsafe(decided.put_nowait, None)
        return allocate(*given)

    monkeypatch.setattr(at_work, "allocate", slow)
    async with running(it):
        await decided.get()
        it.allocator.stir()
        assert await it.rests.get() == RESTS


async def test_a_write_that_hangs_holds_up_nobody_and_has_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from one that is older and comes later."""
    monkeypatch.setattr(at_work, "PATIENCE", 0.01)
    it = Cluster(web=service("2"))
    it.hangs[WEB] = asyncio.Event()
    async with running(it):
        await it.began[WEB].wait()
        it.services[DNS] = service("1")
        it.allocator.stir()
        assert await it.told.get() == "dns: 192.0.2.2 of pool a"
        it.hangs[WEB].set()
        assert await it.told.get() == "web: 192.0.2.1 of pool a"
    assert [(key, address) for _, key, address in it.tries] == [(WEB, "192.0.2.1"), (DNS, "192.0.2.2")]


async def test_what_changes_while_its_write_hangs_is_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "PATIENCE", 0.01)
    it = Cluster(web=service("1"))
    it.hangs[WEB] = asyncio.Event()
    async with running(it):
        await it.began[WEB].wait()
        asks = replace(it.services[WEB].request, asked=(parse_address("192.0.2.5"),))
        it.services[WEB] = replace(it.services[WEB], request=asks, version="1b")
        it.services[DNS] = service("2")
        it.allocator.stir()
        assert await it.told.get() == "dns: 192.0.2.1 of pool a"  # a decision that left it alone
        assert len(it.times(WEB)) == 1
        it.hangs[WEB].set()
        assert await it.told.get() == "web: 192.0.2.5 of pool a"


async def test_what_hangs_ends_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "PATIENCE", 0.01)
    it = Cluster(web=service("1"))
    it.hangs[WEB] = asyncio.Event()
    async with running(it):
        await it.began[WEB].wait()
    it.hangs[WEB].set()
    await asyncio.sleep(0)
    assert it.told.empty()


# --- who may write -----------------------------------------------------------------------------


class Server:
    """Of one Lease. `answers`: requests hang where it is not set."""

    def __init__(self) -> None:
        self.lease: LeaseObject | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.listed = asyncio.Event()

    async def get(self, path: str, query: Any = None) -> bytes:
        await self.answers.wait()
        if query is not None:
            self.listed.set()
            await asyncio.Event().wait()
        assert "/leases" in path
        if self.lease is None:
            raise ApiError("there is none", 404)
        return msgspec.json.encode(self.lease)

    async def find(self, path: str) -> bytes | None:
        return await Api.find(self.as_api(), path)

    async def post(self, _: str, body: bytes) -> bytes:
        return self._put(body)

    async def patch(self, _: str, body: bytes, __: str) -> bytes:
        return self._put(body)

    def _put(self, body: bytes) -> bytes:
        spec = msgspec.json.decode(body, type=LeaseObject).spec
        number = int(self.lease.metadata.resource_version) + 1 if self.lease else 1
        self.lease = LeaseObject(LeaseMeta(str(number)), LeaseSpec(spec.holder_identity, 15))
        return b"{}"

    def as_api(self) -> Api:
        return cast(Api, self)


async def test_who_gets_no_answer_stops_before_others_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that takes a request and says nothing, for as long as it likes."""
    monkeypatch.setattr(leases, "RENEWED_WITHIN", 0.2)
    monkeypatch.setattr(leases, "EVERY", 0.02)
    server = Server()
    lease = Lease(server.as_api(), "podwire", "it", "me")
    async with asyncio.timeout(GUARD):
        await lease.acquire()
        assert lease.held
        server.answers.clear()
        with pytest.raises(Lost, match="was not renewed for"):
            await lease.hold()
    assert not lease.held


async def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    """Whoever waits has seen it by then, however late our answer comes."""
    now = 0.0
    server = Server()
    server.answers.clear()
    lease = Lease(server.as_api(), "podwire", "it", "me", Chance(clock=lambda: now))
    got = asyncio.create_task(lease.acquire())
    await asyncio.sleep(0)
    now = leases.RENEWED_WITHIN
    server.answers.set()
    await got
    assert not lease.held


async def test_who_was_halted_writes_nothing_though_nobody_has_told_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    server = Server()
    controller = Controller(server.as_api(), Settings(identity="me"), Chance(clock=lambda: now))
    await controller.lease.acquire()
    sent: list[Any] = []

    async def write(*work: Any) -> Balanced:
        sent.append(work)
        return service("1")

    monkeypatch.setattr(controller._writer, "write", write)
    status = Status((), ("False", "NoAddress", ""))
    await controller._write(WEB, service("1"), status)
    now = leases.RENEWED_WITHIN
    with pytest.raises(Refused, match="lease"):
        await controller._write(WEB, service("1"), status)
    assert len(sent) == 1


async def test_whoever_takes_over_lists_what_the_last_one_wrote() -> None:
    """Nothing that it knew before: a watch may be late by seconds."""
    server, tries = Server(), 0
    server.lease = LeaseObject(LeaseMeta("1"), LeaseSpec("other", 15))
    ended = asyncio.Event()

    async def pause(_: float) -> None:
        nonlocal tries
        tries += 1
        if tries == 5:
            assert not server.listed.is_set()
            server.lease = LeaseObject(LeaseMeta("2"), LeaseSpec("", 1))
        if tries > 5:
            await ended.wait()

    controller = asyncio.create_task(Controller(server.as_api(), Settings(identity="me"), Chance(pause=pause)).run())
    async with asyncio.timeout(GUARD):
        await server.listed.wait()
    assert server.lease.spec.holder_identity == "me"
    controller.cancel()
    await asyncio.gather(controller, return_exceptions=True)
    assert server.lease.spec.holder_identity == "", "it is given back, though nothing was ever known"
