"""Image archives that `ctr images import` and `docker load` read, written without either and without a registry:
those of one architecture in docker's form, one for several as an OCI image layout.

Invariants: the same trees give the same bytes, whenever and by whomever they were made: members are sorted, and have
no times and no owners but root. An archive appears whole or not at all.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_TARS, _BLOBS = "{}/layer.tar", "blobs/sha256/{}"
"""Where a layer is, by its digest, in either form of archive."""
_INDEX, _MANIFEST, _CONFIGURATION, _LAYER = (
    f"application/vnd.oci.image.{part}"
    for part in ("index.v1+json", "manifest.v1+json", "config.v1+json", "layer.v1.tar")
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


OWN = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
"""This machine's architecture."""


class Image(NamedTuple):
    """`names`: its tags, whole. `settings`: Entrypoint, Cmd, Env and the like of the image's configuration (OCI image
    specification). `layers`: paths in the image, each with the file or tree that is there. `architecture`: as
    that specification and Debian name it."""

    names: Sequence[str]
    settings: Mapping[str, Any]
    layers: Sequence[Mapping[str, Path]]
    architecture: str = OWN


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


def write_index(out: Path, name: str, images: Iterable[Image]) -> None:
    """One image for several architectures: an OCI image layout with one index, which runtimes choose from. Raises
    OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with tarfile.open(aside, "w") as archive:
            written: set[str] = set()
            listed = [_add_manifest(archive, written, image, aside) for image in images]
            whole = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": listed}
            found = _add_blob(archive, written, _INDEX, json.dumps(whole).encode())
            tags = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
            top = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [{**found, "annotations": tags}]}
            _add_bytes(archive, "index.json", json.dumps(top).encode())
            _add_bytes(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)


def _add_manifest(archive: tarfile.TarFile, written: set[str], image: Image, aside: Path) -> dict[str, Any]:
    """Its descriptor."""
    layers = [_layer(archive, written, parts, aside, _BLOBS) for parts in image.layers]
    configuration = _add_blob(archive, written, _CONFIGURATION, _configuration(image, [it for it, _ in layers]))
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": configuration,
        "layers": [{"mediaType": _LAYER, "digest": f"sha256:{it}", "size": size} for it, size in layers],
    }
    found = _add_blob(archive, written, _MANIFEST, json.dumps(manifest).encode())
    return {**found, "platform": {"architecture": image.architecture, "os": "linux"}}


def _add_blob(archive: tarfile.TarFile, written: set[str], kind: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    name = _BLOBS.format(digest)
    if name not in written:
        _add_bytes(archive, name, content)
        written.add(name)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _configuration(image: Image, layers: Sequence[str]) -> bytes:
    configuration = {
        "architecture": image.architecture,
        "os": "linux",
        "config": {"WorkingDir": "/", "Env": [f"PATH={PATH}"], **image.settings},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}" for layer in layers]},
        "history": [{"created_by": "podwire"} for _ in layers],
    }
    return json.dumps(configuration).encode()


def _add(archive: tarfile.TarFile, written: set[str], image: Image, aside: Path) -> dict[str, Any]:
    layers = [_layer(archive, written, parts, aside, _TARS)[0] for parts in image.layers]
    text = _configuration(image, layers)
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    _add_bytes(archive, name, text)
    return {"Config": name, "RepoTags": list(image.names), "Layers": [_TARS.format(layer) for layer in layers]}


def _layer(
    archive: tarfile.TarFile, written: set[str], parts: Mapping[str, Path], aside: Path, form: str
) -> tuple[str, int]:
    """The layer's digest, and its size in bytes; `form`: where in the archive it is, by digest."""
    file = aside.with_name(f"{aside.name}.layer")
    try:
        with tarfile.open(file, "w") as layer:
            for place, source in sorted(parts.items()):
                layer.add(source, arcname=place.strip("/") or ".", filter=_plain)
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        name, size = form.format(digest), file.stat().st_size
        if name not in written:
            archive.add(file, arcname=name, filter=_plain)
            written.add(name)
    finally:
        file.unlink(missing_ok=True)
    return digest, size


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
