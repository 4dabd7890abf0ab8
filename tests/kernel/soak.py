"""Sixteen callers at a node whose agent is killed again and again: whether each is answered rightly, and what is left.

    python -m tests.kernel.soak CALLS KILLS CALLERS SEED

as root; prints progress, then every fault, and ends with exit code 1 where there is one.

Invariants: every call is an execution of the plugin, as a runtime makes it, of a random verb at a random moment. A
caller has some pods of its own, and alone knows what becomes of them; what it was told goes into books that all share,
where no two pods may have one address at any moment. Kills come after random numbers of calls, and meet whatever is
under way. An ADD that fails is followed by a DEL, as a runtime does it; none begins between the making of a list for GC
and GC's answer, but those under way go on. At the end all pods go, and the node must look
as before the first one came.
"""

import itertools
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from podwire.cni.install import install
from tests.kernel.hands import await_links
from tests.kernel.process import AgentProcess
from tests.kernel.rig import MakeSpace, Space, dump, entered, sh, spaces
from tests.unit.shims import native

PODS = 3
"""Of each caller."""
WAITING = 0.9
"""How often a caller waits for an agent that is away: else nearly all calls would be made while it starts."""
PATIENCE = 60.0
"""Seconds for a call: a limit against hanging. A call that meets a start of the agent waits for it."""
TRY_AGAIN = 11
"""The plugin's code while no agent answers (CNI SPEC, "Error")."""
_CHOICES = {
    "nothing": {"ADD": 12, "DEL": 1, "STATUS": 1},
    "attached": {"CHECK": 4, "DEL": 5, "ADD": 1, "replace": 2, "pull": 1, "GC": 1, "STATUS": 1},
    "broken": {"DEL": 6, "ADD": 1, "GC": 1},
}
"""What a caller does next, and how often, by what it knows of its pod. `pull`: the pod's namespace is removed while the
pod is attached; `replace`: a new sandbox of the same pod before the old one's DEL."""


class Call(NamedTuple):
    code: int
    """0, or CNI's; -1: hung, or said nothing that could be understood."""
    said: Any


class Pod:
    """`sandbox` is "" where a runtime has nothing to delete."""

    def __init__(self, name: str, space: Space) -> None:
        self.name, self.space = name, space
        self.sandbox, self.ips, self.broken = "", frozenset[str](), False
        self.result: Any = None

    @property
    def state(self) -> str:
        return "broken" if self.broken else "attached" if self.sandbox else "nothing"


class Books:
    """What all callers together know: who has which address, what a runtime counts as valid, what went wrong."""

    def __init__(self, calls: int) -> None:
        self.faults: list[str] = []
        self.calls = 0
        self.done: dict[str, int] = {}
        self.most = calls
        self._owners: dict[str, str] = {}
        self._valid: set[str] = set()
        self._lock = threading.Lock()
        self.stirred = threading.Condition(self._lock)
        self.beginning = threading.Lock()
        """Held by whoever makes a list for GC, until that is answered."""
        self.up = threading.Event()
        self.up.set()

    def next_call(self) -> bool:
        """Whether there is one more to make."""
        with self._lock:
            if self.calls >= self.most or len(self.faults) >= 20:
                return False
            self.calls += 1
            self.stirred.notify_all()
            return True

    def fault(self, words: str) -> None:
        with self._lock:
            self.faults.append(words)
            self.stirred.notify_all()

    def tally(self, what: str) -> None:
        with self._lock:
            self.done[what] = self.done.get(what, 0) + 1

    def begin(self, sandbox: str) -> None:
        with self.beginning, self._lock:
            self._valid.add(sandbox)

    def end(self, sandbox: str) -> None:
        with self._lock:
            self._valid.discard(sandbox)

    def valid(self) -> list[str]:
        with self._lock:
            return sorted(self._valid)

    def takes(self, sandbox: str, ips: frozenset[str]) -> None:
        """At the moment of an ADD's answer."""
        with self._lock:
            self.faults += [f"{ip}: {sandbox} gets it, {self._owners[ip]} has it" for ip in ips if ip in self._owners]
            self._owners.update(dict.fromkeys(ips, sandbox))

    def gives(self, ips: frozenset[str]) -> None:
        """Before the call that may free them."""
        with self._lock:
            for ip in ips:
                self._owners.pop(ip, None)


class Soak:
    def __init__(self, make: MakeSpace, node: Space, plugin: Path, books: Books) -> None:
        self.make, self.node, self.books, self._plugin = make, node, books, plugin
        self._numbers = itertools.count()

    # --- calls ---

    def call(self, verb: str, sandbox: str = "", pod: Pod | None = None, **config: Any) -> Call:
        environment = {"CNI_COMMAND": verb, "CNI_PATH": str(self._plugin.parent), "PATH": os.environ["PATH"]}
        if pod is not None:
            environment |= {"CNI_CONTAINERID": sandbox, "CNI_NETNS": pod.space.path, "CNI_IFNAME": "eth0"}
            environment["CNI_ARGS"] = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod.name}"
        text = json.dumps({"cniVersion": "1.1.0", "name": "podwire", "type": "podwire", **config})
        try:
            done = subprocess.run(
                [self._plugin], input=text.encode(), env=environment, capture_output=True, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            self.books.fault(f"{verb} {sandbox}: not answered within {PATIENCE:.0f} s")
            return Call(-1, None)
        try:
            said = json.loads(done.stdout) if done.stdout else None
            code = 0 if done.returncode == 0 else int(said["code"])
        except (ValueError, TypeError, KeyError):
            self.books.fault(f"{verb} {sandbox}: exit code {done.returncode}, {done.stdout!r} {done.stderr!r}")
            return Call(-1, None)
        self.books.tally(f"{verb} {'done' if code == 0 else code}")
        return Call(code, said)

    def may_fail(self, verb: str, sandbox: str, call: Call) -> bool:
        """Whether it failed, and only for want of an agent; else that is a fault."""
        if call.code not in (0, TRY_AGAIN, -1):
            self.books.fault(f"{verb} {sandbox}: {call.said}")
        return call.code != 0

    # --- what a runtime does ---

    def add(self, pod: Pod) -> None:
        """A new sandbox; or the old one again, which must get the same answer."""
        again = bool(pod.sandbox)
        sandbox = pod.sandbox = pod.sandbox or f"{pod.name}-{next(self._numbers)}"
        self.books.begin(sandbox)
        answer = self.call("ADD", sandbox, pod)
        if self.may_fail("ADD", sandbox, answer):
            pod.broken = True
            return
        ips = frozenset(it["address"].partition("/")[0] for it in answer.said["ips"])
        if again and pod.ips and ips != pod.ips:
            self.books.fault(f"ADD {sandbox}: first {sorted(pod.ips)}, then {sorted(ips)}")
        if not pod.ips:
            self.books.takes(sandbox, ips)
        pod.ips, pod.broken, pod.result = ips, False, answer.said
        self.reached(sandbox, ips)

    def reached(self, sandbox: str, ips: frozenset[str]) -> None:
        """Nobody listens in the pod: its kernel refuses at once."""
        for ip in sorted(ips):
            try:
                socket.create_connection((ip, 1), timeout=5).close()
            except ConnectionRefusedError:
                continue
            except OSError as error:
                self.books.fault(f"{sandbox} {ip}: {error} instead of a refusal")

    def delete(self, pod: Pod) -> None:
        self.books.gives(pod.ips)
        sandbox, pod.ips = pod.sandbox or f"{pod.name}-never", frozenset()
        if self.call("DEL", sandbox, pod).code != 0:
            self.books.fault(f"DEL {sandbox}: failed")
            return
        self.books.end(sandbox)
        pod.sandbox, pod.broken = "", False
        if not os.path.exists(pod.space.path):
            pod.space = self.make("pod")

    def check(self, pod: Pod) -> None:
        self.may_fail("CHECK", pod.sandbox, self.call("CHECK", pod.sandbox, pod, prevResult=pod.result))

    def replace(self, pod: Pod) -> None:
        """The old sandbox's late DEL must not touch the new one."""
        old = Pod(pod.name, pod.space)
        old.sandbox, pod.sandbox = pod.sandbox, ""
        self.books.gives(pod.ips)
        pod.ips, pod.space = frozenset(), self.make("pod")
        self.add(pod)
        self.delete(old)
        sh("ip", "netns", "del", old.space.name)
        if not pod.broken:
            self.check(pod)

    def pull(self, pod: Pod) -> None:
        self.books.gives(pod.ips)
        pod.ips, pod.broken = frozenset(), True
        sh("ip", "netns", "del", pod.space.name)

    def collect(self, _: Pod) -> None:
        with self.books.beginning:
            valid = [{"containerID": sandbox, "ifname": "eth0"} for sandbox in self.books.valid()]
            self.may_fail("GC", "", self.call("GC", **{"cni.dev/valid-attachments": valid}))

    def status(self, _: Pod) -> None:
        """A node that was ready since its boot stays so."""
        answer = self.call("STATUS")
        if answer.code != 0:
            self.books.fault(f"STATUS: {answer.said}")

    def does(self, what: str, pod: Pod) -> None:
        if what == "ADD" and not os.path.exists(pod.space.path):
            return  # nothing that a runtime would do
        acts: dict[str, Callable[[Pod], None]] = {
            "ADD": self.add,
            "DEL": self.delete,
            "CHECK": self.check,
            "GC": self.collect,
            "STATUS": self.status,
            "replace": self.replace,
            "pull": self.pull,
        }
        acts[what](pod)

    def caller(self, number: int, seed: str) -> None:
        dice = random.Random(f"{seed} {number}")
        pods = [Pod(f"pod-{number}-{each}", self.make("pod")) for each in range(PODS)]
        with entered(self.node):
            while self.books.next_call():
                pod = dice.choice(pods)
                if dice.random() < WAITING:
                    self.books.up.wait(PATIENCE)
                choices = _CHOICES[pod.state]
                self.does(dice.choices(list(choices), list(choices.values()))[0], pod)
            for pod in pods:
                if pod.sandbox:
                    self.delete(pod)


def soak(calls: int, kills: int, callers: int, seed: str) -> Books:
    """Makes everything, and leaves nothing."""
    books = Books(calls)
    with tempfile.TemporaryDirectory() as place, spaces() as make:
        home = Path(place)
        node = make("node")
        agent = AgentProcess(home)
        plugin = install(home / "bin", agent.socket, agent.spool, agent.ready, sys.executable, native_or_none())
        with entered(node):
            agent.start()
            try:
                before = dump()
                it = Soak(make, node, plugin, books)
                threads = [threading.Thread(target=guarded, args=(it.caller, n, seed, books)) for n in range(callers)]
                threads.append(threading.Thread(target=guarded, args=(Killer(node, agent, books), kills, seed, books)))
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                books.faults += left(it, agent, before)
            finally:
                agent.stop(signal.SIGKILL)
    return books


def guarded(what: Callable[[int, str], None], number: int, seed: str, books: Books) -> None:
    """A thread's own fault is one of the soak's."""
    try:
        what(number, seed)
    except Exception as error:
        books.fault(f"{what!r} {number}: {error!r}")


class Killer:
    def __init__(self, node: Space, agent: AgentProcess, books: Books) -> None:
        self._node, self._agent, self._books = node, agent, books

    def __call__(self, kills: int, seed: str) -> None:
        books = self._books
        dice = random.Random(f"{seed} kills")
        moments = sorted(dice.sample(range(1, books.most), kills))
        with entered(self._node):
            for at, moment in enumerate(moments, 1):
                with books.stirred:
                    books.stirred.wait_for(lambda moment=moment: books.calls >= moment or len(books.faults) >= 20)
                books.up.clear()
                self._agent.stop(signal.SIGKILL)
                self._agent.start()
                books.up.set()
                print(f"soak: {books.calls} calls, {at} kills, {len(books.faults)} faults", flush=True)


def left(it: Soak, agent: AgentProcess, before: str) -> list[str]:
    """What is there that was not, once everybody has gone."""
    found = []
    answer = it.call("GC", **{"cni.dev/valid-attachments": []})
    if answer.code != 0:
        found.append(f"GC at the end: {answer.said}")
    await_links(0)
    if (after := dump()) != before:
        found.append(f"the node was\n{before}\nand is\n{after}")
    verified = agent.say("verify")
    if verified.returncode != 0:
        found.append(f"verify: {verified.stdout}{verified.stderr}")
    with sqlite3.connect(f"file:{agent.state / 'podwire.db'}?mode=ro", uri=True) as store:
        rows = store.execute("SELECT * FROM attachment").fetchall()
    found += [f"row {row}" for row in rows]
    found += [f"in the spool: {file.name}" for file in sorted(agent.spool.iterdir())]
    used = json.loads(agent.say("status", "-o", "json").stdout)["pod_cidrs"]
    found += [f"{each['range']}: {each['used']} used" for each in used if each["used"]]
    return found


def native_or_none() -> Path | None:
    """The plugin in C where a compiler is, as it takes fewer of the machine's processors; else the one in Python."""
    return native() if shutil.which("gcc") else None


def main() -> None:
    calls, kills, callers = map(int, sys.argv[1:4])
    books = soak(calls, kills, callers, sys.argv[4])
    print(", ".join(f"{what}: {count}" for what, count in sorted(books.done.items())))
    for fault in books.faults:
        print(f"FAULT {fault}")
    print(f"soak: {books.calls} calls of {callers} callers, {kills} kills, {len(books.faults)} faults")
    sys.exit(bool(books.faults))


if __name__ == "__main__":
    main()
