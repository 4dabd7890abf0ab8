"""The cluster's objects as files, which the agents watch in place of an API server.

Invariants: a file is an object; its name appears with its whole content or not at all. What is new is written before
what is old goes, so that a Service never lacks a slice in between. Unchanged objects are not touched.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from podwire.lab.expand import ObjectKey
from podwire.lab.forms import Fields
from podwire.lab.names import resolv_conf

Published = Mapping[str, bytes]
"""File name → content."""

_LONGEST = 200


def publish(directory: Path, staging: Path, before: Published, objects: Mapping[ObjectKey, Fields]) -> Published:
    """What the directory holds then. Raises OSError."""
    after = {file_name(key): msgspec.json.encode(data) + b"\n" for key, data in objects.items()}
    for name, content in after.items():
        if before.get(name) != content:
            draft = staging / name
            draft.write_bytes(content)
            draft.rename(directory / name)
    for name in sorted(before.keys() - after.keys()):
        (directory / name).unlink()
    return after


def publish_resolver(directory: Path, staging: Path, objects: Mapping[ObjectKey, Fields]) -> None:
    """resolv.conf(5) for the programs in pods, a file for each namespace that has pods. Raises OSError."""
    for namespace in sorted({key.namespace for key in objects if key.kind == "Pod"}):
        draft = staging / f"resolv.{namespace}"
        draft.write_text(resolv_conf(objects, namespace), encoding="utf-8")
        draft.rename(directory / namespace)


def file_name(key: ObjectKey) -> str:
    name = ".".join(part for part in (key.kind.lower(), key.namespace, key.name) if part)
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}-{sha256(name.encode()).hexdigest()[:12]}"
    return f"{name}.json"
