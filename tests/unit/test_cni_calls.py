"""The server of the plugin's calls: against a whole gRPC client, against frames made by hand, and against nonsense."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc import aio

from podwire.cni import shim
from podwire.sources import cni_calls
from podwire.sources.cni_calls import STREAMS, TURN, CallServer

LARGEST = 200_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHOD = "/podwire.v1.Cni/Call"
Frame = tuple[int, int, int, bytes]
Started = Callable[[Callable[[bytes], Awaitable[bytes]]], Awaitable[CallServer]]


async def echo(message: bytes) -> bytes:
    return message[::-1]


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "cni.sock"


@pytest.fixture
async def started(socket: Path) -> AsyncIterator[Started]:
    servers: list[CallServer] = []

    async def start(call: Callable[[bytes], Awaitable[bytes]]) -> CallServer:
        servers.append(CallServer(call, LARGEST))
        await servers[-1].listen(socket)
        return servers[-1]

    yield start
    for server in servers:
        await server.stop(None)


class Client:
    """Frames by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def frame(self) -> Frame:
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def until(self, kind: int, number: int, flags: int = 0) -> list[Frame]:
        """Up to the first such frame, but for windows."""
        found: list[Frame] = []
        while not found or (found[-1][0], found[-1][2], found[-1][1] & flags) != (kind, number, flags):
            found.append(await self.frame())
        return [each for each in found if each[0] != shim.WINDOW_UPDATE]

    async def answer(self, number: int) -> tuple[bytes, bytes]:
        """The data of an answer, and its trailers."""
        found = await self.until(shim.HEADERS, number, shim.END_STREAM)
        return b"".join(part for kind, _, of, part in found if (kind, of) == (shim.DATA, number)), found[-1][3]


@contextlib.asynccontextmanager
async def client(socket: Path) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def opened(number: int, flags: int = shim.END_HEADERS, block: bytes = b"\x83\x86") -> bytes:
    return shim.frame(shim.HEADERS, flags, number, block)


def body(number: int, message: bytes, flags: int = shim.END_STREAM, compressed: int = 0) -> bytes:
    whole = bytes((compressed,)) + len(message).to_bytes(4, "big") + message
    parts = [whole[at : at + shim.FRAME] for at in range(0, len(whole), shim.FRAME)]
    frames = [shim.frame(shim.DATA, 0, number, part) for part in parts[:-1]]
    return b"".join([*frames, shim.frame(shim.DATA, flags, number, parts[-1])])


def settings(window: int) -> bytes:
    return shim.frame(shim.SETTINGS, 0, 0, b"\0\4" + window.to_bytes(4, "big"))


NO_SETTINGS = shim.frame(shim.SETTINGS, 0, 0, b"")


def said(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


PADDED = shim.frame(shim.DATA, shim.PADDED, 1, b"\3" + said(b"abc")[:4] + bytes(3))


# --- a whole client ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 20_000, LARGEST])
async def test_a_grpc_client_is_answered(started: Started, socket: Path, size: int) -> None:
    await started(echo)
    message = bytes(number % 251 for number in range(size))
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(METHOD)
        for _ in range(3):
            assert await call(message) == message[::-1]


async def test_many_calls_of_one_client_at_a_time(started: Started, socket: Path) -> None:
    """More than are taken at a time, each longer than a window, one after the other in whatever order."""
    await started(echo)
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(METHOD)
        messages = [bytes((number % 256,)) * 70_000 + b"x" for number in range(STREAMS + 50)]
        found = await asyncio.gather(*(call(message) for message in messages))
    assert found == [message[::-1] for message in messages]


async def test_what_is_too_large_is_refused_alone(started: Started, socket: Path) -> None:
    await started(echo)
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(METHOD)
        with pytest.raises(aio.AioRpcError) as refused:
            await call(bytes(LARGEST + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(b"ab") == b"ba"


async def test_a_bug_is_an_internal_error(started: Started, socket: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def bug(_: bytes) -> bytes:
        raise RuntimeError("a bug")

    await started(bug)
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        with pytest.raises(aio.AioRpcError) as failed:
            await channel.unary_unary(METHOD)(b"x")
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "a bug" in caplog.text


# --- frames ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1, 2, 8, 9, 25, 1000])
async def test_a_call_may_come_in_any_parts(started: Started, socket: Path, part: int) -> None:
    await started(echo)
    whole = PREFACE + settings(shim.MOST) + opened(1) + body(1, b"abc")
    async with client(socket) as it:
        for at in range(0, len(whole), part):
            it.say(whole[at : at + part])
            await it.writer.drain()
            await asyncio.sleep(0)
        assert await it.answer(1) == (said(b"cba"), b"\0\x0bgrpc-status\x010")


@pytest.mark.parametrize("speaks", [False, True], ids=["waits", "says more"])
async def test_who_only_waits_is_told_all_at_once(started: Started, socket: Path, speaks: bool) -> None:
    """The plugin is woken once, by its answer; who says more hears at once what that is answered with."""
    taken, go = asyncio.Event(), asyncio.Event()

    async def slow(message: bytes) -> bytes:
        taken.set()
        await go.wait()
        return message

    await started(slow)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS, opened(1), body(1, b"abc"))
        await taken.wait()
        if speaks:
            it.say(shim.frame(shim.PING, 0, 0, bytes(8)))
            assert [frame[:2] for frame in await it.until(shim.PING, 0)] == [
                (shim.SETTINGS, 0), (shim.SETTINGS, shim.ACK), (shim.PING, shim.ACK)
            ]  # fmt: skip
            go.set()
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(it.reader.readexactly(1), 0.05)
            go.set()
            assert [frame[:2] for frame in await it.until(shim.SETTINGS, 0, shim.ACK)] == [
                (shim.SETTINGS, 0), (shim.SETTINGS, shim.ACK)
            ]  # fmt: skip
        assert (await it.answer(1))[0] == said(b"abc")


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [opened(1, 0), shim.frame(9, 0, 1, b"x" * 99), shim.frame(9, shim.END_HEADERS, 1, b""), body(1, b"abc")],
            id="headers in several frames",
        ),
        pytest.param([opened(1), PADDED, shim.frame(shim.DATA, shim.END_STREAM, 1, said(b"abc")[4:])], id="padded"),
        pytest.param([opened(1), body(1, b"abc", 0), shim.frame(shim.DATA, shim.END_STREAM, 1, b"")], id="empty end"),
        pytest.param([opened(1), body(1, b"abc", 0), opened(1, shim.END_HEADERS | shim.END_STREAM)], id="trailers"),
        pytest.param([shim.frame(0x42, 0xFF, 7, b"?"), opened(1), shim.frame(2, 0, 1, bytes(5)), body(1, b"abc")],
                     id="frames of unknown types, and priorities"),
    ],
)  # fmt: skip
async def test_all_that_http2_allows_is_understood(started: Started, socket: Path, parts: list[bytes]) -> None:
    await started(echo)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS, *parts)
        assert (await it.answer(1))[0] == said(b"cba")


async def test_a_ping_is_answered(started: Started, socket: Path) -> None:
    await started(echo)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS, shim.frame(shim.PING, 0, 0, b"12345678"))
        assert (await it.until(shim.PING, 0))[-1] == (shim.PING, shim.ACK, 0, b"12345678")


async def test_no_more_is_sent_than_the_client_takes(started: Started, socket: Path) -> None:
    """By its stream's window, then by the connection's, and whatever its settings do to open windows."""
    await started(echo)
    async with client(socket) as it:
        it.say(PREFACE, settings(10), opened(1), body(1, bytes(LARGEST)))
        assert len((await it.until(shim.DATA, 1))[-1][3]) == 10
        it.say(shim.frame(shim.WINDOW_UPDATE, 0, 1, (5).to_bytes(4, "big")))
        assert len((await it.until(shim.DATA, 1))[-1][3]) == 5
        it.say(settings(0), settings(LARGEST))  # of the stream's 15 bytes all are used
        left = 65_535 - 15
        while left:
            left -= len((await it.until(shim.DATA, 1))[-1][3])
        it.say(shim.frame(shim.PING, 0, 0, bytes(8)))
        assert (await it.until(shim.PING, 0))[0][0] != shim.DATA
        it.say(shim.frame(shim.WINDOW_UPDATE, 0, 0, LARGEST.to_bytes(4, "big")))
        data, trailers = await it.answer(1)
        assert (len(data), trailers[-1:]) == (LARGEST + 5 - 65_535, b"0")


@pytest.mark.parametrize(
    ("call", "status"),
    [
        pytest.param(opened(1, shim.END_HEADERS | shim.END_STREAM), b"13", id="no message"),
        pytest.param(opened(1) + shim.frame(shim.DATA, shim.END_STREAM, 1, b"\0\0\0\0\5abc"), b"13", id="half of one"),
        pytest.param(opened(1) + body(1, b"abc", compressed=1), b"12", id="a compressed one"),
        pytest.param(opened(1) + body(1, bytes(LARGEST + 20_000), 0), b"8", id="too large, and not at its end"),
    ],
)
async def test_a_wrong_call_has_a_status_and_the_next_is_served(
    started: Started, socket: Path, call: bytes, status: bytes
) -> None:
    await started(echo)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS, call)
        data, trailers = await it.answer(1)
        assert (data, trailers.rpartition(b"grpc-status")[2]) == (b"", bytes((len(status),)) + status)
        it.say(opened(3), body(3, b"abc"))
        assert (await it.answer(3))[0] == said(b"cba")


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP/1.1"),
        pytest.param(PREFACE[:10] + b"?", id="a preface that turns wrong"),
        pytest.param(PREFACE + b"\xff\xff\xff\0\0\0\0\0\1", id="a frame that is too large"),
        pytest.param(PREFACE + shim.frame(shim.SETTINGS, 0, 0, b"\0\4\0"), id="half a setting"),
        pytest.param(PREFACE + shim.frame(shim.PING, 0, 0, b"1"), id="a short ping"),
        pytest.param(PREFACE + body(1, b"abc"), id="data without headers"),
        pytest.param(PREFACE + body(0, b"abc"), id="data of the connection"),
        pytest.param(PREFACE + opened(2), id="a stream that is the server's to open"),
        pytest.param(PREFACE + opened(0), id="headers of the connection"),
        pytest.param(PREFACE + opened(1, 0) + body(1, b"abc"), id="headers without their end"),
        pytest.param(PREFACE + shim.frame(9, 0, 1, b""), id="the end of no headers"),
        pytest.param(PREFACE + opened(1) + shim.frame(shim.DATA, shim.PADDED, 1, b"\x09abc"), id="too much padding"),
    ],
)
async def test_who_breaks_the_protocol_loses_its_connection_alone(
    started: Started, socket: Path, nonsense: bytes
) -> None:
    await started(echo)
    async with client(socket) as other, client(socket) as it:
        it.say(nonsense)
        await it.reader.read()  # to its end
        other.say(PREFACE, NO_SETTINGS, opened(1), body(1, b"abc"))
        assert (await other.answer(1))[0] == said(b"cba")


# --- floods ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "frame", "answer"),
    [
        pytest.param(b"", shim.frame(shim.PING, 0, 0, bytes(8)), shim.PING, id="pings"),
        pytest.param(b"", NO_SETTINGS, shim.SETTINGS, id="settings"),
        pytest.param(
            opened(1) + shim.frame(shim.RST_STREAM, 0, 1, bytes(4)), shim.frame(shim.DATA, 0, 1, b"x"),
            shim.WINDOW_UPDATE, id="data of what was given up",
        ),
    ],
)  # fmt: skip
async def test_who_does_not_read_its_answers_is_not_listened_to(
    started: Started, socket: Path, start: bytes, frame: bytes, answer: int
) -> None:
    """So nothing is kept for it without end; and nothing is lost where it reads on."""
    await started(echo)
    most = 4 << 20  # more than both ends' buffers hold, in frames and in answers
    told = most // len(frame)
    async with client(socket) as it:
        it.writer.transport.set_write_buffer_limits(0)
        it.reader._transport.pause_reading()  # type: ignore[attr-defined]
        it.say(PREFACE, NO_SETTINGS, start, frame * told)
        stuck = asyncio.create_task(it.writer.drain())
        async with client(socket) as other:
            other.say(PREFACE)
            for number in range(1, 801, 2):  # more turns than all of it would take
                other.say(opened(number), body(number, b"abc"))
                assert (await other.answer(number))[0] == said(b"cba")
        assert not stuck.done()
        it.reader._transport.resume_reading()  # type: ignore[attr-defined]
        found = 0
        while found < told:
            kind, flags, _, _ = await it.frame()
            found += kind == answer and (flags & shim.ACK != 0 or answer == shim.WINDOW_UPDATE)
        await stuck


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(shim.frame(shim.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), id="windows"),
        pytest.param(shim.frame(shim.WINDOW_UPDATE, 0, 0, bytes(4)), id="windows of nothing"),
        pytest.param(shim.frame(shim.HEADERS, 0, 1, b"") + shim.frame(9, shim.END_HEADERS, 1, b""), id="headers"),
        pytest.param(shim.frame(0x42, 0, 0, b""), id="frames of an unknown type"),
    ],
)
async def test_others_get_their_turn_among_any_number_of_frames(started: Started, socket: Path, frame: bytes) -> None:
    await started(echo)
    async with client(socket) as it, client(socket) as other:
        it.say(PREFACE, NO_SETTINGS, frame * (20 * TURN), shim.frame(shim.PING, 0, 0, bytes(8)))
        other.say(PREFACE, NO_SETTINGS, opened(1), body(1, b"abc"))
        flood, call = asyncio.create_task(it.until(shim.PING, 0)), asyncio.create_task(other.answer(1))
        done, _ = await asyncio.wait([flood, call], return_when=asyncio.FIRST_COMPLETED)
        assert done == {call}
        await flood


async def test_calls_that_were_given_up_count_until_they_are_done(started: Started, socket: Path) -> None:
    under_way, go = 0, asyncio.Event()

    async def slow(message: bytes) -> bytes:
        nonlocal under_way
        under_way += 1
        await go.wait()
        return message

    await started(slow)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS)
        last = 2 * STREAMS + 21
        for number in range(1, last + 1, 2):
            it.say(opened(number), body(number, b"abc"), shim.frame(shim.RST_STREAM, 0, number, bytes(4)))
        assert (await it.until(shim.RST_STREAM, last))[-1][3] == b"\0\0\0\7"
        assert under_way == STREAMS
        go.set()
        it.say(shim.frame(shim.PING, 0, 0, bytes(8)))
        await it.until(shim.PING, 0)
        it.say(opened(last + 2), body(last + 2, b"abc"))
        assert (await it.answer(last + 2))[0] == said(b"abc")


async def test_idle_connections_make_room_for_newcomers(
    started: Started, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But none that waits for an answer, and nobody who has only just come."""
    go = asyncio.Event()

    async def slow(message: bytes) -> bytes:
        await go.wait()
        return message

    await started(slow)
    monkeypatch.setattr(cni_calls, "CONNECTIONS", 3)
    async with contextlib.AsyncExitStack() as opened_:

        async def come() -> Client:
            it = await opened_.enter_async_context(client(socket))
            it.say(PREFACE, NO_SETTINGS, shim.frame(shim.PING, 0, 0, bytes(8)))
            await it.until(shim.PING, 0)
            return it

        waiting = await come()
        waiting.say(opened(1), body(1, b"abc"))
        young = [await come() for _ in range(4)]
        monkeypatch.setattr(cni_calls, "CONNECTIONS", 5)
        monkeypatch.setattr(cni_calls, "IDLE", 0.0)
        await come()
        assert await young[0].reader.read() == b""
        monkeypatch.setattr(cni_calls, "IDLE", 10.0)
        go.set()
        assert (await waiting.answer(1))[0] == said(b"abc")
        for it in young[1:]:
            it.say(opened(1), body(1, b"abc"))
            assert (await it.answer(1))[0] == said(b"abc")


async def test_idle_connections_go_though_nobody_comes(
    started: Started, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they have taken all files, nobody can."""
    await started(echo)
    monkeypatch.setattr(cni_calls, "CONNECTIONS", 2)
    monkeypatch.setattr(cni_calls, "IDLE", 0.05)
    async with contextlib.AsyncExitStack() as held:
        all_of_them = [await held.enter_async_context(client(socket)) for _ in range(6)]
        ends = [asyncio.create_task(it.reader.read()) for it in all_of_them]
        await asyncio.wait_for(asyncio.gather(*ends[:4]), 10)
        assert not any(end.done() for end in ends[4:])
        for end in ends[4:]:
            end.cancel()


# --- coming and going --------------------------------------------------------------------------


async def test_what_is_asked_for_is_done_though_the_client_has_gone(started: Started, socket: Path) -> None:
    taken, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(message: bytes) -> bytes:
        taken.set()
        await go.wait()
        done.set()
        return message

    server = await started(slow)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS, opened(1), body(1, b"abc"))
        await taken.wait()
    go.set()
    await asyncio.wait_for(done.wait(), 10)
    await server.stop(10)


@pytest.mark.parametrize("patient", [True, False], ids=["in time", "too late"])
async def test_an_end_waits_for_calls_under_way(started: Started, socket: Path, patient: bool) -> None:
    taken, go = asyncio.Event(), asyncio.Event()

    async def slow(message: bytes) -> bytes:
        taken.set()
        await go.wait()
        return message

    server = await started(slow)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS, opened(1), body(1, b"abc"))
        await taken.wait()
        stopping = asyncio.create_task(server.stop(10 if patient else 0.01))
        await asyncio.sleep(0)
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(socket)
        if patient:
            go.set()
            assert (await it.answer(1))[0] == said(b"abc")
        await asyncio.gather(stopping, server.ended())
        await it.reader.read()  # to its end


async def test_a_call_that_is_given_up_is_answered_with_nothing(started: Started, socket: Path) -> None:
    await started(echo)
    async with client(socket) as it:
        it.say(PREFACE, NO_SETTINGS, opened(1), body(1, b"abc", 0))
        it.say(shim.frame(shim.RST_STREAM, 0, 1, bytes(4)), body(1, b"late"), opened(3), body(3, b"abc"))
        found = await it.until(shim.HEADERS, 3, shim.END_STREAM)
        assert {number for _, _, number, _ in found} == {0, 3}


async def test_calls_beyond_the_limit_are_refused(started: Started, socket: Path) -> None:
    go = asyncio.Event()

    async def slow(message: bytes) -> bytes:
        await go.wait()
        return message

    await started(slow)
    async with client(socket) as it:
        numbers = range(1, 2 * STREAMS, 2)
        it.say(PREFACE, NO_SETTINGS, *(opened(number) + body(number, b"x") for number in numbers))
        it.say(opened(2 * STREAMS + 1), body(2 * STREAMS + 1, b"x"))
        refused = (await it.until(shim.RST_STREAM, 2 * STREAMS + 1))[-1]
        assert refused[3] == b"\0\0\0\7"
        go.set()
        assert (await it.answer(numbers[-1]))[0] == said(b"x")
