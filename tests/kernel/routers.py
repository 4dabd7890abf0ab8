"""Routers of four kinds, each in a namespace of its own.

Invariants: each router is the real program, with a configuration as an administrator writes it: one session over IPv4
that carries both families. What a router sees is what its own tools say.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pwd import getpwnam
from typing import Any, ClassVar

from podwire.bgp import files
from podwire.bgp.daemons import Daemons
from podwire.bgp.tree import parse
from podwire.bgp.vty import Vty
from tests.kernel.rig import Space, sh

PATIENCE = 30.0
NODE_ASN, ROUTER_ASN = 65001, 65010


@dataclass(frozen=True)
class Seen:
    """A path to a prefix, as a router has it."""

    as_path: tuple[int, ...]
    next_hop: str
    communities: frozenset[str]
    large: frozenset[str]
    local_pref: int | None = None


@dataclass(frozen=True)
class Peering:
    """How a router is configured. `nodes`: their addresses. `announces`: prefixes of its own."""

    own: str = "10.99.1.254"
    nodes: tuple[str, ...] = ("10.99.1.1",)
    asn: int = ROUTER_ASN
    node_asn: int = NODE_ASN
    password: str = ""
    hold: int = 9
    bfd: bool = False
    multihop: bool = False
    announces: tuple[str, ...] = ()


def connect(one: Space, other: Space, number: int, ends: tuple[int, int] = (1, 254)) -> None:
    """A link with 10.99.NUMBER.END/24 and fd99:NUMBER::END/64 at either end, IPv6 without delay."""
    names = tuple(f"w{number}-{end}" for end in ends)
    sh("ip", "link", "add", names[0], "netns", one.name, "type", "veth", "peer", names[1], "netns", other.name)
    for space, name, end in ((one, names[0], ends[0]), (other, names[1], ends[1])):
        sh("ip", "-n", space.name, "addr", "add", f"10.99.{number}.{end}/24", "dev", name)
        sh("ip", "-n", space.name, "addr", "add", f"fd99:{number}::{end:x}/64", "dev", name, "nodad")
        sh("ip", "-n", space.name, "link", "set", name, "up")
        sh("ip", "-n", space.name, "link", "set", "lo", "up")
        for setting in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.ipv4.fib_multipath_hash_policy"):
            sh("ip", "netns", "exec", space.name, "sysctl", "-qw", f"{setting}=1")


def cut(space: Space) -> None:
    """Nothing goes in or out by its links, which stay up."""
    chains = (f"chain {it} {{ type filter hook {it}put priority 0; policy drop; }}" for it in ("in", "out"))
    sh("ip", "netns", "exec", space.name, "nft", f"table inet cut {{ {'; '.join(chains)}; }}")


async def until(holds: Callable[[], Awaitable[Any] | Any], what: str, seconds: float = PATIENCE) -> Any:
    """Asks other programs again and again, which tell nobody by themselves; what it answered at last."""
    found: Any = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = holds()
                if isinstance(found, Awaitable):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true in {seconds:g} s") from None


async def output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return out.decode(errors="replace")


class Router:
    """One of `KINDS`, from `start` to `stop`."""

    kind: ClassVar[str]
    bfd: ClassVar[bool] = False
    """Whether it knows BFD."""
    multipath: ClassVar[bool] = False
    """Whether it uses several paths at once, and installs them in its kernel."""

    def __init__(self, space: Space, directory: Path, peering: Peering) -> None:
        self.space, self.directory, self.peering = space, directory, peering
        self.log = directory / "router.log"
        self.process: asyncio.subprocess.Process | None = None
        directory.mkdir(parents=True)

    async def start(self) -> None:
        (self.directory / "router.conf").write_text(self.configuration())
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                "ip", "netns", "exec", self.space.name, *self.command(), stdout=log, stderr=log
            )
        await until(self.answers, f"{self.kind} answers")

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def configuration(self) -> str:
        raise NotImplementedError

    async def answers(self) -> bool:
        raise NotImplementedError

    async def sees(self, prefix: str) -> list[Seen]:
        """All paths that it has to it."""
        raise NotImplementedError

    def kernel(self, prefix: str) -> str:
        """Its own route to it, in one line."""
        family = "-6" if ":" in prefix else "-4"
        return " ".join(sh("ip", "-n", self.space.name, family, "route", "show", prefix).split())


async def gone(router: Router, prefix: str) -> bool:
    return not await router.sees(prefix)


class Frr(Router):
    kind, bfd, multipath = "FRR", True, True

    async def start(self) -> None:
        at = self.directory
        self.output = self.log.open("ab")
        self.daemons = Daemons(at, output=self.output, inside=("ip", "netns", "exec", self.space.name))
        files.write(at, "bgpd", parse(self.configuration()))
        self.task = asyncio.create_task(self.daemons.run())
        await asyncio.wait_for(self.daemons.started["bgpd"].wait(), PATIENCE)
        self.vty = await Vty.connected(at / "bgpd.vty")

    async def stop(self) -> None:
        self.vty.close()
        self.task.cancel()
        await asyncio.wait([self.task])
        self.output.close()

    def configuration(self) -> str:
        told = self.peering
        lines = [f"router bgp {told.asn}", f" bgp router-id {told.own}", " no bgp ebgp-requires-policy"]
        lines += [
            " no bgp default ipv4-unicast",
            " no bgp network import-check",
            " bgp bestpath as-path multipath-relax",
        ]
        for node in told.nodes:
            who = f" neighbor {node}"
            lines += [f"{who} remote-as {told.node_asn}", f"{who} timers {told.hold // 3} {told.hold}"]
            lines += [f"{who} timers connect 1", *([f"{who} bfd"] if told.bfd else [])]
            lines += [f"{who} password {told.password}"] if told.password else []
            lines += [f"{who} ebgp-multihop 255"] if told.multihop else []
        for family, mark in (("ipv4", "."), ("ipv6", ":")):
            lines.append(f" address-family {family} unicast")
            lines += [f"  neighbor {node} activate" for node in told.nodes]
            lines += [f"  network {prefix}" for prefix in told.announces if mark in prefix]
            lines.append(" exit-address-family")
        return "\n".join((*lines, "exit", ""))

    async def sees(self, prefix: str) -> list[Seen]:
        found = json.loads(await self.vty.show(f"show bgp {family_of(prefix)} unicast {prefix} json") or "{}")
        return [
            Seen(
                tuple(asn for part in each["aspath"]["segments"] for asn in part["list"]),
                each["nexthops"][0]["ip"],
                frozenset(each.get("community", {}).get("string", "").split()),
                frozenset(each.get("largeCommunity", {}).get("string", "").split()),
                each.get("locPrf"),
            )
            for each in found.get("paths", [])
        ]


def family_of(prefix: str) -> str:
    return "ipv6" if ":" in prefix else "ipv4"


class Bird(Router):
    kind, bfd, multipath = "BIRD", True, True

    def command(self) -> Sequence[str]:
        at = self.directory
        return ("bird", "-f", "-c", f"{at}/router.conf", "-s", f"{at}/bird.ctl", "-P", f"{at}/bird.pid")

    def configuration(self) -> str:
        told = self.peering
        lines = [f"router id {told.own};", "protocol device { scan time 1; }", "protocol direct { ipv4; ipv6; }"]
        lines.append(
            'protocol bfd { interface "*" { min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }; }'
        )
        for family in ("ipv4", "ipv6"):
            own = " ".join(f"route {it} blackhole;" for it in told.announces if family_of(it) == family)
            lines.append(f"protocol kernel {{ {family} {{ import none; export all; }}; merge paths on; }}")
            lines.append(f"protocol static {{ {family}; {own} }}")
        for number, node in enumerate(told.nodes):
            lines += [f"protocol bgp n{number} {{", f"local {told.own if told.multihop else ''} as {told.asn};"]
            lines += [f"neighbor {node} as {told.node_asn};", f"hold time {told.hold};", "graceful restart on;"]
            lines += ["connect delay time 1;", "error wait time 1, 2;"]
            lines += [f"{it} {{ import all; export where source = RTS_STATIC; }};" for it in ("ipv4", "ipv6")]
            lines += (
                [f'password "{told.password}";'] * bool(told.password)
                + ["bfd on;"] * told.bfd
                + ["multihop;"] * told.multihop
                + ["}"]
            )
        return "\n".join((*lines, ""))

    async def ask(self, command: str) -> str:
        return await output("birdc", "-s", f"{self.directory}/bird.ctl", command)

    async def answers(self) -> bool:
        return "up and running" in await self.ask("show status")

    async def sees(self, prefix: str) -> list[Seen]:
        text = await self.ask(f"show route {prefix} protocol n0 all") + await self.ask(
            f"show route {prefix} protocol n1 all"
        )
        return [
            Seen(
                tuple(map(int, _found(r"BGP.as_path: ([\d ]*)", part).split())),
                _found(r"BGP.next_hop: (\S+)", part),
                frozenset(
                    f"{high}:{low}"
                    for high, low in re.findall(r"\((\d+),(\d+)\)", _found(r"BGP.community: (.*)", part))
                ),
                frozenset(
                    ":".join(it)
                    for it in re.findall(r"\((\d+), (\d+), (\d+)\)", _found(r"large_community: (.*)", part))
                ),
                int(_found(r"BGP.local_pref: (\d+)", part) or 0),
            )
            for part in re.split(r"(?=^\S+/\d+|^ +unicast \[)", text, flags=re.MULTILINE)
            if "BGP.next_hop" in part
        ]


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else ""


class Gobgp(Router):
    kind = "GoBGP"

    def command(self) -> Sequence[str]:
        at = self.directory
        return ("gobgpd", "-f", f"{at}/router.conf", f"--api-hosts=unix://{at}/api.sock", "--pprof-disable", "-p")

    def configuration(self) -> str:
        told = self.peering
        parts = [f'[global.config]\nas = {told.asn}\nrouter-id = "{told.own}"']
        for node in told.nodes:
            parts += [f'[[neighbors]]\n[neighbors.config]\nneighbor-address = "{node}"\npeer-as = {told.node_asn}']
            parts += [f'auth-password = "{told.password}"'] if told.password else []
            parts += [f'[neighbors.transport.config]\nlocal-address = "{told.own}"']
            parts += ["[neighbors.ebgp-multihop.config]\nenabled = true\nmultihop-ttl = 64"] * told.multihop
            parts += [f"[neighbors.timers.config]\nconnect-retry = 10\nhold-time = {told.hold}"]
            parts += ["idle-hold-time-after-reset = 1"]
            parts += ["[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 120"]
            for family in ("ipv4", "ipv6"):
                parts += [f'[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = "{family}-unicast"']
                parts += ["[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true"]
        return "\n".join((*parts, ""))

    async def ask(self, *words: str) -> str:
        return await output("gobgp", "--target", f"unix://{self.directory}/api.sock", *words)

    async def answers(self) -> bool:
        return f"AS:        {self.peering.asn}" in await self.ask("global")

    async def start(self) -> None:
        await super().start()
        for prefix in self.peering.announces:
            await self.ask("global", "rib", "add", "-a", family_of(prefix), prefix)

    async def sees(self, prefix: str) -> list[Seen]:
        text = await self.ask("-j", "global", "rib", "-a", family_of(prefix), prefix)
        if not text.startswith(("{", "[")):
            return []
        found = json.loads(text)
        paths = found if isinstance(found, list) else [each for some in found.values() for each in some]
        return [self._path({it["type"]: it for it in each["attrs"]}) for each in paths]

    @staticmethod
    def _path(attributes: dict[int, dict[str, Any]]) -> Seen:
        """By the attributes' type codes (RFC 4271, 1997, 4760, 8092)."""
        hop = attributes.get(14, attributes.get(3, {})).get("nexthop", "")
        return Seen(
            tuple(asn for part in attributes.get(2, {}).get("as_paths") or [] for asn in part["asns"]),
            hop,
            frozenset(f"{it >> 16}:{it & 0xFFFF}" for it in attributes.get(8, {}).get("communities", [])),
            frozenset(
                f"{it['ASN']}:{it['LocalData1']}:{it['LocalData2']}" for it in attributes.get(32, {}).get("value", [])
            ),
            attributes.get(5, {}).get("value"),
        )


class Openbgpd(Router):
    kind = "OpenBGPD"

    def command(self) -> Sequence[str]:
        return ("bgpd", "-d", "-f", f"{self.directory}/router.conf")

    def configuration(self) -> str:
        told = self.peering
        (self.directory / "router.conf").touch(0o600)
        Path(getpwnam("_openbgpd").pw_dir).mkdir(exist_ok=True)  # its processes change their root to it
        parts = [f"AS {told.asn}", f"router-id {told.own}", f'socket "{self.directory}/bgpd.sock"', "fib-update no"]
        parts += [f"network {prefix}" for prefix in told.announces]
        for node in told.nodes:
            parts += [f"neighbor {node} {{\n remote-as {told.node_asn}\n local-address {told.own}"]
            parts += [" announce IPv4 unicast\n announce IPv6 unicast\n announce restart yes", f" holdtime {told.hold}"]
            parts += [" multihop 64"] * told.multihop
            parts += [f' tcp md5sig password "{told.password}"'] if told.password else []
            parts += ["}"]
        return "\n".join((*parts, "allow from any", "allow to any", ""))

    async def ask(self, *words: str) -> str:
        return await output("bgpctl", "-s", f"{self.directory}/bgpd.sock", *words)

    async def answers(self) -> bool:
        return "MsgRcvd" in await self.ask("show")

    async def sees(self, prefix: str) -> list[Seen]:
        found = json.loads(await self.ask("-j", "show", "rib", "detail", prefix) or "{}")
        return [
            Seen(
                tuple(map(int, each["aspath"].split())),
                each["exit_nexthop"],
                frozenset(it for some in each.get("communities", []) if isinstance(some, str) for it in some.split()),
                frozenset(it for it in each.get("large_communities", [])),
                each.get("localpref"),
            )
            for each in found.get("rib", [])
            if each["prefix"] == prefix
        ]


KINDS: tuple[type[Router], ...] = (Frr, Bird, Gobgp, Openbgpd)
