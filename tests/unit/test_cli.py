"""The command as people and programs run it: a real process against a served admin socket."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace
from rich.console import Console

from podwire import views
from podwire.admin import server as admin
from podwire.cli import tables
from podwire.controller.difference import Change
from podwire.controller.events import KubeStateChange, Resync, ResyncReason
from podwire.controller.snapshot import fold
from podwire.drift import DriftList, DriftView
from podwire.explain.services import LIMITS
from podwire.ipam.views import MANY, IpamView, OwnBlock, PoolUse, PoolView
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.network import Slots
from podwire.model.objects import AttachmentKey, BackendSlice, Member, PodKey, PodPool, PodPoolKey, ServiceKey, SliceKey
from podwire.pods.names import interface_name
from tests.unit.served_agent import BACK, EMPTY, FRONT, RECORDS, ServedAgent, frontend, node, record, serving

PODWIRE = Path(sys.executable).parent / "podwire"


class Ran(NamedTuple):
    code: int | None
    out: str
    err: str


async def podwire(*arguments: str, **environment: str) -> Ran:
    # Whoever runs the tests may have an agent of his own named in the environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PODWIRE_")} | environment
    process = await asyncio.create_subprocess_exec(
        PODWIRE,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    out, err = await process.communicate()
    return Ran(process.returncode, out.decode(), err.decode())


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[ServedAgent]:
    async with serving(tmp_path) as served:
        yield served


async def ask(agent: ServedAgent, *arguments: str) -> Ran:
    return await podwire(*arguments, "--state-dir", str(agent.socket.parent))


def rows(text: str) -> list[list[str]]:
    """The cells of a table, row by row."""
    return [line.split() for line in text.splitlines()]


# --- no agent ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "services", "pods", "history", "verify", "resync"])
async def test_without_an_agent_every_question_ends_in_one_clear_line(command: str, tmp_path: Path) -> None:
    ran = await podwire(command, "--state-dir", str(tmp_path))
    line = f"no agent answers at {tmp_path}/admin.sock: it is not running, or keeps its state elsewhere"
    assert ran == (3, "", f"podwire: {line} (--state-dir, --config)\n")


async def test_where_no_socket_can_be_no_agent_is(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 108)
    line = f"{deep}/admin.sock: no agent can be there: a unix socket's path has at most 107 bytes"
    assert await podwire("status", "--state-dir", str(deep)) == (3, "", f"podwire: {line}\n")


async def test_the_socket_that_a_killed_agent_left_counts_as_no_agent(tmp_path: Path) -> None:
    admin.bind(tmp_path / "admin.sock").close()
    ran = await podwire("status", "--state-dir", str(tmp_path))
    assert (ran.code, ran.out) == (3, "")
    assert "it is not running" in ran.err


@pytest.mark.parametrize(
    ("answer", "code", "error"),
    [
        pytest.param(b"", 3, "did not answer in full: Remote end closed connection without response", id="hangs up"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
            3,
            "did not answer in full: IncompleteRead(1 bytes read, 9 more expected)",
            id="ends half-way",
        ),
        pytest.param(
            b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\noh",
            1,
            "the agent answered HTTP 500",
            id="a bug",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            1,
            "the agent's answer is not understood, it may be of another version",
            id="an answer of another form",
        ),
    ],
)
async def test_an_agent_that_fails_ends_in_one_clear_line(answer: bytes, code: int, error: str, tmp_path: Path) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(respond, tmp_path / "admin.sock"):
        ran = await podwire("status", "--state-dir", str(tmp_path))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1)
    assert error in ran.err


# --- which agent -------------------------------------------------------------------------------


async def test_the_environment_names_the_agent(agent: ServedAgent) -> None:
    ran = await podwire("status", PODWIRE_STATE_DIR=str(agent.socket.parent))
    assert ran.code == 0, ran.err


async def test_a_configuration_names_the_agent_whatever_the_environment_says(agent: ServedAgent) -> None:
    config = agent.socket.parent / "agent.toml"
    config.write_text(f'node_name = "one"\nstate_dir = "{agent.socket.parent}"\n')
    ran = await podwire("status", "--config", str(config), PODWIRE_STATE_DIR="/nowhere")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("command", ["status", "agent"])
async def test_a_wrong_configuration_is_told_in_one_line(command: str, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text('node_nam = "one"\n')
    ran = await podwire(command, "--config", str(config))
    assert ran == (1, "", f"podwire: {config}: node_nam: unknown key; did you mean node_name?\n")


# --- answers for programs ----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "services", "pods", "ipam", "history", "verify"])
async def test_json_is_the_answer_as_it_came(command: str, agent: ServedAgent) -> None:
    ran = await ask(agent, command, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    reader, writer = await asyncio.open_unix_connection(agent.socket)
    limit = "?limit=20" if command == "history" else ""
    writer.write(f"GET /{command}{limit} HTTP/1.0\r\nHost: agent\r\n\r\n".encode())
    whole = await reader.read()
    writer.close()
    assert json.loads(ran.out) == json.loads(whole.partition(b"\r\n\r\n")[2])


async def test_drift_is_exit_code_1_for_programs_too(agent: ServedAgent) -> None:
    agent.controller.drift = {"nftables": {frontend("10.96.0.12"): Change(None, Slots(None, (), True))}}
    ran = await ask(agent, "verify", "-o", "json")
    assert (ran.code, len(json.loads(ran.out)["drift"])) == (1, 1)


async def test_a_reader_that_has_enough_is_no_error(agent: ServedAgent) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = await asyncio.create_subprocess_exec(
        PODWIRE,
        *("services", "-o", "json", "--state-dir", str(agent.socket.parent)),
        stdout=write_end,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write_end)
    _, err = await process.communicate()
    assert (process.returncode, err) == (1, b"")


# --- answers for people ------------------------------------------------------------------------


async def test_status_in_words(agent: ServedAgent) -> None:
    ran = await ask(agent, "status")
    assert (ran.code, ran.err) == (0, "")
    assert [" ".join(row) for row in rows(ran.out)] == [
        "node one, podwire 0.1.0, up 1d 2h, ready",
        "pod addresses 10.1.1.0/24: 2 used, 251 free",
        "pod addresses fd01::/120: 2 used, 252 free",
        "Service ranges 10.96.0.0/16",
        "MTU 1450",
        "known nodes 1, namespaces 0, pods 0, services 4, slices 3, frontends 4, attachments 2",
        "writes linux 31, nftables 9, store 4",
        "failed nftables 1: the last change failed; a resync reads them again",
    ]


async def test_status_says_why_a_node_is_not_ready_and_which_source_fails(agent: ServedAgent) -> None:
    agent.facts |= {"not_ready": "no pod CIDR yet", "source_errors": ("/m/web.yaml: line 3: no such field",)}
    ran = await ask(agent, "status")
    assert "not ready: no pod CIDR yet" in ran.out
    assert "/m/web.yaml: line 3: no such field" in ran.out


async def test_services_as_a_table(agent: ServedAgent) -> None:
    ran = await ask(agent, "services")
    assert rows(ran.out) == [
        ["NAMESPACE", "NAME", "FRONTEND", "STATE", "BACKENDS"],
        ["shop", "copy", "10.96.0.10:80/TCP", "conflict", "shop/web", "is", "older", "and", "has", "it"],
        ["shop", "dns", "10.96.0.11:53/UDP", "pending", "10.1.1.3:8080"],
        ["shop", "empty", "10.96.0.12:80/TCP", "refused", "none"],
        ["shop", "web", "10.96.0.10:80/TCP", "programmed", "10.1.1.2:8080,", "10.1.1.3:8080"],
        ["shop", "web", "[fd96::a]:80/TCP", "failed", "[fd01::2]:8080"],
        ["shop", "web", "10.96.0.10:80/TCP", "conflict", "also", "claimed", "by", "shop/copy"],
    ]


async def test_lines_for_programs_are_whole_and_end_where_they_end(agent: ServedAgent) -> None:
    agent.facts["source_errors"] = ("long " * 100,)
    for command in ("status", "services", "pods"):
        ran = await ask(agent, command)
        assert [line for line in ran.out.splitlines() if line != line.rstrip()] == []
    ran = await ask(agent, "status")
    assert ran.out.splitlines()[-1].count("long") == 100


async def test_one_service(agent: ServedAgent) -> None:
    ran = await ask(agent, "services", "shop/dns")
    assert rows(ran.out)[1:] == [["shop", "dns", "10.96.0.11:53/UDP", "pending", "10.1.1.3:8080"]]


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("shop/none", 1, "no service/shop/none on this node"),
        ("shop/\x1b[31m\n", 1, "no service/shop/\\x1b[31m\\n on this node"),
        ("shop/\udcff", 1, "no service/shop/%FF on this node"),
        ("web", 2, "'web': expected NAMESPACE/NAME"),
        ("a/b/c", 2, "'a/b/c': expected NAMESPACE/NAME"),
        ("/web", 2, "'/web': expected NAMESPACE/NAME"),
    ],
    ids=ascii,
)
async def test_a_service_that_is_not_there(name: str, code: int, error: str, agent: ServedAgent) -> None:
    assert await ask(agent, "services", name) == (code, "", f"podwire: {error}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["nothing"], id="an unknown command"),
        pytest.param(["status", "--nothing"], id="an unknown option"),
        pytest.param(["status", "-o", "xml"], id="an unknown form"),
        pytest.param(["history", "--since", "x"], id="no number"),
        pytest.param(["explain"], id="an argument is missing"),
        pytest.param(["status", "more"], id="an argument too many"),
        pytest.param(["agent"], id="an option is missing"),
        pytest.param(["lab", "nothing"], id="an unknown command of the lab"),
    ],
)
async def test_a_wrong_command_line_is_exit_code_2(arguments: list[str]) -> None:
    ran = await podwire(*arguments)
    assert (ran.code, ran.out) == (2, "") or (ran.code, ran.err) == (2, "")
    assert "Traceback" not in ran.out + ran.err


@pytest.mark.parametrize("command", ["pods", "services", "status", "ipam", "history", "verify"])
async def test_names_from_outside_are_shown_so_that_no_terminal_obeys_them(command: str, agent: ServedAgent) -> None:
    """Whoever may make objects must not write to an administrator's terminal."""
    evil = "\x1b]0;owned\x07\n\x9b2J\u202e"
    now = agent.controller.snapshot
    key = AttachmentKey("sandbox\x1b[31m", "eth0")
    held = replace(now.attachments[FRONT], pod=PodKey("shop", evil))
    services = now.services.set(ServiceKey("shop", evil), now.services[EMPTY])
    pools = now.pools.set(PodPoolKey(evil), PodPool((parse_prefix("10.5.0.0/16"),)))
    attachments = now.attachments.set(key, held)
    agent.controller.snapshot = replace(now, attachments=attachments, services=services, pools=pools)
    agent.controller.history = (replace(record(1), event=f"AddPod {evil}", error=evil),)
    agent.controller.drift = {"linux": {evil: Change(None, evil)}}
    agent.facts["source_errors"] = (evil,)
    ran = await ask(agent, command)
    assert ran.out
    assert all(line.isprintable() for line in ran.out.split("\n"))
    assert "\\x1b" in ran.out


async def test_explain_a_service(agent: ServedAgent) -> None:
    ran = await ask(agent, "explain", "service/shop/web")
    assert (ran.code, ran.err) == (0, "")
    front, back = (interface_name(key) for key in (FRONT, BACK))
    assert ran.out.splitlines() == [
        "Service shop/web",
        "  10.96.0.10:80/TCP, cluster IP, port p: programmed, 2 backends",
        f"    10.1.1.2:8080  pod shop/front on this node, by {front}",
        f"    10.1.1.3:8080  pod shop/back on this node, by {back}, pending",
        "  [fd96::a]:80/TCP, cluster IP, port p: failed, 1 backend",
        f"    [fd01::2]:8080  pod shop/front on this node, by {front}",
        f"note: {LIMITS[views.FrontendState.FAILED]}",
    ]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        pytest.param(
            "copy",
            [
                "  10.96.0.10:80/TCP, cluster IP, port p: conflict, shop/web has it",
                "note: it has no EndpointSlice: all of its frontends are refused",
            ],
            id="a frontend that another Service has",
        ),
        pytest.param(
            "empty",
            [
                "  10.96.0.12:80/TCP, cluster IP, port p: refused, 0 backends",
                "note: it has no EndpointSlice: all of its frontends are refused",
            ],
            id="no backend",
        ),
    ],
)
async def test_explain_what_is_not_as_wished(name: str, lines: list[str], agent: ServedAgent) -> None:
    assert (await ask(agent, "explain", f"service/shop/{name}")).out.splitlines()[1:] == lines


async def test_explain_a_member_that_is_left_out(agent: ServedAgent) -> None:
    part = BackendSlice(EMPTY, (), (Member(parse_address("10.1.1.9"), pod="shop/new"),))
    now, _ = fold(agent.controller.snapshot, KubeStateChange(((SliceKey("shop", "empty-1"), part),)))
    agent.controller.snapshot = now
    ran = await ask(agent, "explain", "service/shop/empty")
    reason = "left out: its slice has no port of that name and protocol (pod shop/new, slice shop/empty-1)"
    assert ran.out.splitlines()[2] == f"    10.1.1.9  {reason}"


async def test_explain_a_packet(agent: ServedAgent) -> None:
    ran = await ask(agent, "explain", "shop/front", "10.96.0.10:80")
    assert (ran.code, ran.err) == (0, "")
    front, back = (interface_name(key) for key in (FRONT, BACK))
    itself = "masqueraded: a pod that reaches itself has to be answered by way of the node"
    other = "kept: the client is a pod of this node, the answer comes by here"
    assert [re.sub("  +", "  ", line) for line in ran.out.splitlines()] == [
        f"from 10.1.1.2, pod shop/front on this node, by {front}",
        "to 10.96.0.10:80/TCP, Service shop/web, programmed",
        "balanced: one of 2 backends, each about as likely",
        "  BACKEND  WHERE  SEES AS CLIENT  BECAUSE",
        f"  10.1.1.2:8080  pod shop/front on this node, by {front}  10.1.1.1  {itself}",
        f"  10.1.1.3:8080  pod shop/back on this node, by {back}, pending  10.1.1.2  {other}",
    ]


async def test_explain_a_packet_that_is_passed_on(agent: ServedAgent) -> None:
    ran = await ask(agent, "explain", "node", "198.51.100.1:443")
    assert ran.out.splitlines() == [
        "from 192.0.2.1, this node itself",
        "to 198.51.100.1:443/TCP",
        "passed on as it is: outside of the cluster, by the node's own routes",
    ]


async def test_explain_limits_what_it_says(agent: ServedAgent) -> None:
    ran = await ask(agent, "explain", "node", "10.96.0.11:53/UDP")
    assert ran.out.splitlines()[-1] == f"note: {LIMITS[views.FrontendState.PENDING]}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["shop/web"],
            "'shop/web' alone explains nothing: expected `podwire explain service/NAMESPACE/NAME`, or ",
        ),
        (["service/web"], "'web': expected NAMESPACE/NAME"),
        (["service/shop/none"], "no service/shop/none on this node"),
        (["service/default/web"], "no service/default/web on this node; there is shop/web"),
        (["shop/none", "10.96.0.10:80"], "no pod/shop/none on node one"),
        (["a&to=b", "10.96.0.10:80"], "from: 'a&to=b': expected an IP address, node, or a pod of this node as "),
        (["node", "10.96.0.10"], "to: '10.96.0.10': expected IP:PORT or IP:PORT/PROTOCOL, such as 10.96.0.10:80 or "),
    ],
)
async def test_explain_says_what_it_expected(arguments: list[str], error: str, agent: ServedAgent) -> None:
    ran = await ask(agent, "explain", *arguments)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (
        2 if "expected service" in error or "NAME" in error else 1,
        "",
        1,
    )
    assert ran.err.startswith(f"podwire: {error}")


async def test_the_interface_of_a_pod(agent: ServedAgent) -> None:
    for arguments in ((), ("--interface", "eth0")):
        ran = await ask(agent, "interface", "shop/front", *arguments)
        assert (ran.code, ran.err) == (0, "")
        assert [line.split() for line in ran.out.splitlines()] == [
            ["INTERFACE", "LINK", "ADDRESSES", "STATE", "SANDBOX"],
            ["eth0", interface_name(FRONT), "10.1.1.2,", "fd01::2", "wired", "sandbox-fron"],
        ]
    ran = await ask(agent, "interface", "shop/front", "-o", "json")
    assert json.loads(ran.out)["name"] == interface_name(FRONT)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("shop/nobody",), 1, "no interface of pod/shop/nobody on node one"),
        (("shop/front", "--interface", "net1"), 1, "it has eth0"),
        (("front",), 2, "'front': expected NAMESPACE/NAME"),
        (("a/b/c",), 2, "'a/b/c': expected NAMESPACE/NAME"),
    ],
    ids=["no such pod", "no such interface", "no namespace", "too much"],
)
async def test_no_interface_of_a_pod(agent: ServedAgent, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = await ask(agent, "interface", *arguments)
    assert (ran.code, ran.out, says in ran.err) == (code, "", True), ran.err


async def test_pods_as_a_table(agent: ServedAgent) -> None:
    ran = await ask(agent, "pods")
    head, back, front = rows(ran.out)
    assert head == ["NAMESPACE", "NAME", "INTERFACE", "ADDRESSES", "STATE", "LINK", "SANDBOX", "HOST", "PORTS"]
    assert front[:6] == ["shop", "front", "eth0", "10.1.1.2,", "fd01::2", "wired"]
    assert back[5] == "pending"


async def test_history_tells_what_changed(agent: ServedAgent) -> None:
    ran = await ask(agent, "history", "-n", "2")
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines] == ["#14", "services:", "error:", "#15", "services:"]
    assert "KubeStateChange service/shop/s14" in lines[0]
    assert lines[1].strip() == "services: frontend 10.96.1.14:80/TCP: +10.1.1.2:8080"
    assert lines[2].strip() == "error: nftables: no room"


async def test_history_from_a_number_on(agent: ServedAgent) -> None:
    ran = await ask(agent, "history", "--since", "12", "-n", "1")
    assert ran.out.startswith("#13 ")


async def start_following(agent: ServedAgent, *arguments: str) -> asyncio.subprocess.Process:
    command = ("history", "--follow", *arguments, "--state-dir", str(agent.socket.parent))
    return await asyncio.create_subprocess_exec(
        PODWIRE, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def until_it_waits(process: asyncio.subprocess.Process, agent: ServedAgent) -> None:
    waits, ends = (asyncio.create_task(each) for each in (agent.controller.asked.wait(), process.wait()))
    await asyncio.wait([waits, ends], return_when=asyncio.FIRST_COMPLETED)
    ends.cancel()
    if not waits.done():
        waits.cancel()
        assert process.stderr is not None
        pytest.fail((await process.stderr.read()).decode())


@pytest.mark.parametrize("output", ["table", "json"])
async def test_history_follows_until_it_is_interrupted(output: str, agent: ServedAgent) -> None:
    process = await start_following(agent, "--since", "14", "-o", output)
    assert process.stdout is not None
    for number in (15, 16, 17):
        line = (await process.stdout.readline()).decode()
        if output == "json":
            assert [each["number"] for each in json.loads(line)["records"]] == [number]
        else:
            assert line.startswith(f"#{number} ")
            await process.stdout.readline()  # what changed
        await until_it_waits(process, agent)
        if number < 17:
            agent.controller.happen(record(number + 1))
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")


async def test_a_follower_that_was_too_slow_is_told_what_it_missed(agent: ServedAgent) -> None:
    process = await start_following(agent, "--since", "7")
    await until_it_waits(process, agent)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert err == b"podwire: entries 8 to 10 are no longer remembered\n"


async def test_a_follower_ends_with_its_agent(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        process = await start_following(agent)
        await until_it_waits(process, agent)
    out, err = await process.communicate()
    assert (process.returncode, out.count(b"#"), b"no agent answers" in err) == (3, 5, True)


async def test_a_limit_out_of_range_is_refused(agent: ServedAgent) -> None:
    ran = await ask(agent, "history", "-n", "0")
    assert ran == (1, "", "podwire: limit: expected a whole number from 1 to 1000; found '0'\n")


async def test_verify_of_a_right_network(agent: ServedAgent) -> None:
    assert await ask(agent, "verify") == (0, "the network is as it should be\n", "")


async def test_verify_tells_drift_and_exits_with_1(agent: ServedAgent) -> None:
    agent.controller.drift = {"nftables": {frontend("10.96.0.12"): Change(None, Slots(None, (), True))}}
    ran = await ask(agent, "verify")
    assert (ran.code, rows(ran.out)) == (
        1,
        [
            ["DRIVER", "KEY", "FOUND", "WANTED"],
            ["nftables", "frontend", "10.96.0.12:80/TCP", "nothing", "refused"],
        ],
    )


async def test_resync_is_asked_for_and_told(agent: ServedAgent) -> None:
    ran = await ask(agent, "resync")
    assert ran == (0, "resynced in 250.0 ms: nothing to write\n", "")
    assert agent.controller.submitted == [Resync(ResyncReason.ON_DEMAND)]


async def test_a_failed_resync_is_exit_code_1(agent: ServedAgent) -> None:
    agent.controller.error = "nftables: no room"
    ran = await ask(agent, "resync")
    assert (ran.code, ran.err) == (1, "podwire: the resync failed: nftables: no room\n")


# --- tables alone ------------------------------------------------------------------------------


def printed(what: object, width: int = 200) -> str:
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


@pytest.mark.parametrize(
    ("full", "shown"),
    [
        pytest.param(
            False, "10.1.1.2:80, 10.1.1.3:80, 10.1.1.4:80 and 2 more", id="few, where many Services are listed"
        ),
        pytest.param(True, "10.1.1.2:80, 10.1.1.3:80, 10.1.1.4:80, 10.1.1.5:80, 10.1.1.6:80", id="all, of one Service"),
    ],
)
def test_backends_shown(full: bool, shown: str) -> None:
    members = tuple(views.BackendView(f"10.1.1.{number}", 80) for number in range(2, 7))
    seen = views.FrontendView("10.96.0.1", "TCP", 80, views.FrontendState.PROGRAMMED, members)
    text = printed(tables.services(views.ServiceList((views.ServiceView("shop", "web", (seen,), ()),)), full=full))
    assert text.splitlines()[1].split("programmed")[1].strip() == shown


@pytest.mark.parametrize("state", [*views.FrontendState, *views.PodState], ids=lambda it: f"{it}")
def test_every_state_that_there_is_can_be_shown(state: views.FrontendState | views.PodState) -> None:
    assert printed(tables.state(state.value)).strip() == state.value


def test_times_are_those_of_the_zone() -> None:
    text = printed(tables.history(views.HistoryView(11, RECORDS[:1]), UTC))
    assert text.startswith("#11  2026-09-21 14:13:31  KubeStateChange service/shop/s11  (0.12 ms, nftables 2)")


def test_brackets_in_names_are_text_not_markup() -> None:
    seen = DriftList((DriftView("linux", "[red]x[/red]", None, "[b]"),))
    assert "[red]x[/red]" in printed(tables.drift(seen))


def test_a_range_with_more_addresses_than_anyone_needs() -> None:
    seen = views.status(node(), views.Facts("0.1.0", None, 1.0, {}))
    large = msgspec.structs.replace(seen, pod_cidrs=(views.BlockView("fd00::/64", 3, MANY),))
    assert "fd00::/64: 3 used, many free" in printed(tables.status(large))


def test_a_node_s_addresses_as_tables() -> None:
    seen = IpamView(
        "one",
        (
            OwnBlock("10.9.0.0/24", "", 12, 240),
            OwnBlock("10.1.0.64/26", "web", 1, 60),
            OwnBlock("10.1.0.3/32", "web", 1, 0, single=True),
            OwnBlock("10.7.0.0/26", "old", 2, 0, idle="there is no PodPool old"),
        ),
        (
            PoolView("web", ("10.1.0.0/16", "fd01::/56"), (), True, None, 3, 2, {"IPv4": 1021, "IPv6": MANY}),
            PoolView("far", ("10.2.0.0/16",), ("10.2.0.0-10.2.0.9",), False, "it is elsewhere", 0, 0, {"IPv4": 1024}),
        ),
        take=("10.1.0.128/26 of pool web",),
        give=("10.1.1.0/26",),
        short=("addresses run short",),
    )
    assert [line.split() for line in printed(tables.ipam(seen)).splitlines()] == [
        line.split()
        for line in (
            "BLOCK POOL USED FREE STATE",
            "10.9.0.0/24 none (pod CIDR) 12 240 given",
            "10.1.0.64/26 web 1 60 given",
            "10.1.0.3/32 web 1 0 for the pod that asks for it",
            "10.7.0.0/26 old 2 0 not given: there is no PodPool old",
            "",
            "POOL CIDRS RESERVED FOR BLOCKS NODES LEFT STATE",
            "web 10.1.0.0/16, fd01::/56 none all pods 3 2 1021 IPv4, many IPv6 used",
            "far 10.2.0.0/16 10.2.0.0-10.2.0.9 who asks 0 0 1024 IPv4 it is elsewhere",
            "due: to take 10.1.0.128/26 of pool web",
            "due: to give back 10.1.1.0/26",
            "addresses run short",
        )
    ]
    assert printed(tables.ipam(IpamView("one", (), ()))) == "node one has no addresses for pods\n"


def test_status_tells_what_pods_get_of_pools() -> None:
    seen = views.status(node(), views.Facts("0.1.0", None, 1.0, {}))
    of = (PoolUse("", "IPv4", 1, 2, 251), PoolUse("web", "IPv4", 2, 3, 119), PoolUse("web", "IPv6", 1, 3, 58))
    lines = printed(tables.status(msgspec.structs.replace(seen, pools=of)))
    assert "pool web, 2 IPv4 blocks: 3 used, 119 free" in lines
    assert "pool web, 1 IPv6 block: 3 used, 58 free" in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m 0s"), (3661, "1h 1m"), (86400, "1d 0h"), (90000, "1d 1h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert tables.duration(seconds) == text


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (tables.services(views.ServiceList(()), full=False), "no Services\n"),
        (tables.pods(views.PodList(())), "no pods\n"),
        (tables.history(views.HistoryView(0, ())), "nothing happened\n"),
    ],
)
def test_nothing_is_told_as_such(seen: object, text: str) -> None:
    assert printed(seen) == text


# --- start -------------------------------------------------------------------------------------


async def test_help_lists_the_commands_without_importing_what_they_need() -> None:
    code = (
        "import sys; from podwire.cli.main import app\n"
        "try: app(['--help'])\n"
        "finally: print(sorted({m.partition('.')[0] for m in sys.modules} & {'aiohttp', 'grpc', 'msgspec', 'asyncio'}))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    text = out.decode()
    listed: Sequence[str] = ("agent", "explain", "history", "lab", "pods", "resync", "services", "status", "verify")
    assert [name for name in listed if f"│ {name} " not in text] == []
    assert text.splitlines()[-1] == "[]"


@pytest.mark.parametrize("output", ["table", "json"])
async def test_trace(agent: ServedAgent, tmp_path: Path, output: str) -> None:
    """Exit code 1: nothing was sent, though explain says that it is balanced."""
    where = ("--state-dir", str(tmp_path), "--timeout", "0.1", "-o", output, *(["--rules"] if output == "json" else []))
    ran = await podwire("trace", "shop/front", "10.96.0.10:80", *where)
    assert (ran.code, ran.err) == (1, "")
    assert agent.all_rules is (output == "json")
    if output == "json":
        assert json.loads(ran.out)["agrees"] is False
    else:
        assert ran.out.splitlines()[0].startswith("from pod shop/front on this node, by pw")
        assert "result: no answer within 0.1 s" in ran.out


async def test_trace_refuses_what_it_cannot_send(agent: ServedAgent, tmp_path: Path) -> None:
    ran = await podwire("trace", "node", "10.96.0.10:80/SCTP", "--state-dir", str(tmp_path))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "podwire: to: '10.96.0.10:80/SCTP': a trace sends TCP or UDP, not SCTP\n"
