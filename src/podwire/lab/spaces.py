"""The named network namespaces of a lab, and its wires.

Invariants: all of a lab is in namespaces whose names begin with its own prefix; the machine's own interfaces, addresses
and routes are never touched, since every wire is born with both ends in such namespaces. A lab's name has no dash, so
no prefix is another's beginning.
"""

import os
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from podwire.lab.process import Process, identify, ip_batch
from podwire.lab.topology import ROUTER, Station
from podwire.model.addresses import IPV6, show_address
from podwire.model.objects import PodKey

RUN = Path("/run/netns")
"""Where ip-netns(8) keeps names."""
LAB_NAME = re.compile(r"[a-z][a-z0-9]{0,14}")
_LONGEST = 200  # of the 255 bytes that a file name has

INTERFACE = "eth0"
_BRIDGE = "fabric"


def fabric_space(lab: str) -> str:
    return f"pw-{lab}-fabric"


def station_space(lab: str, name: str) -> str:
    """A node's or client's namespace."""
    return f"pw-{lab}-{name}"


def pod_space(lab: str, pod: PodKey) -> str:
    """A namespace's name has no dot, so the first one ends it. What is too long for a file name ends in a hash."""
    name = f"pw-{lab}-pod-{pod.namespace}.{pod.name}"
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{sha256(name.encode()).hexdigest()[:12]}"


def path_of(space: str) -> Path:
    return RUN / space


def spaces_of(lab: str) -> list[str]:
    """All namespaces of a lab that exist."""
    if not RUN.is_dir():
        return []
    return sorted(entry.name for entry in RUN.iterdir() if entry.name.startswith(f"pw-{lab}-"))


async def make(spaces: Iterable[str]) -> None:
    """Raises ProgramError."""
    await ip_batch([f"netns add {space}" for space in spaces])


async def remove(spaces: Iterable[str]) -> None:
    """Of names that exist. Raises ProgramError."""
    await ip_batch([f"netns del {space}" for space in spaces])


async def make_fabric(lab: str) -> None:
    """A bridge in a namespace of its own. Raises ProgramError."""
    space = fabric_space(lab)
    await make([space])
    await ip_batch(
        [
            "link set lo up",
            # Without snooping: a new wire would wait for the next query before it hears neighbour discovery.
            f"link add {_BRIDGE} type bridge forward_delay 0 mcast_snooping 0",
            *_addresses(ROUTER, _BRIDGE),
            f"link set {_BRIDGE} up",
        ],
        space,
    )


async def plug_in(lab: str, station: Station) -> None:
    """A namespace on the fabric, with its addresses and the fabric as default gateway. Raises ProgramError."""
    space = station_space(lab, station.name)
    await make([space])
    await ip_batch(
        [
            f"link add {station.name} type veth peer name {INTERFACE} netns {space}",
            f"link set {station.name} master {_BRIDGE} up",
        ],
        fabric_space(lab),
    )
    await ip_batch(
        [
            "link set lo up",
            *_addresses(station, INTERFACE),
            f"link set {INTERFACE} up",
            *(f"route add default via {show_address(gateway)}" for gateway in ROUTER.addresses),
        ],
        space,
    )


async def route_to(lab: str, client: Station, nodes: Iterable[Station]) -> None:
    """The pods' ranges by way of their nodes, as a router beside the cluster would know them. Raises ProgramError."""
    lines = [
        f"route add {block} via {show_address(gateway)}"
        for node in nodes
        for block, gateway in zip(node.pod_blocks, node.addresses, strict=True)
    ]
    await ip_batch(lines, station_space(lab, client.name))


async def set_wire(lab: str, station: Station, up: bool) -> None:
    """Pulls a station's cable, or puts it back. Raises ProgramError."""
    await ip_batch([f"link set {station.name} {'up' if up else 'down'}"], fabric_space(lab))


def processes_in(spaces: Iterable[str]) -> Iterator[Process]:
    """What runs in these namespaces, whoever has started it."""
    inodes = {(found.st_dev, found.st_ino) for found in map(_stat, map(path_of, spaces)) if found is not None}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            found = _stat(Path(f"/proc/{entry}/ns/net"))
            if found is not None and (found.st_dev, found.st_ino) in inodes:
                process = identify(int(entry), "program in a namespace of the lab")
                if process is not None:
                    yield process


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # gone in between, or a kernel thread without a namespace
        return None


def _addresses(station: Station, interface: str) -> list[str]:
    # nodad: nobody else is there, and an address under test can't be used for a second.
    return [
        f"address add {show_address(address)}/{prefix.length} dev {interface}"
        + (" nodad" if prefix.family == IPV6 else "")
        for prefix, address in station.networks
    ]
