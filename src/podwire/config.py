"""The agent's configuration: one TOML file, checked whole before anything is started.

Invariants: a `Config` is valid by its birth. All paths of an agent derive from `state_dir`, so that several agents
share a machine. Every error is one line that names the file, the key and the right form.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from podwire.model.addresses import Prefix, parse_host_port, parse_prefix, show_address, special_in
from podwire.model.snapshot import Transport

SOCKET_PATH_LIMIT = 107
"""Bytes of a unix socket's path: sockaddr_un holds 108, the last a zero (unix(7))."""

NODE_NAME = "PODWIRE_NODE_NAME"
"""The environment variable that goes before the key node_name."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Where the kernel tells the boot's ID (random(4))."""

BOOT_ID_FILE = "PODWIRE_BOOT_ID_FILE"
"""The environment variable that names another file than the kernel's for the boot's ID: for a node that is made to
believe that it was started anew."""

ADMIN_SOCKET = "admin.sock"
CNI_SOCKET = "cni.sock"


class ConfigError(Exception):
    """One line for whoever wrote the file."""


class Kubernetes(Struct, frozen=True):
    """How to reach the API. `kubeconfig` None: with the service account of the agent's own pod.

    `api_servers`, tried in turn, stand in place of the address that kubeconfig or pod name: a cluster IP answers only
    once the agent works. `network_condition`: the node gets the condition NetworkUnavailable even where nobody asked.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    api_servers: tuple[str, ...] = ()
    network_condition: bool = False


class Config(Struct, frozen=True):
    """`manifests` and `kubernetes` are where the cluster's objects come from, at most one of them. `mtu` (bytes, of pod
    interfaces) None: taken from the node's own."""

    node_name: str
    state_dir: Path
    manifests: Path | None = None
    kubernetes: Kubernetes | None = None
    service_cidrs: tuple[Prefix, ...] = ()
    mtu: int | None = None
    service_local_backend_weight: int = 1
    """How many times as many of this node's connections a backend on this node gets as one elsewhere."""
    metrics_listen: tuple[str, int] | None = None
    """Where metrics and health are served over TCP too; None: on the admin socket only."""
    healthz_listen: tuple[str, int] | None = None
    """Where load balancers are told whether this node serves, as kube-proxy tells them; None: nowhere."""
    log_level: str = "info"
    node_port_addresses: tuple[Prefix, ...] | None = None
    """In which ranges an address of the node has node ports; None: its first InternalIP of each family has."""
    masquerade: bool = True
    """Whether what pods send out of the cluster bears the node's address."""
    non_masquerade_cidrs: tuple[Prefix, ...] = ()
    """Destinations outside of the cluster that see the pods' own addresses."""
    service_traffic: bool = False
    """Whether packets and bytes of Services are counted, too, not their connections alone: every packet pays for it."""
    transport: Transport = Transport.AUTO
    """How packets come to other nodes' pods."""
    vxlan_vni: int = 28791
    vxlan_port: int = 4789
    frr_dir: Path | None = None
    """Where FRR's daemons have their sockets, and find what to begin with; None: in the state directory."""
    heartbeat_port: int = 7948
    """UDP: where nodes hear of each other, for who answers by ARP and NDP."""
    announce_excluded_nodes: bool = False
    """Whether nodes with the label node.kubernetes.io/exclude-from-external-load-balancers announce addresses, too."""
    verify_seconds: int = 60
    """From one periodic verify to the next; 0: none."""
    heartbeat_key_file: Path | None = None
    """What is in it authenticates the nodes' heartbeats; None: the address that they come from does."""
    boot_id: Path = BOOT_ID
    """What differs from boot to boot (random(4)); never in the file."""

    @property
    def database(self) -> Path:
        return self.state_dir / "podwire.db"

    @property
    def cni_socket(self) -> Path:
        return self.state_dir / CNI_SOCKET

    @property
    def admin_socket(self) -> Path:
        return self.state_dir / ADMIN_SOCKET

    @property
    def spool(self) -> Path:
        """Where the CNI plugin leaves what it could not hand over while no agent was running."""
        return self.state_dir / "spool"

    @property
    def leases(self) -> Path:
        """What IPAM plugins have given to pods, until they have it back."""
        return self.state_dir / "leases"

    @property
    def ready_mark(self) -> Path:
        """That the agent could attach pods since the node's boot: the CNI plugin looks while no agent answers."""
        return self.state_dir / "ready"

    @property
    def frr(self) -> Path:
        return self.frr_dir or self.state_dir / "frr"

    @property
    def counts(self) -> Path:
        """What was told of Services' traffic last, beside the kernel's own counters."""
        return self.state_dir / "counts"

    @property
    def lock(self) -> Path:
        return self.state_dir / "lock"


def aside_of(path: Path) -> Path:
    """Where a file of the state directory is written before it takes its name. One name, since the directory has one
    agent: what a killed one has left there is overwritten by the next, and no heap grows."""
    return path.with_name(f".{path.name}")


# A node's name is a DNS subdomain (RFC 1123, as Kubernetes narrows it).
_NODE_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z"
_ABSOLUTE = r"^/[^\x00]*\Z"
API_SERVER = r"^https?://(\[[0-9A-Fa-f:.]+\]|[-._0-9A-Za-z]+)(:[0-9]{1,5})?(/[^\s?#]*)?\Z"
"""The form of an API server's address."""

_Keys = dict[str, tuple[Any, str]]
"""By key: the type that TOML must give, and the right form in words."""

_KEYS: _Keys = {
    "node_name": (
        Annotated[str, Meta(pattern=_NODE_NAME, max_length=253)],
        'the node\'s name in Kubernetes: lower-case letters, digits, "-" and ".", at most 253',
    ),
    "state_dir": (Annotated[str, Meta(pattern=_ABSOLUTE)], "an absolute path"),
    "manifests": (Annotated[str, Meta(pattern=_ABSOLUTE)], "an absolute path of a directory"),
    "kubernetes": (bool | dict[str, Any], "true, or a table [kubernetes]"),
    "service_cidrs": (tuple[str, ...], 'a list of address ranges, such as ["10.96.0.0/16", "fd96::/108"]'),
    "mtu": (Annotated[int, Meta(ge=1280, le=65535)], "a whole number from 1280 to 65535; leave it out to detect it"),
    "service_local_backend_weight": (Annotated[int, Meta(ge=1, le=100)], "a whole number from 1 to 100"),
    "metrics_listen": (str, 'an IP address and a port, such as "127.0.0.1:9273" or "[::1]:9273"'),
    "node_port_addresses": (
        Literal["primary"] | Annotated[tuple[str, ...], Meta(min_length=1)],
        '"primary", or a list of address ranges, such as ["192.0.2.0/24", "2001:db8::/64"]',
    ),
    "healthz_listen": (str, 'an IP address and a port, such as "0.0.0.0:10256" for all addresses of both families'),
    "masquerade": (bool, "true or false"),
    "service_traffic": (bool, "true or false"),
    "non_masquerade_cidrs": (tuple[str, ...], 'a list of address ranges, such as ["192.0.2.0/24", "2001:db8::/64"]'),
    "transport": (
        Transport,
        '"direct" (nodes share a link), "vxlan", "bgp", or "auto": by VXLAN to nodes that are on no link with this one',
    ),
    "vxlan_vni": (Annotated[int, Meta(ge=1, le=(1 << 24) - 1)], "a whole number from 1 to 16777215"),
    "vxlan_port": (Annotated[int, Meta(ge=1, le=65535)], "a whole number from 1 to 65535: a UDP port"),
    "frr_dir": (Annotated[str, Meta(pattern=_ABSOLUTE)], "an absolute path of a directory"),
    "heartbeat_port": (Annotated[int, Meta(ge=1, le=65535)], "a whole number from 1 to 65535: a UDP port"),
    "announce_excluded_nodes": (bool, "true or false"),
    "verify_seconds": (Annotated[int, Meta(ge=0, le=86400)], "a whole number of seconds up to 86400; 0 for never"),
    "heartbeat_key_file": (Annotated[str, Meta(pattern=_ABSOLUTE)], "an absolute path of a file"),
    "log_level": (Literal["debug", "info", "warning", "error"], 'one of "debug", "info", "warning", "error"'),
}
_REQUIRED = ("node_name", "state_dir")
_PRIMARY = "primary"
_LISTEN = ("metrics_listen", "healthz_listen")
_PATHS = ("manifests", "frr_dir", "heartbeat_key_file")
_KUBERNETES_KEYS: _Keys = {
    "kubeconfig": (Annotated[str, Meta(pattern=_ABSOLUTE)], "an absolute path of a file"),
    "context": (Annotated[str, Meta(min_length=1)], "the name of a context in the kubeconfig"),
    "api_servers": (
        Annotated[tuple[Annotated[str, Meta(pattern=API_SERVER)], ...], Meta(min_length=1)],
        'a list of addresses, such as ["https://192.0.2.1:6443", "https://[2001:db8::1]:6443"]',
    ),
    "network_condition": (bool, "true or false"),
}


def read_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ConfigError for a file that can't be read or is not right."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8: expected a TOML file") from None
    config = parse_config(text, str(path), environment.get(NODE_NAME, ""))
    boot_id = environment.get(BOOT_ID_FILE, "")
    return msgspec.structs.replace(config, boot_id=Path(boot_id)) if boot_id else config


def parse_config(text: str, file: str, node_name: str = "") -> Config:
    """`file` is the name that errors give. `node_name`, where it is not empty, is what the environment says: it goes
    before the file's, since all nodes of a DaemonSet have the same file. Raises ConfigError."""
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {_syntax(str(error), text)}") from None
    found = _typed(file, "", _KEYS, written)
    if node_name:
        found |= _typed(f"environment {NODE_NAME}", "", _KEYS, {"node_name": node_name})
    for key in _REQUIRED:
        if key not in found:
            raise ConfigError(f"{file}: {key}: missing; expected {_KEYS[key][1]}")
    found["state_dir"] = _state_dir(file, found["state_dir"])
    for key in _PATHS:
        if key in found:
            found[key] = Path(os.path.normpath(found[key]))
    if "kubernetes" in found:
        found["kubernetes"] = _kubernetes(file, found["kubernetes"])
    if found.get("manifests") and found.get("kubernetes"):
        raise ConfigError(f"{file}: manifests, kubernetes: expected one of the two: the objects come from one place")
    for key in _LISTEN:
        if key in found:
            found[key] = _listen(file, key, found[key])
    found["service_cidrs"] = tuple(_service_cidr(file, range_) for range_ in found.get("service_cidrs", ()))
    kept = found.get("non_masquerade_cidrs", ())
    found["non_masquerade_cidrs"] = tuple(_range(file, "non_masquerade_cidrs", text) for text in kept)
    places = found.pop("node_port_addresses", _PRIMARY)
    if places != _PRIMARY:
        found["node_port_addresses"] = tuple(_range(file, "node_port_addresses", text) for text in places)
    return Config(**found)


def _typed(file: str, table: str, keys: _Keys, written: dict[str, Any]) -> dict[str, Any]:
    """`table` is what stands before its keys in errors, such as `kubernetes.`."""
    found: dict[str, Any] = {}
    for key in written:
        if key not in keys:
            raise ConfigError(f"{file}: {table}{key}: unknown key; {_nearest(key, keys)}")
    for key, value in written.items():
        kind, form = keys[key]
        try:
            found[key] = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise ConfigError(f"{file}: {table}{key}: expected {form}; found {value!r}") from None
    return found


def _kubernetes(file: str, value: bool | dict[str, Any]) -> Kubernetes | None:
    if isinstance(value, bool):
        return Kubernetes() if value else None
    found = _typed(file, "kubernetes.", _KUBERNETES_KEYS, value)
    if "kubeconfig" in found:
        found["kubeconfig"] = Path(os.path.normpath(found["kubeconfig"]))
    elif "context" in found:
        raise ConfigError(f"{file}: kubernetes.context: expected kubernetes.kubeconfig beside it")
    return Kubernetes(**found)


def _state_dir(file: str, text: str) -> Path:
    path = Path(os.path.normpath(text))
    room = SOCKET_PATH_LIMIT - len(f"/{ADMIN_SOCKET}")
    size = len(os.fsencode(path))
    if size > room:
        raise ConfigError(
            f"{file}: state_dir: too long by {size - room} bytes: the sockets lie in it, and a unix socket's path has "
            f"at most {SOCKET_PATH_LIMIT}; expected a directory of at most {room} bytes"
        )
    return path


def _listen(file: str, key: str, text: str) -> tuple[str, int]:
    try:
        address, port = parse_host_port(text)
    except ValueError:
        raise ConfigError(f"{file}: {key}: expected {_KEYS[key][1]}; found {text!r}") from None
    return show_address(address), port


def _range(file: str, key: str, text: str) -> Prefix:
    try:
        return parse_prefix(text)
    except ValueError as error:
        raise ConfigError(f"{file}: {key}: {error}") from None


def _service_cidr(file: str, text: str) -> Prefix:
    prefix = _range(file, "service_cidrs", text)
    if (others := special_in(prefix)) is not None:
        raise ConfigError(f"{file}: service_cidrs: expected ranges without {others}; found {text!r}")
    return prefix


def _nearest(key: str, keys: _Keys) -> str:
    near = difflib.get_close_matches(key, keys, n=1)
    return f"did you mean {near[0]}?" if near else f"the keys are {', '.join(keys)}"


def _syntax(message: str, text: str) -> str:
    """tomllib says `what (at line L, column C)` or `what (at end of document)`."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    if found is None:
        what = message.removesuffix(" (at end of document)")
        return f"line {text.count(chr(10)) + 1}: {what}, at the end of the file"
    what, line, column = found.groups()
    return f"line {line}, column {column}: {what}"
