"""Kubeconfigs and service accounts: what a right one gives, and the one line that each wrong one gets."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from podwire.config import Kubernetes
from podwire.sources.kube_config import (
    Access,
    Content,
    KubeConfigError,
    Plugin,
    in_cluster,
    read_access,
    read_kubeconfig,
)

ENCODED = base64.b64encode(b"-----BEGIN").decode()
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws-iam", "args": ["token"]}


def config(cluster: Any = None, user: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "other", "cluster": {"server": "https://other"}},
            {"name": "c", "cluster": cluster or {"server": "https://10.0.0.1:6443"}},
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "there", "context": {"cluster": "other"}},
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "here",
        **more,
    }


def written(directory: Path, content: Any) -> Path:
    path = directory / "kubeconfig"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def server(**more: Any) -> dict[str, Any]:
    return {"server": "https://10.0.0.1:6443", **more}


SERVERS = ("https://10.0.0.1:6443",)


@pytest.mark.parametrize(
    ("content", "access"),
    [
        pytest.param(config(), Access(SERVERS), id="nobody in particular"),
        pytest.param(config({"server": "https://lb.example/k8s/"}), Access(("https://lb.example/k8s",)), id="a path"),
        pytest.param(
            config(server(**{"certificate-authority": "pki/ca.crt", "tls-server-name": "kubernetes"})),
            Access(
                SERVERS,
                Content("F: clusters[1].cluster.certificate-authority", "D/pki/ca.crt"),
                server_name="kubernetes",
            ),
            id="a file beside the kubeconfig, and a name",
        ),
        pytest.param(
            config(server(**{"certificate-authority": "/ca.crt", "certificate-authority-data": ENCODED})),
            Access(SERVERS, Content("F: clusters[1].cluster.certificate-authority-data", inline=b"-----BEGIN")),
            id="data counts before a file",
        ),
        pytest.param(
            config(server(**{"insecure-skip-tls-verify": True})), Access(SERVERS, insecure=True), id="believing anyone"
        ),
        pytest.param(
            config(user={"client-certificate": "/c.crt", "client-key-data": f"{ENCODED[:4]}\n {ENCODED[4:]}"}),
            Access(
                SERVERS,
                certificate=Content("F: users[0].user.client-certificate", "/c.crt"),
                key=Content("F: users[0].user.client-key-data", inline=b"-----BEGIN"),
            ),
            id="a certificate in a file, its key inline and on two lines",
        ),
        pytest.param(
            config(user={"token": "t"}),
            Access(SERVERS, token=Content("F: users[0].user.token", inline=b"t")),
            id="a token",
        ),
        pytest.param(
            config(user={"token": "t", "tokenFile": "../token"}),
            Access(SERVERS, token=Content("F: users[0].user.tokenFile", "P/token")),
            id="a token's file counts before a token",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "env": [{"name": "A", "value": "b"}], "installHint": "apt install aws"}}),
            Access(
                SERVERS,
                plugin=Plugin(
                    "F: users[0].user.exec",
                    EXEC["apiVersion"],
                    "aws-iam",
                    ("token",),
                    (("A", "b"),),
                    b"",
                    "apt install aws",
                ),  # type: ignore[arg-type]
            ),
            id="a plugin by name",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "command": "./bin/plugin", "args": None, "interactiveMode": "IfAvailable"}}),
            Access(
                SERVERS, plugin=Plugin("F: users[0].user.exec", EXEC["apiVersion"], "D/bin/plugin", (), (), b"", "")
            ),  # type: ignore[arg-type]
            id="a plugin beside the kubeconfig",
        ),
    ],
)
def test_kubeconfig(tmp_path: Path, content: Any, access: Access) -> None:
    path = written(tmp_path, content)

    def placed(text: str) -> str:
        return text.replace("F:", f"{path}:").replace("D/", f"{tmp_path}/").replace("P/", f"{tmp_path.parent}/")

    wanted = json.loads(placed(json.dumps(_plain(access))))
    assert _plain(read_kubeconfig(path)) == wanted


def _plain(access: Any) -> Any:
    if hasattr(access, "__struct_fields__"):
        return [_plain(getattr(access, name)) for name in access.__struct_fields__]
    if isinstance(access, tuple):
        return [_plain(each) for each in access]
    return access.decode() if isinstance(access, bytes) else access


def test_a_context_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, config())
    assert read_kubeconfig(path, "there") == Access(("https://other",))


def test_a_plugin_is_told_of_the_cluster_where_it_wants_to_be(tmp_path: Path) -> None:
    extensions = [
        {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}},
        {"name": "x", "extension": 1},
    ]
    cluster = server(extensions=extensions, **{"tls-server-name": "kubernetes"})
    path = written(tmp_path, config(cluster, {"exec": {**EXEC, "provideClusterInfo": True}}))
    plugin = read_kubeconfig(path).plugin
    assert plugin is not None
    assert json.loads(plugin.cluster) == {
        "server": SERVERS[0],
        "tls-server-name": "kubernetes",
        "config": {"audience": "a"},
    }


def test_a_kubeconfig_may_be_json(tmp_path: Path) -> None:
    assert read_kubeconfig(written(tmp_path, json.dumps(config()))) == Access(SERVERS)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param("", "F: expected one document, of apiVersion v1 and kind Config", id="an empty file"),
        pytest.param("clusters: [", "F: document 1, line 1: while parsing a flow node", id="not YAML"),
        pytest.param(
            {"apiVersion": "v1", "kind": "Pod"},
            "F: document 1, line 2: kind: expected v1 Config, not v1 Pod",
            id="another kind",
        ),
        pytest.param(
            config(**{"current-context": None}),
            "current-context: missing; expected one of 'there', 'here'",
            id="no context chosen",
        ),
        pytest.param(
            config(**{"current-context": "nowhere"}),
            "line 21: current-context: expected one of 'there', 'here', not 'nowhere'",
            id="an unknown context",
        ),
        pytest.param(
            config(contexts=None),
            "current-context: expected the name of one, and there is none, not 'here'",
            id="no contexts",
        ),
        pytest.param(
            config(contexts=[{"name": "here", "context": {"cluster": "d", "user": "u"}}]),
            "contexts[0].context.cluster: expected one of 'other', 'c', not 'd'",
            id="an unknown cluster",
        ),
        pytest.param(
            config(contexts=[{"name": "here", "context": {"cluster": "c", "user": "v"}}]),
            "contexts[0].context.user: expected one of 'u', not 'v'",
            id="an unknown user",
        ),
        pytest.param(
            config({"server": "10.0.0.1:6443"}),
            "line 9: clusters[1].cluster.server: "
            "expected an address such as https://192.0.2.1:6443, not '10.0.0.1:6443'",
            id="a server without https",
        ),
        pytest.param(config({"tls-server-name": "a"}), "clusters[1].cluster.server: missing", id="no server"),
        pytest.param(
            config(server(**{"certificate-authority-data": "not base64!"})),
            "clusters[1].cluster.certificate-authority-data: expected base64",
            id="an authority that is not base64",
        ),
        pytest.param(
            config(server(**{"certificate-authority": "/ca", "insecure-skip-tls-verify": True})),
            "clusters[1].cluster.insecure-skip-tls-verify: expected false where a certificate-authority is given",
            id="an authority that nobody asks",
        ),
        pytest.param(
            config(server(**{"proxy-url": "socks5://localhost"})),
            "clusters[1].cluster.proxy-url: proxies are not supported",
            id="a proxy",
        ),
        pytest.param(
            config(user={"token": 7}),
            "users[0].user.token: expected text, not a whole number",
            id="a number for a token",
        ),
        pytest.param(
            config(user={"client-certificate": "/c"}),
            "users[0].user.client-key: missing beside client-certificate",
            id="a certificate without its key",
        ),
        pytest.param(
            config(user={"client-key": "/k"}),
            "users[0].user.client-certificate: missing beside client-key",
            id="a key without its certificate",
        ),
        pytest.param(
            config(user={"username": "admin", "password": "x"}),
            "users[0].user.username: passwords are not supported",
            id="a password",
        ),
        pytest.param(
            config(user={"auth-provider": {"name": "gcp"}}),
            "users[0].user.auth-provider: auth providers are gone since Kubernetes 1.26: expected exec",
            id="an auth provider",
        ),
        pytest.param(
            config(user={"token": "t", "as": "admin"}),
            "users[0].user.as: impersonation is not supported",
            id="as another",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
            "users[0].user.exec.apiVersion: expected client.authentication.k8s.io/v1 or",
            id="an old plugin",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "interactiveMode": "Always"}}),
            "users[0].user.exec.interactiveMode: expected Never or IfAvailable",
            id="a plugin that asks people",
        ),
        pytest.param(
            config(user={"exec": {**EXEC, "command": ""}}), "users[0].user.exec.command: missing", id="no command"
        ),
    ],
)
def test_wrong_kubeconfigs_get_one_line(tmp_path: Path, content: Any, error: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(KubeConfigError) as raised:
        read_kubeconfig(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert error.removeprefix("F: ") in text
    assert "\n" not in text


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError) as raised:
        read_kubeconfig(tmp_path / "none")
    assert str(raised.value) == f"{tmp_path}/none: No such file or directory"


def test_an_unknown_context_of_the_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match=r"kubernetes\.context: expected one of 'there', 'here', not 'edge'"):
        read_kubeconfig(written(tmp_path, config()), "edge")


def test_servers_of_the_configuration_stand_in_place_of_the_file_s(tmp_path: Path) -> None:
    settings = Kubernetes(
        written(tmp_path, config(user={"token": "t"})), None, ("https://10.0.0.2/", "https://10.0.0.3")
    )
    access = read_access(settings, {})
    assert access.servers == ("https://10.0.0.2", "https://10.0.0.3")
    assert access.token is not None


@pytest.mark.parametrize(
    ("environment", "servers", "wanted"),
    [
        pytest.param(
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"},
            (),
            ("https://10.96.0.1:443",),
            id="IPv4",
        ),
        pytest.param(
            {"KUBERNETES_SERVICE_HOST": "fd96::1", "KUBERNETES_SERVICE_PORT": "6443"},
            (),
            ("https://[fd96::1]:6443",),
            id="IPv6",
        ),
        pytest.param(
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
            ("https://10.0.0.1:6443",),
            ("https://10.0.0.1:6443",),
            id="the configuration's first",
        ),
        pytest.param({}, ("https://10.0.0.1:6443",), ("https://10.0.0.1:6443",), id="without the environment"),
    ],
)
def test_a_pod_uses_its_service_account(
    environment: dict[str, str], servers: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    access = read_access(Kubernetes(api_servers=servers), environment, Path("/account"))
    assert access == Access(
        wanted,
        Content("service account: /account/ca.crt", "/account/ca.crt"),
        token=Content("service account: /account/token", "/account/token"),
    )


def test_outside_of_a_pod_there_is_no_service_account() -> None:
    with pytest.raises(KubeConfigError, match=r"not in a pod .*: expected kubernetes\.kubeconfig, or"):
        in_cluster({}, Path("/account"))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WHOLE = config(
    server(**{"certificate-authority": "ca", "extensions": [{"name": "x"}]}),
    {
        "client-certificate": "a",
        "client-key": "b",
        "token": "t",
        "exec": {**EXEC, "env": [{"name": "A", "value": "b"}]},
    },
)


def _places(thing: Any) -> list[tuple[Any, Any]]:
    items = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    return [place for key, value in items for place in [(thing, key), *_places(value)]]


@given(st.data())
def test_whatever_stands_in_a_field_the_error_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    thing = json.loads(json.dumps(WHOLE))
    holder, key = data.draw(st.sampled_from(_places(thing)))
    holder[key] = data.draw(ANYTHING)
    path = tmp_path_factory.getbasetemp() / "kubeconfig.json"
    path.write_text(json.dumps(thing))
    text = ""
    try:
        read_kubeconfig(path)
    except KubeConfigError as error:
        text = str(error)
    assert "\n" not in text
