"""Heartbeats as bytes, and who lives by what is heard."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.l2.beats import INTERVAL, MOST, Beat, Ignored, pack, parse
from podwire.l2.channel import Begin, Frames, Nodes, Ready, Want, frame, to_process
from podwire.l2.driver import L2
from podwire.l2.liveness import SILENCE, TICK, Awake, Peers
from podwire.model.addresses import parse_address
from podwire.model.announcements import Liveness

A, B, C = (parse_address(f"10.0.0.{n}") for n in (1, 2, 3))
A6 = parse_address("fd00::1")
NAMES = st.text("abcxyz-.0", min_size=1, max_size=253)
NUMBERS = st.integers(0, (1 << 62) - 1)
BEATS = st.builds(Beat, NAMES, NUMBERS, NUMBERS, st.booleans(), st.lists(NAMES, max_size=20).map(tuple))
ALIVE, UNREADY, DEAD, UNKNOWN = Liveness.ALIVE, Liveness.UNREADY, Liveness.DEAD, Liveness.UNKNOWN


def heard(peers: Peers, node: str = "a", source=A, at: float = 0.0, sequence: int = 1, **more) -> None:
    peers.hear(Beat(node, more.pop("incarnation", 1), sequence, more.pop("ready", True), **more), source, at)


def known(**nodes) -> Peers:
    peers = Peers()
    peers.know({name: those if isinstance(those, tuple) else (those,) for name, those in nodes.items()}, {}, 0.0)
    return peers


@given(BEATS, st.binary(max_size=40))
def test_a_beat_goes_there_and_back_and_fits_in_a_packet(beat, key) -> None:
    data = pack(beat, key)
    found = parse(data, key)
    assert len(data) <= MOST or not found.dead
    assert (found.node, found.incarnation, found.sequence, found.ready) == (
        beat.node,
        beat.incarnation,
        beat.sequence,
        beat.ready,
    )
    assert found.dead == beat.dead[: len(found.dead)]


@given(BEATS, st.data())
def test_one_wrong_bit_is_seen(beat, data) -> None:
    packed = bytearray(pack(beat, b""))
    bit = data.draw(st.integers(0, len(packed) * 8 - 1))
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Ignored):
        parse(bytes(packed), b"")


@given(st.binary(max_size=100))
def test_garbage_is_ignored(data) -> None:
    for given_ in (data, b"PWL2\x01" + data):
        with pytest.raises(Ignored):
            parse(given_, b"")


@pytest.mark.parametrize(
    ("data", "key", "why"),
    [
        (b"", b"", "foreign"),
        (b"PWL2", b"", "another version"),
        (b"PWL2\x02" + bytes(40), b"", "another version"),
        (b"PWL2\x01", b"", "damaged or with a key"),
        (pack(Beat("a", 1, 1, True), b"k"), b"", "damaged or with a key"),
        (pack(Beat("a", 1, 1, True), b""), b"k", "another key"),
        (pack(Beat("a", 1, 1, True), b"k")[:-1], b"k", "another key"),
    ],
)
def test_why_it_is_ignored(data, key, why) -> None:
    with pytest.raises(Ignored, match=f"^{why}$"):
        parse(data, key)


def test_a_later_version_may_add_fields() -> None:
    import hmac

    import msgspec

    body = b"PWL2\x01" + msgspec.msgpack.encode(["a", 1, 2, True, ["b"], {"more": 1}])
    assert parse(body + hmac.digest(b"", body, "sha256")[:16], b"") == Beat("a", 1, 2, True, ("b",))


def test_nothing_is_known_of_who_was_never_heard() -> None:
    assert known(a=A, b=B).judge(1000.0) == {"a": UNKNOWN, "b": UNKNOWN}


@pytest.mark.parametrize(
    ("at", "ready", "judged"),
    [
        (0.0, True, ALIVE),
        (0.0, False, UNREADY),
        (3 * INTERVAL + 0.05, True, ALIVE),  # the third is on its way
        (SILENCE + 0.01, True, DEAD),
        (SILENCE + 0.01, False, DEAD),
    ],
)
def test_silence(at, ready, judged) -> None:
    peers = known(a=A)
    heard(peers, ready=ready)
    assert peers.judge(at) == {"a": judged}


def test_two_may_be_lost() -> None:
    peers = known(a=A)
    for round_ in range(30):
        if round_ % 3 == 0:
            heard(peers, at=round_ * INTERVAL, sequence=round_ + 1)
        assert peers.judge(round_ * INTERVAL) == {"a": ALIVE}


@pytest.mark.parametrize(
    ("beat", "source", "why"),
    [
        (Beat("x", 1, 2, True), A, "of no node of the cluster"),
        (Beat("a", 1, 2, True), B, "from an address that is not the node's"),
        (Beat("a", 1, 1, True), A, "an older one"),
        (Beat("a", 0, 9, True), A, "an older one"),
    ],
)
def test_what_is_not_the_nodes_own_word_changes_nothing(beat, source, why) -> None:
    peers = known(a=(A, A6), b=B)
    heard(peers, ready=False)
    with pytest.raises(Ignored, match=why):
        peers.hear(beat, source, 0.5)
    assert peers.judge(0.5) == {"a": UNREADY, "b": UNKNOWN}


def test_any_of_a_nodes_addresses_will_do() -> None:
    peers = known(a=(A, A6))
    heard(peers)
    heard(peers, source=A6, sequence=2, at=0.9)
    assert peers.judge(1.5) == {"a": ALIVE}


def test_a_clock_that_was_set_back_is_heard_once_the_node_was_silent() -> None:
    peers = known(a=A)
    heard(peers, incarnation=1000)
    with pytest.raises(Ignored):
        heard(peers, incarnation=10, at=0.5)
    heard(peers, incarnation=10, at=2.0)
    assert peers.judge(2.0) == {"a": ALIVE}


def test_who_was_never_heard_is_dead_where_a_living_node_says_so() -> None:
    peers = known(a=A, b=B, c=C)
    heard(peers, dead=("b", "nobody"))
    assert peers.judge(0.1) == {"a": ALIVE, "b": DEAD, "c": UNKNOWN}
    heard(peers, sequence=2, at=0.2)
    assert peers.judge(0.2)["b"] == UNKNOWN


def test_what_we_hear_ourselves_counts_more_than_what_others_say() -> None:
    peers = known(a=A, b=B)
    heard(peers, "b", B)
    heard(peers, dead=("b",))
    assert peers.judge(0.1) == {"a": ALIVE, "b": ALIVE}


def test_only_whom_we_have_heard_ourselves_do_we_tell_others_of() -> None:
    peers = known(a=A, b=B, c=C)
    heard(peers, dead=("b",))
    heard(peers, "c", C)
    assert peers.missed(0.5) == ()
    assert peers.missed(2.0) == ("a", "c")


def test_who_is_heard_and_has_not_heard_us_for_long_is_told() -> None:
    peers = Peers("me")
    peers.know({"a": (A,), "b": (B,)}, {}, 0.0)
    for number in range(1, 8):
        heard(peers, at=number * 0.3, sequence=number, dead=("b", "me"))
        heard(peers, "b", B, at=number * 0.3, sequence=number, dead=("me",) if number < 7 else ())
        assert peers.deaf(number * 0.3) == (() if number < 5 else ("a", "b") if number < 7 else ("a",))
    assert peers.deaf(5.0) == (), "nothing is known of who is silent"
    heard(peers, at=5.1, sequence=8)
    assert peers.deaf(5.1) == ()


def test_nodes_come_and_go_and_keep_what_was_heard() -> None:
    peers = known(a=A, b=B)
    heard(peers)
    peers.know({"a": (A, A6), "c": (C,)}, {}, 0.1)
    assert peers.judge(0.1) == {"a": ALIVE, "c": UNKNOWN}


def test_another_process_goes_on_with_what_was_known() -> None:
    peers = Peers()
    was = {"a": ALIVE, "b": DEAD, "c": UNREADY, "d": UNKNOWN, "gone": ALIVE}
    peers.know(dict.fromkeys("abcd", (A,)), was, 0.0)
    assert peers.judge(0.1) == {"a": ALIVE, "b": DEAD, "c": UNREADY, "d": UNKNOWN}
    assert peers.judge(SILENCE + 0.1) == {"a": DEAD, "b": DEAD, "c": DEAD, "d": UNKNOWN}


@given(st.lists(st.floats(0.001, TICK), max_size=50), st.floats(1.0, 1e6))
def test_our_own_sleep_makes_nobody_dead(looks, asleep) -> None:
    now = 0.0
    awake = Awake(now)
    for each in looks:
        now += each
        awake.look(now)
    before = awake.seconds
    assert before == pytest.approx(now)
    assert awake.look(now + asleep) - before <= 2.001 * TICK
    assert awake.late == pytest.approx(asleep - TICK)


@given(st.lists(st.integers(1, 30), max_size=40))
def test_frames_come_in_any_pieces(cuts) -> None:
    sent = [Begin("a", 1, b"k", {"b": DEAD}), Nodes({"b": (A, A6)}), Want({A: ("eth0",), A6: ()}), Ready(True)]
    data = b"".join(map(frame, sent))
    frames, found = Frames(), []
    for cut in [*cuts, len(data)]:
        frames.feed(data[:cut])
        data = data[cut:]
        found += to_process(frames)
    assert found == sent


async def test_where_nobody_is_listened_to_any_more_nothing_is_known_of_the_nodes() -> None:
    heard: list[Any] = []
    l2 = L2("one", lambda it: heard.append(dict(it)))
    l2.liveness = {"two": Liveness.DEAD}
    running = asyncio.create_task(l2.run())
    for _ in range(3):
        await asyncio.sleep(0)
        l2.want({})
    running.cancel()
    assert (heard, dict(l2.liveness), l2.out) == ([{}], {}, frozenset())


def test_what_is_wanted_already_is_no_news() -> None:
    """It is said after each event of the agent's, and thousands of addresses would be compared each time."""
    l2 = L2("one")
    for answers, nodes, ready in (({A: ()}, {"two": (B,)}, True), ({}, {}, False)):
        for change in (lambda: l2.want(answers), lambda: l2.peers(nodes), lambda: l2.ready(ready)):  # noqa: B023
            for is_new in (True, False):
                change()
                assert l2._changed.is_set() == is_new
                l2._changed.clear()
