"""Requests: which server is asked, as whom, whom it must be, and what a failure says."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from podwire.sources.kube_api import Api, ApiError, Cause, Details, Status, status_error, whole_lines
from podwire.sources.kube_config import Access, Content, Plugin
from podwire.sources.kube_credentials import Credentials
from tests.unit.kube_fake import FakeApi, answering, hanging_up, namespace, opened
from tests.unit.kube_pki import Pki, needs_openssl

NODES = "/api/v1/nodes"
ONE_PAGE = {"limit": "500"}
UNREACHABLE = "http://127.0.0.1:1"


@asynccontextmanager
async def client(access: Access) -> AsyncIterator[Api]:
    api = Api(access, Credentials(access))
    try:
        async with asyncio.timeout(30):
            yield api
    finally:
        await api.close()


# --- who is asked ------------------------------------------------------------------------------


async def test_a_server_without_an_answer_is_left_for_the_next_and_not_asked_again() -> None:
    fake = FakeApi()
    async with fake.served() as server, client(Access((UNREACHABLE, server))) as api:
        assert b'"items": []' in await api.get(NODES, ONE_PAGE)
        assert api.server == server


async def test_where_nobody_answers_the_error_names_all() -> None:
    second = UNREACHABLE.replace(":1", ":2")
    async with client(Access((UNREACHABLE, second))) as api:
        with pytest.raises(ApiError) as raised:
            await api.get(NODES)
    assert raised.value.status == 0
    assert str(raised.value) == f"{UNREACHABLE}: Connection refused; {second}: Connection refused"


@pytest.mark.parametrize(
    ("status", "counts"), [(200, 0), (404, 0), (409, 0), (410, 0), (401, 1), (403, 1), (422, 1), (429, 1), (500, 1)]
)
async def test_what_is_refused_counts_but_what_is_not_there_or_has_changed(status: int, counts: int) -> None:
    fake = FakeApi()
    fake.faults["list", "nodes"].extend([answering(status)] * 2 if status >= 300 else [])
    async with fake.served() as server, client(Access((server,))) as api:
        with suppress(ApiError):
            await api.get(NODES, ONE_PAGE)
        assert api.errors == counts


async def test_that_nobody_answers_counts_once_and_a_server_that_is_left_for_another_does_not() -> None:
    fake = FakeApi()
    async with fake.served() as server, client(Access((UNREACHABLE, server))) as api:
        await api.get(NODES, ONE_PAGE)
        assert api.errors == 0
    async with client(Access((UNREACHABLE, UNREACHABLE.replace(":1", ":2")))) as api:
        with suppress(ApiError):
            await api.get(NODES)
        assert api.errors == 1


@pytest.mark.parametrize(("status", "left"), [(500, True), (503, True), (404, False), (429, False)])
async def test_a_server_that_says_it_is_broken_is_left(status: int, left: bool) -> None:
    fake = FakeApi()
    fake.faults["list", "nodes"].append(answering(status))
    async with fake.served() as first, fake.served() as second, client(Access((first, second))) as api:
        with pytest.raises(ApiError):
            await api.get(NODES, ONE_PAGE)
        assert api.server == (second if left else first)


async def test_of_several_requests_that_fail_together_only_the_first_moves_on() -> None:
    fake = FakeApi()
    fake.faults["list", "nodes"].extend([answering(503)] * 3)
    async with fake.served() as first, fake.served() as second, client(Access((first, second))) as api:
        await asyncio.gather(*(api.get(NODES, ONE_PAGE) for _ in range(3)), return_exceptions=True)
        assert api.server == second


# --- as whom -----------------------------------------------------------------------------------


async def test_a_rotated_token_is_used_from_the_next_request_on(tmp_path: Path) -> None:
    fake = FakeApi()
    path = tmp_path / "token"
    path.write_text("first")
    fake.token = "first"
    async with fake.served() as server, client(Access((server,), token=Content("f", str(path)))) as api:
        await api.get(NODES, ONE_PAGE)
        fake.token = "second"
        with pytest.raises(ApiError) as raised:
            await api.get(NODES, ONE_PAGE)
        assert (raised.value.status, str(raised.value)) == (401, f"GET {server}{NODES}: 401 Unauthorized")
        path.write_text("second")
        await api.get(NODES, ONE_PAGE)


async def test_credentials_of_a_plugin_that_are_refused_are_asked_for_again_at_once(tmp_path: Path) -> None:
    fake = FakeApi()
    fake.token = "2"
    script = f'echo >>{tmp_path}/runs; n=$(wc -l <{tmp_path}/runs); printf "$1" "$n"'
    form = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    version = "client.authentication.k8s.io/v1"
    plugin = Plugin("f", version, "/bin/sh", ("-c", script, "plugin", form), (), b"", "")
    async with fake.served() as server, client(Access((server,), plugin=plugin)) as api:
        await api.get(NODES, ONE_PAGE)
        await api.get(NODES, ONE_PAGE)
    assert (tmp_path / "runs").read_text() == "\n\n"


async def test_credentials_that_can_not_be_had_are_the_error() -> None:
    async with client(Access((UNREACHABLE,), token=Content("F: users[0].user.tokenFile", "/no/such"))) as api:
        with pytest.raises(ApiError, match=r"^F: users\[0\]\.user\.tokenFile: /no/such: No such file or directory$"):
            await api.get(NODES)


# --- over TLS ----------------------------------------------------------------------------------


@pytest.fixture
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.getbasetemp() / "pki")


def _authority(pki: Pki) -> Content:
    return Content("F: ca", str(pki.authority))


@needs_openssl
@pytest.mark.parametrize(
    ("names", "expected", "error"),
    [
        pytest.param(("IP:127.0.0.1",), None, None, id="by address"),
        pytest.param(("DNS:kubernetes",), "kubernetes", None, id="by the name that tls-server-name says"),
        pytest.param(("DNS:kubernetes",), None, "IP address mismatch", id="of another address"),
        pytest.param(("IP:127.0.0.1",), "kubernetes", "Hostname mismatch", id="of another name"),
    ],
)
async def test_a_server_must_be_whom_it_is_taken_for(
    pki: Pki, names: tuple[str, ...], expected: str | None, error: str | None
) -> None:
    fake = FakeApi()
    async with (
        fake.served(tls=pki.server(names=names)) as server,
        client(Access((server,), _authority(pki), server_name=expected)) as api,
    ):
        if error is None:
            await api.get(NODES, ONE_PAGE)
        else:
            with pytest.raises(ApiError, match=error):
                await api.get(NODES, ONE_PAGE)


@needs_openssl
async def test_a_server_of_another_authority_is_refused_but_where_anyone_is_believed(pki: Pki) -> None:
    fake = FakeApi()
    async with fake.served(tls=pki.server()) as server:
        async with client(Access((server,))) as api:
            with pytest.raises(ApiError, match="certificate verify failed"):
                await api.get(NODES, ONE_PAGE)
        async with client(Access((server,), insecure=True)) as api:
            await api.get(NODES, ONE_PAGE)


@needs_openssl
async def test_a_client_certificate_is_shown_and_a_rotated_one_from_the_next_connection_on(
    pki: Pki, tmp_path: Path
) -> None:
    fake = FakeApi()
    stranger, one = Pki(tmp_path / "stranger").pair("x", "/CN=x"), pki.pair("one", "/CN=one")
    both = tmp_path / "client.pem"
    client_file = Content("F: client", str(both))
    both.write_bytes(stranger.certificate.read_bytes() + stranger.key.read_bytes())
    tls = pki.server(clients=True, names=("IP:127.0.0.1",))
    tls.maximum_version = ssl.TLSVersion.TLSv1_2  # by 1.3 the refusal comes after the request
    async with (
        fake.served(tls=tls) as server,
        client(Access((server,), _authority(pki), certificate=client_file, key=client_file)) as api,
    ):
        with pytest.raises(ApiError):
            await api.get(NODES, ONE_PAGE)
        both.write_bytes(one.certificate.read_bytes() + one.key.read_bytes())
        await api.get(NODES, ONE_PAGE)


# --- what a failure says -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expired", "retry_after", "text"),
    [
        pytest.param(Status("too old", "Expired", 410), True, 0.0, "W: 410 too old", id="an expired version"),
        pytest.param(Status("gone", "Gone", 410), True, 0.0, "W: 410 gone", id="gone"),
        pytest.param(
            Status("Too large", "Timeout", 504, Details([Cause("ResourceVersionTooLarge")], 1)),
            True,
            1.0,
            "W: 504 Too large",
            id="a version ahead of the server",
        ),
        pytest.param(
            Status("slow\ndown", "TooManyRequests", 429, Details(None, 7)), False, 7.0, "W: 429 slow down", id="busy"
        ),
        pytest.param(Status(reason="Forbidden"), False, 0.0, "W: 400 Forbidden", id="HTTP's own code"),
        pytest.param(Status(), False, 0.0, "W: 400 without a reason", id="nothing said"),
    ],
)
def test_statuses_in_words(status: Status, expired: bool, retry_after: float, text: str) -> None:
    error = status_error(status, 400, "W")
    assert (error.expired, error.retry_after, str(error)) == (expired, retry_after, text)


async def test_what_stands_before_the_api_may_refuse_in_html() -> None:
    fake = FakeApi()

    async def proxy(_: FakeApi, __: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>", headers={"Retry-After": "3"})

    fake.faults["list", "nodes"].append(proxy)
    async with fake.served() as server, client(Access((server,))) as api:
        with pytest.raises(ApiError) as raised:
            await api.get(NODES, ONE_PAGE)
    assert str(raised.value) == f"GET {server}{NODES}: 502 Bad Gateway"
    assert (raised.value.status, raised.value.retry_after) == (502, 3.0)


@pytest.mark.parametrize("left", [b"", b'{"metadata'], ids=["before an answer", "in the middle of one"])
async def test_a_connection_that_ends_is_an_error_of_its_server(left: bytes) -> None:
    fake = FakeApi()
    fake.faults["list", "nodes"].extend([hanging_up(left)] * (1 if left else 2))  # aiohttp itself asks once more
    async with fake.served() as server, client(Access((server,))) as api:
        with pytest.raises(ApiError) as raised:
            await api.get(NODES, ONE_PAGE)
        assert str(raised.value).startswith(f"{server}: ")
        assert raised.value.status == 0
        await api.get(NODES, ONE_PAGE)  # nothing of it is left


@pytest.mark.parametrize("said", [b"", b"{}\n"], ids=["from the start", "after a line"])
async def test_a_silent_server_is_given_up(said: bytes) -> None:
    fake = FakeApi()

    async def silent(_: FakeApi, request: web.Request) -> web.StreamResponse:
        if said:
            await (await opened(request)).write(said)
        await asyncio.Event().wait()
        raise AssertionError

    async def read(api: Api) -> None:
        async with api.lines(NODES, {"watch": "1"}, 0.05) as batches:
            seen.extend([line async for lines in batches for line in lines])

    seen: list[bytes] = []
    fake.faults["watch", "nodes"].append(silent)
    async with fake.served() as server, client(Access((server,))) as api:
        with pytest.raises(ApiError, match=r": (no answer in time|Timeout on reading)"):
            await read(api)


# --- lines -------------------------------------------------------------------------------------


class Pieces:
    """Pieces of an answer, as they come."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [*pieces, b""]

    async def readany(self) -> bytes:
        return self._pieces.pop(0)


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        pytest.param((b"a\nb\n",), [[b"a", b"b"]], id="whole lines"),
        pytest.param((b"a", b"b", b"\nc\n"), [[b"ab", b"c"]], id="a line in pieces"),
        pytest.param((b"a\nb",), [[b"a"]], id="the rest of a cut line is dropped"),
        pytest.param((), [], id="nothing"),
    ],
)
async def test_lines_come_whole(pieces: tuple[bytes, ...], lines: list[list[bytes]]) -> None:
    assert [each async for each in whole_lines(Pieces(*pieces))] == lines  # type: ignore[arg-type]


async def test_a_line_longer_than_any_buffer_comes_whole() -> None:
    fake = FakeApi()
    fake.put("namespaces", namespace("a", long="x" * 1_000_000))
    async with fake.served() as server, client(Access((server,))) as api:
        query = {"watch": "1", "resourceVersion": "1", "timeoutSeconds": "9"}
        async with api.lines("/api/v1/namespaces", query, 9.0) as batches:
            async for lines in batches:
                assert len(lines[0]) > 1_000_000
                break
