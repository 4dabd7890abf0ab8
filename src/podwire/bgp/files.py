"""What FRR's daemons read when they start: a file for each, so that a daemon that is started again has all at once.

Invariants: a file is whole or as it was, and on disk once `write` returns. Only root and FRR's own group, which is that
of the directory, can read it: it holds passwords. It says in which boot it was written: after another one nothing of
what it tells the world to come for is there any more, until the agent has made that anew.
"""

import os
from pathlib import Path

from podwire.bgp.tree import EMPTY, Block, parse, show
from podwire.config import aside_of


def path_of(directory: Path, daemon: str) -> Path:
    return directory / f"{daemon}.conf"


def read(directory: Path, daemon: str) -> Block:
    """What a daemon would begin with. Raises OSError, but not where there is none."""
    try:
        return parse(path_of(directory, daemon).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return EMPTY


_BOOT = "! written in boot "


def is_outlived(directory: Path, daemon: str, boot: str) -> bool:
    """Whether it was written in another boot than this. Others' files say nothing of boots. Raises OSError."""
    with path_of(directory, daemon).open(encoding="utf-8", errors="replace") as content:
        first = content.readline()
    return first.startswith(_BOOT) and first.removeprefix(_BOOT).strip() != boot


def write(directory: Path, daemon: str, wanted: Block, boot: str = "") -> bool:
    """`boot`: its ID, "": that is not said. Whether it was another. Raises OSError."""
    head = f"{_BOOT}{boot}\n" if boot else ""
    path, content = path_of(directory, daemon), (head + show(wanted)).encode()
    group = directory.stat().st_gid
    try:
        found = path.stat()
        if path.read_bytes() == content and (found.st_gid, found.st_mode & 0o777) == (group, 0o640):
            return False
    except FileNotFoundError:
        pass
    aside = aside_of(path)
    aside.unlink(missing_ok=True)
    try:
        _write(aside, content, group)
        aside.rename(path)
    except OSError:
        aside.unlink(missing_ok=True)  # a full disk has no room for half a file
        raise
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)
    return True


def _write(path: Path, content: bytes, group: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
        os.fchown(out.fileno(), -1, group)
        os.fchmod(out.fileno(), 0o640)
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
