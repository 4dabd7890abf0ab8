"""`make image`: the agent's image as an archive, build/podwire-image.tar, for `ctr images import` or `docker load`;
with ARCHES="amd64 arm64" one image for both, build/podwire-image-oci.tar.

Invariants: two layers. The lower one, Debian's Python and the locked packages, is made again only where their lists
change, and kept in the user's cache; the upper one is Podwire itself. The agent is in /opt/podwire.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any

from packaging.requirements import Requirement

from deploy.image import archive, debian
from deploy.image.debian import CannotBuild

ROOT = Path(__file__).resolve().parents[2]
OUT, INDEX_OUT = ROOT / "build" / "podwire-image.tar", ROOT / "build" / "podwire-image-oci.tar"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The architectures that images can be made for, and how a kernel calls each."""
PYTHON = "3.11"
PACKAGES = (f"python{PYTHON}", "libnftables1", "libstdc++6", "nftables", "iproute2", "dash", "busybox-static", "frr")
FRR = ("zebra", "bgpd", "bfdd")
"""Of FRR's daemons those that are run."""
HOME = "opt/podwire"
SITE = f"{HOME}/lib/python{PYTHON}/site-packages"
_NEVER_RUN = ("idlelib", "lib2to3", "pydoc_data", "ensurepip", "unittest", "distutils", "tkinter", "turtledemo", "test")


def name() -> str:
    """The image's name. `localhost`: no registry has it."""
    return f"localhost/podwire:{_project()['version']}"


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def build(out: Path = OUT) -> Path:
    """For this machine's architecture. Raises CannotBuild."""
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="podwire-image-") as directory:
        archive.write(out, _image(archive.OWN, Path(directory)))
    _say(f"{name()} in {out.relative_to(ROOT)}: {out.stat().st_size >> 20} MB, {monotonic() - began:.0f} s")
    return out


def build_index(arches: Sequence[str], out: Path = INDEX_OUT) -> Path:
    """One image for all of these. Raises CannotBuild."""
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="podwire-image-") as directory:
        archive.write_index(out, name(), [_image(arch, Path(directory) / arch) for arch in sorted(set(arches))])
    told = f"{out.relative_to(ROOT)} for {' and '.join(sorted(set(arches)))}"
    _say(f"{name()} in {told}: {out.stat().st_size >> 20} MB, {monotonic() - began:.0f} s")
    return out


def _image(arch: str, upper: Path) -> archive.Image:
    """`upper`: an empty directory, which is to live until the image is written."""
    upper.mkdir(exist_ok=True)
    base = _base(arch)
    _install_podwire(base, upper, arch)
    settings = {
        "Entrypoint": [f"/{HOME}/bin/podwire"],
        "Cmd": ["agent", "--config", "/etc/podwire/agent.toml"],
        "Env": [f"PATH=/{HOME}/bin:{archive.PATH}", "PYTHONUNBUFFERED=1", "LANG=C.UTF-8"],
        "Labels": {"org.opencontainers.image.licenses": "Apache-2.0"},
    }
    parts = {place: upper / place for place in sorted(entry.name for entry in upper.iterdir())}
    return archive.Image([name()], settings, [{"/": base}, parts], arch)


def _say(text: str) -> None:
    print(f"[image] {text}", flush=True)  # noqa: T201


def _base(arch: str) -> Path:
    """The tree of the lower layer."""
    locked, foreign = "".join(_runtime_lock(arch)), arch if arch != archive.OWN else ""
    recipe = "".join(file.read_text(encoding="utf-8") for file in (Path(__file__), Path(debian.__file__)))
    digest = hashlib.sha256("\0".join((locked, *PACKAGES, recipe, arch)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire" / "image"
    done = cache / f"base-{digest}"
    if done.is_dir():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=cache) as directory:
        tree = Path(directory) / "tree"
        tree.mkdir()
        _say(f"{arch}: Debian's {', '.join(PACKAGES)}")
        debian.make(tree, PACKAGES, Path(directory) / "packages", foreign)
        debian.applets(tree, _emulator(arch))
        for unused in _NEVER_RUN:
            shutil.rmtree(tree / f"usr/lib/python{PYTHON}" / unused, ignore_errors=True)
        for unused in [it for it in (tree / "usr/lib/frr").iterdir() if it.name not in FRR]:
            unused.unlink()
        (tree / "usr/bin/vtysh").unlink()  # it wants PAM
        _say(f"{arch}: the locked packages")
        lock = Path(directory) / "runtime.lock"
        lock.write_text(locked, encoding="utf-8")
        _pip(tree / SITE, arch, "--require-hashes", "-r", str(lock))
        _compile(tree, arch, f"/usr/lib/python{PYTHON}", f"/{SITE}")
        try:
            tree.rename(done)
        except OSError:
            if not done.is_dir():  # else another build was quicker
                raise
    return done


def _install_podwire(base: Path, upper: Path, arch: str) -> None:
    """As a wheel, so that the image holds what an installation holds."""
    wheels, tree = upper / "wheels", upper / HOME
    _run("the native CNI plugin", [str(ROOT / "scripts/shim"), "--arch", arch])
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    _run("hatchling", command)
    _pip(upper / SITE, arch, str(next(wheels.glob("*.whl"))))
    shutil.rmtree(wheels)
    (tree / "bin").mkdir()
    (tree / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (tree / "bin/python").symlink_to(f"/usr/bin/python{PYTHON}")
    for command, place in (("podwire", "main"), ("podwire-cni", "plugin")):
        start = tree / "bin" / command
        start.write_text(f"#!/{HOME}/bin/python\nfrom podwire.cli.{place} import main\n\nmain()\n")
        start.chmod(0o755)
    shutil.copyfile(Path(__file__).with_name("probe.py"), tree / "bin/probe")
    (tree / "bin/probe").chmod(0o755)
    # Compiled by the image's own Python: the upper tree is laid where that one sees it.
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=base / "tmp") as seen:
        for part in (upper / SITE).glob("podwire*"):  # its metadata, which says the version, too
            shutil.copytree(part, Path(seen) / part.name)
        inside = f"/tmp/{Path(seen).name}/podwire"  # noqa: S108 - in the image's tree
        _compile(base, arch, "-s", inside, "-p", f"/{SITE}/podwire", inside)
        # That something is missing in the image shows here, and not on a node.
        paths = [str(Path(inside).parent), f"/{SITE}"]
        parts = f"import sys; sys.path[:0] = {paths}; import podwire.agent, podwire.doctor.command"
        _run("import", _python(base, arch, "-c", parts))
        shutil.copytree(Path(seen) / "podwire", upper / SITE / "podwire", dirs_exist_ok=True)


def _runtime_lock(arch: str) -> Iterator[str]:
    """Of requirements.lock, the entries that Podwire itself needs."""
    there = {"extra": "", "platform_machine": MACHINES[arch]}
    wanted: set[str] = set()
    asked = [Requirement(line) for line in _project()["dependencies"]]
    while asked:
        needed = asked.pop()
        if _plain(needed.name) in wanted or (needed.marker is not None and not needed.marker.evaluate(there)):
            continue
        wanted.add(_plain(needed.name))
        try:
            asked += map(Requirement, metadata.requires(needed.name) or ())
        except metadata.PackageNotFoundError:
            raise CannotBuild(f"{needed.name} is not installed here: run scripts/setup python") from None
    keep = False
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            keep = _plain(re.split(r"[=\[ ;]", line, maxsplit=1)[0]) in wanted
        if keep:
            yield line


def _plain(project: str) -> str:
    return re.sub(r"[-_.]+", "-", project).lower()


def _pip(target: Path, arch: str, *what: str) -> None:
    flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    place = ["--python-version", PYTHON, "--implementation", "cp", "--target", str(target)]
    if arch != archive.OWN:  # wheels for the C library of Debian 12 (PEP 600), and older ones
        place += [f"--platform=manylinux_2_{minor}_{MACHINES[arch]}" for minor in range(36, 16, -1)]
        place += [f"--platform=manylinux2014_{MACHINES[arch]}"]
    _run("pip", [sys.executable, "-m", "pip", "install", *flags, *place, *what])
    shutil.rmtree(target / "bin", ignore_errors=True)


def _compile(tree: Path, arch: str, *what: str) -> None:
    """Ahead, since an image's files have no times, and each start would compile all it imports."""
    how = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    _run("compileall", _python(tree, arch, *how, *what))


def _python(tree: Path, arch: str, *words: str) -> list[str]:
    """What runs the tree's Python with the tree as its root, and this machine's devices: in mounts that nobody else
    sees. That of another architecture is emulated."""
    emulator = "".join(_emulator(arch))
    laid = f'mount -t tmpfs tmpfs "$0/run" && cp {emulator} "$0/run/emulator" && set -- /run/emulator "$@" && '
    script = (
        f'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && {laid * bool(emulator)}exec chroot "$0" "$@"'
    )
    python = f"/usr/bin/python{PYTHON}"
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(tree), python, *words]


def _emulator(arch: str) -> list[str]:
    """What runs programs of that architecture here; nothing for this machine's own. Raises CannotBuild."""
    if arch == archive.OWN:
        return []
    found = shutil.which(f"qemu-{MACHINES[arch]}-static")
    if found is None:
        raise CannotBuild(f"qemu-{MACHINES[arch]}-static is missing: run scripts/setup image {arch}")
    return [found]


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"{name}: {(done.stderr or done.stdout).strip()}")


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m deploy.image", description="See the module's text.")
    options.add_argument("arches", nargs="*", choices=[[], *MACHINES], help="one image for all of these")
    asked = options.parse_args().arches
    try:
        if asked:
            build_index(asked)
        else:
            build()
    except CannotBuild as error:
        sys.exit(f"[image] {error}")


if __name__ == "__main__":
    main()
