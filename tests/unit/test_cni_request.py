"""What a runtime asks, right and wrong: each mistake gets the specification's code and a sentence that names it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.errors import VERSIONS, CniError, ErrorCode, encode_error
from podwire.cni.request import Request, check_interface, parse_arguments, parse_request
from podwire.cni.result import DNS
from podwire.model.addresses import parse_address
from podwire.model.objects import AttachmentKey, PodKey

SANDBOX = "0123abcd" * 8
ENVIRONMENT = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": SANDBOX,
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=0;K8S_POD_UID=u",
    "CNI_PATH": "/opt/cni/bin",
}
CONFIG: dict[str, Any] = {"cniVersion": "1.0.0", "name": "podwire", "type": "podwire"}


def ask(environment: Mapping[str, str | None] = {}, config: Any = CONFIG) -> Request:
    """`environment` on top of a right one; None takes a variable out. `config` as JSON, or its bytes."""
    variables = {**ENVIRONMENT, **environment}
    lines = [f"{name}={value}" for name, value in variables.items() if value is not None]
    return parse_request(lines, config if isinstance(config, bytes) else json.dumps(config).encode())


@pytest.mark.parametrize("version", VERSIONS)
def test_an_add_as_container_runtimes_send_it(version: str) -> None:
    config = CONFIG | {"cniVersion": version, "capabilities": {"portMappings": True}, "later": {"unknown": [1]}}
    request = ask(config=config)
    assert (request.command, request.version) == ("ADD", version)
    assert request.key == AttachmentKey(SANDBOX, "eth0")
    assert request.pod == PodKey("shop", "web-0")
    assert request.netns == "/run/netns/x"


@pytest.mark.parametrize("arguments", ["", None, "IgnoreUnknown=true;FOO=BAR"])
def test_a_runtime_that_knows_no_kubernetes_names_no_pod(arguments: str | None) -> None:
    assert ask({"CNI_ARGS": arguments}).pod == PodKey("", SANDBOX)


@pytest.mark.parametrize("netns", ["", None])
def test_a_del_needs_no_namespace(netns: str | None) -> None:
    request = ask({"CNI_COMMAND": "DEL", "CNI_NETNS": netns}, CONFIG | {"prevResult": {"cniVersion": "1.0.0"}})
    assert (request.key, request.netns) == (AttachmentKey(SANDBOX, "eth0"), "")


def test_a_del_does_not_ask_for_what_an_add_may_not_have() -> None:
    config = CONFIG | {"ipam": {"type": "host-local"}, "runtimeConfig": {"mac": "02:00:00:00:00:01"}}
    assert ask({"CNI_COMMAND": "DEL"}, config).command == "DEL"


@pytest.mark.parametrize("command", ["STATUS", "VERSION"])
def test_questions_about_the_node_need_no_container(command: str) -> None:
    none = {"CNI_CONTAINERID": None, "CNI_NETNS": None, "CNI_IFNAME": None, "CNI_ARGS": None, "CNI_PATH": None}
    assert ask({"CNI_COMMAND": command, **none}).command == command


@pytest.mark.parametrize("stdin", [b"", b"junk", b'{"cniVersion":"9.9.9"}'])
def test_version_is_answered_whatever_the_configuration(stdin: bytes) -> None:
    assert ask({"CNI_COMMAND": "VERSION"}, stdin).command == "VERSION"


def test_capabilities_without_content_ask_for_nothing() -> None:
    config = CONFIG | {"runtimeConfig": {"portMappings": [], "bandwidth": {}, "dns": {"servers": ["1.1.1.1"]}}}
    assert ask(config=config).command == "ADD"


@pytest.mark.parametrize(
    ("environment", "code", "text"),
    [
        pytest.param({"CNI_COMMAND": None}, 4, "CNI_COMMAND: expected one of ADD, CHECK, DEL", id="no command"),
        pytest.param({"CNI_COMMAND": "add"}, 4, "found 'add'", id="command in small letters"),
        pytest.param({"CNI_CONTAINERID": None}, 4, "CNI_CONTAINERID: missing; ADD needs it", id="no container"),
        pytest.param({"CNI_CONTAINERID": ""}, 4, "CNI_CONTAINERID: missing", id="empty container"),
        pytest.param(
            {"CNI_NETNS": "", "CNI_IFNAME": None}, 4, "CNI_NETNS, CNI_IFNAME: missing", id="all that is missing at once"
        ),
        pytest.param({"CNI_COMMAND": "CHECK", "CNI_NETNS": ""}, 4, "CHECK needs it", id="CHECK without namespace"),
        pytest.param({"CNI_COMMAND": "DEL", "CNI_IFNAME": ""}, 4, "DEL needs it", id="DEL without interface"),
        pytest.param({"CNI_CONTAINERID": "../x"}, 4, "CNI_CONTAINERID: expected a letter or digit", id="path"),
        pytest.param({"CNI_CONTAINERID": "x y"}, 4, "found 'x y'", id="container with a space"),
        pytest.param({"CNI_CONTAINERID": "x\n"}, 4, "found 'x\\n'", id="container with a line end"),
        pytest.param({"CNI_CONTAINERID": "ä"}, 4, "found 'ä'", id="container beyond ASCII"),
        pytest.param({"CNI_CONTAINERID": "x" * 1025}, 4, "at most 1024 bytes; found 1025", id="container too long"),
        pytest.param({"CNI_IFNAME": "sixteen-bytes-16"}, 4, "at most 15 bytes", id="interface too long"),
        pytest.param({"CNI_IFNAME": "ääääääää"}, 4, "at most 15 bytes", id="interface too long in bytes"),
        pytest.param({"CNI_IFNAME": "."}, 4, "found '.'", id="interface dot"),
        pytest.param({"CNI_IFNAME": ".."}, 4, "found '..'", id="interface dots"),
        pytest.param({"CNI_IFNAME": "a/b"}, 4, "found 'a/b'", id="interface with slash"),
        pytest.param({"CNI_IFNAME": "a:b"}, 4, "found 'a:b'", id="interface with colon"),
        pytest.param({"CNI_IFNAME": "a b"}, 4, "found 'a b'", id="interface with space"),
        pytest.param({"CNI_IFNAME": "a\tb"}, 4, "found 'a\\tb'", id="interface with tab"),
        pytest.param({"CNI_IFNAME": "eth%d"}, 4, "found 'eth%d'", id="interface that the kernel would number"),
        pytest.param({"CNI_IFNAME": "all"}, 4, "found 'all'", id="interface named like a sysctl directory"),
        pytest.param({"CNI_ARGS": "K8S_POD_NAME"}, 4, "CNI_ARGS: expected NAME=value", id="argument without value"),
        pytest.param({"CNI_ARGS": "=x"}, 4, "found '=x'", id="argument without name"),
        pytest.param({"CNI_ARGS": "FOO=BAR"}, 4, "CNI_ARGS: unknown FOO", id="unknown argument"),
        pytest.param({"CNI_ARGS": "FOO=BAR;IgnoreUnknown=0"}, 4, "unknown FOO", id="unknown argument not ignored"),
        pytest.param({"CNI_ARGS": "IgnoreUnknown=maybe"}, 4, "IgnoreUnknown: expected 1", id="neither true nor false"),
        pytest.param({"CNI_ARGS": "K8S_POD_NAME=x"}, 4, "both K8S_POD_NAMESPACE and K8S_POD_NAME", id="half a pod"),
    ],
)
def test_a_wrong_environment(environment: dict[str, str | None], code: int, text: str) -> None:
    with pytest.raises(CniError) as raised:
        ask(environment)
    assert raised.value.code == code
    assert text in raised.value.text


@pytest.mark.parametrize(
    ("config", "code", "text"),
    [
        pytest.param(b"", 6, "network configuration: Input data was truncated", id="nothing"),
        pytest.param(b'{"cniVersion":', 6, "truncated", id="cut off"),
        pytest.param(b'{"cniVersion":"\xff"}', 6, "network configuration", id="no UTF-8"),
        pytest.param([], 6, "Expected `object`", id="a list"),
        pytest.param(CONFIG | {"cniVersion": 1}, 6, "$.cniVersion", id="version is a number"),
        pytest.param(CONFIG | {"name": None}, 6, "$.name", id="name is null"),
        pytest.param({"name": "podwire"}, 1, "cniVersion: expected one of 0.4.0, 1.0.0, 1.1.0", id="no version"),
        pytest.param(CONFIG | {"cniVersion": "0.3.1"}, 1, "found '0.3.1'", id="version too old"),
        pytest.param(CONFIG | {"cniVersion": "1.2.0"}, 1, "found '1.2.0'", id="version too new"),
        pytest.param({"cniVersion": "1.0.0"}, 7, "name: expected a letter or digit", id="no name"),
        pytest.param(CONFIG | {"name": "-x"}, 7, "found '-x'", id="wrong name"),
        pytest.param(CONFIG | {"prevResult": {}}, 7, "prevResult: podwire must be the first", id="second in a list"),
        pytest.param(CONFIG | {"ipam": {"type": "a/b"}}, 7, "ipam.type: expected the name of a plugin", id="no plugin"),
        pytest.param(CONFIG | {"ipam": {"type": "podwire"}}, 7, "ipam.type: expected another plugin", id="ourselves"),
        pytest.param(CONFIG | {"ipam": {"ranges": []}}, 7, "ipam.type: expected the name", id="no type"),
        pytest.param(
            CONFIG | {"runtimeConfig": {"bandwidth": {"ingressRate": 80}}},
            7,
            "runtimeConfig.bandwidth.ingressBurst: expected one beside ingressRate; found 0",
            id="bandwidth",
        ),
        pytest.param(
            CONFIG | {"runtimeConfig": {"portMappings": [{"hostPort": 0}]}},
            7,
            "runtimeConfig.portMappings[0].hostPort: expected a number from 1 to 65535; found 0",
            id="port mappings",
        ),
        pytest.param(CONFIG | {"runtimeConfig": {"ips": ["10.0.0.x"]}}, 7, "runtimeConfig.ips[0]: exp", id="address"),
        pytest.param(CONFIG | {"args": {"cni": {"mac": "x"}}}, 7, "args.cni.mac: expected a MAC", id="MAC address"),
        pytest.param(
            CONFIG | {"runtimeConfig": {"ipRanges": [[{"subnet": "10.1.0.0/24"}]]}},
            2,
            'runtimeConfig.ipRanges: not supported: [[{"subnet":"10.1.0.0/24"}]]',
            id="ranges that an IPAM plugin would take",
        ),
        pytest.param(
            CONFIG | {"ipam": {"type": "x"}, "runtimeConfig": {"deviceID": "0000:04:00.5"}}, 2, "deviceID", id="device"
        ),
    ],
)
def test_a_wrong_configuration(config: Any, code: int, text: str) -> None:
    with pytest.raises(CniError) as raised:
        ask(config=config)
    assert raised.value.code == code
    assert text in raised.value.text


def test_an_error_is_in_the_version_asked_or_in_the_oldest() -> None:
    error = CniError(ErrorCode.INVALID_ENVIRONMENT, "what", "why")
    said = json.loads(encode_error(error, "1.1.0", "ADD"))
    assert said == {"cniVersion": "1.1.0", "code": 4, "msg": "what", "details": "why"}
    assert json.loads(encode_error(error, "9.9.9", "ADD"))["cniVersion"] == VERSIONS[0]


GONE = ("not found", "no such file or directory")
"""What runtimes take for a DEL that succeeded."""
WORDS = st.text(max_size=5) | st.sampled_from(
    [*GONE, "Not Found", "not  found", "not", "found", " ", "not not foundfound"]
)


@given(st.lists(WORDS), st.lists(WORDS), st.sampled_from((*VERSIONS, "", "9")))
def test_a_failed_del_is_not_taken_for_one_of_something_gone(msg: list[str], details: list[str], version: str) -> None:
    error = CniError(ErrorCode.IO_FAILURE, "".join(msg), "".join(details))
    said = json.loads(encode_error(error, version, "DEL"))
    for words in GONE:
        assert words not in f"{said['msg']}; {said['details']}".lower()
    assert json.loads(encode_error(error, version, "ADD"))["msg"] == "".join(msg)


@pytest.mark.parametrize("arguments", ["FOO=BAR", "=", "K8S_POD_NAME=x", "IgnoreUnknown=maybe"])
def test_a_del_asks_only_which_attachment_it_is(arguments: str) -> None:
    """What fails would come again for ever."""
    assert ask({"CNI_COMMAND": "DEL", "CNI_ARGS": arguments}).key == AttachmentKey(SANDBOX, "eth0")
    long = "x" * 5000
    assert ask({"CNI_COMMAND": "DEL", "CNI_CONTAINERID": long}).key.sandbox == long


LISTED = [{"containerID": "a", "ifname": "eth0", "later": 1}]


@pytest.mark.parametrize(
    ("config", "valid"),
    [
        pytest.param({}, None, id="no list"),
        pytest.param({"cni.dev/valid-attachments": None}, frozenset(), id="null"),
        pytest.param({"cni.dev/valid-attachments": []}, frozenset(), id="an empty list"),
        pytest.param(
            {"cni.dev/valid-attachments": LISTED}, frozenset((AttachmentKey("a", "eth0"),)), id="one attachment"
        ),
        pytest.param({"cni.dev/attachments": []}, None, id="another key"),
    ],
)
def test_gc_needs_no_container(config: dict[str, Any], valid: frozenset[AttachmentKey] | None) -> None:
    none = {"CNI_COMMAND": "GC", "CNI_CONTAINERID": None, "CNI_NETNS": None, "CNI_IFNAME": None, "CNI_ARGS": None}
    assert ask(none, CONFIG | {"cniVersion": "1.1.0"} | config).valid == valid


def test_whom_a_pod_should_ask_is_of_the_configuration_and_the_runtime() -> None:
    config = CONFIG | {"dns": {"domain": "d"}, "runtimeConfig": {"dns": {"Servers": ["10.96.0.11"]}}}
    assert ask(config=config).dns == DNS(("10.96.0.11",), "d")


def test_wrong_dns_is_an_adds_error_and_no_dels() -> None:
    """What fails would come again for ever."""
    config = CONFIG | {"dns": {"search": "s"}}
    with pytest.raises(CniError, match=r"configuration: dns\.search: expected a list") as raised:
        _ = ask(config=config).dns
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    ask({"CNI_COMMAND": "DEL"}, config)


def taken(name: str) -> bool:
    try:
        check_interface(name)
    except CniError:
        return False
    return True


def test_what_a_runtime_asks_for_beside_an_interface() -> None:
    arguments = ENVIRONMENT["CNI_ARGS"] + ";IP=fd00::9;MAC=02:00:5e:00:00:01"
    config = CONFIG | {"runtimeConfig": {"ips": ["10.1.0.9/24"]}, "args": {"cni": {"mac": "02-00-5e-00-00-01"}}}
    for command in ("ADD", "CHECK"):
        asked = ask({"CNI_COMMAND": command, "CNI_ARGS": arguments}, config)
        assert asked.addresses == (parse_address("10.1.0.9"), parse_address("fd00::9"))
        assert asked.mac == bytes.fromhex("02005e000001")
        assert asked.delegation is None
    assert ask(config=CONFIG | {"args": "anything"}).addresses == ()


def test_whoever_has_another_ipam_plugin_leaves_addresses_to_it_and_nothing_else() -> None:
    told = {"ips": ["what it understands"], "mac": "02:00:5e:00:00:01", "ipRanges": [[]]}
    config = CONFIG | {"ipam": {"type": "host-local"}, "runtimeConfig": told}
    asked = ask(config=config)
    assert (asked.addresses, asked.mac) == ((), bytes.fromhex("02005e000001"))
    assert asked.delegation is not None
    assert (asked.delegation.plugin, asked.delegation.stdin) == ("host-local", json.dumps(config).encode())
    assert set(asked.delegation.environment) == {f"{name}={value}" for name, value in ENVIRONMENT.items()}
    assert ask({"CNI_COMMAND": "DEL"}, config).delegation is not None
    assert ask({"CNI_COMMAND": "DEL"}, config | {"ipam": {"type": "a/b"}}).delegation is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_an_interface_name_passes_only_if_the_kernel_takes_it_as_it_is(name: str) -> None:
    if taken(name):
        assert len(name.encode()) <= 15
        assert not set(name) & set("/:% \t\n\v\f\r\0\xa0")
        assert name not in {".", ".."}


@pytest.mark.parametrize("name", ["eth0", "net-1", "a.b_c", "ä0", "fifteen-bytes-5", "..."])
def test_usual_interface_names_pass(name: str) -> None:
    assert taken(name)


VALUES = st.text(st.characters(exclude_characters=";\0", exclude_categories=["Cs"]), max_size=9)


@given(st.dictionaries(st.sampled_from(["K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID"]), VALUES), st.booleans())
def test_arguments_are_read_as_written(arguments: dict[str, str], foreign: bool) -> None:
    written = arguments | ({"FOREIGN": "x", "IgnoreUnknown": "1"} if foreign else {})
    assert parse_arguments(";".join(f"{name}={value}" for name, value in written.items())) == arguments
