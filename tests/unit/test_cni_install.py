"""The plugin as it is installed: whole at any moment, and found through links."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.install import Foreign, install


def version(plugin: Path) -> Any:
    """Needs no agent."""
    environment = {"CNI_COMMAND": "VERSION", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run = subprocess.run([plugin], env=environment, input=b'{"cniVersion":"1.0.0"}', check=True, capture_output=True)
    assert run.stderr == b""
    return json.loads(run.stdout)


def files(directory: Path) -> dict[str, int]:
    """Their modes."""
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir() if path.is_file()}


INSTALLED = {"podwire": 0o755, "podwire.conf": 0o644, "podwire.py": 0o644}


@pytest.mark.parametrize("interpreter", [{}, {"interpreter": sys.executable}], ids=["first python3", "by its path"])
def test_an_installed_plugin_runs(tmp_path: Path, interpreter: dict[str, str]) -> None:
    plugin = install(tmp_path / "bin", Path("/s/cni.sock"), Path("/s/spool"), Path("/s/ready"), **interpreter)
    for _ in range(2):  # compiled anew, then from the cache
        assert version(plugin)["cniVersion"] == "1.0.0"
    assert files(plugin.parent) == INSTALLED
    assert (plugin.parent / "podwire.conf").read_text() == "socket=/s/cni.sock\nspool=/s/spool\nready=/s/ready\n"
    assert len(list((plugin.parent / "__pycache__").iterdir())) == 1


def test_a_newer_one_takes_the_place_of_an_older(tmp_path: Path) -> None:
    plugin = install(tmp_path, Path("/old.sock"), Path("/old"), Path("/old/ready"))
    with (tmp_path / "podwire.py").open("a") as older:
        older.write("raise SystemExit(3)\n")
    install(tmp_path, Path("/new.sock"), Path("/new"), Path("/new/ready"))
    assert version(plugin)["cniVersion"] == "1.0.0"
    assert files(tmp_path) == INSTALLED
    assert (tmp_path / "podwire.conf").read_text() == "socket=/new.sock\nspool=/new\nready=/new/ready\n"


@pytest.mark.parametrize("target", ["{real}/podwire", "../real/podwire", "second"])
def test_a_link_leads_to_it(tmp_path: Path, target: str) -> None:
    install(tmp_path / "real", Path("/s/cni.sock"), Path("/s/spool"), Path("/s/ready"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "second").symlink_to("../real/podwire")
    (tmp_path / "bin" / "podwire").symlink_to(target.format(real=tmp_path / "real"))
    assert version(tmp_path / "bin" / "podwire")["cniVersion"] == "1.0.0"


def test_nothing_is_left_of_an_install_that_fails(tmp_path: Path) -> None:
    (tmp_path / "podwire.conf").mkdir()
    with pytest.raises(Foreign, match=r"podwire\.conf: this is no file"):
        install(tmp_path, Path("/s/cni.sock"), Path("/s/spool"), Path("/s/ready"))
    assert files(tmp_path) == {}
