"""Whether other packet filters let pods' packets pass: each base chain at forward is followed as the kernel does. Pure.

Invariants: followed is a packet that begins a connection, from a pod and to a pod, of which only the interface and the
address are known. A rule that asks for more does not count: neither as an opening nor as a bar.
"""

from collections.abc import Iterator, Mapping

from podwire.doctor.facts import Chain, Facts
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, wrong
from podwire.model.addresses import Prefix, parse_prefix
from podwire.pods.names import LINK_PREFIX

DEEPEST = 16
"""Jumps that the kernel follows (NFT_JUMP_STACK_SIZE)."""
FAMILIES = {"ip": (4,), "ip6": (16,), "inet": (4, 16)}
"""Sizes of addresses that a table of this family sees."""

Place = tuple[str, str, str]
Packet = tuple[str, int, list[Prefix]]
"""Way, size of addresses, and the pods' ranges."""


def forward(facts: Facts) -> Iterator[Judgement]:
    if isinstance(facts.filters, Unseen):
        yield unseen(facts.filters)
        return
    legacy = facts.filters.legacy
    chains = (*facts.filters.chains, *(() if isinstance(legacy, Unseen) else legacy))
    by_place = {(it.family, it.table, it.name): it for it in chains}
    closed = [it for it in chains if it.hook == "forward" and _closes(facts, by_place, it)]
    for chain in closed:
        yield wrong(
            f"chain {chain.name} of table {chain.family} {chain.table} drops what pods send or get"
            + (" (policy drop)" if chain.policy == "drop" else ""),
            _opening(facts, by_place, chain),
        )
    if not closed:
        yield ok("pods' packets pass the chains at forward")
    if isinstance(legacy, Unseen):
        yield note(f"iptables' old tables: {legacy.why}", "iptables-legacy -S FORWARD")


def _closes(facts: Facts, chains: Mapping[Place, Chain], base: Chain) -> bool:
    sizes = FAMILIES.get(base.family, ())
    wanted = {len(block.first) for block in facts.blocks} or {4, 16}
    for size in sizes:
        if size not in wanted:
            continue
        blocks = [block for block in facts.blocks if len(block.first) == size]
        for way in ("in", "out"):
            if fate(chains, base, way, size, blocks) in ("drop", "reject"):
                return True
    return False


def fate(chains: Mapping[Place, Chain], base: Chain, way: str, size: int, blocks: list[Prefix]) -> str:
    """What becomes of the packet in that chain: accept, drop, reject. `way`: `in` from a pod, `out` to one.
    `size`: of its addresses; `blocks`: the pods' ranges of that size."""
    return _walk(chains, base, (way, size, blocks), 0) or base.policy or "accept"


def _walk(chains: Mapping[Place, Chain], chain: Chain, packet: Packet, depth: int) -> str:
    """ "" where the packet comes out of the chain again."""
    for rule in chain.rules:
        if not all(_holds(condition, packet) for condition in rule.conditions):
            continue
        kind, _, target = rule.verdict.partition(" ")
        if kind in ("accept", "drop", "reject"):
            return kind
        if kind == "return":
            return ""
        if kind in ("jump", "goto") and depth < DEEPEST:
            there = chains.get((chain.family, chain.table, target))
            end = _walk(chains, there, packet, depth + 1) if there is not None else ""
            if end or kind == "goto":
                return end
    return ""


def _holds(condition: str, packet: Packet) -> bool:
    way, size, blocks = packet
    kind, _, what = condition.partition(" ")
    if kind in ("in", "out"):
        # A pod's link is `pw` and a hash: a condition holds for all of them or may hold for some.
        return kind == way and what.endswith("*") and LINK_PREFIX.startswith(what[:-1])
    if kind == "family":
        return size in FAMILIES.get(what, ())
    if kind in ("from", "to") and blocks:
        range_ = parse_prefix(what)
        return kind == ("from" if way == "in" else "to") and all(
            len(block.first) == len(range_.first) and block.first in range_ and block.length >= range_.length
            for block in blocks
        )
    return False


def _opening(facts: Facts, chains: Mapping[Place, Chain], chain: Chain) -> str:
    """The command that opens it, in the words of whoever made it."""
    names = {name for family, table, name in chains if (family, table) == (chain.family, chain.table)}
    if chain.table == "firewalld":
        sources = " ".join(f"--add-source={block}" for block in facts.blocks) or "--add-source=PODS_RANGE"
        return f"firewall-cmd --permanent --zone=trusted {sources} && firewall-cmd --reload"
    if any(name.startswith(("ufw-", "ufw6-")) for name in names):
        return "ufw default allow routed && ufw reload"
    if chain.name == "FORWARD":
        legacy = "-legacy" if chain.table.startswith("legacy:") else ""
        program = f"{'ip6tables' if chain.family == 'ip6' else 'iptables'}{legacy}"
        # Docker keeps its hands off DOCKER-USER, and adds its own rules before all others of FORWARD.
        where = "DOCKER-USER" if "DOCKER-USER" in names else "FORWARD"
        return f"{program} -I {where} -i pw+ -j ACCEPT; {program} -I {where} -o pw+ -j ACCEPT"
    place = f"{chain.family} {chain.table} {chain.name}"
    return f'nft insert rule {place} iifname "pw*" accept; nft insert rule {place} oifname "pw*" accept'
