"""The metrics as Prometheus reads them."""

import errno
import re
import socket
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from podwire import metrics, views
from podwire.admin import server as admin
from podwire.controller.difference import Change, Outcome
from podwire.controller.events import Disturbed, KubeStateChange, Reported, Resync, ResyncReason
from podwire.controller.snapshot import fold
from podwire.controller.tally import Tally
from podwire.controller.transaction import Result, Step
from podwire.model.network import SysctlKey
from podwire.model.objects import Protocol
from podwire.model.snapshot import Snapshot
from podwire.views import FrontendState
from tests.unit.served_agent import (
    COPY,
    DNS,
    EMPTY,
    WEB,
    FakeController,
    FakeStatistics,
    ServedAgent,
    frontend,
    node,
    serving,
    slots,
)

Samples = dict[tuple[str, tuple[str, ...]], float]
FACTS = views.Facts("0.1.0", None, 1.5, {"store": 4, "nftables": 9, "linux": 31}, ("/m/web.yaml: no",))


def tally() -> Tally:
    counted = Tally()
    for seconds in (0.0002, 0.0004, 7.0):
        counted.add(Result(KubeStateChange(()), seconds=seconds))
    counted.add(Result(Resync(ResyncReason.HEALING), seconds=0.25, error="no room"))
    changes, key = Change("0", "1"), SysctlKey("net/ipv4/ip_forward")
    counted.add(Result(Disturbed("linux", None), (Step("linux", {key: changes}, {key: Outcome("1")}, 1),)))
    return counted


def samples(text: str) -> Samples:
    """By name and label values, in the order of the labels' names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def exposed(now: Snapshot, facts: views.Facts, counted: Tally, accept: str = "") -> str:
    states = metrics.states(now, now.services)
    return metrics.exposition(metrics.families(views.status(now, facts), states, counted), accept)[0].decode()


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("podwire_build_info", ("0.1.0",), 1),
        ("podwire_ready", (), 1),
        ("podwire_attachments", (), 2),
        ("podwire_services", (), 4),
        ("podwire_block_addresses", ("10.1.1.0/24", "used"), 2),
        ("podwire_block_addresses", ("10.1.1.0/24", "free"), 251),
        ("podwire_block_addresses", ("fd01::/120", "free"), 252),
        ("podwire_ipam_addresses", ("IPv4", "podCIDRs", "used"), 2),
        ("podwire_ipam_addresses", ("IPv4", "podCIDRs", "free"), 251),
        ("podwire_ipam_blocks", ("IPv6", "podCIDRs"), 1),
        ("podwire_frontends", ("programmed",), 1),
        ("podwire_frontends", ("refused",), 1),
        ("podwire_frontends", ("pending",), 1),
        ("podwire_frontends", ("failed",), 1),
        ("podwire_source_errors", (), 1),
        ("podwire_driver_writes_total", ("linux",), 31),
        ("podwire_driver_unknown_keys", ("nftables",), 1),
        ("podwire_driver_unknown_keys", ("store",), 0),
        ("podwire_events_total", ("KubeStateChange", "done"), 3),
        ("podwire_events_total", ("Resync", "failed"), 1),
        ("podwire_event_seconds_bucket", ("KubeStateChange", "0.0001"), 0),
        ("podwire_event_seconds_bucket", ("KubeStateChange", "0.00025"), 1),
        ("podwire_event_seconds_bucket", ("KubeStateChange", "5.0"), 2),
        ("podwire_event_seconds_bucket", ("KubeStateChange", "+Inf"), 3),
        ("podwire_event_seconds_count", ("KubeStateChange",), 3),
        ("podwire_event_seconds_sum", ("KubeStateChange",), 7.0006),
        ("podwire_mended_total", ("linux", "net/ipv4/ip_forward"), 1),
        ("podwire_healing_total", (), 1),
    ],
)
def test_a_metric_says(name: str, labels: tuple[str, ...], value: float) -> None:
    assert samples(exposed(node(), FACTS, tally()))[name, labels] == pytest.approx(value)


def test_a_node_that_is_not_ready() -> None:
    facts = views.Facts("0.1.0", "no pod CIDR yet", 1.5, {})
    assert samples(exposed(node(), facts, Tally()))["podwire_ready", ()] == 0


def test_names_follow_the_conventions_and_each_family_says_what_it_is() -> None:
    for family in parse(exposed(node(), FACTS, tally())):
        assert re.fullmatch(r"podwire(_[a-z]+)+", family.name)
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
        assert {sample.name.endswith("_total") for sample in family.samples} == {family.type == "counter"}


def test_a_new_agent_tells_the_same_families() -> None:
    """Else an alert on what never happened would have nothing to look at."""
    empty = parse(exposed(Snapshot(node().local), views.Facts("0.1.0", None, 0.0, {}), Tally()))
    full = parse(exposed(node(), FACTS, tally()))
    assert [family.name for family in empty] == [family.name for family in full]


def test_states_are_the_same_in_slices() -> None:
    now = node()
    parts = [metrics.states(now, (key,)) for key in (WEB, DNS, EMPTY, COPY)]
    assert sum((dict(part).get(FrontendState.FAILED, 0) for part in parts), 0) == 1
    assert metrics.states(now, now.services) == sum(parts, start=type(parts[0])())


def test_openmetrics_for_those_who_ask() -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    families = metrics.families(views.status(node(), FACTS), {}, tally())
    body, kind = metrics.exposition(families, accept)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert "podwire_healing" in [family.name for family in parse_openmetrics(body.decode())]


# --- served ------------------------------------------------------------------------------------


async def ask(connector: aiohttp.BaseConnector, url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
        return response.status, response.content_type, await response.text()


async def test_on_the_admin_socket_with_those_of_the_process(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        agent.controller.tally = tally()
        status, kind, text = await ask(aiohttp.UnixConnector(str(agent.socket)), "http://agent/metrics")
    assert (status, kind) == (200, "text/plain")
    found = samples(text)
    assert found["podwire_events_total", ("KubeStateChange", "done")] == 3
    assert found["podwire_frontends", ("failed",)] == 1
    assert found["process_resident_memory_bytes", ()] > 1e6
    assert not any(family.name.startswith("podwire") for family in REGISTRY.collect())


async def test_a_second_look_sees_what_has_changed_since(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        for state, count in (("pending", 1), ("programmed", 2)):
            _, _, text = await ask(aiohttp.UnixConnector(str(agent.socket)), "http://agent/metrics")
            assert samples(text)["podwire_frontends", (state,)] == count
            dns = {frontend("10.96.0.11", 53, Protocol.UDP): Outcome(slots("10.1.1.3"))}
            agent.controller.snapshot, _ = fold(agent.controller.snapshot, Reported("nftables", dns))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/metrics", 200),
        ("/metrics/services", 200),
        ("/metrics/pods", 200),
        ("/healthz", 200),
        ("/readyz", 503),
        ("/status", 404),
        ("/statistics/services", 404),
        ("/history", 404),
        ("/", 404),
    ],
)
async def test_over_tcp_there_are_metrics_and_health_and_nothing_else(path: str, status: int, tmp_path: Path) -> None:
    agent = ServedAgent(tmp_path)
    agent.facts["not_ready"] = "no pod CIDR yet"
    facts = views.Facts(**agent.facts)
    runner = await admin.serve_monitors("127.0.0.1", 0, agent.controller, lambda: facts, agent.statistics)
    port = runner.addresses[0][1]
    try:
        found, _, _ = await ask(aiohttp.TCPConnector(), f"http://127.0.0.1:{port}{path}")
    finally:
        await runner.cleanup()
    assert found == status


async def test_a_port_in_use_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        controller = FakeController(node())
        with pytest.raises(OSError, match=rf"metrics_listen 127\.0\.0\.1:{port}: Address already in use\Z") as error:
            await admin.serve_monitors("127.0.0.1", port, controller, lambda: FACTS, FakeStatistics(controller))
    assert error.value.errno == errno.EADDRINUSE
