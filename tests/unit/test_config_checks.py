"""What is wrong with pools, peers and advertisements that do not fit each other, and whose addresses no pool gives."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.clustercontroller.writer import report_patch
from podwire.controller.events import Resync, ResyncReason
from podwire.controller.snapshot import fold
from podwire.findings import findings
from podwire.loadbalancer.allocation import allocate
from podwire.loadbalancer.checks import Problem, Seen, _Nodes, problems
from podwire.loadbalancer.others import NOBODYS, Taken, taken
from podwire.loadbalancer.pools import is_buggy, used
from podwire.loadbalancer.reports import due, news
from podwire.loadbalancer.usage import Usage, usage
from podwire.model.addresses import (
    IPV4,
    IPV6,
    Address,
    AddressRange,
    Family,
    parse_address,
    parse_prefix,
    parse_range,
    prefix_around,
)
from podwire.model.announcements import (
    Attributes,
    BGPAdvertisement,
    BGPAdvertisementKey,
    BGPPeer,
    BGPPeerKey,
    Choice,
    ConfigKey,
    Kind,
    L2Advertisement,
    L2AdvertisementKey,
    PasswordKey,
    Secret,
    SecretKey,
)
from podwire.model.balancers import AddressPool, AddressPoolKey, AnnouncedBy, Request
from podwire.model.declared import Condition, Counts, Declared
from podwire.model.objects import (
    Node,
    NodeKey,
    Operator,
    PodBlock,
    PodBlockKey,
    PodPool,
    PodPoolKey,
    Requirement,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
)
from podwire.model.snapshot import Local, Snapshot

A, B = AddressPoolKey("a"), AddressPoolKey("b")
PEER_A, PEER_B, PEER_C = map(BGPPeerKey, "abc")
BGP_A, BGP_B = map(BGPAdvertisementKey, "ab")
L2_A = L2AdvertisementKey("a")
WEB = ServiceKey("shop", "web")


def labelled(key: str, value: str) -> tuple[Requirement, ...]:
    return (Requirement(key, Operator.IN, (value,)),)


def pool(*ranges: str, **more: Any) -> AddressPool:
    return AddressPool(tuple(map(parse_range, ranges or ("192.0.2.0/24",))), **more)


def peer(address: str = "198.51.100.1", asn: int = 64512, **more: Any) -> BGPPeer:
    return BGPPeer(parse_address(address), asn, 64512, **more)


def node(address: str, **labels: str) -> Node:
    return Node((), (parse_address(address),), tuple(labels.items()))


ONE, TWO = labelled("rack", "one"), labelled("rack", "two")
NODES = {
    NodeKey("n1"): node("203.0.113.1", rack="one"),
    NodeKey("n2"): node("203.0.113.2", rack="two"),
    NodeKey("n3"): node("203.0.113.3", rack="two"),
}
POOLS = {A: pool()}
PEERS = {PEER_A: peer()}
ALL_BGP = {BGP_A: BGPAdvertisement()}


def around(**more: Any) -> Seen:
    """Nothing is wrong with it but what a test makes wrong."""
    return Seen(**{"pools": POOLS, "peers": PEERS, "bgp": ALL_BGP, "nodes": NODES, **more})


def preferring(preference: int, *, pools: tuple[str, ...] = (), **more: Any) -> BGPAdvertisement:
    choice = more.pop("choice", Choice(pools))
    return BGPAdvertisement(choice, attributes=Attributes(local_pref=preference), **more)


OVERLAPS = "192.0.2.0-192.0.2.255 overlaps 192.0.2.0-192.0.2.255 of pool a, which comes first"
FIGHT = "bgpadvertisement/a, which comes first, has 100 for some of its routes to a: that is told"
CASES: dict[str, tuple[Seen, list[tuple[ConfigKey, str, str, str, bool]]]] = {
    "nothing": (Seen(), []),
    "all is right": (around(), []),
    "pools without any advertisement": (Seen(POOLS), []),
    "two pools that overlap": (
        around(pools={A: pool(), B: pool("192.0.2.9-192.0.3.1")}),
        [
            (
                B,
                "spec.addresses",
                "Overlap",
                "the pool is not used: 192.0.2.9-192.0.3.1 overlaps 192.0.2.0-192.0.2.255 of pool a, which comes first",
                True,
            )
        ],
    ),
    "two pools that overlap, the second by name of which was there before": (
        around(pools={A: pool(created="2026-02-01T00:00:00Z"), B: pool(created="2026-01-01T00:00:00Z")}),
        [
            (
                A,
                "spec.addresses",
                "Overlap",
                f"the pool is not used: {OVERLAPS.replace('pool a', 'pool b')}",
                True,
            )
        ],
    ),
    "a pool with others' addresses": (
        around(taken=taken(NODES, {}, {}, {ServiceCIDRKey("k"): ServiceCIDR((parse_prefix("192.0.2.128/25"),))})),
        [
            (
                A,
                "spec.addresses",
                "AddressesTaken",
                "it does not give what others have: 192.0.2.128-192.0.2.255 is in 192.0.2.128/25 of servicecidr/k",
                False,
            )
        ],
    ),
    "a pool with many others' addresses": (
        around(taken=taken({NodeKey(f"n{n}"): node(f"192.0.2.{n}") for n in range(1, 11)}, {}, {}, {})),
        [
            (
                A,
                "spec.addresses",
                "AddressesTaken",
                "it does not give what others have: "
                + "; ".join(f"192.0.2.{n} is an address of node/n{n}" for n in range(1, 9))
                + "; and 2 more",
                False,
            )
        ],
    ),
    "a pool that nobody announces": (
        around(
            pools={**POOLS, B: pool("198.51.100.0/24")},
            bgp={BGP_A: BGPAdvertisement(Choice(("a",)))},
            l2={L2_A: L2Advertisement(Choice(("a",)))},
        ),
        [(B, "spec.announce", "NotAnnounced", "no BGPAdvertisement or L2Advertisement chooses the pool", False)],
    ),
    "a pool by what nobody announces it": (
        around(pools={A: pool(announce=(AnnouncedBy.L2,))}),
        [(A, "spec.announce", "NotAnnounced", "no L2Advertisement chooses the pool", False)],
    ),
    "a pool where only cluster IPs are advertised": (
        around(bgp={BGP_A: BGPAdvertisement(kinds=(Kind.CLUSTER_IP,))}),
        [(A, "spec.announce", "NotAnnounced", "no BGPAdvertisement or L2Advertisement chooses the pool", False)],
    ),
    "no Secret": (
        around(peers={PEER_A: peer(password=PasswordKey("s", "password"))}),
        [
            (
                PEER_A,
                "spec.passwordSecret.name",
                "SecretMissing",
                "no node has a session: namespace podwire has no Secret s",
                True,
            )
        ],
    ),
    "no such item": (
        around(peers={PEER_A: peer(password=PasswordKey("s", "p"))}, secrets={"s": {"password"}}),
        [
            (
                PEER_A,
                "spec.passwordSecret.key",
                "SecretMissing",
                "no node has a session: Secret s has no password at p",
                True,
            )
        ],
    ),
    "Secrets that nobody may see": (around(peers={PEER_A: peer(password=PasswordKey("s", "p"))}, secrets=None), []),
    "a Secret": (around(peers={PEER_A: peer(password=PasswordKey("s", "p"))}, secrets={"s": {"p"}}), []),
    "two peers at one address": (
        around(peers={PEER_B: peer(), PEER_A: peer()}),
        [
            (
                PEER_B,
                "spec.peerAddress",
                "PeerConflict",
                "no session: bgppeer/a, which comes first, has the same address",
                True,
            )
        ],
    ),
    "two peers at one address, the second by name of which was there before": (
        around(
            peers={PEER_A: peer(created="2026-02-01T00:00:00Z"), PEER_B: peer(created="2026-01-01T00:00:00Z")},
        ),
        [
            (
                PEER_A,
                "spec.peerAddress",
                "PeerConflict",
                "no session: bgppeer/b, which comes first, has the same address",
                True,
            )
        ],
    ),
    "two peers at one address, of different nodes": (
        around(peers={PEER_A: peer(node_selectors=(ONE,)), PEER_B: peer(node_selectors=(TWO,))}),
        [],
    ),
    "two peers at one address, of some nodes": (
        around(peers={PEER_A: peer(node_selectors=(ONE,)), PEER_B: peer()}),
        [
            (
                PEER_B,
                "spec.peerAddress",
                "PeerConflict",
                "no session on 1 of its 3 nodes: bgppeer/a, which comes first, has the same address",
                False,
            )
        ],
    ),
    "two peers at one address, the first of which has no Secret": (
        around(peers={PEER_A: peer(password=PasswordKey("s", "p")), PEER_B: peer()}),
        [
            (
                PEER_A,
                "spec.passwordSecret.name",
                "SecretMissing",
                "no node has a session: namespace podwire has no Secret s",
                True,
            )
        ],
    ),
    "two names for a node": (
        around(
            peers={
                PEER_A: peer(router_id=parse_address("0.0.0.1"), node_selectors=(ONE,)),
                PEER_B: peer("198.51.100.2", router_id=parse_address("0.0.0.2"), node_selectors=(ONE,)),
                PEER_C: peer("198.51.100.3", router_id=parse_address("0.0.0.1"), node_selectors=(ONE,)),
            }
        ),
        [
            (PEER_B, "spec.routerID", "RouterIDConflict", "that of bgppeer/a is used, which comes first", False),
            (PEER_C, "spec.routerID", "RouterIDConflict", "that of bgppeer/b is used, which comes first", False),
        ],
    ),
    "one name for two nodes": (
        around(peers={PEER_A: peer(router_id=parse_address("0.0.0.1"), node_selectors=(TWO,))}),
        [
            (
                PEER_A,
                "spec.routerID",
                "SharedRouterID",
                "2 nodes call themselves 0.0.0.1; expected one of its own for each",
                False,
            )
        ],
    ),
    "a peer of no node": (
        around(peers={PEER_A: peer(node_selectors=(labelled("rack", "three"),))}),
        [(PEER_A, "spec.nodeSelectors", "NoNode", "no node has a session: none is selected", False)],
    ),
    "a peer that is told nothing": (
        around(peers={**PEERS, PEER_B: peer("198.51.100.2")}, bgp={BGP_A: BGPAdvertisement(peers=("a",))}),
        [(PEER_B, "", "NoAdvertisement", "nothing is told to it: no BGPAdvertisement is for this peer", False)],
    ),
    "a peer that tells": (
        around(
            peers={**PEERS, PEER_B: peer("198.51.100.2", receives=(parse_prefix("0.0.0.0/0"),))},
            bgp={BGP_A: BGPAdvertisement(peers=("a",))},
        ),
        [],
    ),
    "an advertisement of what is not there": (
        around(bgp={BGP_A: BGPAdvertisement(Choice(("a", "x", "y")), peers=("a", "z")), BGP_B: BGPAdvertisement()}),
        [
            (BGP_A, "spec.addressPools", "UnknownPool", "there is no AddressPool x or y", False),
            (BGP_A, "spec.peers", "UnknownPeer", "there is no BGPPeer z", False),
        ],
    ),
    "no peer at all": (around(peers={}), [(BGP_A, "spec.peers", "NoPeer", "there is no BGPPeer", False)]),
    "an advertisement of a pool that is not used": (
        around(pools={A: pool(), B: pool()}, bgp={BGP_A: BGPAdvertisement(Choice(("a", "b")))}),
        [
            (
                B,
                "spec.addresses",
                "Overlap",
                f"the pool is not used: {OVERLAPS}",
                True,
            ),
            (
                BGP_A,
                "spec.addressPools",
                "PoolNotUsed",
                f"pool b is not used: {OVERLAPS}",
                False,
            ),
        ],
    ),
    "an advertisement of a pool that is not for it": (
        around(pools={A: pool(announce=(AnnouncedBy.BGP,))}, l2={L2_A: L2Advertisement(Choice(("a",)))}),
        [(L2_A, "spec.addressPools", "PoolNotAnnounced", "pool a is not announced by L2 (its spec.announce)", False)],
    ),
    "an advertisement of no pool and no node": (
        around(l2={L2_A: L2Advertisement(Choice((), (ONE,), (), (labelled("rack", "three"),)))}),
        [
            (L2_A, "spec.addressPoolSelectors", "NoPool", "no AddressPool that is used is selected", False),
            (L2_A, "spec.nodeSelectors", "NoNode", "no node is selected", False),
        ],
    ),
    "pools of what comes from none": (
        around(bgp={**ALL_BGP, BGP_B: BGPAdvertisement(Choice(("x",)), kinds=(Kind.POD_CIDR,))}),
        [
            (
                BGP_B,
                "spec.addressPools",
                "PoolsUnused",
                "pools count for LoadBalancerIP alone, which spec.advertise does not name",
                False,
            )
        ],
    ),
    "a range with more than the pool": (
        around(
            pools={A: pool("192.0.2.0/25", "192.0.2.128-192.0.2.254")}, bgp={BGP_A: BGPAdvertisement(lengths=(24, 128))}
        ),
        [
            (
                BGP_A,
                "spec.aggregationLength",
                "WiderThanPool",
                "192.0.2.0/24, as its addresses are told, has others than those of pool a",
                False,
            )
        ],
    ),
    "a range with all of the pool, in two parts": (
        around(pools={A: pool("192.0.2.0/25", "192.0.2.128/25")}, bgp={BGP_A: BGPAdvertisement(lengths=(24, 64))}),
        [],
    ),
    "an IPv6 range with more than the pool": (
        around(pools={A: pool("2001:db8::/120")}, bgp={BGP_A: BGPAdvertisement(lengths=(24, 64))}),
        [
            (
                BGP_A,
                "spec.aggregationLengthV6",
                "WiderThanPool",
                "2001:db8::/64, as its addresses are told, has others than those of pool a",
                False,
            )
        ],
    ),
    "a preference that is told to nobody": (
        around(peers={PEER_A: peer(asn=64513)}, bgp={BGP_A: preferring(100)}),
        [
            (
                BGP_A,
                "spec.localPref",
                "LocalPrefUnused",
                "it is told to no peer: none that the advertisement is for is of the nodes' own AS",
                False,
            )
        ],
    ),
    "two preferences": (
        around(bgp={BGP_A: preferring(100), BGP_B: preferring(200)}),
        [(BGP_B, "spec.localPref", "LocalPrefConflict", FIGHT, False)],
    ),
    "two preferences of pods' ranges": (
        around(
            bgp={
                BGP_A: preferring(100, kinds=(Kind.POD_CIDR, Kind.LOAD_BALANCER_IP)),
                BGP_B: preferring(200, kinds=(Kind.POD_CIDR,)),
            }
        ),
        [(BGP_B, "spec.localPref", "LocalPrefConflict", FIGHT, False)],
    ),
    "two preferences of cluster IPs": (
        around(
            bgp={
                BGP_A: preferring(100, kinds=(Kind.CLUSTER_IP, Kind.LOAD_BALANCER_IP)),
                BGP_B: preferring(200, kinds=(Kind.CLUSTER_IP,)),
            }
        ),
        [(BGP_B, "spec.localPref", "LocalPrefConflict", FIGHT, False)],
    ),
    "two preferences, of Services that are of both": (
        around(
            bgp={
                BGP_A: preferring(100, choice=Choice(service_selectors=(labelled("app", "web"),))),
                BGP_B: preferring(200, choice=Choice(service_selectors=(labelled("tier", "front"),))),
            },
            services={WEB: (("app", "web"), ("tier", "front"))},
        ),
        [
            (BGP_B, "spec.localPref", "LocalPrefConflict", FIGHT, False),
        ],
    ),
}


@pytest.mark.parametrize(("seen", "found"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_told_at_its_object_and_field(
    seen: Seen, found: list[tuple[ConfigKey, str, str, str, bool]]
) -> None:
    assert problems(seen) == tuple(Problem(*it) for it in found)


APART = {
    "pools": {BGP_A: preferring(100, pools=("a",)), BGP_B: preferring(200, pools=("b",))},
    "nodes": {
        BGP_A: preferring(100, choice=Choice(node_selectors=(ONE,))),
        BGP_B: preferring(200, choice=Choice(node_selectors=(TWO,))),
    },
    "peers": {BGP_A: preferring(100, peers=("a",)), BGP_B: preferring(200, peers=("b",))},
    "lengths": {BGP_A: preferring(100, lengths=(32, 128)), BGP_B: preferring(200, lengths=(31, 127))},
    "kinds": {BGP_A: preferring(100), BGP_B: preferring(200, kinds=(Kind.POD_CIDR,))},
    "Services": {
        BGP_A: preferring(100, choice=Choice(service_selectors=(labelled("app", "web"),))),
        BGP_B: preferring(200, choice=Choice(service_selectors=(labelled("app", "dns"),))),
    },
    "preferences": {BGP_A: preferring(100), BGP_B: preferring(100)},
    "no preference": {BGP_A: BGPAdvertisement(), BGP_B: preferring(200)},
}


@pytest.mark.parametrize("bgp", APART.values(), ids=APART)
def test_preferences_for_different_routes_do_not_fight(bgp: dict[BGPAdvertisementKey, BGPAdvertisement]) -> None:
    pools = {A: pool(), B: pool("198.51.100.0/24")}
    services = {WEB: (("app", "web"),), ServiceKey("shop", "dns"): (("app", "dns"),)}
    found = problems(around(pools=pools, bgp=bgp, peers={**PEERS, PEER_B: peer("198.51.100.2")}, services=services))
    assert [it for it in found if it.reason.startswith("LocalPref")] == []


# --- whose addresses no pool gives -------------------------------------------------------------

PODS = PodPool((parse_prefix("192.0.2.32/28"),))


def test_addresses_are_whoever_s_they_are() -> None:
    nodes = {
        NodeKey("n"): Node((parse_prefix("192.0.2.16/28"),), (parse_address("192.0.2.1"), parse_address("fd00::1")))
    }
    it = taken(
        nodes,
        {PodPoolKey("p"): PODS},
        {PodBlockKey(parse_prefix("192.0.2.64/30")): PodBlock("n", "gone")},
        {ServiceCIDRKey("k"): ServiceCIDR((parse_prefix("192.0.2.40/29"), parse_prefix("fd96::/112")))},
    )
    told = {
        "192.0.2.0": "",
        "192.0.2.1": "an address of node/n",
        "192.0.2.17": "in pod CIDR 192.0.2.16/28 of node/n",
        "192.0.2.33": "in 192.0.2.32/28 of podpool/p",
        "192.0.2.47": "in 192.0.2.32/28 of podpool/p",
        "192.0.2.48": "",
        "192.0.2.66": "in podblock/192.0.2.64/30",
        "fd00::1": "an address of node/n",
        "fd96::ff": "in fd96::/112 of servicecidr/k",
        "fd96::1:0": "",
    }
    assert {text: it.of(parse_address(text)) for text in told} == told


numbers = st.integers(0, 40)
families = st.sampled_from((IPV4, IPV6))


def address(family: Family, number: int) -> Address:
    return Address(number.to_bytes(family.size, "big"))


@st.composite
def prefixes(draw: st.DrawFn) -> Any:
    family, length = draw(families), draw(st.integers(0, 4))
    return prefix_around(address(family, draw(numbers)), family.bits - length)


@given(
    st.lists(st.builds(address, families, numbers), max_size=4),
    st.lists(prefixes(), max_size=4),
    families,
    numbers,
    st.integers(0, 20),
    st.booleans(),
)
def test_a_pool_gives_what_is_nobody_s(
    own: list[Address], ranges: list[Any], family: Family, first: int, more: int, avoid: bool
) -> None:
    """Counted one by one."""
    it: Taken = taken(
        {NodeKey(f"n{n}"): Node((), (each,)) for n, each in enumerate(own)},
        {PodPoolKey(f"p{n}"): PodPool((each,)) for n, each in enumerate(ranges)},
        {},
        {},
    )
    whole = AddressRange(address(family, first), address(family, first + more))
    known = used({A: AddressPool((whole,), avoid_buggy=avoid)}, it)
    each = [address(family, number) for number in range(first, first + more + 1)]
    free = [one for one in each if one not in own and not any(one in prefix for prefix in ranges)]
    assert [one for one in each if not it.of(one)] == free
    assert [one for one in each if any(one in part for part in known.given["a"])] == free
    assert all((one in part) for part, _ in it.within(whole) for one in (part.first, part.last))
    given = [one for one in free if not (avoid and is_buggy(one))]
    requests = {ServiceKey("s", f"{n:02}"): Request((family,), frozenset()) for n in range(len(each))}
    grants = allocate(known, {}, requests)
    assert [grant.addresses for grant in grants.values() if grant.addresses] == [(one,) for one in given]
    total = len(given)
    assert usage(known, given[:3]) == {"a": {family: Usage(total, len(given[:3]), total - len(given[:3]))}}


def test_a_node_s_address_is_not_given_to_who_asks_for_it_and_kept_by_who_has_it() -> None:
    first = parse_address("192.0.2.1")
    known = used({A: pool("192.0.2.1-192.0.2.2")}, taken({NodeKey("n"): node("192.0.2.1")}, {}, {}, {}))
    asks = allocate(known, {}, {WEB: Request((IPV4,), frozenset(), asked=(first,))})[WEB]
    assert (asks.addresses, asks.why) == ((), "192.0.2.1: it is an address of node/n")
    has = allocate(known, {}, {WEB: Request((IPV4,), frozenset(), holds=(first,))})[WEB]
    assert (has.addresses, has.stale) == ((first,), ((first, "it is an address of node/n"),))
    assert usage(known, [first]) == {"a": {IPV4: Usage(1, 1, 1)}}


def test_a_large_pool_is_counted_without_being_gone_through() -> None:
    known = used({A: pool("2001:db8::/32", "10.0.0.0/8", avoid_buggy=True)})
    held = [parse_address("2001:db8::1"), parse_address("10.0.0.0"), parse_address("10.0.0.1")]
    assert usage(known, held) == {
        "a": {IPV4: Usage((1 << 24) - (2 << 16), 2, (1 << 24) - (2 << 16) - 1), IPV6: Usage(1 << 96, 1, (1 << 96) - 1)}
    }
    assert used({A: pool()}, NOBODYS).given == {"a": (parse_range("192.0.2.0/24"),)}


# --- statuses ----------------------------------------------------------------------------------

NOW = "2024-05-06T07:08:09Z"
WRONG = Problem(A, "spec.addresses", "AddressesTaken", "m")
OVERLAP = Problem(A, "spec.addresses", "Overlap", "o", refused=True)


def said(held: Declared) -> list[tuple[str, ...]]:
    return [(it.type, it.status, it.reason, it.message, it.since) for it in held.conditions]


def written(held: Declared, *found: Problem, now: str = NOW, **counts: Usage) -> Declared:
    of = {IPV4: counts["ipv4"]} if counts else {}
    report = due(held, found, of, now)
    assert report is not None
    patch = msgspec.json.decode(report_patch(held, report))
    assert patch["metadata"] == {"resourceVersion": held.version}
    after = msgspec.structs.replace(held, conditions=report.conditions, counts=report.counts)
    assert due(after, found, of, "later") is None, "once is enough"
    return after


def test_a_status_says_whether_an_object_is_used_and_whether_all_of_it_is() -> None:
    fresh = Declared(pool(), version="1", generation=1)
    right = written(fresh)
    assert said(right) == [("Accepted", "True", "Accepted", "", NOW), ("Complete", "True", "Complete", "", NOW)]
    part = written(right, WRONG, now="then")
    assert said(part) == [
        ("Accepted", "True", "Accepted", "", NOW),
        ("Complete", "False", "AddressesTaken", "spec.addresses: m", "then"),
    ]
    none = written(part, OVERLAP, WRONG, now="at last")
    both = "spec.addresses: o; spec.addresses: m"
    assert said(none) == [
        ("Accepted", "False", "Overlap", both, "at last"),
        ("Complete", "False", "Overlap", both, "then"),
    ]
    wrong = written(Declared(None, "spec.addresses[0]: w", "1"))
    assert said(wrong)[0] == ("Accepted", "False", "Invalid", "spec.addresses[0]: w", NOW)


def test_another_s_condition_stays_and_another_generation_is_told() -> None:
    theirs = Condition("Zeal", "True", "Because", "")
    right = written(Declared(pool(), version="1", generation=1, conditions=(theirs,)))
    assert theirs in right.conditions
    changed = msgspec.structs.replace(right, generation=2)
    assert {it.generation for it in written(changed).conditions if it != theirs} == {2}
    shuffled = msgspec.structs.replace(right, conditions=tuple(reversed(right.conditions)))
    assert due(shuffled, (), {}, NOW) is None


def test_counts_come_and_go() -> None:
    right = written(Declared(pool(), version="1"), ipv4=Usage(1 << 70, 2, 3))
    assert right.counts == (Counts(str(1 << 70), 2, "3"), None)
    report = due(right, (OVERLAP,), {}, NOW)
    assert report is not None
    assert msgspec.json.decode(report_patch(right, report))["status"]["ipv4"] is None
    assert "ipv6" not in msgspec.json.decode(report_patch(right, report))["status"]


def test_an_event_is_told_where_something_is_wrong_and_when_it_is_over() -> None:
    fresh = Declared(pool(), version="1")
    heard = []
    held = fresh
    for found in ((), (WRONG,), (WRONG, OVERLAP), (), ()):
        report = due(held, found, {}, NOW)
        heard.append([(it.type, it.reason, it.message) for it in news(held, report)] if report is not None else None)
        if report is not None:
            held = msgspec.structs.replace(held, conditions=report.conditions)
    assert heard == [
        [],
        [("Warning", "AddressesTaken", "spec.addresses: m")],
        [("Warning", "AddressesTaken", "spec.addresses: m; spec.addresses: o")],
        [("Normal", "Complete", "all that it says is done")],
        None,
    ]


def test_a_long_message_is_cut_to_what_the_api_keeps() -> None:
    held = Declared(pool(), version="1")
    after = written(held, *(Problem(A, "f", "R", f"{n} {'x' * 9000}") for n in range(9)))
    assert max(len(it.message) for it in after.conditions) == 32768


# --- what an agent tells of it -----------------------------------------------------------------


def configured(*, whole: bool = True, **more: Any) -> list[str]:
    """What `podwire status` says of a node that knows this."""
    objects = {
        **NODES,
        A: pool("192.0.2.0/24", "203.0.113.2-203.0.113.3"),
        B: pool("192.0.2.128/25"),
        PEER_A: peer(password=PasswordKey("s", "p")),
        BGP_A: BGPAdvertisement(Choice(("a", "none"))),
        PodBlockKey(parse_prefix("192.0.2.64/30")): PodBlock("n1", "gone"),
        SecretKey("podwire", "s"): Secret((("other", "hush"),)),
        **more.pop("objects", {}),
    }
    now, _ = fold(Snapshot(Local("n1", 1500)), Resync(ResyncReason.STARTUP, objects, whole=whole))
    return [it for it in findings(now) if it.startswith(("addresspool/", "bgp", "l2"))]


def test_status_tells_what_is_wrong_in_the_words_of_the_conditions() -> None:
    overlaps = "192.0.2.128-192.0.2.255 overlaps 192.0.2.0-192.0.2.255 of pool a, which comes first"
    others = "192.0.2.64-192.0.2.67 is in podblock/192.0.2.64/30"
    nodes = "; ".join(f"203.0.113.{n} is an address of node/n{n}" for n in (2, 3))
    assert configured() == [
        f"addresspool/a: spec.addresses: it does not give what others have: {others}; {nodes}",
        f"addresspool/b: spec.addresses: the pool is not used: {overlaps}",
        "bgpadvertisement/a: spec.addressPools: there is no AddressPool none",
        "bgppeer/a: spec.passwordSecret.key: no node has a session: Secret s has no password at p",
    ]
    assert configured(whole=False) == [], "what is not known yet is missing nowhere"


@given(st.data())
def test_nodes_are_selected_as_requirements_say(data: st.DataObject) -> None:
    labels = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
    nodes = {NodeKey(f"n{n}"): Node(labels=tuple(it.items())) for n, it in enumerate(data.draw(st.lists(labels)))}
    values = st.lists(st.sampled_from("xyz"), min_size=1, unique=True).map(tuple)
    several = st.builds(Requirement, st.sampled_from("abc"), st.sampled_from((Operator.IN, Operator.NOT_IN)), values)
    alone = st.builds(Requirement, st.sampled_from("abc"), st.sampled_from((Operator.EXISTS, Operator.DOES_NOT_EXIST)))
    selectors = tuple(data.draw(st.lists(st.lists(several | alone, max_size=3).map(tuple), max_size=3)))
    expected = {
        k for k, it in nodes.items() if not selectors or any(all(r.is_met(it.labels) for r in s) for s in selectors)
    }
    assert _Nodes(nodes).selected(selectors) == expected
