"""An IPAM plugin that the network configuration names: what it is told, and what it answers (CNI spec 1.1.0, sections 4
and 5). Pure.

Invariants: it is told what the runtime told us: the whole configuration as it came, byte for byte, and every CNI_
variable, but for the command. Of what it answers all is taken or all refused, with one error that names the plugin, the
field, what was found and the right form. Its own errors are passed on with their codes.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from podwire.cni import dns
from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.fields import Wrong, shown
from podwire.cni.result import DNS, NO_DNS
from podwire.model.addresses import Address, Prefix, family_of, parse_address, prefix_around, special
from podwire.model.objects import AttachmentKey

OURS = "podwire"
"""Executed as an IPAM plugin we would ask ourselves, for ever."""
MOST = 16
"""Addresses, and routes, of one interface."""
VALID = "cni.dev/valid-attachments"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_GREATEST_CODE = 0xFFFF_FFFF


class Delegation(Struct, frozen=True):
    """`plugin` is an executable's name in a directory of CNI_PATH; `environment` (lines "CNI_NAME=value") and `stdin`
    are what the runtime has given us."""

    plugin: str
    environment: tuple[str, ...] = ()
    stdin: bytes = b""

    @property
    def directories(self) -> tuple[str, ...]:
        """Of CNI_PATH, in order."""
        return tuple(filter(None, self._variables.get("CNI_PATH", "").split(":")))

    @property
    def _variables(self) -> dict[str, str]:
        return dict(line.partition("=")[::2] for line in self.environment)

    def variables(self, command: str, **changed: str) -> dict[str, str]:
        """What the plugin has in its environment for a command."""
        return self._variables | {"CNI_COMMAND": command} | changed

    def listing(self, keys: Iterable[AttachmentKey]) -> bytes:
        """The configuration of a GC with these attachments among the valid ones: those that no runtime can list yet."""
        told = json.loads(self.stdin)
        listed = {(it["containerID"], it["ifname"]) for it in told.get(VALID) or ()}
        more = sorted(key for key in keys if (key.sandbox, key.interface) not in listed)
        if not more:
            return self.stdin
        rest = [{"containerID": key.sandbox, "ifname": key.interface} for key in more]
        return json.dumps(told | {VALID: [*(told.get(VALID) or ()), *rest]}).encode()


class IpamResult(Struct, frozen=True):
    """What a plugin has given. `routes`: where the pod sends by this interface, None: to everywhere."""

    addresses: tuple[Address, ...]
    routes: tuple[Prefix, ...] | None = None
    dns: DNS = NO_DNS


def plugin_of(ipam: Mapping[str, Any] | None) -> str:
    """The plugin that gives addresses in our place; "" where we do. Raises CniError."""
    if not ipam or ipam.get("type") == "":
        return ""
    name = ipam.get("type")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CniError(
            ErrorCode.INVALID_CONFIG,
            "network configuration: ipam.type: expected the name of a plugin in a directory of CNI_PATH, such as "
            f"host-local; found {shown(name)}",
        )
    if name == OURS:
        raise CniError(
            ErrorCode.INVALID_CONFIG,
            "network configuration: ipam.type: expected another plugin than podwire, which gives the node's own "
            "addresses where the configuration has no ipam at all",
        )
    return name


def given(plugin: str, stdout: bytes) -> IpamResult:
    """Of an ADD that succeeded. Raises CniError."""

    def wrong(where: str, expected: str, found: Any) -> CniError:
        text = f"IPAM plugin {plugin}: its result: {where + ': ' if where else ''}{expected}; found {shown(found)}"
        return CniError(ErrorCode.DECODING_FAILURE, text)

    try:
        result = msgspec.json.decode(stdout)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise wrong("", "expected JSON", stdout[:80].decode(errors="replace")) from None
    if not isinstance(result, dict):
        raise wrong("", "expected an object", result)
    addresses = tuple(_address(f"ips[{n}]", it, wrong) for n, it in _listed("ips", result.get("ips"), wrong))
    if not addresses:
        raise wrong("ips", "expected at least one address", result.get("ips"))
    twice = next((it for n, it in enumerate(addresses) if it in addresses[:n]), None)
    if twice is not None:
        raise wrong("ips", "expected each address once", [it.get("address") for it in result["ips"]])
    families = set(map(family_of, addresses))
    routes = [_route(f"routes[{n}]", it, families, wrong) for n, it in _listed("routes", result.get("routes"), wrong)]
    return IpamResult(
        addresses, tuple(sorted(set(routes))) if routes else None, dns.read("dns", result.get("dns"), wrong)
    )


def _listed(where: str, told: Any, wrong: Wrong) -> list[tuple[int, Mapping[str, Any]]]:
    if told is None:
        return []
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        raise wrong(where, "expected a list of objects", told)
    if len(told) > MOST:
        raise wrong(where, f"expected at most {MOST}", len(told))
    return list(enumerate(told))


def _address(where: str, told: Mapping[str, Any], wrong: Wrong) -> Address:
    text = told.get("address")
    found = _prefixed(text)
    if found is None:
        raise wrong(f"{where}.address", "expected ADDRESS/LENGTH, such as 10.1.0.9/24", text)
    kind = special(found[0])
    if kind is not None:
        raise wrong(f"{where}.address", f"expected an address that a pod can have, and no {kind} one", text)
    return found[0]


def _route(where: str, told: Mapping[str, Any], families: Iterable[Any], wrong: Wrong) -> Prefix:
    text = told.get("dst")
    found = _prefixed(text)
    if found is None:
        raise wrong(f"{where}.dst", "expected ADDRESS/LENGTH, such as 0.0.0.0/0", text)
    if family_of(found[0]) not in families:
        raise wrong(
            f"{where}.dst", f"expected an {family_of(found[0])} address beside an {family_of(found[0])} route", text
        )
    return prefix_around(*found)


def _prefixed(text: Any) -> tuple[Address, int] | None:
    head, slash, tail = text.partition("/") if isinstance(text, str) else ("", "", "")
    try:
        address = parse_address(head)
    except ValueError:
        return None
    right = bool(slash) and tail.isascii() and tail.isdigit() and len(tail) <= 3 and int(tail) <= len(address) * 8
    return (address, int(tail)) if right else None


def failure(plugin: str, code: int, stdout: bytes, stderr: bytes) -> CniError:
    """What a plugin has ended with that did not succeed: its own error, where it has told one. `code` is its exit code,
    or less than zero for the signal that has ended it."""
    said = stderr.decode(errors="replace").strip()
    try:
        told = msgspec.json.decode(stdout)
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = None
    if isinstance(told, dict) and isinstance(told.get("msg"), str):
        number, details = told.get("code"), told.get("details")
        own = isinstance(number, int) and not isinstance(number, bool) and 0 < number <= _GREATEST_CODE
        return CniError(
            number if own else ErrorCode.INTERNAL,  # type: ignore[arg-type]
            f"IPAM plugin {plugin}: {told['msg']}",
            details if isinstance(details, str) and details else said,
        )
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    what = (
        f"and printed {shown(stdout[:80].decode(errors='replace'))}, which is no error of CNI"
        if stdout
        else "and printed nothing"
    )
    return CniError(ErrorCode.INTERNAL, f"IPAM plugin {plugin}: {ended} {what}", said)
