"""The plugins as a runtime executes them: against a real gRPC server, against broken ones, and with none at all."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni import mark, shim
from podwire.cni.cni_pb2 import CniReply, CniRequest
from podwire.config import BOOT_ID
from podwire.sources.cni_spool import spooled
from tests.unit.shims import CONFIG, ENVIRONMENT, KINDS, Answer, Installed, agent, echo, place, raw_agent, reply


@pytest.fixture(params=KINDS)
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Installed:
    return place(tmp_path, request.param)


# --- with an agent -----------------------------------------------------------------------------


async def test_environment_and_input_arrive_as_they_were(installed: Installed) -> None:
    async with agent(installed.socket, echo):
        answer = await installed.run("ADD")
    variables = ENVIRONMENT | {"CNI_COMMAND": "ADD"}
    expected = "\n".join(sorted(f"{name}={value}" for name, value in variables.items())).encode()
    assert answer == Answer(0, expected + b"\n" + CONFIG, b"")


@pytest.mark.parametrize("code", [0, 1, 255])
async def test_the_agents_exit_code_is_the_plugins(installed: Installed, code: int) -> None:
    async def handler(_body: bytes, _context: Any) -> bytes:
        return reply(b"said", code)

    async with agent(installed.socket, handler):
        assert await installed.run("ADD") == Answer(code, b"said", b"")


async def test_an_empty_answer_is_an_answer(installed: Installed) -> None:
    async def handler(_body: bytes, _context: Any) -> bytes:
        return reply(b"")

    async with agent(installed.socket, handler):
        assert await installed.run("DEL", b"") == Answer(0, b"", b"")
    assert not installed.spool.exists()


@pytest.mark.parametrize("size", [0, 16_383, 65_530, 300_000, 3_000_000])
async def test_input_and_answer_of_any_size(installed: Installed, size: int) -> None:
    """Beyond 65,535 bytes the agent must open its window first; beyond 16,384 there are several frames."""
    blob = os.urandom(size)
    async with agent(installed.socket, echo):
        answer = await installed.run("ADD", blob)
    assert answer.code == 0
    assert answer.stdout.endswith(b"\n" + blob)


async def test_an_agent_that_stops_still_answers_what_it_has_begun(installed: Installed) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_body: bytes, _context: Any) -> bytes:
        begun.set()
        await go_on.wait()
        return reply(b"done")

    async with agent(installed.socket, handler) as server:
        call = asyncio.create_task(installed.run("ADD"))
        await begun.wait()
        stop = asyncio.create_task(server.stop(grace=60))
        go_on.set()
        assert await call == Answer(0, b"done", b"")
        await stop


async def test_many_at_once_get_each_their_own_answer(installed: Installed) -> None:
    async with agent(installed.socket, echo):
        blobs = [str(number).encode() for number in range(20)]
        answers = await asyncio.gather(*(installed.run("ADD", blob) for blob in blobs))
    assert [answer.stdout.rpartition(b"\n")[2] for answer in answers] == blobs


# --- where its settings lie --------------------------------------------------------------------


@pytest.mark.parametrize("target", ["{directory}/podwire", "../podwire"], ids=["absolute", "relative"])
async def test_settings_beside_what_a_link_leads_to(installed: Installed, tmp_path: Path, target: str) -> None:
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "podwire"
    link.symlink_to(target.format(directory=tmp_path))
    async with agent(installed.socket, echo):
        assert (await installed.run("ADD", plugin=link)).code == 0


async def test_settings_beside_the_link_come_first(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "podwire"
    link.symlink_to(installed.plugin)
    (tmp_path / "bin" / "podwire.conf").write_text(installed.settings.read_text())
    installed.configure("socket=/nowhere")
    async with agent(installed.socket, echo):
        assert (await installed.run("ADD", plugin=link)).code == 0
        assert (await installed.run("ADD")).code == 1


@pytest.mark.parametrize(
    ("text", "details"),
    [
        pytest.param(None, "podwire.conf", id="no file"),
        pytest.param("", "podwire.conf: expected a line socket=/PATH", id="empty"),
        pytest.param("socket=/s\n", "podwire.conf: expected a line spool=/PATH", id="no spool"),
        pytest.param("socket=relative\nspool=/s\n", "expected a line socket=/PATH", id="relative path"),
    ],
)
async def test_wrong_settings_are_said_and_nothing_is_lost_in_silence(
    installed: Installed, text: str | None, details: str
) -> None:
    if text is None:
        installed.settings.unlink()
    else:
        installed.settings.write_text(text)
    for command, code in (("ADD", 11), ("DEL", 11), ("STATUS", 50)):
        answer = await installed.run(command)
        assert (answer.code, answer.said["code"], answer.stderr) == (1, code, b"")
        assert details in answer.said["details"]
    assert (await installed.run("VERSION")).code == 0


# --- with an agent that is no help -------------------------------------------------------------

SETTINGS = shim.frame(shim.SETTINGS, 0, 0, b"")
HEADERS = shim.frame(shim.HEADERS, shim.END_HEADERS, 1, b"\x88")  # :status 200
LAST_HEADERS = shim.frame(shim.HEADERS, shim.END_HEADERS | shim.END_STREAM, 1, b"\x88")
MESSAGE = b"\0\0\0\0\x08" + reply(b"whole!")


def data(part: bytes, flags: int = 0) -> bytes:
    return SETTINGS + HEADERS + shim.frame(shim.DATA, flags, 1, part)


BROKEN = [
    pytest.param(b"", True, id="closes at once"),
    pytest.param(b"", False, id="never answers"),
    pytest.param(SETTINGS, True, id="dies before the answer"),
    pytest.param(SETTINGS + HEADERS, False, id="stops after the headers"),
    pytest.param(data(MESSAGE[:9]), True, id="dies in the message"),
    pytest.param(data(MESSAGE)[:-3], True, id="dies in a frame"),
    pytest.param(data(MESSAGE[:9]) + LAST_HEADERS, False, id="half a message"),
    pytest.param(data(MESSAGE + b"more") + LAST_HEADERS, False, id="more than a message"),
    pytest.param(data(b"\1" + MESSAGE[1:]) + LAST_HEADERS, False, id="compressed"),
    pytest.param(data(b"\0\0\0\0\1\x0a") + LAST_HEADERS, False, id="a message that is none"),
    pytest.param(SETTINGS + LAST_HEADERS, False, id="status without a message"),
    pytest.param(SETTINGS + shim.frame(shim.RST_STREAM, 0, 1, bytes(4)), False, id="resets the stream"),
    pytest.param(SETTINGS + shim.frame(shim.GOAWAY, 0, 0, bytes(8)), False, id="goes away without the call"),
    pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", True, id="speaks HTTP/1"),
]


@pytest.mark.parametrize(("said", "then_close"), BROKEN)
async def test_no_whole_answer_is_no_answer(installed: Installed, said: bytes, then_close: bool) -> None:
    installed.configure("add_seconds=0.5", "del_seconds=0.5", "status_seconds=0.5", "version_seconds=0.5")
    async with raw_agent(installed.socket, said, then_close):
        add, status, version, delete = await asyncio.gather(*map(installed.run, ("ADD", "STATUS", "VERSION", "DEL")))
    assert (add.code, add.said["code"]) == (1, 11)
    assert (status.code, status.said["code"]) == (1, 50)
    assert (version.code, version.said["supportedVersions"]) == (0, ["0.4.0", "1.0.0", "1.1.0"])
    assert delete == Answer(0, b"", b"")
    assert [request.stdin for request in installed.left()] == [CONFIG]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(data(MESSAGE) + LAST_HEADERS, id="the usual way"),
        pytest.param(data(MESSAGE, shim.END_STREAM), id="without trailers"),
        pytest.param(data(MESSAGE[:2]) + shim.frame(shim.DATA, 0, 1, MESSAGE[2:]) + LAST_HEADERS, id="in two frames"),
        pytest.param(data(b"\3" + MESSAGE + b"\0\0\0", shim.PADDED) + LAST_HEADERS, id="padded"),
        pytest.param(
            SETTINGS
            + shim.frame(shim.PING, 0, 0, bytes(8))
            + shim.frame(shim.GOAWAY, 0, 0, b"\x7f\xff\xff\xff" + bytes(4))
            + shim.frame(0xEE, 0, 0, b"unknown")
            + HEADERS
            + shim.frame(shim.DATA, 0, 1, MESSAGE)
            + LAST_HEADERS,
            id="with other frames in between",
        ),
    ],
)
async def test_a_whole_answer_counts_however_it_is_framed(installed: Installed, said: bytes) -> None:
    async with raw_agent(installed.socket, said, then_close=False):
        assert await installed.run("ADD") == Answer(0, b"whole!", b"")


async def test_a_grpc_error_is_no_answer(installed: Installed) -> None:
    async def handler(_body: bytes, context: aio.ServicerContext) -> bytes:
        await context.abort(grpc.StatusCode.INTERNAL, "x" * 500)
        raise AssertionError

    async with agent(installed.socket, handler):
        assert (await installed.run("ADD")).said["code"] == 11
        assert (await installed.run("DEL")).code == 0
    assert len(installed.left()) == 1


async def test_a_server_without_the_method_is_no_agent(installed: Installed) -> None:
    server = aio.server()
    server.add_insecure_port(f"unix:{installed.socket}")
    await server.start()
    answer = await installed.run("ADD")
    await server.stop(None)
    assert answer.said["code"] == 11


@pytest.mark.parametrize("signal", [9, 19], ids=["killed", "stopped"])
async def test_an_agent_that_dies_in_the_call(installed: Installed, signal: int) -> None:
    """A process of its own: what it had in hand when it went is in nobody's hands."""
    installed.configure("del_seconds=0.5")
    program = (
        "import os, signal, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True)\n"
        "c, _ = s.accept(); c.recv(9); os.kill(os.getpid(), int(sys.argv[2]))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, installed.socket, str(signal), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        assert await installed.run("DEL") == Answer(0, b"", b"")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert len(installed.left()) == 1


# --- with none ---------------------------------------------------------------------------------


@pytest.fixture(params=["no socket", "stale socket"])
def down(installed: Installed, request: pytest.FixtureRequest) -> Installed:
    if request.param == "stale socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(installed.socket))
    return installed


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("ADD", 11, "try again later"),
        ("CHECK", 11, "try again later"),
        ("GC", 11, "try again later"),
        ("STATUS", 50, "has not been ready since this node's boot"),
        ("add", 4, "CNI_COMMAND: expected one of"),
        ("", 4, "CNI_COMMAND: expected one of"),
    ],
)
async def test_without_an_agent(down: Installed, command: str, code: int, words: str) -> None:
    answer = await down.run(command)
    assert (answer.code, answer.stderr) == (1, b"")
    said = answer.said
    assert said.keys() == {"cniVersion", "code", "msg", "details"}
    assert (said["cniVersion"], said["code"]) == ("1.0.0", code)
    assert words in said["msg"]


async def test_without_an_agent_status_succeeds_where_it_was_ready_since_the_boot(down: Installed) -> None:
    mark.leave(down.ready, BOOT_ID)
    assert await down.run("STATUS") == Answer(0, b"", b"")
    assert (await down.run("ADD")).said["code"] == 11


@pytest.mark.parametrize(
    "then_close", [pytest.param(False, id="never answers"), pytest.param(True, id="dies before the answer")]
)
async def test_an_agent_that_does_not_answer_is_away(installed: Installed, then_close: bool) -> None:
    installed.configure("status_seconds=0.5")
    mark.leave(installed.ready, BOOT_ID)
    async with raw_agent(installed.socket, b"", then_close):
        assert await installed.run("STATUS") == Answer(0, b"", b"")


BOOT, _, NAMESPACE = mark.present(BOOT_ID).partition(b"\n")


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(b"00000000-0000-0000-0000-000000000000\n" + NAMESPACE, id="of an earlier boot"),
        pytest.param(BOOT + b"\nnet:[1]\n", id="of another network namespace"),
        pytest.param(BOOT + b"\n", id="half of it"),
        pytest.param(b"", id="empty"),
        pytest.param(None, id="a directory"),
    ],
)
async def test_another_mark_is_none(down: Installed, left: bytes | None) -> None:
    if left is None:
        down.ready.mkdir()
    else:
        down.ready.write_bytes(left)
    assert (await down.run("STATUS")).said["code"] == 50


@pytest.mark.parametrize("told", [b"one\n", b"one", b"", b"one\ntwo\n\n"], ids=["a line", "no end", "nothing", "lines"])
async def test_the_mark_is_of_the_boot_that_the_agent_believes_in(down: Installed, told: bytes) -> None:
    boot_id = down.directory / "boot ID"
    boot_id.write_bytes(told)
    mark.leave(down.ready, boot_id)
    assert await down.run("STATUS") == Answer(0, b"", b"")
    left = down.ready.read_bytes()
    for wrong in (left[:-1] + b"x\n", left[:-1] + b"\0\n", left[:-1], left.replace(b"net:", b"pid:")):
        down.ready.write_bytes(wrong)
        assert (await down.run("STATUS")).said["code"] == 50
    down.ready.write_bytes(left)
    for other in (told + b"x", told[:-1] or b"\n"):
        boot_id.write_bytes(other)
        assert (await down.run("STATUS")).said["code"] == 50
    boot_id.unlink()
    assert (await down.run("STATUS")).said["code"] == 50


async def test_an_agent_that_answers_has_the_last_word(installed: Installed) -> None:
    async def handler(_body: bytes, _context: Any) -> bytes:
        return reply(b'{"code":50}', 1)

    mark.leave(installed.ready, BOOT_ID)
    async with agent(installed.socket, handler):
        assert await installed.run("STATUS") == Answer(1, b'{"code":50}', b"")


def test_a_mark_is_written_once_for_a_boot(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.write_bytes(b"of an earlier boot")
    mark.leave(path, BOOT_ID)
    first = path.stat()
    mark.leave(path, BOOT_ID)
    assert path.read_bytes() == mark.present(BOOT_ID)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [path]


async def test_without_an_agent_versions_are_known(down: Installed) -> None:
    answer = await down.run("VERSION", b'{"cniVersion":"1.1.0"}')
    assert (answer.code, answer.stderr) == (0, b"")
    assert answer.said == {"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}


async def test_without_an_agent_a_del_is_spooled_whole(down: Installed) -> None:
    stdin = os.urandom(300_000)
    assert await down.run("DEL", CONFIG) == Answer(0, b"", b"")
    assert await down.run("DEL", stdin) == Answer(0, b"", b"")
    first, second = down.left()
    assert dict(line.split("=", 1) for line in first.environment) == ENVIRONMENT | {"CNI_COMMAND": "DEL"}
    assert (first.stdin, second.stdin) == (CONFIG, stdin)
    assert down.spool.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in spooled(down.spool)} == {0o600}


async def test_a_del_that_can_not_be_spooled_fails(installed: Installed) -> None:
    installed.spool.write_text("a file where the directory should be")
    answer = await installed.run("DEL")
    assert (answer.code, answer.said["code"], answer.stderr) == (1, 11, b"")
    assert f"the spool {installed.spool} can't be written" in answer.said["details"]


# --- its parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (b'{"cniVersion":"1.1.0"}', "1.1.0"),
        (b' {\n "name" : "x" ,\n "cniVersion"\t: "1.0.0" }', "1.0.0"),
        (b'{"prevResult":{"cniVersion":"1.1.0"},"cniVersion":"1.0.0"}', "1.0.0"),
        (b'{"prevResult":{"cniVersion":"1.1.0"}}', "0.4.0"),
        (b'{"a":["cniVersion","1.1.0"],"b":"cniVersion"}', "0.4.0"),
        (b'{"a":"\\"cniVersion\\":\\"1.1.0\\"","cniVersion":"1.0.0"}', "1.0.0"),
        (b'{"a":"}{\\\\","cniVersion":"1.0.0"}', "1.0.0"),
        (b'{"cniVersion":"2.0.0"}', "0.4.0"),
        (b'{"cniVersion":"1.0', "0.4.0"),
        (b'{"cniVersion":', "0.4.0"),
        (b"", "0.4.0"),
        (b"\xff", "0.4.0"),
    ],
)
def test_the_configurations_own_version(text: bytes, version: str) -> None:
    assert shim.version_of(text).decode() == version


TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["cniVersion", "1.1.0", '"', "\\"])
JSON = st.recursive(
    TEXTS | st.none() | st.integers(), lambda it: st.lists(it) | st.dictionaries(TEXTS, it), max_leaves=8
)


@given(
    st.dictionaries(TEXTS.filter(lambda key: key != "cniVersion"), JSON), st.sampled_from(shim.VERSIONS), st.booleans()
)
def test_the_version_is_found_in_any_json(config: dict[str, Any], version: bytes, compact: bool) -> None:
    written = json.dumps(config | {"cniVersion": version.decode()}, indent=None if compact else 1, ensure_ascii=compact)
    assert shim.version_of(written.encode()) == version


MISLEADING = ("not found", "no such file or directory")
WORDS = st.sampled_from((*MISLEADING, "No such file or directory", "NOT FOUND", "not ", "no ", "found", '"'))


@given(
    st.binary(max_size=30)
    | st.text(st.characters(max_codepoint=126), max_size=30).map(str.encode)
    | st.lists(WORDS, max_size=5).map("".join).map(str.encode)
)
def test_a_quoted_text_is_json_that_no_runtime_takes_for_success(text: bytes) -> None:
    read = json.loads(shim.quote(text))
    assert not any(words in read.lower() for words in MISLEADING)
    if text.isascii() and text.decode().isprintable() and not any(it in text.decode().lower() for it in MISLEADING):
        assert read == text.decode()


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1))
def test_a_reply_is_read_as_protobuf_wrote_it(stdout: bytes, code: int) -> None:
    assert shim.reply(CniReply(stdout=stdout, exit_code=code).SerializeToString()) == (stdout, code)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.binary(max_size=70_000))
def test_a_request_is_written_as_protobuf_reads_it(environment: list[str], stdin: bytes) -> None:
    written = b"".join(shim.field(1, line.encode()) for line in environment) + shim.field(2, stdin)
    request = CniRequest.FromString(written)
    assert (list(request.environment), request.stdin) == (environment, stdin)


def test_only_what_python_has_loaded_already_is_imported() -> None:
    """Each module more is paid for at every call."""
    program = (
        "import sys; before = set(sys.modules)\n"
        "exec(compile(open(sys.argv[1]).read(), 'shim', 'exec'), {'__name__': 'shim'})\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, shim.__file__], check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == "['_socket']"
