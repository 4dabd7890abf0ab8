"""A client and a pod with some addresses behind a node, each in a namespace of its own; what loads them.

Invariants: the wires are the same whatever programs the Services: routed veths, as Podwire makes them for pods. The
backends are the node's own, so that no packet is masqueraded. The load's program is compiled once, from `load.c`.
"""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bench.nodes import ip, prepare, sysctl
from tests.bench.objects import BACKENDS, TARGET
from tests.kernel.rig import MakeSpace, Space

CLIENT = "10.1.1.2"
CLIENTS = "10.32.0.0"
"""The first of many addresses that a client has."""
_GATEWAY = "169.254.1.1"


def backend(number: int) -> str:
    return f"10.1.1.{10 + number}"


def missing() -> str:
    """Why no load can be made; empty where it can."""
    return "" if shutil.which("cc") else "cc is missing (apt-get install gcc libc6-dev)"


def compiled(directory: Path) -> Path:
    program = directory / "load"
    subprocess.run(["cc", "-O2", "-o", str(program), str(Path(__file__).with_name("load.c"))], check=True)
    return program


class Wires:
    def __init__(self, make_space: MakeSpace, label: str) -> None:
        self.node, self.client, self.pod = (make_space(f"{label}{what}") for what in ("n", "c", "p"))
        prepare(self.node)
        # What is cut is forgotten at once: a table that fills up would slow down whoever comes last.
        sysctl(self.node, "net.netfilter.nf_conntrack_tcp_timeout_close=1")
        for space, end in ((self.client, "client"), (self.pod, "pod")):
            ip(
                self.node,
                f"link add {end} type veth peer name eth0 netns {space.name}",
                f"link set {end} up",
                f"addr add {_GATEWAY}/32 dev {end}",
            )
            ip(space, "link set lo up", "link set eth0 up")
            ip(space, f"route add {_GATEWAY} dev eth0", f"route add default via {_GATEWAY}")
        self._give(self.client, "client", CLIENT)
        for number in range(BACKENDS):
            self._give(self.pod, "pod", backend(number))
        sysctl(self.client, "net.ipv4.ip_local_port_range=1024 65000")

    def _give(self, space: Space, end: str, address: str) -> None:
        ip(space, f"addr add {address}/32 dev eth0")
        ip(self.node, f"route add {address} dev {end}")

    def many_clients(self) -> None:
        """131,072 addresses, all of them the client's."""
        ip(self.client, f"route add local {CLIENTS}/15 dev lo")
        ip(self.node, f"route add {CLIENTS}/15 via {CLIENT} dev client")


@asynccontextmanager
async def answering(load: Path, wires: Wires) -> AsyncIterator[None]:
    """Each backend answers."""
    command = ["ip", "netns", "exec", wires.pod.name, str(load), "serve", str(TARGET)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    assert await server.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        server.kill()
        await server.wait()


async def rate(load: Path, wires: Wires, what: str, address: str, port: int, *more: str) -> float:
    """So many a second. `what`, `more`: as `load.c` has them."""
    command = ["ip", "netns", "exec", wires.client.name, str(load), what, address, str(port), *more]
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, error = await client.communicate()
    if client.returncode:
        raise RuntimeError(f"load {what} {address}: {error.decode().strip() or client.returncode}")
    done, seconds = out.split()
    return int(done) / float(seconds)
