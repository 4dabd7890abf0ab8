"""What answers in the cluster of the packet table, and how it is asked.

Invariants: one thread answers for all; only its sockets lie in the namespaces. An answer is `NAME CLIENT`: who was
reached, and the address that it saw. Each socket is bound to one address, so that a node with several answers by the
one that was asked. A question is asked once: what is lost on the way is a TimeoutError.
"""

import os
import selectors
import socket
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from podwire.lab import sctp
from podwire.model.addresses import FAMILIES
from podwire.model.objects import Protocol
from tests.kernel import rig
from tests.kernel.rig import Space, entered
from tests.packets.plan import TARGET_PORT, Station

PATIENCE = 3.0
"""Seconds for an answer: a limit against hanging, never a measure."""


# --- answering ---------------------------------------------------------------------------------


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
        for family in FAMILIES:
            number, address = socket.AddressFamily(family.number), station.address(family)
            with entered(space):
                stream = socket.socket(number, socket.SOCK_STREAM)
                datagram = socket.socket(number, socket.SOCK_DGRAM)
                raw = sctp.open_socket(number)
            held += stream, datagram, raw
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for it, port in ((stream, TARGET_PORT), (datagram, TARGET_PORT), (raw, 0)):
                it.setblocking(False)
                it.bind((address, port))
            stream.listen(1000)
            for it, answer in (
                (stream, _accept(station.name)),
                (datagram, _reply(station.name)),
                (raw, sctp.Responder({TARGET_PORT: _message(station.name)}).answer),
            ):
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
    space: Space
    protocol: Protocol
    address: str
    port: int


def ask(it: Question) -> str:
    """`NAME CLIENT` of who answers, or the name of the error."""
    if it.protocol is not Protocol.SCTP:
        return rig.ask(it.space, it.address, it.port, it.protocol)
    with entered(it.space):
        raw = sctp.open_socket(socket.AF_INET6 if ":" in it.address else socket.AF_INET)
    with raw:
        try:
            return sctp.ask(raw, it.address, it.port, b"who?", PATIENCE).decode()
        except OSError as error:
            return type(error).__name__


Key = TypeVar("Key", bound=Hashable)


def ask_all(questions: dict[Key, Question]) -> dict[Key, str]:
    """Of each namespace one after the other: raw sockets there see each other's packets and errors."""
    by_space: dict[str, list[Key]] = {}
    for key, question in questions.items():
        by_space.setdefault(question.space.name, []).append(key)

    def ask_each(keys: Iterable[Key]) -> dict[Key, str]:
        return {key: ask(questions[key]) for key in keys}

    with ThreadPoolExecutor(len(by_space)) as pool:
        return {key: answer for part in pool.map(ask_each, by_space.values()) for key, answer in part.items()}
