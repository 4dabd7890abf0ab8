"""What is wrong for a while, in the log: each line once, when it comes and when it is over."""

import logging
from collections.abc import Iterable


class Troubles:
    def __init__(self, log: logging.Logger, about: str = "") -> None:
        """`about`: what stands before each line."""
        self._log, self._about = log, about
        self._told: frozenset[str] = frozenset()

    def tell(self, lines: Iterable[str]) -> None:
        """What is wrong now."""
        now = frozenset(lines)
        for line in sorted(now - self._told):
            self._log.warning("%s%s", self._about, line)
        for line in sorted(self._told - now):
            self._log.info("%sno longer: %s", self._about, line)
        self._told = now
