"""What a record says of a change."""

import pytest
from msgspec.structs import replace

from podwire.controller.difference import Change, Outcome
from podwire.controller.events import Resync, ResyncReason
from podwire.controller.history import MOST_LINES, History, record_of, words
from podwire.controller.transaction import Result, Step
from podwire.model.addresses import IPV4, parse_address, parse_prefix
from podwire.model.network import (
    TUNNEL_INDEX,
    Backend,
    ForwardKey,
    Frontend,
    HostPortKey,
    Link,
    LinkKey,
    LocalPodKey,
    Route,
    RouteKey,
    Serving,
    Slots,
    SysctlKey,
)
from podwire.model.objects import Protocol

FRONTEND = Frontend(parse_address("10.96.0.1"), Protocol.TCP, 80)
A, B = (Backend(parse_address(f"10.1.0.{n}"), 80) for n in (1, 2))
LINK, HELD = LinkKey("pw0"), Link(7, b"", "", 8, "eth0", b"", 1500, (), "")
ROUTE = RouteKey("/run/netns/a", parse_prefix("10.1.0.1/32"))


@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        (
            LINK,
            Change(replace(HELD, astray=("ipv4/conf/pw0/rp_filter", "ipv6/conf/pw0/forwarding")), HELD),
            "link pw0 changed: put right net/ipv4/conf/pw0/rp_filter, net/ipv6/conf/pw0/forwarding",
        ),
        (LINK, Change(replace(HELD, astray=("renamed to x",)), HELD), "link pw0 changed: put right renamed to x"),
        (LINK, Change(HELD, replace(HELD, localnet=True)), "link pw0 changed: put right route_localnet"),
        (FRONTEND, Change(None, Slots(1, (A,))), "frontend 10.96.0.1:80/TCP added (class 1: 10.1.0.1:80)"),
        (FRONTEND, Change(Slots(1, (A,)), Slots(2, (A, B))), "frontend 10.96.0.1:80/TCP: +10.1.0.2:80 class 2"),
        (FRONTEND, Change(Slots(2, (A, B)), Slots(1, (A,))), "frontend 10.96.0.1:80/TCP: -10.1.0.2:80 class 1"),
        (FRONTEND, Change(Slots(1, (A,)), Slots(None, (), True)), "frontend 10.96.0.1:80/TCP: -10.1.0.1:80 refused"),
        (FRONTEND, Change(Slots(None, (A,)), Slots(1, (A,))), "frontend 10.96.0.1:80/TCP: class 1"),
        (FRONTEND, Change(Slots(1, (A,)), None), "frontend 10.96.0.1:80/TCP removed"),
        (HostPortKey(FRONTEND), Change(None, A), "host port 10.96.0.1:80/TCP added (10.1.0.1:80)"),
        (HostPortKey(FRONTEND), Change(A, B), "host port 10.96.0.1:80/TCP changed: 10.1.0.1:80 → 10.1.0.2:80"),
        (ROUTE, Change(None, Route(3)), "route 10.1.0.1/32 in /run/netns/a added"),
        (ROUTE, Change(Route(2), Route(3)), "route 10.1.0.1/32 in /run/netns/a changed"),
        (SysctlKey("net/ipv4/ip_forward"), Change("0", "1"), "sysctl net/ipv4/ip_forward changed: 0 → 1"),
        (
            RouteKey("", parse_prefix("10.1.2.0/24")),
            Change(
                Route(3, parse_address("192.0.2.2")), Route(TUNNEL_INDEX[IPV4], parse_address("10.1.2.0"), onlink=True)
            ),
            "route 10.1.2.0/24 changed: by way of 192.0.2.2 → by VXLAN",
        ),
        (
            ForwardKey(TUNNEL_INDEX[IPV4], bytes.fromhex("020102030405")),
            Change(parse_address("198.51.100.3"), parse_address("198.51.100.4")),
            "forwarding of 02:01:02:03:04:05 on podwire-vxlan changed: 198.51.100.3 → 198.51.100.4",
        ),
    ],
    ids=[
        "a link's settings",
        "a link's name",
        "a setting that is no one's to see",
        "new",
        "one more",
        "one less",
        "none left",
        "verdict lost",
        "gone",
        "host port",
        "host port moved",
        "route",
        "route changed",
        "sysctl",
        "another way",
        "a node that moved",
    ],
)
def test_a_change_in_words(key: object, change: Change, says: str) -> None:
    assert words(key, change) == says


def test_changes_are_told_by_the_capability_that_wanted_them() -> None:
    leftover = LocalPodKey(parse_address("10.1.0.9"))
    step = Step("nftables", {FRONTEND: Change(None, Slots(1, (A,))), leftover: Change(True, None)}, {}, 2)
    decided = (("node", {}), ("services", {"nftables": {FRONTEND: frozenset({A})}}))
    record = record_of(Result(Resync(ResyncReason.ON_DEMAND), (step,), 0.5, decided=decided), 7, 1.0)
    assert record.changes == {
        "services": ("frontend 10.96.0.1:80/TCP added (class 1: 10.1.0.1:80)",),
        "leftovers": ("local pod 10.1.0.9 removed",),
    }
    assert (record.number, record.event, record.operations, record.milliseconds) == (
        7,
        "Resync on demand",
        {"nftables": 2},
        500.0,
    )


SOME = tuple(Backend(parse_address(f"10.2.{n >> 8}.{n & 255}"), 80) for n in range(64))


@pytest.mark.parametrize(
    ("change", "wanted", "says"),
    [
        pytest.param(Change(None, Slots(64, SOME)), SOME, "and 48 more)", id="few of many are listed"),
        pytest.param(
            Change(Slots(1, (A,)), Slots(64, SOME)), SOME, "and 48 more -10.1.0.1:80 class 64", id="of new ones"
        ),
        pytest.param(
            Change(None, Slots(64, SOME)),
            (*SOME, A),
            "and 48 more) (of 65 backends 64 are in force)",
            id="backends beyond the largest class",
        ),
    ],
)
def test_many_backends_in_a_line(change: Change, wanted: tuple[Backend, ...], says: str) -> None:
    step = Step("nftables", {FRONTEND: change}, {}, 1)
    decided = (
        ("services", {"nftables": {FRONTEND: Serving(wanted)}}),
        ("services", {"nftables": {FRONTEND: Serving((A,))}}),
    )
    (line,) = record_of(Result(Resync(ResyncReason.ON_DEMAND), (step,), decided=decided), 1, 1.0).changes["services"]
    assert line.endswith(says)
    assert len(line) < 500


def test_a_long_record_is_cut_and_says_so() -> None:
    keys = [LocalPodKey(parse_address(f"10.1.0.{n}")) for n in range(MOST_LINES + 5)]
    step = Step("nftables", {key: Change(None, True) for key in keys}, {key: Outcome(True) for key in keys}, 25)
    wanted = {"nftables": dict.fromkeys(keys, True)}
    record = record_of(Result(Resync(ResyncReason.ON_DEMAND), (step,), decided=(("pods", wanted),)), 1, 1.0)
    assert len(record.changes["pods"]) == MOST_LINES + 1
    assert record.changes["pods"][-1] == "and 5 more"


def test_history_is_bounded_and_numbers_go_on() -> None:
    history = History(most=3)
    for _ in range(5):
        history.add(Result(Resync(ResyncReason.ON_DEMAND)), 1.0)
    assert [record.number for record in history] == [3, 4, 5]
