"""How far a list and watch of one kind has come, and what is asked next. Pure: chance and time are arguments.

Invariants: a watch begins where the list or the last watch ended, so nothing is missed, and nothing is listed again but
for a reason: the version is no longer kept (410), or the server said what can't be. A list that expires between its
pages begins anew with larger ones, so it comes to an end however fast the cluster changes. Every failure waits longer
than the last, until a watch has brought something or has lasted. The rules: Kubernetes docs, "API Concepts".

resourceVersions of the API's own kinds are numbers that rise (KEP-5504), and a watch tells them in their order.
"""

from enum import Enum

from msgspec.structs import replace

from podwire.model.objects import Value

PAGE = 500
"""Objects of a list's first try."""
FIRST_DELAY, LONGEST_DELAY = 0.2, 15.0
"""Seconds, doubled with each failure in a row and spread by half to either side."""
LONGEST_ASKED = 60.0
"""How long a server may ask us to stay away, in seconds."""
WATCH_SECONDS = 300.0
"""A watch lasts so long, or up to twice as long, so that those of a cluster don't end together."""
LASTING_SECONDS = 10.0
"""A watch that ended sooner has failed, whatever the server says."""


class Position(Value, frozen=True):
    """`version` "": a list is under way, or due; then `token` is of its next page, "" at its beginning."""

    version: str = ""
    token: str = ""
    limit: int = PAGE
    failures: int = 0

    @property
    def watching(self) -> bool:
        return self.version != ""


class Failure(Enum):
    LOST = "no answer, or none that helps: the same again"
    EXPIRED = "what was asked for is no longer kept: list again"
    ODD = "what came can't be: list again"


class Age(Enum):
    """Of what a watch brings, against what is known."""

    NEW = "new"
    KNOWN = "known"
    EARLIER = "earlier than what came before it"


def query(position: Position, chance: float) -> dict[str, str]:
    """`chance` in [0, 1)."""
    if position.watching:
        return {
            "watch": "1",
            "allowWatchBookmarks": "1",
            "resourceVersion": position.version,
            "timeoutSeconds": str(int(WATCH_SECONDS * (1 + chance))),
        }
    return {"limit": str(position.limit)} | ({"continue": position.token} if position.token else {})


def paged(position: Position, version: str, token: str) -> Position:
    """A page has come: with a `token` for the next one, or as the last."""
    if token:
        return replace(position, token=token)
    return Position(version, failures=position.failures)


def age(position: Position, version: str) -> Age:
    known = position.version
    if version == known:
        return Age.KNOWN
    numbers = version.isascii() and version.isdigit() and known.isascii() and known.isdigit()
    return Age.EARLIER if numbers and int(version) < int(known) else Age.NEW


def moved(position: Position, version: str) -> Position:
    """The watch has told of everything up to here."""
    return replace(position, version=version, failures=0)


def lasted(position: Position, seconds: float) -> Position:
    """A watch has ended after so long."""
    return replace(position, failures=0) if seconds >= LASTING_SECONDS else position


def ended(position: Position, seconds: float, chance: float) -> tuple[Position, float]:
    """The server closed the watch, as it does in the end. Also the seconds to wait."""
    if seconds >= LASTING_SECONDS:
        return lasted(position, seconds), 0.0
    return failed(position, Failure.LOST, chance)


def backoff(failures: int, chance: float) -> float:
    """The seconds to wait after so many failures before this one."""
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures, 30)) * (0.5 + chance)


def failed(position: Position, failure: Failure, chance: float, retry_after: float = 0.0) -> tuple[Position, float]:
    """What is asked next, and the seconds to wait before; `retry_after`: those that the server asks for."""
    delay = max(backoff(position.failures, chance), min(retry_after, LONGEST_ASKED))
    failures = position.failures + 1
    if failure is Failure.LOST:
        return replace(position, failures=failures), delay
    if position.token and failure is Failure.EXPIRED:
        return Position(limit=position.limit * 2, failures=failures), 0.0
    return Position(limit=position.limit, failures=failures), delay
