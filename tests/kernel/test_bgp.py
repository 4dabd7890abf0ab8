"""A node that announces to real routers of four kinds: what they see, keep and lose, and what people are told."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from podwire.model.addresses import parse_prefix
from podwire.model.announcements import Attributes
from tests.kernel.bgp_node import Node, session, speaker, started
from tests.kernel.rig import MakeSpace
from tests.kernel.routers import KINDS, NODE_ASN, Peering, Router, connect, until

V4, V6 = "10.200.0.1/32", "fd00:200::1/128"
TAGGED = Attributes(("64512:100", "no-peer"), ("4200000001:1:2",))
NO_PEER = dict.fromkeys(("no-peer", "NO_PEER", "65535:65284"), "no-peer")
Make = Callable[..., tuple[Node, Router]]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda it: it.kind)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """FRR's daemons have a user of their own, to whom pytest's directories are closed."""
    with TemporaryDirectory(prefix="pwt-bgp-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture
def pair(make_space: MakeSpace, open_path: Path) -> Make:
    """A node and a router on a link between them, not yet started."""

    def make(kind: type[Router], **peering: object) -> tuple[Node, Router]:
        one, other = make_space("node"), make_space("router")
        connect(one, other, 1)
        return Node(one, open_path / "n"), kind(other, open_path / "r", Peering(**peering))  # type: ignore[arg-type]

    return make


def told(*prefixes: str, attributes: Attributes = TAGGED, to: tuple[str, ...] = ("tor",)) -> dict[object, object]:
    return {parse_prefix(it): tuple((name, attributes) for name in to) for it in prefixes}


@kinds
async def test_a_router_sees_what_is_announced_and_no_more(kind: type[Router], pair: Make) -> None:
    """Both families on one session, with communities of both kinds and a next hop of its own family each."""
    node, router = pair(kind, password="s3cret!#x")
    async with started(node, router):
        tor = session(password="s3cret!#x")
        node.driver.want(speaker([tor], {}))
        await node.up("tor")
        up = node.driver.sessions()["tor"].since
        node.driver.want(speaker([tor], told(V4, V6)))
        for prefix, hop in ((V4, "10.99.1.1"), (V6, "fd99:1::1")):
            (seen,) = await until(lambda p=prefix: router.sees(p), f"{prefix} at the router")
            assert (seen.as_path, seen.next_hop) == ((NODE_ASN,), hop)
            assert {NO_PEER.get(it, it) for it in seen.communities} == set(TAGGED.communities)
            assert seen.large == set(TAGGED.large)
        state = await node.session("tor", lambda it: all(p.sent for p in it.prefixes.values()), "both families told")
        assert (state.since, state.established, state.error) == (up, 1, ""), "the first route touches no session"
        routes = await node.driver.routes("tor")
        assert [(it.prefix, it.attributes) for it in routes.advertised] == [(V4, TAGGED), (V6, TAGGED)]
        node.driver.want(speaker([tor], told(V6)))
        await until(lambda: gone(router, V4), "withdrawn")
        assert await router.sees(V6)
        assert node.driver.troubles == ()


async def gone(router: Router, prefix: str) -> bool:
    return not await router.sees(prefix)


@kinds
async def test_routes_stay_while_bgpd_is_killed_and_comes_again(kind: type[Router], pair: Make) -> None:
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
