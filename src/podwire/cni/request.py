"""What a runtime asks: the environment, CNI_ARGS and the network configuration, checked before anything is done.

Invariants: a `Request` is valid by its birth for its command (CNI spec 1.1.0, section 2 and 4). Unknown keys of the
configuration are ignored, since runtimes add some; a field that asks for what Podwire doesn't do is an error, never
passed over in silence.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from podwire.cni import bandwidth, dns, portmappings, requested, shim
from podwire.cni.delegation import Delegation, plugin_of
from podwire.cni.errors import VERSIONS, CniError, ErrorCode
from podwire.cni.result import DNS
from podwire.model.addresses import Address
from podwire.model.objects import NO_BANDWIDTH, AttachmentKey, Bandwidth, HostPort, PodKey
from podwire.pods.names import MOST_SANDBOX

COMMANDS = ("ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION")

_REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
}
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
"""Of a container ID and of a network (CNI spec, sections 1 and 2)."""

LARGEST = shim.LARGEST + (8 << 20)
"""Bytes of the largest call that the plugin makes or spools: its standard input, and its environment, of which the
kernel takes 6 MiB (execve(2)). An agent that took less would lose a DEL that the runtime has been told is done."""

INTERFACE_BYTES = 15
"""IFNAMSIZ (linux/if.h) is 16, the last a zero."""

GC_SINCE = "1.1.0"
"""The version of the specification that has GC; there is none later."""

_TRUE, _FALSE = ("1", "true"), ("0", "false")
_ARGUMENTS = ("K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID", "IP", "MAC")

_UNSUPPORTED = ("deviceID", "infinibandGUID")
"""Of runtimeConfig: what would change the pod's network (CNI conventions)."""
_AN_IPAM_PLUGINS = ("ipRanges",)
"""The same, but that an IPAM plugin may do."""


class Valid(Struct, frozen=True):
    """An attachment that a runtime has (CNI spec 1.1.0, section 2, "cni.dev/valid-attachments")."""

    container: str = field(name="containerID")
    interface: str = field(name="ifname")


class NetworkConfig(Struct, frozen=True, rename="camel"):
    """The parts of a plugin's configuration (CNI spec, section 1) that are read here."""

    cni_version: str = ""
    name: str = ""
    prev_result: dict[str, Any] | None = None
    runtime_config: dict[str, Any] | None = None
    ipam: dict[str, Any] | None = None
    args: Any = None
    dns: Any = None
    valid: list[Valid] | UnsetType | None = field(name="cni.dev/valid-attachments", default=UNSET)


class Request(Struct, frozen=True):
    """`key`, `pod`, `uid` and `netns` are set for ADD, CHECK and DEL only; a DEL's netns may be "", `uid` (the pod's in
    Kubernetes) is where nobody tells it. `valid` is set for GC only: None where the runtime has sent no list, so that
    nothing is to be collected. `host_ports`, `bandwidth`, `addresses` and `mac` (what is asked for) are set for ADD and
    CHECK. `delegation`: to whom addresses are left, None: to us; what that plugin is asked for we don't read."""

    command: str
    config: NetworkConfig
    key: AttachmentKey = AttachmentKey("", "")
    pod: PodKey = PodKey("", "")
    netns: str = ""
    uid: str = ""
    valid: frozenset[AttachmentKey] | None = None
    host_ports: tuple[HostPort, ...] = ()
    bandwidth: Bandwidth = NO_BANDWIDTH
    addresses: tuple[Address, ...] = ()
    mac: bytes = b""
    delegation: Delegation | None = None

    @property
    def dns(self) -> DNS:
        """Raises CniError."""
        return dns.parse(self.config.dns, (self.config.runtime_config or {}).get("dns"))

    @property
    def version(self) -> str:
        return self.config.cni_version


def parse_request(environment: Iterable[str], stdin: bytes) -> Request:
    """`environment` is of lines "CNI_NAME=value". Raises CniError."""
    environment = tuple(environment)
    variables = dict(line.partition("=")[::2] for line in environment)
    command = variables.get("CNI_COMMAND", "")
    if command not in COMMANDS:
        raise _environment("CNI_COMMAND", f"expected one of {', '.join(COMMANDS)}; found {command!r}")
    lacking = [name for name in _REQUIRED.get(command, ()) if not variables.get(name)]
    if lacking:
        raise _environment(", ".join(lacking), f"missing; {command} needs it")
    if command == "VERSION":
        return Request(command, NetworkConfig(cni_version=asked_version(stdin)))
    config = parse_config(stdin)
    check_config(config, command)
    told = _delegation(config, command, environment, stdin)
    if command == "STATUS":
        return Request(command, config, delegation=told)
    if command == "GC":
        return Request(command, config, valid=_valid(config), delegation=told)
    sandbox, interface = variables["CNI_CONTAINERID"], variables["CNI_IFNAME"]
    check_sandbox(sandbox)
    check_interface(interface)
    key, netns = AttachmentKey(sandbox, interface), variables.get("CNI_NETNS", "")
    if command == "DEL":  # whose it was is no question: a DEL that fails would come again for ever
        return Request(command, config, key, netns=netns, delegation=told)
    if command == "ADD" and len(sandbox) > MOST_SANDBOX:
        found = f"{len(sandbox)} bytes"
        raise _environment("CNI_CONTAINERID", f"expected at most {MOST_SANDBOX} bytes; found {found}")
    arguments = parse_arguments(variables.get("CNI_ARGS", ""))
    asked = Request(command, config, key, pod_of(arguments, sandbox), netns, arguments.get("K8S_POD_UID", ""))
    return _with_wishes(replace(asked, delegation=told), arguments)


def _with_wishes(request: Request, arguments: Mapping[str, str]) -> Request:
    """What a runtime asks for beside an interface. Raises CniError."""
    told = request.config.runtime_config or {}
    args = request.config.args.get("cni") if isinstance(request.config.args, dict) else None
    args = args if isinstance(args, dict) else {}
    ours = request.delegation is None
    return replace(
        request,
        host_ports=portmappings.parse(told.get("portMappings")),
        bandwidth=bandwidth.parse(told.get("bandwidth")),
        addresses=requested.addresses(told, args, arguments.get("IP", "")) if ours else (),
        mac=requested.mac(told, args, arguments.get("MAC", "")),
    )


def _delegation(config: NetworkConfig, command: str, environment: tuple[str, ...], stdin: bytes) -> Delegation | None:
    """Raises CniError, but at a DEL: who has given nothing has nothing to take back."""
    try:
        name = plugin_of(config.ipam)
    except CniError:
        if command != "DEL":
            raise
        return None
    return Delegation(name, environment, stdin) if name else None


def asked_version(stdin: bytes) -> str:
    """The configuration's version, for the answer to a request that is not right; "" where it can't be read."""
    try:
        return msgspec.json.decode(stdin, type=NetworkConfig).cni_version
    except msgspec.DecodeError:
        return ""


# --- the environment ---------------------------------------------------------------------------


def check_sandbox(text: str) -> None:
    if not _NAME.fullmatch(text):
        raise _environment(
            "CNI_CONTAINERID", f'expected a letter or digit, then letters, digits, "_", "." and "-"; found {text!r}'
        )


def check_interface(text: str) -> None:
    """The kernel's rule (dev_valid_name), and what it gives a meaning of its own: "%d", and two sysctl directories."""
    wrong = text in {".", "..", "all", "default"} or any(c in "/:%" or c.isspace() or not c.isprintable() for c in text)
    if wrong or len(text.encode()) > INTERFACE_BYTES:
        raise _environment(
            "CNI_IFNAME",
            f'expected an interface name: at most {INTERFACE_BYTES} bytes without "/", ":", "%" and spaces, '
            f'and none of ".", "..", "all", "default"; found {text!r}',
        )


def parse_arguments(text: str) -> dict[str, str]:
    """CNI_ARGS: `NAME=value;NAME=value`. Unknown names are an error unless IgnoreUnknown is true (CNI conventions)."""
    found: dict[str, str] = {}
    for pair in filter(None, text.split(";")):
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise _environment("CNI_ARGS", f"expected NAME=value pairs separated by semicolons; found {pair!r}")
        found[name] = value
    ignore = found.pop("IgnoreUnknown", "0").lower()
    if ignore not in _TRUE + _FALSE:
        raise _environment("CNI_ARGS", f"IgnoreUnknown: expected 1, true, 0 or false; found {ignore!r}")
    unknown = sorted(found.keys() - set(_ARGUMENTS))
    if unknown and ignore in _FALSE:
        raise _environment(
            "CNI_ARGS", f"unknown {', '.join(unknown)}; known are {', '.join(_ARGUMENTS)}; or set IgnoreUnknown=1"
        )
    return {name: value for name, value in found.items() if name in _ARGUMENTS}


def pod_of(arguments: Mapping[str, str], sandbox: str) -> PodKey:
    """The pod that CNI_ARGS names. A runtime that knows no Kubernetes names none: then it is the container, in the
    namespace "", which no object of Kubernetes can have."""
    namespace, name = arguments.get("K8S_POD_NAMESPACE", ""), arguments.get("K8S_POD_NAME", "")
    if bool(namespace) != bool(name):
        raise _environment("CNI_ARGS", "expected both K8S_POD_NAMESPACE and K8S_POD_NAME, or neither")
    return PodKey(namespace, name or sandbox)


def _environment(variable: str, text: str) -> CniError:
    return CniError(ErrorCode.INVALID_ENVIRONMENT, f"{variable}: {text}")


# --- the configuration -------------------------------------------------------------------------


def parse_config(stdin: bytes) -> NetworkConfig:
    try:
        return msgspec.json.decode(stdin, type=NetworkConfig)
    except msgspec.DecodeError as error:
        raise CniError(ErrorCode.DECODING_FAILURE, f"network configuration: {error}") from None


def check_config(config: NetworkConfig, command: str) -> None:
    if config.cni_version not in VERSIONS:
        raise CniError(
            ErrorCode.INCOMPATIBLE_VERSION,
            f"network configuration: cniVersion: expected one of {', '.join(VERSIONS)}; found {config.cni_version!r}",
        )
    if not _NAME.fullmatch(config.name):
        raise CniError(
            ErrorCode.INVALID_CONFIG,
            'network configuration: name: expected a letter or digit, then letters, digits, "_", "." and "-"; '
            f"found {config.name!r}",
        )
    if command == "GC" and config.cni_version != GC_SINCE:
        raise CniError(
            ErrorCode.INCOMPATIBLE_VERSION,
            f"network configuration: cniVersion: GC needs {GC_SINCE}; found {config.cni_version!r}",
        )
    if command == "ADD":
        _check_add(config)


def _valid(config: NetworkConfig) -> frozenset[AttachmentKey] | None:
    """No list is no question; null is what runtimes make of an empty one."""
    if config.valid is UNSET:
        return None
    return frozenset(AttachmentKey(it.container, it.interface) for it in config.valid or ())


def _check_add(config: NetworkConfig) -> None:
    if config.prev_result is not None:
        raise CniError(
            ErrorCode.INVALID_CONFIG, "network configuration: prevResult: podwire must be the first plugin of the list"
        )
    for name in (*_UNSUPPORTED, *(() if plugin_of(config.ipam) else _AN_IPAM_PLUGINS)):
        value = (config.runtime_config or {}).get(name)
        if value:
            raise _unsupported(f"runtimeConfig.{name}", value, f"take {name} out of podwire's capabilities")


def _unsupported(name: str, value: object, advice: str) -> CniError:
    shown = msgspec.json.encode(value).decode()
    return CniError(ErrorCode.UNSUPPORTED_FIELD, f"network configuration: {name}: not supported: {shown}; {advice}")
