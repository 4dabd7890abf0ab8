"""How long a client behind a router waits for a load balancer's address when the node dies that its packets go to:
`python -m tests.bench.failover_bgp bfd|hold`.

Two nodes announce the address to one router, which sends a client's packets to one of them. That one is cut off at once
with its link up, as behind a switch when a node loses its power. With `bfd` (300 ms, three times, BGPPeer's defaults)
the router finds out by that; with `hold` by BGP's own hold time of nine seconds. The client sends a datagram every
10 ms.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from podwire.model.announcements import BFD
from tests.bench.failover import INTERVAL
from tests.kernel.bgp_node import Node, session, speaker, started, told
from tests.kernel.lan import ECHO, probing
from tests.kernel.rig import MakeSpace, Space, respond, sh, silence, spaces
from tests.kernel.routers import Frr, Peering, connect, cut, until

ADDRESS = "203.0.113.9"
_LONG = 60.0


async def measure(make: MakeSpace, directory: Path, bfd: bool) -> float:
    """Seconds without an answer."""
    router, client = make("router"), make("client")
    nodes = [_node(make, router, directory, number) for number in (1, 2)]
    connect(client, router, 3)
    sh("ip", "-n", client.name, "route", "add", "default", "via", "10.99.3.254")
    peering = Peering(nodes=("10.99.1.1", "10.99.2.1"), bfd=bfd)
    tor = Frr(router, directory / "r", peering)
    async with started(*nodes, tor):
        for number, node in enumerate(nodes, 1):
            more = {"bfd": BFD()} if bfd else {}
            here = session(router=f"10.99.{number}.254", hold=9, keepalive=3, **more)
            node.driver.want(speaker([here], told(f"{ADDRESS}/32"), number))
        for node in nodes:
            await node.session("tor", lambda it: it.state == "Established" and it.bfd in ("", "Up"), "up", _LONG)
        await until(lambda: _both(tor), "both nodes' ways")
        with probing(client, ADDRESS, INTERVAL) as prober:
            name = await asyncio.to_thread(_first, prober.answers)
            chosen = next(it for it in nodes if name == f"node{nodes.index(it) + 1}")
            died = time.monotonic()
            cut(chosen.space)
            other = next(f"node{number}" for number, it in enumerate(nodes, 1) if it is not chosen)
            await asyncio.to_thread(prober.until, other, _LONG, died + 0.02)
            await asyncio.sleep(1)  # it must also stay so
            return prober.gap(died - 1)


def _node(make: MakeSpace, router: Space, directory: Path, number: int) -> Node:
    space = make(f"node{number}")
    connect(space, router, number)
    sh("ip", "-n", space.name, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
    sh("ip", "-n", space.name, "route", "add", "default", "via", f"10.99.{number}.254")
    respond(space, f"node{number}", ECHO)
    return Node(space, directory / f"n{number}")


async def _both(tor: Frr) -> bool:
    return len(await tor.sees(f"{ADDRESS}/32")) == 2


def _first(answers: list[tuple[float, str]]) -> str:
    """Who has answered a hundred times."""
    end = time.monotonic() + _LONG
    while len(answers) < 100:
        assert time.monotonic() < end, "nobody answers"
        time.sleep(INTERVAL)
    return answers[-1][1]


def main(how: str) -> None:
    with spaces() as make, TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        try:
            print(json.dumps({"gap_s": asyncio.run(measure(make, directory, how == "bfd"))}))
        finally:
            silence()


if __name__ == "__main__":
    main(*sys.argv[1:])
