"""Where what is built is kept: in the user's cache, for all checkouts, by a digest of what it is made from."""

import hashlib
import os
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire" / "kubernetes"

_BEGAN = monotonic()


class CannotBuild(Exception):
    """One line for whoever builds."""


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def say(text: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"[cluster {monotonic() - _BEGAN:5.0f} s] {text}", flush=True)
