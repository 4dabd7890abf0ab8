"""What others' hands had changed of a key, by name: for history in full, for metrics without what grows. Pure.

Invariants: a setting is called as below /proc/sys. A kind of object is the name of its key's class in words.
"""

import re
from collections.abc import Iterator
from typing import Any

from podwire.controller.difference import Change
from podwire.model.network import Link, SysctlKey, Tunnel

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]+")
_LOCALNET = "route_localnet"


def strays(change: Change) -> Iterator[str]:
    """Of a link or VXLAN device that stays: settings of its interface, and what else it was not born with."""
    before, after = change
    if not (isinstance(before, Link | Tunnel) and isinstance(after, Link | Tunnel)):
        return
    yield from (f"net/{it}" if it.startswith(("ipv4/", "ipv6/")) else it for it in before.astray)
    if isinstance(before, Link) and isinstance(after, Link) and before.localnet != after.localnet:
        yield _LOCALNET


def kinds(key: Any, change: Change) -> frozenset[str]:
    """A setting's name, with `*` for its interface's, or the kind of object."""
    if isinstance(key, SysctlKey):
        return frozenset((key.path,))
    settings = (it for it in strays(change) if it == _LOCALNET or it.startswith("net/"))
    found = frozenset(_anywhere(it) for it in settings)
    return found or frozenset((" ".join(_WORD.findall(type(key).__name__.removesuffix("Key"))).lower(),))


def _anywhere(setting: str) -> str:
    if setting == _LOCALNET:
        return f"net/ipv4/conf/*/{_LOCALNET}"
    family, name = setting.split("/")[1], setting.rpartition("/")[2]
    return f"net/{family}/conf/*/{name}"
