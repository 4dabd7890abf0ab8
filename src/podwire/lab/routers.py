"""The router of a lab's fabric, and FRR on its nodes: where the manifests have a BGPPeer at the router's address.

Invariants: it is the same FRR as anywhere, configured as an administrator would; it knows nobody's addresses but those
that the nodes tell it, and tells them to the other nodes only where these find each other's pods by BGP. Once begun it
goes on until the lab ends, whatever becomes of agents and manifests.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from podwire.bgp.daemons import CannotStart, Daemons
from podwire.lab.forms import Fields
from podwire.lab.layout import Lab
from podwire.lab.process import run
from podwire.lab.topology import FABRIC, fabric_space, router, station_space
from podwire.model.addresses import FAMILIES, IPV4, Prefix, show_address
from podwire.model.announcements import BGPPeer
from podwire.sources.kubernetes import translate

PATIENCE = 30.0
"""Seconds until the router has learnt what the nodes tell."""
_LOOK = 0.05


class Plan(NamedTuple):
    """`asn`: the router's. `nodes`: theirs."""

    asn: int
    nodes: int


def plan(objects: Iterable[Fields]) -> Plan | None:
    """None: nobody asks for a router. Of several peers at its address the first by name says which AS it is. Pure."""
    found = {}
    for data in objects:
        if data.get("kind") == "BGPPeer":
            key, value, _ = translate(dict(data))
            if isinstance(value, BGPPeer) and value.address in router(0).addresses:
                found[str(key)] = value
    if not found:
        return None
    first = found[min(found)]
    return Plan(first.asn, first.my_asn)


def configuration(it: Plan, tells: bool = False) -> str:
    """Of its bgpd: whoever of the links comes may be a node, and is listened to. `tells`: to each what it has learnt of
    the others, by way of whoever told it. Pure."""
    # A node takes nothing that its own AS has told, and a router tells nodes of its own AS nothing of each other.
    between = (
        ("route-reflector-client" if it.asn == it.nodes else "as-override", "attribute-unchanged next-hop")
        if tells
        else ("route-map nothing out",)
    )
    lines = "".join(f"  neighbor nodes {line}\n" for line in ("activate", *between, "route-map all in"))
    listen = "".join(f" bgp listen range {FABRIC[0][family]} peer-group nodes\n" for family in FAMILIES)
    families = "".join(
        f" address-family {family.name.lower()} unicast\n{lines}  maximum-paths 64\n exit-address-family\n"
        for family in FAMILIES
    )
    return (
        "route-map nothing deny 10\nexit\nroute-map all permit 10\n set ipv6 next-hop prefer-global\nexit\n"
        f"router bgp {it.asn}\n bgp router-id {show_address(router(0).addresses[0])}\n"
        " no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n bgp bestpath as-path multipath-relax\n"
        f" neighbor nodes peer-group\n neighbor nodes remote-as {it.nodes}\n neighbor nodes bfd\n"
        f"{listen}{families}exit\n"
    )


class Routers:
    def __init__(self, lab: Lab, say: Callable[[str], None]) -> None:
        self._lab, self._say = lab, say
        self.plan: Plan | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, objects: Iterable[Fields], nodes: Iterable[str]) -> None:
        """Where there is one to begin with. What the machine lacks is said, and no mistake."""
        wanted = plan(objects)
        if wanted is None or self.plan is not None:
            return
        frr = self._lab.home / "router" / "frr"
        frr.mkdir(parents=True, exist_ok=True)
        (frr / "bgpd.conf").write_text(configuration(wanted, self._lab.by_bgp), encoding="utf-8")
        places = {fabric_space(self._lab.name): frr}
        places |= {station_space(self._lab.name, node): self._lab.node(node).frr for node in nodes}
        try:
            await asyncio.gather(*(self._start(space, directory) for space, directory in places.items()))
        except CannotStart as error:
            self._say(f"no router: {error}")
            return
        self.plan = wanted
        self._say(f"a router on the fabric (FRR, AS {wanted.asn}), and FRR on each node")

    async def _start(self, space: str, directory: Path) -> None:
        """Answers once bgpd does. Raises CannotStart."""
        output = (directory.parent / "frr.log").open("ab")
        daemons = Daemons(directory, output=output, inside=("ip", "netns", "exec", space))
        task = asyncio.create_task(daemons.run(), name=f"FRR in {space}")
        self._tasks.append(task)
        task.add_done_callback(lambda _: output.close())
        answering = asyncio.create_task(daemons.started["bgpd"].wait())
        await asyncio.wait((task, answering), return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        if task.done():
            task.result()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def await_routes(self, told: Mapping[Prefix, Collection[str]]) -> list[str]:
        """Until the router has these routes by these next hops, and no others. Answers what is not so in time, a line
        for each."""
        wanted = {_as_ip_shows(prefix): frozenset(hops) for prefix, hops in told.items()}
        until = monotonic() + PATIENCE
        while (held := await routes(self._lab.name)) != wanted:
            if monotonic() > until:
                return [
                    f"the router: {to} is by way of {_listed(held.get(to, ()))}, not {_listed(wanted.get(to, ()))}"
                    for to in sorted(held.keys() | wanted.keys())
                    if held.get(to) != wanted.get(to)
                ]
            await asyncio.sleep(_LOOK)  # another program's kernel routes: it tells nobody
        return []


def _as_ip_shows(prefix: Prefix) -> str:
    """ip(8) leaves the length of a single address out."""
    return show_address(prefix.first) if prefix.length == prefix.family.bits else str(prefix)


def _listed(hops: Iterable[str]) -> str:
    return ", ".join(sorted(hops)) or "nobody"


async def routes(lab: str) -> Mapping[str, frozenset[str]]:
    """What the router has learnt: destination → next hops."""
    found: dict[str, frozenset[str]] = {}
    for family in FAMILIES:
        version = "-4" if family == IPV4 else "-6"
        _, out, _ = await run("ip", "-json", version, "-n", fabric_space(lab), "route", "show", "proto", "bgp")
        for it in msgspec.json.decode(out or "[]"):
            hops = it.get("nexthops") or [it]
            vias = (hop.get("gateway") or hop.get("via", {}).get("host", "") for hop in hops)
            found[it["dst"]] = found.get(it["dst"], frozenset()) | frozenset(filter(None, vias))
    return found
