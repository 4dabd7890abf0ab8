"""What an installation puts on a node: the plugin, then its configuration, and which Python the plugin runs with."""

import json
import os
import stat
from pathlib import Path

import pytest

from podwire.cni.install import NoPython, configure, find_python, install

STATE = (Path("/state/cni.sock"), Path("/state/spool"), Path("/state/ready"))


@pytest.mark.parametrize(
    ("programs", "found"),
    [
        pytest.param(["python3.11"], "/usr/bin/python3.11", id="the oldest that will do"),
        pytest.param(["python3.9", "python3.13", "python3.12"], "/usr/bin/python3.13", id="the newest of several"),
        pytest.param(["python3.12", "python3.12-config", "python3"], "/usr/bin/python3.12", id="other names"),
    ],
)
def test_the_node_s_own_python(tmp_path: Path, programs: list[str], found: str) -> None:
    for name in programs:
        (tmp_path / name).touch()
    assert find_python(tmp_path, Path("/usr/bin")) == found


@pytest.mark.parametrize("programs", [[], ["python3.10"], ["python2.7", "python"]], ids=lambda names: str(names))
def test_a_node_without_one_is_told(tmp_path: Path, programs: list[str]) -> None:
    for name in programs:
        (tmp_path / name).touch()
    with pytest.raises(
        NoPython,
        match=r"^this installation has no native CNI plugin .* Python 3\.11 .*, and /usr/bin has none",
    ):
        find_python(tmp_path, Path("/usr/bin"))


def test_no_directory_is_no_python(tmp_path: Path) -> None:
    with pytest.raises(NoPython):
        find_python(tmp_path / "absent", Path("/usr/bin"))


def test_files_appear_whole_and_the_configuration_is_for_old_and_new_runtimes(tmp_path: Path) -> None:
    plugin = install(tmp_path / "bin", *STATE, "/usr/bin/python3.11")
    conflist = configure(tmp_path / "net.d")
    assert sorted(os.listdir(tmp_path / "bin")) == ["podwire", "podwire.conf", "podwire.py"]
    assert os.listdir(tmp_path / "net.d") == ["10-podwire.conflist"]
    assert plugin.read_text().startswith("#!/usr/bin/python3.11 -IS\n")
    assert stat.S_IMODE(plugin.stat().st_mode) == 0o755
    assert (
        tmp_path / "bin" / "podwire.conf"
    ).read_text() == "socket=/state/cni.sock\nspool=/state/spool\nready=/state/ready\n"
    assert json.loads(conflist.read_text()) == {
        "cniVersion": "1.0.0",
        "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
        "name": "podwire",
        "plugins": [
            {"type": "podwire", "capabilities": dict.fromkeys(("portMappings", "bandwidth", "ips", "mac", "dns"), True)}
        ],
    }


def test_again_over_what_is_there(tmp_path: Path) -> None:
    for interpreter in ("/usr/bin/python3.11", "/usr/bin/python3.12"):
        plugin = install(tmp_path, *STATE, interpreter)
        configure(tmp_path)
    assert plugin.read_text().startswith("#!/usr/bin/python3.12 -IS\n")
    assert len(os.listdir(tmp_path)) == 4
