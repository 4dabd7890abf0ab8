"""The shapes of results in each version, as the specification's own examples have them."""

import json
from typing import Any

import pytest

from podwire.cni import shim
from podwire.cni.errors import VERSIONS, CniError
from podwire.cni.result import DNS, AddResult, End, add_result, decode_previous, encode, encode_versions, missing
from podwire.model.addresses import parse_address, parse_prefix

NETNS = "/run/netns/x"
NODE, POD = End("pw0123456789ab", bytes.fromhex("eeeeeeeeeeee")), End("eth0", bytes.fromhex("0201030405ff"))
ROUTED = [
    (parse_address("10.1.0.2"), parse_address("169.254.1.1")),
    (parse_address("fd00:1::2"), parse_address("fe80::1")),
]
WAYS = [
    (parse_prefix("0.0.0.0/0"), parse_address("169.254.1.1")),
    (parse_prefix("::/0"), parse_address("fe80::1")),
]


def result(version: str = "1.1.0") -> AddResult:
    return add_result(version, NODE, POD, NETNS, 1450, ROUTED, WAYS)


BOTH_MACS = [
    {"name": "pw0123456789ab", "mac": "ee:ee:ee:ee:ee:ee"},
    {"name": "eth0", "mac": "02:01:03:04:05:ff", "sandbox": NETNS},
]
IPS = [
    {"address": "10.1.0.2/32", "gateway": "169.254.1.1", "interface": 1},
    {"address": "fd00:1::2/128", "gateway": "fe80::1", "interface": 1},
]
ROUTES = [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}, {"dst": "::/0", "gw": "fe80::1"}]


@pytest.mark.parametrize(
    ("version", "interfaces", "ips"),
    [
        ("0.4.0", BOTH_MACS, [IPS[0] | {"version": "4"}, IPS[1] | {"version": "6"}]),
        ("1.0.0", BOTH_MACS, IPS),
        ("1.1.0", [interface | {"mtu": 1450} for interface in BOTH_MACS], IPS),
    ],
)
def test_an_add_is_answered_in_the_version_asked(version: str, interfaces: Any, ips: Any) -> None:
    assert json.loads(encode(result(version))) == {
        "cniVersion": version,
        "interfaces": interfaces,
        "ips": ips,
        "routes": ROUTES,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_dns_is_handed_on(version: str) -> None:
    told = add_result(version, NODE, POD, NETNS, 1450, ROUTED, WAYS, DNS(("10.96.0.10",), search=("a", "b")))
    assert json.loads(encode(told))["dns"] == {"nameservers": ["10.96.0.10"], "search": ["a", "b"]}
    assert missing(told, result(version), NETNS) == missing(result(version), told, NETNS) == []


def test_a_result_is_one_line() -> None:
    assert encode(result()).count(b"\n") == 1


@pytest.mark.parametrize(("asked", "answered"), [*zip(VERSIONS, VERSIONS, strict=True), ("", "1.1.0"), ("9", "1.1.0")])
def test_versions(asked: str, answered: str) -> None:
    assert json.loads(encode_versions(asked)) == {"cniVersion": answered, "supportedVersions": list(VERSIONS)}


def test_the_plugin_alone_names_the_same_versions() -> None:
    assert tuple(map(bytes.decode, shim.VERSIONS)) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_result_given_back_lacks_nothing(version: str) -> None:
    assert missing(decode_previous(json.loads(encode(result(version)))), result(version), NETNS) == []


def previous(**changed: Any) -> AddResult:
    return decode_previous(json.loads(encode(result())) | changed)


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        pytest.param(previous(ips=IPS[:1]), ["address fd00:1::2/128 in /run/netns/x"], id="an address less"),
        pytest.param(previous(interfaces=BOTH_MACS[:1]), ["interface eth0"], id="an interface less"),
        pytest.param(
            previous(interfaces=[BOTH_MACS[0], BOTH_MACS[1] | {"sandbox": "/run/netns/y"}]),
            ["interface eth0"],
            id="in another namespace",
        ),
        pytest.param(previous(ips=[*IPS, {"address": "10.9.0.1/24"}]), [], id="a later plugin's address more"),
        pytest.param(previous(dns={"nameservers": ["10.96.0.10"]}, routes=[]), [], id="what later plugins may change"),
        pytest.param(
            AddResult(),
            [
                "interface pw0123456789ab",
                "interface eth0",
                "address 10.1.0.2/32 in /run/netns/x",
                "address fd00:1::2/128 in /run/netns/x",
            ],
            id="nothing",
        ),
    ],
)
def test_a_previous_result_must_say_what_we_gave(given: AddResult, lacks: list[str]) -> None:
    assert missing(given, result(), NETNS) == lacks


def test_a_previous_result_that_is_none() -> None:
    with pytest.raises(CniError, match="prevResult") as raised:
        decode_previous({"ips": 3})
    assert raised.value.code == 7
