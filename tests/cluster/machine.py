"""A machine of the cluster: namespaces of its own with a first process, and the programs that run in them.

Invariants: everything that a machine runs is in its PID namespace, so killing the first process ends all of it, whoever
started it, and mounts, interfaces and namespaces go with the last process: none of them has a name on this machine.
The first process dies with the process that made it, even a killed one. A node has a root of its own, this machine's
below: what it writes in /etc, /opt, /run or /var is its own, at the usual paths. What remains is the cluster's
directory, and control groups with the node's name.
"""

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tests.cluster.parts import places, programs

PATIENCE = 120.0
"""Seconds for a program to get ready or to end: a limit against hanging, never a measure."""

_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")

_PLAIN = """
set -e
hostname "$1"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
ip link set lo up
"""

# kubelet sets these for the whole kernel: the node has files in their place.
_KERNEL_WIDE = "vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
kernel/keys/root_maxbytes"

_NODE = f"""
set -e
name=$1 own=$2 cluster=$3 programs=$4
hostname "$name"
mkdir -p "$own/upper" "$own/work" "$own/root" "$own/kubelet" "$own/containerd" "$own/sysctl"
mount -t overlay overlay -o "lowerdir=/,upperdir=$own/upper,workdir=$own/work" "$own/root"
cd "$own/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
for fresh in run tmp; do mount -t tmpfs tmpfs $fresh; done
chmod 1777 tmp
mkdir -p run/old run/netns run/lock var/lib/kubelet var/lib/containerd etc/cni/net.d opt/cni/bin
mkdir -p ".$cluster" ".$programs"
mount --bind "$own/kubelet" var/lib/kubelet
mount --bind "$own/containerd" var/lib/containerd
mount --bind "$cluster" ".$cluster"
mount --bind "$programs" ".$programs"
for setting in {_KERNEL_WIDE}; do
    copy=$own/sysctl/$(basename $setting)
    cat /proc/sys/$setting >"$copy"
    mount --bind "$copy" proc/sys/$setting
done
pivot_root . run/old
cd /
umount -l run/old
rmdir run/old
rm -rf /etc/cni/net.d/* /opt/cni/bin/* /var/lib/cni /var/lib/podwire /var/log/pods /var/log/containers
mount --make-rshared /
ip link set lo up
"""

_THEN = """
echo ready
exec "$0" >/dev/null
"""


class DidNotStart(Exception):
    """With the end of its log."""


class CommandFailed(Exception):
    """A command on a machine, with what it said."""


class Program:
    """One that runs on a machine until it is stopped."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self.log = process, log
        """The process is nsenter, which waits for the program."""

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Returns once it has ended."""
        for child in children(self._process.pid):
            os.kill(child, number)
        self.await_end()

    def await_end(self) -> None:
        self._process.wait(PATIENCE)

    def await_ready(self, inbox: socket.socket) -> None:
        """Until it says READY=1 (sd_notify(3)). Raises DidNotStart."""
        ended = os.pidfd_open(self._process.pid)
        try:
            while True:
                ready, _, _ = select.select([inbox.fileno(), ended], [], [], PATIENCE)
                if inbox.fileno() not in ready:
                    why = "ended" if ready else "does not get ready"
                    raise DidNotStart(f"{self.log.stem} {why}:\n{self.log.read_text(errors='replace')[-4000:]}")
                if b"READY=1" in inbox.recv(4096).splitlines():
                    return
        finally:
            os.close(ended)


class Machine:
    """`pid`: of its first process, as this machine sees it."""

    def __init__(self, name: str, cluster: Path, node: bool) -> None:
        """To be made in a thread that lives as long as the machine shall. Raises DidNotStart."""
        self.name, self.cluster = name, cluster
        self.own = cluster / name
        self.own.mkdir()
        self._programs: list[Program] = []
        (cluster / "log").mkdir(exist_ok=True)
        script = (_NODE if node else _PLAIN) + _THEN
        pause, place = programs.path("pause"), places.CACHE / "programs"
        dies_with_us = ("setpriv", "--pdeathsig", "KILL")
        unshare = ("unshare", *_NAMESPACES, "--fork", "--kill-child=KILL", "--propagation", "private")
        with (cluster / "log" / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*dies_with_us, *unshare, "sh", "-c", script, pause, name, self.own, cluster, place],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self._process.wait(PATIENCE)
            raise DidNotStart(f"{name}: {(cluster / 'log' / f'{name}.log').read_text(errors='replace')}")
        (self.pid,) = children(self._process.pid)

    def inside(self, *command: str | Path) -> list[str]:
        """The command line that runs a command on this machine."""
        return ["nsenter", "--target", str(self.pid), *_NAMESPACES, "--", *map(str, command)]

    def run(self, *command: str | Path, stdin: str | None = None, check: bool = True) -> str:
        """What it prints. Raises CommandFailed."""
        done = subprocess.run(self.inside(*command), input=stdin, capture_output=True, text=True)
        if check and done.returncode:
            raise CommandFailed(f"{self.name}: {' '.join(map(str, command))}: {done.stderr.strip() or done.stdout}")
        return done.stdout

    def pipe(self, content: BinaryIO, *command: str | Path) -> None:
        """A command that reads a file of this machine. Raises CommandFailed."""
        done = subprocess.run(self.inside(*command), stdin=content, capture_output=True, text=True)
        if done.returncode:
            raise CommandFailed(f"{self.name}: {' '.join(map(str, command))}: {done.stderr.strip()}")

    def start(self, name: str, *command: str | Path, notifies: bool = False, **environment: str) -> Program:
        """`notifies`: returns once it is ready, which it says itself. Raises DidNotStart."""
        log = self.cluster / "log" / f"{name}.log"
        with _inbox(self.cluster / "log" / f".{name}.notify") as (path, inbox), log.open("ab") as out:
            said = {"NOTIFY_SOCKET": str(path)} if notifies else {}
            process = subprocess.Popen(
                self.inside(*command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **environment, **said},
            )
            program = Program(process, log)
            self._programs.append(program)
            if notifies:
                program.await_ready(inbox)
        return program

    def end(self) -> None:
        """All that runs on it, at once."""
        for child in children(self._process.pid):
            os.kill(child, signal.SIGKILL)
        self._process.wait(PATIENCE)
        for program in self._programs:
            program.await_end()
        assert self._process.stdout is not None
        self._process.stdout.close()


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def _inbox(path: Path) -> Iterator[tuple[Path, socket.socket]]:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(path))
        try:
            yield path, inbox
        finally:
            path.unlink(missing_ok=True)
