"""The packet table itself: its rules on ways spelled out by hand, and the pages that are made from it in step."""

import re
from pathlib import Path as File

import pytest

from podwire.model.addresses import IPV4, IPV6, Family
from podwire.model.objects import Protocol
from podwire.sources.kubernetes import translate
from tests.packets import masquerading, terms
from tests.packets.differences import DIFFERENCES, difference, section
from tests.packets.objects import objects
from tests.packets.plan import (
    EMPTY,
    ONE,
    ONE_BACKEND,
    ONE_CLIENT,
    OTHER_TARGET_PORT,
    OUTSIDE,
    THREE,
    TWO,
    TWO_BACKEND,
    TWO_CLIENT,
    Backend,
    Exposed,
    State,
    Station,
)
from tests.packets.questions import ALL_SERVICES, everything, right
from tests.packets.table import FRONTENDS, Kind, Path, expected

DOCS = File(__file__).parents[2] / "docs"


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


# --- what a Service says -----------------------------------------------------------------------

BOTH = Exposed("both", 1).to(ONE_BACKEND, TWO_BACKEND)
REMOTE = Exposed("remote", 1).to(TWO_BACKEND)
LEAVING, READY = Backend(ONE_BACKEND, State.LEAVING), Backend(TWO_BACKEND)
GONE, UNREADY = Backend(ONE_BACKEND, State.GONE), Backend(TWO_BACKEND, State.UNREADY)
HINTED = BOTH._replace(backends=(Backend(ONE_BACKEND, for_nodes=("one",)), Backend(TWO_BACKEND, for_nodes=("two",))))
IN_ZONES = (Backend(ONE_BACKEND, for_zones=("zone-one",)), Backend(TWO_BACKEND, for_zones=("zone-two",)))


def _external(it: Exposed) -> Exposed:
    return it._replace(external_local=True)


def _internal(it: Exposed) -> Exposed:
    return it._replace(internal_local=True)


@pytest.mark.parametrize(
    ("service", "asker", "kind", "answer"),
    [
        pytest.param(_external(BOTH), OUTSIDE, Kind.NODE_PORT, "one-backend 192.0.2.200", id="narrowed, and visible"),
        pytest.param(_external(REMOTE), OUTSIDE, Kind.LOAD_BALANCER_IP, "TimeoutError", id="only elsewhere"),
        pytest.param(_external(REMOTE), ONE_CLIENT, Kind.EXTERNAL_IP, "two-backend 10.1.1.2", id="a pod, not narrowed"),
        pytest.param(_external(REMOTE), ONE, Kind.NODE_PORT, "two-backend 192.0.2.1", id="the node, not narrowed"),
        pytest.param(_external(REMOTE), TWO, Kind.EXTERNAL_IP, "two-backend 192.0.2.2", id="a node by its own way"),
        pytest.param(_external(REMOTE), TWO, Kind.NODE_PORT, "TimeoutError", id="another node's node port"),
        pytest.param(_external(REMOTE), OUTSIDE, Kind.CLUSTER_IP, "two-backend 192.0.2.1", id="not the ClusterIP's"),
        pytest.param(_internal(REMOTE), ONE_CLIENT, Kind.CLUSTER_IP, "TimeoutError", id="internal, only elsewhere"),
        pytest.param(_internal(REMOTE), TWO_CLIENT, Kind.CLUSTER_IP, "two-backend 10.1.2.2", id="internal, here"),
        pytest.param(_internal(REMOTE), ONE, Kind.CLUSTER_IP, "PermissionError", id="internal, as it is sent"),
        pytest.param(_internal(REMOTE), OUTSIDE, Kind.NODE_PORT, "two-backend 192.0.2.1", id="internal, by node port"),
        pytest.param(_external(EMPTY), OUTSIDE, Kind.NODE_PORT, "ConnectionRefusedError", id="nobody anywhere"),
        pytest.param(_internal(EMPTY), ONE, Kind.CLUSTER_IP, "PermissionError", id="nobody anywhere, as it is sent"),
        pytest.param(
            REMOTE._replace(backends=(LEAVING,)), TWO_CLIENT, Kind.CLUSTER_IP, "one-backend 10.1.2.2", id="leaving"
        ),
        pytest.param(
            REMOTE._replace(backends=(LEAVING, READY)),
            ONE_CLIENT,
            Kind.CLUSTER_IP,
            "two-backend 10.1.1.2",
            id="a ready one elsewhere before one that leaves",
        ),
        pytest.param(
            _external(REMOTE._replace(backends=(LEAVING, READY))),
            OUTSIDE,
            Kind.NODE_PORT,
            "one-backend 192.0.2.200",
            id="one that leaves here before nobody",
        ),
        pytest.param(
            REMOTE._replace(backends=(GONE, UNREADY)),
            OUTSIDE,
            Kind.NODE_PORT,
            "ConnectionRefusedError",
            id="none ready",
        ),
        pytest.param(
            _external(REMOTE._replace(backends=(GONE, READY))), OUTSIDE, Kind.NODE_PORT, "TimeoutError", id="gone here"
        ),
        pytest.param(
            REMOTE._replace(backends=(Backend(ONE_BACKEND, State.PUBLISHED), READY._replace(state=State.LEAVING))),
            ONE_CLIENT,
            Kind.CLUSTER_IP,
            "one-backend 10.1.1.2",
            id="published is as good as ready",
        ),
        pytest.param(
            REMOTE._replace(backends=(READY._replace(port=OTHER_TARGET_PORT),)),
            ONE_CLIENT,
            Kind.CLUSTER_IP,
            "two-backend:8081 10.1.1.2",
            id="another target port",
        ),
        pytest.param(HINTED, TWO_CLIENT, Kind.CLUSTER_IP, "two-backend 10.1.2.2", id="hints of the client's node"),
        pytest.param(HINTED, TWO_CLIENT, Kind.NODE_PORT, "one-backend 10.1.2.2", id="hints of the node that is asked"),
        pytest.param(
            BOTH._replace(backends=IN_ZONES), TWO, Kind.CLUSTER_IP, "two-backend 192.0.2.2", id="hints of its zone"
        ),
        pytest.param(
            BOTH._replace(backends=(*IN_ZONES[:1], READY)),
            TWO,
            Kind.CLUSTER_IP,
            "one-backend 192.0.2.2",
            id="hints that not all have count for nothing",
        ),
        pytest.param(
            REMOTE._replace(sources=("192.0.2.200/32",)),
            OUTSIDE,
            Kind.LOAD_BALANCER_IP,
            "two-backend 192.0.2.1",
            id="allowed",
        ),
        pytest.param(
            REMOTE._replace(sources=("10.1.2.0/24",)), OUTSIDE, Kind.LOAD_BALANCER_IP, "TimeoutError", id="denied"
        ),
        pytest.param(
            EMPTY._replace(sources=("10.1.2.0/24",)),
            OUTSIDE,
            Kind.LOAD_BALANCER_IP,
            "TimeoutError",
            id="denied before refused",
        ),
        pytest.param(
            REMOTE._replace(sources=("10.1.2.0/24",)),
            ONE,
            Kind.LOAD_BALANCER_IP,
            "PermissionError",
            id="denied as it is sent",
        ),
        pytest.param(
            REMOTE._replace(sources=("fd00::/8",)),
            OUTSIDE,
            Kind.LOAD_BALANCER_IP,
            "two-backend 192.0.2.1",
            id="ranges of the other family",
        ),
        pytest.param(
            REMOTE._replace(sources=("10.1.2.0/24",)),
            OUTSIDE,
            Kind.NODE_PORT,
            "two-backend 192.0.2.1",
            id="ranges are not the node port's",
        ),
        pytest.param(
            REMOTE._replace(proxied=True), ONE_CLIENT, Kind.LOAD_BALANCER_IP, "proxy 192.0.2.1", id="mode Proxy"
        ),
        pytest.param(
            REMOTE._replace(node_ports=False), OUTSIDE, Kind.NODE_PORT, "ConnectionRefusedError", id="no node ports"
        ),
    ],
)
def test_what_a_service_says(service: Exposed, asker: Station, kind: Kind, answer: str) -> None:
    assert terms.answer(service, asker, kind, Protocol.UDP, IPV4) == answer


ALL = everything()


def test_every_question_has_a_name_of_its_own() -> None:
    names = [it.id for it in ALL]
    assert len(names) == len(set(names))
    assert "outside-NodePort-TCP-IPv4-remote" in names
    assert "outside-NodePort-TCP-IPv4-remote-Local" in names


def test_every_service_has_addresses_of_its_own() -> None:
    numbers = [it.number for it in ALL_SERVICES]
    assert len(numbers) == len(set(numbers))


def test_the_objects_are_right_ones() -> None:
    assert all(translate(it).value is not None for it in objects((ONE, TWO, THREE), ALL_SERVICES))


def test_where_chance_decides_there_is_no_question() -> None:
    """Without a policy or hints; and hints of those that are leaving count for nothing."""
    leaving = tuple(it._replace(state=State.LEAVING) for it in HINTED.backends)
    for service in (BOTH, HINTED._replace(backends=leaving)):
        assert len(terms.answering(service, ONE_CLIENT, Kind.CLUSTER_IP, IPV4)) == 2
    assert not any(len(terms.answering(it.service, it.asker, it.kind, it.family)) > 1 for it in terms.cases())


@pytest.mark.parametrize("kind", FRONTENDS, ids=lambda kind: kind.value)
def test_every_fate_is_asked_for_on_every_kind_of_frontend(kind: Kind) -> None:
    fates = {right(it).split()[0] for it in ALL if it.kind is kind}
    assert fates >= {"one-backend", "two-backend", "TimeoutError", "ConnectionRefusedError"}


def test_every_difference_is_of_some_row() -> None:
    named = {found.title for found in map(difference, ALL) if found is not None}
    assert named == {it.title for it in DIFFERENCES}


def test_the_page_says_what_the_data_says() -> None:
    """Each section as it is made from the data, in its order, and none besides."""
    _, *sections = re.split(r"(?m)^(?=## )", (DOCS / "kube-proxy-differences.md").read_text())
    assert [each.rstrip() for each in sections] == [section(it).rstrip() for it in DIFFERENCES]


def test_the_page_on_masquerading_holds_the_table_as_the_rows_have_it() -> None:
    lines = (DOCS / "masquerading.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("|")] == masquerading.table().splitlines()
