"""Nodes and a client on one link: a bridge, and layer 2 at work on each node.

Invariants: a node has the balanced addresses on its loopback, where no kernel answers for them by ARP or NDP: who
answers is the product alone. What answers there tells the node's name.
"""

import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kernel.rig import MakeSpace, Space, in_space, respond, sh

PORT, ECHO = 7948, 9000
FOURS = [f"192.0.2.{n}" for n in range(100, 108)]
SIXES = [f"2001:db8::1:{n:x}" for n in range(100, 108)]


class Node:
    """A node's namespace, and the program that stands for its agent."""

    def __init__(self, lan: "Lan", number: int, key: str = "") -> None:
        self.lan, self.number, self.key = lan, number, key
        self.name = f"n{number}"
        self.addresses = [f"192.0.2.{number}", f"2001:db8::{number:x}"]
        self.space = lan.plug(self.name, number, *(f"{a}/{24 if '.' in a else 64}" for a in self.addresses))
        self.seen: dict[str, Any] = {}
        self._program: subprocess.Popen[bytes] | None = None
        self._rest = b""

    @property
    def port(self) -> str:
        """Of the bridge."""
        return f"p{self.number}"

    @property
    def mac(self) -> str:
        return mac_of(self.number)

    @property
    def program(self) -> "subprocess.Popen[bytes]":
        assert self._program is not None
        return self._program

    def start(self, **told: Any) -> None:
        command = ("ip", "netns", "exec", self.space.name, sys.executable, "-m", "tests.kernel.l2_node")
        self._rest, self.seen = b"", {}
        self._program = subprocess.Popen(
            (*command, self.name, str(PORT), self.key), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.tell(nodes=self.lan.listed, addresses=self.lan.wanted, ready=True, **told)

    def tell(self, **told: Any) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(json.dumps(told).encode() + b"\n")
        self.program.stdin.flush()

    def until(self, is_so: Callable[[dict[str, Any]], bool], patience: float = 30.0) -> dict[str, Any]:
        """Waits for such a report, the last one included."""
        end = time.monotonic() + patience
        while not (self.seen and is_so(self.seen)):
            assert self._read(end - time.monotonic()), f"{self.name}: {self.seen}"
        return self.seen

    def newest(self) -> dict[str, Any]:
        while self._read(0.3):
            pass
        return self.seen

    def _read(self, seconds: float) -> bool:
        """Whether there was a report within that time."""
        assert self.program.stdout is not None
        while b"\n" not in self._rest:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self.program.stdout, selectors.EVENT_READ)
                if not waiting.select(max(0.0, seconds)):
                    return False
            data = os.read(self.program.stdout.fileno(), 1 << 16)
            if not data:
                return False
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self.seen = json.loads(line)
        return True

    def owns(self) -> set[str]:
        return {address for address, it in self.seen.get("answers", {}).items() if it["interfaces"]}

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.program.send_signal(how)
        if how is signal.SIGKILL:
            self.end()

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.program.pid}/task/{self.program.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def end(self) -> None:
        """Where there is one: it ends when nobody tells it anything."""
        if self._program is not None:
            for end in (self._program.stdin, self._program.stdout):
                assert end is not None
                end.close()
            self._program.send_signal(signal.SIGCONT)
            self._program.wait(10)
            self._program = None


class Lan:
    def __init__(self, make_space: MakeSpace, key: str = "") -> None:
        self.make_space = make_space
        self.bridge = make_space("lan")
        sh("ip", "-n", self.bridge.name, "link", "add", "name", "lan0", "type", "bridge", "mcast_snooping", "0")
        sh("ip", "-n", self.bridge.name, "link", "set", "lan0", "up")
        self.wanted: dict[str, list[str]] = {address: [] for address in (*FOURS, *SIXES)}
        self.client = self.plug("client", 200, "192.0.2.200/24", "2001:db8::c8/64")
        self.nodes: list[Node] = []
        self.key = key

    def node(self) -> Node:
        """Another one; its loopback has the addresses, and what answers there."""
        made = Node(self, len(self.nodes) + 1, self.key)
        self.nodes.append(made)
        sh("ip", "netns", "exec", made.space.name, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
        for address in (*FOURS, *SIXES):
            flags = () if "." in address else ("nodad",)
            sh("ip", "-n", made.space.name, "addr", "add", address, "dev", "lo", *flags)
        respond(made.space, made.name, ECHO)
        return made

    @property
    def listed(self) -> Mapping[str, list[str]]:
        return {node.name: node.addresses for node in self.nodes}

    def plug(self, name: str, number: int, *addresses: str) -> Space:
        space = self.make_space(name)
        pair = ("link", "add", "eth0", "address", mac_of(number), "type", "veth")
        sh("ip", "-n", space.name, *pair, "peer", "name", f"p{number}", "netns", self.bridge.name)
        sh("ip", "-n", self.bridge.name, "link", "set", f"p{number}", "master", "lan0", "up")
        for address in addresses:
            sh("ip", "-n", space.name, "addr", "add", address, "dev", "eth0", *(("nodad",) if ":" in address else ()))
        for link in ("lo", "eth0"):
            sh("ip", "-n", space.name, "link", "set", link, "up")
        return space

    def forget(self) -> None:
        """What the client knows of its neighbours."""
        sh("ip", "-n", self.client.name, "neigh", "flush", "all")

    def neighbour(self, address: str) -> str:
        """The MAC address that the client has for it."""
        words = sh("ip", "-n", self.client.name, "neigh", "show", address).split()
        return words[words.index("lladdr") + 1] if "lladdr" in words else ""

    def end(self) -> None:
        for node in self.nodes:
            node.end()


def mac_of(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


@contextmanager
def probing(space: Space, to: str, interval: float = 0.02) -> Iterator["Prober"]:
    prober = Prober(space, to, interval)
    try:
        yield prober
    finally:
        prober.stop()


class Prober:
    """Asks again and again, and remembers who answered which question. `answers`: by number of the question."""

    def __init__(self, space: Space, to: str, interval: float) -> None:
        family = socket.AF_INET6 if ":" in to else socket.AF_INET
        self._socket = in_space(space, family, socket.SOCK_DGRAM)
        self._socket.settimeout(interval)
        self._to, self._interval = (to, ECHO), interval
        self.asked: list[float] = []
        self.answers: list[tuple[float, str]] = []
        self._over, self._heard = threading.Event(), threading.Condition()
        self._threads = [threading.Thread(target=it, daemon=True) for it in (self._ask, self._hear)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._over.wait(self._interval):
            self.asked.append(time.monotonic())
            try:
                self._socket.sendto(b"?", self._to)
            except OSError:
                continue  # nobody answers for it

    def _hear(self) -> None:
        while not self._over.is_set():
            try:
                data, _ = self._socket.recvfrom(100)
            except OSError:
                continue
            with self._heard:
                self.answers.append((time.monotonic(), data.decode().split()[0]))
                self._heard.notify_all()

    def until(self, name: str, patience: float = 30.0, after: float = 0.0) -> float:
        """Waits until that node answers; when it did first, since `after`."""
        with self._heard:
            found = self._heard.wait_for(
                lambda: next((at for at, it in self.answers if it == name and at > after), None), patience
            )
        assert found is not None, f"{name} does not answer: {self.answers[-3:]}"
        return found

    @property
    def lost(self) -> int:
        return len(self.asked) - len(self.answers)

    def gap(self, since: float = 0.0) -> float:
        """The longest time without an answer, in seconds."""
        times = [at for at, _ in list(self.answers) if at > since]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()
