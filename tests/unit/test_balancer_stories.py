"""Who gets which load balancer's address, and what is said: a story for each rule."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from podwire.loadbalancer.allocation import Grant, allocate
from podwire.loadbalancer.pools import used
from podwire.model.addresses import IPV4, IPV6, Address, parse_address, parse_range, show_address
from podwire.model.balancers import AddressPool, AddressPoolKey, Request
from podwire.model.objects import Operator, Protocol, Requirement, ServiceKey

TCP, UDP = Protocol.TCP, Protocol.UDP
WEB, DNS = (ServiceKey("shop", name) for name in ("web", "dns"))
NAMESPACES = {"shop": (("team", "a"),), "lab": (("team", "b"),)}


def pool(*ranges: str, **more: object) -> AddressPool:
    return AddressPool(tuple(map(parse_range, ranges)), **more)  # type: ignore[arg-type]


def at(*texts: str) -> tuple[Address, ...]:
    return tuple(map(parse_address, texts))


def request(*, port: int = 80, protocol: Protocol = TCP, families: str = "4", **more: object) -> Request:
    of = tuple({"4": IPV4, "6": IPV6}[it] for it in families)
    return Request(of, frozenset({(protocol, port)}), **more)  # type: ignore[arg-type]


def selected(key: str, value: str) -> tuple[tuple[Requirement, ...], ...]:
    return ((Requirement(key, Operator.IN, (value,)),),)


def told(grant: Grant) -> tuple[tuple[str, ...], str]:
    return tuple(map(show_address, grant.addresses)), grant.why


class Story(NamedTuple):
    pools: Mapping[str, AddressPool]
    requests: Mapping[ServiceKey, Request]
    ends: Mapping[ServiceKey, tuple[tuple[str, ...], str]]
    """By Service: its addresses, and why it has not what it asks for."""


BOTH_MUST = "no address of both families, as ipFamilyPolicy RequireDualStack asks"
SAME_PODS = "and with externalTrafficPolicy Local only Services of the same pods may share one"
OVERLAPS = "overlaps 192.0.2.0-192.0.2.255 of pool a, which comes first"
ONE = {"a": pool("192.0.2.1-192.0.2.1")}
TWO = {"a": pool("192.0.2.1-192.0.2.2")}
BOTH = {"a": pool("192.0.2.1-192.0.2.4", "2001:db8::1-2001:db8::4")}
APART = {"four": pool("192.0.2.1-192.0.2.4"), "six": pool("2001:db8::1-2001:db8::4")}

STORIES = {
    "the oldest has the first": Story(
        TWO,
        {WEB: request(created="2026-02-01T00:00:00Z"), DNS: request(created="2026-01-01T00:00:00Z")},
        {WEB: (("192.0.2.2",), ""), DNS: (("192.0.2.1",), "")},
    ),
    "who has one keeps it, whoever is older": Story(
        ONE,
        {
            WEB: request(created="2026-02-01T00:00:00Z", holds=at("192.0.2.1")),
            DNS: request(created="2026-01-01T00:00:00Z"),
        },
        {WEB: (("192.0.2.1",), ""), DNS: ((), "no address: pool a has no free IPv4 address")},
    ),
    "without pools": Story({}, {WEB: request()}, {WEB: ((), "there is no AddressPool")}),
    "none for it by itself": Story(
        {"a": pool("192.0.2.0/24", auto_assign=False)},
        {WEB: request()},
        {WEB: ((), "no AddressPool is for this Service by itself (spec.autoAssign, spec.namespaces and selectors)")},
    ),
    "a pool without autoAssign by name": Story(
        {"a": pool("192.0.2.0/24", auto_assign=False)}, {WEB: request(pool="a")}, {WEB: (("192.0.2.0",), "")}
    ),
    "and by an address": Story(
        {"a": pool("192.0.2.0/24", auto_assign=False)},
        {WEB: request(asked=at("192.0.2.7"))},
        {WEB: (("192.0.2.7",), "")},
    ),
    "a pool that is not there": Story(
        TWO, {WEB: request(pool="b")}, {WEB: ((), "pool b: there is no such AddressPool")}
    ),
    "a pool that overlaps another": Story(
        {"a": pool("192.0.2.0/24"), "b": pool("192.0.2.128-192.0.3.9")},
        {WEB: request(pool="b")},
        {
            WEB: (
                (),
                f"pool b: it is not used: 192.0.2.128-192.0.3.9 {OVERLAPS}",
            )
        },
    ),
    "addresses that some take for a network's are left out": Story(
        {"a": pool("192.0.2.255-192.0.3.1", avoid_buggy=True)}, {WEB: request()}, {WEB: (("192.0.3.1",), "")}
    ),
    "but whoever has one keeps it": Story(
        {"a": pool("192.0.2.255-192.0.3.1", avoid_buggy=True)},
        {WEB: request(holds=at("192.0.3.0"))},
        {WEB: (("192.0.3.0",), "")},
    ),
    "a pool that chooses the Service goes before one for all": Story(
        {"a": pool("192.0.2.0/24"), "b": pool("198.51.100.0/24", namespaces=("shop",))},
        {WEB: request()},
        {WEB: (("198.51.100.0",), "")},
    ),
    "of these the one with the lowest priority, 0 last": Story(
        {
            "a": pool("192.0.2.0/24", namespaces=("shop",)),
            "b": pool("198.51.100.0/24", namespaces=("shop",), priority=20),
            "c": pool("203.0.113.0/24", namespaces=("shop",), priority=10),
        },
        {WEB: request()},
        {WEB: (("203.0.113.0",), "")},
    ),
    "a full pool leads to the next": Story(
        {"a": pool("192.0.2.1-192.0.2.1"), "b": pool("198.51.100.1-198.51.100.1")},
        {WEB: request(created="1"), DNS: request(created="2")},
        {WEB: (("192.0.2.1",), ""), DNS: (("198.51.100.1",), "")},
    ),
    "of many pools a few are named": Story(
        {f"{n:02}": pool(f"2001:db8::{n}-2001:db8::{n}") for n in range(11)},
        {WEB: request()},
        {
            WEB: (
                (),
                "no address: " + "".join(f"pool {n:02} has no IPv4 addresses; " for n in range(8)) + "and 3 more pools",
            )
        },
    ),
    "a selector that selects no namespace lets nobody in, not even by an address": Story(
        {"a": pool("192.0.2.0/24", namespace_selectors=selected("team", "none"))},
        {WEB: request(asked=at("192.0.2.7"))},
        {
            WEB: (
                (),
                "192.0.2.7: pool a: it is not for this namespace (spec.namespaces, spec.namespaceSelectors)",
            )
        },
    ),
    "by the namespace's labels": Story(
        {"a": pool("192.0.2.0/24", namespace_selectors=selected("team", "a"))},
        {WEB: request()},
        {WEB: (("192.0.2.0",), "")},
    ),
    "by the Service's": Story(
        {"a": pool("192.0.2.0/24", service_selectors=selected("tier", "front"))},
        {WEB: request(labels=(("tier", "front"),)), DNS: request(pool="a")},
        {
            WEB: (("192.0.2.0",), ""),
            DNS: ((), "pool a: it is not for Services with these labels (spec.serviceSelectors)"),
        },
    ),
    "both families of one pool": Story(BOTH, {WEB: request(families="64")}, {WEB: (("2001:db8::1", "192.0.2.1"), "")}),
    "of pools with one family each one address, of the first family": Story(
        APART,
        {WEB: request(families="64")},
        {WEB: (("2001:db8::1",), "no IPv4 address: pool six has no IPv4 addresses")},
    ),
    "or none, where both must be": Story(
        APART,
        {WEB: request(families="46", all_families=True)},
        {
            WEB: (
                (),
                f"{BOTH_MUST}: pool four has no IPv6 addresses; pool six has no IPv4 addresses",
            )
        },
    ),
    "the other family is added once the pool has it": Story(
        BOTH, {WEB: request(families="46", holds=at("192.0.2.3"))}, {WEB: (("192.0.2.3", "2001:db8::1"), "")}
    ),
    "and not of another pool": Story(
        APART,
        {WEB: request(families="46", holds=at("192.0.2.3"))},
        {WEB: (("192.0.2.3",), "no IPv6 address: pool four has no IPv6 addresses, which the other is of")},
    ),
    "one family of a pool with both": Story(
        BOTH, {WEB: request(families="4", holds=at("192.0.2.3"))}, {WEB: (("192.0.2.3",), "")}
    ),
    "an address of a family that the Service has not": Story(
        BOTH,
        {WEB: request(families="4", asked=at("2001:db8::1"))},
        {WEB: ((), "2001:db8::1: the Service has no IPv6 cluster IP; expected IPv4")},
    ),
    "also where it has all others": Story(
        BOTH,
        {WEB: request(families="4", holds=at("192.0.2.1"), asked=at("192.0.2.1", "2001:db8::1"))},
        {WEB: (("192.0.2.1",), "2001:db8::1: the Service has no IPv6 cluster IP; expected IPv4")},
    ),
    "an address in no pool": Story(
        BOTH, {WEB: request(asked=at("198.51.100.1"))}, {WEB: ((), "198.51.100.1: it is in no pool that is used")}
    ),
    "an address of another pool than asked for": Story(
        {**ONE, "b": pool("198.51.100.0/24")},
        {WEB: request(asked=at("198.51.100.1"), pool="a")},
        {WEB: ((), "198.51.100.1: it is in pool b, and pool a is asked for")},
    ),
    "addresses of two pools": Story(
        APART,
        {WEB: request(families="46", asked=at("192.0.2.1", "2001:db8::1"))},
        {
            WEB: (
                (),
                "the addresses asked for are of several pools (192.0.2.1 of four, 2001:db8::1 of six); expected one",
            )
        },
    ),
    "one address asked for where both families must be": Story(
        BOTH,
        {WEB: request(families="46", all_families=True, asked=at("192.0.2.1"))},
        {WEB: ((), "no IPv6 address is asked for, and ipFamilyPolicy is RequireDualStack")},
    ),
    "an address that somebody has": Story(
        TWO,
        {WEB: request(holds=at("192.0.2.1")), DNS: request(asked=at("192.0.2.1"), port=53)},
        {
            WEB: (("192.0.2.1",), ""),
            DNS: ((), "192.0.2.1: service/shop/web has it, and the two have no sharing key in common"),
        },
    ),
    "shared by key": Story(
        ONE,
        {WEB: request(sharing="k", created="1"), DNS: request(sharing="k", port=53, created="2")},
        {WEB: (("192.0.2.1",), ""), DNS: (("192.0.2.1",), "")},
    ),
    "the same port of two protocols": Story(
        ONE,
        {WEB: request(sharing="k", created="1"), DNS: request(sharing="k", protocol=UDP, created="2")},
        {WEB: (("192.0.2.1",), ""), DNS: (("192.0.2.1",), "")},
    ),
    "not the same port": Story(
        ONE,
        {WEB: request(sharing="k", created="1"), DNS: request(sharing="k", asked=at("192.0.2.1"), created="2")},
        {
            WEB: (("192.0.2.1",), ""),
            DNS: ((), "192.0.2.1: service/shop/web has it, and the same port 80/TCP"),
        },
    ),
    "nor other pods, where the policy is Local": Story(
        ONE,
        {
            WEB: request(sharing="k", created="1", backends="app=web"),
            DNS: request(sharing="k", port=53, asked=at("192.0.2.1"), created="2"),
        },
        {
            WEB: (("192.0.2.1",), ""),
            DNS: (
                (),
                f"192.0.2.1: service/shop/web has it, {SAME_PODS}",
            ),
        },
    ),
    "a key permits, it does not draw: a free one that comes first goes before a shared one": Story(
        TWO,
        {
            WEB: request(sharing="k", holds=at("192.0.2.2")),
            DNS: request(sharing="k", port=53),
        },
        {WEB: (("192.0.2.2",), ""), DNS: (("192.0.2.1",), "")},
    ),
    "whoever has it alone may change its key": Story(
        ONE, {WEB: request(sharing="other", holds=at("192.0.2.1"))}, {WEB: (("192.0.2.1",), "")}
    ),
    "what can't be understood takes nothing away": Story(
        ONE, {WEB: request(holds=at("192.0.2.1"), unclear="what?")}, {WEB: (("192.0.2.1",), "what?")}
    ),
    "nor gives anything": Story(ONE, {WEB: request(unclear="what?")}, {WEB: ((), "what?")}),
    "another pool is asked for": Story(
        {**ONE, "b": pool("198.51.100.1-198.51.100.1")},
        {WEB: request(holds=at("192.0.2.1"), pool="b")},
        {WEB: (("198.51.100.1",), "")},
    ),
    "another pool that is not there takes nothing away": Story(
        ONE, {WEB: request(holds=at("192.0.2.1"), pool="b")}, {WEB: (("192.0.2.1",), "")}
    ),
    "what it gives up it does not get again, not even where it is the first that is free": Story(
        TWO, {WEB: request(holds=at("192.0.2.1"), gives_up=at("192.0.2.1"))}, {WEB: (("192.0.2.2",), "")}
    ),
    "nor where others would share it": Story(
        TWO,
        {
            WEB: request(sharing="k", holds=at("192.0.2.1"), gives_up=at("192.0.2.1")),
            DNS: request(sharing="k", port=53, holds=at("192.0.2.1")),
        },
        {WEB: (("192.0.2.2",), ""), DNS: (("192.0.2.1",), "")},
    ),
    "nor where there is no other": Story(
        ONE,
        {WEB: request(holds=at("192.0.2.1"), gives_up=at("192.0.2.1"))},
        {WEB: ((), "no address: pool a has no free IPv4 address")},
    ),
    "what it asks for by name it gives up in vain": Story(
        TWO,
        {WEB: request(holds=at("192.0.2.1"), gives_up=at("192.0.2.1"), asked=at("192.0.2.1"))},
        {WEB: (("192.0.2.1",), "")},
    ),
    "a second address is asked for, and is somebody's": Story(
        BOTH,
        {
            WEB: request(families="46", holds=at("192.0.2.1"), asked=at("192.0.2.1", "2001:db8::1")),
            DNS: request(families="6", holds=at("2001:db8::1")),
        },
        {
            WEB: (
                ("192.0.2.1",),
                "2001:db8::1: service/shop/dns has it, and the two have no sharing key in common",
            ),
            DNS: (("2001:db8::1",), ""),
        },
    ),
}


def given(story: Story) -> dict[ServiceKey, Grant]:
    return allocate(used({AddressPoolKey(name): it for name, it in story.pools.items()}), NAMESPACES, story.requests)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_who_gets_what_and_what_is_said(story: Story) -> None:
    assert {key: told(it) for key, it in given(story).items()} == story.ends


LOST = {
    "an older one may not share it any more": Story(
        TWO,
        {
            WEB: request(sharing="k", holds=at("192.0.2.1"), created="1"),
            DNS: request(sharing="other", port=53, holds=at("192.0.2.1"), created="2"),
        },
        {DNS: (("192.0.2.1",), "service/shop/web has it, and the two have no sharing key in common")},
    ),
    "a family has gone": Story(
        BOTH,
        {WEB: request(families="6", holds=at("192.0.2.1", "2001:db8::1"))},
        {WEB: (("192.0.2.1",), "the Service has no IPv4 cluster IP")},
    ),
    "two of a family": Story(
        BOTH,
        {WEB: request(holds=at("192.0.2.1", "192.0.2.2"))},
        {WEB: (("192.0.2.2",), "it has another IPv4 address")},
    ),
    "another is asked for": Story(
        BOTH,
        {WEB: request(holds=at("192.0.2.1"), asked=at("192.0.2.2"))},
        {WEB: (("192.0.2.1",), "the Service asks for another")},
    ),
    "of another pool": Story(
        {**ONE, "b": pool("198.51.100.0/24")},
        {WEB: request(holds=at("192.0.2.1"), pool="b")},
        {WEB: (("192.0.2.1",), "the Service asks for one of pool b")},
    ),
    "given up": Story(
        BOTH,
        {WEB: request(holds=at("192.0.2.1"), gives_up=at("192.0.2.1"))},
        {WEB: (("192.0.2.1",), "the Service gives it up")},
    ),
}


@pytest.mark.parametrize("story", LOST.values(), ids=LOST)
def test_what_is_lost_is_said(story: Story) -> None:
    found = {
        key: (tuple(show_address(address) for address, _ in it.lost), it.lost[0][1])
        for key, it in given(story).items()
        if it.lost
    }
    assert found == story.ends


GONE = "it is in no pool that is used, so that no advertisement is for it"


@pytest.mark.parametrize(
    ("pools", "why"),
    [
        pytest.param({}, GONE, id="the pool has gone"),
        pytest.param({"a": pool("198.51.100.0/24")}, GONE, id="the pool has other ranges"),
        pytest.param(
            {"0": pool("192.0.2.1-192.0.2.1", namespaces=("lab",)), "a": pool("192.0.2.0/24")},
            "pool 0: it is not for this namespace (spec.namespaces, spec.namespaceSelectors)",
            id="another pool has it now, and is not for it",
        ),
        pytest.param(
            {"a": pool("192.0.2.0/24", service_selectors=selected("tier", "front"))},
            "pool a: it is not for Services with these labels (spec.serviceSelectors)",
            id="the pool is for others now",
        ),
    ],
)
def test_a_pools_change_takes_no_address_away_and_is_said(pools: dict[str, AddressPool], why: str) -> None:
    grant = given(Story(pools, {WEB: request(holds=at("192.0.2.1"))}, {}))[WEB]
    assert (told(grant), grant.stale, grant.lost) == ((("192.0.2.1",), ""), ((at("192.0.2.1")[0], why),), ())


def test_a_stale_address_is_given_up_by_name_and_asking_twice_changes_nothing() -> None:
    pools = {"a": pool("198.51.100.0/24")}
    asks = request(holds=at("192.0.2.1"), gives_up=at("192.0.2.1"))
    first = given(Story(pools, {WEB: asks}, {}))[WEB]
    assert told(first) == (("198.51.100.0",), "")
    again = given(Story(pools, {WEB: replace(asks, holds=first.addresses)}, {}))[WEB]
    assert (again.addresses, again.lost) == (first.addresses, ())


def test_which_pool_has_an_address() -> None:
    known = {AddressPoolKey(name): it for name, it in {**BOTH, "b": pool("192.0.2.9-192.0.2.9", "10.0.0.0/8")}.items()}
    of = used(known).pool_of
    asked = ("192.0.2.1", "192.0.2.5", "192.0.2.9", "10.1.1.1", "11.0.0.0", "2001:db8::4", "2001:db8::5", "0.0.0.0")
    assert [of(it) for it in at(*asked)] == ["a", None, "b", "b", None, "a", None, None]
