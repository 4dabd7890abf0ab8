"""What both plugins leave in the spool: all of a DEL or nothing, whenever they are killed."""

import time
from itertools import count
from pathlib import Path

import pytest

from podwire.cni.cni_pb2 import CniRequest
from podwire.sources.cni_spool import WRITING, spooled, sweep
from tests.unit import stepping
from tests.unit.shims import CONFIG, ENVIRONMENT, KINDS, PATH, place

SPOOLING = 80
"""So many of the last stops are looked at: from before the spool is made to the end."""


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_system_call_a_del_is_spooled_whole_or_not_at_all(tmp_path: Path, kind: str) -> None:
    it = place(tmp_path, kind)
    stdin = tmp_path / "stdin"
    stdin.write_bytes(CONFIG)
    environment = ENVIRONMENT | {"CNI_COMMAND": "DEL", "PATH": PATH}

    def held() -> list[bytes]:
        return [CniRequest.FromString(path.read_bytes()).stdin for path in spooled(it.spool)]

    def clear() -> None:
        for path in it.spool.iterdir() if it.spool.exists() else ():
            path.unlink()
        if it.spool.exists():
            it.spool.rmdir()

    whole = stepping.run([it.plugin], environment, stdin)
    assert (whole.code, held()) == (0, [CONFIG])
    found, done = set(), stepping.Stepped(0, None)
    for most in count(max(1, whole.stops - SPOOLING)):  # an interpreter's start is not always equally long
        if done.code is not None:
            break
        clear()
        done = stepping.run([it.plugin], environment, stdin, most)
        assert held() in ([], [CONFIG])
        assert done.code is None or held() == [CONFIG], "its exit code says that the DEL is safe"
        found.add((it.spool.exists(), len(list(it.spool.glob("*.tmp"))), len(held())))
        kept = held()
        sweep(it.spool, time.time() + 2 * WRITING)
        assert (held(), list(it.spool.glob("*.tmp"))) == (kept, []), "what it left half written goes, and nothing else"
        # Whatever it left, the next DEL is not in its way.
        before = len(held())
        assert stepping.run([it.plugin], environment, stdin).code == 0
        assert len(held()) == before + 1
    assert {(False, 0, 0), (True, 0, 0), (True, 1, 0), (True, 0, 1)} <= found, "all of its moments were met"
