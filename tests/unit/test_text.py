"""Text from outside, for people."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.model.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain, ünïcode 中", "plain, ünïcode 中", id="what can be seen stays"),
        pytest.param("a\nb\tc\r", "a\\nb\\tc\\r", id="lines and tabs"),
        pytest.param("\x1b[31m\x07\x9b2J", "\\x1b[31m\\x07\\x9b2J", id="what terminals obey"),
        pytest.param("\u202ea\u2028", "\\u202ea\\u2028", id="what turns lines round, or ends them"),
        pytest.param(os.fsdecode(b"caf\xe9"), "caf\\xe9", id="a byte that is not UTF-8"),
        pytest.param("\ud800", "\\ud800", id="another surrogate"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_whatever_comes_is_one_line_of_utf8(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode()
