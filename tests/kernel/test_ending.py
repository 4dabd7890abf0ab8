"""How an agent ends: promptly when told to, whatever it is at; by itself where it can't go on, and then it says why."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.process import PATIENCE, AgentProcess, agent_process
from tests.kernel.rig import Space

ROOT = Path(__file__).parents[2]
AGENT = """
import asyncio, os, sys, time
from podwire import agent, supervision
from podwire.controller import loop, transaction
from podwire.sources import cni_server, manifests
def said(*_):
    os.write(1, b"x")
async def stays(*_):
    said()
    await asyncio.Event().wait()
def bug(*_):
    raise KeyError("bug")
{what}
from podwire.cli.main import main
sys.argv = ["podwire", "agent", "--config", sys.argv[1]]
main()
"""


def broken_agent(place: AgentProcess, what: str) -> "subprocess.Popen[bytes]":
    """An agent in which something is other than it should be."""
    command = [sys.executable, "-c", AGENT.format(what=what), str(place.config)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def outcome(process: "subprocess.Popen[bytes]") -> tuple[int, str]:
    """Exit code, and the last line that was said."""
    try:
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, said.decode().splitlines()[-1] if said else ""


@pytest.mark.parametrize(
    ("what", "why"),
    [
        pytest.param("loop.Controller._answer = bug", "the event loop has ended: internal error", id="the event loop"),
        pytest.param(
            "async def ends(*_): pass\\nagent._served = ends", "the CNI server has ended", id="the CNI server"
        ),
    ],
)
def test_without_an_essential_task_the_agent_ends_and_says_why(
    node: Space, tmp_path: Path, what: str, why: str
) -> None:
    code, said = outcome(broken_agent(AgentProcess(tmp_path), what.replace("\\n", "\n")))
    assert (code, said[: len("podwire: " + why)]) == (1, "podwire: " + why)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("manifests.look = lambda *_: (said(), time.sleep(3600))", id="reading manifests"),
        pytest.param("transaction.Transaction.run = stays", id="in the first resync"),
    ],
)
def test_told_to_end_in_the_middle_of_a_start_it_ends(node: Space, tmp_path: Path, what: str) -> None:
    process = broken_agent(AgentProcess(tmp_path), what)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGTERM)
    assert outcome(process)[0] == 0


def test_told_to_end_while_the_api_server_says_nothing_it_ends(node: Space, tmp_path: Path) -> None:
    place = AgentProcess(tmp_path)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\n"
            f'clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{silent.getsockname()[1]}"}}}}]\n'
        )
        place.config.write_text(
            f'node_name = "one"\nstate_dir = "{place.state}"\nmtu = 1500\n'
            f'kubernetes = {{kubeconfig = "{kubeconfig}"}}\n'
        )
        process = broken_agent(place, "agent.LISTING_SECONDS = 3600")
        silent.settimeout(PATIENCE)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            assert outcome(process)[0] == 0


@pytest.mark.parametrize("name", ["cni.sock", "admin.sock", "lock"])
def test_an_agent_that_nobody_can_reach_any_more_ends_and_the_next_one_is_whole(
    node: Space, tmp_path: Path, name: str
) -> None:
    with agent_process(tmp_path) as agent:
        (agent.state / name).unlink()
        assert agent.ended() == 1
        assert agent.log.read_text().splitlines()[-1] == (
            f"podwire: the watch over the agent's files has ended: {agent.state / name} was removed or replaced"
        )
        agent.start()
        assert agent.say("verify").returncode == 0


def _unspeakable(_: Path) -> str:
    return "/" + "x" * 200


def _absent(directory: Path) -> str:
    return str(directory / "absent")


def _a_file(directory: Path) -> str:
    (directory / "file").touch()
    return str(directory / "file")


@pytest.mark.parametrize("where", [_unspeakable, _absent, _a_file], ids=lambda where: where.__name__[1:])
def test_a_service_manager_that_does_not_listen_costs_a_warning(
    node: Space, tmp_path: Path, where: Callable[[Path], str]
) -> None:
    place = AgentProcess(tmp_path)
    what = f"os.environ['NOTIFY_SOCKET'] = {where(tmp_path)!r}\nnotify = agent.notify\n"
    process = broken_agent(place, what + "agent.notify = lambda state: (notify(state), said())")
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGTERM)
    code, said = outcome(process)
    assert code == 0
    assert "NOTIFY_SOCKET" in said
    assert "STOPPING=1 is not told" in said
