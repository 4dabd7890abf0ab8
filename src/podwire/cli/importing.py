"""`podwire import`: what configures another load balancer, as Podwire's objects."""

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from cyclopts import App

from podwire.cli.client import REFUSED, Failed
from podwire.model.text import printable
from podwire.sources.documents import Broken, documents
from podwire.sources.fields import Invalid
from podwire.sources.metallb import Thing, convert
from podwire.sources.metallb_config import is_config, objects_of

app = App(name="import", help="Print another load balancer's configuration as Podwire's objects.")


@app.command
def metallb(*files: Path) -> None:
    """Print Podwire's objects for MetalLB's: pools, peers and advertisements, with the Secrets of their passwords.

    What has no counterpart is told on stderr. The exit code is 0 where every object has come over, 1 where one was left
    out or a file is broken; nothing is printed of a broken file. The objects' names stay as they are.

    Parameters
    ----------
    files
        YAML or JSON with objects of group metallb.io, or with the ConfigMap that MetalLB had up to 0.12; - is stdin.
    """
    if not files:
        raise Failed("expected at least one FILE, or - for stdin", REFUSED)
    imported = convert(_read(files))
    for warning in imported.warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    if imported.objects:
        yaml.safe_dump_all(imported.objects, sys.stdout, sort_keys=False, allow_unicode=True)
    if imported.left_out:
        names = ", ".join(f"{kind} {name}" for kind, name in imported.left_out)
        raise Failed(f"left out: {printable(names)}", REFUSED)
    if not imported.objects:
        raise Failed("no object of MetalLB's is there", REFUSED)


def _read(files: Sequence[Path]) -> list[Thing]:
    """Raises Failed."""
    found: list[Thing] = []
    for path in files:
        try:
            text = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
            for document in documents(str(path), text):
                if is_config(document.data):
                    try:
                        found += objects_of(document.data)
                    except Invalid as error:
                        raise document.broken(error.field, error.message) from None
                else:
                    found.append(document.data)
        except OSError as error:
            raise Failed(f"{path}: {error.strerror}", REFUSED) from None
        except Broken as error:
            raise Failed(str(error), REFUSED) from None
    return found
