"""The vty's protocol, against a daemon that answers in pieces, ends in between, or says nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.bgp import vty
from podwire.bgp.change import END
from podwire.bgp.vty import Gone, Vty

Answering = Callable[[str], tuple[bytes, int]]


@asynccontextmanager
async def daemon(answer: Answering, pieces: Sequence[int] = (), ends_after: int = 1 << 30) -> AsyncIterator[Path]:
    """`pieces`: how many bytes are written at a time, in turn. `ends_after`: so many bytes of answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left, sizes = ends_after, list(pieces)
        try:
            while left > 0:
                command = (await reader.readuntil(b"\0"))[:-1].decode()
                if command == "half":
                    writer.write(b"half an answer")
                    continue
                text, code = (b"", 0) if command == "enable" else answer(command)
                told = text + b"\0\0\0" + bytes([code])
                if command != "enable":
                    told, left = told[:left], left - len(told)
                while told:
                    size = sizes[0] if sizes else len(told)
                    sizes = [*sizes[1:], *sizes[:1]]
                    writer.write(told[:size])
                    await writer.drain()
                    await asyncio.sleep(0)
                    told = told[size:]
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    with TemporaryDirectory() as directory:
        path = Path(directory) / "bgpd.vty"
        server = await asyncio.start_unix_server(serve, path)
        try:
            yield path
        finally:
            server.close()


texts = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20), min_size=1)


@given(texts, st.lists(st.integers(1, 7), max_size=4), st.integers(0, 255))
def test_answers_are_whole_and_in_order_however_they_come(said: list[str], pieces: list[int], code: int) -> None:
    async def ask() -> None:
        async with daemon(lambda it: (said[int(it)].encode(), code), pieces) as path:
            connection = await Vty.connected(path)
            answers = await connection.ask([str(number) for number in range(len(said))])
            assert [(it.text, it.code) for it in answers] == [(it, code) for it in said]
            (again,) = await connection.ask(["0"])
            assert again.text == said[0]
            connection.close()

    asyncio.run(ask())


@pytest.mark.parametrize("bytes_", [1, 5, 6, 7, 8, 9, 10])
async def test_a_daemon_that_ends_in_between_is_told_and_nothing_is_made_of_half_an_answer(bytes_: int) -> None:
    ended = asyncio.Event()
    async with daemon(lambda _: (b"hello", 0), ends_after=bytes_) as path:
        connection = await Vty.connected(path, ended.set)
        with pytest.raises(Gone, match=r"FRR's bgpd has ended"):
            await connection.ask(["one", "two"])
        assert connection.lost
        await asyncio.wait_for(ended.wait(), 5)
        with pytest.raises(Gone):
            await connection.ask(["three"])


async def test_a_daemon_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vty, "SECONDS", 0.05)
    async with daemon(lambda it: (it.encode(), 0)) as path:
        connection = await Vty.connected(path)
        with pytest.raises(Gone, match=r"FRR's bgpd has not answered for 0\.05 s"):
            await connection.show("half")
        assert connection.lost


async def test_whoever_gives_up_leaves_no_answer_for_the_next() -> None:
    """What comes later belongs to nobody: the connection is closed."""
    async with daemon(lambda it: (it.encode(), 0), pieces=(1,)) as path:
        connection = await Vty.connected(path)
        asking = asyncio.create_task(connection.ask(["a" * 1000, "b" * 1000]))
        await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert connection.lost


async def test_two_who_ask_at_a_time_get_their_own_answers() -> None:
    async with daemon(lambda it: (it.encode(), 0), pieces=(3,)) as path:
        connection = await Vty.connected(path)
        asked = [[f"{who}-{number}" for number in range(20)] for who in range(5)]
        found = await asyncio.gather(*(connection.ask(each) for each in asked))
        assert [[it.text for it in each] for each in found] == asked
        connection.close()


async def test_only_a_warning_is_an_answer_that_is_shown() -> None:
    async with daemon(lambda it: (b"text", int(it))) as path:
        connection = await Vty.connected(path)
        assert await connection.show("1") == "text"
        with pytest.raises(Gone, match="FRR's bgpd refuses 2: text"):
            await connection.show("2")
        connection.close()


async def test_what_is_wrong_with_a_whole_transaction_is_in_the_text_of_its_end() -> None:
    async with daemon(lambda it: (b"% Configuration failed.\n" if it == END else b"text", 0)) as path:
        connection = await Vty.connected(path)
        assert [it.command for it in await connection.configure(["one", END, "two"])] == [END]
        connection.close()


async def test_an_answer_without_an_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vty, "MOST_BYTES", 10_000)
    async with daemon(lambda _: (b"x" * 100_000, 0), [1000]) as path:
        connection = await Vty.connected(path)
        with pytest.raises(Gone, match="FRR's bgpd answers without an end"):
            await connection.ask(["show it"])
        assert connection.lost
