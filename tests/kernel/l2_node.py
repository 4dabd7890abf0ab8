"""A node that does layer 2 and nothing else: `python -m tests.kernel.l2_node NAME`, told by lines of JSON.

Invariants: it decides as an agent does, among the nodes that live, and reports whenever something is different. It
stands for an agent that is killed, halted or busy.
"""

import asyncio
import json
import sys
import threading
import time
from typing import Any

from podwire.l2.driver import L2, ProcessEnded
from podwire.loadbalancer.election import owner as elected
from podwire.model.addresses import parse_address, show_address
from podwire.model.announcements import Liveness

OUT = (Liveness.DEAD, Liveness.UNREADY)


class Node:
    def __init__(self, name: str, port: int, key: str) -> None:
        self.name = name
        self.l2 = L2(name, lambda _: self.decide(), port, key.encode())
        self.addresses: dict[str, list[str]] = {}
        self.names: list[str] = []
        self.deaths: list[str] = []
        self.halted = 0.0
        self.last: Any = None

    def decide(self) -> None:
        self.deaths += [name for name, it in self.l2.liveness.items() if it is Liveness.DEAD]
        may = [it for it in self.names if it == self.name or self.l2.liveness.get(it) not in OUT]
        self.l2.want(
            {
                parse_address(address): tuple(names)
                for address, names in self.addresses.items()
                if elected(parse_address(address), may) == self.name
            }
        )

    def obey(self, line: dict[str, Any]) -> None:
        if "nodes" in line:
            self.names = list(line["nodes"])
            self.l2.peers({name: tuple(map(parse_address, those)) for name, those in line["nodes"].items()})
        self.addresses = line.get("addresses", self.addresses)
        if "ready" in line:
            self.l2.ready(line["ready"])
        for _ in range(line.get("burn", 0)):
            threading.Thread(target=_burn, daemon=True).start()
        self.halted = line.get("halt", self.halted)
        self.decide()

    def report(self) -> None:
        answers = self.l2.answered
        now = {
            "liveness": dict(self.l2.liveness),
            "answers": {
                show_address(address): {"interfaces": it.interfaces, "also": it.also, "unable": it.unable}
                for address, it in answers.items()
            },
            "requests": {show_address(address): it.requests for address, it in answers.items()},
            "troubles": self.l2.troubles,
            "ignored": dict(self.l2.ignored),
            "deaths": self.deaths,
            "at_work": self.l2.at_work,
        }
        if now != self.last:
            self.last = json.loads(json.dumps(now)) and now
            print(json.dumps(now), flush=True)


def _burn() -> None:
    while True:
        sum(n * n for n in range(10_000))


async def keep(l2: L2) -> None:
    again = False
    while True:
        try:
            await l2.run(again)
        except ProcessEnded:
            await asyncio.sleep(0.5)
            again = True


async def main(name: str, port: int, key: str) -> None:
    node = Node(name, port, key)
    running = asyncio.create_task(keep(node.l2))
    reader = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    lines: asyncio.Task[bytes] = asyncio.create_task(reader.readline())
    while True:
        await asyncio.wait((lines,), timeout=0.05)
        if lines.done():
            line = lines.result()
            if not line:
                break
            told = json.loads(line)
            node.obey(told)
            if "leave" in told:
                await node.l2.leave()
                break
            lines = asyncio.create_task(reader.readline())
        if node.halted:
            time.sleep(node.halted)  # noqa: ASYNC251 - as an agent that is busy
        node.report()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
