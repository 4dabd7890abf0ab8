"""Addresses and MAC addresses that a runtime asks for: what is taken, and what each mistake is told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni import requested
from podwire.cni.errors import CniError, ErrorCode
from podwire.model.addresses import Address, parse_address, show_address, special
from podwire.pods.wiring import NODE_MAC
from tests.unit.world import JSON


def addresses(*texts: str) -> tuple[Address, ...]:
    return tuple(map(parse_address, texts))


@pytest.mark.parametrize(
    ("runtime", "args", "argument", "expected"),
    [
        pytest.param({}, {}, "", (), id="nothing"),
        pytest.param({"ips": None}, {"ips": []}, "", (), id="nothing in it"),
        pytest.param({"ips": ["10.1.0.9"]}, {}, "", ("10.1.0.9",), id="without a mask"),
        pytest.param({"ips": ["10.1.0.9/24", "fd00::9/64"]}, {}, "", ("10.1.0.9", "fd00::9"), id="with masks"),
        pytest.param({"ips": ["fd00::9", "10.1.0.9"]}, {}, "", ("fd00::9", "10.1.0.9"), id="in the order told"),
        pytest.param({}, {"ips": ["10.1.0.9"]}, "", ("10.1.0.9",), id="by the arguments of the configuration"),
        pytest.param({}, {}, "10.1.0.9/24, fd00::9", ("10.1.0.9", "fd00::9"), id="by CNI_ARGS"),
        pytest.param(
            {"ips": ["10.1.0.9"]},
            {"ips": ["fd00::9"]},
            "10.1.0.9,fd00::a",
            ("10.1.0.9", "fd00::9", "fd00::a"),
            id="by all",
        ),
        pytest.param({"ips": ["0:0:0:0:0:0:a:1", "::a:1"]}, {}, "", ("::a:1",), id="one address in two spellings"),
    ],
)
def test_addresses_that_are_asked_for(runtime: Any, args: Any, argument: str, expected: tuple[str, ...]) -> None:
    assert requested.addresses(runtime, args, argument) == addresses(*expected)


@pytest.mark.parametrize(
    ("runtime", "args", "argument", "code", "says"),
    [
        ({"ips": "10.1.0.9"}, {}, "", 7, "configuration: runtimeConfig.ips: expected a list of IP addresses"),
        ({"ips": [7]}, {}, "", 7, "runtimeConfig.ips[0]: expected an IP address, with or without a mask, such as"),
        ({"ips": ["10.1.0.9", "x"]}, {}, "", 7, "runtimeConfig.ips[1]: expected an IP address"),
        ({"ips": ["10.1.0.9/33"]}, {}, "", 7, "runtimeConfig.ips[0]: expected a mask of 0 to 32 bits, or none; found"),
        ({"ips": ["10.1.0.9/"]}, {}, "", 7, "expected a mask of 0 to 32 bits"),
        ({"ips": ["fd00::9/129"]}, {}, "", 7, "expected a mask of 0 to 128 bits"),
        ({"ips": ["224.0.0.1"]}, {}, "", 7, "no multicast one; found '224.0.0.1'"),
        ({"ips": ["fe80::1"]}, {}, "", 7, "no link-local one"),
        ({"ips": ["0.0.0.0"]}, {}, "", 7, "no unspecified one"),
        ({}, {"ips": ["x"]}, "", 7, "configuration: args.cni.ips[0]: expected an IP address"),
        ({}, {}, "10.1.0.9,", 4, "CNI_ARGS: IP: expected an IP address"),
        ({}, {}, "10.1.0.9;", 4, "CNI_ARGS: IP: expected an IP address"),
        ({"ips": [f"10.1.0.{n}" for n in range(1, 19)]}, {}, "", 7, "ips[16]: expected at most 16 addresses"),
    ],
)
def test_addresses_that_nobody_can_have(runtime: Any, args: Any, argument: str, code: int, says: str) -> None:
    with pytest.raises(CniError) as raised:
        requested.addresses(runtime, args, argument)
    assert raised.value.code == code
    assert says in raised.value.text


@pytest.mark.parametrize(
    ("runtime", "args", "argument", "expected"),
    [
        pytest.param({}, {}, "", "", id="nothing"),
        pytest.param({"mac": ""}, {"mac": None}, "", "", id="nothing in it"),
        pytest.param({"mac": "02:00:5E:00:00:0a"}, {}, "", "02005e00000a", id="by the runtime"),
        pytest.param({}, {"mac": "02-00-5e-00-00-0a"}, "", "02005e00000a", id="by the arguments of the configuration"),
        pytest.param({}, {}, "0200.5e00.000a", "02005e00000a", id="by CNI_ARGS"),
        pytest.param({"mac": "00:00:5e:00:00:0a"}, {}, "", "00005e00000a", id="of a maker"),
        pytest.param(
            {"mac": "02:00:5e:00:00:0a"}, {}, "0200.5E00.000A", "02005e00000a", id="twice the same in two spellings"
        ),
    ],
)
def test_a_mac_address_that_is_asked_for(runtime: Any, args: Any, argument: str, expected: str) -> None:
    assert requested.mac(runtime, args, argument) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("runtime", "argument", "code", "says"),
    [
        (
            {"mac": 7},
            "",
            7,
            "configuration: runtimeConfig.mac: expected a MAC address, such as 02:00:5e:00:00:01; found 7",
        ),
        ({"mac": "02:00:5e:00:00"}, "", 7, "expected a MAC address"),
        ({"mac": "02:00:5e:00-00-01"}, "", 7, "expected a MAC address"),
        ({"mac": "02:00:5e:00:00:00:00:01"}, "", 7, "expected a MAC address"),
        ({"mac": "00:00:00:00:00:00"}, "", 7, "and no zeros"),
        ({"mac": "01:00:5e:00:00:01"}, "", 7, "and no multicast or broadcast one"),
        ({"mac": "ff:ff:ff:ff:ff:ff"}, "", 7, "and no multicast or broadcast one"),
        ({"mac": NODE_MAC.hex(":")}, "", 7, "this is that of each link's end on the node"),
        ({}, "x", 4, "CNI_ARGS: MAC: expected a MAC address"),
        (
            {"mac": "02:00:5e:00:00:01"},
            "02:00:5e:00:00:02",
            4,
            "CNI_ARGS: MAC: expected that of runtimeConfig.mac, 02:00:5e:00:00:01; found '02:00:5e:00:00:02'",
        ),
    ],
)
def test_a_mac_address_that_no_interface_can_have(runtime: Any, argument: str, code: int, says: str) -> None:
    with pytest.raises(CniError) as raised:
        requested.mac(runtime, {}, argument)
    assert raised.value.code == code
    assert says in raised.value.text


@given(st.one_of(JSON, st.lists(st.ip_addresses().map(str), max_size=4)), JSON, st.text(max_size=20))
def test_whatever_is_told_all_is_taken_or_one_error_names_the_field(ips: Any, mac: Any, argument: str) -> None:
    error = None
    try:
        found = requested.addresses({"ips": ips}, {}, argument)
        made = requested.mac({"mac": mac}, {}, "")
    except CniError as raised:
        error = raised
    if error is None:
        assert len(set(found)) == len(found)
        assert not any(map(special, found))
        assert set(found) >= {parse_address(it.partition("/")[0]) for it in ips or ()}
        assert len(made) == (0 if mac in (None, "") else 6)
        return
    assert error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_ENVIRONMENT)
    assert any(name in error.text for name in ("runtimeConfig.ips", "runtimeConfig.mac", "CNI_ARGS: IP"))
    assert "; found " in error.text


@given(st.lists(st.ip_addresses(), max_size=requested.MOST, unique=True))
def test_what_a_pod_can_have_is_read_as_written(told: Any) -> None:
    good = [str(it) for it in told if not special(parse_address(str(it)))]
    assert [show_address(it) for it in requested.addresses({"ips": good}, {}, "")] == [
        show_address(parse_address(it)) for it in good
    ]
