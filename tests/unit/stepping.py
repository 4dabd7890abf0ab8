"""A program that is killed at a chosen one of its system calls: ptrace(2) stops it before and after each.

Invariants: the same program with the same input stops at the same places, so every moment of it can be tried. It is
begun by a process of its own: this one's may have threads, which fork(2) disturbs.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_TRACESYSGOOD, _EXITKILL = 1, 0x100000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class Stepped(NamedTuple):
    """`stops`: how often it was stopped. `code`: None where it was killed."""

    stops: int
    code: int | None


def run(command: Sequence[str | Path], environment: Mapping[str, str], stdin: Path, most: int | None = None) -> Stepped:
    """Killed after `most` stops, or run to its end."""
    words = [sys.executable, "-I", __file__, "" if most is None else str(most), *map(str, command)]
    with stdin.open("rb") as file:
        done = subprocess.run(words, env=environment, stdin=file, check=True, capture_output=True, text=True)
    stops, code = done.stdout.split()
    return Stepped(int(stops), None if code == "None" else int(code))


def _step(command: Sequence[str], most: int | None) -> Stepped:
    """Raises OSError."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=lambda: _ptrace(_TRACEME, 0))
    _, status = os.waitpid(process.pid, 0)  # its execve(2)
    _ptrace(_SETOPTIONS, process.pid, _TRACESYSGOOD | _EXITKILL)
    stops = 0
    while os.WIFSTOPPED(status):
        if stops == most:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            process.returncode = -signal.SIGKILL
            return Stepped(stops, None)
        passed_on = 0 if os.WSTOPSIG(status) & 0x7F == signal.SIGTRAP else os.WSTOPSIG(status)
        _ptrace(_SYSCALL, process.pid, passed_on)
        _, status = os.waitpid(process.pid, 0)
        stops += 1
    process.returncode = os.waitstatus_to_exitcode(status)
    return Stepped(stops, process.returncode)


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, data):
        raise OSError(ctypes.get_errno(), "ptrace")


if __name__ == "__main__":
    print(*_step(sys.argv[2:], int(sys.argv[1]) if sys.argv[1] else None))
