"""Whoever connects to the port of the metrics, and however often, keeps no monitor from its answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from podwire import connections, views
from podwire.admin import server as admin
from podwire.statistics.kept import ServiceTotals
from tests.unit.served_agent import FakeStatistics, ServedAgent

MOST = connections.MONITORS.most
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def monitored(directory: Path, statistics: FakeStatistics | None = None) -> AsyncIterator[int]:
    """The port, at which this node's own addresses in 127.0.0.0/8 may ask."""
    agent = ServedAgent(directory)
    facts = views.Facts(**agent.facts)
    runner = await admin.serve_monitors(
        "127.0.0.1", 0, agent.controller, lambda: facts, statistics or FakeStatistics(agent.controller)
    )
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def connected(port: int, source: str, said: bytes = b"") -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    writer.write(said)
    await writer.drain()
    return reader, writer


async def status(port: int, source: str, path: str = "/metrics") -> int:
    connector = aiohttp.TCPConnector(local_addr=(source, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        await response.read()
        assert response.headers["Connection"] == "close"
        return response.status


async def ended(one: Connection) -> bytes:
    """What the server still said before it ended the connection."""
    said = b""
    with suppress(ConnectionError):
        said = await one[0].read()
    one[1].close()
    return said


@pytest.mark.parametrize("said", [b"", b"GET /metr"], ids=["nothing", "half a question"])
@pytest.mark.parametrize("sources", [1, 8], ids=["one address", "many addresses"])
async def test_whoever_holds_connections_keeps_nobody_from_asking(said: bytes, sources: int, tmp_path: Path) -> None:
    async with monitored(tmp_path) as port:
        held = [await connected(port, f"127.0.1.{n % sources + 1}", said) for n in range(3 * MOST)]
        for source in ("127.0.1.1", "127.0.2.1"):
            assert await status(port, source) == 200
        for one in held[: 2 * MOST]:
            await ended(one)
        for _, writer in held[2 * MOST :]:
            writer.close()


async def test_nobody_holds_a_connection_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MONITORS", connections.MONITORS._replace(seconds=0.05))
    async with monitored(tmp_path) as port:
        await ended(await connected(port, "127.0.1.1", b"GET /metrics HTTP/1.1\r\nHost: a\r\nA: "))


class Slow(FakeStatistics):
    """Reads until the test says so."""

    def __init__(self, agent: ServedAgent) -> None:
        super().__init__(agent.controller)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def services(self) -> ServiceTotals:
        self.asked.set()
        await self.go_on.wait()
        return await super().services()


@pytest.mark.parametrize("sources", [1, 8], ids=["one address", "many addresses"])
async def test_a_scrape_under_way_is_not_ended_for_a_newcomer(sources: int, tmp_path: Path) -> None:
    slow = Slow(ServedAgent(tmp_path))
    async with monitored(tmp_path, slow) as port:
        scrape = asyncio.create_task(status(port, "127.0.1.1", "/metrics/services"))
        await slow.asked.wait()
        held = [await connected(port, f"127.0.1.{n % sources + 1}") for n in range(2 * MOST)]
        slow.go_on.set()
        assert await scrape == 200
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("sources", [1, 8], ids=["one address", "many addresses"])
async def test_a_scrape_that_is_being_sent_is_not_ended_for_a_newcomer(sources: int) -> None:
    """More than the kernel takes at once: the answer is made, and most of it waits for its reader."""
    body = bytes(32 << 20)

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body)

    brief = connections.BriefServer(answer, connections.MONITORS, access_log=None, handler_cancellation=True)
    listening = await asyncio.get_running_loop().create_server(brief, "127.0.0.1", 0)
    try:
        port = listening.sockets[0].getsockname()[1]
        scrape = await connected(port, "127.0.1.1", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await scrape[0].readuntil(b"\r\n\r\n")
        held = [await connected(port, f"127.0.1.{n % sources + 1}") for n in range(2 * MOST)]
        await ended(held[0])  # the room is for those who come
        assert len(await ended(scrape)) == len(body)
        for _, writer in held:
            writer.close()
    finally:
        listening.close()
        await brief.shutdown(0)


@pytest.mark.parametrize(
    ("method", "path", "code", "error"),
    [
        ("POST", "/metrics", 405, "this API has no POST /metrics"),
        ("GET", "/status", 404, "this API has no GET /status"),
    ],
)
async def test_what_is_not_served_there_is_said_in_one_line(
    method: str, path: str, code: int, error: str, tmp_path: Path
) -> None:
    async with (
        monitored(tmp_path) as port,
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}") as response,
    ):
        assert (response.status, await response.json()) == (code, {"error": error})


async def test_head_has_no_body(tmp_path: Path) -> None:
    async with monitored(tmp_path) as port:
        one = await connected(port, "127.0.1.1", b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = (await ended(one)).partition(b"\r\n\r\n")
    assert (head.startswith(b"HTTP/1.1 200 "), body) == (True, b"")
