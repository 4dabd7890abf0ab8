"""Image archives that `ctr images import` and `docker load` read, written without either and without a registry.

Invariants: the same trees give the same bytes, whenever and by whomever they were made: members are sorted, and have
no times and no owners but root. An archive appears whole or not at all.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Image(NamedTuple):
    """`names`: its tags, whole. `settings`: Entrypoint, Cmd, Env and the like of the image's configuration (OCI image
    specification). `layers`: paths in the image, each with the file or tree that is there."""

    names: Sequence[str]
    settings: Mapping[str, Any]
    layers: Sequence[Mapping[str, Path]]


def write(out: Path, *images: Image) -> None:
    """Images of one archive share the layers that are equal. Raises OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with tarfile.open(aside, "w") as archive:
            written: set[str] = set()
            manifest = [_add(archive, written, image, aside) for image in images]
            _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, written: set[str], image: Image, aside: Path) -> dict[str, Any]:
    layers = [_layer(archive, written, parts, aside) for parts in image.layers]
    configuration = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {"WorkingDir": "/", "Env": [f"PATH={PATH}"], **image.settings},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}" for layer in layers]},
        "history": [{"created_by": "podwire"} for _ in layers],
    }
    text = json.dumps(configuration).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    _add_bytes(archive, name, text)
    return {"Config": name, "RepoTags": list(image.names), "Layers": [f"{layer}/layer.tar" for layer in layers]}


def _layer(archive: tarfile.TarFile, written: set[str], parts: Mapping[str, Path], aside: Path) -> str:
    """The layer's digest."""
    file = aside.with_name(f"{aside.name}.layer")
    try:
        with tarfile.open(file, "w") as layer:
            for place, source in sorted(parts.items()):
                layer.add(source, arcname=place.strip("/") or ".", filter=_plain)
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        name = f"{digest}/layer.tar"
        if name not in written:
            archive.add(file, arcname=name, filter=_plain)
            written.add(name)
    finally:
        file.unlink(missing_ok=True)
    return digest


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if member.isdev():
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
