"""Tokens that rotate, plugins that run no oftener than they must, and whom TLS believes."""

import asyncio
import base64
import json
import os
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from podwire.sources import kube_credentials
from podwire.sources.kube_config import Access, Content, Plugin
from podwire.sources.kube_credentials import Credentials, CredentialsError, decode_plugin
from tests.unit.kube_pki import Pki, needs_openssl

V1 = "client.authentication.k8s.io/v1"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def text(self, seconds: float) -> str:
        return datetime.fromtimestamp(self.now + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def program(directory: Path, *lines: str) -> str:
    """A plugin of these lines of shell, which also counts its runs."""
    path = directory / "plugin"
    path.write_text("\n".join(("#!/bin/sh", f"echo run >>{directory}/runs", *lines, "")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def runs(directory: Path) -> int:
    return (directory / "runs").read_text().count("run")


def plugin(command: str, **more: Any) -> Plugin:
    whole = {"field": "F: users[0].user.exec", "version": V1, "command": command, "arguments": (), "environment": ()}
    return Plugin(**whole | {"cluster": b"", "hint": ""} | more)


def answer(token: str = "", **status: str) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": token, **status}})


def using(plugin: Plugin, **more: Any) -> Access:
    return Access(("https://192.0.2.1",), plugin=plugin, **more)


# --- tokens ------------------------------------------------------------------------------------


async def test_a_token_in_a_file_is_the_one_that_is_there_now(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    credentials = Credentials(Access(("https://192.0.2.1",), token=Content("f", str(path))))
    assert (await credentials.current()).token == "first"
    (tmp_path / "next").write_text("second")
    (tmp_path / "next").rename(path)
    assert (await credentials.current()).token == "second"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "token: No such file or directory", id="no file"),
        pytest.param("", "expected a token: one line of ASCII characters", id="nothing"),
        pytest.param("a\nb", "expected a token", id="two lines"),
        pytest.param("é", "expected a token", id="another script"),
    ],
)
async def test_what_is_no_token_is_an_error_that_names_the_field(
    tmp_path: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    credentials = Credentials(Access(("https://192.0.2.1",), token=Content("F: users[0].user.tokenFile", str(path))))
    with pytest.raises(CredentialsError) as raised:
        await credentials.current()
    assert str(raised.value).startswith("F: users[0].user.tokenFile: ")
    assert says in str(raised.value)


# --- plugins -----------------------------------------------------------------------------------


async def test_a_plugin_runs_again_once_what_it_gave_has_expired_or_was_refused(tmp_path: Path) -> None:
    clock = Clock()
    command = program(tmp_path, f"echo '{answer('t', expirationTimestamp=clock.text(60))}'")
    credentials = Credentials(using(plugin(command)), clock)
    for _ in range(3):
        assert (await credentials.current()).token == "t"
    assert runs(tmp_path) == 1
    clock.now += 60
    await credentials.current()
    assert runs(tmp_path) == 2
    credentials.refused()
    clock.now -= 60
    await credentials.current()
    assert runs(tmp_path) == 3


async def test_without_an_expiry_a_plugin_runs_once_for_all_who_ask(tmp_path: Path) -> None:
    credentials = Credentials(using(plugin(program(tmp_path, f"echo '{answer('t')}'"))))
    assert {each.token for each in await asyncio.gather(*(credentials.current() for _ in range(6)))} == {"t"}
    assert runs(tmp_path) == 1


async def test_a_plugin_is_told_what_it_was_promised(tmp_path: Path) -> None:
    command = program(tmp_path, f'printf %s "$KUBERNETES_EXEC_INFO" >{tmp_path}/told', "echo '{}'")
    authority = Content("F: ca", inline=b"PEM")
    told = plugin(command, cluster=json.dumps({"server": "https://192.0.2.1"}).encode())
    with pytest.raises(CredentialsError):
        await Credentials(using(told, authority=authority)).current()
    cluster = {"server": "https://192.0.2.1", "certificate-authority-data": base64.b64encode(b"PEM").decode()}
    assert json.loads((tmp_path / "told").read_text()) == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {"interactive": False, "cluster": cluster},
    }


async def test_arguments_and_environment_reach_a_plugin(tmp_path: Path) -> None:
    command = program(tmp_path, "n=$(wc -c)", f"""echo '{answer("X")}' | sed "s/X/$1-$A-$n/" """)
    told = plugin(command, arguments=("one",), environment=(("A", "two"),))
    assert (await Credentials(using(told)).current()).token == "one-two-0"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param(("echo first >&2; echo last >&2; exit 3",), "exit code 3: last", id="it fails"),
        pytest.param(("exit 1",), "exit code 1: it said nothing", id="it fails in silence"),
        pytest.param(("echo token",), "expected an ExecCredential in JSON", id="not JSON"),
        pytest.param((f"echo '{answer()}'",), "expected status.token, or both", id="no token"),
        pytest.param(
            (f"echo '{answer('t', expirationTimestamp='soon')}'",),
            "status.expirationTimestamp: expected a time of RFC 3339, not 'soon'",
            id="no time",
        ),
        pytest.param(
            (f"echo '{answer('t').replace('v1', 'v1beta1')}'",),
            f"expected {V1} ExecCredential, not {V1}beta1 ExecCredential",
            id="another version",
        ),
    ],
)
async def test_a_plugin_that_gives_nothing_is_named_with_the_reason(
    tmp_path: Path, lines: tuple[str, ...], says: str
) -> None:
    command = program(tmp_path, *lines)
    with pytest.raises(CredentialsError) as raised:
        await Credentials(using(plugin(command))).current()
    assert str(raised.value).startswith(f"F: users[0].user.exec: {command}: ")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_missing_plugin_is_named_with_its_hint(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError) as raised:
        await Credentials(using(plugin("/no/such", hint="install it\nfirst"))).current()
    assert str(raised.value) == "F: users[0].user.exec.command: /no/such: No such file or directory; install it first"


async def test_a_plugin_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_credentials, "PLUGIN_SECONDS", 0.05)
    command = program(tmp_path, f"echo $$ >{tmp_path}/pid", "exec sleep 600")
    with pytest.raises(CredentialsError, match=r"gave nothing within 0\.05 s"):
        await Credentials(using(plugin(command))).current()
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("text", "expires"),
    [("2026-11-29T18:00:00Z", 1795975200.0), ("2026-11-29T19:00:00+01:00", 1795975200.0), ("", None)],
    ids=["UTC", "another zone", "never"],
)
def test_when_credentials_expire(text: str, expires: float | None) -> None:
    assert decode_plugin(plugin("p"), answer("t", expirationTimestamp=text).encode()).expires == expires


# --- TLS ---------------------------------------------------------------------------------------


@pytest.fixture
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.getbasetemp() / "pki")


@needs_openssl
async def test_a_context_is_made_anew_only_when_what_it_is_made_of_changes(pki: Pki, tmp_path: Path) -> None:
    one, two = pki.pair("one", "/CN=one"), pki.pair("two", "/CN=two")
    both = tmp_path / "client.pem"  # certificate and key in one file, as kubelet's

    def rotate(pair: Any) -> None:
        (tmp_path / "next").write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
        (tmp_path / "next").rename(both)

    rotate(one)
    client = Content("F: client", str(both))
    access = Access(("https://192.0.2.1",), Content("F: ca", str(pki.authority)), certificate=client, key=client)
    credentials = Credentials(access)
    first = (await credentials.current()).tls
    assert first.verify_mode is ssl.CERT_REQUIRED
    assert first.check_hostname
    assert (await credentials.current()).tls is first
    rotate(two)
    assert (await credentials.current()).tls is not first


@needs_openssl
@pytest.mark.parametrize(
    ("authority", "certificate", "key", "says"),
    [
        ("nothing", None, None, "F: ca: expected certificates in PEM form"),
        ("ca.crt", "one.crt", "two.key", "F: certificate: expected a certificate, and its key"),
        ("ca.crt", "nothing", "one.key", "F: certificate: expected a certificate, and its key"),
        ("ca.crt", "one.crt", "locked.key", "F: certificate: expected a certificate, and its key without a password"),
        ("ca.crt", "missing", "one.key", "F: certificate: {}/missing: No such file or directory"),
    ],
    ids=["no authority", "the key of another", "no certificate", "a locked key", "no file"],
)
async def test_what_tls_can_not_use_is_named(
    pki: Pki, authority: str, certificate: str | None, key: str | None, says: str
) -> None:
    pki.pair("one", "/CN=one")
    pki.pair("two", "/CN=two")
    pki.lock("one", "locked")
    (pki.directory / "nothing").write_text("nothing\n")
    named = {"certificate": certificate, "key": key}
    contents = {name: Content(f"F: {name}", f"{pki.directory}/{file}") for name, file in named.items() if file}
    access = Access(("https://192.0.2.1",), Content("F: ca", f"{pki.directory}/{authority}"), **contents)
    with pytest.raises(CredentialsError) as raised:
        await Credentials(access).current()
    assert str(raised.value).startswith(says.format(pki.directory))
    assert "\n" not in str(raised.value)


@needs_openssl
async def test_a_plugin_may_give_a_certificate(pki: Pki, tmp_path: Path) -> None:
    pair = pki.pair("one", "/CN=one")
    given = answer("", clientCertificateData=pair.certificate.read_text(), clientKeyData=pair.key.read_text())
    (tmp_path / "answer").write_text(given)
    access = using(plugin(program(tmp_path, f"cat {tmp_path}/answer")), authority=Content("F", str(pki.authority)))
    current = await Credentials(access).current()
    assert (current.token, current.tls.verify_mode) == ("", ssl.CERT_REQUIRED)


async def test_believing_anyone_must_be_said() -> None:
    tls = (await Credentials(Access(("https://192.0.2.1",), insecure=True)).current()).tls
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_NONE, False)
    tls = (await Credentials(Access(("https://192.0.2.1",))).current()).tls
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
