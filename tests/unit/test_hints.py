"""Whom the hints of slices leave to a node's clients: kube-proxy's rules (KEP-2433, KEP-3015, KEP-4444), one by one.

trafficDistribution is the control plane's to turn into hints (PreferClose and PreferSameZone: forZones, PreferSameNode:
forNodes besides); a node reads the hints alone, of ready members only, and counts them where all have them.
"""

import pytest

from podwire.controller.events import KubeStateChange
from podwire.controller.snapshot import fold
from podwire.model.addresses import parse_address, show_address
from podwire.model.objects import (
    BackendPort,
    BackendSlice,
    Hints,
    Member,
    Node,
    NodeKey,
    Protocol,
    Service,
    ServiceKey,
    ServicePort,
    SliceKey,
)
from podwire.model.snapshot import Local, Snapshot
from podwire.services.backends import ZONE, Pool, pools

WEB = ServiceKey("default", "web")


def member(
    number: int, zones: str = "", nodes: str = "", ready: bool = True, terminating: bool = False, node: str = "far"
) -> Member:
    return Member(
        parse_address(f"10.1.0.{number}"),
        ready=ready,
        serving=ready or terminating,
        terminating=terminating,
        node=node,
        hints=Hints(tuple(zones.split()), tuple(nodes.split())),
    )


ALL = "1 2 3"


@pytest.mark.parametrize(
    ("members", "zone", "cluster"),
    [
        pytest.param([member(1), member(2), member(3)], "a", ALL, id="no hints"),
        pytest.param([member(1, "a"), member(2, "b"), member(3, "a b")], "a", "1 3", id="this zone's"),
        pytest.param([member(1, "a"), member(2, "b"), member(3)], "a", ALL, id="one without a zone: none counts"),
        pytest.param([member(1, "b"), member(2, "b"), member(3, "c")], "a", ALL, id="nobody for this zone: all"),
        pytest.param([member(1, "a"), member(2, "b"), member(3, "b")], "", ALL, id="the node has no zone: all"),
        pytest.param(
            [member(1, "a", "one"), member(2, "a", "two"), member(3, "b", "three")], "a", "1", id="this node's first"
        ),
        pytest.param(
            [member(1, "a", "two"), member(2, "b", "two"), member(3, "a", "three")],
            "a",
            "1 3",
            id="nobody for this node: the zone's",
        ),
        pytest.param(
            [member(1, "b", "one"), member(2, "a"), member(3, "a", "two")],
            "a",
            "2 3",
            id="one without a node: the zone's",
        ),
        pytest.param(
            [member(1, "", "two"), member(2, "", "two"), member(3, "", "three")],
            "a",
            ALL,
            id="nobody for this node, and no zones: all",
        ),
        pytest.param(
            [member(1, "", "one two"), member(2, "", "two"), member(3, "", "one")],
            "",
            "1 3",
            id="nodes need no zone of this one",
        ),
        pytest.param(
            [member(1, "a"), member(2, "b"), member(3, ready=False)], "a", "1", id="one that is not ready needs no hint"
        ),
        pytest.param(
            [member(1, "a", ready=False), member(2, "b"), member(3, "b")],
            "a",
            "2 3",
            id="the zone's only one is not ready: all that are",
        ),
        pytest.param(
            [member(1, "a", ready=False, terminating=True), member(2, "b"), member(3, "b")],
            "a",
            "2 3",
            id="the zone's only one is on its way out: all that are ready",
        ),
        pytest.param(
            [member(n, z, ready=False, terminating=True) for n, z in ((1, "a"), (2, "b"), (3, "b"))],
            "a",
            ALL,
            id="all are on their way out: hints don't count",
        ),
    ],
)
def test_hints(members: list[Member], zone: str, cluster: str) -> None:
    """Whatever the slices are in which the members come, and in whatever order: sorted, each once."""
    for parts in ([members], [[one] for one in members], [[one] for one in reversed(members)], [members, members]):
        found = _pools(parts, zone)
        assert [show_address(it.address) for it in found.cluster] == [f"10.1.0.{n}" for n in cluster.split()]


@pytest.mark.parametrize(
    ("members", "cluster", "local"),
    [
        pytest.param([member(1, "a"), member(1, "b"), member(2, "b")], "1", "", id="moved: its hints of both slices"),
        pytest.param([member(1, "a"), member(1), member(2, "b")], "1 2", "", id="moved: one without a hint is one"),
        pytest.param([member(1), member(1, ready=False)], "1", "", id="ready in one of two"),
        pytest.param(
            [member(1, ready=False, terminating=True), member(1, ready=False)], "", "", id="given again, not ready yet"
        ),
        pytest.param(
            [member(1, ready=False, terminating=True, node="one"), member(1)], "1", "", id="given again elsewhere"
        ),
        pytest.param(
            [
                member(1, ready=False, terminating=True),
                member(1, ready=False),
                member(2, ready=False, terminating=True),
            ],
            "2",
            "",
            id="given again: others on their way out serve",
        ),
    ],
)
def test_an_address_that_is_there_twice(members: list[Member], cluster: str, local: str) -> None:
    for parts in ([members], [[one] for one in members], [[one] for one in reversed(members)]):
        found = _pools(parts, "a")
        assert [show_address(it.address) for it in found.cluster] == [f"10.1.0.{n}" for n in cluster.split()]
        assert [show_address(it.address) for it in found.local] == [f"10.1.0.{n}" for n in local.split()]


def test_a_local_policy_knows_no_hints() -> None:
    here = [member(1, "b", "two", node="one"), member(2, "a", "one"), member(3, "b", "two", node="one")]
    found = _pools([here], "a")
    assert [show_address(it.address) for it in found.local] == ["10.1.0.1", "10.1.0.3"]


def _pools(parts: list[list[Member]], zone: str) -> Pool:
    port = BackendPort("p", Protocol.TCP, 8080)
    slices = [
        (SliceKey("default", f"web-{n}"), BackendSlice(WEB, (port,), tuple(some))) for n, some in enumerate(parts)
    ]
    node = Node((), (), ((ZONE, zone),) if zone else ())
    web = Service((ServicePort("p", Protocol.TCP, 80),), (parse_address("10.96.0.1"),))
    now, _ = fold(Snapshot(Local("one")), KubeStateChange(((NodeKey("one"), node), (WEB, web), *slices)))
    return pools(now, WEB)["p", Protocol.TCP, 4]
