"""Leases: what IPAM plugins have given to this node's pods, or may have, on disk until they have it back.

Invariants: a lease is written before its plugin is asked, and goes only after a DEL of the plugin's has succeeded: so
whatever is killed in between, nothing that a plugin gives is lost. It holds all that the DEL needs, as the ADD had it,
so that no later configuration keeps it from its plugin. A file appears whole or not at all. What can't be read is moved
aside to `*.bad` and logged. One attachment's lease is changed by one task at a time.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha1
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from podwire.cni.delegation import Delegation
from podwire.model.objects import AttachmentKey

SUFFIX, ANSWER = ".lease", ".answer"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
MOST_TOLD = 3
log = logging.getLogger(__name__)


class Lease(Struct, frozen=True):
    """Who asked which plugin, and how."""

    key: AttachmentKey
    told: Delegation


class Leases:
    """`due`: set whenever one may have become due. `owed`: what could not be given back yet, and why."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory, and reads what is in it. Raises OSError."""
        self.directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        self._held = {lease.key: lease for path in sorted(directory.iterdir()) if (lease := _read(path)) is not None}
        self._locks: WeakValueDictionary[AttachmentKey, asyncio.Lock] = WeakValueDictionary()
        self.due = asyncio.Event()
        self.owed: dict[AttachmentKey, str] = {}

    @property
    def held(self) -> Mapping[AttachmentKey, Lease]:
        return self._held

    @property
    def troubles(self) -> tuple[str, ...]:
        """For people."""
        found = [f"{key}: its lease can't be given back: {why}" for key, why in sorted(self.owed.items())]
        more = len(found) - MOST_TOLD
        return (*found[:MOST_TOLD], *([f"and {more} more leases can't be given back"] if more > 0 else []))

    @asynccontextmanager
    async def alone(self, key: AttachmentKey) -> AsyncIterator[None]:
        """Nobody else changes this attachment's lease meanwhile."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            yield

    def busy(self, key: AttachmentKey) -> bool:
        """Whether somebody is at work on it."""
        lock = self._locks.get(key)
        return lock is not None and lock.locked()

    async def keep(self, lease: Lease) -> None:
        """Durably. Raises OSError."""
        await asyncio.to_thread(_write, self._path(lease.key), msgspec.msgpack.encode(lease))
        self._held[lease.key] = lease

    def drop(self, key: AttachmentKey) -> None:
        """Raises OSError."""
        for path in (self._path(key), self._path(key, ANSWER)):
            path.unlink(missing_ok=True)
        self._held.pop(key, None)
        self.owed.pop(key, None)

    def note(self, key: AttachmentKey, answer: bytes) -> None:
        """What the plugin has printed, for a repeated ADD; best effort, since the lease is complete without it."""
        try:
            with open(os.open(self._path(key, ANSWER), _FLAGS, 0o600), "wb") as out:
                out.write(answer)
        except OSError as error:
            log.warning("%s: what its plugin has answered is not noted: %s", key, error)

    def noted(self, key: AttachmentKey) -> bytes:
        """b"": nothing is."""
        try:
            return self._path(key, ANSWER).read_bytes()
        except OSError:
            return b""

    def _path(self, key: AttachmentKey, suffix: str = SUFFIX) -> Path:
        name = sha1(f"{key.sandbox}:{key.interface}".encode(), usedforsecurity=False).hexdigest()
        return self.directory / (name + suffix)


def _read(path: Path) -> Lease | None:
    if path.suffix != SUFFIX:
        unasked = path.suffix == ".tmp"  # of an agent that was killed before it asked the plugin
        if unasked or (path.suffix == ANSWER and not path.with_suffix(SUFFIX).exists()):
            path.unlink(missing_ok=True)
        return None
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Lease)
    except (msgspec.MsgspecError, OSError) as error:
        bad = path.with_name(path.name + ".bad")
        log.error("%s: no lease can be read from it: %s; moved to %s", path, error, bad)
        path.rename(bad)
        return None


def _write(path: Path, content: bytes) -> None:
    aside = path.with_suffix(".tmp")
    with open(os.open(aside, _FLAGS, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    aside.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
