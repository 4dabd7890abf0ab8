"""A node that announces to real routers of four kinds: what they see, keep and lose, and what people are told."""

import os
import signal
from pathlib import Path

import pytest

from podwire.model.addresses import parse_address
from podwire.model.announcements import BFD, Attributes
from tests.kernel.bgp_node import Node, Pair, session, speaker, started, told
from tests.kernel.rig import MakeSpace, sh
from tests.kernel.routers import KINDS, NODE_ASN, Peering, Router, connect, cut, gone, until

V4, V6 = "10.200.0.1/32", "fd00:200::1/128"
TAGGED = Attributes(("64512:100", "no-peer"), ("4200000001:1:2",))
NO_PEER = dict.fromkeys(("no-peer", "NO_PEER", "65535:65284"), "no-peer")
LONG = 120.0
"""Seconds that a router may take no notice of a node that it has refused."""
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda it: it.kind)


@kinds
async def test_a_router_sees_what_is_announced_and_no_more(kind: type[Router], pair: Pair) -> None:
    """Both families on one session, with communities of both kinds and a next hop of its own family each."""
    node, router = pair(kind, password="s3cret!#x")
    async with started(node, router):
        tor = session(password="s3cret!#x")
        node.driver.want(speaker([tor], {}))
        await node.up("tor")
        up = node.driver.sessions()["tor"].since
        node.driver.want(speaker([tor], told(V4, V6, attributes=TAGGED)))
        for prefix, hop in ((V4, "10.99.1.1"), (V6, "fd99:1::1")):
            (seen,) = await until(lambda p=prefix: router.sees(p), f"{prefix} at the router")
            assert (seen.as_path, seen.next_hop) == ((NODE_ASN,), hop)
            assert {NO_PEER.get(it, it) for it in seen.communities} == set(TAGGED.communities)
            assert seen.large == set(TAGGED.large)
        state = await node.session("tor", lambda it: all(p.sent for p in it.prefixes.values()), "both families told")
        assert (state.since, state.established, state.error) == (up, 1, ""), "the first route touches no session"
        routes = await node.driver.routes("tor")
        assert [(it.prefix, it.attributes) for it in routes.advertised] == [(V4, TAGGED), (V6, TAGGED)]
        node.driver.want(speaker([tor], told(V6, attributes=TAGGED)))
        await until(lambda: gone(router, V4), "withdrawn")
        assert await router.sees(V6)
        assert node.driver.troubles == ()


@kinds
async def test_routes_stay_while_bgpd_is_killed_and_comes_again(kind: type[Router], pair: Pair) -> None:
    """Graceful restart: what bgpd begins with is on disk, so that it tells all of it before End-of-RIB."""
    node, router = pair(kind)
    prefixes = [V4, *(f"10.201.0.{number}/32" for number in range(200)), V6]
    async with started(node, router):
        node.driver.want(speaker([session()], told(*prefixes)))
        for prefix in (V4, prefixes[-2], V6):
            await until(lambda p=prefix: router.sees(p), f"{prefix} at the router")
        await node.session("tor", lambda it: sum(p.sent for p in it.prefixes.values()) == len(prefixes), "all told")
        killed = node.daemons.processes["bgpd"]
        os.kill(killed, signal.SIGKILL)
        lost: list[str] = []

        async def again() -> bool:
            lost.extend([it for it in (V4, prefixes[-2], V6) if not await router.sees(it)])
            state = node.driver.sessions().get("tor")
            return node.daemons.processes.get("bgpd") != killed and state is not None and state.state == "Established"

        await until(again, "the session is up again")
        await node.session("tor", lambda it: sum(p.sent for p in it.prefixes.values()) == len(prefixes), "all told")
        assert await again()
        assert lost == []


@kinds
async def test_a_router_of_another_as_is_told_with_its_number(kind: type[Router], pair: Pair) -> None:
    node, router = pair(kind, asn=65099)
    async with started(node, router):
        node.driver.want(speaker([session()], told(V4)))
        state = await node.session("tor", lambda it: "says AS" in it.error or "refuses AS" in it.error, "the reason")
        assert state.error == "the router says AS 65099, expected 65010 (peerASN)"
        node.driver.want(speaker([session(asn=65099)], told(V4)))
        await node.up("tor", seconds=LONG)
        assert node.driver.sessions()["tor"].error == ""


@kinds
async def test_that_a_router_expects_another_as_of_the_node_is_told(kind: type[Router], pair: Pair) -> None:
    node, router = pair(kind, node_asn=65098)
    async with started(node, router):
        node.driver.want(speaker([session()], told(V4)))
        state = await node.session("tor", lambda it: "AS" in it.error, "the reason")
        assert state.error == "the router refuses AS 65001 for this node (myASN), it has another one configured"
        node.driver.want(speaker([session(local_asn=65098)], told(V4)))
        await node.up("tor", seconds=LONG)
        (seen,) = await until(lambda: router.sees(V4), f"{V4} at the router")
        assert seen.as_path == (65098,), "of the speaker's own AS nothing is told"


@kinds
async def test_a_wrong_password_is_told_as_what_is_likely(
    kind: type[Router], pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    node, router = pair(kind, password="right-one")
    async with started(node, router):
        node.driver.want(speaker([session(password="wrong-one")], told(V4)))
        state = await node.session("tor", lambda it: "password" in it.error, "the reason")
        assert "no TCP connection with 10.99.1.254:179" in state.error
        node.driver.want(speaker([session()], told(V4)))
        await node.session(
            "tor", lambda it: "asks for no password" in it.error or "asks for a" in it.error, "the reason"
        )
        node.driver.want(speaker([session(password="right-one")], told(V4)))
        await node.up("tor")
        told_to_people = (
            caplog.text,
            node.driver.sessions(),
            node.driver.troubles,
            node.driver.foreign,
            node.log.read_text(),
        )
        assert not [it for it in ("right-one", "wrong-one") if it in str(told_to_people)]


@kinds
async def test_local_preference_within_an_as(kind: type[Router], pair: Pair) -> None:
    node, router = pair(kind, asn=NODE_ASN)
    async with started(node, router):
        liked = Attributes(local_pref=250)
        node.driver.want(speaker([session(asn=NODE_ASN)], told(V4, attributes=liked) | told(V6)))
        for prefix, preference in ((V4, 250), (V6, 100)):
            (seen,) = await until(lambda p=prefix: router.sees(p), f"{prefix} at the router")
            assert (seen.as_path, seen.local_pref) == ((), preference)


@kinds
async def test_a_router_that_is_silent_is_lost_by_the_hold_timer(kind: type[Router], pair: Pair) -> None:
    node, router = pair(kind, hold=3)
    async with started(node, router):
        node.driver.want(speaker([session(hold=3, keepalive=1, restart=5)], told(V4)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        await node.up("tor")
        cut(node.space)
        state = await node.session("tor", lambda it: it.state != "Established", "lost")
        assert state.lost == "hold timer expired: nothing was heard of the router for 3 s"
        assert state.lost in state.error
        await until(
            lambda: gone(router, V4), "lost at the router, too: at once, or (BIRD, GoBGP) after the restart time"
        )


@pytest.mark.parametrize("kind", KINDS, ids=lambda it: it.kind)
async def test_a_router_forgets_a_node_that_it_does_not_hear_though_it_would_wait_for_one_that_restarts(
    kind: type[Router], pair: Pair
) -> None:
    """BIRD and GoBGP wait for as long again as a restart may take; FRR would, too, by RFC 8538."""
    node, router = pair(kind, hold=3)
    restart = 3 if kind.kind in ("BIRD", "GoBGP") else 120
    async with started(node, router):
        node.driver.want(speaker([session(hold=3, keepalive=1, restart=restart)], told(V4)))
        await node.up("tor")
        assert await until(lambda: router.sees(V4), f"{V4} at the router")
        cut(node.space)
        await until(lambda: gone(router, V4), "lost at the router, too", 15)


@pytest.mark.parametrize("kind", [it for it in KINDS if it.bfd], ids=lambda it: it.kind)
async def test_bfd_finds_a_dead_link_long_before_the_hold_timer(kind: type[Router], pair: Pair) -> None:
    """Of the four FRR and BIRD know it."""
    node, router = pair(kind, bfd=True, hold=90)
    async with started(node, router):
        node.driver.want(speaker([session(hold=90, keepalive=30, bfd=BFD(100, 100, 3))], told(V4)))
        await node.up("tor")
        await node.session("tor", lambda it: it.bfd == "Up", "BFD up")
        assert await until(lambda: router.sees(V4), f"{V4} at the router")
        cut(node.space)
        state = await node.session("tor", lambda it: it.state != "Established", "lost", 5)
        assert state.lost == "BFD: the router was not heard in time"
        await until(lambda: gone(router, V4), "lost at the router, too", 5)


@kinds
async def test_a_router_behind_another_one(kind: type[Router], make_space: MakeSpace, open_path: Path) -> None:
    """Reached by the default route; with BFD where the router knows it."""
    space, between, far = make_space("node"), make_space("between"), make_space("far")
    connect(space, between, 1)
    connect(far, between, 2)
    for one, number in ((space, 1), (far, 2)):
        sh("ip", "-n", one.name, "route", "add", "default", "via", f"10.99.{number}.254")
    node = Node(space, open_path / "n")
    router = kind(far, open_path / "r", Peering("10.99.2.1", bfd=kind.bfd, multihop=True))
    bfd = BFD(300, 300, 3) if kind.bfd else None
    source = parse_address("10.99.1.1")
    async with started(node, router):
        node.driver.want(speaker([session(router="10.99.2.1")], told(V4)))
        state = await node.session("tor", lambda it: bool(it.error), "told")
        assert "if it is not on a link of the node, ebgpMultiHop is needed" in state.error
        node.driver.want(speaker([session(router="10.99.2.1", multihop=True, bfd=bfd, source=source)], told(V4)))
        (seen,) = await until(lambda: router.sees(V4), f"{V4} at the router")
        assert seen.next_hop == "10.99.1.1"
        await node.session("tor", lambda it: it.bfd == ("Up" if kind.bfd else ""), "BFD, too")
        assert node.driver.sessions()["tor"].established == 1
