"""Traffic policies, source ranges and weights, by packets: who answers whom, and whose packets vanish."""

from collections import Counter

import pytest
from msgspec.structs import replace

from podwire.controller.difference import Change, Outcome, scope_of
from podwire.dataplane.nftables.driver import NFTables
from podwire.model.addresses import IPV4, Address, parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Backend, Frontend, HoldersKey, RestrictedKey, RulesKey, Slots
from podwire.model.objects import Node, Protocol, Service, ServiceKey, ServicePort
from tests.kernel.outside import FAR, NODES, Outside, connect, members
from tests.kernel.rig import NODE, NODE_OBJECT, Rig, Space, ask, sh

HERE, HERE6 = "10.1.1.2", "fd01::2"
ALL = (HERE, HERE6, FAR[4], FAR[16])
WEB = ServiceKey("default", "web")
ADDRESSES = {
    "cluster IP": ("10.96.0.10", "fd00:96::a"),
    "external IP": ("203.0.113.10", "2001:db8::10"),
    "load balancer": ("203.0.113.80", "2001:db8::80"),
    "node port": ("192.0.2.1", "fd99::1"),
}
GONE = "TimeoutError"
OTHER = Slots(1, (Backend(parse_address("10.1.1.3"), 8080),))


def web(**more: object) -> Service:
    named = {kind: tuple(map(parse_address, some)) for kind, some in ADDRESSES.items()}
    port = ServicePort("p", Protocol.TCP, 80, node_port=30080)
    made = Service((port,), named["cluster IP"], named["external IP"], balancer_ips=named["load balancer"])
    return replace(made, **more)


async def start(rig: Rig, it: Service, *backends: str) -> Outside:
    outside = connect(rig)
    objects: dict[ObjectKey, Object] = NODES | {WEB: it} | members("web", *backends)
    await rig.start_with_pods("a", "c", objects=objects)
    assert await rig.drift() == []
    return outside


def answers(rig: Rig, outside: Outside, client: str, kind: str, family: int, tries: int = 20) -> Counter[str]:
    """By who answered. `client`: pod, node or outside."""
    space = {"pod": rig.pods["c"], "node": None, "outside": outside.client}[client]
    to, port = ADDRESSES[kind][family], 30080 if kind == "node port" else 80
    return Counter(ask(space, to, port).split()[0] for _ in range(tries))


EXTERNAL = ("external IP", "load balancer", "node port")
BOTH = {"a", "far"}


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
async def test_a_local_policy_narrows_those_whom_it_is_for(rig: Rig, family: int) -> None:
    outside = await start(rig, web(external_local=True), *ALL)
    for kind in EXTERNAL:
        assert set(answers(rig, outside, "outside", kind, family)) == {"a"}
        assert set(answers(rig, outside, "pod", kind, family)) == BOTH
        assert set(answers(rig, outside, "node", kind, family)) == BOTH
    assert set(answers(rig, outside, "pod", "cluster IP", family)) == BOTH
    await rig.change((WEB, web(internal_local=True)))
    for client in ("pod", "node", "outside"):
        assert set(answers(rig, outside, client, "cluster IP", family)) == {"a"}
        assert set(answers(rig, outside, client, "external IP", family)) == BOTH


async def test_a_client_from_outside_stays_visible_behind_a_local_policy(rig: Rig) -> None:
    outside = await start(rig, web(external_local=True), *ALL)
    for kind in EXTERNAL:
        port = 30080 if kind == "node port" else 80
        assert ask(outside.client, ADDRESSES[kind][0], port) == "a 192.0.2.9"
        assert ask(outside.client, ADDRESSES[kind][1], port) == "a fd99::9"


async def test_where_only_others_have_backends_packets_vanish_and_where_nobody_has_they_are_refused(rig: Rig) -> None:
    outside = await start(rig, web(external_local=True), FAR[4], FAR[16])
    assert set(answers(rig, outside, "outside", "external IP", 0, 1)) == {GONE}
    assert set(answers(rig, outside, "outside", "node port", 1, 1)) == {GONE}
    assert set(answers(rig, outside, "pod", "external IP", 0)) == {"far"}
    assert set(answers(rig, outside, "node", "node port", 1)) == {"far"}
    await rig.change((WEB, web(internal_local=True)))
    assert set(answers(rig, outside, "pod", "cluster IP", 0, 1)) == {GONE}
    assert set(answers(rig, outside, "pod", "node port", 0)) == {"far"}
    await rig.change((WEB, web(external_local=True, internal_local=True)), *members("web").items())
    for client in ("pod", "outside"):
        assert set(answers(rig, outside, client, "external IP", 0, 1)) == {"ConnectionRefusedError"}
    assert await rig.drift() == []


async def test_source_ranges_are_for_the_load_balancers_addresses_alone(rig: Rig) -> None:
    allowed = (parse_prefix("192.0.2.9/32"), parse_prefix("10.1.1.2/31"))
    outside = await start(rig, web(source_ranges=allowed), *ALL)
    assert set(answers(rig, outside, "outside", "load balancer", 0)) == BOTH
    assert set(answers(rig, outside, "outside", "load balancer", 1)) == BOTH  # no range of its family
    await rig.change((WEB, web(source_ranges=(parse_prefix("198.51.100.0/24"), parse_prefix("fd77::/64")))))
    for family in (0, 1):
        for client in ("outside", "pod", "node"):
            assert set(answers(rig, outside, client, "load balancer", family, 1)) <= {GONE, "PermissionError"}
            assert set(answers(rig, outside, client, "external IP", family)) == BOTH
    await rig.change((WEB, web(source_ranges=(parse_prefix("0.0.0.0/0"), parse_prefix("fd99::9/128")))))
    assert set(answers(rig, outside, "pod", "load balancer", 0)) == BOTH
    assert set(answers(rig, outside, "outside", "load balancer", 1)) == BOTH
    assert set(answers(rig, outside, "pod", "load balancer", 1, 1)) == {GONE}
    assert await rig.drift() == []
    before = rig.writes()
    await rig.resync()
    assert rig.writes() == before


async def test_a_node_reaches_the_load_balancers_address_that_it_has_itself(rig: Rig) -> None:
    """From where it may come by its own address: the packet's source is then the load balancer's address."""
    sh("ip", "link", "set", "lo", "up")
    for address in ADDRESSES["load balancer"]:
        sh("ip", "addr", "add", address, "dev", "lo", *(("nodad",) if ":" in address else ()))
    node = tuple(map(parse_prefix, ("192.0.2.0/29", "fd99::1/128")))
    others = tuple(map(parse_prefix, ("192.0.2.8/29", "fd99::9/128")))
    outside = await start(rig, web(source_ranges=node), *ALL)
    for family in (0, 1):
        assert set(answers(rig, outside, "node", "load balancer", family)) == BOTH
        assert set(answers(rig, outside, "outside", "load balancer", family, 1)) == {GONE}
    await rig.change((WEB, web(source_ranges=others)))
    for family in (0, 1):
        assert set(answers(rig, outside, "node", "load balancer", family, 1)) <= {GONE, "PermissionError"}
        assert set(answers(rig, outside, "outside", "load balancer", family)) == BOTH
    await rig.change((NODE, Node(NODE_OBJECT.pod_cidrs, (*map(parse_address, ("192.0.2.9", "fd99::9")),))))
    for family in (0, 1):
        assert set(answers(rig, outside, "node", "load balancer", family)) == BOTH
    assert await rig.drift() == []


async def test_a_backend_on_this_node_gets_as_many_more_connections_as_it_weighs(rig: Rig) -> None:
    outside = connect(rig)
    await rig.start_with_pods("a", "c", objects=NODES | {WEB: web()} | members("web", *ALL), local_weight=7)
    told = answers(rig, outside, "pod", "cluster IP", 0, 160)
    assert set(told) == BOTH
    assert told["a"] > 3 * told["far"]  # 140 and 20 are expected
    assert await rig.drift() == []


@pytest.mark.parametrize("slices", [False, True], ids=["in one batch", "the restriction a batch earlier"])
def test_a_frontend_whose_clients_cannot_be_restricted_is_not_made(node: Space, slices: bool) -> None:
    """Rather nobody than everybody: the set of restricted frontends is full."""
    driver = NFTables()
    driver.apply({RulesKey(IPV4): Change(None, True)})
    many = (RestrictedKey(Frontend(Address(number.to_bytes(4, "big")), Protocol.TCP, 80)) for number in range(131_072))
    driver.apply({key: Change(None, True) for key in many})
    it = Frontend(parse_address("203.0.113.80"), Protocol.TCP, 80)
    one = Slots(1, (Backend(parse_address("10.1.1.2"), 8080),))
    changes = {RestrictedKey(it): Change(None, True), it: Change(None, one)}
    parts = [{key: change} for key, change in changes.items()] if slices else [changes]
    outcomes = {key: outcome for part in parts for key, outcome in driver.apply(part).items()}
    assert [outcome.error is None for outcome in outcomes.values()] == [False, False]
    assert it not in driver.read(scope_of((it,)))
    driver.apply({RestrictedKey(Frontend(Address(bytes(4)), Protocol.TCP, 80)): Change(True, None)})
    assert [outcome.error for outcome in driver.apply(changes).values()] == [None, None]
    driver.close()


@pytest.mark.parametrize("sliced", [False, True], ids=["in one batch", "the restriction a batch later"])
@pytest.mark.parametrize("wanted", [None, OTHER], ids=["goes", "changes"])
def test_a_restriction_stays_while_its_frontend_cannot_go(node: Space, sliced: bool, wanted: Slots | None) -> None:
    """Somebody's hands took a backend's slot, so that the kernel refuses to delete it; what is left is restricted."""
    driver = NFTables()
    driver.apply({HoldersKey(IPV4): Change(None, True), RulesKey(IPV4): Change(None, True)})
    it = Frontend(parse_address("203.0.113.80"), Protocol.TCP, 80)
    one = Slots(1, (Backend(parse_address("10.1.1.2"), 8080),))
    made = driver.apply({RestrictedKey(it): Change(None, True), it: Change(None, one)})
    assert [outcome.error for outcome in made.values()] == [None, None]
    sh("nft", "delete element ip podwire eps { 203.0.113.80 . tcp . 80 . 0 }")
    changes = {it: Change(one, wanted), RestrictedKey(it): Change(True, None)}
    parts = [{key: change} for key, change in changes.items()] if sliced else [changes]
    outcomes = {key: outcome for part in parts for key, outcome in driver.apply(part).items()}
    assert [outcome.error is None for outcome in outcomes.values()] == [False, False]
    scope = scope_of((it, RestrictedKey(it)))
    seen = driver.read(scope)
    assert seen.keys() == {it, RestrictedKey(it)}
    after = {key: Change(seen[key], change.after) for key, change in changes.items()}
    assert [outcome.error for outcome in driver.apply(after).values()] == [None, None]
    assert driver.read(scope) == ({} if wanted is None else {it: wanted})
    driver.close()


def test_a_restriction_goes_once_its_frontend_is_seen_to_be_gone(node: Space) -> None:
    driver = NFTables()
    driver.apply({HoldersKey(IPV4): Change(None, True), RulesKey(IPV4): Change(None, True)})
    it = Frontend(parse_address("203.0.113.80"), Protocol.TCP, 80)
    driver.apply({RestrictedKey(it): Change(None, True)})
    gone = {it: Change(Slots(None, (), refused=True), None), RestrictedKey(it): Change(True, None)}
    assert [outcome.error is None for outcome in driver.apply(gone).values()] == [False, False]
    scope = scope_of((it, RestrictedKey(it)))
    assert driver.read(scope) == {RestrictedKey(it): True}
    assert driver.apply({RestrictedKey(it): Change(True, None)}) == {RestrictedKey(it): Outcome(None)}
    assert driver.read(scope) == {}
    driver.close()
