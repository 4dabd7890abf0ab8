"""What an agent needs of its machine, looked at before anything is started: a state directory, to be alone, rights,
nft's library, and a kernel with IPv6.

Invariants: nothing of the network is touched. Whatever is missing is one line that names it and says what to do.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from podwire.config import Config, Kubernetes
from podwire.dataplane import netlink
from podwire.dataplane.nftables import libnftables
from podwire.sources.kube_api import Api
from podwire.sources.kube_config import KubeConfigError, read_access
from podwire.sources.kube_credentials import Credentials

RIGHTS = "run it as root; in Kubernetes: privileged, or with the capabilities NET_ADMIN and SYS_ADMIN"


LOCKS = Path("/run/podwire")
"""One for all state directories, and the same for the agent's container as for the node: see deploy/podwire.yaml."""


class CannotStart(Exception):
    """The agent can't run here; one line says why."""


def api_of(settings: Kubernetes) -> Api:
    """Nothing is asked yet. Raises CannotStart."""
    try:
        access = read_access(settings, os.environ)
    except KubeConfigError as error:
        raise CannotStart(str(error)) from error
    return Api(access, Credentials(access))


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
        stack.callback(os.close, _locked(config.lock, "another agent (process {holder}) runs on this state directory"))
        stack.enter_context(alone())
        yield


def look_at_ipv6(settings: Path) -> None:
    """Raises CannotStart on a kernel that was booted without IPv6. `settings` is what shows as /proc/sys.

    The rules and the pods' interfaces are made for both families, so every ADD would fail there."""
    if not (settings / "net/ipv6/conf/all").is_dir():
        remedy = "boot without ipv6.disable=1; IPv6 addresses need not be used"
        raise CannotStart(f"{settings}/net/ipv6 is missing: the kernel runs without IPv6: {remedy}")


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


@contextmanager
def alone(directory: Path = LOCKS) -> Iterator[None]:
    """This network namespace for this agent, whatever its state directory. The kernel gives it back when the process
    ends; what ends well leaves no file. Raises CannotStart.

    A file, as nobody but root can have it: a name that any process may take (an abstract socket) would let every user
    of the node keep the agent from starting.
    """
    _make_locks(directory)
    path = lock_of(Path("/proc/thread-self/ns/net"), directory)
    file = _locked(path, "another agent looks after this network namespace, with another state_dir")
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # still locked: who opens it meanwhile sees that it is gone, and makes it anew
        os.close(file)


def lock_of(netns: Path, directory: Path = LOCKS) -> Path:
    """The lock of a network namespace, by its inode: the kernel gives each another one. Raises OSError."""
    return directory / f"netns-{netns.stat().st_ino}.lock"


def _make_locks(path: Path) -> None:
    """Raises CannotStart where others than root could reach into it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        it = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(it).st_uid != os.geteuid():
                raise CannotStart(f"{path}: belongs to another user: expected a directory of root's, or nothing")
            os.fchmod(it, 0o700)  # where Kubernetes makes it, everybody may read it
        finally:
            os.close(it)
    except OSError as error:
        raise CannotStart(f"{path}: {error.strerror}: expected a directory that root can write to") from None


def _locked(path: Path, taken: str) -> int:
    """The lock, open; closing it gives it back. Raises CannotStart where another agent has it: `taken`, in which
    `{holder}` is its process."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotStart(f"{path}: {error.strerror}: expected a file that root can write to, or nothing") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise CannotStart(f"{path}: is in the way: expected a regular file, or nothing")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(file, 20, 0).decode(errors="replace").strip()
                raise CannotStart(f"{path}: {taken.format(holder=holder)}") from None
            if _leads_to(path, file):
                _note_process(file)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _leads_to(path: Path, file: int) -> bool:
    """Not where the holder before has removed it between the opening and the lock."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


def _note_process(file: int) -> None:
    """For the error that a second agent gets; a full disk does not matter here."""
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass
