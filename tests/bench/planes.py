"""What is measured: an agent of Podwire, and kube-proxy in nftables mode, each as a node runs it, on one API server.

Invariants: a plane is a process of its own in a node's namespace, with the objects of `api_server.py` and JSON on the
wire; kube-proxy otherwise has its defaults. `start` answers with the seconds from the process's start to the moment
when it has programmed all, as the process itself says it: READY=1 of the agent, the end of kube-proxy's first sync.
What it has programmed is counted in the kernel. Every process is ended by its own number.
"""

import asyncio
import compileall
import json
import os
import signal
import socket
import sysconfig
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import podwire
from podwire.dataplane import netlink
from podwire.dataplane.messages import text
from podwire.dataplane.nftables import wire as w
from podwire.dataplane.nftables.elements import elements
from podwire.model.addresses import IPV4
from tests.bench.api_server import PORT
from tests.bench.figures import resident
from tests.bench.objects import CLUSTER, NODE
from tests.kernel.rig import Space, entered
from tests.packets.kube_proxy import programs

PATIENCE = 600.0
"""Seconds for all to be programmed: a limit against hanging, never a measure."""
TICKS = os.sysconf("SC_CLK_TCK")
_SYNCED = b'"SyncProxyRules complete" ipFamily="IPv4"'


class Cost(NamedTuple):
    """`cpu` in seconds since the process's start, programs that it called included; `rss` in MB, its own."""

    cpu: float
    rss: float


class Plane(Protocol):
    name: str
    table: str
    services: str
    """The map that has an element for each frontend."""

    async def start(self) -> float: ...

    async def stop(self) -> None: ...

    def cost(self) -> Cost: ...


class Podwire:
    name, table, services = "podwire", "podwire", "svc"

    def __init__(self, space: Space, directory: Path, command: Sequence[str] = ()) -> None:
        """`command`: instead of `podwire agent`; the configuration's path comes last."""
        compile_ahead()
        self.state, self.log = directory / "state", directory / "agent.log"
        self._space, self._notify = space, directory / "notify"
        config = directory / "agent.toml"
        config.write_text(
            f'node_name = "{NODE}"\nstate_dir = "{self.state}"\nmtu = 1500\n'
            f'[kubernetes]\nkubeconfig = "{_kubeconfig(directory)}"\n'
        )
        program = str(Path(sysconfig.get_path("scripts"), "podwire"))
        self._command = [*(command or (program, "agent", "--config")), str(config)]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> float:
        self._notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox, self.log.open("ab") as out:
            inbox.bind(str(self._notify))
            inbox.setblocking(False)
            began = time.perf_counter()
            environment = {**os.environ, "NOTIFY_SOCKET": str(self._notify)}
            self._process = await _in(self._space, self._command, stdout=out, stderr=out, env=environment)
            told = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(inbox, 4096))
            await _first(told, self._process, self.log)
            assert told.result() == b"READY=1", told.result()
            ready = time.perf_counter()
        return max(ready, await asyncio.wait_for(self._listed(), PATIENCE)) - began

    async def _listed(self) -> float:
        """On a busy machine a start goes on without a list that takes too long, and is ready for pods before. Since
        when the agent has been all ready; 0.0: since it said so."""
        since = 0.0
        while True:
            last = max((it["number"] for it in (await self.ask("/history?limit=1"))["records"]), default=0)
            if (await self.ask("/status"))["ready"]:
                return since
            await self.ask(f"/history?since={last}&wait=5")
            since = time.perf_counter()

    async def stop(self) -> None:
        await _end(self._process)

    def cost(self) -> Cost:
        return _cost(self._process)

    async def ask(self, path: str) -> Any:
        """Of the admin API."""
        reader, writer = await asyncio.open_unix_connection(str(self.state / "admin.sock"), limit=1 << 24)
        writer.write(f"GET {path} HTTP/1.0\r\nHost: agent\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert b" 200 " in head.split(b"\r\n")[0], head
        return json.loads(body)

    async def writes(self) -> int:
        """To the kernel since the start."""
        written = (await self.ask("/status"))["writes"]
        return int(written["linux"] + written["nftables"])


class KubeProxy:
    name, table, services = "kube-proxy", "kube-proxy", "service-ips"

    def __init__(self, space: Space, directory: Path, at_once: bool = False) -> None:
        """`at_once`: changes don't wait for the next of its syncs, of which there is at most one a second."""
        self._space, self.log = space, directory / "kube-proxy.log"
        config: dict[str, Any] = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {
                "kubeconfig": str(_kubeconfig(directory)),
                "contentType": "application/json",
                "acceptContentTypes": "application/json",
            },
            "hostnameOverride": NODE,
            "clusterCIDR": CLUSTER,
            "conntrack": {"maxPerCore": 0},  # a setting of the machine
            **({"nftables": {"minSyncPeriod": "1ms"}} if at_once else {}),
        }
        path = directory / "kube-proxy.json"
        path.write_text(json.dumps(config))
        # Its log tells of each sync at this level, in a few lines.
        self._command = [str(programs()["kube-proxy"]), "--config", str(path), "-v=2"]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.syncs = 0
        self._stirred = asyncio.Condition()

    async def start(self) -> float:
        before, began = self.syncs, time.perf_counter()
        pipe = asyncio.subprocess.PIPE
        self._process = await _in(self._space, self._command, stdout=asyncio.subprocess.DEVNULL, stderr=pipe)
        self._reading = asyncio.create_task(self._read(self._process))
        synced = asyncio.ensure_future(self.synced(before))
        await _first(synced, self._process, self.log)
        return time.perf_counter() - began

    async def synced(self, more_than: int) -> None:
        """Waits for so many syncs since the beginning, and one more."""
        async with self._stirred:
            await self._stirred.wait_for(lambda: self.syncs > more_than)

    async def stop(self) -> None:
        await _end(self._process)
        if self._reading is not None:
            await self._reading

    def cost(self) -> Cost:
        return _cost(self._process)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with self.log.open("ab") as log:
            async for line in process.stderr:
                log.write(line)
                if _SYNCED in line:
                    async with self._stirred:
                        self.syncs += 1
                        self._stirred.notify_all()


def plane(name: str, space: Space, directory: Path) -> Podwire | KubeProxy:
    """`directory` is for all of its files."""
    directory.mkdir(exist_ok=True)
    return Podwire(space, directory) if name == Podwire.name else KubeProxy(space, directory)


@cache
def compile_ahead() -> None:
    """As the image has it: else each start would compile all of the agent, where nobody may write."""
    compileall.compile_dir(Path(podwire.__path__[0]), quiet=1)


def missing() -> str:
    """Why kube-proxy can't be measured here; empty where it can."""
    if programs()["kube-proxy"] is None:
        return "kube-proxy is not built (make cluster-build)"
    return ""


def programmed(plane: Plane, space: Space) -> int:
    """How many frontends the kernel has."""
    with entered(space):
        there = netlink.Socket(netlink.NETFILTER)
    try:
        request = w.head(IPV4) + text(1, plane.table) + text(2, plane.services)
        return sum(1 for _ in elements(there.dump(w.GETELEM, request)))
    finally:
        there.close()


def _kubeconfig(directory: Path) -> Path:
    path = directory / "kubeconfig"
    cluster = {"name": "bench", "cluster": {"server": f"http://127.0.0.1:{PORT}"}}
    context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
    everything = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [context],
        "current-context": "bench",
    }
    path.write_text(json.dumps(everything))
    return path


async def _in(space: Space, command: Sequence[str], **more: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "ip", "netns", "exec", space.name, *command, stdin=asyncio.subprocess.DEVNULL, **more
    )


async def _first(awaited: "asyncio.Future[Any]", process: asyncio.subprocess.Process, log: Path) -> None:
    """Raises RuntimeError where the process ends first, or nothing comes."""
    ended = asyncio.ensure_future(process.wait())
    await asyncio.wait([awaited, ended], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    if not awaited.done():
        awaited.cancel()
        await _end(process)
        raise RuntimeError(f"{log.stem} did not get ready:\n{_end_of(log)}")
    ended.cancel()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


async def _end(process: asyncio.subprocess.Process | None) -> None:
    if process is None or process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), 30)
    except TimeoutError:
        process.kill()
        await process.wait()


def _cost(process: asyncio.subprocess.Process | None) -> Cost:
    """`ip netns exec` has become the program itself."""
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return Cost(sum(map(int, fields[11:15])) / TICKS, resident(process.pid))
