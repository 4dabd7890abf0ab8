"""The driver over time: what stays while the agent, FRR or a wish ends and comes again; what never leaves a node."""

import asyncio
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from podwire.bgp import config
from podwire.bgp.driver import Driver
from podwire.bgp.sessions import State
from podwire.bgp.tree import EMPTY, Block
from podwire.bgp.vty import Vty
from podwire.model.addresses import IPV6, parse_address, parse_prefix
from podwire.model.announcements import BFD, Attributes, Speaker
from tests.kernel.bgp_node import Node, Pair, session, speaker, started, told
from tests.kernel.rig import MakeSpace, sh
from tests.kernel.routers import KINDS, Bird, Frr, Peering, Router, connect, gone, until

V4, V6, MORE = "10.200.0.1/32", "fd00:200::1/128", "10.200.0.2/32"
LEARNT, DEEP, OTHER = "10.50.0.0/16", "10.50.7.0/24", "10.60.0.0/16"


async def configuration(node: Node) -> str:
    vty = await Vty.connected(node.frr / "bgpd.vty")
    try:
        return await vty.show("show running-config")
    finally:
        vty.close()


async def test_an_agent_that_is_started_again_says_nothing(pair: Pair) -> None:
    """Its end is nobody's loss, and what it finds is what it would have said."""
    node, router = pair(Frr)
    async with started(node, router):
        node.driver.want(speaker([session()], told(V4, V6)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        before = await node.session("tor", lambda it: it.state == "Established", "up")
        read = await configuration(node)
        written = {it.name: it.stat().st_mtime_ns for it in node.frr.glob("*.conf")}
        said: list[str] = []
        await node.end("driver")
        node.start_driver()
        configure = Vty.configure

        async def heard(vty: Vty, commands: Iterable[str]) -> list[object]:
            these = list(commands)
            said.extend(these)
            return await configure(vty, these)  # type: ignore[return-value]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Vty, "configure", heard)
            node.driver.want(speaker([session()], told(V4, V6)))
            await node.up("tor")
            assert said == []
            node.driver.want(speaker([session()], told(V4, V6, MORE)))
            await until(lambda: router.sees(MORE), f"{MORE} at the router")
            assert len(said) == 5, "a route more is a line"
        after = node.driver.sessions()["tor"]
        assert (after.established, after.state) == (before.established, "Established")
        assert (await configuration(node)).replace(f"  network {MORE} ", "") != read
        assert {it.name: it.stat().st_mtime_ns for it in node.frr.glob("[zbf]*.conf") if it.name != "bgpd.conf"} == {
            name: at for name, at in written.items() if name != "bgpd.conf"
        }


async def test_nothing_is_touched_before_there_is_a_wish(pair: Pair) -> None:
    node, router = pair(Frr)
    async with started(node, router):
        node.driver.want(speaker([session()], told(V4)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        read = await configuration(node)
        await node.end("driver")
        node.start_driver()
        await node.driver.changed()
        assert await configuration(node) == read
        node.driver.want(None)
        await until(lambda: gone(router, V4), "taken back")
        assert "router bgp" not in await configuration(node)
        assert node.driver.sessions() == {}


async def test_frr_may_come_later_and_lose_all_it_knew(pair: Pair) -> None:
    node, router = pair(Frr)
    async with started(router):
        node.start_driver()
        try:
            node.driver.want(speaker([session()], told(V4)))
            state = await node.session("tor", lambda it: bool(it.error), "told")
            where = node.frr / "bgpd.vty"
            assert state.error == f"FRR's bgpd does not run: nobody answers at {where}: No such file or directory"
            assert state.error in node.driver.troubles
            node.start_frr()
            await node.answering()
            await node.up("tor")
            await until(lambda: router.sees(V4), f"{V4} at the router")
            assert node.driver.troubles == ()
            killed = node.daemons.processes["bgpd"]
            (node.frr / "bgpd.conf").write_text("")
            os.kill(killed, signal.SIGKILL)
            await until(lambda: node.daemons.processes.get("bgpd") not in (None, killed), "started again")
            await node.up("tor")
            await until(lambda: router.sees(V4), f"{V4} at the router")
            await until(lambda: V4 in (node.frr / "bgpd.conf").read_text(), "written again")
        finally:
            await node.stop()


async def test_after_a_boot_nothing_is_told_before_there_is_a_wish(pair: Pair, tmp_path: Path) -> None:
    """What was told before it brings packets, and nothing on the node knows yet what to do with them."""
    node, router = pair(Frr)
    async with started(node, router):
        node.driver.want(speaker([session()], told(V4, V6)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        for boot in (node.boot.read_text(), "another one"):
            node.boot = tmp_path / "boot"
            await node.end("driver")
            await node.end("frr")
            node.boot.write_text(boot)
            node.output.close()
            node.start_frr()
            await node.answering()
            assert ("router bgp" in await configuration(node)) == (boot != "another one")
            node.start_driver()
            node.driver.want(speaker([session()], told(V4, V6)))
            await node.up("tor")
            await until(lambda: router.sees(V4), f"{V4} at the router")


async def test_other_attributes_withdraw_nothing_and_touch_no_session(pair: Pair) -> None:
    node, router = pair(Bird)
    async with started(node, router):
        assert isinstance(router, Bird)
        node.driver.want(speaker([session()], told(V4, V6)))
        await until(lambda: router.sees(V6), f"{V6} at the router")
        before = await node.session("tor", lambda it: it.state == "Established", "up")
        for number in range(5):
            how = Attributes((f"64512:{number}",))
            node.driver.want(
                speaker(
                    [session("renamed" if number % 2 else "tor")],
                    {
                        **told(V4, attributes=how, to=("tor", "renamed")),
                        **told(V6, attributes=Attributes(large=(f"1:2:{number}",)), to=("tor", "renamed")),
                    },
                )
            )
            await until(lambda n=number: has(router, V4, f"64512:{n}"), "the new attributes")
        counted = re.findall(r"Import withdraws:\s+(\d+)", await router.ask("show protocols all n0"))
        assert counted == ["0", "0"]
        after = await node.session("tor", lambda it: it.state == "Established", "up")
        assert (after.since, after.established) == (before.since, before.established)
        maps = re.findall(r"route-map podwire-class-\S+ permit", await configuration(node))
        assert len(maps) == 2, "what nobody has any more is gone"


async def has(router: Router, prefix: str, community: str) -> bool:
    return any(community in it.communities for it in await router.sees(prefix))


async def test_what_others_say_stays_unless_it_is_in_the_way(pair: Pair) -> None:
    node, router = pair(Frr)
    async with started(node, router):
        vty = await Vty.connected(node.frr / "bgpd.vty")
        assert await vty.configure(["router bgp 64999", "exit", "ip prefix-list mine seq 5 permit any"]) == []
        node.driver.want(speaker([session()], told(V4)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        read = await configuration(node)
        assert "router bgp 64999" not in read, "there can be one only"
        assert "ip prefix-list mine" in read
        assert node.driver.foreign == ("bgpd: ip prefix-list mine seq 5 permit any",)
        hands = ["neighbor 10.99.1.254 shutdown", "neighbor 10.99.1.253 remote-as 3", "address-family ipv4 unicast"]
        hands += [f"no network {V4}", "network 10.66.0.0/16", "exit-address-family", "exit"]
        assert await vty.configure(["router bgp 65001", *hands]) == []
        await until(lambda: gone(router, V4), "gone by the hand")
        await node.end("driver")
        node.start_driver()  # which reads, as it does twice a minute
        node.driver.want(speaker([session()], told(V4)))
        await until(lambda: router.sees(V4), f"{V4} at the router again")
        assert not await router.sees("10.66.0.0/16"), "not ours, not told"
        assert any("10.99.1.253 remote-as 3" in it for it in node.driver.foreign)
        node.driver.want(None)
        await until(lambda: gone(router, V4), "taken back")
        assert "neighbor 10.99.1.253 remote-as 3" in await configuration(node)
        vty.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda it: it.kind)
async def test_no_route_goes_from_one_router_to_another(
    kind: type[Router], make_space: MakeSpace, open_path: Path
) -> None:
    """A node takes what it is asked to, into its kernel, and passes nothing on."""
    space, one, two = make_space("node"), make_space("one"), make_space("two")
    connect(space, one, 1)
    connect(space, two, 2)
    node = Node(space, open_path / "n")
    first = kind(one, open_path / "one", Peering(announces=(LEARNT, DEEP, OTHER)))
    back = Peering("10.99.2.254", ("10.99.2.1",), asn=65020)
    second = Frr(two, open_path / "two", back)
    async with started(node, first, second):
        takes = session("tor-1", receives=(parse_prefix(LEARNT),))
        refuses = session("tor-2", "10.99.2.254", asn=65020)
        routes = told(V4, to=("tor-1", "tor-2"))
        node.driver.want(speaker([takes, refuses], routes))
        await node.up("tor-1", "tor-2")
        for prefix in (LEARNT, DEEP):
            await until(
                lambda p=prefix: "10.99.1.254" in sh("ip", "-n", space.name, "route", "show", p), f"{prefix} taken"
            )
        await until(lambda: second.sees(V4), f"{V4} at the second")
        await node.session("tor-1", lambda it: it.prefixes["IPv4"].received == 2, "two taken")
        assert sh("ip", "-n", space.name, "route", "show", OTHER) == ""
        found = await node.driver.routes("tor-1")
        assert [(it.prefix, it.next_hops) for it in found.received] == [
            (LEARNT, ("10.99.1.254",)),
            (DEEP, ("10.99.1.254",)),
        ]
        assert [it.prefix for it in (await node.driver.routes("tor-2")).advertised] == [V4]
        assert [it for it in (LEARNT, DEEP, OTHER) if await second.sees(it)] == []
        node.driver.want(speaker([session("tor-1"), refuses], routes))
        await until(lambda: sh("ip", "-n", space.name, "route", "show", LEARNT) == "", "given back")
        assert node.driver.sessions()["tor-2"].established == 1


CHANGES: dict[str, dict[str, Any]] = {
    "its timers": {"hold": 30, "keepalive": 10},
    "its restart time": {"hold": 30, "keepalive": 10, "restart": 60},
    "that it is found by BFD": {"bfd": BFD()},
    "what it receives": {"receives": (parse_prefix(LEARNT),)},
    "its name": {"name": "renamed"},
}


async def test_a_change_of_one_session_touches_no_other_nor_itself_where_it_may_go_on(
    make_space: MakeSpace, open_path: Path
) -> None:
    space, one, two = make_space("node"), make_space("one"), make_space("two")
    connect(space, one, 1)
    connect(space, two, 2)
    node = Node(space, open_path / "n")
    first = Frr(one, open_path / "one", Peering(announces=(LEARNT,)))
    second = Frr(two, open_path / "two", Peering("10.99.2.254", ("10.99.2.1",), asn=65020))
    async with started(node, first, second):
        other = session("tor-2", "10.99.2.254", asn=65020)
        routes = told(V4, V6, to=("tor-1", "renamed", "tor-2"))

        async def changed(what: str, **more: Any) -> State:
            changed = session(**{"name": "tor-1", **more})
            node.driver.want(speaker([changed, other], routes))
            await node.up(changed.name, "tor-2")
            await node.driver.changed()  # what would end it has had its time
            await node.up(changed.name, "tor-2")
            assert node.driver.sessions()["tor-2"].established == 1, what
            return node.driver.sessions()[changed.name]

        await changed("nothing")
        for what, more in CHANGES.items():
            assert (await changed(what, **more)).established == 1, what
        assert (await changed("its source", source=parse_address("10.99.1.1"))).established == 2
        node.driver.want(speaker([other], routes))
        await until(lambda: gone(first, V4), "left")
        await node.driver.changed()
        assert node.driver.sessions()["tor-2"].established == 1


async def test_routes_taken_stay_in_the_kernel_whatever_daemon_is_killed(pair: Pair) -> None:
    """And the node's own stay with the router."""
    node, router = pair(Frr, announces=(LEARNT,))
    async with started(node, router):
        node.driver.want(speaker([session(receives=(parse_prefix(LEARNT),))], told(V4)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        await until(lambda: kernel(node), f"{LEARNT} in the kernel")
        for name in ("zebra", "bgpd", "bfdd"):
            killed = node.daemons.processes[name]
            os.kill(killed, signal.SIGKILL)
            lost: list[str] = []

            async def again(name: str = name, killed: int = killed, lost: list[str] = lost) -> bool:
                lost += [] if kernel(node) else [LEARNT]
                lost += [] if await router.sees(V4) else [V4]
                state = node.driver.sessions()["tor"]
                return node.daemons.processes.get(name) not in (None, killed) and state.state == "Established"

            await until(again, f"all is well after the end of {name}")
            await node.session("tor", lambda it: it.prefixes["IPv4"].received == 1, "taken again")
            await until(again, "and stays so")
            assert lost == [], name


def kernel(node: Node) -> bool:
    return "10.99.1.254" in sh("ip", "-n", node.space.name, "route", "show", LEARNT)


@pytest.mark.parametrize("kind", [it for it in KINDS if it.multipath], ids=lambda it: it.kind)
async def test_a_router_shares_among_nodes(kind: type[Router], make_space: MakeSpace, open_path: Path) -> None:
    """Two nodes announce the same address: FRR and BIRD send to both."""
    spaces, home = [make_space("one"), make_space("two")], make_space("router")
    for number, space in enumerate(spaces, 1):
        connect(space, home, number)
    router = kind(home, open_path / "r", Peering(nodes=("10.99.1.1", "10.99.2.1")))
    nodes = [Node(space, open_path / f"n{number}") for number, space in enumerate(spaces, 1)]
    async with started(*nodes, router):
        for number, node in enumerate(nodes, 1):
            node.driver.want(speaker([session(router=f"10.99.{number}.254")], told(V4, V6), number))
        hops = {V4: ("10.99.1.1", "10.99.2.1"), V6: ("dev w1-254", "dev w2-254")}
        for prefix, both in hops.items():
            await until(lambda p=prefix, b=both: all(it in router.kernel(p) for it in b), f"both ways to {prefix}")
        nodes[0].driver.want(speaker([session()], told(V6)))
        await until(lambda: "10.99.1.1" not in router.kernel(V4), "one way less")
        assert "10.99.2.1" in router.kernel(V4)
        assert all(it in router.kernel(V6) for it in hops[V6])


async def test_a_node_told_to_end_is_left_at_once(pair: Pair) -> None:
    """Its daemons say goodbye, unlike those that are killed."""
    node, router = pair(Frr)
    async with started(node, router):
        node.driver.want(speaker([session()], told(V4)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        await node.end("frr")
        await until(lambda: gone(router, V4), "left", 2)


async def test_families_over_a_session_of_the_other_one(make_space: MakeSpace, open_path: Path) -> None:
    """Over IPv6, IPv4's routes have the node's IPv4 address as next hop; without one they are not told, and that is."""
    one, other = make_space("node"), make_space("router")
    connect(one, other, 1)
    node = Node(one, open_path / "n")
    router = Frr(other, open_path / "r", Peering(nodes=("fd99:1::1",)))
    async with started(node, router):
        tor = session(router="fd99:1::fe")
        node.driver.want(speaker([tor], told(V4, V6)))
        for prefix, hop in ((V4, "10.99.1.1"), (V6, "fd99:1::1")):
            (seen,) = await until(lambda p=prefix: router.sees(p), f"{prefix} at the router")
            assert seen.next_hop == hop
        lone = speaker([tor], told(V4, V6))
        node.driver.want(lone._replace(next_hops=tuple(it for it in lone.next_hops if len(it) == IPV6.size)))
        await until(lambda: gone(router, V4), "IPv4 no more")
        assert await router.sees(V6)
        state = await node.session("tor", lambda it: bool(it.error), "said")
        assert state.error == "it is told no IPv4 route: the node has no IPv4 address to name in one"
        assert (state.state, state.established) == ("Established", 1)


async def test_what_frr_refuses_is_told_and_tried_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without holding up what it does not refuse, nor the next wish."""
    node, router = pair(Frr)
    async with started(node, router):
        real = config.plan

        def wrong(wanted: Speaker | None, held: Block = EMPTY) -> config.Plan:
            made = real(wanted, held)
            bgpd = made.held["bgpd"]
            return made._replace(held={**made.held, "bgpd": bgpd._replace(lines=bgpd.lines | {"ip nonsense"})})

        monkeypatch.setattr("podwire.bgp.driver.plan", wrong)
        node.driver.want(speaker([session()], told(V4)))
        await until(lambda: router.sees(V4), f"{V4} at the router")
        await until(lambda: node.driver.troubles, "told")
        (trouble,) = node.driver.troubles
        assert trouble == "FRR's bgpd refuses ip nonsense: % [BGP] Unknown command: ip nonsense"
        node.driver.want(speaker([session()], told(V4, MORE)))
        await until(lambda: router.sees(MORE), f"{MORE} at the router")
        monkeypatch.setattr("podwire.bgp.driver.plan", real)
        node.driver.want(speaker([session()], told(V4)))
        await until(lambda: not node.driver.troubles, "right again")
        assert node.driver.sessions()["tor"].established == 1


async def test_routes_of_a_session_that_there_is_not(open_path: Path) -> None:
    with pytest.raises(KeyError):
        await Driver(open_path).routes("nobody")


@pytest.mark.parametrize("after", [1.5, 3.0, 3.1, 3.2])
async def test_a_route_is_withdrawn_whenever_a_session_came_up_after_its_route_maps(pair: Pair, after: float) -> None:
    """FRR 8.4 forgets what it told a session that comes up in the moment in which it looks at changed route maps."""
    node, router = pair(Frr)
    async with started(node, router):
        assert isinstance(router, Frr)
        await router.vty.configure(["router bgp 65010", "neighbor 10.99.1.1 shutdown", "exit"])
        node.driver.want(speaker([session()], told(V4, V6)))
        await asyncio.sleep(after)
        vty = await Vty.connected(node.frr / "bgpd.vty")
        await vty.ask(["clear bgp *"])
        vty.close()
        await router.vty.configure(["router bgp 65010", "no neighbor 10.99.1.1 shutdown", "exit"])
        for prefix in (V4, V6):
            await until(lambda p=prefix: router.sees(p), f"{prefix} at the router")
        node.driver.want(speaker([session()], told(V6)))
        await until(lambda: gone(router, V4), "withdrawn", 5)
        assert await router.sees(V6)
