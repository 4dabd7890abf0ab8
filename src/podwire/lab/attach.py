"""Pods attached and detached as a container runtime does it: by executing the CNI plugin (CNI spec 1.1.0, section 2).

Invariants: nothing here knows the agent; the plugin is the same file that a node installs. A pod's namespace exists
before its ADD and after its DEL.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from podwire.cni.install import PLUGIN
from podwire.lab.process import run
from podwire.lab.spaces import INTERFACE
from podwire.lab.workloads import HostPort
from podwire.model.addresses import Address, parse_address
from podwire.model.objects import PodKey

_NETWORK = {"cniVersion": "1.1.0", "name": PLUGIN, "type": PLUGIN}
TRY_AGAIN = 11


class AttachError(Exception):
    """The plugin refused, with its own words. `code`: the CNI error code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Sandbox(Struct, frozen=True):
    """What a runtime knows of a pod it has begun: `id` as CNI_CONTAINERID, `netns` a path."""

    id: str
    pod: PodKey
    netns: Path


class _IP(Struct):
    address: str


class _Result(Struct):
    ips: tuple[_IP, ...] = ()


class _Error(Struct):
    code: int
    msg: str
    details: str = ""


async def add(plugin: Path, sandbox: Sandbox, ports: Iterable[HostPort] = ()) -> tuple[Address, ...]:
    """The pod's addresses. `ports`: those of the node that shall lead to it, which a runtime hands over as the
    capability "portMappings" (CNI conventions). Raises AttachError, or ProgramError where the plugin doesn't run."""
    network = _NETWORK | ({"runtimeConfig": {"portMappings": list(map(_mapping, ports))}} if ports else {})
    code, out, errors = await run(
        str(plugin), stdin=_encoded(network), environment=_environment("ADD", plugin, sandbox)
    )
    if code:
        raise _refusal(out, errors)
    result = _decode(out, _Result)
    if result is None or not result.ips:
        raise AttachError(f"the plugin's answer holds no address: {out.strip() or 'nothing'}", TRY_AGAIN)
    return tuple(parse_address(ip.address.partition("/")[0]) for ip in result.ips)


async def delete(plugin: Path, sandbox: Sandbox) -> None:
    """Raises AttachError, or ProgramError where the plugin doesn't run."""
    code, out, errors = await run(
        str(plugin), stdin=_encoded(_NETWORK), environment=_environment("DEL", plugin, sandbox)
    )
    if code:
        raise _refusal(out, errors)


def _mapping(it: HostPort) -> dict[str, Any]:
    protocol = it.protocol.name.lower()
    return {"hostPort": it.number, "containerPort": it.target, "protocol": protocol, "hostIP": it.address}


def _encoded(network: Mapping[str, Any]) -> str:
    return msgspec.json.encode(network).decode()


def _environment(command: str, plugin: Path, sandbox: Sandbox) -> dict[str, str]:
    pod = sandbox.pod
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": sandbox.id,
        "CNI_NETNS": str(sandbox.netns),
        "CNI_IFNAME": INTERFACE,
        "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name}",
        "CNI_PATH": str(plugin.parent),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }


def _refusal(out: str, errors: str) -> AttachError:
    said = _decode(out, _Error)
    if said is None:
        return AttachError(" ".join((out + errors).split()) or "the plugin said nothing", TRY_AGAIN)
    return AttachError(f"{said.msg}{f': {said.details}' if said.details else ''}", said.code)


def _decode(text: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None
