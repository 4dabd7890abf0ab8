"""Puts the CNI plugin where a runtime executes it, and the configuration that makes it do so; takes both away.

Invariants: a runtime may look, or execute, at any moment, and an installation may end at any: each file appears whole
(written aside, synced, renamed, its directory synced), the executable after what it reads, and the configuration, by
which a node counts as having a network, last; the configuration goes first. What is written is as good with the older
files as with the newer ones beside it. A file that runs is replaced, never written into. Of several installations at a
time one waits for the other. What lies there by our name and is not ours is neither overwritten nor removed, unless
that is asked for. An agent that goes takes nothing away: a DEL comes also for its pods.
"""

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from podwire.cni.errors import VERSIONS

PLUGIN = "podwire"
CONFLIST = "10-podwire.conflist"
"""Runtimes take the first file of the directory, by name."""
CAPABILITIES = ("portMappings", "bandwidth", "ips", "mac", "dns")
"""What a runtime may ask for in `runtimeConfig` (CNI conventions)."""
OLDEST_PYTHON = 11
"""The minor version that the Python plugin needs."""
_HERE = Path(__file__).parent
_MARKS = (b"/podwire.v1.Cni/Call", b'SourceFileLoader("shim"')
"""In each version's executable or in what that loads: the call that it makes (cni.proto), and launcher.py."""


class NoPython(Exception):
    """The node has none that the plugin could run with; one line says where it was looked for."""


class Foreign(Exception):
    """A file by our name that is another's, or no file at all; one line."""


class Part(NamedTuple):
    path: Path
    content: bytes
    mode: int


class Placed(NamedTuple):
    """`became`: "new", "unchanged", or in whose place."""

    path: Path
    became: str


# --- what is installed -------------------------------------------------------------------------


def native_plugin() -> Path | None:
    """The native plugin for this machine, where it was built (`make shim`)."""
    path = _HERE / "native" / f"shim-{os.uname().machine}"
    return path if path.is_file() else None


def plugin_parts(
    directory: Path, socket: Path, spool: Path, ready: Path, interpreter: str, native: Path | None
) -> list[Part]:
    """In the order in which they appear: the executable last. Raises OSError."""
    lines = f"socket={socket}\nspool={spool}\nready={ready}\n"
    settings = Part(directory / f"{PLUGIN}.conf", os.fsencode(lines), 0o644)
    if native is not None:
        return [settings, Part(directory / PLUGIN, native.read_bytes(), 0o755)]
    launcher = (_HERE / "launcher.py").read_text(encoding="utf-8").partition("\n")[2]
    return [
        Part(directory / f"{PLUGIN}.py", (_HERE / "shim.py").read_bytes(), 0o644),
        settings,
        Part(directory / PLUGIN, f"#!{interpreter} -IS\n{launcher}".encode(), 0o755),
    ]


def conflist_part(directory: Path) -> Part:
    """Runtimes from libcni 1.2 on take the newest of `cniVersions`, older ones know `cniVersion` only, and would refuse
    an answer of version 1.1.0."""
    versions = {"cniVersion": "1.0.0", "cniVersions": list(VERSIONS)}
    plugin = {"type": PLUGIN, "capabilities": dict.fromkeys(CAPABILITIES, True)}
    text = json.dumps({**versions, "name": PLUGIN, "plugins": [plugin]}, indent=2) + "\n"
    return Part(directory / CONFLIST, text.encode(), 0o644)


def find_python(programs: Path, seen_as: Path) -> str:
    """The newest Python of a directory, which the node knows as `seen_as`. Raises NoPython."""
    found = {}
    for entry in programs.iterdir() if programs.is_dir() else ():
        version = re.fullmatch(r"python3\.([0-9]+)", entry.name)
        if version is not None and int(version[1]) >= OLDEST_PYTHON:
            found[int(version[1])] = seen_as / entry.name
    if not found:
        raise NoPython(
            f"this installation has no native CNI plugin for {os.uname().machine}; the other one needs "
            f"Python 3.{OLDEST_PYTHON} or later on the node, and {seen_as} has none: "
            "install it there (on Debian and Ubuntu: apt-get install python3)"
        )
    return str(found[max(found)])


# --- there and away ----------------------------------------------------------------------------


def install(
    directory: Path,
    socket: Path,
    spool: Path,
    ready: Path,
    interpreter: str = "/usr/bin/env -S python3",
    native: Path | None = None,
) -> Path:
    """The plugin's path: `native`, else the one in Python. `socket`, `spool` and `ready` (the mark that the agent was
    ready) are the agent's; `interpreter` is a Python (3.11 or later) as the runtime finds it; the full path of one is
    half a millisecond quicker at each call. Raises OSError, Foreign."""
    put(plugin_parts(directory, socket, spool, ready, interpreter, native))
    return directory / PLUGIN


def configure(directory: Path) -> Path:
    """The configuration's path. Raises OSError, Foreign."""
    put([conflist_part(directory)])
    return directory / CONFLIST


def put(parts: list[Part], replace_foreign: bool = False) -> list[Placed]:
    """In this order. Raises OSError, and Foreign before anything is touched."""
    for directory in {part.path.parent for part in parts}:
        directory.mkdir(parents=True, exist_ok=True)
    with locked({part.path.parent for part in parts}):
        found = [_found(part.path) for part in parts]
        for part, (content, foreign) in zip(parts, found, strict=True):
            if foreign and (content is None or not replace_foreign):
                raise Foreign(f"{part.path}: {foreign}")
        placed = []
        for part, (content, foreign) in zip(parts, found, strict=True):
            became = "new" if content is None else f"in the place of {'another' if foreign else 'an older'} one"
            if content == part.content and part.path.lstat().st_mode == stat.S_IFREG | part.mode:
                became = "unchanged"
            else:
                _place(part)
            placed.append(Placed(part.path, became))
        return placed


def take(bin_dir: Path, conf_dir: Path) -> Iterator[str]:
    """Takes the plugin off, the configuration first: a runtime that finds it without its plugin could start no pod. A
    line for each file. Raises OSError."""
    with locked({bin_dir, conf_dir}):
        for path in (conf_dir / CONFLIST, *(bin_dir / f"{PLUGIN}{end}" for end in ("", ".py", ".conf"))):
            _aside(path).unlink(missing_ok=True)
            content, foreign = _found(path)
            if foreign:
                yield f"{path}: kept: {foreign}"
            elif content is not None:
                path.unlink()
                _sync(path.parent)
                yield f"{path}: removed"
        cache = bin_dir / "__pycache__"
        for path in sorted(cache.glob(f"{PLUGIN}.cpython-*.pyc")):
            path.unlink()
        if cache.is_dir() and not any(cache.iterdir()):
            cache.rmdir()


@contextmanager
def locked(directories: set[Path]) -> Iterator[None]:
    """One installation at a time in each of these, as far as they are there. Raises OSError."""
    with ExitStack() as held:
        # By their numbers: one that has two names is locked once, and all come in the same order.
        there = {(it.stat().st_dev, it.stat().st_ino): it for it in directories if it.is_dir()}
        for _, directory in sorted(there.items()):
            file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _found(path: Path) -> tuple[bytes | None, str]:
    """What a file holds, None where it can't be read or is not there; and why it is not ours, "" where it is."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None, "this is no file, so it is not Podwire's"
        content = path.read_bytes()
    except FileNotFoundError:
        return None, "a link that leads nowhere is not Podwire's" if path.is_symlink() else ""
    return content, "" if _ours(path, content) else "this file is not Podwire's"


def _ours(path: Path, content: bytes) -> bool:
    """By what each version has written; an empty file is nobody's."""
    if path.name == CONFLIST:
        try:
            return not content or PLUGIN in [each["type"] for each in json.loads(content)["plugins"]]
        except (ValueError, KeyError, TypeError):
            return False
    if path.suffix == ".conf":
        names = {line.partition(b"=")[0].strip() for line in content.splitlines()}
        return not content or names >= {b"socket", b"spool"}
    return not content or any(mark in content for mark in _MARKS)


def _place(part: Part) -> None:
    aside = _aside(part.path)
    aside.unlink(missing_ok=True)  # of an installation that was interrupted
    try:
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, part.mode)
        with os.fdopen(file, "wb") as writing:
            os.fchmod(file, part.mode)
            writing.write(part.content)
            writing.flush()
            os.fsync(file)
        aside.rename(part.path)
    finally:
        aside.unlink(missing_ok=True)
    _sync(part.path.parent)


def _aside(path: Path) -> Path:
    """One for each file, since installations wait for each other. No runtime takes it for a configuration."""
    return path.with_name(f".{path.name}.new")


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
