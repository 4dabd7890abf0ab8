"""The version of this installation, from the package's own metadata: it is written once, in pyproject.toml."""

from importlib import metadata


def version() -> str:
    return metadata.version("podwire")
