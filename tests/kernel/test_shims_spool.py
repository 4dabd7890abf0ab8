"""The spool on a disk that is full or can't be written: both plugins say so, and leave no part of a DEL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.sources.cni_spool import spooled
from tests.kernel.rig import sh
from tests.unit.shims import CONFIG, KINDS, Installed, place


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 64 KiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    sh("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory))
    try:
        yield directory
    finally:
        sh("umount", str(directory))


@pytest.fixture(params=KINDS)
def installed(tmp_path: Path, disk: Path, request: pytest.FixtureRequest) -> Installed:
    it = place(tmp_path, request.param)
    it.settings.write_text(f"socket={it.socket}\nspool={disk}/spool\n")
    return it


async def test_a_full_disk(installed: Installed, disk: Path) -> None:
    answer = await installed.run("DEL", CONFIG + b" " * 100_000)
    assert (answer.code, answer.said["code"], answer.stderr) == (1, 11, b"")
    assert answer.said["details"].endswith(f"the spool {disk}/spool can't be written: No space left on device")
    assert list((disk / "spool").iterdir()) == [], "what it began takes no room"
    assert (await installed.run("DEL")).code == 0
    assert len(spooled(disk / "spool")) == 1


@pytest.mark.parametrize("made", [False, True], ids=["no spool yet", "a spool"])
async def test_a_disk_that_is_read_only(installed: Installed, disk: Path, made: bool) -> None:
    if made:
        (disk / "spool").mkdir()
    sh("mount", "-o", "remount,ro", str(disk))
    answer = await installed.run("DEL")
    assert (answer.code, answer.said["code"], answer.stderr) == (1, 11, b"")
    assert answer.said["details"].endswith(f"the spool {disk}/spool can't be written: Read-only file system")
