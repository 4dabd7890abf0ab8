"""The commands that ask a running agent.

Invariants: what is printed is the agent's answer and nothing else: a table for people, or with `-o json` the bytes as
they came. Errors go to standard error.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import quote

import msgspec
from cyclopts import Parameter
from rich.console import Console, RenderableType

from podwire import views
from podwire.cli import tables
from podwire.cli.client import REFUSED, Failed, ask
from podwire.cli.target import HERE, Output, Target

View = TypeVar("View")

WIDE = 10_000
"""Columns where the output is no terminal: programs see whole lines."""


def status(*, target: Target = HERE, output: Output = "table") -> int:
    _tell(ask(target.socket(), "GET", "/status"), output, views.StatusView, tables.status)
    return 0


def services(name: str | None = None, /, *, target: Target = HERE, output: Output = "table") -> int:
    """
    Parameters
    ----------
    name
        NAMESPACE/NAME: this one only, with all its backends.
    """
    path = "/services" if name is None else f"/services/{_object_path(name)}"
    _tell(ask(target.socket(), "GET", path), output, views.ServiceList, partial(tables.services, full=name is not None))
    return 0


def pods(*, target: Target = HERE, output: Output = "table") -> int:
    _tell(ask(target.socket(), "GET", "/pods"), output, views.PodList, tables.pods)
    return 0


def history(
    *,
    since: int | None = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 20,
    target: Target = HERE,
    output: Output = "table",
) -> int:
    """
    Parameters
    ----------
    since
        Only what followed the entry of this number, from there on.
    limit
        At most so many entries; without --since the newest ones.
    """
    query = f"limit={limit}" if since is None else f"since={since}&limit={limit}"
    _tell(ask(target.socket(), "GET", f"/history?{query}"), output, views.HistoryView, tables.history)
    return 0


def verify(*, target: Target = HERE, output: Output = "table") -> int:
    found = _tell(ask(target.socket(), "GET", "/verify"), output, views.DriftList, tables.drift)
    return 1 if found.drift else 0


def resync(*, target: Target = HERE, output: Output = "table") -> int:
    done = _tell(ask(target.socket(), "POST", "/resync"), output, views.ResyncView, tables.resync)
    if done.error is not None:
        raise Failed(f"the resync failed: {done.error}", REFUSED)
    return 0


def _object_path(name: str) -> str:
    namespace, _, own = name.partition("/")
    if not namespace or not own or "/" in own:
        raise Failed(f"{name!r}: expected NAMESPACE/NAME", REFUSED)
    return f"{quote(namespace)}/{quote(own)}"


def _tell(body: bytes, output: Output, form: type[View], table: Callable[[View], RenderableType]) -> View:
    """Prints an answer, and gives it back decoded."""
    try:
        seen = msgspec.json.decode(body, type=form)
    except msgspec.DecodeError as error:
        raise Failed(f"the agent's answer is not understood, it may be of another version: {error}", REFUSED) from None
    if output == "json":
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
    elif sys.stdout.isatty():
        Console(markup=False, highlight=False).print(table(seen))
    else:
        console = Console(width=WIDE, markup=False, highlight=False)
        with console.capture() as captured:
            console.print(table(seen))
        print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)
    return seen
