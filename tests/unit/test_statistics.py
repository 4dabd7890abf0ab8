"""What counters add up to, and how that is told."""

from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from podwire.dataplane.linux import counters as link_counters
from podwire.dataplane.messages import attr, nest, text
from podwire.dataplane.nftables import counters
from podwire.dataplane.nftables.render import frontend_key
from podwire.dataplane.nftables.wire import table, u32
from podwire.model.addresses import IPV4, IPV6, Family
from podwire.model.network import Frontend
from podwire.model.objects import Protocol
from podwire.pods.names import interface_name
from podwire.statistics import views
from podwire.statistics.totals import Counts, Totals, add, nothing
from tests.unit.served_agent import FRONT, ServedAgent, frontend, serving

KEYS, OWNERS = "abc", "XY"
START: Totals[str, str] = nothing(1)


def after(*readings: tuple[dict[str, int], dict[str, str], str]) -> Totals[str, str]:
    """Each reading with whose the keys were, and who lived, then."""
    totals = START
    for read, owners, living in readings:
        totals = add(totals, {key: (count,) for key, count in read.items()}, owners, living)
    return totals


def sums(totals: Totals[str, str]) -> dict[str, int]:
    return {owner: counts[0] for owner, counts in totals.of_owners().items()}


@pytest.mark.parametrize(
    ("readings", "expected", "whole"),
    [
        pytest.param([({"a": 5}, {"a": "X"}, "X")], {"X": 5}, 5, id="what is found at a start counts"),
        pytest.param(
            [({"a": 5, "b": 1}, {"a": "X", "b": "X"}, "X"), ({"a": 7, "b": 1}, {"a": "X", "b": "X"}, "X")],
            {"X": 8},
            8,
            id="the sum of all keys",
        ),
        pytest.param(
            [({"a": 5}, {"a": "X"}, "X"), ({"a": 2}, {"a": "X"}, "X")], {"X": 7}, 7, id="a counter began anew"
        ),
        pytest.param(
            [({"a": 5}, {"a": "X"}, "X"), ({}, {"a": "X"}, "X"), ({"a": 6}, {"a": "X"}, "X")],
            {"X": 6},
            6,
            id="one that was missed in a reading is no new one",
        ),
        pytest.param([({"a": 5}, {}, "X")], {}, 0, id="what is nobody's counts for nobody"),
        pytest.param(
            [({"a": 5}, {}, "X"), ({"a": 7}, {"a": "X"}, "X"), ({"a": 8}, {"a": "X"}, "X")],
            {"X": 3},
            3,
            id="who comes by what was nobody's has what counts from there",
        ),
        pytest.param(
            [({"a": 5}, {}, "X"), ({"a": 2}, {"a": "X"}, "X")], {"X": 2}, 2, id="nobody's, that began anew for somebody"
        ),
        pytest.param(
            [({"a": 5}, {"a": "X"}, "X"), ({"a": 6}, {}, "X")], {"X": 6}, 6, id="a former key's count stays its owner's"
        ),
        pytest.param(
            [({"a": 5}, {"a": "X"}, "X"), ({"a": 6}, {}, ""), ({"a": 1}, {"a": "X"}, "X")],
            {"X": 1},
            7,
            id="an owner who went begins anew, the whole does not",
        ),
        pytest.param(
            [({"a": 5}, {"a": "X"}, "XY"), ({"a": 7}, {"a": "Y"}, "XY"), ({"a": 9}, {"a": "Y"}, "XY")],
            {"X": 5, "Y": 4},
            9,
            id="the next owner has what came since",
        ),
        pytest.param(
            [({"a": 5}, {"a": "X"}, "XY"), ({"a": 2}, {"a": "Y"}, "Y")],
            {"Y": 2},
            7,
            id="another owner, and a counter that began anew",
        ),
    ],
)
def test_what_counters_add_up_to(
    readings: list[tuple[dict[str, int], dict[str, str], str]], expected: dict[str, int], whole: int
) -> None:
    totals = after(*readings)
    assert (sums(totals), totals.whole) == (expected, (whole,))


READINGS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(KEYS), st.integers(0, 20)),
        st.dictionaries(st.sampled_from(KEYS), st.sampled_from(OWNERS)),
        st.sets(st.sampled_from(OWNERS)),
    ),
    max_size=12,
)


@given(READINGS)
def test_no_sum_falls_while_its_owner_lives_whatever_is_read(readings: list[Any]) -> None:
    totals, before, whole, alive = START, dict[str, int](), 0, set[str]()
    for read, claimed, living in readings:
        owners = {key: owner for key, owner in claimed.items() if owner in living}
        totals = add(totals, {key: (count,) for key, count in read.items()}, owners, living)
        now = sums(totals)
        assert now.keys() <= living
        assert all(now.get(owner, 0) >= before.get(owner, 0) for owner in alive & living)
        assert totals.whole[0] >= max(whole, sum(now.values()))
        assert all(count >= 0 for series in totals.series.values() for count in series.total)
        before, whole, alive = now, totals.whole[0], living


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9)), min_size=1))
def test_what_rises_by_itself_is_told_as_it_is(rises: list[dict[str, int]]) -> None:
    """No reset: the totals are the counters."""
    held = dict.fromkeys(KEYS, 0)
    totals, owners = START, dict.fromkeys(KEYS, "X")
    for rise in rises:
        held = {key: count + rise.get(key, 0) for key, count in held.items()}
        totals = add(totals, {key: (count,) for key, count in held.items()}, owners, "X")
    assert {key: series.total[0] for key, series in totals.series.items()} == held


# --- what the kernel tells ---------------------------------------------------------------------

SIX = Frontend(frontend("fd96::a").address, Protocol.UDP, 53)
CASES = [(IPV4, frontend("10.96.0.10")), (IPV6, SIX)]


def told(family: Family, name: str, key: bytes, packets: int, size: int) -> bytes:
    """A dump's body with one element (linux/netfilter/nf_tables.h)."""
    counter = nest(2, attr(1, size.to_bytes(8, "big")), attr(2, packets.to_bytes(8, "big")))
    element = nest(1, nest(1, attr(1, key)), nest(7, text(1, "counter"), counter))
    return table(family) + text(2, name) + nest(3, element)


@pytest.mark.parametrize(("family", "it"), CASES, ids=["IPv4", "IPv6"])
def test_elements_are_read(family: Family, it: Frontend) -> None:
    key = frontend_key(it)
    assert list(counters.connections(family, [told(family, "connections", key, 3, 180)])) == [
        (it, counters.Counter(3, 180))
    ]
    for direction in (counters.ORIGINAL, counters.REPLY):
        body = told(family, "traffic", key + bytes((direction, 0, 0, 0)), 3, 180)
        assert list(counters.traffic(family, [body])) == [(it, direction, counters.Counter(3, 180))]


@pytest.mark.parametrize(("family", "it"), CASES, ids=["IPv4", "IPv6"])
def test_elements_of_other_forms_count_for_nobody(family: Family, it: Frontend) -> None:
    key = frontend_key(it)
    unknown = key[: family.size] + bytes((47, 0, 0, 0)) + key[-4:]
    bodies = [
        told(family, "connections", unknown, 1, 1),
        told(family, "connections", b"", 1, 1),
        told(family, "connections", key + b"more", 1, 1),
        table(family) + nest(3, nest(1, nest(1, attr(1, key)))),
        table(family) + u32(3, 7),
        table(family),
    ]
    assert list(counters.connections(family, bodies)) == []
    strange = told(family, "traffic", key + bytes((2, 0, 0, 0)), 1, 1)
    assert list(counters.traffic(family, [*bodies, strange])) == []


def test_interfaces_are_read() -> None:
    counts = b"".join(number.to_bytes(8, "little") for number in (1, 2, 3, 4, 5))
    body = bytes(4) + (7).to_bytes(4, "little") + (1).to_bytes(4, "little") + attr(1, counts)
    assert dict(link_counters.counts([body, bytes(12)])) == {7: (1, 2, 3, 4)}


# --- served ------------------------------------------------------------------------------------

Samples = dict[tuple[str, tuple[str, ...]], float]


async def asked(agent: ServedAgent, path: str) -> tuple[int, str]:
    connector = aiohttp.UnixConnector(str(agent.socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://agent{path}") as response:
        return response.status, await response.text()


async def samples(agent: ServedAgent, path: str) -> Samples:
    status, body = await asked(agent, path)
    assert status == 200
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parse(body)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }


SUMS: Counts = (4, 16, 2_800, 12, 64_000)
NAMES = ("connections", "received_packets", "received_bytes", "sent_packets", "sent_bytes")


async def test_metrics_of_the_node_are_as_many_whatever_it_has(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        found = await samples(agent, "/metrics")
        for name, count in zip(NAMES, SUMS, strict=True):
            assert found[f"podwire_services_{name}_total", ()] == count
        assert not any(name.startswith(("podwire_service_", "podwire_pod_")) for name, _ in found)


async def test_metrics_of_services_are_of_those_that_were_used(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        found = await samples(agent, "/metrics/services")
    assert found == {
        (f"podwire_service_{name}_total", ("shop", "web")): count for name, count in zip(NAMES, SUMS, strict=True)
    }


async def test_metrics_of_pods(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        found = await samples(agent, "/metrics/pods")
    assert found["podwire_pod_received_bytes_total", ("eth0", interface_name(FRONT), "shop", "front")] == 1_000
    assert len({labels for _, labels in found}) == 2  # `back` has not been counted, and lives


@pytest.mark.parametrize("path", ["/statistics/services", "/statistics/services/shop/web"])
async def test_services_as_json(path: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        _, body = await asked(agent, path)
    seen = {it.name: it for it in msgspec.json.decode(body, type=views.ServiceStatisticsList).services}
    assert len(seen) == (1 if path.endswith("web") else 4)
    web = seen["web"]
    assert (web.connections, web.traffic) == (4, views.Traffic(16, 2_800, 12, 64_000))
    assert [(it.address, it.port, it.protocol, it.connections) for it in web.frontends] == [
        ("10.96.0.10", 80, "TCP", 3),
        ("fd96::a", 80, "TCP", 1),
    ]


async def test_a_service_that_claims_anothers_frontend_has_nothing_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        _, body = await asked(agent, "/statistics/services/shop/copy")
    (copy,) = msgspec.json.decode(body, type=views.ServiceStatisticsList).services
    assert (copy.connections, copy.traffic, copy.frontends) == (0, views.Traffic(), ())


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/statistics/services", 500, "the kernel's counters can't be read: [Errno 12] no memory"),
        ("/statistics/services/shop/web", 500, "the kernel's counters can't be read: [Errno 12] no memory"),
        ("/statistics/pods", 500, "the kernel's counters can't be read: [Errno 12] no memory"),
        ("/metrics/services", 500, "the kernel's counters can't be read: [Errno 12] no memory"),
    ],
)
async def test_counters_that_cannot_be_read(path: str, status: int, why: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        agent.statistics.error = OSError(12, "no memory")
        assert await asked(agent, path) == (status, msgspec.json.encode({"error": why}).decode())
        found = await samples(agent, "/metrics")  # all else is told
    assert ("podwire_ready", ()) in found
    assert not any(name.startswith("podwire_services_connections") for name, _ in found)


async def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        status, body = await asked(agent, "/statistics/services/shop/none")
    assert (status, body) == (404, '{"error":"no service/shop/none on this node"}')
