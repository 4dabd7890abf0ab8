"""A lab's beginning and end.

Invariants: what can be known to be wrong is said before anything is made. An `up` that fails leaves nothing. `down`
needs nothing but the lab's name: it ends what was written down, then what still runs in the lab's namespaces, removes
those, and last the directory; a second one finds nothing to do.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from podwire.lab import layout, process, spaces, topology
from podwire.lab.daemon import Progress
from podwire.lab.expand import ManifestsError, expand
from podwire.lab.layout import Lab, LabError
from podwire.lab.system import SYSTEM
from podwire.lab.topology import MOST_LINKS, MOST_NODES
from podwire.lab.userfiles import read_directory


def check_root() -> None:
    """Raises LabError."""
    if os.geteuid() != 0:
        raise LabError("the lab makes network namespaces, which takes root: run it with sudo")
    if shutil.which("ip") is None:
        raise LabError("the lab needs the program `ip` (package iproute2)")


def check_name(name: str) -> None:
    """Raises LabError."""
    if not topology.LAB_NAME.fullmatch(name):
        raise LabError(f"{name!r}: expected a lab's name of at most 15 lower-case letters and digits, a letter first")


def up(
    root: Path,
    name: str,
    manifests: Path,
    nodes: int,
    say: Callable[[str], None],
    links: int = 1,
    transport: str = "auto",
) -> Lab:
    """Answers once packets flow. Raises LabError; then nothing is left of it."""
    check_root()
    check_name(name)
    if not 1 <= nodes <= MOST_NODES:
        raise LabError(f"expected from 1 to {MOST_NODES} nodes, not {nodes}")
    if not 1 <= links <= min(nodes, MOST_LINKS):
        raise LabError(f"expected from 1 to {min(nodes, MOST_LINKS)} links for so many nodes, not {links}")
    lab = Lab(name, root / name, manifests.resolve(), nodes, links, transport)
    if lab.by_bgp and links > 1:
        raise LabError("expected one link with transport bgp: nodes on others have no session with the router")
    try:
        expand(read_directory(lab.manifests), nodes, system=SYSTEM)
    except ManifestsError as error:
        raise LabError(str(error)) from None
    layout.claim(lab)
    try:
        layout.fill(lab)
        _run(lab, say)
    except BaseException:
        down(root, name)
        raise
    return lab


def _run(lab: Lab, say: Callable[[str], None]) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as lines, lab.log.open("ab") as log:
        try:
            subprocess.run(
                [sys.executable, "-m", "podwire.lab.daemon", str(lab.home.parent), lab.name, str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writing],
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise LabError(
                f"the lab's process does not start (status {error.returncode}): {process.last_words(lab.log)}"
            ) from None
        finally:
            os.close(writing)
        for line in lines:
            progress = msgspec.json.decode(line, type=Progress)
            if progress.ready:
                return
            if progress.failed:
                raise LabError(progress.failed)
            say(progress.text)
    raise LabError(f"the lab's process has ended: {process.last_words(lab.log)}")


def down(root: Path, name: str) -> bool:
    """Whether there was anything. Raises LabError where something can't be removed."""
    check_root()
    check_name(name)
    home = root / name
    with _alone(home) as first:
        found = spaces.spaces_of(name)
        if not first or not (home.is_dir() or found):
            return False
        started = process.recorded(layout.processes_of(home))
        # The supervisor first, so that it takes no end for news; then whoever else is still there.
        process.end(it for it in started if it.role == layout.SUPERVISOR)
        process.end(it for it in process.recorded(layout.processes_of(home)) if it.role != layout.SUPERVISOR)
        process.end(spaces.processes_in(found))
        try:
            asyncio.run(spaces.remove(spaces.spaces_of(name)))
            if home.is_dir():
                shutil.rmtree(home)
        except (process.ProgramError, OSError) as error:
            raise LabError(f"lab {name} is not all gone: {error}") from None
    return True


@contextmanager
def _alone(home: Path) -> Iterator[bool]:
    """One `down` at a time: an `up` that is cut short by one comes with its own. False: another has done it."""
    try:
        directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield os.fstat(directory).st_nlink > 0  # a removed directory has no link left
    finally:
        os.close(directory)
