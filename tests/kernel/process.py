"""An agent as its own process, as a node runs it: `podwire agent --config FILE`; it says itself when it is ready."""

import os
import select
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
"""Seconds for an agent to get ready: a limit against hanging, never a measure."""

MANIFEST = """\
apiVersion: v1
kind: Node
metadata: {name: one}
spec:
  podCIDRs: ["10.1.1.0/24", "fd01::/64"]
"""


def until(holds: Callable[[], object], seconds: float = 30.0, what: str = "it is so") -> None:
    """Asks again and again: what goes on in another process is told by nobody."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"still not: {what}"
        time.sleep(0.02)


class AgentProcess:
    """In the namespace of the thread that starts it. `directory` gets its configuration, state and log, and manifests
    of its own where it has none in common with others."""

    def __init__(self, directory: Path, node: str = "one", manifests: Path | None = None) -> None:
        self.directory, self.state = directory, directory / "state"
        self.socket, self.spool, self.log = self.state / "cni.sock", self.state / "spool", directory / "agent.log"
        self.ready = self.state / "ready"
        self.config = directory / "agent.toml"
        if manifests is None:
            manifests = directory / "manifests"
            manifests.mkdir()
            (manifests / "node.yaml").write_text(MANIFEST)
        self.config.write_text(
            f'node_name = "{node}"\nstate_dir = "{self.state}"\nmanifests = "{manifests}"\n'
            'service_cidrs = ["10.96.0.0/16", "fd00:96::/112"]\nmtu = 1500\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it is ready."""
        command = [str(Path(sysconfig.get_path("scripts"), "podwire")), "agent", "--config", str(self.config)]
        self._process = started(command, self.log, self.directory / "notify")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None

    def ended(self) -> int:
        """The exit code, once it has ended by itself."""
        assert self._process is not None
        process, self._process = self._process, None
        return process.wait(PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def say(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command of the CLI to this agent."""
        command = [str(Path(sysconfig.get_path("scripts"), "podwire")), *arguments, "--state-dir", str(self.state)]
        return subprocess.run(command, capture_output=True, text=True)


def started(command: Sequence[str], log: Path, notify: Path) -> "subprocess.Popen[bytes]":
    """A process in the namespace of this thread, once it says itself that it is ready (sd_notify(3))."""
    notify.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox, log.open("ab") as out:
        inbox.bind(str(notify))
        environment = {"PATH": os.environ["PATH"], "NOTIFY_SOCKET": str(notify)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        ended = os.pidfd_open(process.pid)
        try:
            ready, _, _ = select.select([inbox.fileno(), ended], [], [], PATIENCE)
        finally:
            os.close(ended)
        if inbox.fileno() not in ready or b"READY=1" not in inbox.recv(4096):
            process.kill()
            process.wait(PATIENCE)
            raise AssertionError(f"{Path(command[0]).name} did not get ready:\n{log.read_text()}")
    return process


@contextmanager
def agent_process(directory: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(directory)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop(signal.SIGKILL)
