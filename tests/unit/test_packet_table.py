"""The packet table itself: its rules on ways spelled out by hand, and the page on kube-proxy in step with its data."""

import re
from pathlib import Path as File

import pytest

from podwire.model.addresses import IPV4, IPV6, Family
from podwire.sources.kubernetes import translate
from tests.packets.differences import DIFFERENCES, difference, section
from tests.packets.objects import objects
from tests.packets.plan import (
    ONE,
    ONE_BACKEND,
    ONE_CLIENT,
    OUTSIDE,
    THREE,
    TWO,
    TWO_BACKEND,
    TWO_CLIENT,
    Station,
)
from tests.packets.table import Kind, Path, Refusal, Row, expected, refusals, rows

PAGE = File(__file__).parents[2] / "docs" / "kube-proxy-differences.md"


@pytest.mark.parametrize(
    ("asker", "kind", "backend", "family", "answer"),
    [
        pytest.param(ONE_CLIENT, Kind.POD_ADDRESS, TWO_BACKEND, IPV4, "two-backend 10.1.1.2", id="pod to pod"),
        pytest.param(ONE, Kind.POD_ADDRESS, ONE_BACKEND, IPV4, "one-backend 192.0.2.1", id="node to its own pod"),
        pytest.param(ONE, Kind.POD_ADDRESS, TWO_BACKEND, IPV4, "two-backend 192.0.2.1", id="node to another's pod"),
        pytest.param(ONE, Kind.POD_ADDRESS, ONE, IPV4, "one 192.0.2.1", id="node to itself"),
        pytest.param(ONE_CLIENT, Kind.CLUSTER_IP, TWO_BACKEND, IPV4, "two-backend 10.1.1.2", id="pod by a ClusterIP"),
        pytest.param(ONE_CLIENT, Kind.CLUSTER_IP, ONE_CLIENT, IPV4, "one-client 10.1.1.1", id="pod to itself"),
        pytest.param(ONE, Kind.CLUSTER_IP, TWO_BACKEND, IPV4, "two-backend 192.0.2.1", id="node by a ClusterIP"),
        pytest.param(ONE, Kind.NODE_PORT, TWO_BACKEND, IPV4, "two-backend 192.0.2.1", id="node by its own NodePort"),
        pytest.param(OUTSIDE, Kind.NODE_PORT, ONE_BACKEND, IPV4, "one-backend 192.0.2.200", id="outside, local"),
        pytest.param(OUTSIDE, Kind.NODE_PORT, TWO_BACKEND, IPV4, "two-backend 192.0.2.1", id="outside, remote"),
        pytest.param(OUTSIDE, Kind.EXTERNAL_IP, TWO, IPV6, "two fd00:2::1", id="outside, remote host"),
        pytest.param(TWO_CLIENT, Kind.NODE_PORT, ONE_BACKEND, IPV4, "one-backend 10.1.2.2", id="other node, local"),
        pytest.param(
            TWO_CLIENT, Kind.NODE_PORT, TWO_BACKEND, IPV4, "two-backend 192.0.2.1", id="other node, there and back"
        ),
        pytest.param(TWO_CLIENT, Kind.NODE_PORT, TWO_CLIENT, IPV6, "two-client fd00:2::1", id="other node, itself"),
        pytest.param(
            TWO_CLIENT, Kind.EXTERNAL_IP, TWO_CLIENT, IPV6, "two-client fd01:0:0:2::1", id="itself by its node"
        ),
    ],
)
def test_the_rules(asker: Station, kind: Kind, backend: Station, family: Family, answer: str) -> None:
    assert expected(Path(asker, kind, family, backend)) == answer


def test_the_node_that_is_entered_decides() -> None:
    path = Path(ONE_CLIENT, Kind.NODE_PORT, IPV4, TWO_BACKEND)
    assert expected(path) == "two-backend 10.1.1.2"
    assert expected(path._replace(entry=THREE)) == "two-backend 192.0.2.3"
    assert expected(path._replace(entry=TWO)) == "two-backend 10.1.1.2"


ALL: tuple[Row | Refusal, ...] = (*rows(), *refusals())


def test_every_row_has_a_name_of_its_own() -> None:
    names = [it.id for it in ALL]
    assert len(names) == len(set(names))
    assert "outside-NodePort-TCP-IPv4-remote" in names


def test_the_objects_are_right_ones() -> None:
    assert all(translate(it).value is not None for it in objects((ONE, TWO, THREE)))


def test_every_difference_is_of_some_row() -> None:
    named = {found.title for found in map(difference, ALL) if found is not None}
    assert named == {it.title for it in DIFFERENCES}


def test_the_page_says_what_the_data_says() -> None:
    """Each section as it is made from the data, in its order, and none besides."""
    _, *sections = re.split(r"(?m)^(?=## )", PAGE.read_text())
    assert [each.rstrip() for each in sections] == [section(it).rstrip() for it in DIFFERENCES]
