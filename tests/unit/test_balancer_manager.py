"""Services handed over one by one come to the same addresses as all of them together."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.clustercontroller.backoff import FIRST_DELAY, LONGEST_DELAY, Refused
from podwire.clustercontroller.manager import Controller, Manager, SyncState
from podwire.loadbalancer.others import NOBODYS, taken
from podwire.loadbalancer.statuses import News, Status
from podwire.model.addresses import IPV4, parse_address, parse_range, show_address
from podwire.model.balancers import AddressPool, AddressPoolKey, Balanced, Request
from podwire.model.objects import Node, NodeKey, Protocol, ServiceKey
from podwire.sources.balancer_objects import CLASS
from podwire.sources.kube_watch import Chance
from tests.unit.test_balancer_stories import NAMESPACES, STORIES, Story

SUCCESS, ERROR, ALL = SyncState.SUCCESS, SyncState.ERROR, SyncState.REPROCESS_ALL


def thing(name: str, request: Request, version: int = 1, condition: Any = None) -> dict[str, Any]:
    """As the API has it."""
    namespace, _, own = name.partition("/")
    annotations = {
        "podwire.io/load-balancer-ips": ",".join(map(show_address, request.asked)),
        "podwire.io/address-pool": request.pool,
        "podwire.io/allow-shared-ip": request.sharing,
        "podwire.io/give-up-ips": ",".join(map(show_address, request.gives_up)),
    }
    spec = {
        "type": "LoadBalancer",
        "clusterIPs": ["10.96.0.1" if it == IPV4 else "fd96::1" for it in request.families],
        "ipFamilyPolicy": "RequireDualStack" if request.all_families else "PreferDualStack",
        "ports": [{"port": port, "protocol": protocol.name} for protocol, port in sorted(request.ports)],
    }
    if request.backends:
        labels = dict(it.split("=") for it in request.backends.split(","))
        spec |= {"externalTrafficPolicy": "Local", "selector": labels}
    status = {
        "loadBalancer": {"ingress": [{"ip": show_address(it), "ipMode": "VIP"} for it in request.holds]},
        "conditions": [condition] if condition else [],
    }
    about = {
        "name": own,
        "namespace": namespace,
        "resourceVersion": str(version),
        "labels": dict(request.labels),
        "annotations": {key: value for key, value in annotations.items() if value},
        "creationTimestamp": request.created,
    }
    return {"metadata": about, "spec": spec, "status": status}


class Shop:
    """What is written is in `store` at once; `refused`: is not written."""

    def __init__(self, pools: Any, requests: Any) -> None:
        self.pools = {AddressPoolKey(name): it for name, it in pools.items()}
        self.store = {f"{k.namespace}/{k.name}": thing(f"{k.namespace}/{k.name}", it) for k, it in requests.items()}
        self.taken = NOBODYS
        self.now = 0.0
        self.refused = False
        self.tries: list[tuple[float, str]] = []
        self.told: list[str] = []
        self.tried, self.done = asyncio.Event(), asyncio.Event()
        self.controller = Controller(
            lambda: self.pools, lambda: NAMESPACES, self._write, self._tell, taken=lambda: self.taken
        )
        chance = Chance(clock=lambda: self.now)
        self.manager = Manager(self.controller, self.store.get, lambda: self.store, chance)

    async def _write(self, key: ServiceKey, held: Balanced, status: Status) -> Balanced:
        name = f"{key.namespace}/{key.name}"
        self.tries.append((self.now, name))
        self.tried.set()
        before = self.store.get(name)
        if self.refused or before is None or before["metadata"]["resourceVersion"] != held.version:
            raise Refused("no")
        ingress = [{"ip": ip, "ipMode": mode} for ip, mode in status.ingress]
        word, reason, message = status.condition
        own = {"type": "podwire.io/AddressAssigned", "status": word, "reason": reason, "message": message}
        about = {**before["metadata"], "resourceVersion": str(int(held.version) + 1)}
        after = {**before, "metadata": about}
        self.store[name] = {**after, "status": {"loadBalancer": {"ingress": ingress}, "conditions": [own]}}
        holds = tuple(parse_address(ip) for ip, _ in status.ingress)
        request = replace(held.request, holds=holds)
        return replace(
            held, request=request, ingress=status.ingress, condition=status.condition, version=about["resourceVersion"]
        )

    async def _tell(self, key: ServiceKey, _: Balanced, news: News) -> None:
        self.told.append(f"{key.name}: {news.reason}")
        self.done.set()

    def addresses(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for name, it in sorted(self.store.items()):
            found[name] = tuple(each["ip"] for each in it["status"]["loadBalancer"]["ingress"])
        return found

    async def set(self, name: str) -> SyncState:
        return await self.controller.set_balancer(name, self.store.get(name))


@given(st.sampled_from(sorted(STORIES)), st.randoms(use_true_random=False), st.booleans())
def test_each_story_ends_alike_whatever_the_order(name: str, order: Any, seen_late: bool) -> None:
    story: Story = STORIES[name]
    if any(it.unclear for it in story.requests.values()):
        return  # what can't be understood is told by the text it was made of
    shop = Shop(story.pools, story.requests)
    names = list(shop.store)

    async def work() -> None:
        order.shuffle(names)
        for each in names:
            shop.manager.on_add_service(shop.store[each])
            if not seen_late:
                await shop.manager.once()
        shop.manager.mark_synced()
        for _ in range(3):
            await shop.manager.once()
            order.shuffle(names)
            for each in names:
                shop.manager.on_update_service({}, shop.store[each])

    asyncio.run(work())
    ends = {f"{k.namespace}/{k.name}": addresses for k, (addresses, _) in story.ends.items()}
    told = shop.addresses()
    assert {each: told[each] for each in ends} == (ends if story.pools else dict.fromkeys(ends, ()))
    assert len(shop.tries) <= len(names), "each is written once"


def request(**more: Any) -> Request:
    return Request((IPV4,), frozenset({(Protocol.TCP, more.pop("port", 80))}), **more)


def held(text: str, **more: Any) -> Request:
    return request(holds=(parse_address(text),), **more)


ONE = {"a": AddressPool((parse_range("192.0.2.1-192.0.2.1"),))}
WEB, DNS = (ServiceKey("shop", name) for name in ("web", "dns"))


async def test_before_all_are_known_who_has_an_address_keeps_it_and_nobody_gets_one() -> None:
    """MetalLB #2443: the one that waits came first."""
    it = Shop(ONE, {DNS: request(created="1"), WEB: held("192.0.2.1", created="2")})
    assert await it.set("shop/dns") is ERROR
    assert await it.set("shop/web") is SUCCESS
    assert it.tries == []
    it.controller.mark_synced()
    assert await it.set("shop/dns") is SUCCESS
    assert await it.set("shop/web") is SUCCESS
    assert it.addresses() == {"shop/dns": (), "shop/web": ("192.0.2.1",)}
    assert it.told == ["dns: NoAddress"]


async def test_what_gives_an_address_back_has_all_looked_at_again() -> None:
    it = Shop(ONE, {DNS: request(created="1"), WEB: held("192.0.2.1")})
    it.controller.mark_synced()
    assert [await it.set("shop/web"), await it.set("shop/dns")] == [SUCCESS, SUCCESS]
    del it.store["shop/web"]
    assert await it.set("shop/web") is ALL
    assert await it.set("shop/web") is SUCCESS, "it had nothing any more"
    assert await it.set("shop/dns") is SUCCESS
    assert it.addresses() == {"shop/dns": ("192.0.2.1",)}


async def test_a_key_that_changes_has_all_looked_at_again() -> None:
    it = Shop(ONE, {DNS: request(port=53, sharing="k", created="2"), WEB: held("192.0.2.1", sharing="other")})
    it.controller.mark_synced()
    assert [await it.set("shop/web"), await it.set("shop/dns")] == [SUCCESS, SUCCESS]
    it.store["shop/web"] = thing("shop/web", held("192.0.2.1", sharing="k"), 9)
    assert await it.set("shop/web") is ALL
    assert await it.set("shop/dns") is SUCCESS
    assert it.addresses()["shop/dns"] == ("192.0.2.1",)


async def test_what_others_have_no_pool_gives_until_it_is_free() -> None:
    it = Shop(ONE, {WEB: request()})
    it.controller.mark_synced()
    node = {NodeKey("a"): Node((), (parse_address("192.0.2.1"),))}
    it.taken = taken(node, {}, {}, {})
    assert await it.set("shop/web") is SUCCESS
    assert it.addresses() == {"shop/web": ()}
    it.taken = NOBODYS
    assert await it.set("shop/web") is SUCCESS
    assert it.addresses() == {"shop/web": ("192.0.2.1",)}


async def test_without_pools_nothing_is_done_and_another_class_is_nobody_s() -> None:
    it = Shop({}, {WEB: request()})
    it.controller.mark_synced()
    assert await it.set("shop/web") is SUCCESS
    it.pools = {AddressPoolKey("a"): ONE["a"]}
    it.store["shop/web"]["spec"]["loadBalancerClass"] = "example.com/other"
    assert await it.set("shop/web") is SUCCESS
    assert it.tries == []
    it.store["shop/web"]["spec"]["loadBalancerClass"] = CLASS
    assert await it.set("shop/web") is SUCCESS
    assert it.addresses() == {"shop/web": ("192.0.2.1",)}


async def test_that_the_last_pool_has_gone_is_said_to_whom_it_gave_an_address_and_to_no_other() -> None:
    it = Shop(ONE, {WEB: request()})
    it.controller.mark_synced()
    assert await it.set("shop/web") is SUCCESS
    it.pools = {}
    it.store["shop/dns"] = thing("shop/dns", held("198.51.100.7"))
    assert [await it.set(name) for name in ("shop/web", "shop/dns")] == [SUCCESS, SUCCESS]
    assert it.addresses() == {"shop/web": ("192.0.2.1",), "shop/dns": ("198.51.100.7",)}
    assert [name for _, name in it.tries] == ["shop/web", "shop/web"]
    assert it.told == ["web: AddressAssigned", "web: AddressStale"]


async def test_what_is_wrong_is_told_and_takes_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    it = Shop(ONE, {DNS: request(created="1"), WEB: held("192.0.2.1")})
    it.controller.mark_synced()
    assert [await it.set("shop/web"), await it.set("shop/dns")] == [SUCCESS, SUCCESS]
    it.store["shop/web"]["spec"]["ports"] = [{"port": "eighty"}]
    assert await it.set("shop/web") is SUCCESS
    assert caplog.messages == ["service/shop/web: spec.ports[0].port: expected a whole number, not text"]
    it.store["shop/dns"] = {
        **it.store["shop/dns"],
        "metadata": {**it.store["shop/dns"]["metadata"], "labels": {"a": "b"}},
    }
    assert await it.set("shop/dns") is SUCCESS
    assert it.addresses()["shop/dns"] == ()


async def test_a_write_that_fails_is_tried_again_later_each_time() -> None:
    it = Shop(ONE, {WEB: request()})
    it.refused = True
    it.manager.mark_synced()
    for number in range(4000):
        it.now = number / 10
        await it.manager.once()
    seen = [now for now, _ in it.tries]
    waits = [round(later - before, 1) for before, later in pairwise(seen)]
    assert waits[:8] == [min(LONGEST_DELAY, FIRST_DELAY * 2**n) for n in range(8)]
    assert set(waits[8:]) == {LONGEST_DELAY}
    it.refused = False
    it.store["shop/web"] = thing("shop/web", request(), 2)
    it.manager.on_update_service(thing("shop/web", request()), it.store["shop/web"])
    await it.manager.once()
    assert it.addresses() == {"shop/web": ("192.0.2.1",)}, "another version is tried at once"


async def test_of_many_events_the_newest_state_is_looked_at_once() -> None:
    it = Shop({"a": AddressPool((parse_range("192.0.2.0/24"),))}, {WEB: request()})
    it.manager.mark_synced()
    old = it.store["shop/web"]
    for version in range(2, 50):
        it.store["shop/web"] = thing("shop/web", request(asked=(parse_address(f"192.0.2.{version}"),)), version)
        it.manager.on_update_service(old, it.store["shop/web"])
    await it.manager.once()
    assert it.addresses() == {"shop/web": ("192.0.2.49",)}
    assert len(it.tries) == 1


async def test_it_works_until_it_is_told_to_stop_and_wakes_by_itself() -> None:
    it = Shop(ONE, {WEB: request()})
    it.manager = Manager(it.controller, it.store.get, lambda: it.store)
    it.refused = True
    task = asyncio.create_task(it.manager.run())
    it.manager.mark_synced()
    async with asyncio.timeout(30):
        await it.tried.wait()
        it.refused = False
        await it.done.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert it.addresses() == {"shop/web": ("192.0.2.1",)}
