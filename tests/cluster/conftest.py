"""One cluster with Podwire after the other, one for each variant; tests of the same variant share it."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster import podwire, workload
from tests.cluster.cluster import Cluster, cluster
from tests.cluster.parts import programs
from tests.cluster.variant import VARIANTS, Variant


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if item.path.parent.name == "cluster":
                item.add_marker(pytest.mark.skip(reason="needs root: network namespaces"))


@pytest.fixture(scope="session")
def parts() -> None:
    """What takes long is done once, with a word about it."""
    programs.build()
    podwire.image()


@pytest.fixture(scope="session", params=list(VARIANTS.values()), ids=list(VARIANTS))
def it(request: pytest.FixtureRequest, parts: None) -> Iterator[Cluster]:
    """Two nodes without kube-proxy, Podwire from its manifest, CoreDNS, and pods that answer."""
    variant: Variant = request.param
    before = request.session.testsfailed
    with cluster(variant, archives=[podwire.IMAGE], failed=lambda: request.session.testsfailed > before) as running:
        podwire.install(running)
        running.install_dns()
        workload.set_up(running)
        yield running
