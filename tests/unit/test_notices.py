"""Which notices of the kernel are a disturbance: of each key the last one counts, against what was last reported."""

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controller.difference import Change
from podwire.dataplane.linux import render, shaping
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.linux.notices import disturbed, latest
from podwire.dataplane.messages import Notice, text, u32
from podwire.model.addresses import Address, parse_address, parse_prefix
from podwire.model.network import (
    AddressKey,
    EgressKey,
    IngressKey,
    Limit,
    NeighbourKey,
    Route,
    RouteKey,
    SysctlKey,
    UpKey,
)
from podwire.model.snapshot import UNKNOWN

ROUTE, NEIGHBOUR = RouteKey("", parse_prefix("10.1.1.2/32")), NeighbourKey("", 9, parse_address("fd01::2"))
ADDRESS, WITHIN = AddressKey("", 1, parse_address("10.1.1.1")), RouteKey("/pod", parse_prefix("10.1.1.2/32"))
MAC = b"\2\0\0\0\0\1"
VALUES: dict[Any, Any] = {ROUTE: Route(9), NEIGHBOUR: MAC, ADDRESS: True, WITHIN: Route(9)}


def added(key: Any, value: Any = None, nsid: int | None = None) -> Notice:
    """As the kernel tells it: in the form of a request."""
    (message,) = render.render(key, Change(None, value or VALUES[key]), -1)
    return Notice(message.kind, message.body, nsid)


def deleted(key: Any, nsid: int | None = None) -> Notice:
    told = added(key, nsid=nsid)
    return Notice(told.kind + 1, told.body, nsid)


def foreign(key: RouteKey) -> Notice:
    """A route of another protocol to the same destination."""
    body = bytearray(added(key).body)
    body[5] = 3
    return Notice(rt.NEWROUTE, bytes(body), None)


def local(key: RouteKey, nsid: int) -> Notice:
    """A route in the kernel's table of local addresses, of our protocol, as a pod's own address has one."""
    body = bytearray(added(key).body)
    body[4] = rt.LOCAL_TABLE
    return Notice(rt.NEWROUTE, bytes(body), nsid)


def setting(family: int, index: int, forwarding: int) -> Notice:
    body = bytes((family, 0, 0, 0)) + b"".join(pack("=HHi", 8, kind, v) for kind, v in ((1, index), (2, forwarding)))
    return Notice(rt.NEWNETCONF, body, None)


@pytest.mark.parametrize("key", [ROUTE, NEIGHBOUR, ADDRESS], ids=lambda key: type(key).__name__)
@pytest.mark.parametrize(
    ("way", "held", "named"),
    [
        pytest.param("new", True, False, id="as we left it"),
        pytest.param("del", False, False, id="gone as we left it"),
        pytest.param("del", True, True, id="gone"),
        pytest.param("new", False, True, id="of our protocol, and not ours"),
        pytest.param("new del", False, False, id="made and taken back"),
        pytest.param("del new", True, False, id="gone and put back"),
        pytest.param("new del", True, True, id="put there and gone"),
    ],
)
def test_the_last_notice_of_a_key_counts(key: Any, way: str, held: bool, named: bool) -> None:
    notices = [added(key) if each == "new" else deleted(key) for each in way.split()]
    assert disturbed(notices, {key: VALUES[key]} if held else {}, {}) == ({key} if named else frozenset())


@pytest.mark.parametrize(
    ("notice", "held", "found"),
    [
        pytest.param(added(ROUTE, Route(7)), {ROUTE: Route(9)}, {ROUTE}, id="a route by another interface"),
        pytest.param(added(NEIGHBOUR, b"\2" * 6), {NEIGHBOUR: MAC}, {NEIGHBOUR}, id="another MAC address"),
        pytest.param(foreign(ROUTE), {ROUTE: Route(9)}, {ROUTE}, id="a route of another protocol in place of ours"),
        pytest.param(foreign(ROUTE), {}, set(), id="another's route"),
        pytest.param(deleted(ROUTE), {ROUTE: UNKNOWN}, set(), id="what failed is read anyway"),
        pytest.param(deleted(WITHIN, nsid=4), {WITHIN: Route(9)}, {WITHIN}, id="in a pod's namespace"),
        pytest.param(deleted(WITHIN, nsid=5), {WITHIN: Route(9)}, set(), id="in a namespace that is no pod's"),
        pytest.param(local(WITHIN, 4), {}, set(), id="a route in the table of local addresses"),
        pytest.param(setting(2, -1, 0), {}, {SysctlKey("net/ipv4/ip_forward")}, id="forwarding off"),
        pytest.param(setting(10, -1, 0), {}, {SysctlKey("net/ipv6/conf/all/forwarding")}, id="IPv6 forwarding off"),
        pytest.param(setting(2, -1, 1), {}, set(), id="forwarding on"),
        pytest.param(setting(2, 7, 0), {UpKey("", 7): True}, set(), id="forwarding off on another's interface"),
    ],
)
def test_each_kind_of_notice(notice: Notice, held: dict[Any, Any], found: set[Any]) -> None:
    assert disturbed([notice], held, {4: "/pod"}) == found


def link(index: int, flags: int, kind: int = rt.NEWLINK, nsid: int | None = None) -> Notice:
    name = text(rt.IFLA_IFNAME, "eth0")
    return Notice(kind, pack("=BxHiII", 0, 0, index, flags, 0) + name + u32(rt.IFLA_MTU, 1500), nsid)


LINKS = [
    link(index, flags, kind, nsid)
    for index in (1, 9)
    for flags, kind in ((0, rt.NEWLINK), (1, rt.NEWLINK), (0, rt.DELLINK))
    for nsid in (None, 4)
]
UP = {UpKey("", 1): True, UpKey("", 9): True, UpKey("/pod", 1): True, UpKey("/pod", 9): 1500}


@given(st.lists(st.sampled_from([*LINKS, setting(2, -1, 0), added(ROUTE), deleted(ROUTE)])))
def test_of_a_link_only_the_last_notice_is_read(notices: list[Notice]) -> None:
    last = {(notice.nsid, notice.body[4:8]): notice for notice in notices if notice.kind in (rt.NEWLINK, rt.DELLINK)}
    rest = [notice for notice in notices if notice not in LINKS]
    assert disturbed(notices, UP, {4: "/pod"}) == disturbed([*rest, *last.values()], UP, {4: "/pod"})
    assert {it for it in latest(notices) if it in LINKS} == set(last.values())
    assert [it for it in latest(notices) if it not in LINKS] == rest


@pytest.mark.parametrize(
    ("route", "named"),
    [(Route(0, via=Address(b"\1\1\1\1")), True), (UNKNOWN, True), (Route(9), False)],
    ids=["by way of another node", "that failed", "to a pod"],
)
def test_an_interface_of_others_matters_where_a_route_may_use_it(route: Any, named: bool) -> None:
    """A route goes with its interface, and nothing tells of it."""
    down = Notice(rt.NEWLINK, pack("=BxHiII", 0, 0, 3, 0, 0) + u32(4, 1500), None)
    held = {RouteKey("", parse_prefix("10.1.2.0/24")): route}
    assert disturbed([down], held, {}) == ({UpKey("", 3)} if named else frozenset())


# --- rates -------------------------------------------------------------------------------------

RECEIVES, SENDS = IngressKey("pw0"), EgressKey("pw0")
LIMITS = {RECEIVES: Limit(7, 1000, 2000, 3000), SENDS: Limit(7, 1000, 2000, 3000, through=9, mtu=1500)}
TRAFFIC = (shaping.NEWQDISC, shaping.NEWFILTER)


def made(key: shaping.Key, limit: Limit | None = None) -> list[Notice]:
    """As the kernel tells of the parts of a limit: in the form of requests."""
    messages = shaping.render(key, Change(None, limit or LIMITS[key]), with_link=False)
    return [Notice(it.kind, it.body, None) for it in messages if it.kind in TRAFFIC]


PARTS = [(key, notice) for key in LIMITS for notice in made(key)]
NAMES = ["bucket of what it receives", "bucket of what it sends", "hook", "filter"]


def gone(notice: Notice) -> Notice:
    return notice._replace(kind=notice.kind + 1)


@pytest.mark.parametrize(("key", "notice"), PARTS, ids=NAMES)
def test_each_part_of_a_rate_is_told_by_itself(key: shaping.Key, notice: Notice) -> None:
    others = [it for _, it in PARTS if it is not notice]
    assert disturbed([notice, *others], LIMITS, {}) == frozenset()
    assert disturbed([gone(notice), *others], LIMITS, {}) == {key}
    assert disturbed([gone(notice), notice], LIMITS, {}) == frozenset()
    assert disturbed([notice, gone(notice)], LIMITS, {}) == {key}
    assert disturbed([gone(notice)], {}, {}) == frozenset()  # a transaction has taken it away
    assert disturbed([gone(notice)._replace(nsid=4)], LIMITS, {4: "/pod"}) == frozenset()  # a pod's own


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        (RECEIVES, Limit(7, 1001, 2000, 3000)),
        (SENDS, Limit(7, 1000, 2001, 3000, through=9, mtu=1500)),
        (SENDS, Limit(7, 1000, 2000, 3000, through=10, mtu=1500)),
    ],
    ids=["another rate", "another queue", "led elsewhere"],
)
def test_a_part_that_is_another_is_told(key: shaping.Key, limit: Limit) -> None:
    assert disturbed(made(key, limit), LIMITS, {}) == {key}


def test_of_another_s_interface_nothing_is() -> None:
    assert disturbed(made(RECEIVES, Limit(8, 1, 2, 3)), LIMITS, {}) == frozenset()
