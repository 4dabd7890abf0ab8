"""What the kernel has seen of TCP segments that were not signed as they should be (RFC 2385): that a password is wrong
is not told to anybody else.

Invariants: the counters are of a whole network namespace, so they say that somebody's password is wrong, not whose.
"""

from collections.abc import Mapping
from pathlib import Path

RECENT_SECONDS = 120.0
"""For so long a counter that rose is told: a router tries again at least once in that time."""
_WRONG, _MISSING, _NEEDLESS = "TCPMD5Failure", "TCPMD5NotFound", "TCPMD5Unexpected"


def counts(text: str) -> dict[str, int]:
    """Of `/proc/net/netstat`: pairs of lines, names and then values."""
    lines = [line.split() for line in text.splitlines()]
    found: dict[str, int] = {}
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        found |= {name: int(value) for name, value in zip(names[1:], values[1:], strict=False) if "MD5" in name}
    return found


class Seen:
    """Which of the counters have risen, and when."""

    def __init__(self) -> None:
        self._last: Mapping[str, int] | None = None
        self._risen: dict[str, float] = {}

    def look(self, process: int, now: float) -> None:
        """Where that process is; 0: here. What can't be read says nothing."""
        try:
            read = counts(Path(f"/proc/{process or 'self'}/net/netstat").read_text(encoding="ascii"))
        except OSError:
            return
        if self._last is not None:
            self._risen |= {name: now for name, count in read.items() if count > self._last.get(name, count)}
        self._last = read

    def words(self, has_password: bool, now: float) -> str:
        """For a session without a TCP connection; "": nothing that would say why."""
        recent = {name for name, at in self._risen.items() if now - at < RECENT_SECONDS}
        if has_password and _WRONG in recent:
            return "segments came that were signed with another password: compare this one with the router's"
        if has_password and _MISSING in recent:
            return "segments came that were not signed: the router has no password for this node, it seems"
        if not has_password and _NEEDLESS in recent:
            return "segments came that were signed: the router asks for a password, it seems (passwordSecret)"
        return ""
