"""The admin API over a real unix socket."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from podwire.admin import server as admin
from podwire.controller.difference import Change
from podwire.controller.events import AddPod, KubeStateChange, Resync, ResyncReason
from podwire.controller.snapshot import fold
from podwire.model.network import Slots
from podwire.model.objects import AttachmentKey, Pod, PodKey, ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.pods.names import interface_name
from podwire.replies import SLICE
from tests.unit.served_agent import FRONT, ServedAgent, frontend, record, serving


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[ServedAgent]:
    async with serving(tmp_path) as served:
        yield served


async def ask(agent: ServedAgent, method: str, path: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(agent.socket))) as session,
        session.request(method, f"http://agent{path}") as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(
    "path", ["/status", "/services", "/pods", "/ipam", "/history", "/verify", "/healthz", "/readyz"]
)
async def test_every_reading_path_answers_json_and_submits_nothing(agent: ServedAgent, path: str) -> None:
    status, body = await ask(agent, "GET", path)
    assert (status, type(body)) == (200, dict)
    assert agent.controller.submitted == []


async def test_status(agent: ServedAgent) -> None:
    _, body = await ask(agent, "GET", "/status")
    assert body["node"] == "one"
    assert body["pod_cidrs"][0] == {"range": "10.1.1.0/24", "used": 2, "free": 251}
    assert body["writes"] == {"linux": 31, "nftables": 9, "store": 4}


async def test_all_services_and_one_have_the_same_form(agent: ServedAgent) -> None:
    _, listed = await ask(agent, "GET", "/services")
    assert [item["name"] for item in listed["services"]] == ["copy", "dns", "empty", "web"]
    assert await ask(agent, "GET", "/services/shop/web") == (200, {"services": listed["services"][3:]})


async def test_a_list_longer_than_a_slice_is_whole(agent: ServedAgent) -> None:
    now = agent.controller.snapshot
    it = now.services[ServiceKey("shop", "empty")]
    services = now.services.update({ServiceKey("many", f"s{n:04}"): it for n in range(SLICE * 3)})
    claims = now.claims.update({frontend("10.96.0.12"): tuple(key for key in services if key.namespace == "many")})
    agent.controller.snapshot = type(now)(now.local, services=services, claims=claims.update(now.claims))
    _, body = await ask(agent, "GET", "/services")
    assert len(body["services"]) == SLICE * 3 + 4


def attached(now: Snapshot, *interfaces: str) -> Snapshot:
    """Further interfaces of the pod shop/front."""
    for number, interface in enumerate(interfaces):
        key = AttachmentKey(FRONT.sandbox, interface)
        now, _ = fold(now, AddPod(key, PodKey("shop", "front"), f"/run/netns/{interface}", 4, 100 + number))
    return now


@pytest.mark.parametrize(
    ("query", "name", "interfaces"),
    [
        pytest.param("pod=front", "eth0", ["eth0", "net2", "net1"], id="all, as they came"),
        pytest.param("pod=front&interface=eth0", "eth0", ["eth0"], id="the first by name"),
        pytest.param("pod=front&interface=net1", "net1", ["net1"], id="another by name"),
    ],
)
async def test_the_interface_of_a_pod(agent: ServedAgent, query: str, name: str, interfaces: list[str]) -> None:
    agent.controller.snapshot = attached(agent.controller.snapshot, "net2", "net1")
    status, body = await ask(agent, "GET", f"/interface?namespace=shop&{query}")
    assert (status, body["namespace"], body["pod"]) == (200, "shop", "front")
    assert body["name"] == interface_name(AttachmentKey(FRONT.sandbox, name))
    assert [it["interface"] for it in body["interfaces"]] == interfaces
    assert len({address for it in body["interfaces"] for address in it["addresses"]}) == 2 * len(interfaces)


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        pytest.param("", 400, "pod: missing; expected namespace=NAMESPACE&pod=NAME", id="nothing asked"),
        pytest.param("namespace=shop", 400, "pod: missing; expected namespace=NAMESPACE&pod=NAME", id="no pod"),
        pytest.param(
            "namespace=shop&pod=nobody",
            404,
            "no interface of pod/shop/nobody on node one: none is attached here",
            id="no such pod",
        ),
        pytest.param(
            "namespace=other&pod=front",
            404,
            "no interface of pod/other/front on node one: none is attached here",
            id="of another namespace",
        ),
        pytest.param(
            "namespace=shop&pod=front&interface=net1",
            404,
            "no interface net1 of pod/shop/front on node one: it has eth0",
            id="no such interface",
        ),
        pytest.param(
            "namespace=shop&pod=host",
            404,
            "no interface of pod/shop/host on node one: it has the node's own network",
            id="the node's network",
        ),
    ],
)
async def test_no_interface_of_a_pod(agent: ServedAgent, query: str, status: int, error: str) -> None:
    host = KubeStateChange(((PodKey("shop", "host"), Pod("one", host_network=True)),))
    agent.controller.snapshot, _ = fold(agent.controller.snapshot, host)
    assert await ask(agent, "GET", f"/interface?{query}") == (status, {"error": error})


async def test_pods(agent: ServedAgent) -> None:
    _, body = await ask(agent, "GET", "/pods")
    assert [(item["name"], item["state"]) for item in body["pods"]] == [("back", "pending"), ("front", "wired")]


@pytest.mark.parametrize(
    ("query", "numbers"),
    [("", [11, 12, 13, 14, 15]), ("?since=13", [14, 15]), ("?limit=1", [15]), ("?since=11&limit=1", [12])],
)
async def test_history(agent: ServedAgent, query: str, numbers: list[int]) -> None:
    _, body = await ask(agent, "GET", f"/history{query}")
    assert [each["number"] for each in body["records"]] == numbers


async def test_a_record_that_is_there_is_not_waited_for(agent: ServedAgent) -> None:
    _, body = await ask(agent, "GET", "/history?since=14&wait=60")
    assert [each["number"] for each in body["records"]] == [15]


async def test_history_waits_for_the_next_record(agent: ServedAgent) -> None:
    asked = asyncio.create_task(ask(agent, "GET", "/history?since=15&wait=60"))
    await agent.controller.asked.wait()
    agent.controller.happen(record(16))
    _, body = await asked
    assert [each["number"] for each in body["records"]] == [16]


async def test_history_waits_no_longer_than_asked(agent: ServedAgent) -> None:
    assert await ask(agent, "GET", "/history?since=15&wait=1") == (200, {"oldest": 11, "records": []})


async def test_a_server_that_ends_answers_those_who_wait(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        asked = asyncio.create_task(ask(agent, "GET", "/history?since=15&wait=60"))
        await agent.controller.asked.wait()
    assert await asked == (200, {"oldest": 11, "records": []})


async def test_explain_a_service(agent: ServedAgent) -> None:
    status, body = await ask(agent, "GET", "/explain/service/shop/web")
    assert (status, body["service"]) == (200, "shop/web")
    assert [(it["frontend"], it["state"], len(it["backends"])) for it in body["frontends"]] == [
        ("10.96.0.10:80/TCP", "programmed", 2),
        ("[fd96::a]:80/TCP", "failed", 1),
    ]


@pytest.mark.parametrize(
    ("source", "client", "because"),
    [
        pytest.param("shop/front", "10.1.1.2", "kept: the client is a pod of this node", id="a pod by its name"),
        pytest.param("10.1.1.3", "10.1.1.3", "masqueraded: a pod that reaches itself", id="an address"),
        pytest.param("node", "10.1.1.1", "kept: the client is this node", id="the node itself"),
    ],
)
async def test_explain_a_packet(agent: ServedAgent, source: str, client: str, because: str) -> None:
    status, body = await ask(agent, "GET", f"/explain/packet?from={source}&to=10.96.0.11:53/UDP")
    assert (status, body["verdict"], body["service"], body["state"]) == (200, "balanced", "shop/dns", "pending")
    assert body["client"] == client
    assert body["choices"][0]["because"].startswith(because)


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        pytest.param(
            "GET",
            "/history?since=1&wait=61",
            400,
            "wait: expected a whole number from 1 to 60; found '61'",
            id="a wait too long",
        ),
        pytest.param(
            "GET", "/history?wait=5", 400, "wait: expected since=NUMBER beside it", id="a wait for an unknown record"
        ),
        pytest.param(
            "GET",
            "/explain/service/shop/none",
            404,
            "no service/shop/none on this node",
            id="explain a Service that is not there",
        ),
        pytest.param(
            "GET",
            "/explain/packet?to=10.96.0.10:80",
            400,
            "from: missing; expected an IP address, node, or a pod as NAMESPACE/NAME",
            id="explain a packet from nowhere",
        ),
        pytest.param(
            "GET",
            "/explain/packet?from=node",
            400,
            "to: missing; expected IP:PORT or IP:PORT/PROTOCOL",
            id="explain a packet to nowhere",
        ),
        pytest.param(
            "GET",
            "/explain/packet?from=node&to=web",
            400,
            "to: 'web': expected IP:PORT or IP:PORT/PROTOCOL, such as 10.96.0.10:80 or [fd96::a]:53/UDP, "
            "with a protocol of TCP, UDP, SCTP",
            id="explain a packet to a name",
        ),
        pytest.param(
            "GET",
            "/explain/packet?from=web&to=10.96.0.10:80",
            400,
            "from: 'web': expected an IP address, node, or a pod of this node as NAMESPACE/NAME",
            id="explain a packet from a word",
        ),
        pytest.param(
            "GET",
            "/explain/packet?from=shop/none&to=10.96.0.10:80",
            404,
            "no pod/shop/none on node one",
            id="explain a packet from a pod that is not there",
        ),
        pytest.param(
            "GET",
            "/history?since=x",
            400,
            "since: expected a whole number from 0 to 1000000000000000000; found 'x'",
            id="a since that is no number",
        ),
        pytest.param(
            "GET",
            "/history?since=-1",
            400,
            "since: expected a whole number from 0 to 1000000000000000000; found '-1'",
            id="a since below zero",
        ),
        pytest.param(
            "GET",
            "/history?limit=0",
            400,
            "limit: expected a whole number from 1 to 1000; found '0'",
            id="a limit of nothing",
        ),
        pytest.param(
            "GET",
            "/history?limit=1001",
            400,
            "limit: expected a whole number from 1 to 1000; found '1001'",
            id="a limit above what is remembered",
        ),
        pytest.param(
            "GET", "/services/shop/none", 404, "no service/shop/none on this node", id="a Service that is not there"
        ),
        pytest.param(
            "GET",
            f"/history?since={'9' * 5000}",
            400,
            f"since: expected a whole number from 0 to {10**18}; found '{'9' * 40}…'",
            id="a since of thousands of digits",
        ),
        pytest.param(
            "GET",
            "/history?since=%F0%9D%9F%9A",
            400,
            f"since: expected a whole number from 0 to {10**18}; found '𝟚'",
            id="a digit of another script",
        ),
        pytest.param(
            "GET", "/services/%FF%FE/a", 404, "no service/%FF%FE/a on this node", id="a name that is not UTF-8"
        ),
        pytest.param(
            "GET",
            "/services/a/%0D%0AX:1",
            404,
            "no service/a/\\r\\nX:1 on this node",
            id="a name with a line's end",
        ),
        pytest.param("GET", "/explain/packet?from=%00&to=%FF", 400, None, id="a packet from nowhere"),
        pytest.param("PATCH", "/status", 405, "this API has no PATCH /status", id="an unknown method"),
        pytest.param(
            "POST",
            "/trace?from=node&to=10.96.0.10:80/SCTP",
            400,
            "to: '10.96.0.10:80/SCTP': a trace sends TCP or UDP, not SCTP",
            id="trace a protocol that is not sent",
        ),
        pytest.param(
            "POST",
            "/trace?from=node&to=10.96.0.10:80&timeout=x",
            400,
            "timeout: expected seconds from 0.1 to 30; found 'x'",
            id="trace for no time",
        ),
        pytest.param(
            "POST",
            "/trace?to=10.96.0.10:80",
            400,
            "from: missing; expected an IP address, node, or a pod as NAMESPACE/NAME",
            id="trace from nobody",
        ),
        pytest.param(
            "POST",
            "/trace?from=shop/none&to=10.96.0.10:80",
            404,
            "no pod/shop/none on node one",
            id="trace from a pod that is not there",
        ),
        pytest.param("GET", "/trace", 405, "this API has no GET /trace", id="a trace by reading"),
        pytest.param("GET", "/nothing", 404, "this API has no GET /nothing", id="an unknown path"),
        pytest.param("GET", "/resync", 405, "this API has no GET /resync", id="a resync by reading"),
    ],
)
async def test_wrong_requests_get_one_line(
    agent: ServedAgent, method: str, path: str, status: int, error: str | None
) -> None:
    found, body = await ask(agent, method, path)
    assert (found, list(body)) == (status, ["error"])
    assert body["error"] == error or (error is None and body["error"].isprintable())


@pytest.mark.parametrize("path", ["/status", "/services", "/pods", "/history", "/verify", "/healthz", "/metrics"])
async def test_head_is_answered_without_a_body(agent: ServedAgent, path: str) -> None:
    """Whatever came after the head would be taken for the next answer."""
    reader, writer = await asyncio.open_unix_connection(str(agent.socket))
    for last in (False, True):
        close = "Connection: close\r\n" if last else ""
        writer.write(f"HEAD {path} HTTP/1.1\r\nHost: agent\r\n{close}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
    assert await reader.read() == b""
    writer.close()


async def test_a_bug_is_told_in_the_form_of_all_errors(agent: ServedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agent.facts, "uptime", object())
    status, body = await ask(agent, "GET", "/status")
    assert (status, list(body)) == (500, ["error"])
    assert body["error"].startswith("internal error: ")
    assert (await ask(agent, "GET", "/services"))[0] == 200
    assert agent.controller.submitted == []


async def test_a_trace(agent: ServedAgent) -> None:
    status, told = await ask(agent, "POST", "/trace?from=shop/front&to=10.96.0.10:80&timeout=0.1")
    assert (status, told["outcome"], told["service"]) == (200, "no answer", "shop/web")
    assert agent.controller.submitted == []


async def test_a_trace_ends_when_its_client_goes(agent: ServedAgent) -> None:
    asking = asyncio.create_task(ask(agent, "POST", "/trace?from=node&to=10.96.0.10:80&timeout=30"))
    await agent.tracing.wait()
    asking.cancel()
    await agent.ended.wait()


async def test_verify_of_a_network_as_it_should_be(agent: ServedAgent) -> None:
    agent.controller.drift = {"nftables": {}}
    assert await ask(agent, "GET", "/verify") == (200, {"drift": []})


async def test_verify_names_what_drifted(agent: ServedAgent) -> None:
    agent.controller.drift = {"nftables": {frontend("10.96.0.12"): Change(None, Slots(None, (), True))}}
    lines = [{"driver": "nftables", "key": "frontend 10.96.0.12:80/TCP", "found": None, "wanted": "refused"}]
    assert await ask(agent, "GET", "/verify") == (200, {"drift": lines})


async def test_verify_of_a_network_that_cannot_be_read(agent: ServedAgent) -> None:
    agent.controller.drift = OSError(105, "No buffer space available")
    error = "the network can't be read: [Errno 105] No buffer space available"
    assert await ask(agent, "GET", "/verify") == (500, {"error": error})


@pytest.mark.parametrize("error", [None, "nftables: no room"])
async def test_resync_is_one_event_and_answers_when_it_ended(agent: ServedAgent, error: str | None) -> None:
    agent.controller.error = error
    status, body = await ask(agent, "POST", "/resync")
    assert (status, body) == (200, {"error": error, "changes": {}, "operations": {}, "milliseconds": 250.0})
    assert agent.controller.submitted == [Resync(ResyncReason.ON_DEMAND)]


async def test_readiness_says_why_not(agent: ServedAgent) -> None:
    assert await ask(agent, "GET", "/readyz") == (200, {"ready": True, "not_ready": None})
    agent.facts["not_ready"] = "no pod CIDR yet"
    assert await ask(agent, "GET", "/readyz") == (503, {"ready": False, "not_ready": "no pod CIDR yet"})
    assert await ask(agent, "GET", "/healthz") == (200, {"healthy": True})


async def test_only_the_owner_may_open_the_socket_and_it_goes_with_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        mode = agent.socket.stat().st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    assert not agent.socket.exists()


async def test_the_socket_of_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    left = admin.bind(tmp_path / "admin.sock")
    left.close()
    async with serving(tmp_path) as agent:
        assert (await ask(agent, "GET", "/healthz"))[0] == 200


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("not a socket")
    with pytest.raises(OSError, match=rf"{path}: Address already in use"):
        async with serving(tmp_path):
            pass
    assert path.read_text() == "not a socket"
