"""Which addresses a pod gets of a node's pod CIDRs and blocks, and what it is told where it gets none."""

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire import shortages
from podwire.controller import events as e
from podwire.controller.snapshot import fold
from podwire.findings import findings
from podwire.ipam import blocks, usage, views
from podwire.ipam.allocation import NOTHING, Given, Obstacle, Wish, allocate
from podwire.model.addresses import AddressRange, joined, parse_address, parse_prefix, parse_range, show_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import (
    AttachmentKey,
    Node,
    NodeKey,
    Operator,
    PodBlock,
    PodBlockKey,
    PodKey,
    PodPoolKey,
    Requirement,
    ServiceCIDR,
    ServiceCIDRKey,
)
from podwire.model.snapshot import Snapshot
from podwire.pods.readiness import obstacle
from tests.unit.test_claims import LOCAL, ONE, block, known, pods, pool

ALL, WEB = PodPoolKey("all"), PodPoolKey("web")
BOTH: dict[ObjectKey, Object] = {
    ONE: Node((parse_prefix("10.9.0.0/30"),)),
    ALL: pool("10.1.0.0/24", sizes=(29, 125)),
    WEB: pool("10.2.0.0/24", "fd02::/120", sizes=(29, 125), reserved=("10.2.0.0-10.2.0.4",), auto_assign=False),
    block("10.1.0.8/29"): PodBlock("one", "all"),
    block("10.1.0.16/29"): PodBlock("two", "all"),
    block("10.2.0.0/29"): PodBlock("one", "web"),
    block("fd02::/125"): PodBlock("one", "web"),
    block("10.2.0.3/32"): PodBlock("one", "web"),
    block("10.2.0.4/32"): PodBlock("two", "web"),
}
FULL = pods("10.9.0.2", *(f"10.1.0.{n}" for n in range(10, 15)))
ALONE = replace(LOCAL, claims_blocks=False)
"""Without an API server to ask for blocks."""


def given_to(now: Snapshot, wish: Wish = NOTHING) -> list[str] | str:
    found = allocate(now, wish)
    return found.text if isinstance(found, Obstacle) else list(map(show_address, found.addresses))


@pytest.mark.parametrize(
    ("wish", "held", "addresses"),
    [
        pytest.param(NOTHING, (), ["10.9.0.2"], id="of the pod CIDR first"),
        pytest.param(NOTHING, ("10.9.0.2",), ["10.1.0.10"], id="then of the pools for all"),
        pytest.param(Wish("all"), (), ["10.1.0.10"], id="of a pool that all get of, by name"),
        pytest.param(Wish("web"), (), ["10.2.0.6", "fd02::2"], id="of a named pool: nothing reserved, each family"),
        pytest.param(Wish(fixed=(parse_address("10.2.0.3"),)), (), ["10.2.0.3"], id="a fixed one"),
        pytest.param(Wish("web", (parse_address("10.2.0.3"),)), (), ["10.2.0.3", "fd02::2"], id="the rest of the pool"),
    ],
)
def test_a_pod_gets(wish: Wish, held: tuple[str, ...], addresses: list[str]) -> None:
    assert given_to(known(BOTH, pods(*held)), wish) == addresses


@pytest.mark.parametrize(
    ("change", "wish", "claims", "exhausted", "text"),
    [
        pytest.param(
            {}, NOTHING, True, False, "no IPv4 address is free: a block of pool all is being taken for this node",
            id="while a block is taken",
        ),
        pytest.param(
            {}, NOTHING, False, True,
            "no address is free in 10.9.0.0/30: all 1 are in use; no IPv4 address is free in pool all: "
            "all 5 of this node's 1 IPv4 block are in use",
            id="without an API server",
        ),
        pytest.param(
            {ALL: pool("10.1.0.8/29", sizes=(29, 125))}, NOTHING, True, True,
            "no address is free in 10.9.0.0/30: all 1 are in use; no IPv4 address is free in pool all: "
            "all 5 of this node's 1 IPv4 block are in use, and no block of it is left",
            id="where the pool is empty",
        ),
        pytest.param(
            {block("10.1.0.8/29"): None}, Wish("all"), False, True,
            "no IPv4 address is free in pool all: this node has no IPv4 block of it",
            id="without a block",
        ),
        pytest.param({}, Wish("no"), True, False, "there is no PodPool no", id="of a pool that is none"),
        pytest.param(
            {WEB: pool("10.2.0.0/24", node_selector=(Requirement("zone", Operator.EXISTS),))}, Wish("web"), True, False,
            "pool web is not for node one, by its spec.nodeSelector",
            id="of a pool for others",
        ),
        pytest.param(
            {ServiceCIDRKey("a"): ServiceCIDR((parse_prefix("10.2.0.128/25"),))}, Wish("web"), True, False,
            "pool web is not used: it overlaps the service range 10.2.0.128/25",
            id="of a pool that lies in a service range",
        ),
        pytest.param(
            {WEB: pool("10.1.0.0/26")}, Wish("web"), True, False,
            "pool web is not used: 10.1.0.0/26 overlaps 10.1.0.0/24 of pool all, which comes first",
            id="of a pool that lies in another",
        ),
        pytest.param(
            {NodeKey("two"): Node((parse_prefix("10.2.0.0/26"),))}, Wish("web"), True, False,
            "pool web is not used: it overlaps node two's pod CIDR 10.2.0.0/26",
            id="of a pool that lies in a pod CIDR",
        ),
        pytest.param(
            {ONE: Node((), (parse_address("10.2.0.200"),))}, Wish("web"), True, False,
            "pool web is not used: it overlaps this node's address 10.2.0.200",
            id="of a pool in which the node lives",
        ),
        pytest.param(
            {}, Wish(fixed=(parse_address("10.2.0.4"),)), True, False, "10.2.0.4 is node two's, by its PodBlock",
            id="another node's fixed address",
        ),
        pytest.param(
            {}, Wish(fixed=(parse_address("10.2.0.2"),)), True, False, "10.2.0.2 is being taken for this node",
            id="a fixed address that is being taken",
        ),
        pytest.param(
            {}, Wish(fixed=(parse_address("10.2.0.2"),)), False, False,
            "10.2.0.2 is not this node's: it has no PodBlock of it",
            id="a fixed address that nobody takes",
        ),
        pytest.param(
            {}, Wish(fixed=(parse_address("10.2.0.7"),)), True, False,
            "10.2.0.7 is none of the addresses that pool web reserves (spec.reserved)",
            id="a fixed address that is not reserved",
        ),
        pytest.param(
            {}, Wish(fixed=(parse_address("192.0.2.1"),)), True, False, "192.0.2.1 is in no pool", id="in no pool"
        ),
    ],
)  # fmt: skip
def test_a_pod_is_told_why_it_gets_none(
    change: dict[ObjectKey, Object | None], wish: Wish, claims: bool, exhausted: bool, text: str
) -> None:
    objects = {key: it for key, it in {**BOTH, **change}.items() if it is not None}
    now = known(objects, FULL, replace(LOCAL, claims_blocks=claims))
    assert allocate(now, wish) == Obstacle(text, exhausted)
    add = e.AddPod(AttachmentKey("new", "eth0"), PodKey("default", "new"), "/new", pool=wish.pool, fixed=wish.fixed)
    with pytest.raises(e.Refused) as refused:
        fold(now, add)
    assert str(refused.value) == text
    assert refused.value.refusal is (e.Refusal.EXHAUSTED if exhausted else e.Refusal.NOT_READY)
    if wish == NOTHING:
        assert obstacle(now) == Obstacle(text, exhausted)


def test_a_fixed_address_is_given_once() -> None:
    now = known(BOTH, pods("10.2.0.3"))
    text = "10.2.0.3 is given to pod default/p0 (sandbox 10.2.0.3)"
    assert given_to(now, Wish(fixed=(parse_address("10.2.0.3"),))) == text


def test_of_blocks_that_overlap_another_node_s_nothing_is_given_and_the_pods_keep_theirs() -> None:
    now = known(
        {**BOTH, block("10.1.0.8/30"): PodBlock("two", "all"), NodeKey("two"): Node()}, pods("10.1.0.10"), ALONE
    )
    assert given_to(now, Wish("all")) == "no IPv4 address is free in pool all: this node has no IPv4 block of it"
    why = "another node has a part of it, or it is a part of another node's"
    told = f"podblock/10.1.0.8/29: no address is given of it: {why}; its 1 pods keep what they have"
    assert [it for it in findings(now) if "10.1.0.8/29" in it] == [told]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({ALL: None}, "there is no PodPool all", id="removed"),
        pytest.param({ALL: pool("10.1.1.0/24", sizes=(29, 125))}, "pool all does not hold it", id="of other ranges"),
        pytest.param(
            {ALL: pool("10.1.0.0/24", sizes=(29, 125), node_selector=(Requirement("zone", Operator.EXISTS),))},
            "pool all is not for node one, by its spec.nodeSelector",
            id="for other nodes",
        ),
    ],
)
def test_a_pool_that_changes_takes_no_living_pod_s_address_away_and_that_is_told(
    change: dict[ObjectKey, Object | None], told: str
) -> None:
    before = known(BOTH, pods("10.1.0.10"))
    now, _ = fold(before, e.KubeStateChange(tuple(change.items())))
    assert (now.attachments, now.ledger) == (before.attachments, before.ledger)
    line = f"podblock/10.1.0.8/29: no address is given of it: {told}; its 1 pods keep what they have"
    assert line in findings(now)
    assert line not in findings(before)
    held = next(it for it in views.ipam(now).blocks if it.range == "10.1.0.8/29")
    assert (held.used, held.free, held.idle) == (1, 0, told)


# --- one block ---------------------------------------------------------------------------------

RANGES = st.lists(
    st.tuples(st.integers(0, 70), st.integers(0, 20)).map(
        lambda it: AddressRange(parse_prefix("10.1.0.0/24").nth(it[0]), parse_prefix("10.1.0.0/24").nth(sum(it)))
    ),
    max_size=3,
)


@given(st.sampled_from((26, 28, 29, 30, 31, 32)), RANGES, st.sets(st.integers(0, 63)), st.integers(0, 200))
def test_a_block_gives_all_that_is_free_and_nothing_else(
    length: int, ranges: list[AddressRange], held: set[int], cursor: int
) -> None:
    it = parse_prefix(f"10.1.0.0/{length}")
    reserved, taken = joined(ranges), {it.nth(number) for number in held if number < it.count}
    own = blocks.own_address(it, taken, reserved)
    last = it.count - (1 if it.count > 2 else 0)
    expected = [
        address
        for address in map(it.nth, range(2, last))
        if address not in taken and address != own and not any(address in each for each in reserved)
    ]
    assert blocks.free(it, taken, reserved) == len(expected)
    assert blocks.free(it, set(), reserved) == blocks.capacity(it, reserved)
    given, start = set(), cursor
    while (found := blocks.next_free(it, taken | given, cursor, reserved)) is not None:
        assert own not in (None, found[0])
        given.add(found[0])
        cursor = found[1]
    assert given == set(expected)
    if expected and 0 <= start < last - 2:  # next-fit: none before the cursor while there is one behind it
        first = blocks.next_free(it, taken, start, reserved)
        behind = [address for address in expected if address >= it.nth(2 + start)]
        assert first is not None
        assert first[0] == (behind or expected)[0]


# --- what is told ------------------------------------------------------------------------------


def test_addresses_that_run_short_are_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    class Controller:
        def __init__(self) -> None:
            self.snapshot = known({ONE: Node((parse_prefix("10.9.0.0/28"),))})
            self.readers: list[asyncio.Future[Any]] = []

        def next_of_pods(self) -> asyncio.Future[Any]:
            self.readers.append(asyncio.get_running_loop().create_future())
            return self.readers[-1]

    async def told() -> list[str]:
        controller = Controller()
        teller = asyncio.create_task(shortages.tell(controller, 0))
        for living in (5, 12, 13, 12, 11, 12, 5):
            held = pods(*(f"10.9.0.{number + 2}" for number in range(living)))
            controller.snapshot = known({ONE: Node((parse_prefix("10.9.0.0/28"),))}, held)
            for _ in range(2):  # a look, and the rest after it
                await asyncio.sleep(0)
            for each in controller.readers:
                each.done() or each.set_result(None)
            await asyncio.sleep(0)
        teller.cancel()
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.INFO, "podwire.shortages"):
        lines = asyncio.run(told())
    text = "IPv4 addresses of pods run short: 1 of 13 are free on this node (of 10.9.0.0/28)"
    assert lines == [text, f"no longer: {text}"]


async def test_many_pods_in_a_row_are_one_look_for_shortages() -> None:
    """None of them waits for another's."""
    looks, events = 0, asyncio.get_running_loop().create_future()

    class Controller:
        @property
        def snapshot(self) -> Snapshot:
            nonlocal looks
            looks += 1
            return known({ONE: Node((parse_prefix("10.9.0.0/28"),))}, pods(f"10.9.0.{looks + 1}"))

        def next_of_pods(self) -> asyncio.Future[Any]:
            return events

    events.set_result(None)  # there is always one more
    teller = asyncio.create_task(shortages.tell(Controller(), 3600))
    for _ in range(100):
        await asyncio.sleep(0)
    teller.cancel()
    assert looks == 1


def test_a_pool_in_use_of_which_no_block_is_left_is_told_of() -> None:
    now = known({WEB: pool("10.2.0.0/29", sizes=(29, 125)), block("10.2.0.0/29"): PodBlock("one", "web")},
                pods(*(f"10.2.0.{n}" for n in range(2, 7)), pool="web"))  # fmt: skip
    told = (
        "IPv4 addresses of pods run short: 0 of 5 are free on this node (of pool web), and no further block can be had"
    )
    assert set(map(str, usage.shortages(now))) == {told}
    assert told in findings(now)
    assert views.ipam(now).short.count(told) == 2  # of what all pods get, and of what some have asked for


def test_what_a_node_has_is_shown() -> None:
    now = known(BOTH, pods("10.1.0.10", "10.2.0.3"))
    shown = views.ipam(now)
    assert [(it.range, it.pool, it.used, it.free, it.single) for it in shown.blocks] == [
        ("10.9.0.0/30", "", 0, 1, False),
        ("10.1.0.8/29", "all", 1, 4, False),
        ("10.2.0.0/29", "web", 0, 1, False),
        ("10.2.0.3/32", "web", 1, 0, True),
        ("fd02::/125", "web", 0, 6, False),
    ]
    assert [(it.name, it.blocks, it.nodes, it.left, it.unused) for it in shown.pools] == [
        ("all", 2, 2, {"IPv4": 30}, None),
        ("web", 4, 2, {"IPv4": 31, "IPv6": 31}, None),
    ]
    assert shown.take
    assert [(it.pool, it.family, it.blocks, it.used, it.free) for it in views.pool_uses(now)] == [
        ("", "IPv4", 1, 0, 1),
        ("all", "IPv4", 1, 1, 4),
        ("web", "IPv4", 1, 0, 1),
        ("web", "IPv6", 1, 0, 6),
    ]


def test_cursors_are_kept_for_all_that_a_node_has_and_forgotten_with_it() -> None:
    now = known(BOTH)
    for wish in (NOTHING, Wish("web"), Wish("all")):
        given = allocate(now, wish)
        assert isinstance(given, Given)
        now = replace(now, cursors=given.cursors)
    assert {str(it) for it in now.cursors} == {"10.9.0.0/30", "10.1.0.8/29", "10.2.0.0/29", "fd02::/125"}
    fewer, _ = fold(now, e.KubeStateChange(((PodBlockKey(parse_prefix("10.1.0.8/29")), None), (WEB, None))))
    again = allocate(fewer)
    assert isinstance(again, Given)
    assert {str(it) for it in again.cursors} == {"10.9.0.0/30"}


def test_a_range_says_what_it_holds() -> None:
    it = parse_range("10.1.0.250-10.1.1.3")
    assert [parse_address(text) in it for text in ("10.1.0.249", "10.1.0.250", "10.1.1.3", "10.1.1.4", "a00::")] == [
        False, True, True, False, False
    ]  # fmt: skip
