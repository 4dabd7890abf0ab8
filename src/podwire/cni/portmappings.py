"""The capability "portMappings": which ports of the node a runtime wants to lead to the pod's (CNI conventions).

Invariants: a list is taken whole or refused with one error, which names the entry and the field, what was found and the
right form. Names of fields are read as Go reads them, in any case of letters: containerd's have a capital. Of what is
left out the protocol is TCP, and the address all that the node has, as in Kubernetes' ContainerPort.
"""

from collections.abc import Mapping
from typing import Any

from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.fields import as_go_reads, misconfigured
from podwire.model.addresses import FAMILIES, Address, parse_address, special
from podwire.model.network import Frontend, HostPortKey
from podwire.model.objects import HostPort, Protocol
from podwire.pods.hostports import answers, places

NAME = "runtimeConfig.portMappings"
BOTH = Address(b"")
"""All addresses of the node, of both families."""
_FIELDS = {"hostport": "hostPort", "containerport": "containerPort", "protocol": "protocol", "hostip": "hostIP"}
_PROTOCOLS = ", ".join(it.name for it in Protocol)


def parse(told: Any) -> tuple[HostPort, ...]:
    """Sorted. Nothing is no port. Raises CniError."""
    if not told:
        return ()
    if not isinstance(told, list):
        raise _wrong("", "expected a list of port mappings", told)
    found: dict[Frontend, str] = {}
    ports = []
    for number, each in enumerate(told):
        where = f"[{number}]"
        it = _one(where, each)
        for at in places((it,), FAMILIES):
            if at in found:
                raise CniError(
                    ErrorCode.INVALID_CONFIG,
                    f"network configuration: {NAME}{where}: {HostPortKey(at)} is in {found[at]} already: expected each "
                    "hostPort once for each protocol and hostIP",
                )
            found[at] = where
        ports.append(it)
    return tuple(sorted(ports))


def _one(where: str, told: Any) -> HostPort:
    if not isinstance(told, Mapping):
        raise _wrong(where, "expected an object with hostPort and containerPort", told)
    given = as_go_reads(where, told, _FIELDS, _wrong)
    return HostPort(
        address=_address(f"{where}.hostIP", given.get("hostIP")),
        protocol=_protocol(f"{where}.protocol", given.get("protocol")),
        port=_port(f"{where}.hostPort", given.get("hostPort")),
        target=_port(f"{where}.containerPort", given.get("containerPort")),
    )


def _port(where: str, told: Any) -> int:
    if not isinstance(told, int) or isinstance(told, bool) or not 1 <= told <= 65535:
        raise _wrong(where, "expected a number from 1 to 65535", told)
    return told


def _protocol(where: str, told: Any) -> Protocol:
    name = "TCP" if told in (None, "") else told.upper() if isinstance(told, str) else ""
    found = next((it for it in Protocol if it.name == name), None)
    if found is None:
        raise _wrong(where, f"expected one of {_PROTOCOLS}", told)
    return found


def _address(where: str, told: Any) -> Address:
    if told in (None, ""):
        return BOTH
    try:
        address = parse_address(told) if isinstance(told, str) else None
    except ValueError:
        address = None
    if address is None:
        raise _wrong(where, "expected an IP address of the node, or none for all that it has", told)
    if not answers(address):
        raise _wrong(
            where,
            "expected an address that leads on to a pod: from IPv6's loopback and link-local addresses nothing does "
            "(IPv6 has no route_localnet; 127.0.0.1 can be named)",
            told,
        )
    kind = special(address)
    if kind in ("multicast", "broadcast", "IPv4-mapped"):
        raise _wrong(where, f"expected an IP address that a node can have, and no {kind} one", told)
    return address


def _wrong(where: str, expected: str, found: Any) -> CniError:
    return misconfigured(f"{NAME}{where}", expected, found)
