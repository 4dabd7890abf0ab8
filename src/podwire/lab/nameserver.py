"""The program of the cluster DNS's pods.

Invariants: what is published is what it says, from the very next question on. A connection carries any number of
questions, each behind its length in two bytes (RFC 1035, section 4.2.2).
"""

import asyncio
from collections.abc import Callable
from functools import partial

from podwire.lab import dns
from podwire.lab.listeners import Program
from podwire.lab.names import zone


class Names:
    """The zone as it is now: one for all name servers of a lab."""

    def __init__(self) -> None:
        self.zone = zone({})


def program(names: Names, say: Callable[[str], bytes]) -> Program:
    """`say`: who it is, to a client."""

    def answer(stream: bool, asked: bytes, client: str) -> bytes | None:
        return dns.answer(names.zone, asked, stream, say(client))

    return Program(lambda: _Stream(partial(answer, True)), partial(answer, False))


class _Stream(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, answer: Callable[[bytes, str], bytes | None]) -> None:
        self._answer, self._held = answer, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        client = self.transport.get_extra_info("peername")
        while (end := 2 + int.from_bytes(self._held[:2], "big")) <= len(self._held):
            asked, self._held = self._held[2:end], self._held[end:]
            answer = self._answer(asked, client[0] if client else "")
            if answer is None:
                self.transport.close()
                return
            self.transport.write(len(answer).to_bytes(2, "big") + answer)
