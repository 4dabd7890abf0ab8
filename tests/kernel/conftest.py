"""Fixtures: a network namespace for a node, others for pods, and an agent's parts at work in them."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio

from tests.kernel import runtime
from tests.kernel.bgp_node import Pair
from tests.kernel.rig import MakeSpace, Rig, Space, entered, responders, silence, spaces


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if item.path.parent.name == "kernel":
                item.add_marker(pytest.mark.skip(reason="needs root: network namespaces"))


@pytest.fixture
def make_space() -> Iterator[MakeSpace]:
    """Makes a namespace whose name nobody else has; all are removed at the end."""
    before = responders()  # of a node that all tests of a module share
    with spaces() as make:
        yield make
        silence(before)


@pytest.fixture
def node(make_space: MakeSpace) -> Iterator[Space]:
    """The test's own thread is in the node's namespace until the test ends."""
    space = make_space("node")
    with entered(space):
        yield space


@pytest_asyncio.fixture
async def rig(node: Space, make_space: MakeSpace, tmp_path: Path) -> AsyncIterator[Rig]:
    """An agent's parts in the node's namespace, not yet started."""
    rig = Rig(tmp_path, make_space)
    yield rig
    await rig.stop()


@pytest.fixture(scope="session")
def cnitool() -> None:
    """Built while this thread is where the network is, as a fixture of the session comes before all others."""
    for version in (runtime.NEW, runtime.OLD):
        runtime.built(runtime.CNITOOL, version)


@pytest.fixture(scope="session")
def plugins() -> None:
    """The CNI project's own that are chained after ours."""
    for name in ("portmap", "bandwidth", "tuning"):
        runtime.built(f"{runtime.PLUGINS}/{name}", runtime.PLUGINS_VERSION)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """FRR's daemons have a user of their own, to whom pytest's directories are closed."""
    with TemporaryDirectory(prefix="pwt-bgp-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture
def pair(make_space: MakeSpace, open_path: Path) -> Pair:
    return Pair(make_space, open_path)
