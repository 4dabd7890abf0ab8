"""The named network namespaces of a lab, and its wires.

Invariants: all of a lab is in namespaces whose names begin with its own prefix; the machine's own interfaces, addresses
and routes are never touched, since every wire is born with both ends in such namespaces. A lab's name has no dash, so
no prefix is another's beginning.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from podwire.dataplane.linux import sysctl
from podwire.dataplane.netlink import inside
from podwire.lab.process import Process, identify, ip_batch
from podwire.lab.topology import BEHIND, RUN, Station, fabric_space, path_of, router, station_space
from podwire.model.addresses import IPV6, show_address
from podwire.preflight import lock_of

INTERFACE = "eth0"
_ROUTING = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/rp_filter": "0",  # pods' answers to clients on another link pass it, and it knows no way back
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/fib_multipath_hash_policy": "1",  # by connection, so that every node gets some
    "net/ipv6/fib_multipath_hash_policy": "1",
    "net/ipv4/icmp_ratelimit": "0",  # whoever asks for what nobody has is told at once, each time
    "net/ipv6/icmp/ratelimit": "0",
}
"""Of a fabric that routes."""


def spaces_of(lab: str) -> list[str]:
    """All namespaces of a lab that exist."""
    if not RUN.is_dir():
        return []
    return sorted(entry.name for entry in RUN.iterdir() if entry.name.startswith(f"pw-{lab}-"))


async def make(spaces: Iterable[str]) -> None:
    """Raises ProgramError."""
    await ip_batch([f"netns add {space}" for space in spaces])


async def remove(spaces: Collection[str]) -> None:
    """Of names that exist. Raises ProgramError."""
    for space in spaces:
        with suppress(FileNotFoundError):
            lock_of(path_of(space)).unlink()  # a killed agent's
    await ip_batch([f"netns del {space}" for space in spaces])


async def make_fabric(lab: str, links: int, routes: bool) -> None:
    """A bridge for each link in a namespace of its own, which routes between them; a single one where it `routes`, too.
    Raises ProgramError or OSError."""
    space = fabric_space(lab)
    await make([space])
    if links > 1 or routes:
        _let_route(space)
    await ip_batch(["link set lo up"], space)
    for link in range(links):
        await _make_link(space, link)


async def make_behind(lab: str) -> None:
    """The link behind the router. Raises ProgramError or OSError."""
    space = fabric_space(lab)
    _let_route(space)
    await _make_link(space, BEHIND)


def _let_route(space: str) -> None:
    with path_of(space).open("rb") as there, inside(there.fileno()):
        for path, value in _ROUTING.items():
            sysctl.write(path, value)


async def _make_link(space: str, link: int) -> None:
    await ip_batch(
        [
            # Without snooping: a new wire would wait for the next query before it hears neighbour discovery.
            f"link add {_bridge(link)} type bridge forward_delay 0 mcast_snooping 0",
            *_addresses(router(link), _bridge(link)),
        ],
        space,
    )
    _trust(space, _bridge(link))
    await ip_batch([f"link set {_bridge(link)} up"], space)


def _trust(space: str, interface: str) -> None:
    """Its link-local address is its own from the start. Until the kernel knows that nobody else has it, a second or two
    later, it asks for no neighbour on behalf of what it forwards. Raises OSError."""
    with path_of(space).open("rb") as there, inside(there.fileno()):
        sysctl.write(f"net/ipv6/conf/{interface}/accept_dad", "0")


def _bridge(link: int) -> str:
    return f"fabric{link}" if link else "fabric"


async def plug_in(lab: str, station: Station) -> None:
    """A namespace on the fabric, with its addresses and the fabric as default gateway. Raises ProgramError or
    OSError."""
    space = station_space(lab, station.name)
    await make([space])
    await ip_batch(
        [
            f"link add {station.name} type veth peer name {INTERFACE} netns {space}",
            f"link set {station.name} master {_bridge(station.link)} up",
        ],
        fabric_space(lab),
    )
    _trust(space, INTERFACE)
    await ip_batch(
        [
            "link set lo up",
            *_addresses(station, INTERFACE),
            f"link set {INTERFACE} up",
            *(f"route add default via {show_address(gateway)}" for gateway in router(station.link).addresses),
        ],
        space,
    )


async def route(lab: str, client: Station, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """From some routes, destination → gateway, to others. Raises ProgramError."""
    gone = [f"route del {destination}" for destination in before.keys() - after.keys()]
    new = [f"route replace {to} via {gateway}" for to, gateway in after.items() if before.get(to) != gateway]
    await ip_batch([*gone, *new], station_space(lab, client.name))


async def add_addresses(lab: str, station: Station) -> None:
    """Beside those that it has, which may then go without these. Raises ProgramError or OSError."""
    with path_of(station_space(lab, station.name)).open("rb") as space, inside(space.fileno()):
        # Else an interface's further IPv4 addresses go with its first one.
        sysctl.write(f"net/ipv4/conf/{INTERFACE}/promote_secondaries", "1")
    await ip_batch(_addresses(station, INTERFACE), station_space(lab, station.name))


async def remove_addresses(lab: str, station: Station) -> None:
    """Raises ProgramError."""
    lines = [f"address del {show_address(it)}/{prefix.length} dev {INTERFACE}" for prefix, it in station.networks]
    await ip_batch(lines, station_space(lab, station.name))


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
