"""A chain as nft lists it: the text of each rule by its handle, and at which hook it is. Pure."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_HANDLE = re.compile(r"\s*# handle ([0-9]+)\s*$")
_HOOK = re.compile(r"type \w+ hook (\w+) .*priority (.+?);")
_QUOTED = re.compile(r'"[^"]*"')
_REJECT = re.compile(r"\b(reject|REJECT)\b")


class Listing(NamedTuple):
    """`hook` "": another chain leads there; `priority` as nft writes it."""

    rules: Mapping[int, str] = MappingProxyType({})
    hook: str = ""
    priority: str = ""


NOTHING = Listing()


def read(text: str) -> Listing:
    """A rule that nft folds into several lines ends with the one that has its handle."""
    rules: dict[int, str] = {}
    hook = priority = ""
    open_lines: list[str] = []
    for line in map(str.strip, text.splitlines()):
        at_hook = _HOOK.match(line)
        ended = _HANDLE.search(line)
        if at_hook:
            hook, priority = at_hook[1], at_hook[2]
        elif line.startswith(("table ", "chain ")) and "{" in line:
            open_lines = []
        elif ended:
            rules[int(ended[1])] = " ".join((*open_lines, line[: ended.start()]))
            open_lines = []
        elif line != "}":
            open_lines.append(line)
    return Listing(rules, hook, priority)


def rejects(rule: str) -> bool:
    """Whether whoever sent the packet is told; comments and names of interfaces apart."""
    return _REJECT.search(_QUOTED.sub("", rule)) is not None
