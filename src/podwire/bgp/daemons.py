"""FRR's daemons as children, beside whatever other FRR this machine has: all that is theirs is in one directory.

Invariants: they work in the network namespace that they are started from. zebra comes first and goes last, since the
others are its clients. One that ends is started again, later each time. All end with `run`, by their numbers; those of
a supervisor that was killed are ended before others take their place. When bgpd is told to end it says goodbye to its
routers, which send their packets elsewhere at once; when it is killed, they wait for its return (graceful restart).
"""

import asyncio
import grp
import logging
import os
import pwd
import signal
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from podwire.bgp import files
from podwire.bgp.ours import DAEMONS, ROUTER
from podwire.bgp.tree import EMPTY, parse
from podwire.bgp.vty import Gone, Vty
from podwire.config import BOOT_ID, BOOT_ID_FILE, aside_of

log = logging.getLogger(__name__)

PROGRAMS = Path("/usr/lib/frr")
USER, VTY_GROUP = "frr", "frrvty"
BGP_PORT = 179
RETAIN_SECONDS = 120
"""For so long zebra leaves in the kernel what an earlier one has learnt, and nobody has told it again."""
AGAIN_SECONDS = (0.2, 1.0, 5.0)
"""Before each start in a row; the last one repeats. Routers wait for bgpd's return, and not for long."""
SETTLED_SECONDS = 60.0
START_SECONDS = END_SECONDS = 10.0
FAREWELL_SECONDS = 2.0


class CannotStart(Exception):
    """What the machine lacks, in one line."""


class Daemons:
    """`port`: where bgpd listens, 0: nowhere. `output`: where they log; None: with this process. `inside`: a command
    that executes what follows it, in another network namespace. Raises OSError."""

    def __init__(
        self,
        directory: Path,
        programs: Path = PROGRAMS,
        port: int = BGP_PORT,
        output: IO[bytes] | None = None,
        inside: Sequence[str] = (),
        boot_id: Path = BOOT_ID,
    ) -> None:
        self._boot = boot_id.read_text(encoding="ascii").strip()
        self.directory, self._programs, self._port, self._output = directory, programs, port, output
        self._inside = inside
        self.processes: dict[str, int] = {}
        """By daemon, as long as it runs."""
        self.started: dict[str, asyncio.Event] = {name: asyncio.Event() for name in DAEMONS}
        """By daemon: it answers."""

    async def run(self) -> None:
        """Until it is cancelled. Raises CannotStart."""
        self._prepare()
        for name in reversed(DAEMONS):
            await _end_earlier(self.directory, name)
        tasks: list[asyncio.Task[None]] = []
        try:
            for name in DAEMONS:
                tasks.append(asyncio.create_task(self._keep(name), name=name))
                await self.started[name].wait()
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:  # none does, but by an error of ours
                task.result()
        finally:
            for task in reversed(tasks):
                task.cancel()
                await asyncio.wait([task])

    def _prepare(self) -> None:
        try:
            user = pwd.getpwnam(USER)
            grp.getgrnam(VTY_GROUP)
        except KeyError as error:
            raise CannotStart(
                f"FRR's user is missing ({error.args[0]}): install FRR as your distribution has it"
            ) from None
        for name in DAEMONS:
            if not os.access(self._programs / name, os.X_OK):
                raise CannotStart(f"{self._programs / name} is missing: install FRR (Debian's package frr)")
        self.directory.mkdir(parents=True, exist_ok=True)
        os.chown(self.directory, user.pw_uid, user.pw_gid)
        self.directory.chmod(0o770)
        for above in self.directory.absolute().parents:
            if not above.stat().st_mode & stat.S_IXOTH:
                raise CannotStart(f"FRR's user can't reach {self.directory}: {above} is closed (expected o+x)")
        for name in DAEMONS:
            path = files.path_of(self.directory, name)
            if not path.exists() or files.is_outlived(self.directory, name, self._boot):
                files.write(self.directory, name, EMPTY)
            else:  # whoever wrote it may not have known FRR's group yet
                os.chown(path, -1, user.pw_gid)

    def command(self, name: str) -> list[str]:
        at = self.directory
        own: Mapping[str, list[str]] = {
            "zebra": ["--retain", "--graceful_restart", str(RETAIN_SECONDS)],
            "bfdd": ["--bfdctl", str(at / "bfdd.sock")],
            "bgpd": ["--bgp_port", str(self._port)],
        }
        sockets = ["--vty_socket", str(at), "--socket", str(at / "zserv.api"), "--vty_port", "0"]
        sockets += ["--profile", "traditional"]  # what is a default, and not shown, whoever has built them
        told = [
            "--pid_file",
            str(_pid_file(at, name)),
            "--config_file",
            str(files.path_of(at, name)),
            "--log",
            "stdout",
        ]
        return [*self._inside, str(self._programs / name), *sockets, *told, *own[name]]

    async def _keep(self, name: str) -> None:
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            code = await self._once(name)
            if asyncio.get_running_loop().time() - began > SETTLED_SECONDS:
                failures = 0
            log.error("FRR's %s has ended (%s), and is started again", name, _reason(code))
            await asyncio.sleep(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])
            failures += 1

    async def _once(self, name: str) -> int:
        process = await asyncio.create_subprocess_exec(
            *self.command(name), stdin=asyncio.subprocess.DEVNULL, stdout=self._output, stderr=self._output
        )
        self.processes[name] = process.pid
        with self._answering(name):
            try:
                return await process.wait()
            except asyncio.CancelledError:
                if name == "bgpd":
                    await _farewell(self.directory)
                await _end(process)
                raise
            finally:
                del self.processes[name]

    @contextmanager
    def _answering(self, name: str) -> Iterator[None]:
        looking = asyncio.create_task(self._until_answering(name))
        try:
            yield
        finally:
            looking.cancel()

    async def _until_answering(self, name: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while not await answers(self.directory / f"{name}.vty"):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
        self.started[name].set()  # or it does not matter any more: the others say what they miss


def answering(directory: Path) -> str:
    """Which daemon is there, "" none."""
    for name in DAEMONS:
        with socket.socket(socket.AF_UNIX) as vty, suppress(OSError):
            vty.connect(str(directory / f"{name}.vty"))
            return name
    return ""


def left(directory: Path) -> Iterator[Path]:
    """All that the daemons and the agent may leave there; what they begin with holds passwords."""
    for name in DAEMONS:
        path = files.path_of(directory, name)
        yield from (path, aside_of(path), _pid_file(directory, name), directory / f"{name}.vty")
    yield from (directory / "bfdd.sock", directory / "zserv.api")


def run(directory: Path, programs: Path = PROGRAMS, port: int = BGP_PORT) -> None:
    """Until SIGTERM or SIGINT. Raises CannotStart."""
    boot_id = Path(os.environ.get(BOOT_ID_FILE) or BOOT_ID)  # as the agent that writes the files

    async def work() -> None:
        task = asyncio.ensure_future(Daemons(directory, programs, port, boot_id=boot_id).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(work())


async def answers(path: Path) -> bool:
    """Whether a daemon does at that vty socket."""
    try:
        (await Vty.connected(path)).close()
    except Gone:
        return False
    return True


async def _farewell(directory: Path) -> None:
    """bgpd's routers hear that it ends. By SIGTERM alone it tells nobody where graceful restart is configured, and they
    would go on sending."""
    with suppress(Gone, TimeoutError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            vty = await Vty.connected(directory / "bgpd.vty")
            try:
                held = parse(await vty.show("show running-config"))
                for header in (it for it in held.blocks if it.startswith(ROUTER)):
                    about = {line.split(" ")[1] for line in held.blocks[header].lines if " remote-as " in line}
                    await vty.configure([header, *(f"neighbor {who} shutdown" for who in sorted(about)), "exit"])
            finally:
                vty.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _pid_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.pid"


async def _end_earlier(directory: Path, name: str) -> None:
    """That of a supervisor that was killed. By a handle, so that no other process with its number is meant."""
    try:
        number = int(_pid_file(directory, name).read_text(encoding="ascii"))
        handle = os.pidfd_open(number)
    except (OSError, ValueError):
        return
    try:
        with open(f"/proc/{number}/cmdline", "rb") as told:  # noqa: ASYNC230 - the kernel's
            words = told.read().split(b"\0")
        if str(_pid_file(directory, name)).encode() not in words:
            return
        log.warning("FRR's %s of an earlier start still runs (process %s), and is ended", name, number)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, ended.set)
        await ended.wait()
    except OSError:
        pass  # it has ended meanwhile
    finally:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
