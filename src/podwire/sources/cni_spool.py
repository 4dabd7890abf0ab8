"""The spool: DELs that the CNI plugin left as files while no agent answered, replayed in the order they came.

Invariants: a file goes only after its DEL has succeeded, so none is lost and one may be replayed twice, which is
harmless. What can't be read is moved aside to `*.bad` and logged: it never stops the others, nor the agent. Names of
whole files end in `.del` and begin with the time (nanoseconds since the epoch, zero-padded); `cni/shim.py` writes them.
"""

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from podwire.cni.cni_pb2 import CniRequest
from podwire.cni.errors import CniError
from podwire.cni.request import Request, parse_request
from podwire.model.objects import AttachmentKey

log = logging.getLogger(__name__)


def spooled(directory: Path) -> list[Path]:
    """Oldest first. Raises OSError where the directory is there and can't be listed."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # the plugin makes it anew
        return []
    return [directory / name for name in sorted(names) if name.endswith(".del")]


async def replay(directory: Path, delete: Callable[[AttachmentKey], Awaitable[str | None]]) -> None:
    """`delete` answers why it failed, or None. What failed stays for the next time."""
    for path in spooled(directory):
        try:
            request = _read(path)
        except FileNotFoundError:  # replayed by another call meanwhile
            continue
        except (OSError, DecodeError, CniError) as error:
            _set_aside(path, error)
            continue
        error_text = await delete(request.key)
        if error_text is None:
            path.unlink(missing_ok=True)
            log.info("%s: replayed DEL of %s", path, request.key)
        else:
            log.warning("%s: DEL of %s failed and stays in the spool: %s", path, request.key, error_text)


def _read(path: Path) -> Request:
    message = CniRequest.FromString(path.read_bytes())
    request = parse_request(message.environment, message.stdin)
    if request.command != "DEL":
        raise DecodeError(f"expected a DEL; found {request.command}")
    return request


def _set_aside(path: Path, reason: Exception) -> None:
    bad = path.with_name(path.name + ".bad")
    log.error("%s: no DEL can be read from it: %s; moved to %s", path, reason, bad)
    try:
        path.rename(bad)
    except OSError as error:
        log.error("%s: can't be moved: %s", path, error)
