"""How to reach the API: as a kubeconfig says, or as a pod of the cluster does.

Invariants: a file is checked whole before anything is tried. The files that it names (certificates, tokens) are only
named here: they rotate, so each use reads them. Paths in a kubeconfig are relative to its own directory, inline data
counts before a file (client-go, clientcmd). Every error is one line: file, field, right form; what can't be
honoured and would mean another identity or another way is an error too.
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from podwire.config import API_SERVER, Kubernetes
from podwire.model.objects import Value
from podwire.sources.documents import Broken, Document, read_documents
from podwire.sources.fields import Invalid, invalid, shown

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_PLUGIN_EXTENSION = "client.authentication.k8s.io/exec"


class KubeConfigError(Exception):
    """One line for whoever wrote the file."""


class Content(Value, frozen=True):
    """Bytes that stand in a file (`path`), read at each use, or inline. `field` is their name in errors."""

    field: str
    path: str = ""
    inline: bytes = b""


class Plugin(Value, frozen=True):
    """A program that gives credentials. `cluster`: what it is told of the cluster, beside the certificate authority,
    as a JSON object; empty: nothing."""

    field: str
    version: str
    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    cluster: bytes
    hint: str


class Access(Value, frozen=True):
    """Where the API is, whom to believe (`authority` None: the system's), and who we are.

    `servers` are alternatives, in order; their paths have no slash at the end.
    """

    servers: tuple[str, ...]
    authority: Content | None = None
    insecure: bool = False
    server_name: str | None = None
    certificate: Content | None = None
    key: Content | None = None
    token: Content | None = None
    plugin: Plugin | None = None


def read_access(settings: Kubernetes, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Access:
    """Raises KubeConfigError."""
    if settings.kubeconfig is not None:
        access = read_kubeconfig(settings.kubeconfig, settings.context)
    else:
        access = in_cluster(environment, account, settings.api_servers)
    given = tuple(server.rstrip("/") for server in settings.api_servers)
    return replace(access, servers=given) if given else access


def in_cluster(environment: Mapping[str, str], account: Path, servers: tuple[str, ...] = ()) -> Access:
    """As a pod's service account (Kubernetes docs, "Accessing the API from within a Pod")."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not servers and not host:
        raise KubeConfigError(
            "kubernetes: not in a pod (KUBERNETES_SERVICE_HOST is not set): "
            "expected kubernetes.kubeconfig, or kubernetes.api_servers beside a mounted service account"
        )
    authority, token = account / "ca.crt", account / "token"
    return Access(
        servers or (f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",),
        authority=Content(f"service account: {authority}", str(authority)),
        token=Content(f"service account: {token}", str(token)),
    )


# --- the file's form ---------------------------------------------------------------------------


class Extension(Struct, frozen=True):
    name: str
    extension: Any = None


class Cluster(Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[Extension] | None = None


class Variable(Struct, frozen=True):
    name: str
    value: str


class Exec(Struct, frozen=True, rename="camel"):
    api_version: str
    command: str
    args: list[str] | None = None
    env: list[Variable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class User(Struct, frozen=True, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = field(default=None, name="tokenFile")
    exec: Exec | None = None
    username: str | None = None
    auth_provider: Any = None
    as_: str | None = field(default=None, name="as")


class Context(Struct, frozen=True):
    cluster: str
    user: str | None = None


class NamedCluster(Struct, frozen=True):
    name: str
    cluster: Cluster


class NamedUser(Struct, frozen=True):
    name: str
    user: User | None = None


class NamedContext(Struct, frozen=True):
    name: str
    context: Context


class KubeConfig(Struct, frozen=True, rename="kebab"):
    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None
    current_context: str | None = None


Named = TypeVar("Named", NamedCluster, NamedUser, NamedContext)


# --- the file ----------------------------------------------------------------------------------


def read_kubeconfig(path: Path, context: str | None = None) -> Access:
    """The access that a context gives; `context` None: the file's current one. Raises KubeConfigError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KubeConfigError(f"{path}: {error.strerror or error}") from None
    try:
        documents = read_documents(str(path), text)
        if len(documents) != 1:
            raise KubeConfigError(f"{path}: expected one document, of apiVersion v1 and kind Config")
        return _access(documents[0], path, context)
    except Broken as error:
        raise KubeConfigError(str(error)) from None


def _access(document: Document, path: Path, wanted: str | None) -> Access:
    """Raises Broken."""
    if (document.api_version, document.kind) != ("v1", "Config"):
        raise document.broken("kind", f"expected v1 Config, not {document.api_version} {document.kind}")
    try:
        file = msgspec.convert(document.data, KubeConfig)
        where = Reader(str(path), path.parent)
        name = wanted or file.current_context
        if not name:
            raise Invalid("current-context", f"missing; expected {_names(file.contexts)}")
        asked = "kubernetes.context" if wanted else "current-context"
        place, chosen = _find("contexts", file.contexts, name, asked)
        context = chosen.context
        at, cluster = _find("clusters", file.clusters, context.cluster, f"{place}.context.cluster")
        access = where.cluster(f"{at}.cluster", cluster.cluster)
        if not context.user:
            return access
        at, user = _find("users", file.users, context.user, f"{place}.context.user")
        return where.user(f"{at}.user", user.user or User(), access, cluster.cluster)
    except msgspec.ValidationError as error:
        wrong = invalid(error)
        raise document.broken(wrong.field, wrong.message) from None
    except Invalid as wrong:
        raise document.broken(wrong.field, wrong.message) from None


def _find(path: str, listed: list[Named] | None, name: str, asked: str) -> tuple[str, Named]:
    for number, each in enumerate(listed or ()):
        if each.name == name:
            return f"{path}[{number}]", each
    raise Invalid(asked, f"expected {_names(listed)}, not {shown(name)}")


def _names(listed: list[Named] | None) -> str:
    names = [shown(each.name) for each in listed or ()]
    return f"one of {', '.join(names)}" if names else "the name of one, and there is none"


class Reader(Struct, frozen=True):
    """Clusters and users of one file, whose paths are relative to `directory`. All methods raise Invalid."""

    file: str
    directory: Path

    def cluster(self, at: str, it: Cluster) -> Access:
        if not re.match(API_SERVER, it.server):
            raise Invalid(f"{at}.server", f"expected an address such as https://192.0.2.1:6443, not {shown(it.server)}")
        if it.proxy_url:
            raise Invalid(
                f"{at}.proxy-url", "proxies are not supported: expected a server that the node reaches itself"
            )
        authority = self.content(at, "certificate-authority", it.certificate_authority, it.certificate_authority_data)
        insecure = it.insecure_skip_tls_verify is True
        if insecure and authority is not None:
            raise Invalid(f"{at}.insecure-skip-tls-verify", "expected false where a certificate-authority is given")
        return Access((it.server.rstrip("/"),), authority, insecure, it.tls_server_name or None)

    def user(self, at: str, it: User, access: Access, cluster: Cluster) -> Access:
        for name, value, right in (
            ("username", it.username, "passwords are not supported: expected a token or a client certificate"),
            ("auth-provider", it.auth_provider, "auth providers are gone since Kubernetes 1.26: expected exec"),
            ("as", it.as_, "impersonation is not supported: expected the user itself"),
        ):
            if value:
                raise Invalid(f"{at}.{name}", right)
        certificate = self.content(at, "client-certificate", it.client_certificate, it.client_certificate_data)
        key = self.content(at, "client-key", it.client_key, it.client_key_data)
        if (certificate is None) != (key is None):
            missing, there = (
                ("client-key", "client-certificate") if key is None else ("client-certificate", "client-key")
            )
            raise Invalid(f"{at}.{missing}", f"missing beside {there}")
        token = None
        if it.token_file:  # a file counts before a token, since it is the one that is renewed (client-go)
            token = Content(f"{self.file}: {at}.tokenFile", self.path(it.token_file))
        elif it.token:
            token = Content(f"{self.file}: {at}.token", inline=it.token.encode())
        plugin = self.plugin(f"{at}.exec", it.exec, cluster) if it.exec is not None else None
        return replace(access, certificate=certificate, key=key, token=token, plugin=plugin)

    def content(self, at: str, name: str, path: str | None, data: str | None) -> Content | None:
        if data:
            try:
                decoded = base64.b64decode("".join(data.split()), validate=True)
            except (binascii.Error, ValueError):
                raise Invalid(f"{at}.{name}-data", "expected base64") from None
            return Content(f"{self.file}: {at}.{name}-data", inline=decoded)
        return Content(f"{self.file}: {at}.{name}", self.path(path)) if path else None

    def path(self, text: str) -> str:
        return os.path.normpath(self.directory / text)

    def plugin(self, at: str, it: Exec, cluster: Cluster) -> Plugin:
        """The rules: Kubernetes docs, "client-go credential plugins"."""
        if it.api_version not in PLUGIN_VERSIONS:
            expected = " or ".join(PLUGIN_VERSIONS)
            raise Invalid(f"{at}.apiVersion", f"expected {expected}, not {shown(it.api_version)}")
        if it.interactive_mode == "Always":
            raise Invalid(f"{at}.interactiveMode", "expected Never or IfAvailable: nobody sits before an agent")
        if not it.command:
            raise Invalid(f"{at}.command", "missing")
        told = _told_to_plugins(cluster) if it.provide_cluster_info else b""
        return Plugin(
            f"{self.file}: {at}",
            it.api_version,
            self.path(it.command) if "/" in it.command else it.command,
            tuple(it.args or ()),
            tuple((variable.name, variable.value) for variable in it.env or ()),
            told,
            it.install_hint or "",
        )


def _told_to_plugins(it: Cluster) -> bytes:
    config = next((each.extension for each in it.extensions or () if each.name == _PLUGIN_EXTENSION), None)
    told = {
        "server": it.server,
        "tls-server-name": it.tls_server_name,
        "insecure-skip-tls-verify": it.insecure_skip_tls_verify,
        "config": config,
    }
    return json.dumps({name: value for name, value in told.items() if value}).encode()
