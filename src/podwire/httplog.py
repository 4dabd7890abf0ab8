"""What the agent's HTTP servers say of what goes wrong in them.

Invariants: whoever may connect can't fill the log. What isn't HTTP, or is more of it than a server takes, or ends
early, is its sender's fault: one line, of the debug level, without a traceback. All else is ours, and is logged as
it was.
"""

import logging

from aiohttp.http import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from podwire.model.text import printable

LONGEST_SHOWN = 80
"""Characters of what was wrong with a request."""
log = logging.getLogger(__name__)
"""For `web.Server` and `web.AppRunner`, as their `logger`: they log such errors with a traceback, and as their own."""


def _demoted(record: logging.LogRecord) -> bool:
    """A filter. Whether the record is to be logged; that of a protocol error becomes one of the debug level."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError | RequestPayloadError | ConnectionError):
        return True
    text = error.message if isinstance(error, HttpProcessingError) else str(error)
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: %s", (printable(text[:LONGEST_SHOWN]),)
    record.exc_info = record.exc_text = None
    return log.isEnabledFor(logging.DEBUG)


log.addFilter(_demoted)
