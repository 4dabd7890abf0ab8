"""The open sockets of a pod, and the programs behind them.

Invariants: one event loop serves all pods of a lab; only the sockets lie in the pods' namespaces. A pod listens on all
of its ports in both families, or on none. A datagram's answer leaves by the very address that was asked: a host
network has many.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from podwire.dataplane.netlink import inside
from podwire.lab import sctp
from podwire.lab.slices import Listen
from podwire.model.objects import Protocol

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_BACKLOG = 4096
_DATAGRAM = 65_535
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_PKTINFO = 8, 49, 50  # ip(7), ipv6(7); socket names the last two only


class Program(NamedTuple):
    """What answers on a port: each connection by a protocol of its own, each message of a client (a datagram, or one of
    an SCTP association) by bytes or by silence (None)."""

    connection: Callable[[], asyncio.Protocol]
    message: Callable[[bytes, str], bytes | None]


class Listeners:
    def __init__(self) -> None:
        self.ports: frozenset[Listen] = frozenset()
        self._closing = ExitStack()

    async def open(self, space: Path, programs: Mapping[Listen, Program]) -> None:
        """All of them, or none. Raises OSError."""
        with ExitStack() as opened:
            for raw in _raw_sockets(space, programs):
                opened.enter_context(closing(raw))
                associations = {it.number: programs[it].message for it in programs if it.protocol is Protocol.SCTP}
                opened.enter_context(closing(_Associations(raw, associations)))
            for port, family, listener in _sockets(space, programs):
                opened.enter_context(closing(listener))
                try:
                    listener.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port.number))  # noqa: S104  inside a pod
                    opened.enter_context(closing(await _serve(port.protocol, listener, programs[port])))
                except OSError as error:
                    raise OSError(error.errno, f"port {port}: {os.strerror(error.errno or 0)}") from None
            self._closing, self.ports = opened.pop_all(), frozenset(programs)

    def close(self) -> None:
        """Connections that are open go on."""
        self._closing.close()
        self.ports = frozenset()


def _raw_sockets(space: Path, ports: Iterable[Listen]) -> Iterator[socket.socket]:
    """One for each family, where there are any ports of SCTP: it sees all packets of that protocol."""
    for family in _FAMILIES if any(port.protocol is Protocol.SCTP for port in ports) else ():
        with space.open("rb") as there, inside(there.fileno()):
            found = sctp.open_socket(family)
        found.setblocking(False)
        yield found


def _sockets(
    space: Path, programs: Mapping[Listen, Program]
) -> Iterator[tuple[Listen, socket.AddressFamily, socket.socket]]:
    for port in sorted(programs):
        if port.protocol is Protocol.SCTP:
            continue
        for family in _FAMILIES:
            kind = socket.SOCK_STREAM if port.protocol is Protocol.TCP else socket.SOCK_DGRAM
            with space.open("rb") as there, inside(there.fileno()):
                found = socket.socket(family, kind | socket.SOCK_NONBLOCK)
            if port.protocol is Protocol.TCP:  # for UDP it would let two pods of a host network share a port
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            yield port, family, found


async def _serve(protocol: Protocol, listener: socket.socket, program: Program) -> "asyncio.Server | _Datagrams":
    if protocol is Protocol.UDP:
        return _Datagrams(listener, program)
    return await asyncio.get_running_loop().create_server(program.connection, sock=listener, backlog=_BACKLOG)


class _Associations:
    def __init__(self, raw: socket.socket, ports: Mapping[int, Callable[[bytes, str], bytes | None]]) -> None:
        self._socket, self._responder = raw, sctp.Responder(ports)
        asyncio.get_running_loop().add_reader(raw.fileno(), self._answer)

    def _answer(self) -> None:
        try:
            while True:
                self._responder.answer(self._socket)
        except OSError:
            return  # nothing more to read, or this client can't be answered: it asks again

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())


class _Datagrams:
    def __init__(self, listener: socket.socket, program: Program) -> None:
        self._socket, self._program = listener, program
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        else:
            listener.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._answer)

    def _answer(self) -> None:
        try:
            while True:
                asked, ancillary, _, client = self._socket.recvmsg(_DATAGRAM, 128)
                answer = self._program.message(asked, client[0])
                if answer is not None:
                    self._socket.sendmsg([answer], _source(ancillary), 0, client)
        except OSError:
            # Nothing more to read, or this client can't be answered: it asks again, as UDP has it.
            return

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())


def _source(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """From what was received to what is to be sent: the local address stays, the interface is routing's to choose."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):  # in_pktinfo: index, local address, header's address
            return [(level, kind, bytes(4) + data[4:8] + bytes(4))]
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_PKTINFO):  # in6_pktinfo: address, index
            return [(level, kind, data[:16] + bytes(4))]
    return []
