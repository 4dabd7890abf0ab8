"""Which blocks a node takes and gives back: it never wavers, never takes what is somebody else's, and says why not."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.findings import findings
from podwire.ipam import pools, room, usage
from podwire.ipam.allocation import Obstacle, allocate
from podwire.ipam.claims import Claims, Wishes, due
from podwire.ipam.own import own_addresses
from podwire.model.addresses import (
    IPV4,
    Address,
    Prefix,
    overlap,
    parse_address,
    parse_prefix,
    parse_range,
    prefix_around,
    show_address,
)
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    Node,
    NodeKey,
    PodBlock,
    PodBlockKey,
    PodKey,
    PodPool,
    PodPoolKey,
)
from podwire.model.snapshot import Local, Snapshot

ONE, TWO = NodeKey("one"), NodeKey("two")
LOCAL = Local("one", 1500, claims_blocks=True)


def pool(*cidrs: str, sizes: tuple[int, int] = (26, 122), reserved: tuple[str, ...] = (), **more: Any) -> PodPool:
    return PodPool(tuple(map(parse_prefix, cidrs)), sizes, tuple(map(parse_range, reserved)), **more)


def block(text: str) -> PodBlockKey:
    return PodBlockKey(parse_prefix(text))


def pods(*addresses: str, pool: str = "") -> dict[AttachmentKey, Attachment]:
    return {
        AttachmentKey(text, "eth0"): Attachment(
            PodKey("default", f"p{number}"), f"/{number}", (parse_address(text),), number + 1, True, pool=pool
        )
        for number, text in enumerate(addresses)
    }


def known(
    objects: dict[ObjectKey, Object], held: dict[AttachmentKey, Attachment] | None = None, local: Local = LOCAL
) -> Snapshot:
    now, _ = fold(Snapshot(local), e.Restored(held or {}, {}))
    return fold(now, e.Resync(e.ResyncReason.STARTUP, {ONE: Node(), **objects}))[0]


def done(now: Snapshot, claims: Claims) -> Snapshot:
    """As the API server has agreed to it."""
    changes: list[tuple[ObjectKey, Object | None]] = [(PodBlockKey(it), None) for it in claims.give]
    changes += [(PodBlockKey(it.cidr), PodBlock("one", it.pool)) for it in (*claims.take, *claims.renew)]
    return fold(now, e.KubeStateChange(tuple(changes)))[0]


# --- by example --------------------------------------------------------------------------------

WEB, ALL = PodPoolKey("web"), PodPoolKey("all")


def cidrs(claims: Claims) -> list[str]:
    return [str(it.cidr) for it in claims.take]


def test_a_node_without_pod_cidrs_takes_a_block_of_each_family_before_any_pod_comes() -> None:
    now = known({ALL: pool("10.1.0.0/24", "fd01::/120")})
    claims = due(now)
    assert {(it.pool, it.cidr.length) for it in claims.take} == {("all", 26), ("all", 122)}
    assert (claims.give, claims.renew, claims.conflicts) == ((), (), ())
    assert due(done(now, claims)) == Claims()


def test_nothing_is_due_while_not_all_is_known() -> None:
    now, _ = fold(Snapshot(LOCAL), e.KubeStateChange(((ONE, Node()), (ALL, pool("10.1.0.0/24")))))
    assert due(now) == Claims()
    assert due(replace(now, whole=True)) != Claims()
    assert due(replace(now, whole=True, nodes=now.nodes.delete(ONE))) == Claims()


def test_pod_cidrs_come_first_and_a_block_is_taken_before_they_are_full() -> None:
    node = Node((parse_prefix("10.9.0.0/28"),))
    objects: dict[ObjectKey, Object] = {ONE: node, ALL: pool("10.1.0.0/24", sizes=(28, 122))}
    for living, taken in ((0, 0), (5, 0), (6, 1)):  # 13 are pods', 8 should be free
        held = pods(*(f"10.9.0.{number + 2}" for number in range(living)))
        assert len(due(known(objects, held)).take) == taken


def test_of_a_pool_for_those_who_ask_nothing_is_taken_until_somebody_does() -> None:
    objects: dict[ObjectKey, Object] = {WEB: pool("10.1.0.0/24", auto_assign=False)}
    now = known(objects)
    assert due(now) == Claims()
    claims = due(now, Wishes(frozenset(("web", "none"))))
    assert [it.pool for it in claims.take] == ["web"]
    after = done(now, claims)
    (taken,) = claims.take
    assert due(after).give == (taken.cidr,)
    assert due(after, Wishes(frozenset(("web",)))) == Claims()
    living = pods(show_address(taken.cidr.nth(5)), pool="web")
    assert due(known({**objects, PodBlockKey(taken.cidr): PodBlock("one", "web")}, living)) == Claims()


def test_nodes_look_in_places_of_their_own() -> None:
    objects: dict[ObjectKey, Object] = {ALL: pool("10.0.0.0/8")}
    found = set()
    for number in range(50):
        name = f"node{number}"
        now = known({NodeKey(name): Node(), **objects}, local=Local(name, 1500, claims_blocks=True))
        found.update(cidrs(due(now)))
    assert len(found) == 50


def test_of_empty_blocks_one_is_spared() -> None:
    blocks = ("10.1.0.0/26", "10.1.0.64/26", "10.1.0.128/26", "10.1.0.192/26")
    objects: dict[ObjectKey, Object] = {ALL: pool("10.1.0.0/24")}
    objects |= {block(text): PodBlock("one", "all") for text in blocks}
    now = known(objects)
    turns = sorted(blocks, key=lambda it: pools.turn(now, "all", parse_prefix(it)))
    # What all get of keeps one for use and one spare; whoever lives in one keeps that, and the first is spare.
    assert set(map(str, due(now).give)) == set(turns[2:])
    living = show_address(parse_prefix(turns[2]).nth(9))
    assert set(map(str, due(known(objects, pods(living))).give)) == {turns[1], turns[3]}


def test_a_record_that_was_lost_is_made_again_where_pods_live_in_it() -> None:
    reserved = ("10.1.0.0-10.1.0.15",)
    now = known({ALL: pool("10.1.0.0/24", reserved=reserved)}, pods("10.1.0.70", "10.1.0.5", "192.0.2.1"))
    claims = due(now)
    assert [(str(it.cidr), it.pool) for it in claims.renew] == [("10.1.0.5/32", "all"), ("10.1.0.64/26", "all")]
    assert claims.take == ()
    assert due(done(now, claims)) == Claims()


@pytest.mark.parametrize("theirs", ["10.1.0.64/26", "10.1.0.64/27", "10.1.0.0/25"])
def test_what_another_node_has_meanwhile_is_a_conflict_and_nobody_gives_of_it(theirs: str) -> None:
    objects: dict[ObjectKey, Object] = {ALL: pool("10.1.0.0/24"), TWO: Node(), block(theirs): PodBlock("two", "all")}
    now = known(objects, pods("10.1.0.70"))
    claims = due(now)
    assert claims.renew == ()
    (told,) = claims.conflicts
    assert told == f"pod/default/p0: its address 10.1.0.70 is in the block {theirs} of node/two: start it anew"
    assert told in findings(now)  # in the same words, so that it is shown once
    assert all(not overlap(it.cidr, parse_prefix(theirs)) for it in claims.take)


def test_an_address_that_is_reserved_though_a_pod_has_it_is_that_nodes_until_the_pod_goes() -> None:
    """Else a pod elsewhere that asks for it would get it, too."""
    held = pods("10.1.0.9", "10.1.0.10")
    reserving = {WEB: pool("10.1.0.0/16", reserved=("10.1.0.9-10.1.0.9", "10.1.0.20-10.1.0.29"))}
    mine = {block("10.1.0.0/26"): PodBlock("one", "web")}
    now = known({**reserving, **mine}, held)
    assert cidrs_of(due(now)) == ["10.1.0.9/32"]
    now = done(now, due(now))
    assert due(now).renew == ()
    assert due(now).give == ()
    gone = known({**reserving, **mine, block("10.1.0.9/32"): PodBlock("one", "web")}, pods("10.1.0.10"))
    assert cidrs_of(due(gone)) == []
    assert parse_prefix("10.1.0.9/32") in due(gone).give
    theirs = known({**reserving, **mine, block("10.1.0.9/32"): PodBlock("two", "web")}, held)
    assert due(theirs).renew == ()
    (text,) = due(theirs).conflicts
    assert text == "pod/default/p0: its address 10.1.0.9 is in the block 10.1.0.9/32 of node/two: start it anew"


def cidrs_of(claims: Claims) -> list[str]:
    return [str(it.cidr) for it in claims.renew]


def test_addresses_that_another_plugin_has_given_are_nobodys_claim() -> None:
    held = {key: replace(it, delegated=True) for key, it in pods("10.1.0.70").items()}
    assert due(known({ALL: pool("10.1.0.0/24")}, held)).renew == ()


def test_a_fixed_address_is_taken_for_who_asks_and_given_back_when_nobody_does() -> None:
    one, far, free = map(parse_address, ("10.1.0.5", "10.1.0.6", "10.1.0.77"))
    objects: dict[ObjectKey, Object] = {
        WEB: pool("10.1.0.0/24", reserved=("10.1.0.0-10.1.0.15",), auto_assign=False),
        block("10.1.0.6/32"): PodBlock("two", "web"),
    }
    now = known(objects)
    wishes = Wishes(fixed=frozenset((one, far, free)))
    claims = due(now, wishes)
    assert [(str(it.cidr), it.pool) for it in claims.take] == [("10.1.0.5/32", "web")]
    after = done(now, claims)
    assert due(after, wishes) == Claims()
    assert list(map(str, due(after).give)) == ["10.1.0.5/32"]


def test_what_is_no_longer_for_this_node_is_given_back_once_nobody_lives_there() -> None:
    objects: dict[ObjectKey, Object] = {block("10.1.0.64/26"): PodBlock("one", "gone")}
    assert list(map(str, due(known(objects)).give)) == ["10.1.0.64/26"]
    assert due(known(objects, pods("10.1.0.70"))) == Claims()


# --- whatever comes ----------------------------------------------------------------------------

REACH = [f"10.1.0.{number}" for number in (1, 2, 7, 9, 14, 17, 33, 34, 40, 63)]
PLACES = st.sampled_from(
    [
        parse_prefix(f"10.1.0.{number}/{length}")
        for length in (27, 28, 29, 32)
        for number in range(0, 64, 1 << 32 - length)
    ]
)
some_pools = st.builds(
    lambda cidrs, size, reserved, auto: pool(*cidrs, sizes=(size, 125), reserved=reserved, auto_assign=auto),
    st.sampled_from(
        (("10.1.0.0/26",), ("10.1.0.0/27",), ("10.1.0.32/27", "fd01::/122"), ("10.1.0.0/27", "10.1.0.32/28"))
    ),
    st.sampled_from((28, 29, 30)),
    st.sampled_from(((), (), ("10.1.0.32-10.1.0.33",), ("10.1.0.34-10.1.0.47",))),
    st.booleans(),
).filter(lambda it: all(any(r.first in c and r.last in c for c in it.cidrs) for r in it.reserved))
clusters = st.builds(
    lambda pools, blocks, cidrs: {
        ONE: Node(tuple(map(parse_prefix, cidrs))),
        **{PodPoolKey(name): it for name, it in pools.items()},
        **{PodBlockKey(cidr): it for cidr, it in blocks.items()},
    },
    st.dictionaries(st.sampled_from("ab"), some_pools, min_size=1),
    st.dictionaries(
        PLACES, st.builds(PodBlock, st.sampled_from(("one", "one", "two")), st.sampled_from("aab")), max_size=8
    ),
    st.sampled_from(((), (), ("10.9.0.0/28",), ("10.9.0.0/24",), ("10.1.0.16/29",))),
)
living = st.lists(st.sampled_from((*REACH, "10.9.0.3", "fd01::5")), max_size=6, unique=True)
wishes = st.builds(
    Wishes,
    st.frozensets(st.sampled_from("abc")),
    st.frozensets(st.sampled_from(REACH).map(parse_address), max_size=2),
)


# This node gives single addresses back that lie where it would take a block.
@example(
    {
        ONE: Node(),
        PodPoolKey("a"): pool("10.1.0.0/26", sizes=(30, 125), auto_assign=False),
        **dict.fromkeys(
            map(block, ("10.1.0.16/29", "10.1.0.0/32", "10.1.0.17/32", "10.1.0.18/32")), PodBlock("one", "a")
        ),
    },
    [],
    "",
    Wishes(frozenset({"a"})),
)
# A pool has come to reserve what the only pod in one of this node's blocks has: it is a block of its own from then on.
@example(
    {
        ONE: Node((parse_prefix("10.9.0.0/28"),)),
        PodPoolKey("a"): pool("10.1.0.0/26", sizes=(28, 125), reserved=("10.1.0.32-10.1.0.33",), auto_assign=False),
        PodPoolKey("b"): pool("10.1.0.0/26", sizes=(28, 125), auto_assign=False),
        block("10.1.0.32/27"): PodBlock("one", "a"),
    },
    ["10.1.0.1", "10.1.0.2", "10.1.0.7", "10.1.0.33"],
    "",
    Wishes(),
)
@example(
    {
        ONE: Node(),
        PodPoolKey("a"): pool("10.1.0.32/27", sizes=(28, 125)),
        PodPoolKey("b"): pool("10.1.0.0/27", sizes=(30, 125)),
        block("10.1.0.32/27"): PodBlock("one", "b"),
    },
    ["10.1.0.1"],
    "",
    Wishes(),
)
@settings(max_examples=300)
@given(clusters, living, st.sampled_from(("", "a", "b")), wishes)
def test_once_what_is_due_is_done_nothing_is_due(
    objects: dict[ObjectKey, Object], held: list[str], named: str, asked: Wishes
) -> None:
    """Only what is given back may make room for more, and no block comes and goes; but the one of which the node's own
    address was may go once another has taken that over."""
    now = known(objects, pods(*held, pool=named))
    came, was, before, rounds = set[Prefix](), own_addresses(now), Claims(), 0
    while (claims := due(now, asked)) != Claims(conflicts=claims.conflicts):
        assert rounds == 0 or before.give or (not claims.take and own_addresses(now) != was)
        assert came.isdisjoint(claims.give)
        came |= {it.cidr for it in (*claims.take, *claims.renew)}
        was, now, before, rounds = own_addresses(now), done(now, claims), claims, rounds + 1
        assert rounds < 5


@settings(max_examples=300)
@given(clusters, living, st.sampled_from(("", "a", "b")), wishes)
def test_nothing_is_taken_that_is_anybodys_nor_given_back_where_pods_live(
    objects: dict[ObjectKey, Object], held: list[str], named: str, asked: Wishes
) -> None:
    now = known(objects, pods(*held, pool=named))
    claims = due(now, asked)
    there = [key.cidr for key in now.blocks if not pools.is_single(key.cidr)]
    new = [it.cidr for it in (*claims.take, *claims.renew) if not pools.is_single(it.cidr)]
    for number, one in enumerate(new):
        assert not any(overlap(one, other) for other in (*there, *new[:number]))
    for it in (*claims.take, *claims.renew):
        assert PodBlockKey(it.cidr) not in now.blocks
        within = [cidr for cidr in now.pools[PodPoolKey(it.pool)].cidrs if it.cidr.first in cidr]
        assert within
        assert pools.is_single(it.cidr) or it.cidr.length == now.pools[PodPoolKey(it.pool)].block_size(it.cidr.family)
    for it in claims.take:
        assert pools.why_not(now, it.pool) is None
    singles = {it.cidr.first for it in now.blocks if pools.is_single(it.cidr)}
    addresses = set(map(parse_address, held))
    for cidr in claims.give:
        assert now.blocks[PodBlockKey(cidr)].node == "one"
        living = addresses if pools.is_single(cidr) else addresses - singles
        assert not any(address in cidr for address in living)
    assert set(claims.give).isdisjoint(it.cidr for it in (*claims.take, *claims.renew))


@settings(max_examples=300)
@given(clusters, living, wishes)
def test_after_it_pods_get_addresses_unless_the_pools_have_no_more(
    objects: dict[ObjectKey, Object], held: list[str], asked: Wishes
) -> None:
    after = known(objects, pods(*held))
    for _ in range(5):
        after = done(after, due(after, asked))
    given = allocate(after)
    if isinstance(given, Obstacle) and given.exhausted:
        short = [it for it in pools.families(after) if str(it) in given.text]
        assert short
        assert all(not room.has_room(after, name, it) for name in pools.automatic(after) for it in short[:1])
        assert usage.shortages(after)
    elif isinstance(given, Obstacle):
        assert given.text == "node one has no spec.podCIDRs yet, and no PodPool is for it"


@settings(max_examples=300)
@given(clusters, living)
def test_no_more_blocks_are_taken_than_are_needed(objects: dict[ObjectKey, Object], held: list[str]) -> None:
    now = known(objects, pods(*held))
    claims = due(now)
    if any(it.reserved for it in now.pools.values()) or claims.give:  # the blocks of a pool differ, or there is more
        return
    sizes = {now.pools[PodPoolKey(it.pool)].block_sizes for it in claims.take}
    for left_out in claims.take if len(sizes) == 1 else ():
        fewer = replace(claims, take=tuple(it for it in claims.take if it != left_out))
        assert due(done(now, fewer)).take


@given(clusters, st.sampled_from(("a", "b")), st.sampled_from(("one", "two", "three")))
def test_all_free_blocks_of_a_pool_are_found_once_each(objects: dict[ObjectKey, Object], name: str, node: str) -> None:
    now = known({NodeKey(node): Node(), **objects}, local=Local(node, 1500))
    found = [it for it, _ in room.free_blocks(now, name, IPV4)]
    pool = now.pools.get(PodPoolKey(name))
    expected = set()
    for cidr in pool.cidrs if pool else ():
        for number in range(cidr.count if cidr.family == IPV4 else 0):
            if pool:
                candidate = prefix_around(Address(cidr.nth(number)), pool.block_sizes[0])
                taken = any(overlap(candidate, it.cidr) for it in now.blocks if not pools.is_single(it.cidr))
                places = [candidate.nth(n) for n in range(1, candidate.count - 1)]
                singles = {it.cidr.first for it in now.blocks if pools.is_single(it.cidr)}
                if (
                    not taken
                    and sum(it not in singles and not any(it in r for r in pool.reserved) for it in places) > 1
                ):
                    expected.add(candidate)
    assert set(found) == expected
    assert len(found) == len(expected)
