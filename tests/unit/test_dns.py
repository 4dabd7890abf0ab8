"""Whom a pod should ask: the configuration's word and the runtime's, and what each mistake is told."""

from typing import Any

import pytest
from hypothesis import given

from podwire.cni import dns
from podwire.cni.errors import CniError, ErrorCode
from podwire.cni.result import DNS
from tests.unit.world import JSON


@pytest.mark.parametrize(
    ("config", "runtime", "expected"),
    [
        pytest.param(None, None, DNS(), id="nothing"),
        pytest.param({}, {}, DNS(), id="nothing in it"),
        pytest.param(dict.fromkeys(("nameservers", "domain", "search", "options")), None, DNS(), id="nulls"),
        pytest.param(
            {"nameservers": ["10.96.0.10", "fd00::10"], "domain": "d", "search": ["s"], "options": ["o"], "later": 1},
            None,
            DNS(("10.96.0.10", "fd00::10"), "d", ("s",), ("o",)),
            id="as configured",
        ),
        pytest.param({"NameServers": ["10.96.0.10"]}, None, DNS(("10.96.0.10",)), id="in any case of letters"),
        pytest.param(
            {"nameservers": ["fe80::1%eth0"]}, None, DNS(("fe80::1%eth0",)), id="with the link of a link-local one"
        ),
        pytest.param(
            {"nameservers": ["10.96.0.10"], "domain": "d", "search": ["s"]},
            {"servers": ["10.96.0.11"], "options": ["ndots:5"]},
            DNS(("10.96.0.11",), "d", ("s",), ("ndots:5",)),
            id="the runtime goes before",
        ),
        pytest.param(
            None,
            {"Servers": ["10.96.0.11"], "Searches": None, "Options": ["ndots:5"]},
            DNS(("10.96.0.11",), "", (), ("ndots:5",)),
            id="as containerd writes it",
        ),
    ],
)
def test_whom_a_pod_should_ask(config: Any, runtime: Any, expected: DNS) -> None:
    assert dns.parse(config, runtime) == expected


@pytest.mark.parametrize(
    ("config", "runtime", "says"),
    [
        ([1], None, "dns: expected an object with nameservers, domain, search, options; found [1]"),
        ({"search": "s"}, None, "dns.search: expected a list of strings; found 's'"),
        ({"domain": 7}, None, "dns.domain: expected a name; found 7"),
        ({"options": [7]}, None, "dns.options: expected a list of strings; found [7]"),
        ({"nameservers": ["10.96.0.10", "dns"]}, None, "dns.nameservers[1]: expected an IP address; found 'dns'"),
        ({"nameservers": [], "Nameservers": []}, None, "dns.nameservers: expected it once"),
        (None, "x", "runtimeConfig.dns: expected an object with servers, searches, options; found 'x'"),
        (None, {"servers": 1}, "runtimeConfig.dns.servers: expected a list of strings; found 1"),
        (None, {"Servers": ["10.96.0"]}, "runtimeConfig.dns.servers[0]: expected an IP address; found '10.96.0'"),
    ],
)
def test_what_is_refused(config: Any, runtime: Any, says: str) -> None:
    with pytest.raises(CniError) as raised:
        dns.parse(config, runtime)
    assert raised.value.code == ErrorCode.INVALID_CONFIG
    assert raised.value.text.startswith(f"network configuration: {says}")


@given(JSON, JSON)
def test_whatever_is_told_all_is_taken_or_one_error_names_the_field(config: Any, runtime: Any) -> None:
    said = error_of(config, runtime)
    assert said == "" or said.startswith(("network configuration: dns", "network configuration: runtimeConfig.dns"))


def error_of(config: Any, runtime: Any) -> str:
    try:
        dns.parse(config, runtime)
    except CniError as error:
        return error.text
    return ""
