"""What is written of MetalLB's objects, and when nothing is. Time is the test's."""

from typing import Any, cast

import msgspec
import pytest

from podwire.clustercontroller.backoff import FIRST_DELAY, Refused
from podwire.clustercontroller.importer import _THEIRS, Importer
from podwire.model.addresses import parse_address, parse_range
from podwire.model.announcements import BGPPeer, BGPPeerKey, ConfigKey
from podwire.model.balancers import AddressPool, AddressPoolKey
from podwire.model.declared import Declared
from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kube_watch import Chance
from podwire.sources.metallb import FROM, LABEL

MARK = ((LABEL, FROM),)


class Server:
    """`there`: whether MetalLB is; `error`: of each write, or of each question."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.there = True
        self.leaving = ""
        self.error: ApiError | None = None
        self.deaf: ApiError | None = None

    async def find(self, path: str) -> bytes | None:
        if self.deaf is not None:
            raise self.deaf
        if not self.there:
            return None
        going = {"deletionTimestamp": "2024-05-06T07:08:09Z"} if self.leaving and self.leaving in path else {}
        return msgspec.json.encode({"metadata": going})

    async def patch(self, path: str, body: bytes, _: str) -> bytes:
        return self._write("PATCH", path, body)

    async def post(self, path: str, body: bytes) -> bytes:
        return self._write("POST", path, body)

    async def delete(self, path: str, body: bytes) -> bytes:
        return self._write("DELETE", path, body)

    def _write(self, method: str, path: str, body: bytes) -> bytes:
        self.sent.append((method, path, msgspec.json.decode(body)))
        if self.error is not None:
            raise self.error
        return b"{}"

    def done(self) -> list[tuple[str, str]]:
        found = [(method, path.rpartition("/")[2]) for method, path, _ in self.sent]
        self.sent = []
        return found


class Here:
    """An importer, with what the API last said."""

    def __init__(self) -> None:
        self.server = Server()
        self.declared: dict[ConfigKey, Declared] = {}
        self.secrets: dict[str, frozenset[str]] | None = {}
        self.now = 0.0
        self.held = True
        chance = Chance(clock=lambda: self.now)
        self.importer = Importer(cast(Api, self.server), self, "metallb-system", self._check, chance)

    async def watched(self) -> None:
        return

    def _check(self) -> None:
        if not self.held:
            raise Refused("the lease was not renewed in time")

    def put(self, kind: str, name: str, **more: Any) -> None:
        """As its watch tells."""
        watch = self.importer._watches[kind]
        thing = {"metadata": {"name": name, "resourceVersion": "1", "uid": "u"}, **more}
        watch.objects[cast(Any, name)] = watch._translate(msgspec.convert(thing, watch.resource.form), [])[1]  # type: ignore[assignment]

    def drop(self, kind: str, name: str) -> None:
        del self.importer._watches[kind].objects[cast(Any, name)]

    def imported(self, name: str, addresses: str, labels: Any = MARK) -> None:
        value = AddressPool((parse_range(addresses),), labels=labels)
        self.declared[AddressPoolKey(name)] = Declared(value, version="7", uid="u", labels=labels)

    async def once(self) -> list[tuple[str, str]]:
        await self.importer.once()
        return self.server.done()


POOL = {"addresses": ["192.0.2.0/24"]}


async def test_what_is_as_it_should_be_is_not_written() -> None:
    it = Here()
    it.put("ipaddresspools", "a", spec=POOL)
    assert await it.once() == [("POST", "addresspools")]
    it.imported("a", "192.0.2.0/24")
    assert await it.once() == []
    it.imported("a", "192.0.2.0/25")
    assert await it.once() == [("PATCH", "a")]


async def test_a_change_is_for_the_version_that_was_seen_and_has_the_whole_spec() -> None:
    it = Here()
    it.put("ipaddresspools", "a", spec=POOL)
    it.imported("a", "192.0.2.0/25")
    await it.importer.once()
    ((_, path, patch),) = it.server.sent
    assert path == "/apis/podwire.io/v1alpha1/addresspools/a"
    assert patch == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/metadata/labels", "value": {LABEL: FROM}},
        {"op": "add", "path": "/spec", "value": POOL},
    ]


async def test_what_is_not_imported_is_never_taken_away() -> None:
    it = Here()
    it.imported("a", "192.0.2.0/24", ())
    it.imported("b", "192.0.2.0/24", ((LABEL, "elsewhere"),))
    assert await it.once() == []
    it.imported("c", "192.0.2.0/24")
    await it.importer.once()
    ((method, path, body),) = it.server.sent
    assert (method, path.rpartition("/")[2]) == ("DELETE", "c")
    assert body["preconditions"] == {"uid": "u", "resourceVersion": "7"}


@pytest.mark.parametrize("leaving", ["namespaces/metallb-system", *(f"{it}.metallb.io" for it in _THEIRS)])
async def test_nothing_is_taken_away_because_metallb_goes(leaving: str, caplog: pytest.LogCaptureFixture) -> None:
    it = Here()
    it.imported("a", "192.0.2.0/24")
    it.server.leaving = leaving
    assert [await it.once() for _ in range(2)] == [[], []]
    assert len(caplog.messages) == 1
    it.server.there = False
    assert await it.once() == []


async def test_nothing_is_taken_away_where_nobody_says_whether_metallb_goes() -> None:
    it = Here()
    it.imported("a", "192.0.2.0/24")
    it.server.deaf = ApiError("forbidden", 403)
    assert await it.once() == []
    it.server.deaf = None
    assert await it.once() == [("DELETE", "a")]


async def test_what_cannot_come_over_any_more_stays_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """A profile that is made anew would end a session."""
    it = Here()
    of_peer = {"myASN": 1, "peerASN": 2, "peerAddress": "192.0.2.1", "bfdProfile": "b", "passwordSecret": {"name": "s"}}
    it.put("bgppeers", "p", spec=of_peer)
    it.put("bfdprofiles", "b", spec={})
    it.put("secrets", "s", data={"password": "aHVzaA=="})
    assert await it.once() == [("POST", "secrets"), ("POST", "bgppeers")]
    peer = BGPPeer(parse_address("192.0.2.1"), 2, 1)
    it.declared[BGPPeerKey("p")] = Declared(peer, version="7", uid="u", labels=MARK)
    it.put("copies", "s", data={"password": "aHVzaA=="})
    it.secrets["s"] = frozenset({"password"})
    it.drop("bfdprofiles", "b")
    assert await it.once() == []
    assert "there is no BFDProfile b; it is left out" in caplog.messages[-1]
    it.drop("bgppeers", "p")
    assert await it.once() == [("DELETE", "s"), ("DELETE", "p")]


async def test_who_has_lost_the_lease_writes_nothing() -> None:
    it = Here()
    it.put("ipaddresspools", "a", spec=POOL)
    it.imported("b", "192.0.2.0/25")
    it.held = False
    assert await it.once() == []


async def test_what_is_refused_is_tried_again_later_and_holds_up_nobody() -> None:
    it = Here()
    it.put("ipaddresspools", "a", spec=POOL)
    it.put("ipaddresspools", "b", spec={"addresses": ["198.51.100.0/24"]})
    it.server.error = ApiError("no", 403)
    seen = []
    for now in (0, FIRST_DELAY - 0.1, FIRST_DELAY, FIRST_DELAY * 2, FIRST_DELAY * 3):
        it.now = now
        seen.append(len(await it.once()))
    assert seen == [2, 0, 2, 0, 2]


async def test_a_name_that_is_taken_twice_is_told_and_left(caplog: pytest.LogCaptureFixture) -> None:
    it = Here()
    it.put("ipaddresspools", "a", spec=POOL)
    it.imported("a", "198.51.100.0/24", ())
    it.imported("metallb-a", "198.51.100.0/25", ())
    assert await it.once() == []
    assert caplog.messages == ["MetalLB: AddressPool metallb-a is not made: another one has the name"]


async def test_copies_of_secrets_follow_and_others_are_left_alone() -> None:
    it = Here()
    peer = {"myASN": 1, "peerASN": 2, "peerAddress": "192.0.2.1", "passwordSecret": {"name": "s"}}
    it.put("bgppeers", "p", spec=peer)
    it.put("secrets", "s", data={"password": "aHVzaA==", "username": "eA=="})
    it.secrets = {"other": frozenset({"password"})}
    assert await it.once() == [("POST", "secrets"), ("POST", "bgppeers")]
    it.put("copies", "s", data={"password": "aHVzaA=="})
    it.secrets["s"] = frozenset({"password"})
    assert await it.once() == [("POST", "bgppeers")], "the copy is as it should be"
    it.put("secrets", "s", data={"password": "b3RoZXI="})
    assert await it.once() == [("PATCH", "s"), ("POST", "bgppeers")]
    it.drop("bgppeers", "p")
    assert await it.once() == [("DELETE", "s")]


async def test_a_secret_of_the_same_name_is_its_owner_s() -> None:
    it = Here()
    it.put("bgppeers", "p", spec={"myASN": 1, "peerASN": 2, "peerAddress": "192.0.2.1", "password": "hush"})
    it.secrets = {"bgp-p": frozenset()}
    await it.importer.once()
    made = [body for _, _, body in it.server.sent]
    assert made[0]["metadata"]["name"] == "metallb-bgp-p"
    assert made[1]["spec"]["passwordSecret"]["name"] == "metallb-bgp-p"
