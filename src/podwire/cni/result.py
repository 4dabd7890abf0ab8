"""CNI's results: what ADD answers, in each version of the specification, and what CHECK is given back.

Invariants: the three versions differ in what this file names: 0.4.0 has a "version" in each of ips, 1.1.0 has the
interfaces' "mtu". Keys that say nothing are left out. (CNI spec 0.4.0, "Result"; 1.0.0 and 1.1.0, section 5.)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from podwire.cni.errors import VERSIONS, CniError, ErrorCode
from podwire.model.addresses import Address, Prefix, family_of, show_address


class Interface(Struct, frozen=True):
    """`sandbox` is the path of a network namespace; the node's interfaces have none. `mtu` is in bytes."""

    name: str
    mac: str | UnsetType = UNSET
    mtu: int | UnsetType = UNSET
    sandbox: str | UnsetType = UNSET


class IP(Struct, frozen=True):
    """`address` with its prefix length; `interface` is an index of the result's interfaces."""

    address: str
    version: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    interface: int | UnsetType = UNSET


class Route(Struct, frozen=True):
    dst: str
    gw: str | UnsetType = UNSET


class DNS(Struct, frozen=True, omit_defaults=True):
    """What a pod should ask (CNI spec 1.1.0, section 5, "dns"): handed on as it was configured, not applied here."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


NO_DNS = DNS()


class AddResult(Struct, frozen=True, rename="camel"):
    cni_version: str = ""
    interfaces: tuple[Interface, ...] = ()
    ips: tuple[IP, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: DNS | UnsetType = UNSET


class End(Struct, frozen=True):
    """One end of a pod's veth pair."""

    name: str
    mac: bytes


def add_result(
    version: str,
    node: End,
    pod: End,
    netns: str,
    mtu: int,
    routed: Sequence[tuple[Address, Address]],
    routes: Sequence[tuple[Prefix, Address]],
    dns: DNS = NO_DNS,
) -> AddResult:
    """`routed`: the pod's addresses, and `routes`: where it sends, each with its gateway; `mtu` in bytes."""
    size = mtu if version == "1.1.0" else UNSET
    ips = []
    for address, gateway in routed:
        family = family_of(address)
        old = family.name.removeprefix("IPv") if version == "0.4.0" else UNSET
        ips.append(IP(f"{show_address(address)}/{family.bits}", old, show_address(gateway), 1))
    ways = tuple(Route(str(to), show_address(gateway)) for to, gateway in routes)
    interfaces = (
        Interface(node.name, node.mac.hex(":"), size),
        Interface(pod.name, pod.mac.hex(":"), size, netns),
    )
    return AddResult(version, interfaces, tuple(ips), ways, UNSET if dns == NO_DNS else dns)


def encode(result: AddResult) -> bytes:
    return msgspec.json.encode(result) + b"\n"


def encode_versions(asked: str) -> bytes:
    """The answer to VERSION (CNI spec, section 4)."""
    version = asked if asked in VERSIONS else VERSIONS[-1]
    return msgspec.json.encode({"cniVersion": version, "supportedVersions": VERSIONS}) + b"\n"


def decode_previous(previous: Mapping[str, Any]) -> AddResult:
    """A configuration's prevResult. Raises CniError."""
    try:
        return msgspec.convert(previous, AddResult)
    except msgspec.ValidationError as error:
        raise CniError(ErrorCode.INVALID_CONFIG, f"network configuration: prevResult: {error}") from None


def missing(previous: AddResult, ours: AddResult, netns: str) -> list[str]:
    """In words, what of our result the previous one does not say. What later plugins have added is theirs."""
    found: list[str] = []
    names = {(interface.name, interface.sandbox or UNSET) for interface in previous.interfaces}
    found += [
        f"interface {interface.name}"
        for interface in ours.interfaces
        if (interface.name, interface.sandbox) not in names
    ]
    addresses = {ip.address for ip in previous.ips}
    found += [f"address {ip.address} in {netns}" for ip in ours.ips if ip.address not in addresses]
    return found
