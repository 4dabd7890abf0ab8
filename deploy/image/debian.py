"""A small tree of Debian packages, for an image: what a few programs need, and no package manager.

Invariants: packages come from wherever this machine's apt takes them, and are checked by it. They are unpacked, never
configured: none of their scripts runs, here or in the image.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

RELEASE = "12"
"""Of Debian: the machine that builds has the release that the image has, since its apt knows no other."""

_MERGED = ("bin", "sbin", "lib", "lib64")
_UNUSED = (
    "doc",
    "info",
    "lintian",
    "locale",
    "man",
    "perl5",
    "bug",
    "debconf",
    "doc-base",
    "menu",
    "gcc",
    "gdb",
    "perl",
)
_NOT_IN_AN_IMAGE = frozenset(
    [
        "ca-certificates",
        "debconf",
        "dpkg",
        "openssl",
        "tar",
        "adduser",
        "cron",
        "cron-daemon-common",
        "init-system-helpers",
        "logrotate",
        "lsof",
        "passwd",
        "perl",
        "perl-base",
        "perl-modules-5.36",
        "sensible-utils",
        "usrmerge",
        "libaudit-common",
        "libaudit1",
        "libc-ares2",
        "libcap-ng0",
        "libfile-find-rule-perl",
        "libgdbm-compat4",
        "libgdbm6",
        "libnumber-compare-perl",
        "libpam-modules",
        "libpam-modules-bin",
        "libpam-runtime",
        "libpam0g",
        "libperl5.36",
        "libpopt0",
        "libsemanage-common",
        "libsemanage2",
        "libsepol2",
        "libtext-glob-perl",
    ]
)
"""Needed by what they depend on to be configured only, or by parts of it that nobody runs here."""


class CannotBuild(Exception):
    """One line for whoever builds."""


def make(tree: Path, packages: Iterable[str], aside: Path, foreign: str = "") -> None:
    """Unpacks packages and all they need. `aside`: a directory that may be used and is removed. `foreign`: another
    machine's architecture, as Debian names it. Raises CannotBuild."""
    if _release() != RELEASE:
        raise CannotBuild(f"images are built on Debian {RELEASE}; this machine has {_release() or 'another system'}")
    for name in _MERGED:
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    try:
        for package in _fetch(sorted(packages), aside, foreign):
            if package.name.partition("_")[0] not in _NOT_IN_AN_IMAGE:
                _unpack(package, tree)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    for name in _UNUSED:
        shutil.rmtree(tree / "usr/share" / name, ignore_errors=True)
    for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "var"):
        (tree / name).mkdir(exist_ok=True)
    (tree / "tmp").chmod(0o1777)
    shutil.rmtree(tree / "var/run", ignore_errors=True)
    (tree / "var/run").symlink_to("/run")
    users = ["root:x:0:0:root:/root:/bin/sh", "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin"]
    # FRR's daemons want users of their own; in a container, whose capabilities are few, they are as good as root.
    users.append("frr:x:0:0:FRR:/:/usr/sbin/nologin")
    (tree / "etc/passwd").write_text("".join(f"{it}\n" for it in users))
    (tree / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\nfrr:x:0:\nfrrvty:x:0:\n")
    (tree / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def applets(tree: Path, launcher: Sequence[str] = ()) -> None:
    """Links for every program that the tree's busybox is and that the tree has not otherwise. busybox's own shell would
    prefer its programs to the tree's: a tree that has both needs dash. `launcher`: what runs its programs here."""
    command = [*launcher, tree / "bin/busybox", "--list-full"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    for path in listed:
        place = tree / path
        place.parent.mkdir(parents=True, exist_ok=True)
        taken = (place, tree / "usr/bin" / place.name, tree / "usr/sbin" / place.name)
        if not any(map(os.path.lexists, taken)):
            place.symlink_to("/bin/busybox")


def _release() -> str:
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ""
    facts = {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
    return facts.get("VERSION_ID", "") if facts.get("ID") == "debian" else ""


def _fetch(packages: list[str], aside: Path, foreign: str) -> list[Path]:
    """As for a machine that has no package at all. What the machine's own apt holds is not touched."""
    archives = aside / "archives"
    (archives / "partial").mkdir(parents=True)
    (aside / "status").touch()
    options: dict[str, object] = {
        "Dir::State::status": aside / "status",
        "Dir::Cache::archives": archives,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "true",
    }
    if foreign:
        (aside / "lists" / "partial").mkdir(parents=True)
        options |= {"Dir::State::lists": aside / "lists", "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": ""}
        options |= {"APT::Architecture": foreign, "APT::Architectures": foreign}
        _apt(options, "update", "ask for its lists")
    _apt(options, "--download-only", "install", *packages, f"fetch {' '.join(packages)}")
    return sorted(archives.glob("*.deb"))


def _apt(options: Mapping[str, object], *words: str) -> None:
    """The last word says what for."""
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    found = subprocess.run(
        ["apt-get", *flags, "-y", "-qq", *words[:-1]],
        capture_output=True,
        text=True,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    if found.returncode:
        errors = " ".join(line for line in found.stderr.splitlines() if line.startswith("E:"))
        raise CannotBuild(f"apt-get can't {words[-1]}: {errors or found.stderr.strip()}")


def _unpack(package: Path, tree: Path) -> None:
    """By tar, since dpkg-deb would put directories in the place of the links of a merged /usr."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as content:
        unpacked = subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", tree], stdin=content.stdout)
    if content.returncode or unpacked.returncode:
        raise CannotBuild(f"{package.name}: can't be unpacked")
