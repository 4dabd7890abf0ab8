"""Kubernetes, containerd, CoreDNS and their tests, built from Go modules at the versions of the go.mod files here.

Invariants: a group of programs is kept by the digest of its modules and flags, so that another version is another
directory, and nothing is built twice. A program appears whole or not at all.
"""

import os
import shutil
import subprocess
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from tests.cluster.parts.places import CACHE, HERE, CannotBuild, digest, say

_VERSION = "k8s.io/component-base/version"
KUBERNETES = "v1.37.2"
_PLUGINS = "github.com/containernetworking/plugins/plugins"


class Group(NamedTuple):
    """`programs`: package by the program's name. `tests`: packages that are built as test executables."""

    name: str
    flags: tuple[str, ...]
    programs: dict[str, str]
    tests: dict[str, str]


GROUPS = (
    Group(
        "kubernetes",
        ("-ldflags", f"-s -w -X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=37"),
        {
            **{
                name: f"k8s.io/kubernetes/cmd/{name}"
                for name in (
                    "kube-apiserver",
                    "kube-controller-manager",
                    "kube-scheduler",
                    "kubelet",
                    "kubectl",
                    "kube-proxy",
                )
            },
            "agnhost": "k8s.io/kubernetes/test/images/agnhost",
            "regression-issue-74839": "k8s.io/kubernetes/test/images/regression-issue-74839",
            "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
        },
        {"e2e.test": "k8s.io/kubernetes/test/e2e"},
    ),
    Group(
        "containerd",
        ("-ldflags", "-s -w", "-tags", "netgo osusergo static_build no_btrfs no_devmapper no_zfs"),
        {
            "containerd": "github.com/containerd/containerd/v2/cmd/containerd",
            "containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "ctr": "github.com/containerd/containerd/v2/cmd/ctr",
            "crictl": "sigs.k8s.io/cri-tools/cmd/crictl",
            "cnitool": "github.com/containernetworking/cni/cnitool",
            "loopback": f"{_PLUGINS}/main/loopback",
            "bridge": f"{_PLUGINS}/main/bridge",
            "host-local": f"{_PLUGINS}/ipam/host-local",
            "static": f"{_PLUGINS}/ipam/static",
            "portmap": f"{_PLUGINS}/meta/portmap",
            "bandwidth": f"{_PLUGINS}/meta/bandwidth",
        },
        {"critest": "sigs.k8s.io/cri-tools/cmd/critest"},
    ),
    Group("coredns", ("-ldflags", "-s -w"), {"coredns": "github.com/coredns/coredns"}, {}),
    Group("pause", ("-ldflags", "-s -w"), {"pause": "podwire.test/pause"}, {}),
)


def place(group: Group) -> Path:
    sources = [HERE / group.name / "go.mod", HERE / group.name / "go.sum", *(HERE / group.name).glob("main.go")]
    texts = [source.read_text(encoding="utf-8") for source in sources]
    return CACHE / "programs" / f"{group.name}-{digest(*texts, *group.flags)}"


def path(name: str) -> Path:
    """Of a program that `build` has built."""
    return next(place(group) / name for group in GROUPS if name in group.programs or name in group.tests)


def module(group: str, name: str) -> Path:
    """The directory of a module's source."""
    found = subprocess.run(
        [_go(), "list", "-m", "-f", "{{.Dir}}", name],
        cwd=HERE / group,
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(found.stdout.strip())


def build() -> None:
    """What is missing, one after the other: the compiler itself uses all cores. Raises CannotBuild."""
    missing = [
        (group, name)
        for group in GROUPS
        for name in (*group.programs, *group.tests)
        if not (place(group) / name).exists()
    ]
    if missing:
        all_of_them = sum(len(group.programs) + len(group.tests) for group in GROUPS)
        say(f"{len(missing)} of {all_of_them} programs to build, 20 minutes for all on two cores; kept in {CACHE}")
    for number, (group, name) in enumerate(missing, 1):
        began = monotonic()
        say(f"{number} of {len(missing)}: {name} …")
        _build(group, name)
        say(f"{number} of {len(missing)}: {name} built in {monotonic() - began:.0f} s")


def _build(group: Group, name: str) -> None:
    directory = place(group)
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{name}.{os.getpid()}"
    verb = ["build"] if name in group.programs else ["test", "-c"]
    package = (group.programs | group.tests)[name]
    command = [_go(), *verb, "-mod=readonly", *group.flags, "-o", str(aside), package]
    try:
        done = subprocess.run(command, cwd=HERE / group.name, env=_environment(), capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"{name}: {done.stderr.strip()[-2000:]}")
        aside.rename(directory / name)
    finally:
        aside.unlink(missing_ok=True)


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise CannotBuild("go (1.26 or later, or any from 1.21 on that may fetch it) is missing: it builds Kubernetes")
    return go


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0"}
