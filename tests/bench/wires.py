"""A client and backends, each an attached pod of a node in a namespace of its own; what loads them.

Invariants: the wires are the same whatever programs the Services. They are made by CNI ADDs of an agent that is ended
then, its tables gone: what stays is links, addresses, routes, neighbours and settings, exactly as Podwire makes them
for pods. A plane begins after that; Podwire's own finds the pods in the same state directory, as any restart does.
The load's program is compiled once, from `load.c`.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from podwire.cni.install import install
from podwire.dataplane.nftables.layout import TABLE
from tests.bench.cni import Plugin
from tests.bench.nodes import ip, prepare, sysctl
from tests.bench.objects import BACKENDS, NODE, TARGET, node
from tests.kernel.process import AgentProcess
from tests.kernel.rig import MakeSpace, Space, entered, sh

CLIENT = "10.1.1.2"
"""The block's first address for pods."""
CLIENTS = "10.32.0.0"
"""The first of many addresses that a client has."""
_OURS = {"cniVersion": "1.0.0", "name": "podwire", "type": "podwire"}


def backend(number: int) -> str:
    return f"10.1.1.{3 + number}"


def missing() -> str:
    """Why no load can be made; empty where it can."""
    return "" if shutil.which("cc") else "cc is missing (apt-get install gcc libc6-dev)"


def compiled(directory: Path) -> Path:
    program = directory / "load"
    subprocess.run(
        ["cc", "-O2", "-Wall", "-Werror", "-o", str(program), str(Path(__file__).with_name("load.c"))], check=True
    )
    return program


class Wires:
    def __init__(self, make_space: MakeSpace, label: str, directory: Path) -> None:
        """`directory`: that of the plane, whose agent, if it is one, goes on with the state that is made here."""
        self.node, self.client = make_space(f"{label}n"), make_space(f"{label}c")
        self.backends = [make_space(f"{label}b{number}") for number in range(BACKENDS)]
        prepare(self.node)
        # What is cut is forgotten at once: a table that fills up would slow down whoever comes last.
        sysctl(self.node, "net.netfilter.nf_conntrack_tcp_timeout_close=1")
        directory.mkdir(exist_ok=True)
        self._attach(directory)
        sysctl(self.client, "net.ipv4.ip_local_port_range=1024 65000")

    def _attach(self, directory: Path) -> None:
        manifests = directory / "manifests"
        manifests.mkdir()
        (manifests / "node.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Node", **node()}))
        agent = AgentProcess(directory, NODE, manifests)
        with entered(self.node):
            agent.start()
        try:
            program = install(
                directory / "plugin", agent.socket, agent.spool, agent.ready, os.path.realpath(sys.executable)
            )
            Plugin(program, json.dumps(_OURS).encode(), self.node).add([self.client, *self.backends])
        finally:
            agent.stop()
        for family in ("ip", "ip6"):
            sh("ip", "netns", "exec", self.node.name, "nft", "delete", "table", family, TABLE)
        for space, address in zip([self.client, *self.backends], [CLIENT, *map(backend, range(BACKENDS))], strict=True):
            held = sh("ip", "-n", space.name, "-4", "-o", "addr", "show", "dev", "eth0")
            assert f" {address}/32 " in held, held

    def many_clients(self) -> None:
        """131,072 addresses, all of them the client's."""
        (way,) = json.loads(sh("ip", "-n", self.node.name, "-j", "route", "get", CLIENT))
        ip(self.client, f"route add local {CLIENTS}/15 dev lo")
        ip(self.node, f"route add {CLIENTS}/15 via {CLIENT} dev {way['dev']} onlink")


@asynccontextmanager
async def answering(
    load: Path, servers: Sequence[Space], port: int = TARGET, how: str = "serve"
) -> AsyncIterator[None]:
    """Each of them answers: one program for all of them. `how`: as `load.c` has it."""
    command = [str(load), how, str(port), *(space.path for space in servers)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    assert await server.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        server.kill()
        await server.wait()


async def rate(load: Path, client_space: Space, what: str, address: str, port: int, *more: str) -> float:
    """So many a second. `what`, `more`: as `load.c` has them."""
    command = ["ip", "netns", "exec", client_space.name, str(load), what, address, str(port), *more]
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, error = await client.communicate()
    if client.returncode:
        raise RuntimeError(f"load {what} {address}: {error.decode().strip() or client.returncode}")
    done, seconds = out.split()
    return int(done) / float(seconds)
