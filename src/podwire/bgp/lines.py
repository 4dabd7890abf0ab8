"""What is known of single lines of FRR's configuration. Pure.

Invariants: a line is spelt as the daemon itself shows it (`show running-config`), without what is a default there:
lines are compared as text. Two lines with one subject can't both hold: the second one takes the first one's place.
"""

from collections.abc import Iterable

OURS = "podwire"
"""With it begin the names of all that is named by us, and the descriptions of our neighbours."""

_VALUES = {
    ("bgp", "router-id"): 2,
    ("bgp", "graceful-restart", "restart-time"): 3,
    ("bgp", "route-map", "delay-timer"): 3,
    ("ip", "prefix-list"): 5,
    ("ipv6", "prefix-list"): 5,
    ("match", "tag"): 2,
    ("network",): 2,
    ("set", "community"): 2,
    ("set", "ip", "next-hop"): 3,
    ("set", "ipv6", "next-hop", "global"): 4,
    ("set", "large-community"): 2,
    ("set", "local-preference"): 2,
    ("set", "tag"): 2,
    ("detect-multiplier",): 1,
    ("minimum-ttl",): 1,
    ("receive-interval",): 1,
    ("transmit-interval",): 1,
}
"""Lines with these words at their head: how many words are the subject, before a value begins."""
_OF_A_NEIGHBOR = frozenset(
    ("description", "ebgp-multihop", "local-as", "password", "port", "remote-as", "timers", "update-source")
)
"""Of these a neighbour has one value."""
_FILTERS = frozenset({"distribute-list", "filter-list", "prefix-list", "route-map"})
_DEFAULTS = {"detect-multiplier": "3", "receive-interval": "300", "transmit-interval": "300"}
"""Of lines that have no form with `no`."""


def subject(line: str) -> str:
    """What the line sets, whatever it sets it to."""
    words = line.removeprefix("no ").split(" ")
    if words[0] == "neighbor" and len(words) > 2:
        return _subject_of_neighbor(words)
    for size in (1, 2, 3, 4):
        count = _VALUES.get(tuple(words[:size]))
        if count:
            return " ".join(words[:count])
    return " ".join(words)


def _subject_of_neighbor(words: list[str]) -> str:
    about = words[2]
    if about in _FILTERS:  # neighbor A route-map NAME out
        return " ".join((*words[:3], words[-1]))
    if words[2:4] in (["timers", "connect"], ["bfd", "profile"]):
        return " ".join(words[:4])
    return " ".join(words[:3] if about in _OF_A_NEIGHBOR else words)


def undo(line: str) -> str:
    """The command after which the line holds no longer. Of `neighbor A remote-as`: nothing of that neighbour."""
    words = line.split(" ")
    if words[0] == "no":
        return line.removeprefix("no ")
    if words[0] in _DEFAULTS:
        return f"{words[0]} {_DEFAULTS[words[0]]}"
    if words[0] == "neighbor" and words[2:3] == ["remote-as"]:
        return f"no neighbor {words[1]}"
    short = words[0] == "network" or (words[0] == "neighbor" and not _FILTERS.intersection(words[2:3]))
    return f"no {subject(line) if short else line}"


def rank(line: str) -> tuple[int, str]:
    """Orders lines as they are to be said: a neighbour's AS number before all else of it, what it is told and may tell
    before it is told anything, and prefixes last."""
    words = line.removeprefix("no ").split(" ", 3)
    if words[0] != "neighbor":
        return (9 if words[0] == "network" else 0), line
    about = words[2] if len(words) > 2 else ""
    return {"remote-as": 1, "activate": 4}.get(about, 3 if about in _FILTERS else 2), line


def ranked(lines: Iterable[str]) -> list[str]:
    return sorted(lines, key=rank)


def neighbor_of(line: str) -> str | None:
    """Whom a line is about, as `10.0.0.1`; None: nobody."""
    words = line.removeprefix("no ").split(" ", 2)
    return words[1] if words[0] == "neighbor" and len(words) > 2 else None


def without_secrets(text: str) -> str:
    """The same lines, without passwords. For all that people see."""
    return "\n".join(_without_secret(line) for line in text.split("\n"))


def _without_secret(line: str) -> str:
    head, found, _ = line.partition(" password ")
    return f"{head}{found}…" if found else line
