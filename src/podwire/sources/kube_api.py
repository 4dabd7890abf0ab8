"""Requests to the API: which server answers, over TLS, as whom, and every failure as one `ApiError`.

Invariants: servers are alternatives: one that gives no answer, or says that it is broken, is left for the next one, and
the one that works is stayed with. Credentials are asked for at each request; a 401 is tried once more with new ones. A
server whose machine has died is noticed by keepalive, however long a watch may be silent. No redirect is followed and
no proxy is used, so that credentials go nowhere else.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from podwire.sources.kube_config import Access
from podwire.sources.kube_credentials import Credentials, CredentialsError
from podwire.version import version

CONNECT_SECONDS = 5.0
"""For TCP and TLS of one server."""
ANSWER_SECONDS = 30.0
"""Between two pieces of an answer, but for a watch's."""
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A peer that is silent for 30 s is gone (tcp(7))."""
STRATEGIC_MERGE, MERGE = "application/strategic-merge-patch+json", "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
"""Of a PATCH; custom resources don't know the first. The second merges (RFC 7386), the third says what to do
(RFC 6902)."""
APPLY = "application/apply-patch+yaml"
"""A patch that makes what there is not (server-side apply, KEP-555); JSON is YAML."""
_EXPECTED = (404, 409, 410)
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class ApiError(Exception):
    """A request that failed, in one line. `status` 0: nobody answered. `retry_after` in seconds, 0: not said.

    `expired`: the version or page that was asked for can't be had; only a new list helps.
    """

    def __init__(self, text: str, status: int = 0, *, expired: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.expired, self.retry_after = status, expired, retry_after


# --- errors as the API tells them --------------------------------------------------------------


class Cause(Struct, frozen=True):
    reason: str | None = None


class Details(Struct, frozen=True, rename="camel"):
    causes: list[Cause] | None = None
    retry_after_seconds: int | None = None


class Status(Struct, frozen=True):
    """Kubernetes API, meta/v1 Status."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: Details | None = None


def status_error(status: Status, code: int, where: str, retry_after: float = 0.0) -> ApiError:
    """`where` says which request of whom. `code` is HTTP's, where the status has none of its own."""
    details = status.details or Details()
    causes = {cause.reason for cause in details.causes or ()}
    # A version ahead of the server's: its cache lags behind, or etcd was restored from a backup.
    expired = status.reason in ("Expired", "Gone") or status.code == 410 or "ResourceVersionTooLarge" in causes
    text = " ".join((status.message or status.reason or "without a reason").split())
    code = status.code or code
    return ApiError(
        f"{where}: {code} {text}",
        code,
        expired=expired or code == 410,
        retry_after=max(retry_after, details.retry_after_seconds or 0.0),
    )


# --- requests ----------------------------------------------------------------------------------


class Api:
    """One connection pool, made at the first request; `close` ends it."""

    def __init__(self, access: Access, credentials: Credentials) -> None:
        self._servers, self._server_name = access.servers, access.server_name
        self._credentials = credentials
        self._at = 0
        self._session: aiohttp.ClientSession | None = None
        self.errors = 0
        """Requests that were refused, but for what is not there or has changed meanwhile, or that nobody answered."""

    @property
    def server(self) -> str:
        """Who is asked first."""
        return self._servers[self._at]

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Raises ApiError."""
        async with self._answer("GET", path, ANSWER_SECONDS, params=query) as response:
            return await response.read()

    async def find(self, path: str) -> bytes | None:
        """None: there is no such object. Raises ApiError."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def patch(self, path: str, body: bytes, kind: str = STRATEGIC_MERGE) -> bytes:
        """Raises ApiError."""
        return await self._send("PATCH", path, body, kind)

    async def post(self, path: str, body: bytes) -> bytes:
        """Raises ApiError."""
        return await self._send("POST", path, body, "application/json")

    async def delete(self, path: str, body: bytes) -> bytes:
        """`body`: a DeleteOptions. Raises ApiError."""
        return await self._send("DELETE", path, body, "application/json")

    async def _send(self, method: str, path: str, body: bytes, kind: str) -> bytes:
        headers = {"Content-Type": kind}
        async with self._answer(method, path, ANSWER_SECONDS, data=body, headers=headers) as response:
            return await response.read()

    @asynccontextmanager
    async def lines(
        self, path: str, query: Mapping[str, str], silence: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """The lines of an answer without end, each time as many as have come. Raises ApiError, also when iterated.

        `silence` in seconds: after so much of it the server is given up.
        """
        async with self._answer("GET", path, silence, params=query) as response:
            yield whole_lines(response.content)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, silence: float, **more: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer, whose body may still fail."""
        server, response = await self._first_answer(method, path, silence, more)
        where = f"{method} {server}{path}"
        try:
            if response.status >= 300:
                if response.status >= 500:
                    self._leave(server)
                self.errors += response.status not in _EXPECTED
                raise await _refusal(response, where)
            yield response
        except _BROKEN as error:
            self.errors += 1
            raise ApiError(f"{server}: {_words(error)}") from None
        finally:
            _drop(response)

    async def _first_answer(
        self, method: str, path: str, silence: float, more: dict[str, Any]
    ) -> tuple[str, aiohttp.ClientResponse]:
        failures: list[str] = []
        for _ in self._servers:
            server = self.server
            try:
                return server, await self._ask(method, server, path, silence, more)
            except CredentialsError as error:
                self.errors += 1
                raise ApiError(str(error)) from None
            except _BROKEN as error:
                failures.append(f"{server}: {_words(error)}")
                self._leave(server)
        self.errors += 1
        raise ApiError("; ".join(failures))

    async def _ask(
        self, method: str, server: str, path: str, silence: float, more: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        response = await self._ask_once(method, server, path, silence, more)
        if response.status == 401:
            _drop(response)
            self._credentials.refused()
            response = await self._ask_once(method, server, path, silence, more)
        return response

    async def _ask_once(
        self, method: str, server: str, path: str, silence: float, more: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        token, tls = await self._credentials.current()
        headers = more.get("headers", {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        if self._session is None:
            self._session = _session()
        return await self._session.request(
            method,
            server + path,
            **more | {"headers": headers},
            ssl=tls,
            server_hostname=self._server_name,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=silence),
        )

    def _leave(self, server: str) -> None:
        """Of several requests that fail at one server only the first moves on."""
        if self.server == server:
            self._at = (self._at + 1) % len(self._servers)


def _session() -> aiohttp.ClientSession:
    # Not compressed: on a cluster's own network that costs both sides more than it saves.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": f"podwire/{version()}"}
    return aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    for level, option, value in KEEPALIVE:
        made.setsockopt(level, option, value)
    return made


async def whole_lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """What a cut connection leaves of a line is dropped."""
    rest = b""
    while chunk := await content.readany():
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield whole


def _drop(response: aiohttp.ClientResponse) -> None:
    """An answer that was read to its end has no connection any more: it is back in the pool. Any other is cut: a
    goodbye by TLS would wait for the server's."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def _refusal(response: aiohttp.ClientResponse, where: str) -> ApiError:
    try:
        status = msgspec.json.decode(await response.read(), type=Status)
    except msgspec.DecodeError:  # not the API itself, but what stands before it
        status = Status(message=response.reason)
    later = response.headers.get("Retry-After", "")
    return status_error(status, response.status, where, float(later) if later.isascii() and later.isdigit() else 0.0)


def _words(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection ended in the middle of an answer"
    cause: BaseException = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and (cause.errno or 0) > 0:
        return os.strerror(cause.errno or 0)
    return " ".join(str(cause).split()) or type(cause).__name__
