"""Files of the state directory that are written aside: however often a writer is killed, one is left at most."""

import subprocess
import sys
from pathlib import Path

import pytest

KILLED = "import os, pathlib; pathlib.Path.rename = lambda *_: os.kill(os.getpid(), 9); "
MARK = "from podwire.cni import mark; mark.leave(pathlib.Path({path!r}), mark.BOOT_ID)"
COUNTS = (
    "from podwire.statistics.counted import COUNTS; from podwire.statistics.kept import Kept; "
    "from podwire.statistics.totals import Totals; "
    "Kept(pathlib.Path({path!r})).keep('1', Totals({{}}, {{}}, (0,) * COUNTS))"
)


@pytest.mark.parametrize(("name", "writer"), [("ready", MARK), ("counts", COUNTS)])
def test_killed_writers_leave_one_file_at_most_and_the_next_one_takes_it(
    tmp_path: Path, name: str, writer: str
) -> None:
    program = writer.format(path=str(tmp_path / name))
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED + program]).returncode == -9
        assert len(list(tmp_path.iterdir())) == 1
    assert subprocess.run([sys.executable, "-c", "import pathlib; " + program]).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
