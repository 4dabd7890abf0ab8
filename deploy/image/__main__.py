"""`make image`: the agent's image as an archive, build/podwire-image.tar, for `ctr images import` or `docker load`.

Invariants: two layers. The lower one, Debian's Python and the locked packages, is made again only where their lists
change, and kept in the user's cache; the upper one is Podwire itself. The agent is in /opt/podwire.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any

from packaging.requirements import Requirement

from deploy.image import archive, debian
from deploy.image.debian import CannotBuild

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "podwire-image.tar"
PYTHON = "3.11"
PACKAGES = (f"python{PYTHON}", "libnftables1", "libstdc++6", "nftables", "iproute2", "dash", "busybox-static")
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
    """Raises CannotBuild."""
    began = monotonic()
    base = _base()
    with tempfile.TemporaryDirectory(prefix="podwire-image-") as directory:
        upper = Path(directory)
        _install_podwire(base, upper)
        settings = {
            "Entrypoint": [f"/{HOME}/bin/podwire"],
            "Cmd": ["agent", "--config", "/etc/podwire/agent.toml"],
            "Env": [f"PATH=/{HOME}/bin:{archive.PATH}", "PYTHONUNBUFFERED=1", "LANG=C.UTF-8"],
            "Labels": {"org.opencontainers.image.licenses": "Apache-2.0"},
        }
        parts = {place: upper / place for place in sorted(entry.name for entry in upper.iterdir())}
        archive.write(out, archive.Image([name()], settings, [{"/": base}, parts]))
    _say(f"{name()} in {out.relative_to(ROOT)}: {out.stat().st_size >> 20} MB, {monotonic() - began:.0f} s")
    return out


def _say(text: str) -> None:
    print(f"[image] {text}", flush=True)  # noqa: T201


def _base() -> Path:
    """The tree of the lower layer."""
    locked = "".join(_runtime_lock())
    recipe = "".join(file.read_text(encoding="utf-8") for file in (Path(__file__), Path(debian.__file__)))
    digest = hashlib.sha256("\0".join((locked, *PACKAGES, recipe)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire" / "image"
    done = cache / f"base-{digest}"
    if done.is_dir():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=cache) as directory:
        tree = Path(directory) / "tree"
        tree.mkdir()
        _say(f"Debian's {', '.join(PACKAGES)}")
        debian.make(tree, PACKAGES, Path(directory) / "packages")
        debian.applets(tree)
        for unused in _NEVER_RUN:
            shutil.rmtree(tree / f"usr/lib/python{PYTHON}" / unused, ignore_errors=True)
        _say("the locked packages")
        lock = Path(directory) / "runtime.lock"
        lock.write_text(locked, encoding="utf-8")
        _pip(tree / SITE, "--require-hashes", "-r", str(lock))
        _compile(tree, f"/usr/lib/python{PYTHON}", f"/{SITE}")
        try:
            tree.rename(done)
        except OSError:
            if not done.is_dir():  # else another build was quicker
                raise
    return done


def _install_podwire(base: Path, upper: Path) -> None:
    """As a wheel, so that the image holds what an installation holds."""
    wheels, tree = upper / "wheels", upper / HOME
    _run("the native CNI plugin", [str(ROOT / "scripts/shim")])
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    _run("hatchling", command)
    _pip(upper / SITE, str(next(wheels.glob("*.whl"))))
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
        _compile(base, "-s", inside, "-p", f"/{SITE}/podwire", inside)
        paths = f"{Path(inside).parent}:/{SITE}"
        # That something is missing in the image shows here, and not on a node.
        parts = "import podwire.agent, podwire.doctor.command"
        _run("import", [*_inside(base), "env", f"PYTHONPATH={paths}", f"python{PYTHON}", "-c", parts])
        shutil.copytree(Path(seen) / "podwire", upper / SITE / "podwire", dirs_exist_ok=True)


def _runtime_lock() -> Iterator[str]:
    """Of requirements.lock, the entries that Podwire itself needs."""
    wanted: set[str] = set()
    asked = [Requirement(line) for line in _project()["dependencies"]]
    while asked:
        needed = asked.pop()
        if _plain(needed.name) in wanted or (needed.marker is not None and not needed.marker.evaluate({"extra": ""})):
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


def _pip(target: Path, *what: str) -> None:
    flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    place = ["--python-version", PYTHON, "--implementation", "cp", "--target", str(target)]
    _run("pip", [sys.executable, "-m", "pip", "install", *flags, *place, *what])
    shutil.rmtree(target / "bin", ignore_errors=True)


def _compile(tree: Path, *what: str) -> None:
    """Ahead, since an image's files have no times, and each start would compile all it imports."""
    how = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    _run("compileall", [*_inside(tree), f"python{PYTHON}", *how, *what])


def _inside(tree: Path) -> list[str]:
    """What runs a command with a tree as its root, and this machine's devices: in mounts that nobody else sees."""
    script = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(tree)]


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"{name}: {(done.stderr or done.stdout).strip()}")


if __name__ == "__main__":
    try:
        build()
    except CannotBuild as error:
        sys.exit(f"[image] {error}")
