"""The key of heartbeats is read from a file."""

from pathlib import Path

import pytest

from podwire.l2.driver import read_key


def test_a_key_is_without_its_line_break(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("  0123456789abcdef\n")
    assert read_key(tmp_path / "key") == b"0123456789abcdef"


def test_a_short_key_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    with pytest.raises(OSError, match=r"expected a key of at least 16 bytes, found 6.*key") as refused:
        read_key(tmp_path / "key")
    assert refused.value.filename == str(tmp_path / "key")


def test_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="key"):
        read_key(tmp_path / "key")
