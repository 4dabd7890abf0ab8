"""What an agent needs of its machine: a place for itself that nobody else can take, and a kernel with IPv6."""

import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from podwire.preflight import CannotStart, alone, lock_of, look_at_ipv6

HERE = Path("/proc/thread-self/ns/net")


def test_a_second_agent_is_refused_and_the_end_of_the_first_leaves_nothing(tmp_path: Path) -> None:
    with alone(tmp_path / "locks"):
        with (
            pytest.raises(CannotStart, match="another agent looks after this network namespace"),
            alone(tmp_path / "locks"),
        ):
            pass
        assert lock_of(HERE, tmp_path / "locks").exists(), "who was refused took it from nobody"
    assert list((tmp_path / "locks").iterdir()) == []
    with alone(tmp_path / "locks"):
        pass


def test_no_socket_of_another_user_is_in_the_way(tmp_path: Path) -> None:
    """Any process may bind any abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind("\0podwire-agent")
        with alone(tmp_path):
            pass


def test_a_killed_agent_is_in_nobodys_way(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from podwire.preflight import alone\n"
        "with alone(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == -9
    assert lock_of(HERE, tmp_path).exists()
    with alone(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_while_it_was_taken_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder before ends between our opening and our lock."""
    path, true_flock, times = lock_of(HERE, tmp_path), fcntl.flock, list[int]()

    def flock(file: int, how: int) -> None:
        if not times:
            path.unlink()
        times.append(how)
        true_flock(file, how)

    monkeypatch.setattr("fcntl.flock", flock)
    with alone(tmp_path):
        assert len(times) == 2
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(CannotStart), alone(tmp_path):
            pass


def test_nobody_else_reaches_the_locks(tmp_path: Path) -> None:
    directory = tmp_path / "locks"
    directory.mkdir(mode=0o755)
    with alone(directory):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(lock_of(HERE, directory).stat().st_mode) == 0o600


@pytest.mark.parametrize("what", ["file", "link", "link as the lock"])
def test_what_is_in_the_way_is_named(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "locks"
    if what == "file":
        directory.write_text("another's")
    elif what == "link":
        directory.symlink_to(tmp_path)
    else:
        directory.mkdir()
        lock_of(HERE, directory).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotStart, match=f"^{directory}.*: expected "), alone(directory):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_kernel_without_ipv6_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "net" / "ipv4" / "conf" / "all").mkdir(parents=True)
    with pytest.raises(CannotStart) as refused:
        look_at_ipv6(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}/net/ipv6 is missing: the kernel runs without IPv6: boot without ipv6.disable=1; "
        "IPv6 addresses need not be used"
    )
    (tmp_path / "net" / "ipv6" / "conf" / "all").mkdir(parents=True)
    look_at_ipv6(tmp_path)
