"""Answers of the admin API: JSON, and metrics in the form that the asker prefers.

Invariants: what grows with the cluster is written in slices, so that all others get their turn in between.
"""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
from aiohttp import web
from msgspec import Struct
from prometheus_client.core import Metric

from podwire import metrics
from podwire.model.objects import ServiceKey
from podwire.model.snapshot import Snapshot

SLICE = 50
"""Items between two turns of the event loop: about 1 ms of Services with ten backends."""


def json(value: object, status: int = 200) -> web.Response:
    return body(msgspec.json.encode(value), status)


def body(encoded: bytes, status: int = 200) -> web.Response:
    return web.Response(body=encoded, status=status, content_type="application/json")


async def stream(request: web.Request, name: str, items: Iterator[Struct]) -> web.StreamResponse:
    """`{name: [item, …]}`, a slice at a time."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    if request.method == "HEAD":  # RFC 9110, section 9.3.2: no content
        return response
    await response.write(b'{"%s":[' % name.encode())
    between = b""
    while slice_ := [msgspec.json.encode(item) for item in islice(items, SLICE)]:
        await response.write(between + b",".join(slice_))
        between = b","
        await asyncio.sleep(0)
    await response.write(b"]}")
    await response.write_eof()
    return response


def service_asked(request: web.Request, now: Snapshot) -> ServiceKey:
    """Of a path with NAMESPACE/NAME. Raises HTTPNotFound."""
    key = ServiceKey(request.match_info["namespace"], request.match_info["name"])
    if key not in now.services:
        raise web.HTTPNotFound(text=f"no {key} on this node")
    return key


def exposition(request: web.BaseRequest, families: Iterable[Metric]) -> web.Response:
    """In the form that the asker prefers."""
    encoded, kind = metrics.exposition(families, request.headers.get("Accept", ""))
    return web.Response(body=encoded, headers={"Content-Type": kind})
