"""Kernel settings as they are, and as files make them at boot.

Rules: sysctl.d(5): of files with one name that in /etc counts before /run, /usr/local/lib and /usr/lib; all are read in
the order of their names, and the last line for a key counts; /etc/sysctl.conf is read by procps last.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from podwire.dataplane.linux import sysctl
from podwire.doctor.facts import Assignment, InterfaceSettings, Settings
from podwire.doctor.findings import Unseen
from podwire.nodes.own import SYSCTLS

DIRECTORIES = tuple(map(Path, ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")))
LAST = Path("/etc/sysctl.conf")
_IPV4, _IPV6 = "net/ipv4/conf", "net/ipv6/conf"


def read(container: bool, directories: Iterable[Path] = DIRECTORIES, last: Path = LAST) -> Settings:
    names = {path.name for family in (_IPV4, _IPV6) for path in (sysctl.ROOT / family).glob("*")}
    return Settings(
        values={path: sysctl.read(path) for path in SYSCTLS},
        interfaces={name: _of_interface(name) for name in sorted(names)},
        tracked=_tracked(),
        boot=Unseen("the node's /etc/sysctl.d is not seen from this container")
        if container
        else boot(directories, last),
    )


def _of_interface(name: str) -> InterfaceSettings:
    return InterfaceSettings(
        forwarding=sysctl.read(f"{_IPV4}/{name}/forwarding"),
        rp_filter=sysctl.read(f"{_IPV4}/{name}/rp_filter"),
        accept_ra=sysctl.read(f"{_IPV6}/{name}/accept_ra"),
        disable_ipv6=sysctl.read(f"{_IPV6}/{name}/disable_ipv6"),
    )


def _tracked() -> tuple[int, int] | None:
    count, most = (sysctl.read(f"net/netfilter/nf_conntrack_{name}") for name in ("count", "max"))
    return (int(count), int(most)) if count is not None and most is not None else None


def boot(directories: Iterable[Path], last: Path) -> tuple[Assignment, ...] | Unseen:
    """The lines that are in force, by key. Both ways to write a key become the one with dots; a name of an interface
    that has dots keeps slashes in their stead."""
    files: dict[str, Path] = {}
    for directory in directories:
        for path in directory.glob("*.conf") if directory.is_dir() else ():
            files.setdefault(path.name, path)
    found: dict[str, Assignment] = {}
    for path in (*(files[name] for name in sorted(files)), last):
        try:
            text = path.read_text(errors="replace") if path.exists() else ""
        except OSError as error:
            return Unseen(f"{path}: {error.strerror}")
        for key, value in assignments(text):
            found.pop(key, None)  # the order is that of the lines in force
            found[key] = Assignment(str(path), key, value)
    return tuple(found.values())


def assignments(text: str) -> list[tuple[str, str]]:
    found = []
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        name = name.strip().removeprefix("-").strip()
        if equals and name and not name.startswith(("#", ";")):
            first = re.search(r"[./]", name)
            dotted = name.translate(str.maketrans("./", "/.")) if first is not None and first[0] == "/" else name
            found.append((dotted, " ".join(value.split())))
    return found
