"""What answers in the cluster of the packet table, and how it is asked.

Invariants: one thread answers for all; only its sockets lie in the namespaces. An answer is `NAME CLIENT`: who was
reached, and the address that it saw. Each socket is bound to one address, so that a node with several answers by the
one that was asked. A question is asked once: what is lost on the way is a TimeoutError. What answers at another port
than TARGET_PORT says so: `NAME:PORT CLIENT`.
"""

import os
import selectors
import socket
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar
from typing import Protocol as Interface

from podwire.lab import sctp
from podwire.model.addresses import FAMILIES, Family
from podwire.model.objects import Protocol
from tests.kernel import rig
from tests.kernel.rig import Space, entered
from tests.packets.plan import OTHER_TARGET_PORT, TARGET_PORT

PATIENCE = 3.0
"""Seconds for an answer: a limit against hanging, never a measure."""
SILENCE_AFTER = 1.0
"""Seconds after which a question that nobody should answer counts as unanswered: a thousand times what answers take."""
_AT_ONCE = 128


# --- answering ---------------------------------------------------------------------------------


class Station(Interface):
    """A machine or pod that answers."""

    @property
    def name(self) -> str: ...

    def address(self, family: Family) -> str: ...


class Answering:
    """The responders of all stations: TCP, UDP and SCTP at TARGET_PORT of each of their addresses."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._ended, self._end = os.pipe()
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._sockets: dict[str, list[socket.socket]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, station: Station, space: Space) -> None:
        held = self._sockets.setdefault(station.name, [])
        names = {TARGET_PORT: station.name, OTHER_TARGET_PORT: f"{station.name}:{OTHER_TARGET_PORT}"}
        for family in FAMILIES:
            number, address = socket.AddressFamily(family.number), station.address(family)
            bound: list[tuple[socket.socket, int, Callable[[socket.socket], None]]] = []
            with entered(space):
                for port, name in names.items():
                    bound.append((socket.socket(number, socket.SOCK_STREAM), port, _accept(name)))
                    bound.append((socket.socket(number, socket.SOCK_DGRAM), port, _reply(name)))
                associations = sctp.Responder({port: _message(name) for port, name in names.items()})
                bound.append((sctp.open_socket(number), 0, associations.answer))
            for it, port, answer in bound:
                held.append(it)
                it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                it.setblocking(False)
                it.bind((address, port))
                if it.type == socket.SOCK_STREAM:
                    it.listen(1000)
                self._selector.register(it, selectors.EVENT_READ, answer)

    def remove(self, station: Station) -> None:
        for it in self._sockets.pop(station.name, ()):
            self._selector.unregister(it)
            it.close()

    def close(self) -> None:
        os.write(self._end, b"\n")
        self._thread.join()
        for held in self._sockets.values():
            for it in held:
                it.close()
        self._selector.close()
        os.close(self._ended)
        os.close(self._end)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._ended:
                    return
                # Gone meanwhile, or a client that can't be reached: its own question fails.
                with suppress(OSError):
                    key.data(key.fileobj)


def _accept(name: str) -> Callable[[socket.socket], None]:
    def answer(it: socket.socket) -> None:
        connection, client = it.accept()
        with connection:
            connection.sendall(f"{name} {client[0]}".encode())

    return answer


def _reply(name: str) -> Callable[[socket.socket], None]:
    def answer(it: socket.socket) -> None:
        _, client = it.recvfrom(100)
        it.sendto(f"{name} {client[0]}".encode(), client)

    return answer


def _message(name: str) -> Callable[[bytes, str], bytes]:
    return lambda _, client: f"{name} {client}".encode()


@contextmanager
def answering() -> Iterator[Answering]:
    found = Answering()
    try:
        yield found
    finally:
        found.close()


# --- asking ------------------------------------------------------------------------------------


class Question(NamedTuple):
    """`silent`: nobody should answer, so it is not waited for long."""

    space: Space
    protocol: Protocol
    address: str
    port: int
    silent: bool = False


def ask(it: Question) -> str:
    """`NAME CLIENT` of who answers, or the name of the error."""
    patience = SILENCE_AFTER if it.silent else PATIENCE
    if it.protocol is not Protocol.SCTP:
        return rig.ask(it.space, it.address, it.port, it.protocol, patience)
    with entered(it.space):
        raw = sctp.open_socket(socket.AF_INET6 if ":" in it.address else socket.AF_INET)
    with raw:
        try:
            return sctp.ask(raw, it.address, it.port, b"who?", patience).decode()
        except OSError as error:
            return type(error).__name__


Key = TypeVar("Key", bound=Hashable)


def ask_all(questions: dict[Key, Question]) -> dict[Key, str]:
    """Of each namespace one after the other: raw sockets there see each other's packets and errors. Then all that
    nobody should answer, at once: there are neither."""
    by_space: dict[str, list[Key]] = {}
    silent = [key for key, question in questions.items() if question.silent]
    for key, question in questions.items():
        if not question.silent:
            by_space.setdefault(question.space.name, []).append(key)

    def ask_each(keys: Iterable[Key]) -> dict[Key, str]:
        return {key: ask(questions[key]) for key in keys}

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = {key: answer for part in pool.map(ask_each, by_space.values()) for key, answer in part.items()}
        return found | dict(zip(silent, pool.map(lambda key: ask(questions[key]), silent), strict=True))
