"""An API server that costs nearly nothing, so that what is measured is who listens to it: lists, watches, changes.

Invariants: all that is read is JSON, encoded once when an object comes. Every selection asked for is one that takes all
objects that are here, else it is refused; so is a query that this server doesn't know, as the real one would answer
wrongly or slowly. Objects never go. It listens on loopback in whatever namespaces it is told to.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from podwire.dataplane import netlink
from tests.bench.objects import NODE, Thing
from tests.unit import kube_fake

PORT = 6443


class Kind(NamedTuple):
    path: str
    version: str
    name: str

    def head(self) -> dict[str, str]:
        """Of an object of this kind."""
        return {"apiVersion": self.version, "kind": self.name}


KINDS = {resource: Kind(*kind) for resource, kind in kube_fake.KINDS.items()}
SELECTIONS = {
    "",
    f"metadata.name={NODE}",
    f"spec.nodeName={NODE}",
    "kubernetes.io/service-name",
    "!service.kubernetes.io/headless",
    "!service.kubernetes.io/service-proxy-name",
    "spec.clusterIP!=None",
}
QUERIES = {
    "limit",
    "continue",
    "labelSelector",
    "fieldSelector",
    "watch",
    "allowWatchBookmarks",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "timeout",
}
_INITIAL = {"k8s.io/initial-events-end": "true"}


class ApiServer:
    def __init__(self) -> None:
        self.version = 1000
        self._items: dict[str, dict[str, bytes]] = {resource: {} for resource in KINDS}
        self._log: list[tuple[int, str, bytes]] = []
        self._streams: dict[web.StreamResponse, str] = {}
        self._writing: set[asyncio.Future[None]] = set()
        self._runner: web.AppRunner | None = None

    def put(self, resource: str, thing: Thing) -> None:
        """An object comes or changes, and all who watch are told with the next turn of the event loop."""
        kind = KINDS[resource]
        self.version += 1
        name = thing["metadata"]["name"]
        held = self._items[resource]
        metadata = {**thing["metadata"], "resourceVersion": str(self.version), "uid": f"uid-{name}"}
        whole = {**kind.head(), **thing, "metadata": metadata}
        encoded = json.dumps(whole, separators=(",", ":")).encode()
        line = b'{"type":"%s","object":%s}\n' % (b"MODIFIED" if name in held else b"ADDED", encoded)
        held[name] = encoded
        if self._runner is not None:
            self._log.append((self.version, resource, line))
            self._tell(resource, line)

    def _tell(self, resource: str, line: bytes) -> None:
        for response, watched in self._streams.items():
            if watched == resource:
                task = asyncio.ensure_future(response.write(line))
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)

    async def serve(self, *spaces: Path) -> None:
        """On loopback of these namespaces."""
        app = web.Application()
        for resource, kind in KINDS.items():
            app.router.add_get(kind.path, self._of(resource))
        app.router.add_get("/api/v1/nodes/{name}", self._node)
        app.router.add_patch("/api/v1/nodes/{name}/status", self._taken)
        app.router.add_post("/{any:.*}", self._taken)  # events about itself
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        for space in spaces:
            await web.SockSite(self._runner, listener(space)).start()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _of(self, resource: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            query = dict(request.query)
            odd = sorted(set(query) - QUERIES)
            selected = {query.get("labelSelector", ""), query.get("fieldSelector", "")}
            if odd or not selected <= SELECTIONS:
                return _refusal(400, f"{resource}: not known here: {query}")
            if "watch" in query:
                return await self._watch(resource, query, request)
            return self._list(resource, query)

        return answer

    def _list(self, resource: str, query: dict[str, str]) -> web.Response:
        """Nothing comes or goes, so a page is a number."""
        items = list(self._items[resource].values())
        start = int(query.get("continue", "0"))
        end = start + int(query["limit"]) if query.get("limit", "0") != "0" else len(items)
        kind = KINDS[resource]
        meta = {"resourceVersion": str(self.version)} | ({"continue": str(end)} if end < len(items) else {})
        head = json.dumps({"kind": f"{kind.name}List", "apiVersion": kind.version, "metadata": meta})
        body = b'%s,"items":[%s]}' % (head[:-1].encode(), b",".join(items[start:end]))
        return web.Response(body=body, content_type="application/json")

    async def _watch(self, resource: str, query: dict[str, str], request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if query.get("sendInitialEvents") == "true":
            lines = [b'{"type":"ADDED","object":%s}\n' % item for item in self._items[resource].values()]
            await response.write(b"".join([*lines, self._bookmark(resource, _INITIAL)]))
        else:
            since = int(query["resourceVersion"])
            lines = [line for version, of, line in self._log if of == resource and version > since]
            if lines:
                await response.write(b"".join(lines))
        self._streams[response] = resource
        try:
            await asyncio.get_running_loop().create_future()  # until the client goes
        finally:
            del self._streams[response]
        return response

    def _bookmark(self, resource: str, annotations: dict[str, str]) -> bytes:
        kind = KINDS[resource]
        metadata = {"resourceVersion": str(self.version), "annotations": annotations}
        thing = {**kind.head(), "metadata": metadata}
        return json.dumps({"type": "BOOKMARK", "object": thing}).encode() + b"\n"

    async def _node(self, request: web.Request) -> web.StreamResponse:
        found = self._items["nodes"].get(request.match_info["name"])
        return _refusal(404, "no such node") if found is None else web.Response(body=found, content_type=_JSON)

    async def _taken(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        return web.Response(status=201 if request.method == "POST" else 200, body=body or b"{}", content_type=_JSON)


_JSON = "application/json"


def listener(space: Path) -> socket.socket:
    """A listening socket on loopback of that namespace."""
    with space.open() as there, netlink.inside(there.fileno()):
        return socket.create_server(("127.0.0.1", PORT), backlog=100)


def _refusal(status: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return web.json_response({**body, "code": status, "reason": "BadRequest"}, status=status)
