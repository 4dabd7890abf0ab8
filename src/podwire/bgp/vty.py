"""Talks with one of FRR's daemons through its vty socket, as vtysh does.

Invariants: a command and its answer are bytes up to a zero: the command, then the text of the answer, three zeros and a
number, 0 where it was done. Answers come in the order of the commands, so many may be under way; a daemon whose answers
nobody reads stops reading, so that is done all the while. Whoever gives up in between closes the connection, since what
comes later belongs to nobody. No error holds a password.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from podwire.bgp.change import END
from podwire.bgp.lines import without_secrets
from podwire.model.text import printable

SECONDS = 30.0
"""That a daemon may be silent for, with answers due."""
MOST_BYTES = 512 << 20
"""Of one answer: all routes of a full table are less."""
_END = b"\0\0\0"
DONE, WARNING = 0, 1


class Answer(NamedTuple):
    """`code`: 0, or the number of FRR's error (enum cmd_result)."""

    command: str
    text: str
    code: int

    def __str__(self) -> str:
        """What people are told of one that failed, in one line."""
        words = " ".join(without_secrets(self.text).split())
        return printable(f"{without_secrets(self.command)}: {words or f'error {self.code}'}")


class Gone(Exception):
    """The daemon is not there, or has not answered. The text is for people."""


class Vty(asyncio.Protocol):
    """A connection with a daemon. `lost`: it has ended, of which `tell` is told."""

    def __init__(self, path: Path, tell: Callable[[], None]) -> None:
        self.path, self.lost, self._tell = path, False, tell
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()
        self._more = asyncio.Event()
        self._turn = asyncio.Lock()

    @classmethod
    async def connected(cls, path: Path, tell: Callable[[], None] = lambda: None) -> "Vty":
        """One that may be told privileged commands. Raises Gone."""
        try:
            _, vty = await asyncio.get_running_loop().create_unix_connection(lambda: cls(path, tell), str(path))
        except OSError as error:
            raise Gone(f"FRR's {path.stem} does not run: nobody answers at {path}: {error.strerror or error}") from None
        await vty.ask(["enable"])
        return vty

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own signature
        self.lost = True
        self._more.set()
        self._tell()

    def close(self) -> None:
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    def process(self) -> int:
        """The daemon's, as it is called in our PID namespace; 0 where it has no number there."""
        found = self._transport.get_extra_info("socket") if self._transport is not None else None
        return int(struct.unpack("iii", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]) if found else 0

    async def show(self, command: str) -> str:
        """Raises Gone; also where the daemon does not know the command."""
        (answer,) = await self.ask([command])
        if answer.code not in (DONE, WARNING):
            raise Gone(f"FRR's {self.path.stem} refuses {answer}")
        return answer.text

    async def configure(self, commands: Iterable[str]) -> list[Answer]:
        """The answers to those that failed, which changed nothing; those after them are tried. Raises Gone."""
        answers = await self.ask(["configure terminal", *commands, "end"])
        return [it for it in answers if it.code != DONE or (it.command == END and it.text.strip())]

    async def ask(self, commands: Sequence[str]) -> list[Answer]:
        """All at once. Raises Gone."""
        async with self._turn:
            answers: list[Answer] = []
            try:
                if self._transport is not None and not self.lost:
                    self._transport.write(b"".join(command.encode() + b"\0" for command in commands))
                answers += [await self._answer(command) for command in commands]
            finally:
                if len(answers) < len(commands):
                    self.close()
            return answers

    async def _answer(self, command: str) -> Answer:
        looked = 0
        while True:
            end = self._read.find(_END, looked)
            if 0 <= end < len(self._read) - len(_END):
                break
            if len(self._read) > MOST_BYTES:
                raise Gone(f"FRR's {self.path.stem} answers without an end ({self.path})")
            looked = end if end >= 0 else max(0, len(self._read) - len(_END))
            await self._until_more()
        text, code = self._read[:end].decode(errors="replace"), self._read[end + len(_END)]
        del self._read[: end + len(_END) + 1]
        return Answer(command, text, code)

    async def _until_more(self) -> None:
        if self.lost:
            raise Gone(f"FRR's {self.path.stem} has ended ({self.path})")
        self._more.clear()
        try:
            async with asyncio.timeout(SECONDS):
                await self._more.wait()
        except TimeoutError:
            raise Gone(f"FRR's {self.path.stem} has not answered for {SECONDS:g} s ({self.path})") from None
