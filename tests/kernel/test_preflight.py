"""Where an agent can't run it says so in one line, that names what is missing and what to do."""

import os
import socket
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.process import PATIENCE, AgentProcess
from tests.kernel.rig import Space

RIGHTS = "run it as root; in Kubernetes: privileged, or with the capabilities NET_ADMIN and SYS_ADMIN"


def start(place: AgentProcess, *around: str) -> tuple[int, list[str]]:
    """Exit code and lines of an agent that can't start, run by way of another program."""
    command = [*around, str(Path(sysconfig.get_path("scripts"), "podwire")), "agent", "--config", str(place.config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return ended.returncode, ended.stderr.splitlines()


def without(capability: str) -> tuple[str, ...]:
    return "setpriv", "--inh-caps", f"-{capability}", "--bounding-set", f"-{capability}"


def mounted(line: str) -> tuple[str, ...]:
    """In a mount namespace of its own, after this line of shell."""
    return "unshare", "--mount", "sh", "-c", f'{line}; exec "$@"', "sh"


@pytest.mark.parametrize(
    ("around", "said"),
    [
        pytest.param(
            without("net_admin"),
            f"the right to change the network (CAP_NET_ADMIN) is missing: {RIGHTS}",
            id="no right to change the network",
        ),
        pytest.param(
            without("sys_admin"),
            f"the right to enter network namespaces (CAP_SYS_ADMIN) is missing: {RIGHTS}",
            id="no right to enter namespaces",
        ),
        pytest.param(
            mounted(
                'for it in $(ldconfig -p | sed -n "s/.*libnftables.so.1 .*=> //p"); do mount -B /dev/null $it; done'
            ),
            "libnftables.so.1 is not installed (Debian: libnftables1): ",
            id="no nft library",
        ),
        pytest.param(
            mounted('mkdir "{state}"; mount -t tmpfs -o ro none "{state}"'),
            "{state}/lock: Read-only file system: expected a file that root can write to, or nothing",
            id="a state directory that can't be written",
        ),
    ],
)
def test_what_the_machine_lacks(node: Space, tmp_path: Path, around: tuple[str, ...], said: str) -> None:
    place = AgentProcess(tmp_path)
    filled = [part.replace("{state}", str(place.state)) for part in around]
    code, lines = start(place, *filled)
    assert (code, len(lines)) == (1, 1), lines
    assert lines[0].startswith("podwire: " + said.replace("{state}", str(place.state)))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _endless(path: Path) -> None:
    path.symlink_to(path.name)


KINDS: dict[str, Callable[[Path], None]] = {
    "directory": Path.mkdir,
    "file": lambda path: path.write_bytes(b"x" * 5000) and None,
    "pipe": lambda path: os.mkfifo(path),
    "socket": _socket,
    "link to itself": _endless,
}
OWN = {
    "": "directory",
    "lock": "file",
    "podwire.db": "file",
    "cni.sock": "socket",
    "admin.sock": "socket",
    "spool": "directory",
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name or 'state_dir'}: {kind}")
        for name, own in OWN.items()
        for kind in KINDS
        if kind != own
    ],
)
def test_what_is_in_the_way(node: Space, tmp_path: Path, name: str, kind: str) -> None:
    place = AgentProcess(tmp_path)
    path = place.state / name
    path.parent.mkdir(exist_ok=True)
    KINDS[kind](path)
    code, lines = start(place)
    assert code == 1
    assert lines[-1].startswith("podwire: ")
    assert str(path) in lines[-1]
    assert not any(line.startswith("Traceback") for line in lines)
