"""How long it takes until a router has a node's routes, and until it has lost them: told by the driver, and by hand.

    python -m tests.bench.bgp ROUTES ROUNDS

Invariants: two nodes with the same FRR, and one router that has a session with each; they take turns. By hand means a
file of `network` lines and `vtysh -f`, with the filters that an administrator would have. Time runs from the wish, or
vtysh's start, until the router counts as many routes from that node.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from podwire.model.announcements import Attributes, Speaker
from tests.bench.bgp_gobgp import GobgpNode
from tests.bench.figures import resident
from tests.kernel.bgp_node import Node, session, started
from tests.kernel.rig import spaces
from tests.kernel.routers import NODE_ASN, Frr, Peering, connect, output, until
from tests.unit.bgp_speakers import many

OURS, BY_HAND, GOBGP = "10.99.1.1", "10.99.2.1", "10.99.3.1"
TAGGED = Attributes(("64512:100",))
FILTERS = f"""ip prefix-list OWN seq 5 permit 10.0.0.0/8 le 32
route-map OUT permit 10
 match ip address prefix-list OWN
 set community 64512:100
exit
router bgp {NODE_ASN}
 address-family ipv4 unicast
  neighbor 10.99.2.254 route-map OUT out
 exit-address-family
exit
"""
"""What the node by hand tells of itself."""
REST_SECONDS = 6.0
"""After a change of route maps FRR goes through all routes once more, five seconds later: not within a measurement."""


async def count(router: Frr, node: str) -> int:
    peers = json.loads(await router.vty.show("show bgp ipv4 unicast summary json"))["peers"]
    return int(peers[node].get("pfxRcd", 0))


async def timed(router: Frr, node: str, goal: int, act: Callable[[], Awaitable[None]]) -> float:
    began = perf_counter()
    await act()
    while await count(router, node) != goal:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.003)
    return perf_counter() - began


class ByHand:
    def __init__(self, frr: Frr, prefixes: list[str]) -> None:
        self._frr, self._file = frr, frr.directory / "change.conf"
        self._prefixes = prefixes

    async def start(self) -> None:
        self._file.write_text(FILTERS)
        await self._tell()

    async def announce(self) -> None:
        await self._say("network")

    async def withdraw(self) -> None:
        await self._say("no network")

    async def _say(self, word: str) -> None:
        lines = "".join(f"  {word} {it}\n" for it in self._prefixes)
        head = f"router bgp {NODE_ASN}\n address-family ipv4 unicast\n"
        self._file.write_text(f"{head}{lines} exit-address-family\nexit\n")
        await self._tell()

    async def _tell(self) -> None:
        said = await output("vtysh", "--vty_socket", str(self._frr.directory), "-d", "bgpd", "-f", str(self._file))
        assert "Unknown" not in said, said


class Ours:
    def __init__(self, node: Node, routes: int) -> None:
        self._node, self._routes = node, routes
        self._session = session()

    def _wish(self, routes: int) -> Speaker:
        return many(routes, (self._session,), TAGGED)

    async def start(self) -> None:
        self._node.driver.want(self._wish(1))

    async def announce(self) -> None:
        self._node.driver.want(self._wish(self._routes + 1))

    async def withdraw(self) -> None:
        self._node.driver.want(self._wish(1))


async def measure(routes: int, rounds: int) -> dict[str, Any]:
    with spaces() as make, TemporaryDirectory(prefix="pwb-bgp-") as directory:
        os.chmod(directory, 0o755)  # FRR's user is another
        home, at = make("router"), Path(directory)
        parts = {which: make(which) for which in ("ours", "hand", "gobgp")}
        for number, space in enumerate(parts.values(), 1):
            connect(space, home, number)
        router = Frr(home, at / "router", Peering(nodes=(OURS, BY_HAND, GOBGP)))
        node = Node(parts["ours"], at / "ours")
        back = Peering(own=BY_HAND, nodes=("10.99.2.254",), asn=NODE_ASN, node_asn=router.peering.asn)
        other = Frr(parts["hand"], at / "hand", back)
        third = GobgpNode(
            parts["gobgp"], at / "gobgp", Peering(own=GOBGP, nodes=("10.99.3.254",), asn=NODE_ASN, node_asn=65010)
        )
        async with started(router, other, third, node):
            return await _measure(router, node, other, third, routes, rounds)


async def _measure(router: Frr, node: Node, other: Frr, third: GobgpNode, routes: int, rounds: int) -> dict[str, Any]:
    prefixes = [str(it) for it in many(routes + 1, ()).routes][1:]
    ours, by_hand = Ours(node, routes), ByHand(other, prefixes)
    third.prefixes = prefixes
    began = perf_counter()
    await ours.start()
    await until(lambda: _is(router, OURS, 1), "the first route")
    found: dict[str, Any] = {"first_route_s": perf_counter() - began}
    await by_hand.start()
    idle = _memory(node)
    for who in (BY_HAND, GOBGP):
        await until(lambda w=who: _up(router, w), f"{who} is up")
    await asyncio.sleep(REST_SECONDS)
    for _ in range(rounds):
        for name, who, base, one in (
            ("ours", OURS, 1, ours),
            ("hand", BY_HAND, 0, by_hand),
            ("gobgp", GOBGP, 0, third),
        ):
            found.setdefault(f"announce_{name}", []).append(await timed(router, who, base + routes, one.announce))
            if name == "ours":
                found["rss_idle"], found["rss_full"] = idle, _memory(node)
            await asyncio.sleep(0.3)
            found.setdefault(f"withdraw_{name}", []).append(await timed(router, who, base, one.withdraw))
            await asyncio.sleep(0.3)
    return found


def _memory(node: Node) -> float:
    return sum(resident(process) for process in node.daemons.processes.values())


async def _is(router: Frr, node: str, goal: int) -> bool:
    return await count(router, node) == goal


async def _up(router: Frr, node: str) -> bool:
    peers = json.loads(await router.vty.show("show bgp ipv4 unicast summary json"))["peers"]
    return bool(peers[node]["state"] == "Established")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))))
