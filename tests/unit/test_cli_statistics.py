"""`--stats`: a real process against a served admin socket."""

import json
from pathlib import Path

import pytest

from podwire.pods.names import interface_name
from tests.unit.served_agent import BACK, FRONT, serving
from tests.unit.test_cli import ask, rows

EVERY = ["NAMESPACE", "NAME", "CONNECTIONS", "RECEIVED", "PACKETS", "SENT", "PACKETS"]
NONE = ["0", "0", "bytes", "0", "0", "bytes", "0"]


async def test_services(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        ran = await ask(agent, "services", "--stats")
    assert rows(ran.out) == [
        EVERY,
        ["shop", "copy", *NONE],
        ["shop", "dns", *NONE],
        ["shop", "empty", *NONE],
        ["shop", "web", "4", "2.8", "kB", "16", "64.0", "kB", "12"],
    ]


async def test_one_service_by_frontend(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        ran = await ask(agent, "services", "shop/web", "--stats")
    assert rows(ran.out)[1:] == [
        ["shop", "web", "all", "4", "2.8", "kB", "16", "64.0", "kB", "12"],
        ["shop", "web", "10.96.0.10:80/TCP", "3", "2.1", "kB", "12", "48.0", "kB", "9"],
        ["shop", "web", "[fd96::a]:80/TCP", "1", "700", "bytes", "4", "16.0", "kB", "3"],
    ]


async def test_pods(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        ran = await ask(agent, "pods", "--stats")
    assert rows(ran.out) == [
        ["NAMESPACE", "NAME", "INTERFACE", "LINK", "RECEIVED", "PACKETS", "SENT", "PACKETS"],
        ["shop", "back", "eth0", interface_name(BACK), "0", "bytes", "0", "0", "bytes", "0"],
        ["shop", "front", "eth0", interface_name(FRONT), "1.0", "kB", "9", "800", "bytes", "7"],
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["services", "shop/web"], {"services": [4]}, id="services"),
        pytest.param(["pods"], {"pods": [None, None]}, id="pods"),
    ],
)
async def test_programs_get_exact_numbers(
    arguments: list[str], expected: dict[str, list[int | None]], tmp_path: Path
) -> None:
    async with serving(tmp_path) as agent:
        ran = await ask(agent, *arguments, "--stats", "-o", "json")
    told = json.loads(ran.out)
    assert {kind: [it.get("connections") for it in listed] for kind, listed in told.items()} == expected
    assert {"received_packets", "received_bytes", "sent_packets", "sent_bytes"} == set(
        next(iter(told.values()))[0]["traffic"]
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["services", "shop/none"], "no service/shop/none on this node"),
        (["services", "none"], "'none': expected NAMESPACE/NAME"),
    ],
)
async def test_a_service_that_is_not_there(arguments: list[str], error: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        ran = await ask(agent, *arguments, "--stats")
    assert (ran.out, ran.err) == ("", f"podwire: {error}\n")


async def test_counters_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        agent.statistics.error = OSError(12, "no memory")
        ran = await ask(agent, "pods", "--stats")
    assert (ran.code, ran.err) == (1, "podwire: the kernel's counters can't be read: [Errno 12] no memory\n")
