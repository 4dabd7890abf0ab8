"""An installation that is interrupted, repeated, made twice at a time or under the runtime's hands, or that meets files
of somebody else: there is always the older plugin or the newer one, and nothing of another's is touched."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.install import CONFLIST, PLUGIN, Foreign, Part, conflist_part, native_plugin, plugin_parts, put, take
from tests.unit.shims import KINDS, NATIVE, native

PODWIRE_CNI = Path(sys.executable).parent / "podwire-cni"
OLD, NEW = (Path("/old.sock"), Path("/old"), Path("/old/ready")), (Path("/new.sock"), Path("/new"), Path("/new/ready"))


def place(root: Path, kind: str, state: Sequence[Path]) -> None:
    built = native() if kind == NATIVE else None
    put([*plugin_parts(root / "bin", *state, sys.executable, built), conflist_part(root / "net.d")])


def version(root: Path) -> Any:
    environment = {"CNI_COMMAND": "VERSION", "PATH": os.environ["PATH"]}
    done = subprocess.run([root / "bin" / PLUGIN], env=environment, input=b"", capture_output=True, check=True)
    return json.loads(done.stdout)["supportedVersions"]


def held(root: Path) -> dict[str, bytes]:
    files = [*(root / "bin").glob("*"), *(root / "net.d").glob("*")]
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(files) if path.is_file()}


# Kills its own process at the n-th of what it does to files: opens, renames, removals.
KILLED = """
import os, signal, sys
from pathlib import Path
from podwire.cni import install
did, most, root = 0, int(sys.argv[1]), Path(sys.argv[2])
def watch(event, arguments):
    global did
    if event in ("open", "os.rename", "os.remove", "os.mkdir"):
        did += 1
        if did == most:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
if sys.argv[3] == "take":
    list(install.take(root / "bin", root / "net.d"))
else:
    state = (Path("/new.sock"), Path("/new"), Path("/new/ready"))
    built = Path(sys.argv[4]) if sys.argv[4] else None
    parts = install.plugin_parts(root / "bin", *state, sys.executable, built)
    install.put([*parts, install.conflist_part(root / "net.d")])
"""


def killed_at(most: int, root: Path, what: str, kind: str) -> bool:
    built = str(native()) if kind == NATIVE else ""
    code = subprocess.run([sys.executable, "-c", KILLED, str(most), root, what, built]).returncode
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize(
    "before", [None, *KINDS], ids=["on a new node", "over the one in Python", "over the native one"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_whenever_it_is_killed_there_is_the_older_plugin_or_the_newer(
    tmp_path: Path, kind: str, before: str | None
) -> None:
    place(tmp_path / "new", kind, NEW)
    old, new = {}, held(tmp_path / "new")
    for most in itertools.count(1):
        root = tmp_path / str(most)
        if before is not None:
            place(root, before, OLD)
            old = held(root)
        went_on = killed_at(most, root, "put", kind)
        now = {name: content for name, content in held(root).items() if not name.endswith(".new")}
        assert all(content in (old.get(name), new.get(name)) for name, content in now.items())
        if f"net.d/{CONFLIST}" in now:
            assert version(root), "where there is a configuration there is a plugin that works"
        if before is None and f"net.d/{CONFLIST}" in now:
            assert now == new
        place(root, kind, NEW)
        assert held(root) == old | new  # what only the older one had is left to the calls that are under way
        if not went_on:
            break
    assert most > 8, "it was killed at each of its steps"


def test_whenever_a_removal_is_killed_no_configuration_is_left_without_its_plugin(tmp_path: Path) -> None:
    for most in itertools.count(1):
        root = tmp_path / str(most)
        place(root, KINDS[0], OLD)
        version(root)
        went_on = killed_at(most, root, "take", KINDS[0])
        if (root / "net.d" / CONFLIST).exists():
            assert version(root)
        list(take(root / "bin", root / "net.d"))
        assert held(root) == {}
        if not went_on:
            break
    assert most > 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_plugin_works_at_any_moment_of_installations_beside_each_other(tmp_path: Path, kind: str) -> None:
    """Neither "text file busy" nor half a file, while each installation has another version in its hands."""
    others = ((OLD, sys.executable, ()), (NEW, os.path.realpath(sys.executable), ("-static", "-DANOTHER")))
    versions = [
        plugin_parts(tmp_path / "bin", *state, python, native(*flags) if kind == NATIVE else None)
        for state, python, flags in others
    ]
    assert versions[0][-1].content != versions[1][-1].content
    put(versions[0])
    over = threading.Event()

    def again(parts: list[Part]) -> None:
        while not over.is_set():
            put(parts)

    threads = [threading.Thread(target=again, args=(parts,)) for parts in versions]
    for thread in threads:
        thread.start()
    try:
        assert all(version(tmp_path) == ["0.4.0", "1.0.0", "1.1.0"] for _ in range(100))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not [name for name in os.listdir(tmp_path / "bin") if name.startswith(".")]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_already_is_not_written_again(tmp_path: Path, kind: str) -> None:
    place(tmp_path, kind, OLD)
    before = {path: path.stat() for path in (tmp_path / "bin" / PLUGIN, tmp_path / "net.d" / CONFLIST)}
    place(tmp_path, kind, OLD)
    assert all(path.stat().st_ino == it.st_ino for path, it in before.items())
    (tmp_path / "bin" / PLUGIN).chmod(0o644)
    place(tmp_path, kind, OLD)
    assert version(tmp_path), "a wrong mode is not right"


# --- files of somebody else --------------------------------------------------------------------

FOREIGN = [
    ("bin/podwire", b"#!/bin/sh\necho another\n"),
    ("bin/podwire", b"\x7fELF another"),
    ("bin/podwire.conf", b"[another]\nsocket=/x\n"),
    ("net.d/10-podwire.conflist", b'{"name": "x", "plugins": [{"type": "bridge"}]}'),
    ("net.d/10-podwire.conflist", b"no JSON"),
]


@pytest.mark.parametrize(("name", "content"), FOREIGN)
@pytest.mark.parametrize("kind", KINDS)
def test_another_s_file_is_neither_overwritten_nor_removed(
    tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(Foreign, match=rf"^{path}: this file is not Podwire's$"):
        place(tmp_path, kind, NEW)
    assert held(tmp_path) == {name: content}, "nothing else either"
    assert list(take(tmp_path / "bin", tmp_path / "net.d")) == [f"{path}: kept: this file is not Podwire's"]
    assert held(tmp_path) == {name: content}


@pytest.mark.parametrize("make", ["directory", "pipe", "link"])
def test_what_is_no_file_is_another_s(tmp_path: Path, make: str) -> None:
    path = tmp_path / "bin" / PLUGIN
    path.parent.mkdir()
    if make == "directory":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    with pytest.raises(Foreign, match=f"^{path}: "):
        place(tmp_path, KINDS[0], NEW)
    (line,) = take(tmp_path / "bin", tmp_path / "net.d")
    assert line.startswith(f"{path}: kept: ")
    assert os.path.lexists(path)


# --- the command -------------------------------------------------------------------------------


def command(*words: object) -> tuple[int, list[str], str]:
    done = subprocess.run([PODWIRE_CNI, *map(str, words)], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture
def options(tmp_path: Path) -> list[object]:
    config = tmp_path / "agent.toml"
    config.write_text(f'node_name = "one"\nstate_dir = "{tmp_path}/state"\n')
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "python3.11").touch()
    dirs = ["--bin-dir", tmp_path / "bin", "--conf-dir", tmp_path / "net.d"]
    return ["--config", config, "--programs", tmp_path / "programs", *dirs]


def test_the_command_says_what_became_of_each_file(tmp_path: Path, options: list[object]) -> None:
    code, lines, error = command("install", *options)
    assert (code, error) == (0, "")
    ending = "native" if native_plugin() is not None else "in Python, with /usr/bin/python3.11"
    assert lines[-1] == f"the plugin is {ending}"
    assert {line.rpartition(": ")[2] for line in lines[:-1]} == {"new"}
    _, lines, _ = command("install", *options)
    assert {line.rpartition(": ")[2] for line in lines[:-1]} == {"unchanged"}
    code, lines, _ = command("uninstall", *options[-4:])
    assert code == 0
    assert lines[0] == f"{tmp_path}/net.d/{CONFLIST}: removed"
    assert all(line.endswith(": removed") for line in lines)
    assert held(tmp_path) == {}
    assert command("uninstall", *options[-4:]) == (0, [], "")


def test_another_s_file_gives_way_where_that_is_asked_for(tmp_path: Path, options: list[object]) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / PLUGIN).write_text("another's")
    code, lines, error = command("install", *options)
    assert (code, lines) == (1, [])
    assert error.startswith(f"podwire-cni: {tmp_path}/bin/podwire: this file is not Podwire's; --replace-foreign ")
    assert error.count("\n") == 1
    code, lines, _ = command("install", *options, "--replace-foreign")
    assert code == 0
    assert f"{tmp_path}/bin/podwire: in the place of another one" in lines


def test_a_directory_that_can_not_be_written_is_named(tmp_path: Path, options: list[object]) -> None:
    (tmp_path / "net.d").touch()
    code, lines, error = command("install", *options)
    assert (code, lines) == (1, [])
    assert error.startswith(f"podwire-cni: {tmp_path}/net.d: ")
    assert command("uninstall", *options[-4:])[0] == 1
