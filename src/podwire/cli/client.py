"""A request to the agent on this machine: HTTP over its admin socket, with the standard library alone.

Invariants: whatever goes wrong becomes one `Failed`, with the line to print and the exit code: 3 where no agent
answered, 1 where it answered that it can't.
"""

import http.client
import json
import os
import socket
from pathlib import Path

UNREACHABLE, WRONG_USAGE, REFUSED = 3, 2, 1
_SOCKET_PATH_LIMIT = 107
"""Bytes; unix(7)."""
PATIENCE = 60.0
"""Seconds without a byte before an agent counts as hanging. A full load of a big cluster takes one or two."""


class Failed(Exception):
    """One line for people, or more, and the exit code."""

    def __init__(self, line: str, code: int, *more: str) -> None:
        super().__init__("\n".join((line, *more)))
        self.lines, self.code = (line, *more), code


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, target: str) -> bytes:
    """The JSON of a 200 answer. Raises Failed."""
    size = len(os.fsencode(path))
    if size > _SOCKET_PATH_LIMIT:
        raise Failed(
            f"{path}: no agent can be there: a unix socket's path has at most {_SOCKET_PATH_LIMIT} bytes", UNREACHABLE
        )
    try:
        status, body = _answer(path, method, target)
    except (FileNotFoundError, ConnectionRefusedError):
        raise Failed(
            f"no agent answers at {path}: it is not running, or keeps its state elsewhere (--state-dir, --config)",
            UNREACHABLE,
        ) from None
    except PermissionError:
        raise Failed(f"{path}: permission denied: only the agent's user may ask it", UNREACHABLE) from None
    except TimeoutError:
        raise Failed(f"the agent at {path} did not answer within {PATIENCE:.0f} s", UNREACHABLE) from None
    except (OSError, http.client.HTTPException) as error:
        raise Failed(
            f"the agent at {path} did not answer in full: {error or type(error).__name__}", UNREACHABLE
        ) from None
    if status != http.client.OK:
        raise Failed(_reason(status, body), REFUSED)
    return body


def _answer(path: Path, method: str, target: str) -> tuple[int, bytes]:
    """Status and body. An agent that is just ending drops whoever waits for its ear: then the question is put again,
    since it may have gone for good or be back. Raises OSError, http.client.HTTPException."""
    try:
        return _one_answer(path, method, target)
    except (ConnectionResetError, BrokenPipeError):  # dropped before or after the question was put
        if method != "GET":
            raise
        return _one_answer(path, method, target)


def _one_answer(path: Path, method: str, target: str) -> tuple[int, bytes]:
    connection = UnixConnection(path)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _reason(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the agent answered HTTP {status}"
