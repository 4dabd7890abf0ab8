"""The agent's side of CNI: calls become events in the right order, results become answers, and nothing escapes."""

import asyncio
import errno
import json
import os
import socket as sockets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from immutables import Map
from msgspec.structs import replace

from podwire.cni import shim
from podwire.cni.cni_pb2 import CniReply, CniRequest
from podwire.cni.errors import CniError, ErrorCode
from podwire.controller.difference import Change, Difference, Outcome
from podwire.controller.events import AddPod, CollectPods, DeletePod, Event, KubeStateChange, PodWired, Refused, Resync
from podwire.controller.snapshot import fold
from podwire.controller.transaction import Result, Step
from podwire.ipam.allocation import Wish
from podwire.model.addresses import parse_prefix
from podwire.model.network import CursorKey, RouteKey
from podwire.model.objects import AttachmentKey, Node, NodeKey, PodBlock, PodBlockKey, PodKey, PodPool, PodPoolKey
from podwire.model.snapshot import Local, Snapshot, Touched
from podwire.pods.names import interface_name, pod_mac
from podwire.sources import cni_server
from podwire.sources.cni_calls import CallServer
from podwire.sources.cni_spool import spooled
from podwire.sources.ipam_leases import Leases
from tests.unit import shims

NODE = Node(pod_cidrs=(parse_prefix("10.1.0.0/30"), parse_prefix("fd00:1::/64")))
READY = Snapshot(Local("one", mtu=1450), nodes=Map({NodeKey("one"): NODE}))
KEY = AttachmentKey("c1", "eth0")
CONFIG: dict[str, Any] = {"cniVersion": "1.0.0", "name": "podwire", "type": "podwire"}


class Fake:
    """A controller that folds pods' events truly and has no network below. `failing`: event class → error."""

    def __init__(self, snapshot: Snapshot = READY) -> None:
        self.snapshot = snapshot
        self.events: list[Event] = []
        self.failing: dict[type[Event], str] = {}
        self.drift: dict[str, Difference] = {}
        self.bug: Exception | None = None
        self.unsynced: frozenset[str] = frozenset()
        self.steps: tuple[Step, ...] = ()

    def submit(self, event: Event) -> asyncio.Future[Result]:
        if self.bug is not None:
            raise self.bug
        self.events.append(event)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self._answer, event, answer)
        return answer

    def _answer(self, event: Event, answer: asyncio.Future[Result]) -> None:
        result = self._handle(event)
        if not answer.cancelled():
            answer.set_result(result)

    def _handle(self, event: Event) -> Result:
        if type(event) in self.failing:
            return Result(event, self.steps, error=self.failing[type(event)])
        try:
            self.snapshot, _ = fold(self.snapshot, event)
        except Refused as refused:
            return Result(event, error=str(refused), refusal=refused.refusal)
        if isinstance(event, AddPod):
            self.snapshot, _ = fold(self.snapshot, PodWired(event.key))
        return Result(event)

    async def check(self, touched: Touched) -> dict[str, Difference]:  # noqa: ARG002 - all that differs is of it
        return self.drift


class Served:
    """A server on a socket, and what a plugin sends it."""

    def __init__(self, directory: Path) -> None:
        self.controller = Fake()
        self.socket, self.spool, self.leases = directory / "cni.sock", directory / "spool", directory / "leases"
        self.wish: Wish | CniError = Wish()
        self.wished: list[str] = []

    async def start(self) -> CallServer:
        return await cni_server.serve(self.socket, self.spool, self.controller, Leases(self.leases), self._wished)

    @asynccontextmanager
    async def _wished(self, pod: PodKey, uid: str) -> AsyncIterator[Wish]:
        if isinstance(self.wish, CniError):
            raise self.wish
        count = len(self.controller.events)
        yield self.wish
        self.wished.append(f"{pod} {uid} {len(self.controller.events) - count}")

    async def call(self, body: bytes) -> tuple[int, Any]:
        """Exit code and what was printed."""
        async with aio.insecure_channel(f"unix:{self.socket}") as channel:
            reply = CniReply.FromString(await channel.unary_unary("/podwire.v1.Cni/Call")(body))
        return reply.exit_code, json.loads(reply.stdout) if reply.stdout else None

    async def ask(self, command: str, config: Any = CONFIG, **changed: str) -> tuple[int, Any]:
        return await self.call(message(command, config, **changed))

    def leave(self, name: str, content: bytes) -> Path:
        self.spool.mkdir(exist_ok=True)
        (self.spool / name).write_bytes(content)
        return self.spool / name


def message(command: str, config: Any = CONFIG, **changed: str) -> bytes:
    variables = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "c1",
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": "/run/netns/x",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0",
    } | changed
    environment = [f"{name}={value}" for name, value in variables.items()]
    return CniRequest(environment=environment, stdin=json.dumps(config).encode()).SerializeToString()


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Whatever namespace a call names is taken for one: real ones need root."""
    monkeypatch.setattr(cni_server, "check_namespace", lambda path: (4, 4026532000 + ord(path[-1]) - ord("x")))
    return Served(tmp_path)


@pytest.fixture
async def served(stopped: Served) -> AsyncIterator[Served]:
    server = await stopped.start()
    yield stopped
    await server.stop(None)


# --- ADD ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
async def test_add_attaches_the_pod_and_says_how(served: Served, version: str) -> None:
    code, said = await served.ask("ADD", CONFIG | {"cniVersion": version})
    assert code == 0
    assert served.controller.events == [
        AddPod(KEY, PodKey("shop", "web-0"), "/run/netns/x", 4, 4026532000, network="podwire")
    ]
    node, pod = said["interfaces"]
    assert (node["name"], node["mac"]) == (interface_name(KEY), "ee:ee:ee:ee:ee:ee")
    assert (pod["name"], pod["mac"], pod["sandbox"]) == ("eth0", pod_mac(interface_name(KEY)).hex(":"), "/run/netns/x")
    assert [(ip["address"], ip["gateway"], ip["interface"]) for ip in said["ips"]] == [
        ("10.1.0.2/32", "169.254.1.1", 1),
        ("fd00:1::2/128", "fe80::1", 1),
    ]
    assert [(route["dst"], route["gw"]) for route in said["routes"]] == [
        ("0.0.0.0/0", "169.254.1.1"),
        ("::/0", "fe80::1"),
    ]
    assert said["cniVersion"] == version


async def test_what_a_pod_asks_for_is_held_until_it_is_attached_and_asked_once(served: Served) -> None:
    pool = PodPool((parse_prefix("10.2.0.0/24"),), auto_assign=False)
    block, fixed = parse_prefix("10.2.0.0/26"), parse_prefix("fd00:2::7/128")
    records = {PodBlockKey(block): PodBlock("one", "web"), PodBlockKey(fixed): PodBlock("one", "web")}
    now, _ = fold(served.controller.snapshot, KubeStateChange(((PodPoolKey("web"), pool), *records.items())))
    served.controller.snapshot, served.wish = now, Wish("web", (fixed.first,))
    code, said = await served.ask("ADD", CNI_ARGS="K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u")
    assert code == 0
    assert [ip["address"] for ip in said["ips"]] == ["10.2.0.2/32", "fd00:2::7/128"]
    assert served.wished == ["pod/shop/web-0 u 1"]
    served.wish = CniError(ErrorCode.INVALID_CONFIG, "pod shop/web-0: metadata.annotations[podwire.io/addresses]: ten")
    assert (await served.ask("ADD"))[0] == 0, "what it has it keeps"
    code, said = await served.ask("ADD", CNI_CONTAINERID="c2", CNI_NETNS="/run/netns/y")
    assert (code, said["code"], said["msg"]) == (1, 7, served.wish.text)


async def test_add_without_kubernetes_names_the_pod_by_its_container(served: Served) -> None:
    assert (await served.ask("ADD", CNI_ARGS=""))[0] == 0
    assert served.controller.events == [AddPod(KEY, PodKey("", "c1"), "/run/netns/x", 4, 4026532000, network="podwire")]


async def test_add_on_a_node_without_a_block_is_to_be_tried_again(served: Served) -> None:
    served.controller.snapshot = Snapshot(Local("one", mtu=1450))
    code, said = await served.ask("ADD")
    assert (code, said["code"], said["cniVersion"]) == (1, 11, "1.0.0")
    assert "node one has no spec.podCIDRs" in said["msg"]


async def test_add_to_a_full_block_names_the_block(served: Served) -> None:
    assert (await served.ask("ADD"))[0] == 0
    code, said = await served.ask("ADD", CNI_CONTAINERID="c2", CNI_NETNS="/run/netns/y")
    assert (code, said["code"]) == (1, 11)
    assert "10.1.0.0/30" in said["msg"]


async def test_add_that_the_kernel_or_the_disk_refuses(served: Served) -> None:
    served.controller.failing[AddPod] = "link pw0: No space left on device"
    code, said = await served.ask("ADD")
    assert (code, said["code"]) == (1, 5)
    assert "No space left" in said["msg"]


async def test_a_pod_deleted_before_its_add_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.controller, "_handle", Result)
    code, said = await served.ask("ADD")
    assert (code, said["code"]) == (1, 11)


@pytest.mark.parametrize("path", ["/proc/self/ns/net", "/proc/self/ns/uts", "/proc/self/comm", "/", "{tmp}/none"])
async def test_add_to_what_is_no_pods_namespace(tmp_path: Path, path: str) -> None:
    served = Served(tmp_path)
    server = await served.start()
    path = path.format(tmp=tmp_path)
    code, said = await served.ask("ADD", CNI_NETNS=path)
    await server.stop(None)
    assert (code, said["code"]) == (1, 4)
    assert said["msg"].startswith(f"CNI_NETNS: {path} ")
    assert served.controller.events == []


# --- DEL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("netns", ["", "/run/netns/gone"])
async def test_del_needs_no_namespace_and_no_attachment(served: Served, netns: str) -> None:
    assert (await served.ask("ADD"))[0] == 0
    for _ in range(2):
        assert await served.ask("DEL", CNI_NETNS=netns) == (0, None)
    assert served.controller.events[1:] == [DeletePod(KEY), DeletePod(KEY)]
    assert not served.controller.snapshot.attachments


async def test_a_failed_del_is_never_taken_for_one_of_something_gone(served: Served) -> None:
    served.controller.failing[DeletePod] = "route not found, and more"
    code, said = await served.ask("DEL")
    assert (code, said["code"]) == (1, 5)
    assert "not found" not in json.dumps(said)


@pytest.mark.parametrize("number", sorted(errno.errorcode))
async def test_whatever_a_del_meets_it_is_tried_again(served: Served, number: int) -> None:
    served.controller.failing[DeletePod] = f"link pw0: {os.strerror(number)}"
    code, said = await served.ask("DEL", CNI_NETNS="")
    assert (code, said["code"]) == (1, 5)
    assert not {"not found", "no such file or directory"} & {said["msg"].lower(), said["msg"].lower()[10:]}
    assert "such file" not in said["msg"].lower()


CODES: dict[str, tuple[int, Callable[[Served], object], bytes]] = {
    "incompatible version": (1, lambda _: None, b"ADD|cniVersion=0.3.1"),
    "unsupported field": (2, lambda _: None, b'ADD|runtimeConfig={"deviceID":1}'),
    "unknown container": (3, lambda _: None, b"CHECK|"),
    "invalid environment": (4, lambda _: None, b"ADD|CNI_IFNAME=a/b"),
    "I/O failure": (5, lambda it: it.controller.failing.update({AddPod: "no space left"}), b"ADD|"),
    "what can't be decoded": (6, lambda _: None, b"ADD|junk"),
    "invalid configuration": (7, lambda _: None, b"ADD|prevResult={}"),
    "try again later": (11, lambda it: setattr(it.controller, "snapshot", NOWHERE), b"ADD|"),
    "not available": (50, lambda it: setattr(it.controller, "snapshot", NOWHERE), b"STATUS|"),
    "limited connectivity": (51, lambda it: setattr(it.controller, "unsynced", frozenset(("linux",))), b"STATUS|"),
    "differs": (100, lambda _: None, b"CHECK after ADD|"),
}
NOWHERE = Snapshot(Local("one"), nodes=READY.nodes)
"""A node whose MTU nobody knows."""


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize("code", CODES)
async def test_each_code_in_each_version(served: Served, code: str, version: str) -> None:
    """In the version that was asked, or the oldest where that can't be known."""
    number, prepare, asked = CODES[code]
    prepare(served)
    command, _, wrong = asked.decode().partition("|")
    config, environment = CONFIG | {"cniVersion": version, "prevResult": {}}, {}
    if command == "ADD":
        del config["prevResult"]
    name, equals, value = wrong.partition("=")
    if name.startswith("CNI_"):
        environment = {name: value}
    elif equals:
        config |= {name: json.loads(value) if value.startswith("{") else value}
    if command == "CHECK after ADD":
        await served.ask("ADD")
        command = "CHECK"
    exit_code, said = await served.ask(command, "junk" if wrong == "junk" else config, **environment)
    assert (exit_code, said["code"]) == (1, number)
    assert said["cniVersion"] == ("0.4.0" if number in (1, 6) else version)
    assert said["msg"]
    assert set(said) == {"cniVersion", "code", "msg", "details"}


async def test_an_add_without_an_mtu_is_to_be_tried_again(served: Served) -> None:
    served.controller.snapshot = NOWHERE
    code, said = await served.ask("ADD")
    assert (code, said["code"], "MTU of node one is not known" in said["msg"]) == (1, 11, True)


async def test_add_hands_dns_on(served: Served) -> None:
    config = CONFIG | {"dns": {"nameservers": ["10.96.0.10"]}, "runtimeConfig": {"dns": {"searches": ["svc"]}}}
    code, said = await served.ask("ADD", config)
    assert (code, said["dns"]) == (0, {"nameservers": ["10.96.0.10"], "search": ["svc"]})
    assert await served.ask("CHECK", config | {"prevResult": said}) == (0, None)
    del said["dns"]
    assert await served.ask("CHECK", config | {"prevResult": said}) == (0, None)  # a later plugin's matter


# --- the node ----------------------------------------------------------------------------------


async def test_status_succeeds_exactly_while_an_add_would(served: Served) -> None:
    assert await served.ask("STATUS") == (0, None)
    assert (await served.ask("ADD"))[0] == 0
    code, said = await served.ask("STATUS")
    assert (code, said["code"], said["msg"]) == (1, 50, "no address is free in 10.1.0.0/30: all 1 are in use")
    code, refused = await served.ask("ADD", CNI_CONTAINERID="c2", CNI_NETNS="/run/netns/y")
    assert (code, refused["code"], refused["msg"]) == (1, 11, said["msg"])
    assert (await served.ask("DEL"))[0] == 0
    assert await served.ask("STATUS") == (0, None)


@pytest.mark.parametrize(
    ("snapshot", "unsynced", "code", "says"),
    [
        pytest.param(Snapshot(Local("one", mtu=1450)), (), 50, "node one has no spec.podCIDRs yet", id="no blocks"),
        pytest.param(
            Snapshot(Local("one"), nodes=READY.nodes), (), 50, "the MTU of node one is not known: no", id="no MTU"
        ),
        pytest.param(
            READY, ("nftables", "linux"), 51, "not yet in sync: linux, nftables", id="pods that live lack something too"
        ),
    ],
)
async def test_status_says_why_not(
    served: Served, snapshot: Snapshot, unsynced: tuple[str, ...], code: int, says: str
) -> None:
    served.controller.snapshot, served.controller.unsynced = snapshot, frozenset(unsynced)
    exit_code, said = await served.ask("STATUS")
    assert (exit_code, said["code"]) == (1, code)
    assert said["msg"].startswith(says)


async def test_status_does_not_wait_for_the_clusters_objects(served: Served) -> None:
    """What an earlier agent was told is enough (`Restored`)."""
    assert not served.controller.snapshot.whole
    assert await served.ask("STATUS") == (0, None)


async def test_version(served: Served) -> None:
    said = {"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}
    assert await served.ask("VERSION", {"cniVersion": "1.1.0"}) == (0, said)


# --- CHECK -------------------------------------------------------------------------------------


async def added(served: Served) -> dict[str, Any]:
    """The configuration of a CHECK after an ADD."""
    _, result = await served.ask("ADD")
    return CONFIG | {"prevResult": result}


async def test_check_of_what_is_as_it_was_given(served: Served) -> None:
    config = await added(served)
    block = CursorKey(NODE.pod_cidrs[0])
    others = RouteKey("", parse_prefix("10.1.0.9/32"))
    served.controller.drift = {"store": {block: Change(1, 2)}, "linux": {others: Change(1, 2)}}
    assert await served.ask("CHECK", config) == (0, None)
    assert len(served.controller.events) == 1


async def test_check_names_what_is_not_as_it_should_be(served: Served) -> None:
    config = await added(served)
    route = RouteKey("", parse_prefix("10.1.0.2/32"))
    served.controller.drift = {"linux": {route: Change(None, 1)}}
    code, said = await served.ask("CHECK", config)
    assert (code, said["code"]) == (1, 100)
    assert "route 10.1.0.2/32" in said["msg"]


async def test_check_of_a_result_that_lacks_an_address(served: Served) -> None:
    config = await added(served)
    del config["prevResult"]["ips"][1]
    code, said = await served.ask("CHECK", config)
    assert (code, said["code"]) == (1, 100)
    assert "fd00:1::2/128" in said["msg"]


async def test_check_of_an_unknown_container(served: Served) -> None:
    code, said = await served.ask("CHECK", CONFIG | {"prevResult": {}})
    assert (code, said["code"]) == (1, 3)


async def test_check_without_a_result(served: Served) -> None:
    code, said = await served.ask("CHECK")
    assert (code, said["code"]) == (1, 7)


# --- GC ----------------------------------------------------------------------------------------


GC = CONFIG | {"cniVersion": "1.1.0"}
LIST = "cni.dev/valid-attachments"
ALL = {name: AttachmentKey(name, "eth0") for name in ("a", "b", "c")}


def listed(*names: str) -> list[dict[str, str]]:
    return [{"containerID": name, "ifname": "eth0"} for name in names]


async def roomy(served: Served) -> None:
    """Three of this network, one of another, and one whose network nobody knows."""
    many = Node(pod_cidrs=(parse_prefix("10.1.0.0/24"),))
    now = replace(served.controller.snapshot, nodes=Map({NodeKey("one"): many}))
    for number, name in enumerate("abc"):
        now, _ = fold(now, AddPod(ALL[name], PodKey("shop", name), f"/{name}", 4, number + 1, network="podwire"))
    now, _ = fold(now, AddPod(AttachmentKey("a", "net1"), PodKey("shop", "a"), "/other", 4, 8, network="other"))
    served.controller.snapshot, _ = fold(now, AddPod(AttachmentKey("old", "eth0"), PodKey("shop", "o"), "/o", 4, 9))


@pytest.mark.parametrize(
    ("config", "gone"),
    [
        pytest.param(GC, "", id="without a list nothing is collected"),
        pytest.param(GC | {LIST: None}, "abc", id="null is an empty list"),
        pytest.param(GC | {LIST: []}, "abc", id="an empty list"),
        pytest.param(GC | {LIST: listed("b", "unknown")}, "ac", id="what is listed stays"),
        pytest.param(GC | {LIST: [{"containerID": "a", "ifname": "net1"}]}, "abc", id="by both its names"),
        pytest.param(GC | {LIST: None, "name": "third"}, "", id="another network"),
    ],
)
async def test_gc_collects_what_is_not_listed_of_its_network(served: Served, config: Any, gone: str) -> None:
    await roomy(served)
    before = set(served.controller.snapshot.attachments)
    assert await served.ask("GC", config) == (0, None)
    assert before - set(served.controller.snapshot.attachments) == {ALL[name] for name in gone}
    kinds = [type(event) for event in served.controller.events]
    assert kinds == ([CollectPods, Resync] if LIST in config else [])


async def test_gc_touches_nothing_that_came_after_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is added while the spool is replayed, even by the names of what has just gone, nor what was being
    added when it came."""
    await roomy(served)
    asked, late = asyncio.Event(), asyncio.Event()
    submit = served.controller.submit

    def slow(event: Event) -> asyncio.Future[Result]:
        if not isinstance(event, DeletePod) or event.key != AttachmentKey("spooled", "eth0"):
            return submit(event)
        asked.set()
        return asyncio.ensure_future(_after(late, submit, event))

    monkeypatch.setattr(served.controller, "submit", slow)
    served.leave("1.del", message("DEL", CNI_CONTAINERID="spooled"))
    under_way = asyncio.create_task(served.ask("ADD", CNI_CONTAINERID="early", CNI_NETNS="/run/netns/y"))
    await asked.wait()
    received = asyncio.Event()
    parse = cni_server.parse_request
    monkeypatch.setattr(cni_server, "parse_request", lambda *asked: (received.set(), parse(*asked))[1])
    collecting = asyncio.create_task(served.ask("GC", GC | {LIST: []}))
    await received.wait()  # and what it does at once it has done by then
    served.controller.snapshot, _ = fold(served.controller.snapshot, DeletePod(ALL["c"]))
    again = AddPod(ALL["c"], PodKey("shop", "c"), "/c2", 4, 77, network="podwire")
    served.controller.snapshot, _ = fold(served.controller.snapshot, again)
    late.set()
    assert await collecting == (0, None)
    assert (await under_way)[0] == 0
    left = {key.sandbox for key, it in served.controller.snapshot.attachments.items() if it.network == "podwire"}
    assert left == {"early", "c"}


async def _after(ready: asyncio.Event, submit: Callable[[Event], asyncio.Future[Result]], event: Event) -> Result:
    await ready.wait()
    return await submit(event)


async def test_gc_goes_on_past_errors_and_tells_all_of_them(served: Served) -> None:
    await roomy(served)
    served.leave("1.del", message("DEL", CNI_CONTAINERID="spooled"))
    failed = {key: Outcome(error=f"{key}: no luck") for key in (ALL["a"], ALL["c"])}
    served.controller.steps = (Step("linux", dict.fromkeys(failed, Change(1, None)), failed, 0),)
    served.controller.failing[CollectPods] = "no luck"
    code, said = await served.ask("GC", GC | {LIST: listed("b")})
    assert (code, said["code"]) == (1, 5)
    assert all(str(key) in said["msg"] for key in failed)
    assert [type(event) for event in served.controller.events] == [DeletePod, CollectPods, Resync]
    assert list(served.spool.iterdir()) == []


# --- what can go wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"\xff\xff", 6, id="no message"),
        pytest.param(b"\x0a\x02\xff\xff", 6, id="environment that is no text"),
        pytest.param(b"", 4, id="empty message"),
        pytest.param(message("gc"), 4, id="a verb that does not exist"),
        pytest.param(message("GC"), 1, id="GC in a version that has none"),
        pytest.param(message("GC", GC | {LIST: {}}), 6, id="a list of valid attachments that is none"),
        pytest.param(message("GC", GC | {LIST: [{"containerID": "c1"}]}), 6, id="half a valid attachment"),
        pytest.param(message("ADD", CONFIG | {"cniVersion": "0.2.0"}), 1, id="old version"),
    ],
)
async def test_a_wrong_request_is_answered_and_changes_nothing(served: Served, body: bytes, code: int) -> None:
    exit_code, said = await served.call(body)
    assert (exit_code, said["code"], said["cniVersion"] in {"0.4.0", "1.0.0"}) == (1, code, True)
    assert served.controller.events == []


async def test_a_bug_is_answered_and_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.controller.bug = KeyError("a bug")
    code, said = await served.ask("ADD")
    assert (code, said["code"]) == (1, 999)
    assert "a bug" in said["msg"]
    assert any(record.exc_info for record in caplog.records)


async def test_the_server_outlives_a_plugin_that_goes_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    def submit(event: Event) -> asyncio.Future[Result]:
        begun.set()
        return asyncio.get_running_loop().create_future()

    with monkeypatch.context() as patch:
        patch.setattr(served.controller, "submit", submit)
        call = asyncio.create_task(served.ask("ADD"))
        await begun.wait()
        call.cancel()
        await asyncio.wait({call})
    assert await served.ask("STATUS") == (0, None)


# --- the socket --------------------------------------------------------------------------------


async def test_only_root_may_speak(served: Served) -> None:
    assert served.socket.stat().st_mode & 0o777 == 0o600
    assert served.spool.stat().st_mode & 0o777 == 0o700
    mask = os.umask(0o022)
    os.umask(mask)
    assert mask != 0o177


async def test_a_dead_agents_socket_is_replaced(stopped: Served) -> None:
    with sockets.socket(sockets.AF_UNIX) as stale:
        stale.bind(str(stopped.socket))
    server = await stopped.start()
    assert await stopped.ask("STATUS") == (0, None)
    await server.stop(None)


async def test_a_file_in_the_sockets_place_is_left_alone(stopped: Served) -> None:
    stopped.socket.write_text("someone's")
    with pytest.raises(FileExistsError, match=r"cni\.sock: is in the way"):
        await stopped.start()
    assert stopped.socket.read_text() == "someone's"


async def test_a_socket_path_that_is_too_long(stopped: Served) -> None:
    stopped.socket = stopped.socket.with_name("x" * 120)
    with pytest.raises(OSError, match="x" * 120):
        await stopped.start()


STEPS = {
    name: Step(name, {}, {KEY: Outcome(error=f"{name}: no space left")}, 0) for name in ("store", "linux", "nftables")
}


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        pytest.param(("store",), None, id="its row can't be removed: healing does that later"),
        pytest.param(("linux",), "linux: no space left", id="its link can't be removed"),
        pytest.param(("store", "nftables"), "nftables: no space left", id="both"),
        pytest.param((), "internal error", id="it never came to that"),
    ],
)
async def test_a_del_fails_only_for_what_a_pod_has_in_the_network(
    served: Served, failing: tuple[str, ...], error: str | None
) -> None:
    served.controller.steps = tuple(STEPS[name] for name in failing)
    served.controller.failing[DeletePod] = next((f"{name}: no space left" for name in failing), "internal error")
    code, said = await served.ask("DEL")
    assert (code, said and said["msg"]) == ((0, None) if error is None else (1, f"{KEY}: {error}"))


# --- the spool ---------------------------------------------------------------------------------


async def test_spooled_dels_are_replayed_oldest_first_before_serving(stopped: Served) -> None:
    stopped.leave("00000000000000000002-1.del", message("DEL", CNI_CONTAINERID="b"))
    stopped.leave("00000000000000000010-1.del", message("DEL", CNI_CONTAINERID="c"))
    stopped.leave("00000000000000000001-9.del", message("DEL", CNI_CONTAINERID="a", CNI_NETNS=""))
    stopped.leave("00000000000000000000-9.tmp", b"being written")
    server = await stopped.start()
    await server.stop(None)
    assert stopped.controller.events == [DeletePod(AttachmentKey(name, "eth0")) for name in "abc"]
    assert [path.name for path in stopped.spool.iterdir()] == ["00000000000000000000-9.tmp"]


@pytest.mark.parametrize("when", ["at the start", "at a GC"])
async def test_what_a_killed_plugin_has_left_half_written_goes(stopped: Served, when: str) -> None:
    """But for what may still be written, and what is none of the plugin's."""
    server = await stopped.start() if when == "at a GC" else None
    for age, name in ((0, "new.tmp"), (3600, "old.tmp"), (3600, "old.bad")):
        stopped.leave(name, b"half")
        os.utime(stopped.spool / name, (time.time() - age,) * 2)
    (stopped.spool / "directory.tmp").mkdir()
    os.utime(stopped.spool / "directory.tmp", (0, 0))
    (stopped.spool / "link.tmp").symlink_to("old.bad")
    if server is None:
        server = await stopped.start()
    else:
        assert await stopped.ask("GC", GC | {LIST: []}) == (0, None)
    await server.stop(None)
    left = {path.name for path in stopped.spool.iterdir()}
    assert left == {"new.tmp", "old.bad", "directory.tmp", "link.tmp"}


async def test_a_del_spooled_while_serving_goes_before_the_next_add(served: Served) -> None:
    assert (await served.ask("ADD"))[0] == 0
    served.leave("1.del", message("DEL"))
    assert (await served.ask("ADD"))[0] == 0
    assert [type(event) for event in served.controller.events] == [AddPod, DeletePod, AddPod]
    assert list(served.spool.iterdir()) == []


async def test_an_add_needs_no_spool(served: Served) -> None:
    served.spool.rmdir()
    assert (await served.ask("ADD"))[0] == 0


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xff", id="no message"),
        pytest.param(message("ADD"), id="no DEL"),
        pytest.param(message("DEL", CNI_IFNAME="a/b"), id="a wrong DEL"),
    ],
)
async def test_what_is_no_del_is_moved_aside(stopped: Served, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    stopped.leave("1.del", content)
    stopped.leave("2.del", message("DEL"))
    (stopped.spool / "3.del").mkdir()
    server = await stopped.start()
    assert (await stopped.ask("ADD"))[0] == 0
    await server.stop(None)
    assert [type(event) for event in stopped.controller.events] == [DeletePod, AddPod]
    assert sorted(path.name for path in stopped.spool.iterdir()) == ["1.del.bad", "3.del.bad"]
    assert (stopped.spool / "1.del.bad").read_bytes() == content
    assert "1.del.bad" in caplog.text


@pytest.mark.parametrize("away", [False, True], ids=["answered", "spooled"])
@pytest.mark.parametrize("kind", shims.KINDS)
async def test_the_largest_call_that_a_plugin_makes_is_taken(stopped: Served, kind: str, away: bool) -> None:
    plugin = shims.place(stopped.spool.parent, kind)
    plugin.configure("del_seconds=60")
    environment = {f"CNI_{number}": "x" * 100_000 for number in range(12)}
    text = json.dumps(CONFIG).encode()
    server = None if away else await stopped.start()
    answer = await plugin.run("DEL", text.ljust(shim.LARGEST), environment=environment)
    assert answer == (0, b"", b"")
    if server is None:
        assert len(spooled(stopped.spool)) == 1
        server = await stopped.start()
    await server.stop(None)
    assert [type(event) for event in stopped.controller.events] == [DeletePod]
    assert list(stopped.spool.iterdir()) == []


def _unix_socket(path: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as one:
        one.bind(str(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "directory with something in it": lambda path: (path / "x").mkdir(parents=True),
    "socket": _unix_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "huge file": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "I/O error": lambda path: path.symlink_to("/proc/self/mem"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("serving", [False, True], ids=["at the start", "while serving"])
@pytest.mark.parametrize("name", [b"1.del", b"\xff\x1b[31m\n.del"], ids=["plain name", "odd name"])
async def test_whatever_lies_in_the_spool_holds_nobody_up(
    stopped: Served, kind: str, serving: bool, name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = await stopped.start() if serving else None
    odd = stopped.spool / os.fsdecode(name)
    stopped.leave("2.del", message("DEL"))
    KINDS[kind](odd)
    server = server or await stopped.start()
    assert (await stopped.ask("ADD"))[0] == 0
    await server.stop(None)
    assert [type(event) for event in stopped.controller.events] == [DeletePod, AddPod]
    left = [] if kind == "link to nowhere" else [os.fsdecode(name) + ".bad"]
    assert [each for each in os.listdir(stopped.spool) if each.endswith(".bad")] == left


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to itself"])
async def test_a_spool_that_is_no_directory_any_more_is_said(served: Served, kind: str) -> None:
    served.spool.rmdir()
    KINDS[kind](served.spool)
    code, said = await served.ask("ADD")
    assert (code, said["code"]) == (1, 11)
    assert said["msg"].startswith(f"{served.spool}: can't be listed: ")
    assert (await served.ask("DEL"))[0] == 0


async def test_a_replayed_del_that_fails_stays_and_stops_nothing(stopped: Served) -> None:
    stopped.leave("1.del", message("DEL"))
    stopped.controller.failing[DeletePod] = "disk I/O error"
    server = await stopped.start()
    assert (await stopped.ask("ADD", CNI_CONTAINERID="c2"))[0] == 0
    assert [path.name for path in stopped.spool.iterdir()] == ["1.del"]
    stopped.controller.failing.clear()
    await stopped.ask("ADD", CNI_CONTAINERID="c3")
    await server.stop(None)
    assert list(stopped.spool.iterdir()) == []


async def test_adds_at_the_same_time_replay_each_del_once(served: Served) -> None:
    served.leave("1.del", message("DEL", CNI_CONTAINERID="old"))
    await asyncio.gather(*(served.ask("ADD", CNI_CONTAINERID=name) for name in "abcdef"))
    assert served.controller.events[0] == DeletePod(AttachmentKey("old", "eth0"))
    assert [type(event) for event in served.controller.events[1:]] == [AddPod] * 6
