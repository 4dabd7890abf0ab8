"""The lab's process: started by `up`, it serves until it is told to end.

Invariants: it writes itself down before anything else. It tells `up` how it goes through a pipe, and then is on its
own: no terminal, no parent. Its end is not the end of the lab: that is `down`, which knows all from the record.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from watchfiles import awatch

from podwire.lab import control
from podwire.lab.expand import ManifestsError
from podwire.lab.layout import SUPERVISOR, Lab, load
from podwire.lab.process import ProgramError, record
from podwire.lab.supervisor import Supervisor
from podwire.lab.userfiles import signature

log = logging.getLogger(__name__)

QUIET_MS, LONGEST_MS = 20, 500
"""Changes of files are grouped until none came for the first, at most for the second."""
LOOK_MS = 5000
"""So often the manifests are looked at in any case: some file systems tell nothing."""


class Progress(Struct, frozen=True):
    """A line of the pipe to `up`. `failed` "": it goes well; `ready`: it is done."""

    text: str = ""
    ready: bool = False
    failed: str = ""


async def serve(lab: Lab, tell: Callable[[Progress], None]) -> int:
    """Until SIGTERM or SIGINT. The exit status."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    def say(text: str) -> None:
        log.info("%s", text)
        tell(Progress(text))

    supervisor = Supervisor(lab, say)
    starting = asyncio.create_task(supervisor.start())
    watching = asyncio.create_task(_watch(supervisor))  # from the start: what changes meanwhile waits for its turn
    ending = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({starting, watching, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() or watching.done():
            return _end(watching)
        starting.result()
        async with _answering(supervisor):
            tell(Progress(ready=True))
            await asyncio.wait({watching, ending}, return_when=asyncio.FIRST_COMPLETED)
            return _end(watching)
    except (ManifestsError, ProgramError, OSError) as error:
        log.error("%s", error)
        tell(Progress(failed=str(error)))
        return 1
    finally:
        for task in (starting, watching, ending):
            task.cancel()
        await asyncio.wait({starting, watching, ending})


def _end(watching: asyncio.Task[None]) -> int:
    """The exit status. A watch that has ended is a defect: its traceback is the log's last words."""
    if watching.done():
        watching.result()
    log.info("told to end")
    return 0


@contextlib.asynccontextmanager
async def _answering(supervisor: Supervisor) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            try:
                reply = await supervisor.answer(control.decode(line))
            except msgspec.DecodeError as error:
                reply = control.Reply(error=f"not understood: {error}")
            except Exception as error:  # a defect; the asker and the log both hear of it
                log.exception("%s", line)
                reply = control.Reply(error=f"{type(error).__name__}: {error}")
            writer.write(msgspec.json.encode(reply) + b"\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, supervisor.lab.control)
    try:
        yield
    finally:
        server.close()


async def _watch(supervisor: Supervisor) -> None:
    changes = awatch(
        supervisor.lab.manifests,
        debounce=LONGEST_MS,
        step=QUIET_MS,
        rust_timeout=LOOK_MS,
        yield_on_timeout=True,
    )
    seen = None  # what changed before the watch began is found at the first look
    async for told in changes:
        before, seen = seen, await asyncio.to_thread(signature, supervisor.lab.manifests)
        if not told and seen == before:
            continue
        try:
            await supervisor.reread()
        except OSError as error:  # the lab's own files can't be written; the next look tries again
            log.error("%s", error)


def main(root: str, name: str, pipe: str) -> int:
    if os.fork():
        return 0
    os.setsid()
    os.chdir("/")
    lab = load(Path(root), name)
    record(lab.processes, os.getpid(), SUPERVISOR)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    out = os.fdopen(int(pipe), "wb", buffering=0)

    def tell(progress: Progress) -> None:
        if not out.closed:
            with contextlib.suppress(BrokenPipeError):  # whoever ran `up` has gone
                out.write(msgspec.json.encode(progress) + b"\n")
            if progress.ready or progress.failed:
                out.close()

    return asyncio.run(serve(lab, tell))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
