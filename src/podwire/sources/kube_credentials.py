"""Who we are and whom we believe, as of now: a token for the header, a TLS context for the connection.

Invariants: files are read at each use, so a rotated token or certificate is used from the next request on, without an
event or a clock. A plugin runs when what it gave has expired, or was refused; never twice at once.
"""

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct

from podwire.sources.kube_config import Access, Content, Plugin

PLUGIN_SECONDS = 60.0
"""How long a plugin may take."""


class CredentialsError(Exception):
    """One line: which file or plugin, and why it gives nothing."""


class Given(Struct, frozen=True):
    """What a plugin gave. `expires` in seconds since the epoch; None: never, as far as it says."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: float | None = None


class Current(NamedTuple):
    token: str
    tls: ssl.SSLContext


class Credentials:
    def __init__(self, access: Access, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since the epoch."""
        self._access, self._clock = access, clock
        self._given: Given | None = None
        self._asking = asyncio.Lock()
        self._made_of: tuple[bytes, ...] = ()
        self._tls: ssl.SSLContext | None = None

    async def current(self) -> Current:
        """Raises CredentialsError."""
        access = self._access
        given = await self._from_plugin(access.plugin) if access.plugin is not None else Given()
        token = read_token(access.token) if access.token is not None else given.token
        authority = read(access.authority)
        certificate, key = read(access.certificate) or given.certificate, read(access.key) or given.key
        made_of = (authority, certificate, key)
        if self._tls is None or made_of != self._made_of:
            self._tls, self._made_of = tls_context(access, authority, certificate, key), made_of
        return Current(token, self._tls)

    def refused(self) -> None:
        """The API server did not accept them: what a plugin gave is not used again."""
        self._given = None

    async def _from_plugin(self, plugin: Plugin) -> Given:
        async with self._asking:
            given = self._given
            if given is None or (given.expires is not None and given.expires <= self._clock()):
                given = self._given = await run_plugin(plugin, told(plugin, read(self._access.authority)))
            return given


def read(content: Content | None) -> bytes:
    """Raises CredentialsError. Empty where there is none."""
    if content is None or not content.path:
        return content.inline if content is not None else b""
    try:
        with open(content.path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CredentialsError(f"{content.field}: {content.path}: {error.strerror or error}") from None


def read_token(content: Content) -> str:
    return checked_token(content.field, read(content).decode("latin-1"))


def checked_token(field: str, text: str) -> str:
    """A token is part of a header's line. Raises CredentialsError."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise CredentialsError(f"{field}: expected a token: one line of ASCII characters")
    return token


# --- TLS ---------------------------------------------------------------------------------------


def tls_context(access: Access, authority: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """All three are PEM, or empty. Raises CredentialsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.authority is not None:
        try:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise CredentialsError(f"{access.authority.field}: expected certificates in PEM form") from None
    else:
        context.load_default_certs()
    if certificate:
        field = access.certificate.field if access.certificate is not None else _plugin_field(access)
        _load(context, field, certificate, key)
    return context


def _load(context: ssl.SSLContext, field: str, certificate: bytes, key: bytes) -> None:
    """OpenSSL reads certificates from files only: this one never has a name, nor touches a disk."""
    descriptor = os.memfd_create("podwire-client")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise CredentialsError(
            f"{field}: expected a certificate, and its key without a password, in PEM form: {reason}"
        ) from None
    finally:
        os.close(descriptor)


def _plugin_field(access: Access) -> str:
    return access.plugin.field if access.plugin is not None else ""


# --- plugins -----------------------------------------------------------------------------------


class ExecStatus(Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class ExecCredential(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: ExecStatus | None = None


def told(plugin: Plugin, authority: bytes) -> str:
    """KUBERNETES_EXEC_INFO (client.authentication.k8s.io/v1, ExecCredentialSpec)."""
    spec: dict[str, object] = {"interactive": False}
    if plugin.cluster:
        known = {"certificate-authority-data": base64.b64encode(authority).decode()} if authority else {}
        spec["cluster"] = json.loads(plugin.cluster) | known
    return json.dumps({"kind": "ExecCredential", "apiVersion": plugin.version, "spec": spec})


async def run_plugin(plugin: Plugin, info: str) -> Given:
    """Raises CredentialsError."""
    environment = os.environ | dict(plugin.environment) | {"KUBERNETES_EXEC_INFO": info}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = f"; {' '.join(plugin.hint.split())}" if plugin.hint else ""
        raise CredentialsError(f"{plugin.field}.command: {plugin.command}: {reason}{hint}") from None
    try:
        async with asyncio.timeout(PLUGIN_SECONDS):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise _plugin_error(plugin, f"gave nothing within {PLUGIN_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = complaint.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        raise _plugin_error(plugin, f"exit code {process.returncode}: {last}")
    return decode_plugin(plugin, output)


def decode_plugin(plugin: Plugin, output: bytes) -> Given:
    """Raises CredentialsError."""
    try:
        answer = msgspec.json.decode(output, type=ExecCredential)
    except msgspec.DecodeError as error:
        raise _plugin_error(plugin, f"expected an ExecCredential in JSON: {error}") from None
    if (answer.api_version, answer.kind) != (plugin.version, "ExecCredential"):
        found = f"{answer.api_version} {answer.kind}"
        raise _plugin_error(plugin, f"expected {plugin.version} ExecCredential, not {found}")
    status = answer.status or ExecStatus()
    certificate, key = status.client_certificate_data or "", status.client_key_data or ""
    if not (status.token or certificate) or bool(certificate) != bool(key):
        raise _plugin_error(plugin, "expected status.token, or both of status.clientCertificateData and clientKeyData")
    token = checked_token(f"{plugin.field}: {plugin.command}: status.token", status.token) if status.token else ""
    return Given(token, certificate.encode(), key.encode(), _expiry(plugin, status.expiration_timestamp))


def _expiry(plugin: Plugin, text: str | None) -> float | None:
    if not text:
        return None
    try:
        time_ = datetime.fromisoformat(text)
    except ValueError:
        raise _plugin_error(plugin, f"status.expirationTimestamp: expected a time of RFC 3339, not {text!r}") from None
    return (time_ if time_.tzinfo else time_.replace(tzinfo=UTC)).timestamp()


def _plugin_error(plugin: Plugin, text: str) -> CredentialsError:
    return CredentialsError(f"{plugin.field}: {plugin.command}: {text}")
