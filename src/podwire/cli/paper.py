"""Printing tables and lines, on a terminal or anywhere else.

Invariants: nothing is ever cut: where a row is wider than the terminal, the terminal folds it, and elsewhere it is one
line, so that `grep` finds it whole. No line ends in blanks. Colour is for terminals only.
"""

import re
import sys

from rich.console import Console, RenderableType
from rich.measure import Measurement

WIDEST = 10_000
_BLANKS = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)


def show(what: RenderableType) -> None:
    wide = Console(width=WIDEST, markup=False, highlight=False)
    needed = Measurement.get(wide, wide.options, what).maximum
    there = Console(markup=False, highlight=False)
    width = max(there.width, needed) if sys.stdout.isatty() else WIDEST
    console = Console(width=min(width, WIDEST), markup=False, highlight=False)
    with console.capture() as captured:
        console.print(what)
    sys.stdout.write(_BLANKS.sub(r"\1", captured.get()))
    sys.stdout.flush()
