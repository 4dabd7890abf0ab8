"""Addresses and the MAC address that a runtime wants for a pod's interface (CNI conventions: capabilities "ips" and
"mac", `args.cni.ips` and `args.cni.mac`, and IP and MAC in CNI_ARGS). Pure.

Invariants: all is taken or all refused, with one error that names the field, what was found and the right form. Where
several places name addresses, all of them are wanted, each once, in the order told. Of MAC addresses there is one. A
mask is allowed and means nothing: pods have host prefixes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.fields import misconfigured, shown
from podwire.model.addresses import Address, parse_address, special
from podwire.pods.wiring import NODE_MAC

IPS, MAC = "runtimeConfig.ips", "runtimeConfig.mac"
ARGS_IPS, ARGS_MAC = "args.cni.ips", "args.cni.mac"
ENVIRONMENT_IP, ENVIRONMENT_MAC = "CNI_ARGS: IP", "CNI_ARGS: MAC"
MOST = 16
"""Addresses of one interface."""
_MAC = re.compile(r"[0-9a-f]{2}(?:(?::[0-9a-f]{2}){5}|(?:-[0-9a-f]{2}){5})|[0-9a-f]{4}(?:\.[0-9a-f]{4}){2}")


def addresses(runtime: Mapping[str, Any], args: Mapping[str, Any], argument: str) -> tuple[Address, ...]:
    """`runtime` is runtimeConfig, `args` the configuration's args.cni, `argument` IP of CNI_ARGS: with commas between
    several. Raises CniError."""
    found: dict[Address, None] = {}
    for where, each in (
        *_listed(IPS, runtime.get("ips")),
        *_listed(ARGS_IPS, args.get("ips")),
        *((ENVIRONMENT_IP, each.strip()) for each in argument.split(",") if argument),
    ):
        found[_address(where, each)] = None
        if len(found) > MOST:
            raise wrong(where, f"expected at most {MOST} addresses of one interface", each)
    return tuple(found)


def mac(runtime: Mapping[str, Any], args: Mapping[str, Any], argument: str) -> bytes:
    """Six bytes; b"" where none is asked for. Raises CniError."""
    told = ((MAC, runtime.get("mac")), (ARGS_MAC, args.get("mac")), (ENVIRONMENT_MAC, argument))
    found = {where: _mac(where, each) for where, each in told if each not in (None, "")}
    for where, each in found.items():
        first, one = next(iter(found.items()))
        if each != one:
            raise wrong(where, f"expected that of {first}, {one.hex(':')}", each.hex(":"))
    return next(iter(found.values()), b"")


def _listed(where: str, told: Any) -> Iterator[tuple[str, Any]]:
    if told is None:
        return
    if not isinstance(told, list):
        raise wrong(where, "expected a list of IP addresses, with or without a mask", told)
    for number, each in enumerate(told):
        yield f"{where}[{number}]", each


def _address(where: str, told: Any) -> Address:
    head, slash, length = told.partition("/") if isinstance(told, str) else ("", "", "")
    try:
        address = parse_address(head)
    except ValueError:
        raise wrong(
            where, "expected an IP address, with or without a mask, such as 10.1.0.9 or fd00::9/64", told
        ) from None
    if slash and not (length.isascii() and length.isdigit() and int(length[:9]) <= len(address) * 8):
        raise wrong(where, f"expected a mask of 0 to {len(address) * 8} bits, or none", told)
    kind = special(address)
    if kind is not None:
        raise wrong(where, f"expected an address that a pod can have, and no {kind} one", told)
    return address


def _mac(where: str, told: Any) -> bytes:
    text = told.lower() if isinstance(told, str) else ""
    if not _MAC.fullmatch(text):
        raise wrong(where, "expected a MAC address, such as 02:00:5e:00:00:01", told)
    found = bytes.fromhex(re.sub("[:.-]", "", text))
    if not any(found):
        raise wrong(where, "expected a MAC address that an interface can have, and no zeros", told)
    if found[0] & 1:
        raise wrong(where, "expected the MAC address of one interface, and no multicast or broadcast one", told)
    if found == NODE_MAC:
        raise wrong(where, "expected another MAC address: this is that of each link's end on the node", told)
    return found


def wrong(where: str, expected: str, found: Any) -> CniError:
    if where.startswith("CNI_"):
        return CniError(ErrorCode.INVALID_ENVIRONMENT, f"{where}: {expected}; found {shown(found)}")
    return misconfigured(where, expected, found)
