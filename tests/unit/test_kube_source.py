"""The source against a strict and unreliable API server: what it tells, and that nothing is missed or told twice."""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.controller.events import KubeStateChange, Resync, ResyncReason
from podwire.model.addresses import parse_address
from podwire.model.objects import Service, ServiceKey
from podwire.sources.batches import MOST_CHANGES
from tests.unit.kube_fake import (
    KINDS,
    FakeApi,
    Fault,
    answering,
    hanging_up,
    name_of,
    namespace,
    node,
    pod,
    saying,
    service,
    service_cidr,
    slice_,
    some_cluster,
)
from tests.unit.kube_records import block, pool
from tests.unit.kube_told import Told, following, is_sign


async def in_step(fake: FakeApi, told: Told) -> None:
    """All kinds are watched, and everything up to now is told: a sign has passed through each watch."""
    await fake.all_watched()
    sign = f"sign-{fake.version}"
    signs = {
        "nodes": node(sign),
        "namespaces": namespace(sign),
        "pods": pod(sign, "one"),
        "services": service(sign, "10.250.0.1"),
        "endpointslices": slice_(sign, "sign"),
        "servicecidrs": service_cidr(sign, "10.250.0.0/16"),
        "podpools": pool(sign, "10.251.0.0/16"),
        "podblocks": block(f"10.251.{fake.version >> 8 & 255}.{fake.version & 255}/32", sign),
    }
    for resource, thing in signs.items():
        fake.put(resource, thing)
    await told.until(lambda: told.objects == fake.translated("one"))
    for resource, thing in signs.items():
        fake.remove(resource, name_of(thing))
    await told.until(lambda: told.objects == fake.translated("one"))


# --- the start ---------------------------------------------------------------------------------


async def test_a_listing_holds_what_concerns_the_node() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        assert told.objects == fake.translated("one")
        assert sorted(map(str, told.objects)) == [
            "namespace/default",
            "node/one",
            "pod/default/mine",
            "podblock/10.1.0.64/26",
            "podpool/pods",
            "service/default/web",
            "servicecidr/kubernetes",
            "slice/default/web-1",
        ]
        assert told.source.listed
        assert told.source.errors == ()
        await fake.all_watched()
    assert sorted(query["resourceVersion"] for verb, _, query in fake.asked if verb == "watch") == ["111"] * len(KINDS)


async def test_a_long_list_comes_in_pages() -> None:
    fake = FakeApi()
    for number in range(1203):
        fake.put("services", service(f"s{number:04}", f"10.96.{number >> 8}.{number & 255}"))
    async with fake.served() as server, following(server) as told:
        assert told.objects == fake.translated("one")
    assert fake.verbs("services")[:3] == ["list", "page", "page"]
    assert fake.most_items == 500


OPTIONAL = {"servicecidrs": "servicecidr/kubernetes", "podpools": "podpool/pods", "podblocks": "podblock/10.1.0.64/26"}
"""With what `some_cluster` has of them."""


@pytest.mark.parametrize("kind", OPTIONAL)
async def test_a_kind_that_the_server_has_not_is_none_of_it(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.absent = {kind}
    async with fake.served() as server, following(server) as told:
        assert told.objects == fake.translated("one")
        assert told.source.errors == ()
        # Asked again later: the cluster may be upgraded, definitions may be applied.
        assert (300.0 if kind == "servicecidrs" else 60.0) in told.pauses
    assert not caplog.records


@pytest.mark.parametrize("kind", OPTIONAL)
async def test_a_kind_may_come_and_go(kind: str) -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.absent = {kind}
    async with fake.served() as server, following(server, patient=False) as told:
        for _ in range(2):
            fake.absent = set()
            await told.until(lambda: told.changes()[-1:] == [f"+{OPTIONAL[kind]}"])
            await in_step(fake, told)
            fake.absent = {kind}
            fake.cut(kind)
            await told.until(lambda: told.changes()[-1:] == [f"-{OPTIONAL[kind]}"])
        assert told.source.errors == ()


@pytest.mark.parametrize("kind", OPTIONAL)
async def test_a_kind_that_we_may_not_list_holds_up_nobody_and_is_told(kind: str) -> None:
    """An agent that is newer than its ClusterRole."""
    fake = FakeApi()
    some_cluster(fake)
    fake.faults["list", kind].extend([answering(403, "Forbidden")] * 20)
    async with fake.served() as server, following(server) as told:
        assert set(map(str, told.objects)) == set(map(str, fake.translated("one"))) - {OPTIONAL[kind]}
        assert len(told.source.errors) == 1
        assert f"/{kind}: 403 scripted" in told.source.errors[0]
        await told.until(lambda: told.changes() == [f"+{OPTIONAL[kind]}"])  # since the rights were given
        assert told.source.errors == ()


@pytest.mark.parametrize("kind", OPTIONAL)
async def test_what_is_known_stays_while_a_server_that_starts_anew_refuses(kind: str) -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        await fake.all_watched()
        fake.faults["watch", kind].append(answering(410, "Expired"))
        fake.faults["list", kind].extend([answering(403, "Forbidden")] * 5)
        fake.cut(kind)
        await fake.until(lambda: not fake.faults["list", kind])
        await in_step(fake, told)
        assert told.changes() == []


async def test_a_block_by_an_odd_name_holds_up_nobody() -> None:
    """No definition of ours lets it in."""
    fake = FakeApi()
    some_cluster(fake)
    odd = block("10.1.0.128/26", "one")
    odd["metadata"]["name"] = "odd"
    fake.put("podblocks", odd)
    async with fake.served() as server, following(server) as told:
        assert [error.partition(":")[0] for error in told.source.errors] == ["podblocks/odd"]
        fake.put("podblocks", block("10.1.0.192/26", "one"))
        await told.until(lambda: told.changes() == ["+podblock/10.1.0.192/26"])
        fake.remove("podblocks", ("", "odd"))
        await told.source.until(lambda: told.source.errors == ())


async def test_a_kind_that_every_server_has_must_be_there() -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.absent = {"endpointslices"}
    async with fake.served() as server, following(server, listed=False) as told:
        await told.source.until(lambda: any("endpointslices: 404" in error for error in told.source.errors))
        assert not told.source.listed
        fake.absent = set()
        await told.until(lambda: bool(told.events))
        assert told.events == [Resync(ResyncReason.SOURCE_RECONNECTED, fake.translated("one"))]
        assert told.source.errors == ()


async def test_what_changes_while_the_objects_are_not_yet_known_is_part_of_the_listing() -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.faults["list", "pods"].extend([answering(403, "Forbidden")] * 3)
    async with fake.served() as server, following(server, listed=False) as told:
        fake.put("services", service("web", "10.96.0.11"))
        await told.until(lambda: bool(told.events))
        await in_step(fake, told)
    assert isinstance(told.events[0], Resync)


# --- changes -----------------------------------------------------------------------------------


async def test_each_change_is_told_once_and_equal_objects_not_at_all() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        listed = len(told.source.heard)
        fake.put("services", service("api", "10.96.0.11"))
        await told.until(lambda: len(told.events) == 1)
        fake.put("nodes", node("one", "10.1.1.0/24", images=["a", "b"]))  # what kubelet reports means nothing here
        fake.put("pods", pod("others", "two", "10.1.2.3"))
        fake.put("endpointslices", slice_("web-1", "web", "10.1.2.2", "10.1.1.2"))  # another order
        fake.remove("services", ("default", "web"))
        await told.until(lambda: len(told.events) == 2)
        await in_step(fake, told)
        assert told.changes() == [
            "+service/default/api",
            "-service/default/web",
        ]
        assert [word for word in told.source.heard[listed:] if not is_sign(word)] == told.changes()


async def test_a_pod_that_is_bound_to_the_node_comes_and_an_object_that_loses_its_label_goes() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        fake.put("pods", pod("nobodys", "one"))
        fake.put("endpointslices", slice_("web-1", None, "10.1.1.2"))
        fake.put("endpointslices", slice_("stray", "web", "10.1.1.9"))
        await in_step(fake, told)
        assert sorted(told.changes()) == [
            "+pod/default/nobodys",
            "+slice/default/stray",
            "-slice/default/web-1",
        ]


async def test_what_comes_while_an_event_is_handled_is_one_event_in_parts() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        told.gate.clear()
        fake.put("namespaces", namespace("first"))
        await told.before_the_gate.wait()
        for number in range(600):
            fake.put("services", service(f"s{number}", f"10.96.{1 + (number >> 8)}.{number & 255}"))
        fake.put("services", service("s0", "10.96.7.7"))
        fake.put("services", service("fleeting", "10.96.7.8"))
        fake.remove("services", ("default", "fleeting"))
        await told.source.until(lambda: "-service/default/fleeting" in told.source.heard)
        told.gate.set()
        await told.until(lambda: told.objects == fake.translated("one"))
        sizes = [len(event.changes) for event in told.events if isinstance(event, KubeStateChange)]
        assert sizes == [1, MOST_CHANGES, MOST_CHANGES, 600 - 2 * MOST_CHANGES]
        assert not any("fleeting" in change for change in told.changes())


# --- faults ------------------------------------------------------------------------------------

NEW = service("new", "10.96.0.20")


def _broken_event(fake: FakeApi) -> None:
    fake.inject("services", b'{"type":"ADDED","object":{"metadata":{"name":\n')


def _unknown_event(fake: FakeApi) -> None:
    fake.inject("services", b'{"type":"RENAMED","object":{"metadata":{"name":"x","resourceVersion":"9999"}}}\n')


def _event_without_version(fake: FakeApi) -> None:
    fake.inject("services", b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n')


def _event_without_name(fake: FakeApi) -> None:
    fake.inject("services", b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"9999"}}}\n')


def _error_event(fake: FakeApi) -> None:
    status = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd event without a value"}
    fake.inject("services", json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")


def _out_of_order(fake: FakeApi) -> None:
    late = {
        **service("late", "10.96.0.30"),
        "metadata": {"name": "late", "namespace": "default", "resourceVersion": "1"},
    }
    fake.inject("services", json.dumps({"type": "ADDED", "object": late}).encode() + b"\n")


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param(_broken_event, "expected an event of a watch", id="not JSON"),
        pytest.param(_unknown_event, "unknown event 'RENAMED'", id="an unknown event"),
        pytest.param(_event_without_version, "ADDED without metadata.resourceVersion", id="no version"),
        pytest.param(_event_without_name, "an object without metadata.name", id="no name"),
        pytest.param(_error_event, "500 etcd event without a value", id="an error event"),
        pytest.param(_out_of_order, "ADDED of version 1 after version", id="out of order"),
    ],
)
async def test_what_can_not_be_leads_to_a_list_and_one_line(
    fault: Callable[[FakeApi], None], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        await fake.all_watched()
        fault(fake)
        fake.put("services", NEW)
        await told.until(lambda: "+service/default/new" in told.changes())
        await in_step(fake, told)
        assert fake.verbs("services") == ["list", "watch"] * 2
        assert told.changes() == ["+service/default/new"]
        assert told.source.errors == ()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert says in warnings[0]
    assert warnings[0].startswith("Kubernetes API: /api/v1/services: ")


async def test_an_event_that_comes_twice_is_told_once() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        await fake.all_watched()
        fake.put("services", NEW)
        again = {
            **fake.objects["services"]["default", "new"],
            "spec": {"clusterIP": "10.96.9.9", "ports": [{"port": 1}]},
        }
        fake.inject("services", json.dumps({"type": "ADDED", "object": again}).encode() + b"\n")
        await in_step(fake, told)
        assert fake.verbs("services") == ["list", "watch"]


@pytest.mark.parametrize("left", [b"", b'{"type":"ADDED","obj'], ids=["between lines", "in the middle of a line"])
async def test_a_cut_watch_goes_on_where_it_was(left: bytes) -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        await fake.all_watched()
        fake.put("services", service("before", "10.96.0.21"))
        fake.cut("services", left)
        fake.put("services", NEW)  # while nobody watches
        await in_step(fake, told)
        assert told.changes() == [
            "+service/default/before",
            "+service/default/new",
        ]
        asked = [(verb, query.get("resourceVersion")) for verb, resource, query in fake.asked if resource == "services"]
        assert asked == [("list", None), ("watch", "111"), ("watch", "112")]


async def test_a_bookmark_saves_a_list() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        await fake.all_watched()
        for number in range(5):
            fake.put("namespaces", namespace(f"n{number}"))
        fake.bookmark("services")
        fake.compact()
        fake.inject("services", None)
        fake.put("services", NEW)
        await in_step(fake, told)
        assert fake.verbs("services") == ["list", "watch", "watch"]


@pytest.mark.parametrize("as_event", [True, False], ids=["as an event", "as the answer"])
async def test_a_version_that_is_no_longer_kept_leads_to_a_list(as_event: bool) -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        await fake.all_watched()
        if not as_event:
            fake.faults["watch", "services"].append(answering(410, "Expired"))
        fake.cut("services")
        await fake.until(lambda: not any(stream.resource == "services" for stream in fake.streams))
        fake.remove("services", ("default", "web"))
        fake.put("services", NEW)
        if as_event:
            fake.compact()
        await in_step(fake, told)
        assert sorted(told.changes()) == [
            "+service/default/new",
            "-service/default/web",
        ]
        assert fake.verbs("services").count("list") == 2


async def test_a_list_that_expires_between_its_pages_comes_to_an_end() -> None:
    fake = FakeApi()
    for number in range(1600):
        fake.put("services", service(f"s{number:04}", f"10.96.{number >> 8}.{number & 255}"))

    async def expiring(fake: FakeApi, _: object) -> object:
        fake.put("services", service(f"more{fake.version}", "10.97.0.1"))
        in_the_page_before = min(name for name in fake.objects["services"] if name[1].startswith("s"))
        fake.remove("services", in_the_page_before)
        return await answering(410, "Expired")(fake, _)  # type: ignore[arg-type]

    fake.faults["page", "services"].extend([expiring] * 100)  # type: ignore[list-item]
    async with fake.served() as server, following(server) as told:
        assert told.objects == fake.translated("one")
    limits = [query["limit"] for verb, resource, query in fake.asked if (verb, resource) == ("list", "services")]
    assert limits == ["500", "1000", "2000"]


async def test_a_version_ahead_of_the_server_leads_to_a_list() -> None:
    """etcd was restored from a backup."""
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        await fake.all_watched()
        fake.version = 50
        fake.remove("services", ("default", "web"))
        for resource in KINDS:
            fake.cut(resource)
        await told.until(lambda: "-service/default/web" in told.changes())


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(answering(500, "InternalError"), id="500"),
        pytest.param(answering(503), id="503"),
        pytest.param(answering(403, "Forbidden"), id="403"),
        pytest.param(answering(302, headers={"Location": "http://192.0.2.1/"}), id="a redirect is not followed"),
        pytest.param(saying(b"<html>Bad gateway</html>"), id="not JSON"),
        pytest.param(saying(b'{"metadata":{"resourceVersion":""},"items":[]}'), id="no version"),
        pytest.param(
            saying(b'{"metadata":{"resourceVersion":"1"},"items":[{"spec":{}}]}'), id="an object without a name"
        ),
        pytest.param(hanging_up(), id="no answer"),
        pytest.param(hanging_up(b'{"metadata":'), id="half an answer"),
    ],
)
@pytest.mark.parametrize("verb", ["list", "page", "watch"])
async def test_a_failed_request_is_made_again(fault: Fault, verb: str) -> None:
    fake = FakeApi()
    some_cluster(fake)
    for number in range(510):
        fake.put("services", service(f"s{number:04}", f"10.96.{1 + (number >> 8)}.{number & 255}"))
    fake.faults[verb, "services"].extend([fault] * 2)
    async with fake.served() as server, following(server) as told:
        assert told.objects == fake.translated("one")
        fake.put("services", NEW)
        await in_step(fake, told)
        assert told.changes() == ["+service/default/new"]
        assert told.source.errors == ()
        assert not fake.faults[verb, "services"]


async def test_a_server_that_is_busy_says_when_to_come_again() -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.faults["list", "pods"].append(answering(429, "TooManyRequests", {"Retry-After": "7"}))
    async with fake.served() as server, following(server) as told:
        assert 7.0 in told.pauses


async def test_failures_in_a_row_wait_longer_each_time() -> None:
    fake = FakeApi()
    some_cluster(fake)
    fake.faults["list", "pods"].extend([answering(500)] * 9)
    async with fake.served() as server, following(server) as told:
        assert told.pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]


async def test_an_object_that_breaks_the_rules_keeps_its_last_good_form_and_holds_up_nobody() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server, following(server) as told:
        good = dict(told.objects)
        fake.put("services", service("web", "10.96.0.300"))
        fake.put("services", service("never-good", "10.96.0.301"))
        fake.put("namespaces", namespace("other"))
        await told.until(lambda: len(told.events) == 1)
        await told.source.until(lambda: len(told.source.errors) == 2)
        expected = "spec.clusterIPs[0]: expected an IP address, not"
        assert told.source.errors == (
            f"service/default/never-good: {expected} '10.96.0.301'",
            f"service/default/web: {expected} '10.96.0.300'; its last good form stays in force",
        )
        fake.faults["watch", "services"].append(answering(410, "Expired"))
        fake.cut("services")  # listed again, the same holds
        await fake.until(lambda: fake.verbs("services") == ["list", "watch", "list", "watch"])
        assert {key: value for key, value in told.objects.items() if key in good} == good
        assert len(told.source.errors) == 2
        fake.put("services", service("web", "10.96.0.30"))
        fake.remove("services", ("default", "never-good"))
        await in_step(fake, told)
        assert told.source.errors == ()


async def test_an_address_that_nobody_can_have_costs_only_itself() -> None:
    fake = FakeApi()
    some_cluster(fake)
    bad = service("bad", "10.96.0.40")
    bad["spec"]["externalIPs"] = ["127.0.0.1", "224.0.1.1", "192.0.2.1"]
    wrong = "service/default/bad: spec.externalIPs[0]: expected an address that a host can have, not '127.0.0.1', "
    async with fake.served() as server, following(server) as told:
        fake.put("services", bad)
        fake.put("nodes", node("odd", address="169.254.9.9"))
        await in_step(fake, told)
        value = told.objects[ServiceKey("default", "bad")]
        assert isinstance(value, Service)
        assert value.external_ips == (parse_address("192.0.2.1"),)
        assert [error for error in told.source.errors if "service/" in error] == [
            wrong + "which is loopback; it is left out, and 1 more"
        ]
        fake.faults["watch", "services"].append(answering(410, "Expired"))
        fake.cut("services")  # listed again, the same holds
        await fake.until(lambda: fake.verbs("services") == ["list", "watch", "list", "watch"])
        assert told.objects[ServiceKey("default", "bad")] == value
        fake.put("services", service("bad", "10.96.0.40"))
        fake.remove("nodes", ("", "odd"))
        await in_step(fake, told)
        assert told.source.errors == ()


# --- a lost server -----------------------------------------------------------------------------


async def test_a_lost_server_changes_nothing_and_its_return_tells_only_what_differs() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as server:
        port = int(server.rpartition(":")[2])
        stack = AsyncExitStack()
        told = await stack.enter_async_context(following(server))
        await fake.all_watched()
    async with stack:
        await told.source.until(lambda: bool(told.source.errors))
        assert told.events == []
        assert told.source.listed
        async with fake.served(port):
            await in_step(fake, told)
            assert told.changes() == []
            assert told.source.errors == ()
        fake.put("services", NEW)
        fake.remove("endpointslices", ("default", "web-1"))
        fake.compact()
        async with fake.served(port):
            await told.until(lambda: told.objects == fake.translated("one"))
            await in_step(fake, told)
            assert sorted(told.changes()) == [
                "+service/default/new",
                "-slice/default/web-1",
            ]


async def test_of_two_servers_one_is_enough() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as second:
        async with fake.served() as first:
            pass
        async with following(first, second) as told:  # the first is down from the start
            assert told.objects == fake.translated("one")
            port = int(first.rpartition(":")[2])
            async with fake.served(port):
                for resource in KINDS:
                    fake.cut(resource)
                await in_step(fake, told)
                assert {stream.port for stream in fake.streams} == {int(second.rpartition(":")[2])}


async def test_a_server_that_goes_is_left_for_the_other() -> None:
    fake = FakeApi()
    some_cluster(fake)
    async with fake.served() as second, AsyncExitStack() as rest:
        async with fake.served() as first:
            told = await rest.enter_async_context(following(first, second))
            await fake.all_watched()
        await in_step(fake, told)
        fake.put("services", NEW)
        await in_step(fake, told)
        assert told.changes() == ["+service/default/new"]


# --- anything ----------------------------------------------------------------------------------

things = st.one_of(
    st.tuples(
        st.just("services"), st.builds(service, st.sampled_from("abc"), st.sampled_from(("10.96.0.1", "10.96.0.2")))
    ),
    st.tuples(
        st.just("endpointslices"),
        st.builds(
            slice_, st.sampled_from("xyz"), st.sampled_from(("a", "b", None)), st.sampled_from(("10.1.1.2", "10.1.1.3"))
        ),
    ),
    st.tuples(st.just("pods"), st.builds(pod, st.sampled_from("pq"), st.sampled_from(("one", "two", None)))),
    st.tuples(
        st.just("nodes"),
        st.builds(node, st.sampled_from(("one", "two")), st.sampled_from(("10.1.1.0/24", "10.1.2.0/24"))),
    ),
    st.tuples(
        st.just("servicecidrs"),
        st.builds(service_cidr, st.just("k"), st.sampled_from(("10.96.0.0/16", "10.96.0.0/15"))),
    ),
    st.tuples(st.just("podpools"), st.builds(pool, st.just("k"), st.sampled_from(("10.1.0.0/16", "10.0.0.0/8")))),
    st.tuples(
        st.just("podblocks"),
        st.builds(block, st.sampled_from(("10.1.0.0/26", "10.1.0.64/26")), st.sampled_from(("one", "two"))),
    ),
)
names = st.sampled_from(
    [("default", name) for name in "abcxyzpq"] + [("", name) for name in ("one", "two", "k", "10.1.0.0-26")]
)
resources_ = st.sampled_from(sorted(KINDS))
STEPS = st.one_of(
    things.map(lambda drawn: ("put", *drawn)),
    st.tuples(st.just("remove"), resources_, names),
    st.tuples(st.just("cut"), resources_, st.sampled_from((b"", b'{"type":"MODIFIED"'))),
    st.tuples(st.just("end"), resources_, st.none()),
    st.tuples(st.just("compact"), st.just(""), st.none()),
    st.tuples(st.just("bookmark"), resources_, st.none()),
    st.tuples(
        st.just("inject"),
        resources_,
        st.sampled_from((b"{}\n", b"\n", b'{"type":"ERROR","object":{"code":410}}\n', b"x\n")),
    ),
    st.tuples(st.just("repeat"), resources_, st.none()),
    st.tuples(
        st.just("fault"),
        st.tuples(st.sampled_from(("list", "page", "watch")), resources_),
        st.sampled_from(
            (answering(500), answering(410, "Expired"), answering(429), hanging_up(), hanging_up(b'{"i'), saying(b"{}"))
        ),
    ),
    st.tuples(st.just("turn"), st.just(""), st.integers(1, 30)),
)


async def _take(fake: FakeApi, step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case ("put", resource, thing):
            fake.put(resource, thing)
        case ("remove", resource, name):
            fake.remove(resource, name)
        case ("cut", resource, left):
            fake.cut(resource, left)
        case ("end", resource, _):
            fake.inject(resource, None)
        case ("compact", _, _):
            fake.compact()
        case ("bookmark", resource, _):
            fake.bookmark(resource)
        case ("inject", resource, line):
            fake.inject(resource, line)
        case ("repeat", resource, _):
            fake.repeat(resource)
        case ("fault", request, fault):
            fake.faults[request].append(fault)
        case ("turn", _, count):
            for _ in range(count):
                await asyncio.sleep(0)


async def _any_way(before: list, way: list) -> None:  # type: ignore[type-arg]
    fake = FakeApi()
    for step in before:
        await _take(fake, step)
    async with fake.served() as server, following(server, listed=False) as told:
        for step in way:
            await _take(fake, step)
        await told.until(lambda: bool(told.events))
        fake.faults.clear()
        await in_step(fake, told)
        count = len(told.changes())
        fake.compact()
        for resource in KINDS:
            fake.cut(resource)
        await fake.until(lambda: not fake.streams)
        await in_step(fake, told)  # listed again, and nothing differs
        assert len(told.changes()) == count


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=5), st.lists(STEPS, max_size=25))
def test_any_changes_and_faults_end_in_what_a_list_would_say(before: list, way: list) -> None:  # type: ignore[type-arg]
    asyncio.run(_any_way(before, way))
