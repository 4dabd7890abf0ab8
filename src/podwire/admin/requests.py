"""What a request says besides its path. Pure.

Invariant: what it lacks, or says in a wrong form, is one line that names it and the right form (aiohttp's
HTTPBadRequest).
"""

from aiohttp import web

LONGEST_SHOWN = 40
"""Characters of what was wrong in a request."""


def words(request: web.Request, name: str) -> str:
    text = request.query.get(name)
    if not text:
        form = "an IP address, node, or a pod as NAMESPACE/NAME" if name == "from" else "IP:PORT or IP:PORT/PROTOCOL"
        raise web.HTTPBadRequest(text=f"{name}: missing; expected {form}")
    return text


def number(request: web.Request, name: str, least: int, most: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not digits or not least <= int(text) <= most:
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        raise web.HTTPBadRequest(text=f"{name}: expected a whole number from {least} to {most}; found {shown!r}")
    return int(text)
