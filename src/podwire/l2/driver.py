"""The agent's side of layer 2: keeps the process at work, hands it the newest that is wanted, hears what it has found.

Invariants: nothing here waits for the process, and the newest word counts. Whatever ended the process, the next one is
told all that is wanted, and what was known of the nodes; a silent one is killed. There is one only while there is
something to answer for or somebody to hear; without one nothing is known of any node.
"""

import asyncio
import errno
import logging
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import MappingProxyType

from podwire.l2.channel import (
    ALIVE,
    Alive,
    Answered,
    Begin,
    Frames,
    Heard,
    Leave,
    Left,
    Nodes,
    Ready,
    State,
    ToProcess,
    Want,
    frame,
    from_process,
    shown,
)
from podwire.model.addresses import Address
from podwire.model.announcements import Answers, Liveness

PORT = 7948
"""UDP, between the nodes."""
LEAST_KEY = 16
LEAVE_SECONDS = 1.0
"""How long a leave-taking is waited for."""
_SILENT = 10.0
"""Seconds after which a process that says nothing is killed."""
_END_SECONDS = 1.0
_HEARING = 5.0
"""Seconds after which a node has had time to be heard."""
log = logging.getLogger(__name__)


def read_key(path: Path) -> bytes:
    """The key that all nodes share, without the white space around it. Raises OSError."""
    key = path.read_bytes().strip()
    if len(key) < LEAST_KEY:
        raise OSError(errno.EINVAL, f"expected a key of at least {LEAST_KEY} bytes, found {len(key)}", str(path))
    return key


class ProcessEnded(Exception):
    """The layer-2 process, for which there was still something to do."""


class L2:
    """`on_change` is called in the event loop with what is known of each other node, whenever that is something else.
    `key`: what all nodes share, b"": nothing."""

    def __init__(
        self,
        node: str,
        on_change: Callable[[Mapping[str, Liveness]], None] = lambda _: None,
        port: int = PORT,
        key: bytes = b"",
    ) -> None:
        self.liveness: Mapping[str, Liveness] = MappingProxyType({})
        self._node, self._port, self._key, self._on_change = node, port, key, on_change
        self._state = State()
        self._peers: Mapping[str, tuple[Address, ...]] = {}
        self._answers: Answers = {}
        self._ready, self._leaving, self._began = False, False, 0.0
        self._changed, self._left = asyncio.Event(), asyncio.Event()

    # --- what is wanted ------------------------------------------------------------------------

    def peers(self, addresses: Mapping[str, tuple[Address, ...]]) -> None:
        """The InternalIPs of all nodes of the cluster, this one included. None at all: no heartbeats."""
        if addresses != self._peers:
            self._peers = addresses
            self._changed.set()

    def ready(self, ready: bool) -> None:
        """Whether this node answers for the addresses that it is chosen for. Until it does, or while it does not, the
        other nodes are told so, and it answers for nothing."""
        if ready != self._ready:
            self._ready = ready
            self._changed.set()

    def want(self, answers: Answers) -> None:
        if answers != self._answers:
            self._answers = answers
            self._changed.set()

    async def leave(self) -> None:
        """Tells the other nodes that this one answers no more, so that they do at once. It goes on answering until
        `run` is cancelled, for whoever hasn't heard of them yet. Comes back once they were told."""
        self._leaving = True
        self._left.clear()
        self._changed.set()
        if self.at_work:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._left.wait()

    # --- what is -------------------------------------------------------------------------------

    @property
    def out(self) -> frozenset[str]:
        """The nodes that were heard and answer for nothing: dead, or not ready. Of the rest nothing is said here that
        their objects do not say."""
        return frozenset(name for name, it in self.liveness.items() if it in (Liveness.DEAD, Liveness.UNREADY))

    at_work = False
    """Whether there is a process."""

    @property
    def unheard(self) -> tuple[str, ...]:
        """The nodes that nothing was ever heard of, though there was time for it; sorted."""
        if not self.at_work or monotonic() - self._began < _HEARING:
            return ()
        return tuple(sorted(name for name, it in self.liveness.items() if it is Liveness.UNKNOWN))

    @property
    def answered(self) -> Mapping[Address, Answered]:
        """Of each address that is wanted."""
        return shown(self._state)

    @property
    def troubles(self) -> tuple[str, ...]:
        return self._state.troubles

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many datagrams were no heartbeats of the cluster's, by the reason."""
        return self._state.ignored

    @property
    def late(self) -> float:
        """In seconds, how long the process was kept from its work at worst."""
        return self._state.late

    # --- the process ---------------------------------------------------------------------------

    async def run(self, again: bool = False) -> None:
        """Until it is cancelled. `again`: after a failure. Raises ProcessEnded, OSError."""
        if again:
            log.info("layer 2: another process")
        while True:
            while not self._needed:
                self._hear_nobody()
                await self._changed.wait()
                self._changed.clear()
            await self._attend()

    def _hear_nobody(self) -> None:
        """What was heard last would be told of the nodes for ever."""
        if self.liveness:
            self.liveness = MappingProxyType({})
            self._on_change(self.liveness)

    @property
    def _needed(self) -> bool:
        return bool(self._peers or self._answers)

    async def _attend(self) -> None:
        """One process, until there is nothing to do for it."""
        ours, its = socket.socketpair()
        try:
            with its:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "podwire.l2.process", str(its.fileno())),
                    pass_fds=(its.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is for the agent
                )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self.at_work, self._began = True, monotonic()
        told, heard = asyncio.create_task(self._tell(writer)), asyncio.create_task(self._hear(reader))
        try:
            await asyncio.wait((told, heard), return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                heard.result()
                raise ProcessEnded("the layer-2 process has ended")
            told.result()
        finally:
            self.at_work, self._state = False, State()
            self._left.set()
            for task in (told, heard):
                task.cancel()
            await asyncio.gather(told, heard, return_exceptions=True)
            writer.close()
            await _ended(process)

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        """Returns once nothing is to do."""
        await _send(writer, Begin(self._node, self._port, self._key, dict(self.liveness)))
        last: dict[type[ToProcess], ToProcess] = {}
        while self._needed:
            self._changed.clear()
            wanted: list[ToProcess] = [
                Nodes(dict(self._peers)),
                Want({bytes(address): names for address, names in self._answers.items()}),
                Ready(self._ready),
                *([Leave()] if self._leaving else []),
            ]
            news = [message for message in wanted if last.get(type(message)) != message]
            last.update((type(message), message) for message in news)
            await _send(writer, *(news or (Alive(),)))
            with suppress(TimeoutError):
                async with asyncio.timeout(ALIVE):
                    await self._changed.wait()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        """Returns once the process has closed its end. Raises ProcessEnded."""
        frames = Frames()
        while True:
            try:
                async with asyncio.timeout(_SILENT):
                    data = await reader.read(1 << 16)
            except TimeoutError:
                raise ProcessEnded(f"the layer-2 process has said nothing for {_SILENT:g} s") from None
            except ConnectionError:
                return
            if not data:
                return
            frames.feed(data)
            for message in from_process(frames):
                match message:
                    case Heard():
                        self.liveness = MappingProxyType(message.liveness)
                        self._on_change(self.liveness)
                    case State():
                        self._state = message
                    case Left():
                        self._left.set()


async def _send(writer: asyncio.StreamWriter, *messages: ToProcess) -> None:
    writer.write(b"".join(map(frame, messages)))
    with suppress(ConnectionError):  # that it has ended is heard
        await writer.drain()


async def _ended(process: Process) -> None:
    """It ends with the channel, or is killed."""
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
