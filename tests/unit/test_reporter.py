"""Statuses of pools, peers and advertisements on their way to the API. Time is the test's."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from podwire.clustercontroller.backoff import FIRST_DELAY, LONGEST_DELAY, Refused
from podwire.clustercontroller.objects import Objects
from podwire.clustercontroller.reporter import EVERY, Reporter
from podwire.clustercontroller.writer import Writer
from podwire.loadbalancer.allocation import Grant
from podwire.loadbalancer.checks import Seen
from podwire.loadbalancer.pools import Pools, used
from podwire.loadbalancer.reports import Report
from podwire.loadbalancer.statuses import News
from podwire.model.addresses import parse_address, parse_range
from podwire.model.announcements import BGPPeer, BGPPeerKey, ConfigKey
from podwire.model.balancers import AddressPool, AddressPoolKey, Leftover
from podwire.model.declared import Counts, Declared
from podwire.model.objects import NodeKey, ServiceKey
from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kube_watch import Chance

A, B, PEER = AddressPoolKey("a"), AddressPoolKey("b"), BGPPeerKey("p")
WEB = ServiceKey("shop", "web")
POOL = AddressPool((parse_range("192.0.2.1-192.0.2.9"),))


class Cluster:
    """What is written is seen at once, but what is `refused`; `late`: it is not seen yet."""

    def __init__(self, **pools: AddressPool) -> None:
        self.declared: dict[ConfigKey, Declared] = {
            AddressPoolKey(name): Declared(it, version="1") for name, it in pools.items()
        }
        self.leftovers: dict[ServiceKey, Leftover] = {}
        self.now = 0.0
        self.late = False
        self.refused: dict[ConfigKey | ServiceKey, Refused] = {}
        self.tries: list[tuple[float, ConfigKey | ServiceKey]] = []
        self.told: list[str] = []
        self.rests: asyncio.Queue[float] = asyncio.Queue()
        chance = Chance(self.rests.put, clock=lambda: self.now, now=lambda: self.now)
        self.reporter = Reporter(self, self, chance)

    @property
    def pools(self) -> Pools:
        found = self.declared.items()
        return {key: cast(AddressPool, it.value) for key, it in found if isinstance(key, AddressPoolKey)}

    def seen(self) -> Seen:
        peers = {k: it.value for k, it in self.declared.items() if isinstance(it.value, BGPPeer)}
        return Seen(self.pools, cast(Mapping[BGPPeerKey, BGPPeer], peers))

    async def report(self, key: ConfigKey, held: Declared, report: Report) -> None:
        self._try(key)
        if not self.late:
            version = str(int(held.version) + 1)
            self.declared[key] = replace(held, conditions=report.conditions, counts=report.counts, version=version)

    async def forget(self, key: ServiceKey, _: Leftover) -> None:
        self._try(key)
        if not self.late:
            del self.leftovers[key]

    async def tell_of(self, key: ConfigKey, _: Declared, news: News) -> None:
        self.told.append(f"{key}: {news.type} {news.reason}: {news.message}")

    def _try(self, key: ConfigKey | ServiceKey) -> None:
        self.tries.append((self.now, key))
        if key in self.refused:
            raise self.refused[key]

    def decide(self, **held: str) -> None:
        grants = {ServiceKey("shop", name): Grant((parse_address(text),)) for name, text in held.items()}
        self.reporter.decided(used(self.pools), grants)

    async def after(self, now: float) -> None:
        self.now = now
        await self.reporter.once()

    def times(self, key: ConfigKey | ServiceKey) -> list[float]:
        return [now for now, of in self.tries if of == key]


def reason(it: Cluster, key: ConfigKey) -> str:
    return it.declared[key].conditions[-1].reason


async def test_nothing_is_told_before_it_is_known_who_has_what() -> None:
    it = Cluster(a=POOL)
    await it.after(0)
    assert it.tries == []
    it.decide(web="192.0.2.1")
    await it.after(1)
    assert it.declared[A].counts == (Counts("9", 1, "8"), None)


async def test_what_stands_there_is_not_written_again() -> None:
    it = Cluster(a=POOL, b=POOL)
    it.decide(web="192.0.2.1")
    for now in range(3):
        await it.after(now)
    assert sorted(it.tries) == [(0, A), (0, B)]
    assert (reason(it, A), reason(it, B)) == ("Complete", "Overlap")
    del it.declared[A]
    it.decide(web="192.0.2.1")
    await it.after(9)
    assert it.times(B) == [0, 9]
    assert it.declared[B].counts == (Counts("9", 1, "8"), None)
    ranges = "192.0.2.1-192.0.2.9 overlaps 192.0.2.1-192.0.2.9 of pool a, which comes first"
    overlap = f"spec.addresses: the pool is not used: {ranges}"
    assert it.told == [
        f"addresspool/b: Warning Overlap: {overlap}",
        "addresspool/b: Normal Complete: all that it says is done",
    ]


async def test_what_was_written_and_is_not_seen_yet_is_not_written_again() -> None:
    it = Cluster(a=POOL)
    it.late = True
    it.leftovers[WEB] = Leftover("1")
    it.decide()
    await it.after(0)
    it.decide(web="192.0.2.1")
    await it.after(1)
    assert (it.times(A), it.times(WEB)) == ([0], [0])
    it.declared[A] = replace(it.declared[A], version="2")
    it.leftovers[WEB] = Leftover("2")
    await it.after(2)
    assert (it.times(A), it.times(WEB)) == ([0, 2], [0, 2])


async def test_what_has_gone_is_forgotten() -> None:
    it = Cluster(a=POOL)
    it.leftovers[WEB] = Leftover("1")
    it.decide()
    await it.after(0)
    assert (it.times(A), it.times(WEB)) == ([0], [0])
    it.declared.clear()
    it.decide()
    await it.after(1)
    assert it.reporter._written == {}


async def test_what_is_refused_waits_longer_each_time_and_holds_up_nobody() -> None:
    it = Cluster(a=POOL, b=AddressPool((parse_range("198.51.100.0/24"),)))
    it.leftovers[WEB] = Leftover("1")
    it.refused = {A: Refused("403"), WEB: Refused("500", later=5)}
    it.decide()
    for number in range(2000):
        await it.after(number / 10)
    seen = it.times(A)
    waits = [round(later - before, 1) for before, later in pairwise(seen)]
    assert waits[:8] == [min(LONGEST_DELAY, FIRST_DELAY * 2**n) for n in range(8)]
    assert it.times(WEB)[:3] == [0, 5, 10]
    assert it.times(B) == [0]


async def test_what_has_changed_meanwhile_is_written_at_once_in_its_new_version() -> None:
    it = Cluster(a=POOL)
    it.refused = {A: Refused("409", changed=True)}
    it.decide()
    await it.after(0)
    await it.after(0.1)
    it.declared[A] = replace(it.declared[A], version="7")
    it.refused = {}
    await it.after(0.2)
    assert it.times(A) == [0, 0.2]


async def test_changes_within_a_moment_are_told_together() -> None:
    it = Cluster(a=POOL)
    paused, go = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        assert seconds == EVERY
        paused.set()
        await go.wait()

    it.reporter = Reporter(it, it, Chance(pause, clock=lambda: 0.0, now=lambda: 0.0))
    task = asyncio.create_task(it.reporter.run())
    it.decide()
    await paused.wait()
    for number in range(1, 6):
        it.decide(web=f"192.0.2.{number}", dns="192.0.2.9")
    paused.clear()
    go.set()
    await paused.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(it.tries) == 2
    assert it.declared[A].counts == (Counts("9", 2, "7"), None)


# --- what is written ---------------------------------------------------------------------------


class Sent:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any, str]] = []
        self.error: ApiError | None = None

    async def patch(self, path: str, body: bytes, kind: str) -> bytes:
        self.sent.append(("PATCH", path, msgspec.json.decode(body), kind))
        if self.error is not None:
            raise self.error
        return b"{}"

    async def post(self, path: str, body: bytes) -> bytes:
        self.sent.append(("POST", path, msgspec.json.decode(body), ""))
        return b"{}"


async def test_our_condition_is_taken_off_by_its_type_alone() -> None:
    api = Sent()
    writer = Writer(cast(Api, api), True, "me")
    await writer.forget(WEB, Leftover("7"))
    conditions = [{"type": "podwire.io/AddressAssigned", "$patch": "delete"}]
    body = {"metadata": {"resourceVersion": "7"}, "status": {"conditions": conditions}}
    path = "/api/v1/namespaces/shop/services/web/status"
    assert api.sent == [("PATCH", path, body, "application/strategic-merge-patch+json")]


@pytest.mark.parametrize(("status", "changed"), [(404, True), (409, True), (403, False), (0, False)])
async def test_a_refusal_says_whether_the_object_has_changed(status: int, changed: bool) -> None:
    api = Sent()
    api.error = ApiError("no", status, retry_after=3)
    with pytest.raises(Refused) as refused:
        await Writer(cast(Api, api), True, "me").report(PEER, Declared(None, version="7"), Report((), (None, None)))
    assert (refused.value.changed, refused.value.later) == (changed, 3)
    assert api.sent[0][1] == "/apis/podwire.io/v1alpha1/bgppeers/p/status"


async def test_events_of_what_has_no_namespace_are_in_the_default_one() -> None:
    api = Sent()
    writer = Writer(cast(Api, api), True, "me", Chance(now=lambda: 0.0))
    await writer.tell_of(PEER, Declared(None, uid="u"), News("Warning", "SecretMissing", "m"))
    ((_, path, body, _),) = api.sent
    assert path == "/api/v1/namespaces/default/events"
    assert body["involvedObject"] == {"apiVersion": "podwire.io/v1alpha1", "kind": "BGPPeer", "name": "p", "uid": "u"}


# --- what stirs whom ---------------------------------------------------------------------------


class Stirred:
    """Objects that no API tells of."""

    def __init__(self) -> None:
        self.allocation = self.reports = 0
        self.objects = Objects(cast(Api, None), True, self._allocation, self._reports)

    def _allocation(self) -> None:
        self.allocation += 1

    def _reports(self) -> None:
        self.reports += 1

    def put(self, kind: str, **thing: Any) -> tuple[int, int]:
        """As a watch tells; returns how often each was stirred by it."""
        before = self.allocation, self.reports
        watch = self.objects._watches[kind]
        name = thing["metadata"]["name"]
        watch._put("ADDED", msgspec.convert(thing["metadata"], _Meta), msgspec.Raw(msgspec.json.encode(thing)))
        assert not watch.wrong, (name, watch.wrong)
        return self.allocation - before[0], self.reports - before[1]


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = "1"


def about(name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "resourceVersion": str(version), **more}


def test_a_status_gives_nobody_another_address() -> None:
    it = Stirred()
    spec = {"addresses": ["192.0.2.0/24"]}
    assert it.put("addresspools", metadata=about("a"), spec=spec) == (1, 1)
    status = {"conditions": [{"type": "Accepted", "status": "True"}]}
    assert it.put("addresspools", metadata=about("a", 2), spec=spec, status=status) == (0, 1)
    assert it.put("addresspools", metadata=about("a", 3), spec={"addresses": ["192.0.2.0/25"]}) == (1, 1)
    least = {"peerAddress": "192.0.2.1", "peerASN": 1, "myASN": 2}
    assert it.put("bgppeers", metadata=about("p"), spec=least) == (0, 1)


def test_what_takes_addresses_stirs_both_where_it_takes_others() -> None:
    it = Stirred()
    node = {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}
    assert it.put("nodes", metadata=about("n"), status=node) == (1, 1)
    assert it.put("nodes", metadata=about("n", 2, labels={"a": "b"}), status=node) == (0, 1)
    assert it.put("podpools", metadata=about("p"), spec={"cidrs": ["10.1.0.0/16"]}) == (1, 1)
    assert it.objects.taken.of(parse_address("10.1.2.3")) == "in 10.1.0.0/16 of podpool/p"
    block = {"cidr": "10.1.0.64/26", "pool": "p", "node": "n"}
    assert it.put("podblocks", metadata=about("10.1.0.64-26"), spec=block) == (0, 1)
    alone = {"cidr": "10.2.0.64/26", "pool": "gone", "node": "n"}
    assert it.put("podblocks", metadata=about("10.2.0.64-26"), spec=alone) == (1, 1)
    assert it.objects.taken.of(parse_address("10.2.0.65")) == "in podblock/10.2.0.64/26"
    assert it.objects.taken.of(parse_address("192.0.2.1")) == "an address of node/n"
    assert it.objects.seen().nodes.keys() == {NodeKey("n")}


def test_a_secret_s_content_is_not_kept() -> None:
    it = Stirred()
    assert it.put(
        "secrets", metadata=about("s", namespace="podwire"), data={"password": "c2VjcmV0", "odd": "/w=="}
    ) == (0, 1)
    assert it.objects.seen().secrets == {"s": {"password"}}
    assert "secret" not in repr(it.objects._watches["secrets"].objects).replace("SecretKey", "")


def test_an_object_that_cannot_be_understood_is_there_and_says_so() -> None:
    it = Stirred()
    it.put("addresspools", metadata=about("a"), spec={"addresses": ["192.0.2.9-192.0.2.1"]})
    assert it.objects.pools == {}
    assert it.objects.declared[A].wrong.startswith("spec.addresses[0]: '192.0.2.9-192.0.2.1' is not an address range")


def test_services_of_ours_and_services_that_were() -> None:
    it = Stirred()
    spec = {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]}
    where = {"namespace": "shop"}
    it.put("services", metadata=about("web", **where), spec=spec)
    assert it.objects.services.keys() == {WEB}
    once = {"conditions": [{"type": "podwire.io/AddressAssigned", "status": "True"}]}
    assert it.put("services", metadata=about("web", 2, **where), spec={**spec, "type": "ClusterIP"}, status=once) == (
        1,
        1,
    )
    assert (it.objects.services, it.objects.leftovers) == ({}, {WEB: Leftover("2")})
    it.put("services", metadata=about("web", 3, **where), spec={**spec, "type": "ClusterIP"})
    assert it.objects.leftovers == {}
