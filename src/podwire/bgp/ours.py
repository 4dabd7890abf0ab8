"""Which of a daemon's configuration is ours. Pure.

Invariants: the daemons are Podwire's alone. What somebody else has said there stays and is told, unless it is in our
way: another router where there can be one only, a route of ours told in another way, more about a neighbour of ours.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from podwire.bgp.lines import OURS, neighbor_of, subject, without_secrets
from podwire.bgp.tree import EMPTY, Block

DAEMONS = ("zebra", "bfdd", "bgpd")
"""What each names, those before it know: they are told in this order."""
ROUTER = "router bgp "
FAMILIES = ("address-family ipv4 unicast", "address-family ipv6 unicast")
_DEFAULT_ROUTER = re.compile(r"router bgp \d+\Z")
_REACHED = re.compile(r"ip(v6)? nht resolve-via-default\Z")
_OF_BGPD = (f"ip prefix-list {OURS}-", f"ipv6 prefix-list {OURS}-", "bgp route-map delay-timer ")
_DECIDED = re.compile(
    r"(no )?bgp (router-id|default ipv4-unicast|network import-check|graceful-restart|bestpath as-path multipath-relax"
    r"|ebgp-requires-policy)\b"
)
"""Of a router: what we decide, whoever has said it."""
_OF_NO_MATTER = re.compile(
    r"(no )?(frr|hostname|domainname|log|service|password|enable|debug|banner|agentx|line|(ip|ipv6) forwarding)\b"
)
"""Lines that say nothing of routes."""
_DESCRIBED = re.compile(rf"neighbor (\S+) description {OURS} ")


class Found(NamedTuple):
    """What was read, parted: what is ours or in our way, and the lines of others, without passwords."""

    ours: Block
    foreign: tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Others have lines in our router."""
        return any(_DEFAULT_ROUTER.match(it.partition(": ")[0]) for it in self.foreign)


_OfBlock = Callable[[str, Block], Found | None]


def found(daemon: str, read: Block, wanted: Block) -> Found:
    """`wanted`: what the daemon is to hold of ours."""
    if daemon == "zebra":
        return _parted(read, lambda line: bool(_REACHED.match(line)))
    if daemon == "bfdd":
        return _parted(read, blocks=_of_bfdd)
    router = next((it for it in wanted.blocks if it.startswith(ROUTER)), "")

    def of_bgpd(header: str, block: Block) -> Found | None:
        if header.startswith(f"route-map {OURS}-"):
            return Found(block)
        if not _DEFAULT_ROUTER.match(header):
            return None
        if router not in ("", header):  # there can be one only
            return Found(block)
        return _in_router(block, wanted.blocks.get(router, EMPTY))

    return _parted(read, lambda line: line.startswith(_OF_BGPD), of_bgpd)


def _of_bfdd(header: str, block: Block) -> Found | None:
    """Only profiles are named by anybody; the sessions are bgpd's."""
    if header == "bfd":
        return _parted(block, blocks=_of_bfdd)
    return Found(block) if header.startswith(f"profile {OURS}-") else None


def _in_router(read: Block, wanted: Block) -> Found:
    own = {neighbor_of(line) for line in wanted.lines} | {it[1] for it in map(_DESCRIBED.match, read.lines) if it}

    def in_router(line: str) -> bool:
        who = neighbor_of(line)
        return who in own if who is not None else bool(_DECIDED.match(line))

    def of_family(header: str, block: Block) -> Found | None:
        if header not in FAMILIES:
            return None
        prefixes = {subject(it) for it in wanted.blocks.get(header, EMPTY).lines if it.startswith("network ")}

        def in_family(line: str) -> bool:
            if line.startswith("network "):
                return f" route-map {OURS}-" in line or subject(line) in prefixes
            who = neighbor_of(line)
            return who in own if who is not None else line.startswith("maximum-paths ")

        return _parted(block, in_family)

    return _parted(read, in_router, of_family)


def _parted(read: Block, lines: Callable[[str], bool] | None = None, blocks: _OfBlock | None = None) -> Found:
    ours = frozenset(filter(lines, read.lines)) if lines is not None else frozenset()
    foreign = [without_secrets(it) for it in sorted(read.lines - ours) if not _OF_NO_MATTER.match(it)]
    parts = {}
    for header in sorted(read.blocks):
        inner = blocks(header, read.blocks[header]) if blocks is not None else None
        if inner is not None:
            parts[header] = inner.ours
            foreign += [f"{header}: {line}" for line in inner.foreign]
        elif not _OF_NO_MATTER.match(header):
            foreign.append(header)
    return Found(Block(ours, parts), tuple(foreign))
