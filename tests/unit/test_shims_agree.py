"""Both plugins give the same bytes and exit codes, whatever the runtime, the node and the agent do.

The native one runs with its compiler's checks of addresses and of undefined behaviour: what they find ends it with
words on standard error.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from podwire.cni import shim
from podwire.sources.cni_spool import spooled
from tests.unit.shims import CONFIG, ENVIRONMENT, KINDS, NATIVE, SANITIZED, Answer, Installed, place, reply


@pytest.fixture(scope="module")
def plugins() -> Iterator[list[Installed]]:
    """Both, in directories whose names are equally long. Not under tmp_path: socket paths are short."""
    with tempfile.TemporaryDirectory() as root:
        made = []
        for number, kind in enumerate(KINDS):
            directory = Path(root) / str(number)
            directory.mkdir()
            made.append(place(directory, kind, *(SANITIZED if kind == NATIVE else ())))
        yield made


def run(it: Installed, command: str, stdin: bytes = CONFIG, **more: Any) -> Answer:
    environment = ENVIRONMENT | {"CNI_COMMAND": command}
    done = subprocess.run([it.plugin], input=stdin, env=environment, capture_output=True, timeout=60, **more)
    return Answer(done.returncode, done.stdout.replace(bytes(it.directory), b"DIR"), done.stderr)


# --- without an agent --------------------------------------------------------------------------

STDINS = (CONFIG, b"\xff\0{")
SETTINGS = (
    None,
    "",
    "socket=/s\n",
    "socket=/s\nspool=relative\n",
    "socket=/s\0\nspool=/p\n",
    " socket = /nowhere/s \r\n\tspool\t= DIR/spool\nready=/proc\n= \n=\nno\n",
    "socket=/first\nspool=DIR/spool\nsocket=/" + "x" * 200 + "\n",
    "socket=/" + "x" * 106 + "\nspool=DIR/file/spool\n",
    "socket=/" + "x" * 107 + "\nspool=/proc/spool\n",
    "socket=/s\nspool=DIR/spool\nadd_seconds=1.2.3\ndel_seconds=-1\nstatus_seconds=nan\ncheck_seconds=.\n",
    "socket=/s\nspool=DIR/spool\nadd_seconds=0\ndel_seconds=0.0\nstatus_seconds=.5\ncheck_seconds=" + "9" * 400,
    "socket=/s\nspool=DIR/Not Found/no such file or directory/no such file or/No such file or directory\n",
    'socket=/s"\\\xe4not found\x7f\nspool=DIR/\xe4not found"\\/x\n',
)
COMMANDS = ("ADD", "CHECK", "DEL", "STATUS", "VERSION", "", "add", 'odd"\\\x1b\udcff=', "not found")


@pytest.mark.parametrize("settings", [pytest.param(it, id=str(at)) for at, it in enumerate(SETTINGS)])
def test_without_an_agent_they_say_the_same(plugins: list[Installed], settings: str | None) -> None:
    said = []
    for it in plugins:
        it.settings.unlink(missing_ok=True)
        (it.directory / "file").touch()
        if settings is not None:
            it.settings.write_bytes(settings.replace("DIR", str(it.directory)).encode("latin-1"))
        answers = [run(it, command, stdin) for command in COMMANDS for stdin in STDINS]
        left = [path.read_bytes() for path in spooled(it.spool)]
        for path in spooled(it.spool):
            path.unlink()
        said.append((answers, left))
    assert said[0] == said[1]
    for answer in said[1][0]:
        assert answer.stderr == b""
        assert answer.stdout == b"" or answer.said["cniVersion"] in ("0.4.0", "1.0.0", "1.1.0")
        assert not any(words in answer.stdout.lower() for words in (b"not found", b"no such file or directory"))


TEXT = st.text(st.sampled_from('{}[]":,\\ \n\tcniVersion1.0.4x'), max_size=40).map(str.encode)
PARTS = st.sampled_from([b'"cniVersion"', b":", b'"1.1.0"', b'"1.0.0"', b"{", b"}", b",", b'"', b"\\", b" "])


@given(st.binary(max_size=60) | TEXT | st.lists(PARTS, max_size=12).map(b"".join))
@example(b'{"cniVersion":"1.1.0\\')
@example(b'{"cniVersion":"')
def test_they_find_the_same_version_in_any_input(plugins: list[Installed], stdin: bytes) -> None:
    told = [run(it, "VERSION", stdin) for it in plugins]
    assert told[0] == told[1]
    assert told[0].said["cniVersion"] == shim.version_of(stdin).decode()


LAUNCH = """
import ctypes, os, sys
words = [sys.argv[1].encode()]
given = [os.fsencode(each) for each in sys.argv[2:]]
vector = lambda texts: (ctypes.c_char_p * (len(texts) + 1))(*texts)
ctypes.CDLL(None).execve(words[0], vector(words), vector(given))
"""


def test_they_forward_the_same_of_an_odd_environment(plugins: list[Installed]) -> None:
    """Two variables of one name, one without a value, names that are not ours: what os.environ can't hold."""
    odd = ["CNI_B=2", "CNI_", "CNI_NOTHING", "CNI_A==", "CNI_B=1", "CNI=", "XCNI_C=1", "CNI_COMMAND=DEL", "CNI_=\udcff"]
    odd += ["CNI_BB=", "CNI_B\x01=", "CNI_COMMAND=ADD", f"PATH={os.environ['PATH']}"]
    left = []
    for it in plugins:
        it.configure()
        done = subprocess.run(
            [sys.executable, "-c", LAUNCH, it.plugin, *odd], input=CONFIG, capture_output=True, check=True
        )
        assert (done.stdout, done.stderr) == (b"", b"")
        (path,) = spooled(it.spool)
        left.append(path.read_bytes())
        path.unlink()
    assert left[0] == left[1]
    assert left[0].count(b"CNI_B=2") == 1
    assert b"CNI_B=1" not in left[0]


@pytest.mark.parametrize(
    ("closed", "code"),
    [
        pytest.param("<&-", 5, id="no standard input"),
        pytest.param("0>/dev/null", 5, id="a standard input that can't be read"),
        pytest.param(">/dev/full", None, id="nowhere to write"),
        pytest.param(">&-", None, id="no standard output"),
    ],
)
@pytest.mark.parametrize("command", ["ADD", "DEL", "VERSION"])
def test_without_standard_input_or_output(
    plugins: list[Installed], command: str, closed: str, code: int | None
) -> None:
    answers = []
    for it in plugins:
        it.configure()
        script = ["sh", "-c", f'exec "$0" {closed}', it.plugin]
        environment = ENVIRONMENT | {"CNI_COMMAND": command, "PATH": os.environ["PATH"]}
        done = subprocess.run(script, env=environment, capture_output=True, stdin=subprocess.DEVNULL)
        answers.append(Answer(done.returncode, done.stdout, done.stderr))
        assert (len(spooled(it.spool)) == 1) == (command == "DEL" and code is None)
        for path in spooled(it.spool):
            path.unlink()
    assert answers[0] == answers[1]
    if code is not None:
        assert answers[0].said["code"] == code
    assert answers[0].stderr == b""


def test_a_reader_that_went_away_kills_nobody(plugins: list[Installed]) -> None:
    for it in plugins:
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([it.plugin], env={"CNI_COMMAND": "VERSION"}, input=b"", stdout=writer, stderr=-1)
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, b"")


def test_more_input_than_fits_is_refused_and_not_cut(plugins: list[Installed]) -> None:
    for it in plugins:
        it.configure()
        answer = run(it, "DEL", b"x" * (shim.LARGEST + 1))
        assert (answer.code, answer.said["code"], answer.said["details"]) == (1, 5, "expected at most 16 MiB")
        assert spooled(it.spool) == []


# --- an agent that says anything ---------------------------------------------------------------

LIMITS = [f"{command}_seconds=0.3" for command in ("add", "del")]


@contextmanager
def says(path: Path, parts: list[bytes], then_close: bool) -> Iterator[None]:
    """Speaks to one client, part by part, once it has been spoken to; then waits for it to go."""

    def speak() -> None:
        client, _ = listening.accept()
        with client:
            try:
                client.recv(65_536)
                for part in parts:
                    client.sendall(part)
                if then_close:
                    client.shutdown(socket.SHUT_WR)
                while client.recv(65_536):
                    pass
            except OSError:  # it has heard enough
                pass

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=speak)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX) as other:  # in the place of a client that never came
                other.connect(str(path))
            path.unlink()
            thread.join(10)
            assert not thread.is_alive()


def both(plugins: list[Installed], command: str, parts: list[bytes], then_close: bool = True) -> list[Answer]:
    answers = []
    for it in plugins:
        it.configure(*LIMITS)
        with says(it.socket, parts, then_close):
            answers.append(run(it, command))
    return answers


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    def write(self) -> bytes:
        return shim.frame(*self)


OBJECT = b'{"an":"object"}'
MESSAGE = reply(OBJECT, 3)
WHOLE = b"\0" + len(MESSAGE).to_bytes(4, "big") + MESSAGE
HEAD = Frame(shim.HEADERS, shim.END_HEADERS, 1, b"\x88")
TAIL = Frame(shim.HEADERS, shim.END_HEADERS | shim.END_STREAM, 1, b"\x88")
CONTINUATION = 9
RIGHT = [
    pytest.param([HEAD, Frame(shim.DATA, 0, 1, WHOLE), TAIL], id="the usual way"),
    pytest.param([HEAD, *(Frame(shim.DATA, 0, 1, bytes((byte,))) for byte in WHOLE), TAIL], id="in crumbs"),
    pytest.param([HEAD, Frame(shim.DATA, 0, 1, b""), Frame(shim.DATA, shim.END_STREAM, 1, WHOLE)], id="an empty frame"),
    pytest.param([Frame(shim.DATA, 9, 1, b"\xff" + WHOLE + bytes(255))], id="padded"),
    pytest.param([Frame(shim.DATA, 8, 1, b"\0" + WHOLE), Frame(shim.DATA, 9, 1, b"\3" + bytes(3))], id="only padding"),
    pytest.param(
        [Frame(shim.HEADERS, 0, 1, b"\x88" * 16_384), Frame(CONTINUATION, 4, 1, b""), Frame(shim.DATA, 1, 1, WHOLE)],
        id="continued headers",
    ),
    pytest.param(
        [
            Frame(shim.SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff\0\5\0\0\x40\0"),
            Frame(shim.SETTINGS, shim.ACK, 0, b""),
            Frame(shim.PING, 0, 0, b"question"),
            Frame(shim.PING, shim.ACK, 0, b"12345678"),
            Frame(shim.WINDOW_UPDATE, 0, 0, b"\xff\xff\xff\xff"),
            Frame(shim.WINDOW_UPDATE, 0, 1, b"\xff\xff\xff\xff"),
            Frame(shim.WINDOW_UPDATE, 0, 7, b"\0\0\0\1"),
            Frame(shim.RST_STREAM, 0, 3, bytes(4)),
            Frame(shim.GOAWAY, 0, 0, b"\0\0\0\1" + bytes(4) + b"in a while"),
            Frame(shim.DATA, shim.END_STREAM, 3, b"of another stream"),
            Frame(shim.HEADERS, shim.END_STREAM, 3, b""),
            Frame(5, 4, 1, bytes(4)),
            Frame(0xEE, 255, 2**31 - 1, bytes(16_384)),
            HEAD,
            Frame(shim.DATA, shim.END_STREAM, 1, WHOLE),
        ],
        id="among all others",
    ),
]


@pytest.mark.parametrize("size", [1, 7, 65_536], ids=["byte by byte", "by seven", "at once"])
@pytest.mark.parametrize("frames", RIGHT)
def test_a_right_answer_is_taken_however_it_comes(plugins: list[Installed], frames: list[Frame], size: int) -> None:
    said = b"".join(map(Frame.write, frames))
    parts = [said[at : at + size] for at in range(0, len(said), size)]
    assert both(plugins, "ADD", parts, then_close=False) == [Answer(3, OBJECT, b"")] * 2


WRONG = [
    pytest.param([Frame(shim.DATA, 9, 1, b"")], "does not speak HTTP/2", id="padding without its length"),
    pytest.param([Frame(shim.DATA, 9, 1, b"\1")], "does not speak HTTP/2", id="more padding than there is"),
    pytest.param([Frame(shim.SETTINGS, 0, 0, bytes(5))], "does not speak HTTP/2", id="half a setting"),
    pytest.param([Frame(shim.PING, 0, 0, bytes(7))], "does not speak HTTP/2", id="a short ping"),
    pytest.param([Frame(shim.WINDOW_UPDATE, 0, 1, b"")], "does not speak HTTP/2", id="an empty window"),
    pytest.param([Frame(shim.RST_STREAM, 0, 1, bytes(5))], "does not speak HTTP/2", id="a long reset"),
    pytest.param([Frame(shim.GOAWAY, 0, 0, bytes(7))], "does not speak HTTP/2", id="a short goodbye"),
    pytest.param([Frame(shim.DATA, 0, 1, bytes(16_385))], "does not speak HTTP/2", id="a frame larger than we allow"),
    pytest.param([Frame(shim.RST_STREAM, 0, 1, bytes(4))], "dropped the call", id="reset"),
    pytest.param([Frame(shim.GOAWAY, 0, 0, b"\x80" + bytes(7))], "dropped the call", id="goes away"),
    pytest.param([TAIL], "refused the call", id="no message"),
    pytest.param([Frame(shim.DATA, 1, 1, WHOLE[:-1])], "refused the call", id="a short message"),
    pytest.param([Frame(shim.DATA, 1, 1, b"\0\0\0\0\2\x0a\2")], "can't be read", id="a field longer than its message"),
    pytest.param([Frame(shim.DATA, 1, 1, b"\0\0\0\0\5\x0d" + bytes(4))], "can't be read", id="a type not ours"),
    pytest.param([Frame(shim.DATA, 1, 1, b"\0\0\0\0\x0c\x10" + b"\xff" * 11)], "can't be read", id="endless"),
    pytest.param(
        [Frame(shim.DATA, 1, 1, b"\0\0\0\0\x0c\x0a" + b"\xff" * 9 + b"\1x")],
        "can't be read",
        id="2^64 bytes",
    ),
]


@pytest.mark.parametrize(("frames", "words"), WRONG)
def test_a_wrong_answer_is_none(plugins: list[Installed], frames: list[Frame], words: str) -> None:
    first, second = both(plugins, "ADD", [b"".join(map(Frame.write, frames))])
    assert first == second
    assert (first.code, first.said["code"], first.stderr) == (1, 11, b"")
    assert words in first.said["details"]


@pytest.mark.parametrize(("size", "code"), [(shim.LARGEST - 20, 0), (shim.LARGEST + 1, 1)], ids=["fits", "too large"])
def test_the_largest_answer(plugins: list[Installed], size: int, code: int) -> None:
    message = reply(b"x" * size)
    whole = b"\0" + len(message).to_bytes(4, "big") + message
    frames = [Frame(shim.DATA, 0, 1, whole[at : at + 16_384]) for at in range(0, len(whole), 16_384)]
    first, second = both(plugins, "GC", [b"".join(map(Frame.write, [*frames, TAIL]))])
    assert first == second
    assert first.code == code
    if code:
        assert first.said["details"] == "the agent's answer has more than 16 MiB"
    else:
        assert len(first.stdout) == size


@pytest.mark.parametrize("exit_code", [255, 256, 2**31, 2**32 - 1])
def test_no_exit_code_turns_into_success(plugins: list[Installed], exit_code: int) -> None:
    message = reply(OBJECT, exit_code)
    whole = b"\0" + len(message).to_bytes(4, "big") + message
    assert both(plugins, "ADD", [Frame(shim.DATA, 1, 1, whole).write()]) == [Answer(255, OBJECT, b"")] * 2


@pytest.mark.parametrize("part", [Frame(shim.PING, 0, 0, bytes(8)).write(), b"\0"], ids=["pings", "crumbs"])
def test_who_talks_for_ever_is_left_in_time(plugins: list[Installed], part: bytes) -> None:
    """More than any plugin could take in its time: only its own clock ends the call."""

    def speak(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client:
            try:
                for _ in range(10):  # what may begin a frame of a type unknown, which is as long as it may be
                    client.sendall(b"\0\x40\0\xee\0\0\0\0\0" if part == b"\0" else part)
                while True:
                    client.sendall(part)
            except OSError:
                pass

    for it in plugins:
        it.configure(*LIMITS)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(it.socket))
            listening.listen()
            thread = threading.Thread(target=speak, args=(listening,))
            thread.start()
            answer = run(it, "ADD")
            thread.join(10)
            it.socket.unlink()
        assert (answer.code, answer.said["code"], answer.stderr) == (1, 11, b"")


KINDS_OF_FRAMES = st.sampled_from([*range(10), 0xEE])
NUMBERS = st.sampled_from([0, 1, 2, 3, 2**31 - 1, 2**31 + 1, 2**32 - 1])
PIECES = st.integers(0, len(WHOLE)).flatmap(lambda at: st.sampled_from([WHOLE[:at], WHOLE[at:]]))
FRAMES = st.builds(
    Frame, KINDS_OF_FRAMES, st.sampled_from([0, 1, 4, 5, 8, 9, 255]), NUMBERS, st.binary(max_size=20) | PIECES
)
TALKS = st.lists(FRAMES | st.sampled_from([HEAD, TAIL, Frame(0, 0, 1, WHOLE), Frame(0, 1, 1, WHOLE)]), max_size=6)
BYTES = TALKS.map(lambda frames: b"".join(map(Frame.write, frames))) | st.binary(max_size=80)
MESSAGES = st.binary(max_size=40).map(
    lambda body: Frame(shim.DATA, 1, 1, b"\0" + len(body).to_bytes(4, "big") + body).write()
)


@given(BYTES | MESSAGES, st.integers(1, 60), st.integers(0, 10), st.sampled_from(["ADD", "DEL"]))
def test_whatever_an_agent_says(plugins: list[Installed], said: bytes, size: int, cut: int, command: str) -> None:
    """Never a crash, a hang, nor anything printed that is neither an object nor the agent's own."""
    said = said[: len(said) - cut]
    first, second = both(plugins, command, [said[at : at + size] for at in range(0, len(said), size)])
    assert first == second
    assert first.stderr == b""
    for it in plugins:
        for path in spooled(it.spool):
            path.unlink()
    try:
        assert first.stdout == b"" or isinstance(json.loads(first.stdout), dict)
    except ValueError:
        assert set(first.stdout) <= set(said)
