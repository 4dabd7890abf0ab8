"""Services whose backends change all the time: does it lose connections, send them wrong, grow, or drift?

    python -m tests.bench.churn [--seconds 600] [--services 1000] [--rate 50] [--connections 1000]

as root. A node, its backends and a client are namespaces of their own; the node's agent is a process that watches an
API server on the node's loopback, and the client opens so many connections a second, TCP and UDP in turn. Half of all
changes and connections are of some hot Services. Figures go into build/bench.json; the exit code is 1 where a
connection failed, one was answered by a backend that had left the Service `SETTLED` before it began, or something
differs at the end, or its memory still grew.
"""

import argparse
import asyncio
import json
import os
import random
import select
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.bench.figures import figure, record, resident
from tests.kernel.process import started
from tests.unit.kube_fake import FakeApi, Thing, node, service, service_cidr, slice_

PODWIRE = str(Path(sysconfig.get_path("scripts"), "podwire"))
SETTLED = 1.0
"""Seconds from a change until only what it says may answer."""
HOT = 20
"""Services that get half of all changes and connections."""
POOL = 200
MOST = 10
"""Backends that there are, and the most of one Service."""
PORT = 8080
PATIENCE = 5.0
"""Seconds for an answer."""
LONG, GROWTH = 300.0, 1.1
"""Seconds after which an agent has all that it keeps, and what its memory may still grow by, from the second quarter of
the time to the last."""
SAMPLES = 60
"""Of the agent's memory, over the whole time."""


class Asked(NamedTuple):
    """`answer`: the address of the backend, or the error. Seconds of the machine's monotonic clock."""

    began: float
    ended: float
    service: int
    protocol: str
    answer: str


def cluster_ip(number: int) -> str:
    return f"10.96.{number + 20 >> 8}.{number + 20 & 255}"


def backend(number: int) -> str:
    return f"10.1.2.{number + 2}"


def some(chance: random.Random, services: int) -> int:
    return chance.randrange(min(HOT, services) if chance.random() < 0.5 else services)


# --- the backends, and the client ----------------------------------------------------------------


def answer() -> None:
    """On all addresses: TCP and UDP, with the address that was asked."""
    poll, sockets = select.epoll(), {}
    for number in range(POOL):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            one = socket.socket(socket.AF_INET, kind)
            one.bind((backend(number), PORT))
            if kind == socket.SOCK_STREAM:
                one.listen(128)
            sockets[one.fileno()] = one
            poll.register(one.fileno(), select.EPOLLIN)
    print("ready", flush=True)
    while True:
        for descriptor, _ in poll.poll():
            one = sockets[descriptor]
            name = one.getsockname()[0].encode()
            if one.type == socket.SOCK_DGRAM:
                _, client = one.recvfrom(16)
                one.sendto(name, client)
            else:
                connection, _ = one.accept()
                with connection:
                    connection.sendall(name)


def ask(services: int, rate: float) -> None:
    """Until its input ends; each answer is a line."""
    chance, ended = random.Random(services), select.poll()
    ended.register(0)
    begin, turn = time.monotonic(), 0
    while not ended.poll(max(0.0, begin + turn / rate - time.monotonic()) * 1e3):
        turn += 1
        number, protocol = some(chance, services), ("TCP", "UDP")[turn % 2]
        began = time.monotonic()
        found = one_answer(cluster_ip(number), protocol)
        print(json.dumps(Asked(began, time.monotonic(), number, protocol, found)))


def one_answer(address: str, protocol: str) -> str:
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as one:
        one.settimeout(PATIENCE)
        try:
            one.connect((address, 80))
            if protocol == "UDP":
                one.send(b"?")
            return one.recv(64).decode() or "closed"
        except OSError as error:
            return f"{type(error).__name__}: {error}"


# --- the node ------------------------------------------------------------------------------------

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{server}"}}}}]
contexts: [{{name: c, context: {{cluster: c}}}}]
current-context: c
"""
CONFIG = """
node_name = "one"
state_dir = "{directory}/state"
mtu = 1500
kubernetes = {{ kubeconfig = "{directory}/kubeconfig", network_condition = false }}
"""


async def drive(directory: Path, services: int, rate: float, seconds: float) -> None:
    """Prints `ready`, and at the end one line of JSON: what changed when, memory, and what differs."""
    chance = random.Random(1)
    held = {n: [backend(b) for b in chance.sample(range(POOL), MOST)] for n in range(services)}
    fake = FakeApi()
    fake.put("nodes", node("one", "10.1.1.0/24", address="192.0.2.1"))
    fake.put("nodes", node("two", "10.1.2.0/24", address="192.0.2.2"))
    fake.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/16"))
    for number, backends in held.items():
        fake.put("services", both_protocols(number))
        fake.put("endpointslices", of(number, backends))
    async with fake.served() as server:
        (directory / "kubeconfig").write_text(KUBECONFIG.format(server=server))
        (directory / "agent.toml").write_text(CONFIG.format(directory=directory))
        command = [PODWIRE, "agent", "--config", str(directory / "agent.toml")]
        agent = await asyncio.to_thread(started, command, directory / "agent.log", directory / "notify")
        try:
            await fake.all_watched()
            print("ready", flush=True)
            changes = [(0.0, number, tuple(backends)) for number, backends in held.items()]
            memory = []
            begin = last_sample = time.monotonic()
            for turn in range(int(rate * seconds)):
                await asyncio.sleep(begin + turn / rate - time.monotonic())
                number = some(chance, services)
                change(held[number], chance)
                changes.append((time.monotonic(), number, tuple(held[number])))
                fake.put("endpointslices", of(number, held[number]))
                fake.log.clear()
                if time.monotonic() - last_sample > seconds / SAMPLES:
                    last_sample = time.monotonic()
                    memory.append(resident(agent.pid))
            await asyncio.sleep(SETTLED)
            verify = [PODWIRE, "verify", "--state-dir", str(directory / "state")]
            told = await asyncio.to_thread(subprocess.run, verify, capture_output=True, text=True)
            drift = "" if told.returncode == 0 else told.stdout + told.stderr
            print(json.dumps({"changes": changes, "memory": memory, "drift": drift}), flush=True)
        finally:
            agent.terminate()
            agent.wait()


def both_protocols(number: int) -> Thing:
    found = service(f"s{number}", cluster_ip(number))
    found["spec"]["ports"] = [{"name": name, "port": 80, "protocol": name.upper()} for name in ("tcp", "udp")]
    return found


def of(number: int, backends: list[str]) -> Thing:
    found = slice_(f"s{number}-1", f"s{number}", *backends)
    found["ports"] = [{"name": name, "port": PORT, "protocol": name.upper()} for name in ("tcp", "udp")]
    for member in found["endpoints"]:
        member["nodeName"] = "two"
    return found


def change(backends: list[str], chance: random.Random) -> None:
    """One goes, one comes, or one takes the place of another; at least one is always there."""
    new = chance.choice(sorted({backend(number) for number in range(POOL)} - set(backends)))
    match chance.randrange(3):
        case 0 if len(backends) > 1:
            backends.pop(chance.randrange(len(backends)))
        case 1 if len(backends) < MOST:
            backends.append(new)
        case _:
            backends[chance.randrange(len(backends))] = new


# --- judging -------------------------------------------------------------------------------------


def misdirected(
    changes: list[tuple[float, int, tuple[str, ...]]], asked: list[Asked], settled: float
) -> Iterator[tuple[Asked, float | None]]:
    """Answered by a backend that had left the Service `settled` seconds before, or more: how many; None: it was never
    in it. Pure."""
    times: dict[int, list[float]] = {}
    sets: dict[int, list[tuple[str, ...]]] = {}
    for when, number, backends in changes:
        times.setdefault(number, []).append(when)
        sets.setdefault(number, []).append(backends)
    for it in asked:
        if not is_answer(it):
            continue
        when, held = times[it.service], sets[it.service]
        last = bisect_right(when, it.ended) - 1
        if it.answer in held[last]:
            continue
        having = next((n for n in range(last - 1, -1, -1) if it.answer in held[n]), None)
        gone = None if having is None else it.began - when[having + 1]
        if gone is None or gone >= settled:
            yield it, gone


def by_time(begin: float, wrong: list[tuple[Asked, float | None]]) -> Iterator[str]:
    """In which ten seconds they were asked, and how late the latest was."""
    found: dict[tuple[int, str], list[float]] = {}
    for it, gone in wrong:
        found.setdefault((int(it.began - begin) // 10, it.protocol), []).append(gone or 0.0)
    for (turn, protocol), gone_for in sorted(found.items()):
        yield f"{turn * 10:5} s: {len(gone_for)} {protocol}, by a backend gone for up to {max(gone_for):.1f} s"


def is_answer(it: Asked) -> bool:
    return it.answer.startswith("10.")


# --- all of it -----------------------------------------------------------------------------------


@contextmanager
def spaces() -> Iterator[tuple[str, str, str]]:
    """Of the node, its backends, and the client: each on a link to the node."""
    names = one, two, client = tuple(f"pwchurn{os.getpid()}-{name}" for name in ("one", "two", "client"))
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("-n", name, "link", "set", "lo", "up")
        for name, near, far in ((two, "192.0.2.1/24", "192.0.2.2/24"), (client, "198.51.100.1/24", "198.51.100.2/24")):
            ip("-n", one, "link", "add", "to" + name[-3:], "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", one, "addr", "add", near, "dev", "to" + name[-3:])
            ip("-n", one, "link", "set", "to" + name[-3:], "up")
            ip("-n", name, "addr", "add", far, "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", "default", "via", near.partition("/")[0])
        for number in range(POOL):
            ip("-n", two, "addr", "add", f"{backend(number)}/32", "dev", "lo")
        yield one, two, client


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def role(space: str, *words: str, ready: bool = True) -> Iterator["subprocess.Popen[str]"]:
    command = ["ip", "netns", "exec", space, sys.executable, "-m", "tests.bench.churn", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if ready and (said := process.stdout.readline()) != "ready\n":
                raise AssertionError(f"{words[0]} says {said!r}")
            yield process
        finally:
            process.terminate()


def churn(services: int, rate: float, seconds: float, connections: float) -> tuple[dict[str, Any], list[Asked]]:
    """What the node tells, and all that was asked."""
    with ExitStack() as stack:
        one, two, client = stack.enter_context(spaces())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(role(two, "answer"))
        driver = stack.enter_context(role(one, "drive", str(directory), str(services), str(rate), str(seconds)))
        answers = stack.enter_context((directory / "asked").open("w+"))
        command = [sys.executable, "-m", "tests.bench.churn", "ask", str(services), str(connections)]
        asker = subprocess.Popen(["ip", "netns", "exec", client, *command], stdin=subprocess.PIPE, stdout=answers)
        try:
            assert driver.stdout is not None
            line = driver.stdout.readline()
            if not line:
                raise AssertionError((directory / "agent.log").read_text()[-4000:])
            asker.communicate(timeout=PATIENCE * 4)
        finally:
            asker.kill()
            asker.wait()
        answers.seek(0)
        return json.loads(line), [Asked(*json.loads(each)) for each in answers]


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench.churn", description="See the module's text.")
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--services", type=int, default=1000)
    options.add_argument("--rate", type=float, default=50)
    options.add_argument("--connections", type=float, default=1000)
    given = options.parse_args()
    print(f"{given.services} Services, {given.rate:.0f} changes a second for {given.seconds:.0f} s", flush=True)
    told, asked = churn(given.services, given.rate, given.seconds, given.connections)
    failed = [it for it in asked if not is_answer(it)]
    wrong = list(misdirected(told["changes"], asked, SETTLED))
    memory = told["memory"]
    quarter = max(len(memory) // 4, 1)
    growth = median(memory[-quarter:]) / median(memory[quarter:][:quarter])
    grows = given.seconds >= LONG and growth > GROWTH
    record(
        figure("churn_connections", [len(asked)], "connections", better="higher"),
        figure("churn_failed", [len(failed)], "connections"),
        figure("churn_misdirected", [len(wrong)], "connections"),
        figure("churn_rss_growth", [growth], "ratio", "the last quarter of the time against the second"),
        figure("churn_rss_mb", memory, "MB"),
        figure("churn_drift", [float(bool(told["drift"]))], "1 where something differs"),
    )
    for it in (*failed[:10], *wrong[:10]):
        print(it)
    for line in by_time(asked[0].began, wrong):
        print(line)
    print(told["drift"], end="")
    sys.exit(bool(failed or wrong or told["drift"] or grows or not asked))


if __name__ == "__main__":
    match sys.argv[1:2]:
        case ["answer"]:
            answer()
        case ["ask"]:
            ask(int(sys.argv[2]), float(sys.argv[3]))
        case ["drive"]:
            asyncio.run(drive(Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))
        case _:
            main()
