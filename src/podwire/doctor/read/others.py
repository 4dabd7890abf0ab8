"""Who else works in this network namespace: programs, kube-proxy's health port, IPVS, BPF programs."""

import http.client
import json
import os
import re
from pathlib import Path

from podwire.doctor.facts import Others
from podwire.doctor.findings import Unseen
from podwire.doctor.read import bpf

HEALTH_PORT = 10256
"""kube-proxy's --healthz-bind-address."""
_SECONDS = 2.0
_NETWORKD = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")


def read(container: bool) -> Others:
    return Others(
        processes=_processes(container),
        health=_health(),
        ipvs=_ipvs(),
        programs=bpf.read(),
        keeps_routes=None if container else keeps_foreign_routes(tuple(map(Path, _NETWORKD))),
    )


def _processes(container: bool) -> frozenset[str] | Unseen:
    if container:
        return Unseen("the node's processes are not seen from this container")
    if os.geteuid() != 0:
        return Unseen("other users' processes are for root to see")
    here = os.readlink("/proc/thread-self/ns/net")
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns/net") == here:
                    found.add((entry / "comm").read_text().strip())
            except OSError:  # it has ended meanwhile
                continue
    return frozenset(found)


def _health() -> str:
    connection = http.client.HTTPConnection("127.0.0.1", HEALTH_PORT, timeout=_SECONDS)
    place = f"http://127.0.0.1:{HEALTH_PORT}/healthz"
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        body = answer.read(10_000)
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    if answer.getheader("Server", "").startswith("podwire/"):  # an agent's healthz_listen
        return ""
    try:
        told = json.loads(body)
        return f"{place} (last updated {told['lastUpdated']})"
    except (ValueError, KeyError, TypeError):
        return place


def _ipvs() -> int:
    """Virtual servers."""
    try:
        text = Path("/proc/thread-self/net/ip_vs").read_text()
    except OSError:
        return 0
    return sum(line.startswith(("TCP ", "UDP ", "SCTP ", "FWM ")) for line in text.splitlines())


def keeps_foreign_routes(directories: tuple[Path, ...]) -> bool | None:
    """ManageForeignRoutes of networkd.conf(5), the other way round; the last line that is read counts."""
    files: dict[str, Path] = {}
    for directory in directories:
        for path in sorted(directory.glob("networkd.conf.d/*.conf")):
            files.setdefault(path.name, path)
    main = next((path for directory in directories if (path := directory / "networkd.conf").is_file()), None)
    found: bool | None = None
    for path in (*([main] if main is not None else ()), *(files[name] for name in sorted(files))):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        for value in re.findall(r"^\s*ManageForeignRoutes\s*=\s*(\S*)", text, re.MULTILINE):
            found = value.lower() in ("no", "false", "off", "0", "n", "f")
    return found
