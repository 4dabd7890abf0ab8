"""What FRR's daemons should hold for what a node has to announce. Pure.

Invariants: only prefixes that we name leave the node. Each is marked with its class by a tag, which is no part of BGP:
no route learnt can have one, and none is told. A session's outbound route maps let marked routes pass, each class with
the attributes that it has there, and nothing else. What is named by its content (classes, lists of prefixes, BFD
profiles) never changes, since something else has another name: nothing in use is ever changed under a route. Only
entries of outbound route maps have numbers, and those that are held keep theirs.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2s
from typing import NamedTuple

from podwire.bgp import ours
from podwire.bgp.lines import OURS
from podwire.bgp.tree import EMPTY, Block
from podwire.model.addresses import FAMILIES, IPV4, Address, Family, disjoint, family_of, parse_prefix, show_address
from podwire.model.announcements import BFD, Attributes, Session, Speaker, Told

LAST = 65535
"""The highest number of a route map's entry: the one that denies."""
MAX_RESTART = 4095
"""Seconds, of twelve bits (RFC 4724, section 3)."""
MAX_PASSWORD = 80
"""Characters (TCP_MD5SIG_MAXKEYLEN)."""
MOST_COMMUNITIES = 100
"""Of each kind in one route: bgpd refuses a line of more than 256 words, answers nothing more after one of 4,096 bytes,
and tells no route that does not fit in a message of as many (RFC 4271, section 4.1)."""
DEFAULT_RESTART, DEFAULT_PORT = 120, 179
_BFD_LINES = (("detect-multiplier", 3), ("receive-interval", 300), ("transmit-interval", 300))
WELL_KNOWN = {
    "internet": 0x00000000,
    "graceful-shutdown": 0xFFFF0000,
    "accept-own": 0xFFFF0001,
    "route-filter-translated-v4": 0xFFFF0002,
    "route-filter-v4": 0xFFFF0003,
    "route-filter-translated-v6": 0xFFFF0004,
    "route-filter-v6": 0xFFFF0005,
    "llgr-stale": 0xFFFF0006,
    "no-llgr": 0xFFFF0007,
    "accept-own-nexthop": 0xFFFF0008,
    "blackhole": 0xFFFF029A,
    "no-export": 0xFFFFFF01,
    "no-advertise": 0xFFFFFF02,
    "local-AS": 0xFFFFFF03,
    "no-peer": 0xFFFFFF04,
}
"""As FRR spells them (IANA, BGP Well-known Communities)."""
_NAMES = {number: name for name, number in WELL_KNOWN.items()}
_AT_ONCE = "bgp route-map delay-timer 0"
"""bgpd does not go through all routes some seconds after a route map has changed: it need not, since nothing in use
changes, and a session that comes up in that very moment would never withdraw what it told (seen of 8.4.4)."""
_HEADERS = dict(zip(FAMILIES, ours.FAMILIES, strict=True))
_LINK_LOCAL = parse_prefix("fe80::/10")
NO_PROFILES = Block(blocks={"bfd": EMPTY})


class Plan(NamedTuple):
    """`held`: by daemon, what it should hold of ours. `refused`: by name of the session, why it can't be had. `limits`:
    what such as can be had is not told, and why."""

    held: Mapping[str, Block] = {"zebra": EMPTY, "bfdd": NO_PROFILES, "bgpd": EMPTY}
    refused: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}


class _Class(NamedTuple):
    """All routes that are told alike. `told`: by address of the session."""

    name: str
    tag: int
    told: Mapping[Address, Attributes]


def plan(speaker: Speaker | None, held: Block = EMPTY) -> Plan:
    """`held`: what bgpd holds of ours. Raises ValueError for a community that is none."""
    if speaker is None:
        return Plan()
    sessions, refused = _possible(speaker)
    by_told = _classes(speaker, sessions)
    classes = sorted({it.name: it for it in by_told.values() if it is not None}.values())
    limits: dict[str, str] = {}
    families: dict[Family, set[str]] = {family: set() for family in FAMILIES}
    root = {_AT_ONCE}
    lines = _globals(speaker, sessions)
    blocks = {f"route-map {it.name} permit 1": Block(frozenset([f"set tag {it.tag}"])) for it in classes}
    for session in sessions:
        lines |= set(_neighbor(session, speaker.asn))
        for family in (it for it in FAMILIES if it in session.families):
            list_name, list_lines = _accepted(session, family)
            root |= list_lines
            families[family] |= set(_of_family(session, family, list_name))
            hop = _next_hop(session, family, speaker)
            if hop is None:
                limits[session.name] = f"it is told no {family} route: the node has no {family} address to name in one"
            fit = [it for it in classes if _fits(it, session)]
            if len(fit) < len(classes):
                limits[session.name] = f"it is not told routes with more than {MOST_COMMUNITIES} communities of a kind"
            blocks |= _outbound(session, family, fit if hop is not None else [], hop or "", held)
    for prefix, told in speaker.routes.items():
        found = by_told[told]
        if found is not None:
            families[prefix.family].add(f"network {prefix} route-map {found.name}")
    parts = {_HEADERS[family]: Block(frozenset(held_lines)) for family, held_lines in families.items() if held_lines}
    blocks[f"{ours.ROUTER}{speaker.asn}"] = Block(frozenset(lines), parts)
    daemons = {"zebra": _zebra(), "bfdd": _bfdd(sessions), "bgpd": Block(frozenset(root), blocks)}
    return Plan(daemons, refused, limits)


def _zebra() -> Block:
    """A peer or a next hop behind the default route is one that can be reached."""
    return Block(frozenset(("ip nht resolve-via-default", "ipv6 nht resolve-via-default")))


# --- sessions ------------------------------------------------------------------------------------


def _possible(speaker: Speaker) -> tuple[list[Session], dict[str, str]]:
    """Sorted by address."""
    possible: dict[Address, Session] = {}
    refused: dict[str, str] = {}
    for session in sorted(speaker.sessions, key=lambda it: it.name):
        other = possible.get(session.address)
        why = why_not(session, speaker.asn)
        if why is None and other is not None:
            why = f"{other.name} has the same address, {show_address(other.address)}; expected one session with it"
        if why is None:
            possible[session.address] = session
        else:
            refused[session.name] = why
    return [possible[address] for address in sorted(possible)], refused


def why_not(session: Session, asn: int) -> str | None:
    """Why a speaker of that AS can't have the session; None where it can."""
    internal = session.asn == session.local_asn
    if session.local_asn != asn and (internal or session.asn == asn):
        told = f"the session is between AS {session.local_asn} and AS {session.asn}"
        return f"{told}, but the node's BGP speaker is in AS {asn}; expected {asn} as the node's own ASN (myASN) here"
    if session.address in _LINK_LOCAL:
        return "its address is link-local, which names no link; expected another address of the router"
    if not all(33 <= ord(letter) <= 126 for letter in session.password):
        return "its password has a blank, or what is no printable ASCII; FRR can't be told such a one"
    if len(session.password) > MAX_PASSWORD:
        return f"its password has {len(session.password)} characters; expected at most {MAX_PASSWORD} (TCP MD5)"
    return None


def _globals(speaker: Speaker, sessions: Iterable[Session]) -> set[str]:
    """Lines of the router that are of no session. Nothing is told or taken where no filter says so: between two AS that
    is FRR's default (RFC 8212), and stays so."""
    restart = max((min(it.restart, MAX_RESTART) for it in sessions if it.graceful_restart), default=DEFAULT_RESTART)
    lines = {
        f"bgp router-id {show_address(speaker.router_id)}",
        "no bgp default ipv4-unicast",
        "no bgp network import-check",
        "bgp bestpath as-path multipath-relax",
        "bgp graceful-restart",
        "bgp graceful-restart preserve-fw-state",
        # Else a router would keep routes of a node that has said goodbye, or that it has not heard for its hold time
        # (RFC 8538). Who is killed says nothing.
        "no bgp graceful-restart notification",
    }
    if restart != DEFAULT_RESTART:
        lines.add(f"bgp graceful-restart restart-time {restart}")
    return lines


def _neighbor(session: Session, asn: int) -> Iterator[str]:
    who = f"neighbor {show_address(session.address)}"
    yield f"{who} remote-as {session.asn}"
    yield f"{who} description {OURS} {' '.join(session.name.split())}"
    yield f"{who} timers {min(session.keepalive, session.hold // 3)} {session.hold}"  # bgpd takes no longer ones
    yield f"{who} timers connect {session.connect}"
    if session.local_asn != asn:
        yield f"{who} local-as {session.local_asn} no-prepend replace-as"
    if session.port != DEFAULT_PORT:
        yield f"{who} port {session.port}"
    if session.password:
        yield f"{who} password {session.password}"
    if session.multihop and session.asn != session.local_asn:
        yield f"{who} ebgp-multihop 255"
    if session.source is not None:
        yield f"{who} update-source {show_address(session.source)}"
    if session.bfd is not None:
        yield f"{who} bfd"
        yield f"{who} bfd profile {_profile(session.bfd, session.multihop)}"
    if not session.graceful_restart:
        yield f"{who} graceful-restart-disable"


def _of_family(session: Session, family: Family, list_name: str) -> Iterator[str]:
    who = f"neighbor {show_address(session.address)}"
    yield f"{who} activate"
    yield f"{who} prefix-list {list_name} in"
    yield f"{who} route-map {_map_name(session, family)} out"
    if any(it.family is family for it in session.receives):
        # All that it tells is remembered: what is taken can then change though it can't be asked again.
        yield f"{who} soft-reconfiguration inbound"


def _accepted(session: Session, family: Family) -> tuple[str, set[str]]:
    """The list of prefixes that are taken from there: its name and its lines."""
    word = "ip" if family is IPV4 else "ipv6"
    taken = disjoint(it for it in session.receives if it.family is family)
    longer = [f"{it}{f' le {family.bits}' if it.length < family.bits else ''}" for it in taken]
    name = f"{OURS}-in-{_digest(repr(longer)) if longer else 'none'}"
    told = [f"permit {it}" for it in longer] or ["deny any"]
    return name, {f"{word} prefix-list {name} seq {number} {it}" for number, it in enumerate(told, 1)}


def _profile(bfd: BFD, multihop: bool) -> str:
    return f"{OURS}-{bfd.receive}-{bfd.transmit}-{bfd.multiplier}{'-multihop' if multihop else ''}"


def _bfdd(sessions: Iterable[Session]) -> Block:
    profiles = {}
    for bfd, multihop in {(it.bfd, it.multihop) for it in sessions if it.bfd is not None}:
        values = zip(_BFD_LINES, (bfd.multiplier, bfd.receive, bfd.transmit), strict=True)
        lines = {f"{word} {value}" for (word, default), value in values if value != default}
        if multihop:  # however many routers are in between; by default none may be
            lines.add("minimum-ttl 1")
        profiles[f"profile {_profile(bfd, multihop)}"] = Block(frozenset(lines))
    return Block(blocks={"bfd": Block(blocks=profiles)})


# --- routes --------------------------------------------------------------------------------------


def _digest(text: str) -> str:
    return blake2s(text.encode(), digest_size=6).hexdigest()


def _classes(speaker: Speaker, sessions: Iterable[Session]) -> dict[Told, _Class | None]:
    """None: told to nobody."""
    addresses = {it.name: it.address for it in sessions}
    hops = {
        it.name: (show_address(it.address), *(_next_hop(it, family, speaker) or "" for family in FAMILIES))
        for it in sessions
    }
    found: dict[Told, _Class | None] = {}
    by_content: dict[str, list[Told]] = {}
    for told in set(speaker.routes.values()):
        there = sorted((*hops[name], *_settings(each)) for name, each in told if name in addresses)
        if there:
            by_content.setdefault(repr(there), []).append(told)
        else:
            found[told] = None
    tags: set[int] = {0}
    for content, alike in sorted(by_content.items()):
        tag = int(_digest(content)[:8], 16)
        while tag in tags:
            tag = (tag + 1) % (1 << 32)
        tags.add(tag)
        there_told = {addresses[name]: each for name, each in alike[0] if name in addresses}
        found |= dict.fromkeys(alike, _Class(f"{OURS}-class-{_digest(content)}", tag, there_told))
    return found


def _fits(it: _Class, session: Session) -> bool:
    """Else it would be told without its communities, which may say that it must not go any further."""
    attributes = it.told.get(session.address)
    return attributes is None or max(len(attributes.communities), len(attributes.large)) <= MOST_COMMUNITIES


def _settings(attributes: Attributes) -> tuple[str, ...]:
    """Lines of a route map. Sorted as FRR sorts what it shows."""
    lines = []
    if attributes.communities:
        numbers = sorted({community_number(it) for it in attributes.communities})
        lines.append(f"set community {' '.join(map(show_community, numbers))}")
    if attributes.large:
        large = sorted({tuple(map(int, it.split(":"))) for it in attributes.large})
        lines.append(f"set large-community {' '.join(':'.join(map(str, it)) for it in large)}")
    if attributes.local_pref is not None:
        lines.append(f"set local-preference {attributes.local_pref}")
    return tuple(lines)


def community_number(text: str) -> int:
    """Raises ValueError with the right form."""
    named = WELL_KNOWN.get(text)
    if named is not None:
        return named
    high, _, low = text.partition(":")
    if not (high.isdigit() and low.isdigit() and int(high) < 1 << 16 and int(low) < 1 << 16):
        raise ValueError(f"{text!r} is no community: expected such as 64512:100, or one of {', '.join(WELL_KNOWN)}")
    return int(high) << 16 | int(low)


def show_community(number: int) -> str:
    return _NAMES.get(number) or f"{number >> 16}:{number & 0xFFFF}"


def _next_hop(session: Session, family: Family, speaker: Speaker) -> str | None:
    """The line that sets it, "" where it is the session's own address; None: there is none to name."""
    if family is family_of(session.address):
        return ""
    own = next((it for it in speaker.next_hops if family_of(it) is family), None)
    if own is None:
        return None
    return f"set {'ip next-hop' if family is IPV4 else 'ipv6 next-hop global'} {show_address(own)}"


def _map_name(session: Session, family: Family) -> str:
    """By address, so that a session may be renamed under its routes."""
    return f"{OURS}-out{'4' if family is IPV4 else '6'}-{show_address(session.address)}"


def _outbound(session: Session, family: Family, classes: Iterable[_Class], hop: str, held: Block) -> dict[str, Block]:
    """The route map's entries. One that is held keeps its number; a new one gets a number that none has."""
    head = f"route-map {_map_name(session, family)} "
    numbers: dict[frozenset[str], int] = {}
    used = {0}
    for header in sorted(it for it in held.blocks if it.startswith(head)):
        kind, _, text = header.removeprefix(head).partition(" ")
        used.add(int(text))
        if kind == "permit" and int(text) != LAST:
            numbers.setdefault(held.blocks[header].lines, int(text))
    free = (number for number in range(1, LAST) if number not in used)
    found = {f"{head}deny {LAST}": EMPTY}
    for each in classes:
        if session.address in each.told:
            settings = _settings(each.told[session.address])
            entry = frozenset((f"match tag {each.tag}", *settings, *([hop] if hop else ())))
            number = numbers.get(entry) or next(free)
            found[f"{head}permit {number}"] = Block(entry)
    return found
