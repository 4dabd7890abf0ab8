"""The tutorial's commands do what it says: all of them, in order, in one shell.

Invariants: a command is a line of a `console` block that begins with `$ `; it exits with 0, or with what its comment
says. The lab is one of this test's own.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.labs import directory

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^\$ (.*)$", (ROOT / "docs/tutorial.md").read_text(), re.MULTILINE)
NAME = f"tut{os.getpid()}"
PATIENCE = 300.0
"""Seconds for all of it: a limit against hanging, never a measure."""


def expected(command: str) -> int:
    told = re.search(r"# exit code (\d+)$", command)
    return int(told[1]) if told else 0


@pytest.fixture
def place() -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory that looks like the checkout, and the environment of a shell in it."""
    with directory() as found:
        for name in ("examples", ".venv"):
            (found / name).symlink_to(ROOT / name)
        environment = os.environ | {"PODWIRE_LAB": NAME, "PODWIRE_LAB_DIR": str(found / "labs")}
        yield found, environment
        subprocess.run([ROOT / ".venv/bin/podwire", "lab", "down"], env=environment, check=True)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: the tutorial asks the pods with it")
def test_every_command_of_the_tutorial(place: tuple[Path, dict[str, str]]) -> None:
    shell_directory, environment = place
    state = f"{shell_directory}/labs/{NAME}/"
    lines = [command.replace("/run/podwire-lab/lab/", state) for command in COMMANDS]
    script = "\n".join(f'{line}\necho "== $?"' for line in lines)
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=shell_directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    codes = [int(code) for code in re.findall(r"^== (\d+)$", printed, re.MULTILINE)]
    wrong = [line for line, code in zip(lines, codes, strict=True) if code != expected(line)]
    assert wrong == [], printed
