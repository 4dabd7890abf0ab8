"""What counting costs a packet: a question and its answer over one TCP connection through a cluster IP, with
`service_traffic`, and with nothing counted at all.

    python -m tests.bench.counting [ROUNDS]

as root, in a node and pods of its own; client and server take turns on one processor. `without` has the jumps to the
counting chains deleted by hand. Rounds are interleaved: the figure is the median of the ratios of neighbours, of the
tenth percentile of each, in microseconds. Python's own share of a turn is some 10 µs; the kernel's is the rest.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from podwire.dataplane import netlink
from tests.kernel.rig import TARGET_PORT, MakeSpace, Rig, Space, entered, in_space, service, sh, spaces

TURNS = 5_000
LEADING = {"guard": "goto arrived", "guardout": "goto traffic", "in": "jump served", "post": "jump served"}


async def node(make: MakeSpace, directory: Path, *, counts: bool) -> tuple[Rig, Space]:
    space = make("node")
    with entered(space):
        rig = Rig(directory, make)
        assert (await rig.start(service("web", 10, ("10.1.1.3",)), service_traffic=True)).error is None
        for pod in "ab":
            assert (await rig.add(pod)).error is None
        for chain, leads in {} if counts else LEADING.items():
            for line in sh("nft", "-a", "list", "chain", "ip", "podwire", chain).splitlines():
                if f"{leads} #" in line:
                    sh("nft", "delete", "rule", "ip", "podwire", chain, "handle", line.rpartition(" ")[2])
    return rig, space


def connected(rig: Rig) -> tuple[socket.socket, socket.socket]:
    """Client and server of one connection."""
    listener = in_space(rig.pods["b"], socket.AF_INET, socket.SOCK_STREAM)
    client = in_space(rig.pods["a"], socket.AF_INET, socket.SOCK_STREAM)
    with listener:
        listener.bind(("0.0.0.0", TARGET_PORT))
        listener.listen()
        client.connect(("10.96.0.10", 80))
        server, _ = listener.accept()
    for one in (client, server):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, server


def tenth(client: socket.socket, server: socket.socket) -> float:
    """Microseconds of a turn, of which a tenth are quicker."""
    spent = []
    for _ in range(TURNS):
        began = time.perf_counter()
        client.send(b"?")
        server.recv(10)
        server.send(b"!")
        client.recv(10)
        spent.append(time.perf_counter() - began)
    return quantiles(spent, n=10)[0] * 1e6


async def measure(rounds: int) -> dict[str, float]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with spaces() as make, tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        held = [await node(make, Path(one), counts=True), await node(make, Path(other), counts=False)]
        ends = [connected(rig) for rig, _ in held]
        samples: list[list[float]] = [[], []]
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                samples[which].append(tenth(*ends[which]))
        for pair in ends:
            for end in pair:
                end.close()
        for rig, space in held:
            with entered(space):
                await rig.stop()
    ratios = [counted / plain for counted, plain in zip(*samples, strict=True)]
    return {"counted_us": median(samples[0]), "without_us": median(samples[1]), "ratio": median(ratios)}


if __name__ == "__main__":
    with netlink.inside(None):  # whatever is made here is nobody's network
        print(json.dumps(asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 21))))
