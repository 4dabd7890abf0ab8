"""Blocks of pools, claimed from an API server as strict as the real one and as unreliable as a test wants."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from podwire.cni.errors import CniError, ErrorCode
from podwire.model.objects import PodKey
from podwire.sources import kube_claims
from tests.unit import claiming_scenarios, kube_records
from tests.unit.claiming import agreed, at_work
from tests.unit.claiming_fake import served
from tests.unit.kube_fake import FakeApi, answering, hanging_up, namespace, node, saying


@pytest.mark.parametrize("scenario", claiming_scenarios.SCENARIOS, ids=lambda it: it.__name__)
async def test_whatever_happens(scenario: Any, tmp_path: Path) -> None:
    fake = FakeApi()
    async with served(fake) as server:
        await scenario(server, tmp_path)


# --- what an API server may do ---------------------------------------------------------------------

BLOCK = "10.1.0.0/28"


def _one_pool(fake: FakeApi, **spec: Any) -> None:
    fake.put("nodes", node("one"))
    fake.put("podpools", kube_records.pool("pods", "10.1.0.0/28", blockSizes={"ipv4": 28}, **spec))


def _writes(fake: FakeApi) -> list[str]:
    return [verb for verb in fake.verbs("podblocks") if verb not in ("list", "page", "watch")]


@pytest.mark.parametrize("pools", [False, True], ids=["without pools", "without their definitions"])
async def test_a_cluster_without_pools_costs_nothing(pools: bool, tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put("nodes", node("one", "10.2.0.0/24"))
    fake.absent = {"podpools", "podblocks"} if pools else set()
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        fake.asked.clear()
        assert (await one.add("a", "unknown")).error is None
        await one.claimer.until_quiet()
        assert [it for it in fake.asked if it[0] in ("get", "post")] == []
        assert one.claimer.errors == one.source.errors == ()


def done_and_lost(verb: str) -> Any:
    """The server does it, and nobody hears that it did."""

    async def fault(fake: FakeApi, request: Any) -> Any:
        name, body = request.match_info.get("name", ""), await request.read()
        kube_records.answer(fake, verb.upper(), name, body, request.content_type)
        request.transport.abort()
        return web.Response()

    return fault


FAULTS: dict[str, tuple[Any, str]] = {
    "forbidden": (answering(403, "Forbidden"), "403 scripted"),
    "invalid": (answering(422, "Invalid"), "422 scripted"),
    "no such kind": (answering(404, "NotFound"), "404 scripted"),
    "broken": (answering(500, "InternalError"), "500 scripted"),
    "busy": (answering(429, "TooManyRequests"), "429 scripted"),
    "gone": (hanging_up(), "Server disconnected"),
    "half an answer": (hanging_up(b'{"metadata":'), "the connection ended in the middle of an answer"),
    "nonsense": (saying(b"<html>"), "expected a PodBlock"),
}


@pytest.mark.parametrize(("fault", "says"), FAULTS.values(), ids=FAULTS)
async def test_a_failure_is_told_once_and_tried_again(
    fault: Any, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeApi()
    _one_pool(fake)
    fake.faults["post", "podblocks"].extend([fault] * 4)
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        await one.until(lambda: one.blocks == {BLOCK})
        assert set(await agreed(server, one)) == {BLOCK}
        assert one.claimer.errors == ()
    told = [it.getMessage() for it in caplog.records if it.name.endswith("kube_claims") and it.levelname == "WARNING"]
    assert len(told) == 1
    assert told[0].startswith("podblock/10.1.0.0/28 (take): ")
    assert says in told[0]


@pytest.mark.parametrize("verb", ["post", "delete"])
async def test_an_answer_that_was_lost_is_asked_for(verb: str, tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put("nodes", node("one"))
    fake.put("podpools", kube_records.pool("pods", "10.1.0.0/24", blockSizes={"ipv4": 28}))
    fake.faults[verb, "podblocks"].append(done_and_lost(verb))
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        for number in range(30):
            while (await one.add(f"p{number}")).error is not None:  # as a runtime does, until it is tried again
                await one.claimer.until_quiet()
        for number in range(30):
            await one.delete(f"p{number}")
        assert len(await agreed(server, one)) == 2
        assert not fake.faults[verb, "podblocks"]


async def test_answers_that_change_nothing_are_not_asked_for_without_end(tmp_path: Path) -> None:
    fake = FakeApi()
    _one_pool(fake)
    fake.faults["post", "podblocks"].extend([answering(409, "AlreadyExists")] * 12)
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        told: set[str] = set()
        while one.blocks != {BLOCK}:
            told.update(one.claimer.errors)
            await asyncio.sleep(0)
    assert told == {"podblock/10.1.0.0/28 (take): still due, 5 answers later"}


async def test_an_add_is_told_why_its_block_can_not_be_taken(tmp_path: Path) -> None:
    fake = FakeApi()
    _one_pool(fake)
    fake.faults["post", "podblocks"].extend([answering(403, "Forbidden")] * 100)
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        async with asyncio.timeout(10):
            while not one.claimer.errors:  # noqa: ASYNC110 - nobody tells of a failure but by its words
                await asyncio.sleep(0.01)
        with pytest.raises(CniError) as caught:
            async with one.wished(PodKey("default", "a"), ""):
                raise CniError(ErrorCode.TRY_AGAIN_LATER, "no IPv4 address is free")
        assert caught.value.text.startswith("no IPv4 address is free; podblock/10.1.0.0/28 (take): POST ")
        assert caught.value.text.endswith("/podblocks: 403 scripted")


async def test_the_first_add_waits_for_the_first_block(tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put("nodes", node("one"))
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        await server.put_pool("web", "10.1.0.0/24", autoAssign=False)
        uid = await server.put_pod("a", "one", **{"podwire.io/pool": "web"})
        await one.until(lambda: bool(one.now.pools))
        assert (await one.add("a", uid)).error is None
        assert len(await agreed(server, one)) == 1


@pytest.mark.parametrize("attached", [False, True], ids=["before the pod was attached", "after its sandbox had gone"])
async def test_a_fixed_address_is_given_back_whenever_the_agent_was_killed(attached: bool, tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put("nodes", node("one"))
    fake.put("podpools", kube_records.pool("web", "10.1.0.0/24", reserved=["10.1.0.240/28"], autoAssign=False))
    async with served(fake) as server:
        uid = await server.put_pod("db", "one", **{"podwire.io/addresses": "10.1.0.241"})
        async with at_work(server, "one", tmp_path) as one:
            if attached:
                assert (await one.add("db", uid)).error is None
                await one.delete("db")
            await one.until(lambda: one.blocks == {"10.1.0.241/32"})
        assert set(await server.blocks()) == {"10.1.0.241/32"}
        await server.remove_pod("db")
        async with at_work(server, "one", tmp_path) as again:
            assert await agreed(server, again) == {}


async def test_another_s_block_is_left_alone_whoever_lives_in_it(tmp_path: Path) -> None:
    """Its record was wiped while nobody watched, and another node took the block."""
    fake = FakeApi()
    _one_pool(fake)
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        assert (await one.add("a")).error is None
        before = one.pods
        await server.wipe()
        fake.put("podblocks", kube_records.block(BLOCK, "two"))
        async with at_work(server, "one", tmp_path) as again:
            await again.claimer.until_quiet()
            assert again.pods == before
            said = "pod/default/a: its address 10.1.0.2 is in the block 10.1.0.0/28 of node/two: start it anew"
            assert again.claimer.errors == (said,)
            assert (await again.add("b")).error is not None
            assert await server.blocks() == {BLOCK: ("two", "")}


async def test_what_was_learnt_and_is_never_told_is_asked_for_again(tmp_path: Path) -> None:
    """A record that was seen, and had gone again before the watch's time."""
    fake = FakeApi()
    _one_pool(fake)

    async def fleeting(fake: FakeApi, request: Any) -> Any:
        return web.json_response(seen)

    seen = kube_records.block(BLOCK, "two")
    seen["metadata"] |= {"uid": "x", "resourceVersion": "1"}
    fake.faults["post", "podblocks"].append(answering(409, "AlreadyExists"))
    fake.faults["get", "podblocks"].append(fleeting)
    async with served(fake) as server:
        clock = [0.0]
        async with at_work(server, "one", tmp_path, clock=lambda: clock[0]) as one:
            await one.until(lambda: {it.node for it in one.now.blocks.values()} == {"two"})
            clock[0] = kube_claims.DOUBT_SECONDS
            fake.put("namespaces", namespace("stirs"))
            await one.until(lambda: one.blocks == {BLOCK})
