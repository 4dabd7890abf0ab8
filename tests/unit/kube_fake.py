"""An API server on loopback, as strict as the real one and as unreliable as a test wants.

It keeps every object with its version, a log of what happened, and refuses what the real one refuses: unknown query
parameters, foreign tokens, expired pages and versions. Faults are scripted by request: the next list, page or watch of
a resource is answered by the fault in its stead. It may be served at several addresses at once.
"""

import asyncio
import json
import socket
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from podwire.model.kinds import Object, ObjectKey
from podwire.sources.kubernetes import translate
from tests.unit import kube_records

Thing = dict[str, Any]
Name = tuple[str, str]
"""Namespace ("" for what has none) and name."""

KINDS = {
    "nodes": ("/api/v1/nodes", "v1", "Node"),
    "namespaces": ("/api/v1/namespaces", "v1", "Namespace"),
    "pods": ("/api/v1/pods", "v1", "Pod"),
    "services": ("/api/v1/services", "v1", "Service"),
    "endpointslices": ("/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice"),
    "servicecidrs": ("/apis/networking.k8s.io/v1/servicecidrs", "networking.k8s.io/v1", "ServiceCIDR"),
    "podpools": (kube_records.POOLS, kube_records.VERSION, "PodPool"),
    "podblocks": (kube_records.BLOCKS, kube_records.VERSION, "PodBlock"),
    "addresspools": ("/apis/podwire.io/v1alpha1/addresspools", kube_records.VERSION, "AddressPool"),
    "bgppeers": ("/apis/podwire.io/v1alpha1/bgppeers", kube_records.VERSION, "BGPPeer"),
    "bgpadvertisements": ("/apis/podwire.io/v1alpha1/bgpadvertisements", kube_records.VERSION, "BGPAdvertisement"),
    "l2advertisements": ("/apis/podwire.io/v1alpha1/l2advertisements", kube_records.VERSION, "L2Advertisement"),
    "secrets": ("/api/v1/namespaces/podwire/secrets", "v1", "Secret"),
}
LIST_QUERY = {"limit", "continue", "labelSelector", "fieldSelector"}
WATCH_QUERY = {
    "watch",
    "allowWatchBookmarks",
    "resourceVersion",
    "timeoutSeconds",
    "labelSelector",
    "fieldSelector",
}

Fault = Callable[["FakeApi", web.Request], Awaitable[web.StreamResponse]]


class Happened(NamedTuple):
    version: int
    resource: str
    before: Thing | None
    after: Thing | None


class Stream:
    """An open watch. What is put in the queue is written as it is; None ends it, an exception cuts the connection."""

    def __init__(self, resource: str, query: dict[str, str], port: int) -> None:
        self.resource, self.query, self.port = resource, query, port
        self.queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()


class FakeApi:
    def __init__(self) -> None:
        self.objects: dict[str, dict[Name, Thing]] = {resource: {} for resource in KINDS}
        self.log: list[Happened] = []
        self.version = 100
        self.compacted = 0
        """Versions below are no longer kept."""
        self.token: str | None = None
        """The only one that is accepted; None: any."""
        self.absent: set[str] = set()
        self.faults: defaultdict[tuple[str, str], deque[Fault]] = defaultdict(deque)
        """By verb (list, page, watch; of single objects get, post, patch, delete) and resource."""
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        """Verb, resource and query of each request that was answered by no fault."""
        self.streams: list[Stream] = []
        self.denied: set[tuple[str, str]] = set()
        """Verb and resource of what a SelfSubjectAccessReview refuses."""
        self.conditions: list[Thing] = []
        """Of the one node whose status is asked for."""
        self.most_items = 0
        """The largest page given."""
        self.stirred = asyncio.Condition()
        self._snapshots: dict[int, dict[str, list[Thing]]] = {}

    # --- the cluster ---------------------------------------------------------------------------

    def put(self, resource: str, thing: Thing) -> None:
        self._happen(resource, name_of(thing), thing)

    def remove(self, resource: str, name: Name) -> None:
        if name in self.objects[resource]:
            self._happen(resource, name, None)

    def _happen(self, resource: str, name: Name, after: Thing | None) -> None:
        held = self.objects[resource]
        before = held.get(name)
        self.version += 1
        if after is not None:
            _, version, kind = KINDS[resource]
            uid = before["metadata"]["uid"] if before else after["metadata"].get("uid", f"uid-{name[1]}-{self.version}")
            metadata = {**after["metadata"], "resourceVersion": str(self.version), "uid": uid}
            after = {**after, "apiVersion": version, "kind": kind, "metadata": metadata}
            held[name] = after
        else:
            del held[name]
        happened = Happened(self.version, resource, before, after)
        self.log.append(happened)
        for stream in self.streams:
            if stream.resource == resource and (line := event(happened, stream.query)):
                stream.queue.put_nowait(line)

    def verbs(self, resource: str) -> list[str]:
        """What was asked of a resource, and answered by no fault."""
        return [verb for verb, asked, _ in self.asked if asked == resource]

    def compact(self) -> None:
        """Forgets the past: open watches go on, new ones and pages from before are refused."""
        self.compacted = self.version
        self._snapshots.clear()

    def translated(self, node: str) -> dict[ObjectKey, Object]:
        """What an agent of that node should know."""
        found: dict[ObjectKey, Object] = {}
        for resource, held in self.objects.items():
            for thing in held.values():
                if resource not in self.absent and _matches(thing, selection(resource, node)):
                    key, value, _ = translate(thing, [])
                    if value is not None:
                        found[key] = value
        return found

    # --- faults --------------------------------------------------------------------------------

    def bookmark(self, resource: str) -> None:
        meta = {"metadata": {"resourceVersion": str(self.version), "creationTimestamp": None}}
        self.inject(resource, _line("BOOKMARK", {"kind": KINDS[resource][2], **meta}))

    def inject(self, resource: str, what: bytes | Exception | None) -> None:
        """Into the open watches of a resource."""
        for stream in self.streams:
            if stream.resource == resource:
                stream.queue.put_nowait(what)

    def repeat(self, resource: str) -> None:
        """What was last put there, again, to the watches that had it: none is told of what it didn't ask for."""
        for stream in self.streams:
            for it in self.log[-3:]:
                if it.resource == stream.resource == resource and it.after and _matches(it.after, stream.query):
                    stream.queue.put_nowait(_line("MODIFIED", it.after))

    def cut(self, resource: str, left: bytes = b"") -> None:
        """Ends the connection, in the middle of a line where something is left of one."""
        if left:
            self.inject(resource, left)
        self.inject(resource, ConnectionAbortedError())

    async def until(self, condition: Callable[[], bool]) -> None:
        """`condition` may depend on requests and streams."""
        async with self.stirred:
            await self.stirred.wait_for(condition)

    async def all_watched(self) -> None:
        wanted = set(KINDS) - self.absent
        await self.until(lambda: {stream.resource for stream in self.streams} == wanted)

    # --- requests ------------------------------------------------------------------------------

    @asynccontextmanager
    async def served(self, port: int = 0, tls: Any = None) -> AsyncIterator[str]:
        """The address. When left, all its connections are cut."""
        app = web.Application()
        for resource, (path, _, _) in KINDS.items():
            app.router.add_get(path, self._of(resource))
        app.router.add_get("/api/v1/nodes/{name}", self._node)
        app.router.add_patch("/api/v1/nodes/{name}/status", self._node)
        app.router.add_post(kube_records.BLOCKS, self._single)
        app.router.add_route("*", kube_records.BLOCKS + "/{name}", self._single)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", self._pod)
        app.router.add_get("/api/v1/namespaces/{name}", self._namespace)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", port))
        await web.SockSite(runner, listener, ssl_context=tls).start()
        address = runner.addresses[0]
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{address[1]}"
        finally:
            for stream in self.streams:
                if stream.port == address[1]:
                    stream.queue.put_nowait(ConnectionAbortedError())
            # What was accepted at the last moment must become a connection first: asyncio would forget it.
            asyncio.get_running_loop().remove_reader(listener)
            for _ in range(5):
                await asyncio.sleep(0)
            await runner.cleanup()

    def _of(self, resource: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            query = dict(request.query)
            verb = "watch" if "watch" in query else "page" if "continue" in query else "list"
            return await self._answer(verb, resource, request)

        return answer

    async def _node(self, request: web.Request) -> web.StreamResponse:
        return await self._answer("patch" if request.method == "PATCH" else "get", "nodes", request)

    async def _single(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request.method.lower(), "podblocks", request)

    async def _pod(self, request: web.Request) -> web.StreamResponse:
        return await self._answer("get", "pods", request)

    async def _namespace(self, request: web.Request) -> web.StreamResponse:
        return await self._answer("get", "namespaces", request)

    async def _review(self, request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["spec"]["resourceAttributes"]
        allowed = (asked["verb"], asked["resource"]) not in self.denied
        return web.json_response({"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}, status=201)

    async def _answer(self, verb: str, resource: str, request: web.Request) -> web.StreamResponse:
        try:
            if self.faults[verb, resource]:
                return await self.faults[verb, resource].popleft()(self, request)
            if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
                return refusal(401, "Unauthorized")
            if resource in self.absent:
                return web.Response(status=404, text="404 page not found\n")
            self.asked.append((verb, resource, dict(request.query)))
            match verb:
                case "watch":
                    return await self._watch(resource, request)
                case "get" | "post" | "patch" | "delete" if resource == "podblocks":
                    name, body = request.match_info.get("name", ""), await request.read()
                    said = kube_records.answer(self, request.method, name, body, request.content_type)
                    return web.json_response(said.body, status=said.status)
                case "get" if resource != "nodes":
                    where = request.match_info.get("namespace", ""), request.match_info["name"]
                    found = self.objects[resource].get(where)
                    return web.json_response(found) if found else refusal(404, f"{where[1]} not found", "NotFound")
                case "get":
                    return web.json_response({"kind": "Node", "status": {"conditions": self.conditions}})
                case "patch":
                    return await self._patch(request)
            return self._list(resource, dict(request.query))
        finally:
            async with self.stirred:
                self.stirred.notify_all()

    def _list(self, resource: str, query: dict[str, str]) -> web.Response:
        if not set(query) <= LIST_QUERY or int(query["limit"]) < 1:
            return refusal(400, f"unknown query {query}")
        version, start = self.version, 0
        if "continue" in query:
            version, start = map(int, query["continue"].split("."))
            if version not in self._snapshots:
                return refusal(410, "the provided continue parameter is too old", "Expired")
        else:
            held = {kind: [self.objects[kind][name] for name in sorted(self.objects[kind])] for kind in KINDS}
            self._snapshots[version] = held
        things = [thing for thing in self._snapshots[version][resource] if _matches(thing, query)]
        page = things[start : start + int(query["limit"])]
        self.most_items = max(self.most_items, len(page))
        after = start + len(page)
        meta = {"resourceVersion": str(version)} | ({"continue": f"{version}.{after}"} if after < len(things) else {})
        _, api_version, kind = KINDS[resource]
        # The items of a real list have no kind of their own.
        items = [{key: value for key, value in it.items() if key not in ("kind", "apiVersion")} for it in page]
        return web.json_response({"kind": f"{kind}List", "apiVersion": api_version, "metadata": meta, "items": items})

    async def _watch(self, resource: str, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        if not set(query) <= WATCH_QUERY or not query["timeoutSeconds"].isdigit() or query["watch"] != "1":
            return refusal(400, f"unknown query {query}")
        version = int(query["resourceVersion"])
        if version > self.version:
            causes = {"details": {"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1}}
            return refusal(504, "Too large resource version", "Timeout", causes)
        response = await opened(request)
        if version < self.compacted:
            status = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
            await response.write(_line("ERROR", status))
            return response
        assert request.transport is not None
        stream = Stream(resource, query, request.transport.get_extra_info("sockname")[1])
        for happened in self.log:
            if happened.resource == resource and happened.version > version and (line := event(happened, query)):
                stream.queue.put_nowait(line)
        await self._stream(stream, request, response)
        return response

    async def _stream(self, stream: Stream, request: web.Request, response: web.StreamResponse) -> None:
        self.streams.append(stream)
        async with self.stirred:
            self.stirred.notify_all()
        try:
            while (what := await stream.queue.get()) is not None:
                if isinstance(what, Exception):
                    if request.transport is not None:
                        request.transport.abort()
                    return
                await response.write(what)
        except ConnectionError:
            pass
        finally:
            self.streams.remove(stream)

    async def _patch(self, request: web.Request) -> web.Response:
        if request.content_type != "application/strategic-merge-patch+json":
            return refusal(415, f"unknown type {request.content_type}")
        for condition in (await request.json())["status"]["conditions"]:
            self.conditions = [each for each in self.conditions if each["type"] != condition["type"]] + [condition]
        return web.json_response({})


# --- what is scripted --------------------------------------------------------------------------


def answering(status: int, reason: str = "", headers: dict[str, str] | None = None) -> Fault:
    async def fault(_: FakeApi, __: web.Request) -> web.StreamResponse:
        response = refusal(status, "scripted", reason)
        response.headers.update(headers or {})
        return response

    return fault


def saying(body: bytes) -> Fault:
    """200 and these bytes."""

    async def fault(_: FakeApi, __: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return fault


def hanging_up(left: bytes = b"") -> Fault:
    """The connection is cut: before an answer, or in the middle of one."""

    async def fault(_: FakeApi, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if left:
            response = await opened(request)
            await response.write(left)
        assert request.transport is not None
        request.transport.abort()
        return response

    return fault


async def opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def refusal(status: int, message: str, reason: str = "", more: Thing | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return web.json_response({**body, "reason": reason, "code": status, **(more or {})}, status=status)


# --- objects -----------------------------------------------------------------------------------


def selection(resource: str, node: str) -> dict[str, str]:
    """Written anew, so that a wrong one in the source is found."""
    if resource == "pods":
        return {"fieldSelector": f"spec.nodeName={node}"}
    return {"labelSelector": "kubernetes.io/service-name"} if resource == "endpointslices" else {}


def _matches(thing: Thing | None, query: dict[str, str]) -> bool:
    if thing is None:
        return False
    if label := query.get("labelSelector"):
        return label in (thing["metadata"].get("labels") or {})
    if field := query.get("fieldSelector"):
        path, _, wanted = field.partition("=")
        assert path == "spec.nodeName"
        return bool(thing["spec"].get("nodeName") == wanted)
    return True


def event(it: Happened, query: dict[str, str]) -> bytes:
    """As a watch with that selection sees it; empty: not at all."""
    was, is_ = _matches(it.before, query), _matches(it.after, query)
    if is_ and it.after is not None:
        return _line("MODIFIED" if was else "ADDED", it.after)
    if was and it.before is not None:
        metadata = {**it.before["metadata"], "resourceVersion": str(it.version)}
        return _line("DELETED", {**it.before, "metadata": metadata})
    return b""


def _line(kind: str, thing: Thing) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def name_of(thing: Thing) -> Name:
    return thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def namespace(name: str, **labels: str) -> Thing:
    return {"metadata": {"name": name, "labels": labels}}


def node(name: str, *ranges: str, address: str = "192.0.2.1", **status: Any) -> Thing:
    addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]
    spec = {"podCIDR": ranges[0], "podCIDRs": list(ranges)} if ranges else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"addresses": addresses, **status}}


def pod(name: str, node: str | None, ip: str | None = None) -> Thing:
    status = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
        "status": status,
    }


def service(name: str, ip: str, port: int = 80, namespace: str = "default") -> Thing:
    spec = {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": port, "protocol": "TCP"}]}
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}}


def slice_(name: str, of: str | None, *addresses: str, namespace: str = "default") -> Thing:
    labels = {"kubernetes.io/service-name": of} if of else {}
    members = [
        {"addresses": [ip], "conditions": {"ready": True, "serving": True, "terminating": False}, "nodeName": "one"}
        for ip in addresses
    ]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": members,
    }


def service_cidr(name: str, *ranges: str) -> Thing:
    return {"metadata": {"name": name}, "spec": {"cidrs": list(ranges)}}


def some_cluster(fake: FakeApi) -> None:
    """One of each kind, and what an agent of node one must not see."""
    fake.put("nodes", node("one", "10.1.1.0/24"))
    fake.put("namespaces", namespace("default", team="net"))
    fake.put("pods", pod("mine", "one", "10.1.1.2"))
    fake.put("pods", pod("others", "two", "10.1.2.2"))
    fake.put("pods", pod("nobodys", None))
    fake.put("services", service("web", "10.96.0.10"))
    fake.put("endpointslices", slice_("web-1", "web", "10.1.1.2", "10.1.2.2"))
    fake.put("endpointslices", slice_("stray", None, "10.1.1.9"))
    fake.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/16"))
    fake.put("podpools", kube_records.pool("pods", "10.1.0.0/16"))
    fake.put("podblocks", kube_records.block("10.1.0.64/26", "one", uid="uid-one"))
