"""A lab on disk: one directory that holds all of it but its namespaces.

Invariants: the directory is made before anything else of a lab and removed after everything else, so while it is there
`down` has something to do, and where it is not nothing is left.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from podwire.cli.client import REFUSED, Failed
from podwire.config import ADMIN_SOCKET, CNI_SOCKET, SOCKET_PATH_LIMIT
from podwire.lab.topology import Station, stations
from podwire.model.snapshot import Transport

ROOT = Path("/run/podwire-lab")
SUPERVISOR = "supervisor"
"""The role of a lab's own process in its record."""


DEFAULT = "lab"


def called(name: str) -> str:
    """A lab in a sentence."""
    return "the lab" if name == DEFAULT else f"lab {name}"


class LabError(Failed):
    """What a command of the lab can't do; a line says why, and what to do. Of wrong manifests, one for each mistake."""

    def __init__(self, text: str) -> None:
        line, *more = text.split("\n")
        super().__init__(line, REFUSED, *more)


class NodePaths(Struct, frozen=True):
    home: Path

    @property
    def config(self) -> Path:
        return self.home / "podwire.toml"

    @property
    def bin(self) -> Path:
        """As a node's /opt/cni/bin."""
        return self.home / "bin"

    @property
    def log(self) -> Path:
        return self.home / "agent.log"

    @property
    def notify(self) -> Path:
        return self.home / "notify.sock"

    @property
    def state(self) -> Path:
        """The agent's own state directory."""
        return self.home / "state"

    @property
    def cni_socket(self) -> Path:
        return self.state / CNI_SOCKET

    @property
    def admin_socket(self) -> Path:
        return self.state / ADMIN_SOCKET

    @property
    def frr(self) -> Path:
        """Not in the state directory, which is closed to FRR's user."""
        return self.home / "frr"

    @property
    def spool(self) -> Path:
        return self.state / "spool"

    @property
    def ready_mark(self) -> Path:
        return self.state / "ready"


class Lab(Struct, frozen=True):
    """`manifests`: the user's directory; `nodes`: how many, on how many `links`; `transport`: as in an agent's
    configuration."""

    name: str
    home: Path
    manifests: Path
    nodes: int
    links: int = 1
    transport: str = "auto"

    @property
    def by_bgp(self) -> bool:
        """Nodes take the ways to each other's pods from the router on the fabric."""
        return self.transport == Transport.BGP.value

    @property
    def processes(self) -> Path:
        """A line for each process that was started."""
        return processes_of(self.home)

    @property
    def control(self) -> Path:
        return self.home / "lab.sock"

    @property
    def log(self) -> Path:
        return self.home / "lab.log"

    @property
    def cluster(self) -> Path:
        """The complete objects, which all agents watch."""
        return self.home / "cluster"

    @property
    def staging(self) -> Path:
        """Where an object is written before it gets its name: on the same disk, and watched by nobody."""
        return self.home / "staging"

    @property
    def stations(self) -> tuple[Station, ...]:
        return stations(self.nodes, self.links)

    @property
    def resolver(self) -> Path:
        """resolv.conf(5) for the programs in pods, a file for each of the cluster's namespaces."""
        return self.home / "resolv"

    def node(self, name: str) -> NodePaths:
        return NodePaths(self.home / "nodes" / name)


def processes_of(home: Path) -> Path:
    return home / "processes"


def claim(lab: Lab) -> None:
    """Makes the directory. Raises LabError where there is such a lab already, or where unix sockets don't fit."""
    paths = lab.node(lab.stations[-1].name)
    longest = max(len(os.fsencode(path)) for path in (lab.control, paths.admin_socket, paths.cni_socket, paths.notify))
    if longest > SOCKET_PATH_LIMIT:
        raise LabError(
            f"{lab.home}: too long by {longest - SOCKET_PATH_LIMIT} bytes: unix sockets lie below it, and their paths "
            f"have at most {SOCKET_PATH_LIMIT}; expected a shorter --run-dir (PODWIRE_LAB_DIR) or --name"
        )
    lab.home.parent.mkdir(parents=True, exist_ok=True)
    try:
        lab.home.mkdir(mode=0o755)
    except FileExistsError:
        raise LabError(f"lab {lab.name} exists ({lab.home}): `podwire lab down --name {lab.name}` ends it") from None


def fill(lab: Lab) -> None:
    """Raises OSError."""
    for directory in (lab.cluster, lab.staging, lab.resolver):
        directory.mkdir()
    for station in lab.stations:
        lab.node(station.name).home.mkdir(parents=True)
    (lab.home / "lab.json").write_bytes(msgspec.json.encode(lab, enc_hook=str))


def load(root: Path, name: str) -> Lab:
    """Raises LabError where there is none."""
    try:
        text = (root / name / "lab.json").read_bytes()
        return msgspec.json.decode(text, type=Lab, dec_hook=lambda kind, value: kind(value))
    except FileNotFoundError:
        known = ", ".join(names(root))
        raise LabError(f"there is no lab {name} that runs" + (f"; known: {known}" if known else "")) from None
    except msgspec.DecodeError:
        raise LabError(f"lab {name} was never finished: `podwire lab down --name {name}` removes it") from None


def names(root: Path) -> Iterator[str]:
    if root.is_dir():
        yield from sorted(entry.name for entry in root.iterdir() if entry.is_dir())
