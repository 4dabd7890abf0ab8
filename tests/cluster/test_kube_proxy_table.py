"""The packet table asked of kube-proxy in nftables mode: it answers the same but for the listed differences."""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from tests.packets.cluster import cluster
from tests.packets.differences import difference, is_silent
from tests.packets.kube_proxy import CACHE, kube_proxy, programs
from tests.packets.questions import Asked, everything, right

_MISSING = ", ".join(name for name, path in programs().items() if path is None)
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
    pytest.mark.skipif(bool(_MISSING), reason=f"missing: {_MISSING}; looked in {CACHE} and PATH"),
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Asked, str]]:
    plane = partial(kube_proxy, directory=tmp_path_factory.mktemp("kube-proxy"))
    with cluster(plane) as at_work:
        yield at_work.ask_table({it for it in everything() if is_silent(it)})


@pytest.mark.parametrize("it", everything(), ids=lambda it: it.id)
def test_kube_proxy_answers_the_same_but_for_what_is_listed(asked: dict[Asked, str], it: Asked) -> None:
    listed = difference(it)
    if listed is None:
        assert asked[it] == right(it), "a difference that tests/packets/differences.py doesn't list"
    else:
        assert asked[it] != right(it), f"no difference any more: {listed.title}"
        assert asked[it] in listed.answers(it), listed.title
