"""How our processes log: to standard error, one line for each message."""

import logging

from podwire.model.text import printable


class OneLine(logging.Formatter):
    """A message is one line, whatever names from outside are in it; only what Python says of an error has more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        return printable(super().formatMessage(record))


def set_up(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
