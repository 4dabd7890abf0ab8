"""Who announces which address, to whom, and why not: stories of each rule, and that no way to a state counts."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.announcing import addresses, nodes
from podwire.announcing import follower as follower_module
from podwire.announcing.addresses import decisions
from podwire.announcing.decisions import Decision, decide
from podwire.announcing.follower import Follower
from podwire.announcing.speaker import routes, sessions, speaker
from podwire.bgp.config import why_not
from podwire.controller import events as e
from podwire.controller.loop import Controller
from podwire.controller.snapshot import fold
from podwire.controller.transaction import Result
from podwire.loadbalancer.election import owner as elected
from podwire.model.addresses import Address, parse_address, parse_prefix, parse_range, show_address
from podwire.model.announcements import (
    Answers,
    Attributes,
    BGPAdvertisement,
    BGPAdvertisementKey,
    BGPPeer,
    BGPPeerKey,
    Choice,
    Kind,
    L2Advertisement,
    L2AdvertisementKey,
    PasswordKey,
    Secret,
    SecretKey,
    Speaker,
)
from podwire.model.balancers import AddressPool, AddressPoolKey, AnnouncedBy
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Member,
    Node,
    NodeKey,
    Operator,
    Protocol,
    Requirement,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.snapshot import Local, Snapshot
from podwire.services.frontends import serving
from tests.unit import world

WEB, OTHER = ServiceKey("shop", "web"), ServiceKey("shop", "other")
VIP, SIX = parse_address("203.0.113.1"), parse_address("2001:db8::1")
ONE, TWO, THREE = NodeKey("one"), NodeKey("two"), NodeKey("three")
EXCLUDED = (("node.kubernetes.io/exclude-from-external-load-balancers", ""),)
GREEN = Requirement("color", Operator.IN, ("green",))

NODES: dict[Any, Any] = {
    key: Node((parse_prefix(f"10.1.{number}.0/24"),), (parse_address(f"192.0.2.{number}"),))
    for number, key in enumerate((ONE, TWO, THREE), 1)
}
POOL = AddressPool((parse_range("203.0.113.0/24"), parse_range("2001:db8::/64")))
TOR = BGPPeer(parse_address("192.0.2.254"), 65010, 65001)
CONFIG: dict[Any, Any] = {
    AddressPoolKey("public"): POOL,
    BGPPeerKey("tor"): TOR,
    BGPAdvertisementKey("all"): BGPAdvertisement(),
    L2AdvertisementKey("all"): L2Advertisement(),
}


def service(**more: Any) -> Service:
    ports = (ServicePort("p", Protocol.TCP, 80, 30080),)
    return Service(
        ports, **{"cluster_ips": (parse_address("10.96.0.1"),), "created": "1", "balancer_ips": (VIP,)} | more
    )


def backends(*nodes: str, of: ServiceKey = WEB, ready: bool = True, serving: bool = True) -> dict[Any, Any]:
    some = tuple(
        Member(parse_address(f"10.1.{number}.9"), ready, serving, node=name) for number, name in enumerate(nodes, 1)
    )
    return {SliceKey("shop", f"{of.name}-1"): BackendSlice(of, (BackendPort("p", Protocol.TCP, 8080),), some)}


USUAL = NODES | CONFIG | {WEB: service()} | backends("one", "two")


def made(objects: Mapping[Any, Any], programmed: bool = True, dead: frozenset[str] = frozenset()) -> Snapshot:
    now, _ = fold(Snapshot(Local("one", 1500)), e.Resync(e.ResyncReason.STARTUP, objects))
    now, _ = fold(now, e.NodesHeard(dead))
    return world.reported(now) if programmed else now


def told(decision: Decision) -> list[str]:
    return [f"{prefix} {peer}" for prefix, some in decision.routes for peer, _ in some]


def without(*keys: Any) -> dict[Any, Any]:
    return {key: it for key, it in USUAL.items() if key not in keys}


NO_BACKENDS = "service/shop/web has no backends"
OF_A_NODE = "it is an address of node two itself"
LOCAL = {WEB: service(external_local=True)}
STORIES: list[tuple[str, Mapping[Any, Any], list[str] | str]] = [
    ("a Service with a backend is told to the peer", {}, ["203.0.113.1/32 tor"]),
    ("Local with a backend here", LOCAL, ["203.0.113.1/32 tor"]),
    (
        "Local with backends elsewhere alone",
        LOCAL | backends("two"),
        "service/shop/web has no backend on this node, and its traffic policy is Local",
    ),
    ("Cluster with backends elsewhere alone", backends("two"), ["203.0.113.1/32 tor"]),
    ("without backends nobody announces", backends(), "service/shop/web has no backends"),
    (
        "backends that are not ready are none",
        backends("one", ready=False, serving=False),
        "service/shop/web has no backends",
    ),
    ("backends on their way out serve on", backends("one", ready=False), ["203.0.113.1/32 tor"]),
    (
        "an excluded node",
        {ONE: replace(NODES[ONE], labels=EXCLUDED)},
        "it has the label node.kubernetes.io/exclude-from-external-load-balancers",
    ),
    ("a node that is deleted", {ONE: replace(NODES[ONE], leaving=True)}, "it is being deleted"),
    (
        "a node without a network",
        {ONE: replace(NODES[ONE], unavailable=True)},
        "its condition NetworkUnavailable is true",
    ),
    ("a node that is not ready among others", {ONE: replace(NODES[ONE], ready=False)}, "it is not ready"),
    (
        "all nodes not ready",
        {key: replace(NODES[key], ready=False) for key in (ONE, TWO, THREE)},
        ["203.0.113.1/32 tor"],
    ),
    (
        "of no pool",
        {AddressPoolKey("public"): replace(POOL, ranges=POOL.ranges[1:])},
        "it is in no AddressPool that is used",
    ),
    (
        "a pool that is not announced by BGP",
        {AddressPoolKey("public"): replace(POOL, announce=(AnnouncedBy.L2,))},
        "pool public is not announced by BGP (spec.announce)",
    ),
    (
        "an advertisement for other pools",
        {BGPAdvertisementKey("all"): BGPAdvertisement(Choice(pools=("else",)))},
        "no BGPAdvertisement chooses pool public, service/shop/web and this node",
    ),
    (
        "an advertisement for pools by label",
        {
            BGPAdvertisementKey("all"): BGPAdvertisement(Choice(pool_selectors=((GREEN,),))),
            AddressPoolKey("public"): replace(POOL, labels=(("color", "green"),)),
        },
        ["203.0.113.1/32 tor"],
    ),
    (
        "an advertisement for other Services",
        {BGPAdvertisementKey("all"): BGPAdvertisement(Choice(service_selectors=((GREEN,),)))},
        "no BGPAdvertisement chooses pool public, service/shop/web and this node",
    ),
    (
        "an advertisement for this Service by label",
        {
            BGPAdvertisementKey("all"): BGPAdvertisement(Choice(service_selectors=((GREEN,),))),
            WEB: service(labels=(("color", "green"),)),
        },
        ["203.0.113.1/32 tor"],
    ),
    (
        "an advertisement for other nodes",
        {BGPAdvertisementKey("all"): BGPAdvertisement(Choice(node_selectors=((GREEN,),)))},
        "no BGPAdvertisement chooses pool public, service/shop/web and this node",
    ),
    (
        "an advertisement to a peer that is not there",
        {BGPAdvertisementKey("all"): BGPAdvertisement(peers=("else",))},
        "no BGPPeer of this node is among those of its BGPAdvertisements (spec.peers)",
    ),
    ("aggregated", {BGPAdvertisementKey("all"): BGPAdvertisement(lengths=(24, 64))}, ["203.0.113.0/24 tor"]),
    (
        "two advertisements, two routes",
        {BGPAdvertisementKey("more"): BGPAdvertisement(lengths=(24, 64))},
        ["203.0.113.0/24 tor", "203.0.113.1/32 tor"],
    ),
    (
        "a peer of other nodes",
        {BGPPeerKey("tor"): replace(TOR, node_selectors=((GREEN,),))},
        "this node has no BGPPeer",
    ),
    ("a node's own address", {TWO: replace(NODES[TWO], addresses=(VIP,))}, OF_A_NODE),
    (
        "a node's own address as an external IP",
        {
            TWO: replace(NODES[TWO], addresses=(VIP,)),
            WEB: service(balancer_ips=(), external_ips=(VIP,)),
            BGPAdvertisementKey("all"): BGPAdvertisement(kinds=(Kind.EXTERNAL_IP,)),
        },
        OF_A_NODE,
    ),
    (
        "a router's own address as an external IP",
        {
            BGPPeerKey("else"): replace(TOR, address=VIP, node_selectors=((GREEN,),)),
            WEB: service(balancer_ips=(), external_ips=(VIP,)),
            BGPAdvertisementKey("all"): BGPAdvertisement(kinds=(Kind.EXTERNAL_IP,)),
        },
        "it is that of bgppeer/else",
    ),
    (
        "two peers",
        {BGPPeerKey("b"): replace(TOR, address=parse_address("192.0.2.253"))},
        ["203.0.113.1/32 b", "203.0.113.1/32 tor"],
    ),
]


@pytest.mark.parametrize(("changes", "expected"), [it[1:] for it in STORIES], ids=[it[0] for it in STORIES])
def test_what_is_told_by_bgp_and_unfit(changes: Mapping[Any, Any], expected: list[str] | str) -> None:
    decision = decisions(made(USUAL | dict(changes)))[VIP]
    assert (told(decision) or decision.no_routes) == expected


def test_an_address_is_announced_only_once_nftables_holds_it() -> None:
    decision = decisions(made(USUAL, programmed=False, dead=frozenset(("two", "three"))))[VIP]
    assert (decision.routes, decision.answers) == ((), None)
    assert decision.no_routes == decision.no_answers == "nftables does not hold all of it yet"


def test_the_kinds_that_an_advertisement_names_are_told_from_whatever_pool() -> None:
    objects = USUAL | {WEB: service(external_ips=(parse_address("198.51.100.7"),))}
    ads = BGPAdvertisement(kinds=(Kind.EXTERNAL_IP, Kind.CLUSTER_IP, Kind.POD_CIDR))
    now = made(objects | {BGPAdvertisementKey("all"): ads})
    mine = sessions(now).sessions
    found = decisions(now)
    assert {show_address(it) for it, one in found.items() if one.routes} == {"198.51.100.7", "10.96.0.1"}
    assert mine[0].local_asn == 65001


def test_communities_of_all_advertisements_are_told_and_the_first_local_preference() -> None:
    ads = {
        BGPAdvertisementKey("b"): BGPAdvertisement(attributes=Attributes(("65001:2",), (), 200)),
        BGPAdvertisementKey("a"): BGPAdvertisement(attributes=Attributes(("65001:1",), ("1:2:3",), 100)),
    }
    (prefix, some), *_ = decisions(made(USUAL | ads))[VIP].routes
    assert (str(prefix), dict(some)["tor"]) == ("203.0.113.1/32", Attributes(("65001:1", "65001:2"), ("1:2:3",), 100))


def test_a_peer_without_its_password_has_no_session_until_the_secret_comes() -> None:
    peer = {BGPPeerKey("tor"): replace(TOR, password=PasswordKey("tor", "password"))}
    now = made(USUAL | peer)
    assert sessions(now).sessions == ()
    assert dict(sessions(now).unfit)[BGPPeerKey("tor")].startswith("there is no secret/tor[password]")
    now = made(USUAL | peer | {SecretKey("podwire", "tor"): Secret((("password", "hush"),))})
    (session,) = sessions(now).sessions
    assert session.password == "hush"
    assert "hush" not in repr((session, now.announcing))


def test_of_two_peers_at_one_address_the_first_by_name_has_a_session() -> None:
    found = sessions(made(USUAL | {BGPPeerKey("aaa"): TOR}))
    assert [it.name for it in found.sessions] == ["aaa"]
    assert found.unfit == ((BGPPeerKey("tor"), "bgppeer/aaa has 192.0.2.254 already"),)


def test_a_new_peer_at_the_address_of_an_older_one_takes_no_session_from_it() -> None:
    ages = {"aaa": "2026-02-01T00:00:00Z", "tor": "2026-01-01T00:00:00Z"}
    found = sessions(made(USUAL | {BGPPeerKey(name): replace(TOR, created=age) for name, age in ages.items()}))
    assert [it.name for it in found.sessions] == ["tor"]
    assert found.unfit == ((BGPPeerKey("aaa"), "bgppeer/tor has 192.0.2.254 already"),)


def test_of_several_as_the_speaker_is_in_that_of_a_session_within_one() -> None:
    def asn(**peers: tuple[int, int]) -> int:
        more = {
            BGPPeerKey(name): replace(TOR, address=parse_address(f"192.0.2.{200 + number}"), asn=asn, my_asn=mine)
            for number, (name, (asn, mine)) in enumerate(peers.items())
        }
        now = made(without(BGPPeerKey("tor")) | more)
        it = speaker(now, sessions(now).sessions, (), ())
        assert it is not None
        assert [each.name for each in it.sessions if why_not(each, it.asn)] == []
        return it.asn

    assert asn(a=(65010, 65001), b=(65002, 65002)) == 65002
    assert asn(a=(65010, 65001), b=(65011, 65003)) == 65001


def test_a_node_without_an_ipv4_address_has_a_router_id_of_its_own() -> None:
    def of(name: str) -> Address:
        node = {NodeKey(name): Node((), (parse_address("fd99::1"),))}
        now, _ = fold(Snapshot(Local(name, 1500)), e.Resync(e.ResyncReason.STARTUP, CONFIG | node))
        it = speaker(now, sessions(now).sessions, (), ())
        assert it is not None
        return it.router_id

    assert of("one") != of("two")
    assert of("one") == of("one")


# --- by ARP and NDP ----------------------------------------------------------------------------

OWNERS: list[tuple[str, Mapping[Any, Any], frozenset[str], set[str] | str]] = [
    ("of all nodes one answers", {}, frozenset(), {"one", "two", "three"}),
    ("Local: one with backends", LOCAL, frozenset(), {"one", "two"}),
    ("Local: the only one", LOCAL | backends("two"), frozenset(), {"two"}),
    ("the dead do not", {}, frozenset(("two", "three")), {"one"}),
    ("none that is not ready", {key: replace(NODES[key], ready=False) for key in (ONE, TWO)}, frozenset(), {"three"}),
    ("without backends nobody", backends(), frozenset(), "service/shop/web has no backends"),
    (
        "all of its backends' nodes are dead",
        LOCAL | backends("two"),
        frozenset(("two",)),
        "no node that may is fit: node two: it has fallen silent",
    ),
    ("a node's own address", {TWO: replace(NODES[TWO], addresses=(VIP,))}, frozenset(), OF_A_NODE),
    (
        "a pool that is not announced by L2",
        {AddressPoolKey("public"): replace(POOL, announce=(AnnouncedBy.BGP,))},
        frozenset(),
        "pool public is not announced by L2 (spec.announce)",
    ),
]


@pytest.mark.parametrize(("changes", "dead", "expected"), [it[1:] for it in OWNERS], ids=[it[0] for it in OWNERS])
def test_who_answers_by_arp_and_why_nobody(
    changes: Mapping[Any, Any], dead: frozenset[str], expected: set[str] | str
) -> None:
    decision = decisions(made(USUAL | dict(changes), dead=dead))[VIP]
    if isinstance(expected, str):
        assert (decision.owner, decision.no_answers) == ("", expected)
    else:
        members = [name for name in ("one", "two", "three") if name in expected]
        assert decision.owner == elected(VIP, members)
        assert (decision.answers is not None) == (decision.owner == "one")


def test_an_address_that_services_share_is_announced_for_each_and_answered_where_all_can_be_served() -> None:
    """One Local with backends elsewhere alone, one Cluster: whatever gave them the same address."""
    other = replace(service(cluster_ips=(parse_address("10.96.0.2"),)), ports=(ServicePort("p", Protocol.TCP, 81, 0),))
    both = USUAL | LOCAL | backends("two") | {OTHER: other} | backends("one", of=OTHER)
    decision = decisions(made(both))[VIP]
    assert (decision.services, told(decision)) == ((OTHER, WEB), ["203.0.113.1/32 tor"])
    assert decision.owner == "two"
    assert decisions(made(both, dead=frozenset(("two",))))[VIP].owner == elected(VIP, ("one", "three"))


def test_interfaces_are_those_of_all_advertisements_and_all_where_one_names_none() -> None:
    alone = {key: it for key, it in USUAL.items() if key not in (TWO, THREE)}
    named = {L2AdvertisementKey("all"): L2Advertisement(interfaces=("eth1",))}
    assert decisions(made(alone | named))[VIP].answers == ("eth1",)
    more = {L2AdvertisementKey("b"): L2Advertisement(interfaces=("eth0",))}
    assert decisions(made(alone | named | more))[VIP].answers == ("eth0", "eth1")
    assert decisions(made(alone | named | {L2AdvertisementKey("b"): L2Advertisement()}))[VIP].answers == ()


# --- what it costs -----------------------------------------------------------------------------


def test_nodes_are_compared_with_no_other_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    many: dict[Any, Any] = {NodeKey(f"n{number}"): Node(ready=False) for number in range(100)}
    now, asked = made(USUAL | many | {it: replace(NODES[it], ready=False) for it in (ONE, TWO, THREE)}), []
    monkeypatch.setattr(nodes, "_is_away", lambda _, key: bool(asked.append(key)))
    assert set(nodes.bars(now).values()) == {""}
    assert len(asked) <= 2 * len(now.nodes)


def test_what_answers_is_derived_once_for_all_ports_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = tuple(ServicePort("p", Protocol.TCP, 80 + number, 0) for number in range(50))
    now, derived = made(USUAL | {WEB: replace(service(), ports=ports)}), []

    def counted(*about: Any) -> Any:
        derived.append(about)
        return serving(*about)

    monkeypatch.setattr(addresses, "serving", counted)
    assert told(decisions(now)[VIP]) == ["203.0.113.1/32 tor"]
    assert len(derived) == 1


# --- at work -----------------------------------------------------------------------------------


class Known:
    """A controller, as far as a follower sees it."""

    unsynced: frozenset[str] = frozenset()

    def __init__(self, now: Snapshot) -> None:
        self.snapshot, self.asked = now, 0

    def __getattribute__(self, name: str) -> Any:
        if name == "unsynced":
            self.asked += 1
        return super().__getattribute__(name)


async def some_turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_follower_that_may_not_decide_yet_waits_for_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    known, heard = Known(replace(made(USUAL), whole=True)), []
    monkeypatch.setattr(Known, "unsynced", frozenset(("nftables",)))
    follower = Follower(known, heard.append, heard.append)  # type: ignore[arg-type]
    follower.follow(Result(e.Resync(e.ResyncReason.STARTUP, {})))
    running = asyncio.create_task(follower.run())
    await some_turns()
    assert (known.asked <= 1, heard) == (True, [])
    monkeypatch.setattr(Known, "unsynced", frozenset())
    follower.follow(Result(e.Resync(e.ResyncReason.STARTUP, {})))
    await some_turns()
    assert len(heard) == 2
    assert VIP in follower.decided
    running.cancel()


async def test_a_node_that_falls_silent_is_no_matter_for_after_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "RESTS", 1e9)
    known, heard = Known(replace(made(USUAL), whole=True)), []
    follower = Follower(known, heard.append, heard.append)  # type: ignore[arg-type]
    running = asyncio.create_task(follower.run())
    told = [(e.Resync(e.ResyncReason.STARTUP, {}), 2), (e.KubeStateChange(()), 2), (e.NodesHeard(frozenset(("x",))), 4)]
    for event, words in told:
        known.snapshot, _ = fold(known.snapshot, event) if not isinstance(event, e.Resync) else (known.snapshot, None)
        follower.follow(Result(event))
        await some_turns()
        assert len(heard) == words, event
    running.cancel()


async def test_what_a_failure_has_left_undecided_is_decided_next(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    follower = Follower(Known(made(USUAL)), heard.append, heard.append)  # type: ignore[arg-type]
    monkeypatch.setattr(follower_module, "decide", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await follower.once()
    assert heard == []
    monkeypatch.undo()
    await follower.once()
    assert follower.decided == {key: it for key, it in decisions(made(USUAL)).items() if it.services}


async def test_what_a_dead_node_answered_for_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    vips = [parse_address(f"203.0.113.{number}") for number in range(1, 60)]
    many = {**USUAL, WEB: service(balancer_ips=tuple(vips))}
    known, decided, heard = Known(made(many)), [], []

    def counted(*about: Any) -> Decision:
        decided.append(about[2])
        return decide(*about)

    def hear(answers: Answers) -> None:
        heard.append((len(decided), set(answers)))

    follower = Follower(known, lambda _: None, hear)  # type: ignore[arg-type]
    await follower.once()
    was = {it: follower.decided[it].owner for it in vips}
    known.snapshot = made(many, dead=frozenset(("two",)))
    follower.follow(Result(e.NodesHeard(frozenset(("two",)))))
    monkeypatch.setattr(follower_module, "decide", counted)
    heard.clear()
    await follower.once()
    lost = [it for it in vips if was[it] == "two"]
    mine = {it for it in vips if elected(it, ("one", "three")) == "one"}
    assert decided[: len(lost)] == lost
    assert heard == [(len(lost), mine), (len(vips), mine)]


async def test_others_have_their_turn_however_long_an_address_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    vips = tuple(parse_address(f"203.0.113.{number}") for number in range(1, 9))
    follower = Follower(Known(made(USUAL | {WEB: service(balancer_ips=vips)})), lambda _: None, lambda _: None)  # type: ignore[arg-type]
    monkeypatch.setattr(follower_module, "TURN", 0.0)
    deciding, turns = asyncio.create_task(follower.once()), 0
    while not deciding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= len(vips)


# --- any way -----------------------------------------------------------------------------------

VIPS = [parse_address(f"203.0.113.{number}") for number in range(1, 4)]
SERVICES = [ServiceKey("shop", name) for name in "abc"]


@st.composite
def changes(draw: st.DrawFn) -> tuple[ObjectKey, Object | None]:
    which = draw(st.integers(0, 6))
    there = draw(st.booleans())
    key: Any
    value: Any = None
    if which in (0, 1):
        key = draw(st.sampled_from(SERVICES))
        value = service(
            cluster_ips=(parse_address(f"10.96.0.{SERVICES.index(key) + 1}"),),
            balancer_ips=tuple(sorted(draw(st.sets(st.sampled_from(VIPS), max_size=2)))),
            external_local=draw(st.booleans()),
            created=draw(st.sampled_from("12")),
            labels=draw(st.sampled_from([(), (("color", "green"),)])),
        )
    elif which in (2, 3):
        owner = draw(st.sampled_from(SERVICES))
        ((key, value),) = backends(*draw(st.lists(st.sampled_from(("one", "two")), max_size=2)), of=owner).items()
    elif which == 4:
        key = draw(st.sampled_from((ONE, TWO, THREE)))
        value = replace(NODES[key], ready=draw(st.booleans()), labels=draw(st.sampled_from([(), EXCLUDED])))
    elif which == 5:
        key = BGPAdvertisementKey(draw(st.sampled_from("ab")))
        choice = Choice(service_selectors=draw(st.sampled_from([(), ((GREEN,),)])))
        lengths, preference = draw(st.sampled_from([(32, 128), (24, 64)])), draw(st.sampled_from([None, 1, 2]))
        kinds = tuple(sorted(draw(st.sets(st.sampled_from(Kind), min_size=1))))
        value = BGPAdvertisement(choice, (), Attributes((), (), preference), lengths, kinds)
    else:
        key = L2AdvertisementKey(draw(st.sampled_from("ab")))
        value = L2Advertisement(Choice(service_selectors=draw(st.sampled_from([(), ((GREEN,),)]))))
    return key, value if there else None


@given(st.lists(st.lists(changes(), max_size=4), max_size=6))
def test_what_is_told_follows_from_the_last_state_whatever_came_before(rounds: list[list[Any]]) -> None:
    asyncio.run(_follows(rounds))


async def _follows(rounds: list[list[Any]]) -> None:
    heard: list[Any] = [None, {}]
    drivers = world.memories()
    controller = Controller(Snapshot(Local("one", 1500)), world.transaction(drivers))

    def by_bgp(it: Speaker | None) -> None:
        heard[0] = it

    def by_l2(it: Answers) -> None:
        heard[1] = it

    follower = Follower(controller, by_bgp, by_l2)
    controller.followers.append(follower.follow)
    running = asyncio.create_task(controller.run())
    await controller.submit(e.Resync(e.ResyncReason.STARTUP, USUAL))
    await follower.once()
    for some in rounds:
        await controller.submit(e.KubeStateChange(tuple(dict(some).items())))
        await follower.once()
    now = controller.snapshot
    fresh = decisions(now)
    assert follower.decided == {key: it for key, it in fresh.items() if it.services}
    assert heard[1] == {key: it.answers for key, it in fresh.items() if it.answers is not None}
    of_services = {prefix: it for prefix, it in heard[0].routes.items() if prefix not in now.own_blocks}
    assert of_services == routes(reversed(list(fresh.values())), ())
    await controller.submit(e.Shutdown())
    await running
