"""One question from inside a network namespace: who answers there, or how it fails, and how fast.

Invariants: only the socket lives in the namespace; the caller stays where it is. A question is asked once: what is
lost on the way shows as a timeout.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from podwire.dataplane.netlink import inside
from podwire.lab import lookup, sctp
from podwire.lab.questions import NO_NAME, REFUSED, RESET, STRANGE, TIMEOUT, UNREACHABLE, Answer, Lookup, Question
from podwire.lab.responder import Reply
from podwire.model.objects import Protocol

TIME_LIMIT = 2.0
"""Seconds."""
_ENOUGH_LOST = 3
_WHO = b"who?\n"


def put(question: Question, count: int | None = None) -> Iterator[Answer]:
    """Each time by a new connection or socket; `count` times, else so often that every backend had its turn. Where
    nothing comes through it gives up."""
    lost = 0
    for number in range(question.times if count is None else count):
        answer = _once(question, number)
        yield answer
        lost += answer.error == TIMEOUT
        if lost == _ENOUGH_LOST:
            return


def _once(question: Question, number: int) -> Answer:
    space, port, protocol = question.source.space, question.port, question.protocol
    if question.lookup is None:
        return ask(space, question.host, port, protocol)
    if not question.server:
        return look_up(space, question.host, question.lookup, port, protocol)
    found = look_up(space, question.server, question.lookup)
    if found.error or not found.records:
        return Answer(error=found.error or NO_NAME, seconds=found.seconds)
    addresses = sorted(found.records)
    return msgspec.structs.replace(
        ask(space, addresses[number % len(addresses)], port, protocol), records=found.records
    )


def ask(
    space: Path | None, address: str, port: int, protocol: Protocol = Protocol.TCP, timeout: float = TIME_LIMIT
) -> Answer:
    """Who is there. `space`: the path of a namespace, None for the caller's own; `timeout` in seconds.

    Raises OSError where the namespace can't be entered.
    """
    if protocol is Protocol.SCTP:
        return _exchange(
            space, address, 0, protocol, timeout, lambda it: _reply(sctp.ask(it, address, port, _WHO, timeout))
        )
    return _exchange(space, address, port, protocol, timeout, lambda it: _reply(_ask_who(it)))


def look_up(
    space: Path | None,
    server: str,
    asked: Lookup,
    port: int = 53,
    protocol: Protocol = Protocol.UDP,
    timeout: float = TIME_LIMIT,
) -> Answer:
    """What a name server of the lab says, and which one it is. Raises OSError where the namespace can't be entered."""
    query = lookup.query(asked)

    def put_it(it: socket.socket) -> Answer:
        if protocol is Protocol.TCP:
            it.sendall(len(query).to_bytes(2, "big") + query)
            message = _read(it, int.from_bytes(_read(it, 2), "big"))
        else:
            it.sendall(query)
            message = it.recv(65_535)
        identity, records = lookup.read(message)
        return msgspec.structs.replace(_reply(identity), records=records)

    return _exchange(space, server, port, protocol, timeout, put_it)


def open_socket(space: Path | None, address: str, protocol: Protocol = Protocol.TCP) -> socket.socket:
    """A socket of the address's family in a namespace. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kinds = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
    with ExitStack() as there:
        if space is not None:
            there.enter_context(inside(there.enter_context(space.open("rb")).fileno()))
        return sctp.open_socket(family) if protocol is Protocol.SCTP else socket.socket(family, kinds[protocol])


def _exchange(
    space: Path | None,
    address: str,
    port: int,
    protocol: Protocol,
    timeout: float,
    talk: Callable[[socket.socket], Answer],
) -> Answer:
    with open_socket(space, address, protocol) as it:
        it.settimeout(timeout)
        begin = time.perf_counter()
        try:
            it.connect((address, port))
            answer, own = talk(it), it.getsockname()[0]
        except OSError as error:
            return Answer(error=_in_words(error), seconds=time.perf_counter() - begin)
    return msgspec.structs.replace(answer, asked_from=own, seconds=time.perf_counter() - begin)


def _reply(text: bytes) -> Answer:
    try:
        reply = msgspec.json.decode(text, type=Reply)
    except msgspec.DecodeError:
        return Answer(error=RESET if not text else STRANGE)
    return Answer(reply.pod, reply.node, reply.client, reply.port)


def _ask_who(it: socket.socket) -> bytes:
    """The answer up to the end of a line, of a datagram or of the stream."""
    it.sendall(_WHO)
    text = b""
    while not text.endswith(b"\n"):
        more = it.recv(65_536)
        if not more:
            break
        text += more
    return text


def _read(it: socket.socket, length: int) -> bytes:
    """So many bytes. Raises ConnectionResetError where the stream ends before."""
    text = b""
    while len(text) < length:
        more = it.recv(length - len(text))
        if not more:
            raise ConnectionResetError
        text += more
    return text


def _in_words(error: OSError) -> str:
    match error:
        case ConnectionRefusedError():
            return REFUSED
        case TimeoutError():
            return TIMEOUT
        case ConnectionResetError() | BrokenPipeError():
            return RESET
    return UNREACHABLE
