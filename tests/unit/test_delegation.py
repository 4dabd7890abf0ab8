"""What an IPAM plugin answers, right and wrong: all is taken, or one error names the plugin and the field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni import delegation
from podwire.cni.delegation import Delegation, IpamResult
from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.result import DNS
from podwire.model.addresses import parse_address, parse_prefix, special
from podwire.model.objects import AttachmentKey
from tests.unit.world import JSON


def answer(**told: Any) -> bytes:
    return json.dumps({"cniVersion": "1.0.0", **told}).encode()


IPS = [{"address": "10.1.0.9/24", "gateway": "10.1.0.1"}, {"address": "fd00::9/64"}]
V4, V6 = parse_address("10.1.0.9"), parse_address("fd00::9")


@pytest.mark.parametrize(
    ("stdout", "expected"),
    [
        pytest.param(answer(ips=IPS), IpamResult((V4, V6)), id="addresses"),
        pytest.param(
            answer(ips=[{"version": "4", "address": "10.1.0.9/24"}]), IpamResult((V4,)), id="of version 0.4.0"
        ),
        pytest.param(answer(ips=IPS, routes=None, dns={}), IpamResult((V4, V6)), id="null and empty"),
        pytest.param(answer(ips=IPS, routes=[]), IpamResult((V4, V6)), id="no routes"),
        pytest.param(
            answer(ips=IPS, routes=[{"dst": "10.0.0.7/8", "gw": "10.1.0.1", "mtu": 9000}, {"dst": "0.0.0.0/0"}]),
            IpamResult((V4, V6), (parse_prefix("0.0.0.0/0"), parse_prefix("10.0.0.0/8"))),
            id="routes",
        ),
        pytest.param(
            answer(ips=IPS, dns={"nameservers": ["10.96.0.10"], "domain": "d", "search": ["s"], "options": ["o"]}),
            IpamResult((V4, V6), None, DNS(("10.96.0.10",), "d", ("s",), ("o",))),
            id="dns",
        ),
    ],
)
def test_what_is_taken(stdout: bytes, expected: IpamResult) -> None:
    assert delegation.given("some", stdout) == expected


@pytest.mark.parametrize(
    ("stdout", "says"),
    [
        pytest.param(b"", "expected JSON; found ''", id="nothing"),
        pytest.param(b"garbage\xff", "expected JSON; found 'garbage", id="garbage"),
        pytest.param(b"[]", "expected an object; found []", id="a list"),
        pytest.param(answer(), "ips: expected at least one address; found nothing", id="no addresses"),
        pytest.param(answer(ips=[]), "ips: expected at least one address; found []", id="an empty list of them"),
        pytest.param(answer(ip4={"ip": "10.1.0.9/24"}), "ips: expected at least one address", id="of version 0.2.0"),
        pytest.param(answer(ips={}), "ips: expected a list of objects", id="an object"),
        pytest.param(answer(ips=["10.1.0.9/24"]), "ips: expected a list of objects", id="texts"),
        pytest.param(answer(ips=[{}]), "ips[0].address: expected ADDRESS/LENGTH, such as", id="no address in it"),
        pytest.param(answer(ips=[{"address": "10.1.0.9"}]), "ips[0].address: expected ADDRESS/LENGTH", id="no mask"),
        pytest.param(
            answer(ips=[{"address": "10.1.0.9/99"}]), "ips[0].address: expected ADDRESS/LENGTH", id="wrong mask"
        ),
        pytest.param(
            answer(ips=[{"address": "127.0.0.1/8"}]), "ips[0].address: expected an address that a pod", id="loop"
        ),
        pytest.param(answer(ips=[IPS[0], IPS[0]]), "ips: expected each address once", id="twice"),
        pytest.param(answer(ips=IPS * 9), "ips: expected at most 16; found 18", id="too many"),
        pytest.param(answer(ips=IPS, routes=[{"dst": "x"}]), "routes[0].dst: expected ADDRESS/LENGTH", id="no route"),
        pytest.param(
            answer(ips=IPS[:1], routes=[{"dst": "::/0"}]), "routes[0].dst: expected an IPv6 address beside", id="alone"
        ),
        pytest.param(
            answer(ips=IPS, dns={"nameservers": ["x"]}), "dns.nameservers[0]: expected an IP address", id="dns"
        ),
    ],
)
def test_what_is_refused(stdout: bytes, says: str) -> None:
    with pytest.raises(CniError) as raised:
        delegation.given("some", stdout)
    assert raised.value.code == ErrorCode.DECODING_FAILURE
    assert raised.value.text.startswith("IPAM plugin some: its result: ")
    assert says in raised.value.text


@given(st.one_of(JSON, st.fixed_dictionaries({"ips": JSON, "routes": JSON, "dns": JSON})))
def test_whatever_it_answers_all_is_taken_or_it_is_named(told: Any) -> None:
    found = given_or_error(json.dumps(told).encode())
    if isinstance(found, str):
        assert found.startswith("IPAM plugin some: its result: ")
    else:
        assert found.addresses
        assert not any(map(special, found.addresses))


def given_or_error(stdout: bytes) -> IpamResult | str:
    try:
        return delegation.given("some", stdout)
    except CniError as error:
        return error.text


@given(st.binary(max_size=50))
def test_no_bytes_are_beyond_it(stdout: bytes) -> None:
    with pytest.raises(CniError, match="IPAM plugin some: its result: "):
        delegation.given("some", stdout)


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "expected"),
    [
        pytest.param(
            b'{"cniVersion":"1.0.0","code":11,"msg":"later","details":"why"}',
            b"noise",
            1,
            (11, "IPAM plugin some: later", "why"),
            id="its own error",
        ),
        pytest.param(b'{"code":4711,"msg":"mine"}', b"x", 1, (4711, "IPAM plugin some: mine", "x"), id="its own code"),
        pytest.param(b'{"code":true,"msg":"m"}', b"", 1, (999, "IPAM plugin some: m", ""), id="a code that is none"),
        pytest.param(b'{"msg":"m"}', b"", 1, (999, "IPAM plugin some: m", ""), id="no code"),
        pytest.param(
            b"",
            b"it broke\n",
            1,
            (999, "IPAM plugin some: ended with exit code 1 and printed nothing", "it broke"),
            id="nothing",
        ),
        pytest.param(
            b"", b"", -9, (999, "IPAM plugin some: was ended by signal 9 and printed nothing", ""), id="killed"
        ),
        pytest.param(
            b"panic: x",
            b"",
            2,
            (999, "IPAM plugin some: ended with exit code 2 and printed 'panic: x', which is no error of CNI", ""),
            id="garbage",
        ),
    ],
)
def test_its_errors_are_passed_on(stdout: bytes, stderr: bytes, code: int, expected: tuple[int, str, str]) -> None:
    error = delegation.failure("some", code, stdout, stderr)
    assert (error.code, error.text, error.details) == expected


@pytest.mark.parametrize(
    ("ipam", "name"), [(None, ""), ({}, ""), ({"type": ""}, ""), ({"type": "host-local"}, "host-local")]
)
def test_who_gives_addresses(ipam: Any, name: str) -> None:
    assert delegation.plugin_of(ipam) == name


@pytest.mark.parametrize("name", [None, 7, "../x", "a/b", ".", "-x", "a b", "podwire", [], {}])
def test_what_is_no_plugin(name: Any) -> None:
    with pytest.raises(CniError, match=r"network configuration: ipam\.type: expected ") as raised:
        delegation.plugin_of({"type": name, "more": 1})
    assert raised.value.code == ErrorCode.INVALID_CONFIG


def test_a_plugin_is_told_what_we_were() -> None:
    told = Delegation("some", ("CNI_COMMAND=ADD", "CNI_PATH=/a::/b", "CNI_ARGS=x=1;y=2", "CNI_NETNS=/n"), b"{}")
    assert told.directories == ("/a", "/b")
    assert told.variables("DEL", CNI_NETNS="") == {
        "CNI_COMMAND": "DEL",
        "CNI_PATH": "/a::/b",
        "CNI_ARGS": "x=1;y=2",
        "CNI_NETNS": "",
    }


def test_a_gc_lists_what_is_being_added_too() -> None:
    listed = {"containerID": "a", "ifname": "eth0"}
    told = Delegation("some", (), json.dumps({"name": "n", delegation.VALID: [listed]}).encode())
    assert told.listing([AttachmentKey("a", "eth0")]) == told.stdin
    more = json.loads(told.listing([AttachmentKey("b", "eth0"), AttachmentKey("a", "eth0")]))
    assert more == {"name": "n", delegation.VALID: [listed, {"containerID": "b", "ifname": "eth0"}]}
    none = Delegation("some", (), json.dumps({delegation.VALID: None}).encode())
    assert json.loads(none.listing([AttachmentKey("a", "eth0")])) == {delegation.VALID: [listed]}
