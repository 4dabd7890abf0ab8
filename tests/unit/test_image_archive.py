"""Archives of images: what they name is in them, and runtimes find their own architecture."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deploy.image.archive import Image, write, write_index


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    """By name, each with one file."""
    found = {}
    for name in ("amd64", "arm64", "both"):
        tree = found[name] = tmp_path / name
        (tree / "bin").mkdir(parents=True)
        (tree / "bin" / "program").write_text(name)
    return found


def images(trees: dict[str, Path]) -> list[Image]:
    settings = {"Entrypoint": ["/bin/program"]}
    return [
        Image(["a/b:1"], settings, [{"/": trees[arch]}, {"/opt": trees["both"]}], arch) for arch in ("amd64", "arm64")
    ]


def members(out: Path) -> dict[str, bytes]:
    with tarfile.open(out) as archive:
        listed = [member for member in archive.getmembers() if member.isfile()]
        assert len({member.name for member in listed}) == len(listed)
        return {member.name: read.read() for member in listed if (read := archive.extractfile(member)) is not None}


class Layout:
    """An OCI image layout, whose blobs are what their names say."""

    def __init__(self, out: Path) -> None:
        self.files = members(out)
        assert json.loads(self.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        for name, content in self.files.items():
            if name.startswith("blobs/"):
                assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        content = self.files["blobs/" + descriptor["digest"].replace(":", "/")]
        assert len(content) == descriptor["size"]
        return content

    def json(self, descriptor: dict[str, Any]) -> Any:
        return json.loads(self.blob(descriptor))


def test_one_image_for_several_architectures_has_an_index_and_each_its_own_files(
    trees: dict[str, Path], tmp_path: Path
) -> None:
    write_index(tmp_path / "out.tar", "a/b:1", images(trees))
    layout = Layout(tmp_path / "out.tar")
    (top,) = json.loads(layout.files["index.json"])["manifests"]
    assert top["annotations"]["io.containerd.image.name"] == "a/b:1"
    seen = {}
    for told in layout.json(top)["manifests"]:
        manifest = layout.json(told)
        configuration = layout.json(manifest["config"])
        assert configuration["architecture"] == told["platform"]["architecture"]
        assert configuration["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
        with tarfile.open(fileobj=io.BytesIO(layout.blob(manifest["layers"][0]))) as layer:
            program = layer.extractfile("./bin/program")
            assert program is not None
            seen[told["platform"]["architecture"]] = program.read().decode()
    assert seen == {"amd64": "amd64", "arm64": "arm64"}
    assert sum(name.startswith("blobs/") for name in layout.files) == 1 + 2 + 2 + 3  # what is equal is there once


def test_the_same_trees_give_the_same_bytes(trees: dict[str, Path], tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        write_index(tmp_path / name, "a/b:1", images(trees))
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_of_one_architecture_an_archive_lists_what_is_in_it(trees: dict[str, Path], tmp_path: Path) -> None:
    write(tmp_path / "out.tar", *images(trees)[:1])
    files = members(tmp_path / "out.tar")
    (manifest,) = json.loads(files["manifest.json"])
    assert manifest["RepoTags"] == ["a/b:1"]
    digests = [hashlib.sha256(files[layer]).hexdigest() for layer in manifest["Layers"]]
    configuration = json.loads(files[manifest["Config"]])
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{digest}" for digest in digests]
    assert configuration["architecture"] == "amd64"
