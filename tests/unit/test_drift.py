"""What the network holds otherwise than it should, in words."""

import pytest

from podwire import drift
from podwire.controller.difference import Change
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.network import Backend, Frontend, Link, LinkKey, Route, RouteKey, Slots, Space, SysctlKey
from podwire.model.objects import Protocol

A = Backend(parse_address("10.1.1.2"), 8080)
FRONTEND = Frontend(parse_address("10.96.0.10"), Protocol.TCP, 80)


def test_drift_is_told_in_words_and_sorted() -> None:
    route = RouteKey("", parse_prefix("10.1.1.2/32"))
    found = {
        "nftables": {FRONTEND: Change(Slots(None, (A,)), Slots(1, (A,)))},
        "linux": {route: Change(None, Route(7)), LinkKey("pw1"): Change(Route(9), None)},
    }
    assert list(drift.drift(found)) == [
        drift.DriftView("linux", "link pw1", "index 9", None),
        drift.DriftView("linux", "route 10.1.1.2/32", None, "index 7"),
        drift.DriftView(
            "nftables", "frontend 10.96.0.10:80/TCP", "no verdict: 10.1.1.2:8080", "class 1: 10.1.1.2:8080"
        ),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(True, "present", id="a key that is only there or not"),
        pytest.param(bytes.fromhex("02abcdef0102"), "02:ab:cd:ef:01:02", id="a MAC address"),
        pytest.param(parse_address("fe80::1"), "fe80::1", id="an address"),
        pytest.param(Route(2, parse_address("169.254.1.1")), "index 2, via 169.254.1.1", id="a route"),
        pytest.param(
            Link(
                5,
                b"\xee\xee\xee\xee\xee\xee",
                Space("/run/netns/a", 4, 99),
                6,
                "eth0",
                b"\x02\0\0\0\0\1",
                1450,
                ("s.eth0",),
                "",
            ),
            "index 5, node_mac ee:ee:ee:ee:ee:ee, space /run/netns/a, inner 6, interface eth0, "
            "mac 02:00:00:00:00:01, mtu 1450, altnames s.eth0",
            id="a link whose alias is missing",
        ),
        pytest.param("1", "1", id="a setting"),
        pytest.param(SysctlKey("net/ipv4/ip_forward"), "sysctl net/ipv4/ip_forward", id="what has words of its own"),
        pytest.param(None, None, id="nothing"),
    ],
)
def test_values_in_words(value: object, text: str | None) -> None:
    assert drift.words(value) == text
