"""What strangers send to the agent's HTTP servers is not written into its log; its own errors are."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from podwire import httplog
from tests.unit.served_agent import serving

HOST = b" HTTP/1.1\r\nHost: x\r\n"
BAD = {
    "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(60)),
    "no HTTP": b"hello\r\n\r\n",
    "long URL": b"GET /" + b"a" * 9000 + HOST + b"\r\n",
    "bad URL": b"GET http://[::1/" + HOST + b"\r\n",
    "bad port in the URL": b"GET http://x:99999999/" + HOST + b"\r\n",
    "long header": b"GET /" + HOST + b"A: " + b"a" * 9000 + b"\r\n\r\n",
    "many headers": b"GET /" + HOST + b"A: a\r\n" * 500 + b"\r\n",
    "bad header": b"GET /" + HOST + b"A\x00: a\r\n\r\n",
    "two lengths": b"POST /" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "bad length": b"POST /" + HOST + b"Content-Length: -1\r\n\r\n",
    "bad chunk": b"POST /" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "bad second chunk": b"POST /" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\nzz\r\n",
    "bad gzip": b"POST /" + HOST + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    "bad version": b"GET / HTTP/9.9\r\n\r\n",
    "garbage after a request": b"GET /" + HOST + b"\r\n\x00\x01\r\n\r\n",
    "garbage after an upgrade": b"GET /" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n\x00\x01\r\n\r\n",
    "bad expectation": b"GET /" + HOST + b"Expect: foo\r\n\r\n",
    "a body that ends early": b"POST /" + HOST + b"Content-Length: 9\r\n\r\nabc",
    "half a request": b"GET /" + HOST,
}
ENDS_EARLY = BAD["a body that ends early"], BAD["half a request"]


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    """What is answered to a client that says no more once it has an answer, or has nothing to wait for."""
    try:
        writer.write(data)
        first = await reader.read(1) if data not in ENDS_EARLY else b""
        writer.write_eof()
        return first + await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@asynccontextmanager
async def served(answer: Callable[[web.BaseRequest], Awaitable[web.Response]]) -> AsyncIterator[socket.socket]:
    """A client's connection to such a server."""
    server = web.Server(answer, access_log=None, logger=httplog.log)
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(server, theirs)
    try:
        yield ours
    finally:
        await server.shutdown(0)


async def unread(_: web.BaseRequest) -> web.Response:
    return web.Response()


async def read(request: web.BaseRequest) -> web.Response:
    return web.Response(body=await request.read())


@pytest.mark.parametrize("answer", [unread, read], ids=["body unread", "body read"])
@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
async def test_bad_requests_are_not_logged(
    caplog: pytest.LogCaptureFixture, data: bytes, answer: Callable[[web.BaseRequest], Awaitable[web.Response]]
) -> None:
    caplog.set_level(logging.INFO)
    async with served(answer) as ours:
        await send(*await asyncio.open_connection(sock=ours), data)
    assert caplog.records == []


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
async def test_bad_requests_to_the_admin_socket_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(tmp_path) as agent:
        await send(*await asyncio.open_unix_connection(agent.socket), data)
    assert caplog.records == []


async def test_who_debugs_is_told_in_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, httplog.log.name)
    async with served(unread) as ours:
        answer = await send(*await asyncio.open_connection(sock=ours), BAD["long header"])
    assert answer.startswith(b"HTTP/1.0 400 ")
    (told,) = (record for record in caplog.records if record.name == httplog.log.name)
    assert (told.levelname, told.exc_info) == ("DEBUG", None)
    assert "LineTooLong: " in told.getMessage()
    assert told.getMessage().isprintable()
    assert len(told.getMessage()) < 200


async def test_an_internal_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.BaseRequest) -> web.Response:
        raise ValueError("a bug")

    async with served(broken) as ours:
        answer = await send(*await asyncio.open_connection(sock=ours), b"GET /" + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    (told,) = caplog.records
    assert told.levelname == "ERROR"
    assert told.exc_info is not None
    assert isinstance(told.exc_info[1], ValueError)
