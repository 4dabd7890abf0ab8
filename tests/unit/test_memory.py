"""What is dropped between what stays goes back to the kernel."""

import pytest

from podwire import memory
from tests.bench.figures import resident


@pytest.mark.skipif(memory._trim is None, reason="this C library has no malloc_trim")
def test_what_is_dropped_between_what_stays_is_given_back() -> None:
    pieces = [b"x" * (16 << 10) for _ in range(64 * 40)]  # 40 MB, each too small for a mapping of its own
    stays = pieces[::64]
    before = resident("self")
    del pieces
    memory.give_back()
    assert len(stays) == 40
    assert before - resident("self") > 20
