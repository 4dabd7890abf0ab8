"""BGPSessions: what of a node's sessions is written, when, and what is left alone."""

import asyncio
from typing import Any

import msgspec
import pytest

from podwire.model.announcements import SessionReport
from podwire.sources import kube_sessions
from podwire.sources.kube_api import APPLY, ApiError
from podwire.sources.kube_sessions import Sessions, name_of
from podwire.sources.kube_watch import Chance
from tests.unit.test_deploy import of_kind

UP, DOWN = SessionReport("Established", 1000.0), SessionReport("Active", None, "no TCP connection")


class Cluster:
    """Of the API what is asked here: a list, patches that make and change, deletions."""

    def __init__(self, *held: tuple[str, str]) -> None:
        self.objects: dict[str, Any] = {
            name_of(node, peer): {"metadata": {"name": name_of(node, peer)}, "spec": {"node": node, "peer": peer}}
            for node, peer in held
        }
        self.writes: list[str] = []
        self.failures: list[ApiError] = []

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    async def get(self, path: str) -> bytes:
        assert path == kube_sessions.PATH
        self._fail()
        return msgspec.json.encode({"items": list(self.objects.values())})

    async def patch(self, path: str, body: bytes, kind: str) -> bytes:
        assert kind == APPLY
        self._fail()
        name = path.removeprefix(f"{kube_sessions.PATH}/").partition("?")[0]
        self.objects[name] = msgspec.json.decode(body)
        self.writes.append(f"apply {name}")
        return body

    async def delete(self, path: str, body: bytes) -> bytes:
        assert body == b"{}"
        self._fail()
        name = path.rpartition("/")[2]
        self.writes.append(f"delete {name}")
        if self.objects.pop(name, None) is None:
            raise ApiError("gone", 404)
        return b""


class World:
    def __init__(self, *held: tuple[str, str]) -> None:
        self.cluster, self.reports, self.uid, self.clock = Cluster(*held), dict[str, SessionReport](), "u1", 100.0
        chance = Chance(clock=lambda: self.clock)
        api: Any = self.cluster
        self.sessions = Sessions(api, "one", lambda: self.uid, lambda: self.reports, chance)

    def looks(self, **reports: SessionReport) -> list[str]:
        self.reports, self.cluster.writes = reports, []
        asyncio.run(self.sessions.once())
        return self.cluster.writes


def test_a_session_is_written_once_and_again_where_it_came_up_or_went_down() -> None:
    world = World()
    assert world.looks(tor=DOWN) == ["apply one.tor"]
    assert world.looks(tor=DOWN) == []
    assert world.looks(tor=UP) == ["apply one.tor"]
    held = world.cluster.objects["one.tor"]
    assert held["status"] == {"state": "Established", "since": "1970-01-01T00:16:40Z", "received": {}, "sent": {}}
    assert held["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "u1"}]


def test_counts_alone_are_written_twice_a_minute() -> None:
    world = World()
    world.looks(tor=UP)
    more = SessionReport("Established", 1000.0, "", (), (("IPv4", 7),))
    assert world.looks(tor=more) == []
    world.clock += kube_sessions.COUNTS_SECONDS
    assert world.looks(tor=more) == ["apply one.tor"]
    assert world.cluster.objects["one.tor"]["status"]["sent"] == {"IPv4": 7}


def test_a_second_more_or_less_is_no_news() -> None:
    world = World()
    world.looks(tor=UP)
    world.clock += kube_sessions.COUNTS_SECONDS
    assert world.looks(tor=SessionReport("Established", 1001.0)) == []
    assert world.looks(tor=SessionReport("Established", 1010.0)) == ["apply one.tor"]


def test_what_an_earlier_agent_left_goes_and_other_nodes_stay() -> None:
    world = World(("one", "old"), ("two", "old"))
    assert world.looks(tor=UP) == ["apply one.tor", "delete one.old"]
    assert sorted(world.cluster.objects) == ["one.tor", "two.old"]
    assert world.looks() == ["delete one.tor"]


def test_an_object_that_somebody_has_deleted_is_no_failure() -> None:
    world = World()
    world.looks(tor=UP)
    world.cluster.objects.clear()
    assert world.looks() == ["delete one.tor"]


def test_another_node_object_owns_it_from_then_on() -> None:
    world = World()
    world.looks(tor=UP)
    world.uid = "u2"
    assert world.looks(tor=UP) == ["apply one.tor"]


@pytest.mark.parametrize(
    ("status", "expected"), [(500, "short"), (403, kube_sessions.ABSENT_SECONDS), (404, kube_sessions.ABSENT_SECONDS)]
)
def test_what_fails_is_tried_again_and_where_there_is_no_such_kind_seldom(status: int, expected: Any) -> None:
    world, pauses = World(), []
    world.cluster.failures = [ApiError("no", status)]

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    async def main() -> None:
        api: Any = world.cluster
        world.reports = {"tor": UP}
        chance = Chance(pause, lambda: 0.5, lambda: world.clock)
        await Sessions(api, "one", lambda: "", lambda: world.reports, chance).run()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert pauses[0] < 1.0 if expected == "short" else pauses[0] == expected
    assert world.cluster.writes == ["apply one.tor"]


def test_a_name_that_would_be_too_long_is_cut_and_stays_its_own() -> None:
    long = "n" * 250
    names = {name_of(long, "aaa"), name_of(long, "aab"), name_of(long, "a")}
    assert len(names) == 3
    assert all(len(name) <= 253 for name in names)


def test_what_is_written_is_what_the_definition_knows() -> None:
    crd = of_kind("CustomResourceDefinition", "bgpsessions.podwire.io")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    written = msgspec.json.decode(kube_sessions.body("one", "u", "tor", SessionReport("Idle", 1.0, "why")))
    for part in ("spec", "status"):
        assert set(written[part]) == set(schema[part]["properties"])
