"""With whom a flow of datagrams may stay that gets no new ones: kube-proxy's rules (pkg/proxy/conntrack) one by one."""

import pytest

from podwire.controller.events import KubeStateChange
from podwire.controller.snapshot import fold
from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.network import Backend, Frontend
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
from podwire.services.stale import lasting

DNS = ServiceKey("default", "dns")
CLUSTER_IP, EXTERNAL_IP = parse_address("10.96.0.10"), parse_address("203.0.113.5")
HERE, THERE = parse_address("10.1.1.2"), parse_address("10.1.2.2")


def snapshot(*slices: tuple[Member, ...], external: bool = False, internal: bool = False, port: int = 53) -> Snapshot:
    """One Service of each protocol; `external` and `internal`: its policies are Local."""
    ports = tuple(ServicePort(it.name, it, port) for it in Protocol)
    backend_ports = tuple(BackendPort(it.name, it, 5353) for it in Protocol)
    service = Service(ports, (CLUSTER_IP,), (EXTERNAL_IP,), external_local=external, internal_local=internal)
    node = Node((parse_prefix("10.1.1.0/24"),), (parse_address("192.0.2.1"),))
    parts = [(SliceKey("default", f"dns-{n}"), BackendSlice(DNS, backend_ports, it)) for n, it in enumerate(slices)]
    return fold(Snapshot(Local("one")), KubeStateChange(((NodeKey("one"), node), (DNS, service), *parts)))[0]


def stay(now: Snapshot, to: Frontend, inside: bool = False) -> list[str]:
    return [str(it) for it in sorted(lasting(now, to, inside))]


UDP = Frontend(CLUSTER_IP, Protocol.UDP, 53)
LEAVING = Member(HERE, ready=False, terminating=True, node="one")
READY = Member(THERE, node="two")


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param([(LEAVING, READY)], [HERE, THERE], id="one on its way out, while others are ready"),
        pytest.param([(Member(HERE, hints=Hints(zones=("b",))), READY)], [HERE, THERE], id="one kept for another zone"),
        pytest.param([(Member(HERE, ready=False, serving=False), READY)], [THERE], id="one that is not ready"),
        pytest.param(
            [(Member(HERE, ready=False, serving=False, terminating=True), READY)], [THERE], id="one that has ended"
        ),
        pytest.param([(READY,)], [THERE], id="one that is gone"),
        pytest.param(
            [(LEAVING,), (Member(HERE, ready=False, serving=False), READY)],
            [THERE],
            id="one whose address another has, which is not ready yet",
        ),
        pytest.param([(LEAVING,), (Member(HERE), READY)], [HERE, THERE], id="one whose address another has"),
        pytest.param([], [], id="nobody"),
    ],
)
def test_flows_stay_with_those_that_serve(slices: list[tuple[Member, ...]], expected: list[bytes]) -> None:
    assert sorted(lasting(snapshot(*slices), UDP, True)) == [Backend(it, 5353) for it in expected]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "external", "internal", "inside", "expected"),
    [
        pytest.param(CLUSTER_IP, True, False, False, "both", id="cluster IP, external Local"),
        pytest.param(CLUSTER_IP, False, True, True, "here", id="cluster IP, internal Local"),
        pytest.param(EXTERNAL_IP, True, False, False, "here", id="from outside, external Local"),
        pytest.param(EXTERNAL_IP, True, False, True, "both", id="a pod, external Local"),
        pytest.param(EXTERNAL_IP, False, True, False, "both", id="from outside, internal Local"),
    ],
)
def test_a_policy_leaves_out_whom_it_leaves_out_of_new_flows(
    address: bytes, external: bool, internal: bool, inside: bool, expected: str
) -> None:
    now = snapshot((LEAVING, READY), external=external, internal=internal)
    both = {"here": ["10.1.1.2:5353"], "both": ["10.1.1.2:5353", "10.1.2.2:5353"]}
    assert stay(now, Frontend(address, Protocol.UDP, 53), inside) == both[expected]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "to",
    [
        pytest.param(Frontend(CLUSTER_IP, Protocol.TCP, 53), id="of TCP, where no connection is yet"),
        pytest.param(Frontend(CLUSTER_IP, Protocol.UDP, 54), id="another port"),
        pytest.param(Frontend(parse_address("10.96.0.11"), Protocol.UDP, 53), id="nobody's address"),
    ],
)
def test_no_flow_stays(to: Frontend) -> None:
    assert stay(snapshot((LEAVING, READY)), to) == []


def test_associations_of_sctp_stay_too() -> None:
    assert stay(snapshot((LEAVING,)), Frontend(CLUSTER_IP, Protocol.SCTP, 53)) == ["10.1.1.2:5353"]
