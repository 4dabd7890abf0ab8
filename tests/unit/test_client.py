"""The command line's end of the admin socket: an agent that is just ending, or just back."""

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwire.cli import client
from podwire.cli.client import UNREACHABLE, Failed, UnixConnection, ask

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + json.dumps({"a": 1}).encode()


def before_the_question(_: socket.socket) -> None:
    """Broken pipe."""


def with_the_question_unread(connection: socket.socket) -> None:
    """Connection reset."""
    select.select([connection], [], [])


def after_the_question(connection: socket.socket) -> None:
    """The end of the stream."""
    connection.recv(1000)


DROPS = [before_the_question, with_the_question_unread, after_the_question]


@contextmanager
def agent(path: Path, drop: Callable[[socket.socket], None], back: bool) -> Iterator[threading.Event]:
    """Drops the first who comes, and sets the event; then answers one where it is `back`, else it is gone."""

    def serve() -> None:
        with listener:
            first, _ = listener.accept()
            if not back:
                path.unlink()
            drop(first)
            first.close()
            dropped.set()
            if back:
                second, _ = listener.accept()
                with second:
                    second.recv(1000)
                    second.sendall(ANSWER)

    dropped = threading.Event()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(10)
    serving = threading.Thread(target=serve)
    serving.start()
    yield dropped
    serving.join()


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("back", [True, False], ids=["which is back", "which is gone"])
def test_whoever_is_dropped_by_an_agent_that_ends_asks_again(
    drop: Callable[[socket.socket], None],
    back: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "admin.sock"
    with agent(path, drop, back) as dropped:

        class Late(UnixConnection):
            def connect(self) -> None:
                super().connect()
                if drop is before_the_question:
                    assert dropped.wait(10)

        monkeypatch.setattr(client, "UnixConnection", Late)
        if back:
            assert json.loads(ask(path, "GET", "/status")) == {"a": 1}
        else:
            with pytest.raises(Failed, match="no agent answers") as failed:
                ask(path, "GET", "/status")
            assert failed.value.code == UNREACHABLE


@pytest.mark.parametrize("drop", DROPS)
def test_what_changes_something_is_not_asked_twice(drop: Callable[[socket.socket], None], tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with agent(path, drop, False), pytest.raises(Failed, match="did not answer in full"):
        ask(path, "POST", "/resync")
