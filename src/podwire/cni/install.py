"""Puts the CNI plugin where a container runtime executes it, and the configuration that makes it do so.

Invariants: a runtime may look at any moment, so each file appears whole (written aside, synced, renamed): the
executable after what it reads, and the configuration, by which a node counts as having a network, last. Nothing is
removed: a DEL comes also for the pods of an agent that is gone.
"""

import json
import os
import re
from pathlib import Path

from podwire.cni.errors import VERSIONS

PLUGIN = "podwire"
CONFLIST = "10-podwire.conflist"
"""Runtimes take the first file of the directory, by name."""
OLDEST_PYTHON = 11
"""The minor version that the plugin needs."""
_HERE = Path(__file__).parent


class NoPython(Exception):
    """The node has none that the plugin could run with; one line says where it was looked for."""


def install(
    directory: Path, socket: Path, spool: Path, ready: Path, interpreter: str = "/usr/bin/env -S python3"
) -> Path:
    """The plugin's path. `socket`, `spool` and `ready` (the mark that the agent was ready) are the agent's;
    `interpreter` is a Python (3.11 or later) as the runtime finds it; the full path of one is half a millisecond
    quicker at each call. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    plugin = directory / PLUGIN
    launcher = (_HERE / "launcher.py").read_text(encoding="utf-8").partition("\n")[2]
    _place(directory / f"{PLUGIN}.py", (_HERE / "shim.py").read_text(encoding="utf-8"), 0o644)
    _place(directory / f"{PLUGIN}.conf", f"socket={socket}\nspool={spool}\nready={ready}\n", 0o644)
    _place(plugin, f"#!{interpreter} -IS\n{launcher}", 0o755)
    return plugin


def configure(directory: Path) -> Path:
    """The configuration's path. Runtimes from libcni 1.2 on take the newest of `cniVersions`, older ones know
    `cniVersion` only, and would refuse an answer of version 1.1.0. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    conflist = directory / CONFLIST
    versions = {"cniVersion": "1.0.0", "cniVersions": list(VERSIONS)}
    _place(conflist, json.dumps({**versions, "name": PLUGIN, "plugins": [{"type": PLUGIN}]}, indent=2) + "\n", 0o644)
    return conflist


def find_python(programs: Path, seen_as: Path) -> str:
    """The newest Python of a directory, which the node knows as `seen_as`. Raises NoPython."""
    found = {}
    for entry in programs.iterdir() if programs.is_dir() else ():
        version = re.fullmatch(r"python3\.([0-9]+)", entry.name)
        if version is not None and int(version[1]) >= OLDEST_PYTHON:
            found[int(version[1])] = seen_as / entry.name
    if not found:
        raise NoPython(
            f"the CNI plugin needs Python 3.{OLDEST_PYTHON} or later on the node, and {seen_as} has none: "
            "install it there (on Debian and Ubuntu: apt-get install python3)"
        )
    return str(found[max(found)])


def _place(path: Path, text: str, mode: int) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        aside.unlink(missing_ok=True)
