"""Labs for tests: where they keep their files, their commands, and what must be right in every one."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podwire.lab import control, lifecycle
from podwire.lab.layout import Lab
from podwire.lab.paths import questions
from podwire.lab.probe import put
from podwire.lab.questions import judge, names_of
from podwire.lab.views import LabView

EXAMPLES = Path(__file__).parents[2] / "examples"
PODWIRE = str(Path(sysconfig.get_path("scripts"), "podwire"))


@contextmanager
def directory() -> Iterator[Path]:
    """Of labs, by a short path: unix sockets lie below it."""
    found = Path(tempfile.mkdtemp(prefix="pwlab-", dir="/run"))
    found.chmod(0o755)  # FRR has a user of its own
    try:
        yield found
    finally:
        shutil.rmtree(found)


@contextmanager
def lab(root: Path, name: str, manifests: Path, nodes: int, links: int = 1, transport: str = "auto") -> Iterator[Lab]:
    try:
        yield lifecycle.up(root, name, manifests, nodes, print, links, transport)
    finally:
        lifecycle.down(root, name)


def seen(lab: Lab) -> LabView:
    """With nothing wrong."""
    found = control.view(lab)
    assert (found.problems, [it.problem for it in found.pods if it.problem]) == ((), [])
    return found


def podwire(root: Path, name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command of the lab."""
    return subprocess.run([PODWIRE, "lab", *arguments], capture_output=True, text=True, env=environment(root, name))


def environment(root: Path, name: str) -> dict[str, str]:
    return {**os.environ, "PODWIRE_LAB": name, "PODWIRE_LAB_DIR": str(root)}


def all_right(seen: LabView) -> None:
    names = names_of(seen.nodes)
    for question in questions(seen):
        row = judge(question, list(put(question)), names)
        assert row.right, row


def backends(seen: LabView, name: str) -> tuple[str, ...]:
    return next(it.backends for it in seen.services if it.name == name)
