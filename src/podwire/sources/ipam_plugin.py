"""Executes an IPAM plugin: a process of its own, with a deadline, and never more of its output than it may have.

Invariants: nothing here waits for a plugin but with a deadline, and the event loop goes on meanwhile. The plugin is the
leader of a group of processes; where it does not end in time, says too much, or nobody waits for it any more, the whole
group is killed, by an ID that can't be another's: the leader is reaped only after that. What the leader has said by its
end counts, whoever else keeps its output open. Where it runs is where the agent does: in the agent's mount namespace,
and in the node's network.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NamedTuple

from podwire.cni.delegation import Delegation, failure
from podwire.cni.errors import CniError, ErrorCode

MOST_SAID = 1 << 20
"""Bytes of its output, and of what it says beside it."""
SHOWN = 4096
"""Bytes of the latter that are told."""
LAST_SECONDS = 1.0
"""How long a killed plugin is waited for: one that the kernel does not let go ends when it ends."""
_PART = 65536
log = logging.getLogger(__name__)


class Ended(NamedTuple):
    """`code`: less than zero for a signal."""

    code: int
    stdout: bytes
    stderr: bytes


class TooMuch(Exception):
    """It says more than it may."""


async def ask(told: Delegation, command: str, seconds: float, stdin: bytes | None = None, **changed: str) -> bytes:
    """What a plugin prints for a command. `stdin` None: as the runtime gave it to us. Raises CniError."""
    name = told.plugin
    program = find(told)
    environment = {"PATH": os.environ.get("PATH", os.defpath)} | told.variables(command, **changed)
    try:
        ended = await execute(program, environment, told.stdin if stdin is None else stdin, seconds)
    except TimeoutError:
        text = f"IPAM plugin {name}: {command} did not end within {seconds:g} s, and was killed"
        raise CniError(ErrorCode.TRY_AGAIN_LATER, text) from None
    except TooMuch:
        text = f"IPAM plugin {name}: {command}: it printed more than {MOST_SAID >> 20} MiB, and was killed"
        raise CniError(ErrorCode.DECODING_FAILURE, text) from None
    except OSError as error:
        raise CniError(ErrorCode.IO_FAILURE, f"IPAM plugin {program} can't be executed: {error.strerror}") from None
    if ended.stderr:
        log.info("IPAM plugin %s: %s: %s", name, command, ended.stderr[:SHOWN].decode(errors="replace").strip())
    if ended.code:
        raise failure(name, ended.code, ended.stdout, ended.stderr[:SHOWN])
    return ended.stdout


def find(told: Delegation) -> Path:
    """The first of CNI_PATH, as the agent sees its directories. Raises CniError."""
    for directory in told.directories:
        path = Path(directory, told.plugin)
        if path.is_absolute() and path.is_file() and os.access(path, os.X_OK):
            return path
    where = ":".join(told.directories)
    raise CniError(
        ErrorCode.INVALID_ENVIRONMENT,
        f"CNI_PATH: expected a directory with the IPAM plugin {told.plugin}, as podwire's agent sees it; "
        + (f"there is none in {where}" if where else "it is empty"),
    )


def is_there(told: Delegation) -> bool:
    try:
        find(told)
    except CniError:
        return False
    return True


async def execute(program: Path, environment: Mapping[str, str], stdin: bytes, seconds: float) -> Ended:
    """Raises OSError where it can't be executed, TimeoutError, TooMuch."""
    with ExitStack() as held:
        told = held.enter_context(_content(stdin))
        process = _started(program, environment, told)
        said: dict[int, bytearray] = {}
        for file in filter(None, (process.stdout, process.stderr)):
            said[held.enter_context(file).fileno()] = bytearray()
            os.set_blocking(file.fileno(), False)
        leader = os.pidfd_open(process.pid)
        held.callback(os.close, leader)
        try:
            async with asyncio.timeout(seconds):
                await _until_end(leader, said)
            for number, heard in said.items():
                while _hear(number, heard):
                    pass
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            await _until_gone(leader)
            process.poll()
            raise
        return Ended(process.wait(), *map(bytes, said.values()))


def _started(program: Path, environment: Mapping[str, str], stdin: int) -> Popen[bytes]:
    """Raises OSError."""
    return Popen([program], stdin=stdin, stdout=PIPE, stderr=PIPE, env=environment, cwd="/", start_new_session=True)


@contextmanager
def _content(data: bytes) -> Iterator[int]:
    """A file that is read from its beginning: nobody has to write while the plugin reads."""
    file = os.memfd_create("stdin")
    try:
        with open(file, "wb", closefd=False) as out:
            out.write(data)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


async def _until_end(leader: int, said: Mapping[int, bytearray]) -> None:
    """Until the process has ended; what it says is heard meanwhile. Raises TooMuch."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def hear(number: int) -> None:
        try:
            if _hear(number, said[number]) == b"":
                loop.remove_reader(number)
        except TooMuch as error:
            loop.remove_reader(number)
            if not ended.done():
                ended.set_exception(error)

    for number in said:
        loop.add_reader(number, hear, number)
    loop.add_reader(leader, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        for number in (leader, *said):
            loop.remove_reader(number)


async def _until_gone(leader: int) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_SECONDS):
            await _until_end(leader, {})


def _hear(number: int, heard: bytearray) -> bytes | None:
    """The next part; b"" at its end, None where there is nothing now. Raises TooMuch."""
    try:
        part = os.read(number, _PART)
    except BlockingIOError:
        return None
    heard += part
    if len(heard) > MOST_SAID:
        raise TooMuch
    return part
