"""The native plugin as it is built: a program that needs nothing of the node that runs it, for either architecture."""

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.shims import BUILD

MACHINES = {62: "x86_64", 183: "aarch64"}
LOADED_BY, DYNAMIC, STACK = 3, 2, 0x6474E551
EXECUTABLE = 1


class Program(NamedTuple):
    """An ELF file's machine, the types of its segments, and whether its stack is executable (elf(5))."""

    machine: str
    segments: frozenset[int]
    executable_stack: bool


def read(path: Path) -> Program:
    content = path.read_bytes()
    assert content[:6] == b"\x7fELF\2\1", "64 bits, the lowest byte first"
    machine = struct.unpack_from("<H", content, 18)[0]
    table, size, count = (*struct.unpack_from("<Q", content, 32), *struct.unpack_from("<HH", content, 54))
    heads = [struct.unpack_from("<II", content, table + at * size) for at in range(count)]
    stack = any(kind == STACK and flags & EXECUTABLE for kind, flags in heads)
    return Program(MACHINES[machine], frozenset(kind for kind, _ in heads), stack)


@pytest.mark.parametrize(("arch", "machine"), [("amd64", "x86_64"), ("arm64", "aarch64")])
def test_it_needs_no_library_of_the_node(tmp_path: Path, arch: str, machine: str) -> None:
    compiler = "gcc" if machine == os.uname().machine else f"{machine}-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is missing (scripts/setup shim {arch})")
    out = tmp_path / "podwire"
    subprocess.run([BUILD, "--arch", arch, "--out", out], check=True)
    program = read(out)
    assert program.machine == machine
    assert not program.segments & {LOADED_BY, DYNAMIC}
    assert not program.executable_stack
    assert os.listdir(tmp_path) == ["podwire"]
    if machine == os.uname().machine:
        runner = []
    else:
        emulator = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
        if emulator is None:
            return  # nothing here could run it
        runner = [emulator]
    ran = subprocess.run([*runner, out], env={"CNI_COMMAND": "VERSION"}, input=b"", capture_output=True, check=True)
    assert ran.stdout == b'{"cniVersion":"0.4.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}\n'


@pytest.mark.parametrize("words", [["--arch", "mips"], ["--arch", "arm64"]], ids=["unknown", "no compiler for it"])
def test_what_can_not_be_built_is_said_in_one_line(tmp_path: Path, words: list[str]) -> None:
    if os.uname().machine == "aarch64":
        words = [word.replace("arm64", "amd64") for word in words]
    for program in ("bash", "dirname", "readlink", "uname"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    ran = subprocess.run([BUILD, *words], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith(("[shim] unknown architecture mips", "[shim] missing: "))
    assert ran.stderr.count("\n") == 1
