"""What FRR begins with, on a disk that has no room for it."""

import errno
import os
from pathlib import Path

import pytest

from podwire.bgp import files
from podwire.bgp.config import plan
from podwire.bgp.tree import EMPTY
from tests.unit.bgp_speakers import many, session

FEW, LOTS = (plan(many(count, (session("tor", "10.99.1.254"),))).held["bgpd"] for count in (1, 500))


@pytest.mark.parametrize("call", ["fsync", "fchown", "fchmod"])
def test_what_can_not_be_written_leaves_what_was_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files.write(tmp_path, "bgpd", FEW)

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(OSError, match="No space"):
            files.write(tmp_path, "bgpd", LOTS)
    assert [it.name for it in tmp_path.iterdir()] == ["bgpd.conf"]
    assert files.read(tmp_path, "bgpd") == FEW
    assert files.write(tmp_path, "bgpd", LOTS)
    assert files.read(tmp_path, "bgpd") == LOTS != EMPTY
