"""A directory of manifests, looked at and watched.

Invariants: only files that changed are read again. A look depends on what is in the directory now and on the last
look, never on which events came: an event only says that it is time to look, and without any a look comes every few
seconds (a network file system has no events, and neither has a link above the directory). What can't be read stays
as it was. Whatever lies in the directory under whatever name costs no more than one error. Reading happens in a thread,
so that the event loop keeps its turn.
"""

import asyncio
import logging
import os
import stat
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from podwire.controller.events import Event, KubeStateChange, Resync, ResyncReason
from podwire.model.kinds import Object, ObjectKey
from podwire.sources.batches import batches
from podwire.sources.loading import NOTHING, File, Loaded, broken_file, changes, merge, read_file

log = logging.getLogger(__name__)

SUFFIXES = (".yaml", ".yml", ".json")
TEMPORARY = (".", "#", "~")
"""How names begin that are not meant: hidden ones, editors' copies, and the `..data` of a mounted ConfigMap."""
LARGEST = 64 << 20
"""Bytes of a file."""
QUIET_MS, LONGEST_MS = 50, 500
"""Events are gathered until none came for the first, but no longer than the second."""
LOOK_SECONDS = 5.0
LOOKS_FOR_THE_GONE = 5

Signature = tuple[int, int, int, int]
"""Time of change in ns, size, inode, device."""


class Held(NamedTuple):
    """`signature` None: the file couldn't be read, so the next look tries again."""

    signature: Signature | None
    file: File


class Look(NamedTuple):
    """What was found: files by path, what else is wrong by path, and all of it together."""

    files: Mapping[str, Held]
    troubles: Mapping[str, str]
    loaded: Loaded


UNSEEN = Look({}, {}, NOTHING)


# --- one look ----------------------------------------------------------------------------------


def look(directory: str, before: Look = UNSEEN, stirred: frozenset[str] = frozenset()) -> Look:
    """What the directory holds now. Reads again what looks different, and the files in `stirred` in any case."""
    files, troubles = _read_all(directory, before.files, stirred)
    for _ in range(LOOKS_FOR_THE_GONE):
        # What seems gone may have been renamed or removed with its directory in the middle of the look.
        if before.files.keys() <= files.keys():
            break
        again = _read_all(directory, {**before.files, **files}, frozenset())
        if again == (files, troubles):
            break
        files, troubles = again
    if files == before.files and troubles == before.troubles:
        return before
    return Look(files, troubles, merge({path: held.file for path, held in files.items()}, troubles))


def _read_all(
    directory: str, known: Mapping[str, Held], stirred: frozenset[str]
) -> tuple[dict[str, Held], dict[str, str]]:
    """Files and troubles by path; below a directory that can't be read the files are those that were known."""
    troubles: dict[str, str] = {}
    paths = sorted(_manifests(directory, troubles, set()))
    files: dict[str, Held] = {}
    for unread in sorted(troubles):
        below = {path: held for path, held in known.items() if path.startswith(f"{unread}/")}
        files |= below
        troubles[unread] += "; its last content stays in force" if below else ""
    for path in paths:
        held = _held(path, known.get(path), path in stirred)
        if held is not None:
            files[path] = held
    return files, troubles


def _manifests(directory: str, troubles: dict[str, str], entered: set[tuple[int, int]]) -> Iterator[str]:
    """The paths below, each directory once however many links lead there."""
    try:
        status = os.stat(directory)
        if (status.st_dev, status.st_ino) in entered:
            return
        with os.scandir(directory) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        if not entered or not isinstance(error, FileNotFoundError):
            troubles[directory] = f"can't be read: {error.strerror}"
        return
    entered.add((status.st_dev, status.st_ino))
    for entry in entries:
        if entry.name.startswith(TEMPORARY):
            continue
        if os.path.isdir(entry.path):
            yield from _manifests(entry.path, troubles, entered)
        elif entry.name.endswith(SUFFIXES):
            yield entry.path


def _held(path: str, last: Held | None, stirred: bool) -> Held | None:
    """None: the file has gone meanwhile."""
    known = last.file if last else File()
    if not _is_utf8(path):
        return Held(None, broken_file(known, f"{path}: the name is not UTF-8: rename it; it is not read"))
    wrong = f"{path}: expected a regular file of at most {LARGEST >> 20} MiB"
    try:
        status = os.stat(path)
        if last and _signature(status) == last.signature and not stirred:
            return last
        if not _is_fit(status):  # opening a device may do something
            return Held(_signature(status), broken_file(known, wrong))
        with open(path, "rb", opener=_without_waiting) as opened:
            status = os.fstat(opened.fileno())
            text = opened.read(LARGEST + 1) if _is_fit(status) else None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.islink(path):
            return None
        return Held(None, broken_file(known, f"{path}: can't be read: {error.strerror}"))
    if text is None or len(text) > LARGEST:
        return Held(_signature(status), broken_file(known, wrong))
    return Held(_signature(status), read_file(path, text, known))


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_fit(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST


def _without_waiting(path: str, flags: int) -> int:
    """A pipe in a file's place must not hold the look up."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _signature(status: os.stat_result) -> Signature:
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


# --- the source --------------------------------------------------------------------------------


class Manifests:
    """The source of the cluster's objects on a node without an API server: `listing` first, then `run`."""

    def __init__(self, directory: Path, look_seconds: float = LOOK_SECONDS) -> None:
        self.directory = Path(os.path.abspath(directory))
        self._look_seconds = look_seconds
        self._found = UNSEEN

    @property
    def loaded(self) -> Loaded:
        """What is in force now, and what is wrong with the files."""
        return self._found.loaded

    async def listing(self) -> Mapping[ObjectKey, Object]:
        """All objects, for the first resync; later changes are told against these."""
        await self._look(frozenset())
        return self.loaded.objects

    async def run(self, submit: Callable[[Event], Awaitable[Any]], known: bool = True) -> None:
        """Submits what changes, each batch once the last is done; and all of it once nothing is broken any more, where
        something was at the listing. `known`: the objects of `listing` were submitted; else they are first. Never
        returns."""
        if not known:
            objects = await self.listing()
            await submit(Resync(ResyncReason.SOURCE_RECONNECTED, objects, whole=not self.loaded.errors))
        objects, whole = self.loaded.objects, not self.loaded.errors
        async with aclosing(self.watch()) as seen:
            async for loaded in seen:
                changed = await asyncio.to_thread(changes, objects, loaded.objects)
                objects = loaded.objects
                for part in batches(changed):
                    await submit(KubeStateChange(part))
                if not whole and not loaded.errors:
                    whole = True
                    await submit(Resync(ResyncReason.SOURCE_RECONNECTED, objects))

    async def watch(self) -> AsyncGenerator[Loaded, None]:
        """What is loaded, each time that any of it (errors too) has changed."""
        while True:
            anchor = _anchor(self.directory)
            async with aclosing(self._stirs(anchor[0])) as stirs:
                async for stirred in stirs:
                    if await self._look(stirred):
                        yield self.loaded
                    # A watch ends with its directory, even where another has its name now.
                    if str(anchor[0]) in stirred or _anchor(self.directory) != anchor:
                        break

    async def _look(self, stirred: frozenset[str]) -> bool:
        before = self.loaded
        before_that, directory = self._found, str(self.directory)
        self._found = await _in_thread(lambda: look(directory, before_that, stirred))
        _tell(before, self.loaded)
        return self.loaded != before

    async def _stirs(self, anchor: Path) -> AsyncGenerator[frozenset[str], None]:
        """Nothing once the watch stands, then the paths where something happened; nothing too when it's time to look.

        Above a missing directory only the entries of `anchor` itself are watched, not what is below them.
        """
        from watchfiles import awatch  # a megabyte that who follows an API server does not need

        events = awatch(
            anchor,
            watch_filter=None,
            step=QUIET_MS,
            debounce=LONGEST_MS,
            rust_timeout=int(self._look_seconds * 1000),
            yield_on_timeout=True,
            recursive=anchor == self.directory,
            ignore_permission_denied=True,
        )
        turn = asyncio.ensure_future(anext(events))
        try:
            await asyncio.sleep(0)  # the task's first step sets up the kernel's watch: what comes later is not missed
            yield frozenset()
            while True:
                yield frozenset(path for _, path in await turn)
                turn = asyncio.ensure_future(anext(events))
        except FileNotFoundError:
            return
        except (OSError, RuntimeError) as error:  # RuntimeError: no inotify instance left
            log.warning("%s: no file events (%s): a look every %g s instead", anchor, error, self._look_seconds)
        except Exception as error:  # the library's watch ends at an event of a file whose name is not UTF-8
            log.warning("%s: the watch has ended, and begins anew: %s", anchor, _innermost(error))
            await asyncio.sleep(LONGEST_MS / 1000)  # there may be such an event at every moment
            return
        finally:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
            await events.aclose()
        while True:
            await asyncio.sleep(self._look_seconds)
            yield frozenset()


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return repr(error)


async def _in_thread(work: Callable[[], Look]) -> Look:
    """In a thread that does not hold up the end of the process, as asyncio's own do: a look may take a minute."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Look] = loop.create_future()

    def report(error: BaseException | None, found: Look | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        elif found is not None:
            answer.set_result(found)

    def run() -> None:
        error, found = None, None
        try:
            found = work()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(report, error, found)

    threading.Thread(target=run, name="look", daemon=True).start()
    return await answer


def _anchor(directory: Path) -> tuple[Path, int, int]:
    """The directory, or the nearest one above it that exists, with its identity."""
    for path in (directory, *directory.parents):
        try:
            status = path.stat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            return path, status.st_dev, status.st_ino
    raise FileNotFoundError(f"no directory above {directory}")


def _tell(before: Loaded, after: Loaded) -> None:
    """Each error and each ignored kind once, when it comes."""
    for error in sorted(set(after.errors) - set(before.errors)):
        log.warning("%s", error)
    for error in sorted(set(before.errors) - set(after.errors)):
        log.info("no longer: %s", error)
    for ignored in sorted(set(after.ignored) - set(before.ignored)):
        log.info("ignored: %s", ignored)
