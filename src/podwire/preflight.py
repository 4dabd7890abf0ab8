"""What an agent needs of its machine, looked at before anything is started: a state directory, to be alone, rights, and
nft's library.

Invariants: nothing of the network is touched. Whatever is missing is one line that names it and says what to do.
"""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from podwire.config import Config
from podwire.dataplane import netlink
from podwire.dataplane.nftables import libnftables

RIGHTS = "run it as root; in Kubernetes: privileged, or with the capabilities NET_ADMIN and SYS_ADMIN"


class CannotStart(Exception):
    """The agent can't run here; one line says why."""


@contextmanager
def ready(config: Config) -> Iterator[None]:
    """As long as it is entered this agent has its place for itself. Raises CannotStart."""
    _look_at_rights()
    try:
        libnftables.load()
    except libnftables.NftablesMissing as error:
        raise CannotStart(str(error)) from None
    with ExitStack() as stack:
        _make_state_dir(config.state_dir)
        stack.callback(os.close, _locked(config.lock))
        stack.enter_context(_alone())
        yield


def _look_at_rights() -> None:
    """By doing what the agent will do, but harmlessly: what a capability is worth depends on user namespaces."""
    try:
        netlink.Socket(netlink.ROUTE).close()
    except PermissionError:
        raise CannotStart(f"the right to change the network (CAP_NET_ADMIN) is missing: {RIGHTS}") from None
    with open("/proc/thread-self/ns/net") as own:
        try:
            with netlink.inside(own.fileno()):
                pass
        except OSError:
            raise CannotStart(f"the right to enter network namespaces (CAP_SYS_ADMIN) is missing: {RIGHTS}") from None


def _make_state_dir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStart(f"state_dir {path}: {error.strerror}: expected a directory that root can write to") from None


def _alone() -> socket.socket:
    """A name that one socket can have in a network namespace (unix(7), abstract). Raises CannotStart where another
    agent, of whatever state directory, looks after this one."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        held.bind("\0podwire-agent")
    except OSError:
        held.close()
        raise CannotStart("another agent looks after this network namespace, with another state_dir") from None
    return held


def _locked(path: Path) -> int:
    """The lock, open; closing it gives it back. Raises CannotStart where another agent has it."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotStart(f"{path}: {error.strerror}: expected a file that root can write to, or nothing") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise CannotStart(f"{path}: is in the way: expected a regular file, or nothing")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 20, 0).decode(errors="replace").strip()
            raise CannotStart(f"{path}: another agent (process {holder}) runs on this state directory") from None
        _note_process(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _note_process(file: int) -> None:
    """For the error that a second agent gets; a full disk does not matter here."""
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass
