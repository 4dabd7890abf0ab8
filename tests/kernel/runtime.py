"""The reference runtime of CNI (cnitool), and plugins of the CNI project beside ours: built from their own modules.

Invariants: a program is built once and kept in the user's cache, by its version.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podwire.cni.install import install
from tests.kernel.process import AgentProcess, agent_process
from tests.kernel.rig import Space
from tests.unit.shims import NATIVE, native

CNITOOL = "github.com/containernetworking/cni/cnitool"
NEW, OLD = "v1.3.0", "v1.1.2"
"""Of cnitool. The old one is as runtimes are that know no version 1.1.0, nor any list of versions, GC or STATUS."""
PLUGINS = "github.com/containernetworking/plugins/plugins/meta"
PLUGINS_VERSION = "v1.10.0"
VERSIONS = ("0.4.0", "1.0.0", "1.1.0")
NETWORK = f"podwire-test-{os.getpid()}"
RESULTS = Path("/var/lib/cni/results")
"""Where libcni keeps what ADD answered, for CHECK and DEL."""


def built(package: str, version: str) -> Path:
    go = shutil.which("go")
    name = package.rpartition("/")[2]
    if go is None:
        pytest.skip(f"go toolchain is missing: {name} can't be built")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire" / "bin"
    place = cache / f"{name}@{version}"
    if not place.exists():
        aside = cache / f"building-{os.getpid()}"
        aside.mkdir(parents=True)
        try:
            environment = {**os.environ, "GOBIN": str(aside), "CGO_ENABLED": "0"}
            subprocess.run([go, "install", f"{package}@{version}"], env=environment, check=True)
            (aside / name).rename(place)
        finally:
            shutil.rmtree(aside)
    return place


class Runtime:
    """cnitool with one network, as a node's runtime would have it."""

    def __init__(self, version: str, directory: Path, agent: AgentProcess, native: Path | None) -> None:
        self.version, self.tool = version, built(CNITOOL, version)
        self.directory, self.agent = directory, agent
        self.plugin = install(directory / "bin", agent.socket, agent.spool, agent.ready, sys.executable, native)
        (directory / "net.d").mkdir()
        self.configure(cniVersion="1.0.0")
        self.asked: dict[str, Any] = {}
        """For capabilities."""

    def add_plugins(self, *names: str) -> None:
        """The CNI project's own, beside ours."""
        for name in names:
            shutil.copy2(built(f"{PLUGINS}/{name}", PLUGINS_VERSION), self.plugin.with_name(name))

    def configure(self, plugins: Iterable[dict[str, Any]] = ({"type": "podwire"},), **versions: Any) -> None:
        text = json.dumps({**versions, "name": NETWORK, "plugins": [*plugins]})
        (self.directory / "net.d" / "10-podwire.conflist").write_text(text)

    def run(
        self, verb: str, space: Space, arguments: str = "", interface: str = "eth0"
    ) -> "subprocess.CompletedProcess[str]":
        environment = {
            "PATH": os.environ["PATH"],
            "NETCONFPATH": str(self.directory / "net.d"),
            "CNI_PATH": str(self.plugin.parent),
            "CNI_ARGS": arguments,
            "CNI_IFNAME": interface,
            "CAP_ARGS": json.dumps(self.asked),
        }
        return subprocess.run(
            [self.tool, verb, NETWORK, space.path], env=environment, capture_output=True, text=True, timeout=60
        )

    def add(self, space: Space, arguments: str = "", interface: str = "eth0") -> Any:
        return json.loads(self.good("add", space, arguments, interface))

    def good(self, verb: str, space: Space, arguments: str = "", interface: str = "eth0") -> str:
        done = self.run(verb, space, arguments, interface)
        assert done.returncode == 0, done.stdout + done.stderr + self.agent.log.read_text()
        return done.stdout

    def good_status(self, space: Space) -> None:
        """An old one has no such verb, and a network of 1.0.0 is asked nothing."""
        if self.version == NEW:
            self.configure(cniVersion="1.1.0")
            self.good("status", space)
            self.configure(cniVersion="1.0.0")

    def bad(self, verb: str, space: Space, arguments: str = "") -> str:
        """What it says."""
        done = self.run(verb, space, arguments)
        assert done.returncode != 0, done.stdout
        return done.stdout + done.stderr


@contextmanager
def runtime_of(version: str, kind: str, directory: Path) -> Iterator[Runtime]:
    """With an agent in the node's namespace; `kind`: which of our plugins."""
    with agent_process(directory) as agent:
        yield Runtime(version, directory, agent, native() if kind == NATIVE else None)
    for left in RESULTS.glob(f"{NETWORK}-*"):
        left.unlink()
