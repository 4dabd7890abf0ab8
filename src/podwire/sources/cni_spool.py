"""The spool: DELs that the CNI plugin left as files while no agent answered, replayed in the order they came.

Invariants: a file goes only after its DEL has succeeded, so none is lost and one may be replayed twice, which is
harmless. What can't be read, whatever it is (a pipe, a directory, something huge), is moved aside to `*.bad` and
logged: it never stops the others, nor the agent. Names of whole files end in `.del` and begin with the time
(nanoseconds since the epoch, zero-padded); `cni/shim.py` writes them. While it writes they end in `.tmp`.
"""

import logging
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from podwire.cni.cni_pb2 import CniRequest
from podwire.cni.errors import CniError
from podwire.cni.request import LARGEST, Request, parse_request

WRITING = 60.0
"""Seconds after its last write for which somebody may still be at work on a file."""
log = logging.getLogger(__name__)


def spooled(directory: Path) -> list[Path]:
    """Oldest first. Raises OSError where the directory is there and can't be listed."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # the plugin makes it anew
        return []
    return [directory / name for name in sorted(names) if name.endswith(".del")]


async def replay(directory: Path, delete: Callable[[Request], Awaitable[str | None]]) -> None:
    """`delete` answers why it failed, or None. What failed stays for the next time."""
    for path in spooled(directory):
        try:
            request = _read(path)
        except FileNotFoundError:  # replayed by another call meanwhile
            continue
        except (OSError, DecodeError, CniError) as error:
            _set_aside(path, error)
            continue
        error_text = await delete(request)
        if error_text is None:
            _remove(path, request)
        else:
            log.warning("%s: DEL of %s failed and stays in the spool: %s", path, request.key, error_text)


def sweep(directory: Path, now: float) -> None:
    """Removes what killed plugins have left half written: the runtime had no answer to such a DEL, and asks again. So
    does one whose plugin was only slow, since that finds its file gone. `now`: seconds since the epoch."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for path in (directory / name for name in sorted(names) if name.endswith(".tmp")):
        try:
            its = path.lstat()
            if stat.S_ISREG(its.st_mode) and its.st_mtime < now - WRITING:
                path.unlink()
                log.info("%s: removed: a plugin was killed while it wrote this", path)
        except FileNotFoundError:  # it is whole now
            continue
        except OSError as error:
            log.error("%s: can't be removed: %s", path, error)


def _remove(path: Path, request: Request) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.error("%s: DEL of %s is done, but can't be removed: %s", path, request.key, error)
    else:
        log.info("%s: replayed DEL of %s", path, request.key)


def _read(path: Path) -> Request:
    """Raises OSError, DecodeError, CniError."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DecodeError("expected a regular file")
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise DecodeError(f"expected at most {LARGEST >> 20} MiB")
    message = CniRequest.FromString(text)
    request = parse_request(message.environment, message.stdin)
    if request.command != "DEL":
        raise DecodeError(f"expected a DEL; found {request.command}")
    return request


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe waits for its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _set_aside(path: Path, reason: Exception) -> None:
    bad = path.with_name(path.name + ".bad")
    log.error("%s: no DEL can be read from it: %s; moved to %s", path, reason, bad)
    try:
        path.rename(bad)
    except OSError as error:
        log.error("%s: can't be moved: %s", path, error)
