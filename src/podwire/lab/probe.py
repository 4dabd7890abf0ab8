"""One question from inside a network namespace: who answers there, or how it fails, and how fast.

Invariants: only the socket lives in the namespace; the caller stays where it is. A question is asked once: what is
lost on the way shows as a timeout.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from podwire.dataplane.netlink import inside
from podwire.lab.responder import Reply
from podwire.model.objects import Protocol

REFUSED, TIMEOUT, UNREACHABLE, RESET, STRANGE = "refused", "timeout", "unreachable", "reset", "not a responder"


class Answer(Struct, frozen=True):
    """`error` "": it came, from `pod`. `asked_from`: the address that the asking socket had. `seconds`: until the
    answer, or until it failed."""

    pod: str = ""
    node: str = ""
    client: str = ""
    port: int = 0
    error: str = ""
    asked_from: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return self.error or self.pod


def ask(space: Path | None, address: str, port: int, protocol: Protocol = Protocol.TCP, timeout: float = 2.0) -> Answer:
    """`space`: the path of a namespace, None for the caller's own; `timeout` in seconds.

    Raises OSError where the namespace can't be entered.
    """
    with open_socket(space, address, protocol) as it:
        it.settimeout(timeout)
        begin = time.perf_counter()
        try:
            it.connect((address, port))
            it.sendall(b"who?\n")
            text = _line(it)
        except OSError as error:
            return Answer(error=_in_words(error), seconds=time.perf_counter() - begin)
        seconds, own = time.perf_counter() - begin, it.getsockname()[0]
    try:
        reply = msgspec.json.decode(text, type=Reply)
    except msgspec.DecodeError:
        return Answer(error=RESET if not text else STRANGE, asked_from=own, seconds=seconds)
    return Answer(reply.pod, reply.node, reply.client, reply.port, "", own, seconds)


def ask_often(
    count: int, space: Path | None, address: str, port: int, protocol: Protocol = Protocol.TCP, timeout: float = 2.0
) -> Iterator[Answer]:
    """One question after the other, each by a new connection or socket."""
    for _ in range(count):
        yield ask(space, address, port, protocol, timeout)


def open_socket(space: Path | None, address: str, protocol: Protocol = Protocol.TCP) -> socket.socket:
    """A socket of the address's family in a namespace. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_DGRAM if protocol is Protocol.UDP else socket.SOCK_STREAM
    if space is None:
        return socket.socket(family, kind)
    with space.open("rb") as there, inside(there.fileno()):
        return socket.socket(family, kind)


def _line(it: socket.socket) -> bytes:
    """Up to the end of a line, of a datagram or of the stream."""
    text = b""
    while not text.endswith(b"\n"):
        more = it.recv(65_536)
        if not more:
            break
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
