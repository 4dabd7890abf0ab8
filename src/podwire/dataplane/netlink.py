"""Sending and dumping netlink messages (RFC 3549), and the namespaces in which that happens.

Invariants: many messages go in one datagram; the kernel works on it before sendto returns, so every error is queued by
then and no acknowledgement is asked for. A dump that others' changes interrupted is taken again. A socket belongs for
ever to the namespace in which it was made; an open one keeps that namespace alive.
"""

import ctypes
import errno
import itertools
import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from struct import Struct

from podwire.dataplane.messages import DUMP, REQUEST, Message, Notice

ROUTE, NETFILTER = 0, 12
DUMP_INTERRUPTED = 0x10
ERROR, DONE = 2, 3
_SOL_NETLINK, _ADD_MEMBERSHIP, _DROP_MEMBERSHIP, _LISTEN_ALL_NSID, _CAP_ACK, _GET_STRICT_CHK = 270, 1, 2, 8, 10, 12
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_NETNS_COOKIE = 32, 33, 71
_CLONE_NEWNET = 0x40000000
_DUMP_ATTEMPTS = 10
_LAST_SEQUENCE = 0xFFFF_FFFF
_DATAGRAM = 1 << 16
"""Bytes of the longest that the kernel tells at once: it fills a page or two."""
log = logging.getLogger(__name__)

_HEADER = Struct("=IHHII")
_LIBC = ctypes.CDLL(None, use_errno=True)


class Interrupted(OSError):
    """Others' changes interrupted a dump: something may be missing from what was told."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "a dump was interrupted again and again by others' changes")


class Socket:
    """A netlink socket of one protocol, in the namespace of the thread that makes it."""

    def __init__(self, protocol: int, reader: bool = False) -> None:
        """`reader`: only small things are read, which needs no right. Raises PermissionError where another lacks it."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.bind((0, 0))
        if not reader:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 64 << 20)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)  # errors without the request's text
        self._sequence = 0
        """Of the next message. Numbers rise, so that a late answer is never taken for that to another."""
        if protocol == ROUTE:
            self._socket.setsockopt(_SOL_NETLINK, _GET_STRICT_CHK, 1)  # dumps honour their filter

    def send(self, messages: list[Message]) -> dict[int, int]:
        """All in one datagram. The errors: errno by a message's position."""
        if not messages:
            return {}
        first = self._number(len(messages))
        parts: list[bytes] = []
        for number, (kind, flags, body) in enumerate(messages, first):
            parts += (_HEADER.pack(16 + len(body), kind, flags | REQUEST, number, 0), body)
        self._socket.sendto(b"".join(parts), (0, 0))
        errors: dict[int, int] = {}
        while True:
            try:
                data = self._socket.recv(1 << 20, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return errors
            for kind, _, number, body in _split(data):
                code = _error(body) if kind == ERROR else 0
                if code and number >= first:
                    errors[number - first] = code

    def dump(self, kind: int, body: bytes, flags: int = DUMP) -> list[bytes]:
        """The bodies of the answers; none where what is asked for does not exist. Raises OSError."""
        for _ in range(_DUMP_ATTEMPTS):
            found = self._dump(kind, body, flags)
            if found is not None:
                return found
        raise Interrupted

    def _dump(self, kind: int, body: bytes, flags: int) -> list[bytes] | None:
        asked = self._number(1)
        self._socket.sendto(_HEADER.pack(16 + len(body), kind, flags | REQUEST, asked, 0) + body, (0, 0))
        found: list[bytes] = []
        whole = True
        while True:
            for reply, its_flags, number, content in _split(self._socket.recv(1 << 20)):
                if number != asked:
                    continue
                whole = whole and not its_flags & DUMP_INTERRUPTED
                if reply == DONE:
                    code = _error(content) if len(content) >= 4 else 0
                    if code and code != errno.ENOENT:
                        raise OSError(code, os.strerror(code))
                    return found if whole else None
                if reply == ERROR:
                    code = _error(content)
                    if code in (0, errno.ENOENT):
                        return found
                    raise OSError(code, os.strerror(code))
                found.append(content)
                if flags != DUMP:
                    return found

    def stream(self, kind: int, body: bytes) -> Iterator[list[bytes]]:
        """The bodies of a long dump, a datagram's at a time; what changes meanwhile may be missing or told twice. To be
        taken to its end. Raises Interrupted at its end, where the kernel says that more may be missing; OSError."""
        asked = self._number(1)
        self._socket.sendto(_HEADER.pack(16 + len(body), kind, DUMP | REQUEST, asked, 0) + body, (0, 0))
        whole = True
        while True:
            found: list[bytes] = []
            for reply, its_flags, number, content in _split(self._socket.recv(1 << 20)):
                if number != asked:
                    continue
                whole = whole and not its_flags & DUMP_INTERRUPTED
                if reply not in (DONE, ERROR):
                    found.append(content)
                    continue
                if code := _error(content) if len(content) >= 4 else 0:
                    raise OSError(code, os.strerror(code))
                yield found
                if not whole:
                    raise Interrupted
                return
            yield found

    def namespace(self) -> int:
        """The number of its network namespace that no other has since the boot; before Linux 5.14 its inode's."""
        try:
            cookie = self._socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            return os.stat("/proc/thread-self/ns/net").st_ino
        return int.from_bytes(cookie, sys.byteorder)

    def _number(self, count: int) -> int:
        """The first of so many sequence numbers."""
        if self._sequence + count > _LAST_SEQUENCE:
            self._sequence = 0
        self._sequence += count
        return self._sequence - count

    def close(self) -> None:
        self._socket.close()


class Listener:
    """What the kernel tells of one protocol's multicast groups, in the namespace of the thread that makes it."""

    def __init__(self, protocol: int, groups: Iterable[int], everywhere: bool = False) -> None:
        """`everywhere`: from the namespaces too that have a number in this one, where the process may
        (CAP_NET_BROADCAST)."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.bind((0, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)
        self._socket.setblocking(False)
        self._groups = tuple(groups)
        self._lost = False
        self.behind = False
        """Whether the last `datagrams` left some for the next."""
        if everywhere:
            try:
                self._socket.setsockopt(_SOL_NETLINK, _LISTEN_ALL_NSID, 1)
            except PermissionError:
                log.warning("changes in pods' namespaces are seen by the periodic verify only: no CAP_NET_BROADCAST")
        self._join(_ADD_MEMBERSHIP)

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> list[Notice] | None:
        """All that was told since the last time; None: more than the socket holds, so some of it is lost."""
        datagrams = self.datagrams()
        if datagrams is None:
            return None
        return [notice for each in datagrams for notice in parsed(*each)]

    def datagrams(self, most: int | None = None) -> list[tuple[bytes, int | None]] | None:
        """The same, messages together as they came; with each the number of the namespace that it tells of. No more
        than `most`: whoever changes things faster than we read must not hold us up.

        Once the socket has been too small, the kernel drops what comes until it is empty, and says so only once
        (netlink_overrun): until then what it holds is thrown away, and only then None is the answer."""
        found: list[tuple[bytes, int | None]] = []
        self.behind = False
        for _ in itertools.count() if most is None else range(most):
            try:
                data, beside, flags, _ = self._socket.recvmsg(_DATAGRAM, 64)
            except BlockingIOError:
                lost, self._lost = self._lost, False
                return None if lost else found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._lost = True
                continue
            self._lost = self._lost or bool(flags & socket.MSG_TRUNC)
            if not self._lost:
                nsid = next((int.from_bytes(d, sys.byteorder) for _, k, d in beside if k == _LISTEN_ALL_NSID), None)
                found.append((data, nsid))
        self.behind = True
        return [] if self._lost else found

    @contextmanager
    def away(self) -> Iterator[None]:
        """For a while nothing is told, and the kernel has no work with it."""
        self._join(_DROP_MEMBERSHIP)
        try:
            yield
        finally:
            self._join(_ADD_MEMBERSHIP)

    def close(self) -> None:
        self._socket.close()

    def _join(self, how: int) -> None:
        for group in self._groups:
            self._socket.setsockopt(_SOL_NETLINK, how, group)


def parsed(data: bytes, nsid: int | None) -> Iterator[Notice]:
    """The messages of a datagram."""
    return (Notice(kind, body, nsid) for kind, _, _, body in _split(data))


def _error(body: bytes) -> int:
    return -int.from_bytes(body[:4], sys.byteorder, signed=True)


def _split(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, flags, sequence number and body of each message."""
    at = 0
    while at < len(data):
        length, kind, flags, number, _ = _HEADER.unpack_from(data, at)
        yield kind, flags, number, data[at + 16 : at + length]
        at += (length + 3) & ~3


@contextmanager
def inside(descriptor: int | None) -> Iterator[None]:
    """This thread in another network namespace (None: an empty new one), for the moment in which a socket is made
    there. Raises OSError."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.unshare(_CLONE_NEWNET) if descriptor is None else _LIBC.setns(descriptor, _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"not a network namespace ({os.strerror(code)})")
        try:
            yield
        finally:
            if _LIBC.setns(home, _CLONE_NEWNET):
                log.critical(
                    "can't come back into the node's network namespace: ending, before anything is done elsewhere"
                )
                os._exit(1)
    finally:
        os.close(home)
