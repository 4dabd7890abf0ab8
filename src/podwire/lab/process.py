"""Programs that a lab runs: started, written down, and ended by exactly what was written down.

Invariants: a process is known by its number and the moment it began, so that a number used again is never mistaken.
A record is written before anything else is done with the process. Nothing is ever looked for by its name.
"""

import asyncio
import os
import select
import signal
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import msgspec
from msgspec import Struct


class ProgramError(Exception):
    """A program that a lab needs failed; one line with what it said."""


class Process(Struct, frozen=True):
    """`born`: clock ticks after the machine's start (proc(5), stat, field 22). `role`: what it is for."""

    pid: int
    born: int
    role: str


async def run(*command: str, stdin: str = "", environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, output and errors. Raises ProgramError where the program can't be started."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    except OSError as error:
        raise ProgramError(f"{command[0]}: {error.strerror or error}") from None
    out, errors = await child.communicate(stdin.encode())
    assert child.returncode is not None
    return child.returncode, out.decode(errors="replace"), errors.decode(errors="replace")


async def ip_batch(lines: Sequence[str], space: str | None = None) -> None:
    """Lines of ip(8), in a named namespace or the machine's own, all in one process. Raises ProgramError."""
    if not lines:
        return
    inside = ("-n", space) if space else ()
    code, _, errors = await run("ip", *inside, "-batch", "-", stdin="".join(f"{line}\n" for line in lines))
    if code:
        raise ProgramError(f"ip {' '.join(inside)}: {' '.join(errors.split())}")


def record(file: Path, pid: int, role: str) -> Process | None:
    """Writes down a process just started; None where it has ended already."""
    found = identify(pid, role)
    if found is not None:
        with file.open("ab") as out:
            out.write(msgspec.json.encode(found) + b"\n")
    return found


def recorded(file: Path) -> list[Process]:
    """All that was written down; a last line cut short by a crash is left out."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Process) for line in lines]


def identify(pid: int, role: str) -> Process | None:
    """None where no such process runs; one that has ended and waits for its parent doesn't."""
    try:
        # The name in brackets may hold anything: fields are counted from the last bracket, which ends field 2.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]), role)


def runs(process: Process) -> bool:
    return identify(process.pid, process.role) == process


def end(processes: Iterable[Process], patience: float = 5.0) -> None:
    """Asks each to end (SIGTERM), and makes those that have not after `patience` seconds (SIGKILL)."""
    with ExitStack() as opened:
        waiting: dict[int, Process] = {}
        for process in processes:
            try:
                handle = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            opened.callback(os.close, handle)
            if runs(process):  # asked after the handle is held: it stands for this process and no later one
                waiting[handle] = process
        for how, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, patience)):
            for handle in waiting:
                _signal(handle, how)
            _await_ends(waiting, seconds)


def last_words(log: Path) -> str:
    """The last line that a program has written."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else f"{log} is empty"


def _signal(handle: int, how: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(handle, how)
    except ProcessLookupError:
        return  # it has ended in between, which is what was wanted


def _await_ends(waiting: dict[int, Process], seconds: float) -> None:
    """Takes out what has ended: a handle becomes readable then (pidfd_open(2))."""
    poll = select.poll()
    for handle in waiting:
        poll.register(handle, select.POLLIN)
    until = monotonic() + seconds
    while waiting and (left := until - monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            del waiting[handle]
