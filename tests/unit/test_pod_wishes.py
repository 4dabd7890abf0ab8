"""What pods ask for by annotations, as an ADD finds it out: from the watch, the API, or what was given before."""

from pathlib import Path

import pytest

from podwire.cni.errors import CniError, ErrorCode
from podwire.ipam.allocation import Wish
from podwire.model.objects import PodKey
from tests.unit import kube_records
from tests.unit.claiming import at_work
from tests.unit.claiming_fake import served
from tests.unit.kube_fake import FakeApi, node


def _one_pool(fake: FakeApi) -> None:
    fake.put("nodes", node("one"))
    fake.put("podpools", kube_records.pool("pods", "10.1.0.0/28", blockSizes={"ipv4": 28}))


@pytest.mark.parametrize(
    "text", ["ten", "10.1.0.1,10.1.0.2", "10.1.0.1;10.1.0.2", "10.1.0.1,", "224.0.0.1", "10.1.0.0/28"]
)
async def test_addresses_that_can_not_be_read_are_refused_by_name(text: str, tmp_path: Path) -> None:
    fake = FakeApi()
    _one_pool(fake)
    async with served(fake) as server:
        uid = await server.put_pod("a", "one", **{"podwire.io/addresses": text})
        async with at_work(server, "one", tmp_path) as one:
            with pytest.raises(CniError) as caught:
                await one.add("a", uid)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    form = "expected addresses such as 10.1.3.4 or 10.1.3.4,fd00::4, at most one of each family, not"
    assert caught.value.text.startswith(f"pod default/a: metadata.annotations[podwire.io/addresses]: {form} '{text}'")


async def test_a_pod_s_pool_goes_before_its_namespace_s(tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put("nodes", node("one", "10.9.0.0/24"))
    fake.put("namespaces", {"metadata": {"name": "default", "annotations": {"podwire.io/pool": "first"}}})
    async with served(fake) as server:
        await server.put_pool("first", "10.1.0.0/24", autoAssign=False)
        await server.put_pool("second", "10.2.0.0/24", autoAssign=False)
        async with at_work(server, "one", tmp_path) as one:
            for name, annotations in (("a", {}), ("b", {"podwire.io/pool": "second"})):
                uid = await server.put_pod(name, "one", **annotations)
                assert (await one.add(name, uid)).error is None
            assert {name: it[0][:5] for name, it in one.pods.items()} == {"a": "10.1.", "b": "10.2."}


async def test_a_pod_that_the_watch_has_not_told_yet_is_asked_for(tmp_path: Path) -> None:
    """Nor is one taken for an earlier one of its name."""
    fake = FakeApi()
    fake.put("nodes", node("one", "10.9.0.0/24"))
    async with served(fake) as server:
        await server.put_pool("web", "10.1.0.0/24", autoAssign=False)
        await server.put_pod("again", "one")
        async with at_work(server, "one", tmp_path) as one:
            await fake.all_watched()
            for stream in fake.streams:
                if stream.resource == "pods":
                    stream.resource = "nobody hears of pods now"
            await server.remove_pod("again")
            for name in ("new", "again"):
                uid = await server.put_pod(name, "one", **{"podwire.io/pool": "web"})
                assert (await one.add(name, uid)).error is None
            assert all(it[0].startswith("10.1.0.") for it in one.pods.values())
            assert [it for it in fake.asked if it[:2] == ("get", "pods")] == [("get", "pods", {})] * 2


async def test_without_the_api_a_pod_gets_what_its_last_sandbox_had_and_a_new_one_waits(tmp_path: Path) -> None:
    fake = FakeApi()
    fake.put("nodes", node("one", "10.9.0.0/24"))
    async with served(fake) as server:
        await server.put_pool("web", "10.1.0.0/24", autoAssign=False)
        uid = await server.put_pod("a", "one", **{"podwire.io/pool": "web"})
        async with at_work(server, "one", tmp_path) as one:
            assert (await one.add("a", uid)).error is None
    async with at_work(server, "one", tmp_path, whole=False) as again:
        assert (await again.add("a", uid)).error is None
        assert all(it[0].startswith("10.1.0.") for it in again.pods.values())
        with pytest.raises(CniError) as caught:
            await again.add("b", "new")
        assert caught.value.code == ErrorCode.TRY_AGAIN_LATER
        assert caught.value.text.startswith("pod default/b: which pool it asks for is not known yet: ")


@pytest.mark.parametrize("key", [PodKey("default", "../../nodes/one"), PodKey("Default", "a")], ids=str)
async def test_a_name_that_no_pod_can_have_is_asked_of_nobody(key: PodKey, tmp_path: Path) -> None:
    fake = FakeApi()
    _one_pool(fake)
    async with served(fake) as server, at_work(server, "one", tmp_path) as one:
        with pytest.raises(CniError) as caught:
            async with one.wished(key, ""):
                pass
        assert caught.value.code == ErrorCode.INVALID_ENVIRONMENT
        async with one.wished(PodKey("", "a container of another runtime"), "") as wish:
            assert wish == Wish()
        assert "get" not in {verb for verb, *_ in fake.asked}
