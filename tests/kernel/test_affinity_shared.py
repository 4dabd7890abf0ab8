"""One memory for all addresses of a ServicePort: whatever address a client comes by, it keeps its backend."""

import itertools

import pytest
from msgspec.structs import replace

from podwire.model.addresses import parse_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import Protocol, Service, ServiceKey, ServicePort
from tests.kernel.outside import FAR, NODES, connect, members
from tests.kernel.rig import Rig, ask, service

WEB = ServiceKey("default", "web")
PODS = {"a": 2, "b": 3, "c": 4, "d": 5}
HERE = tuple(address.format(n) for n in PODS.values() for address in ("10.1.1.{}", "fd01::{}"))
PLACES = {
    4: (("10.96.0.10", 80), ("203.0.113.5", 80), ("203.0.113.6", 80), ("203.0.113.80", 80), ("192.0.2.1", 30080)),
    16: (("fd00:96::a", 80), ("fd00:cc::5", 80), ("fd00:cc::6", 80), ("2001:db8::80", 80), ("fd99::1", 30080)),
}
"""Cluster IP, external IPs, load balancer's IP, node port."""
PORTS = itertools.count(20_000)


def objects(protocol: Protocol = Protocol.TCP, **policies: bool) -> dict[ObjectKey, Object]:
    made = service("web", 10, HERE, protocol)
    it = made[WEB]
    assert isinstance(it, Service)
    made[WEB] = replace(
        it,
        ports=(replace(it.ports[0], node_port=30080), ServicePort("q", protocol, 81)),
        external_ips=tuple(parse_address(to) for each in PLACES.values() for to, _ in each[1:3]),
        balancer_ips=tuple(parse_address(each[3][0]) for each in PLACES.values()),
        affinity=600,
        **policies,
    )
    return NODES | made | members("web", *HERE, protocol=protocol)


def who(rig: Rig, client: str | None, to: str, port: int, protocol: Protocol) -> str:
    """By a flow that there never was. A pod that has just come may lose its first datagram; nobody sends it again."""
    space = rig.pods[client] if client else None
    answers = (ask(space, to, port, protocol, source=next(PORTS)).split()[0] for _ in range(2))
    return next((it for it in answers if it != "TimeoutError"), "nobody")


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP], ids=["TCP", "UDP"])
async def test_a_client_keeps_its_backend_whatever_address_it_comes_by(rig: Rig, protocol: Protocol) -> None:
    """Each of them begins, so that whichever made the memory, the others find it."""
    rig.pods["world"] = connect(rig).client
    await rig.start_with_pods(*PODS, objects=objects(protocol))
    for places in PLACES.values():
        for number, client in enumerate((None, "world", *PODS)):
            turned = places[number % 5 :] + places[: number % 5]
            seen = [who(rig, client, to, port, protocol) for to, port in turned * 2]
            assert len(set(seen)) == 1, (client, seen)
    assert await rig.drift() == []


async def test_another_port_of_the_service_has_a_memory_of_its_own(rig: Rig) -> None:
    made = objects()
    key, it = next((key, it) for key, it in members("web", *HERE).items())
    both = (it.ports[0], replace(it.ports[0], name="q"))  # type: ignore[union-attr]
    made[key] = replace(it, ports=both)
    connect(rig)
    await rig.start_with_pods(*PODS, objects=made)
    asked = [(pod, places[0][0]) for pod in PODS for places in PLACES.values()]
    pairs = {tuple(who(rig, pod, to, port, Protocol.TCP) for port in (80, 81)) for pod, to in asked}
    assert any(one != other for one, other in pairs)


async def test_what_a_policy_leaves_out_is_not_forgotten_for_those_that_it_does_not_concern(rig: Rig) -> None:
    """externalTrafficPolicy Local: a pod that came by the cluster IP, whose list has all, keeps its backend elsewhere,
    however the memory is looked at; who comes from outside by a Local frontend first gets one here, and keeps it."""
    rig.pods["world"] = connect(rig).client
    made = objects(external_local=True) | members("web", *FAR.values())
    await rig.start_with_pods(*PODS, objects=made)
    assert {who(rig, "a", places[0][0], 80, Protocol.TCP) for places in PLACES.values()} == {"far"}
    await rig.change(*(made | members("web", *FAR.values(), *HERE)).items())
    assert {who(rig, "a", to, port, Protocol.TCP) for places in PLACES.values() for to, port in places * 2} == {"far"}
    outside = {who(rig, "world", to, port, Protocol.TCP) for to, port in PLACES[4][1:] * 2}
    assert len(outside) == 1
    assert outside != {"far"}
    await rig.resync()
    await rig.running.flows.until_quiet()
    assert {who(rig, "a", to, port, Protocol.TCP) for places in PLACES.values() for to, port in places} == {"far"}
    assert {who(rig, "world", to, port, Protocol.TCP) for to, port in PLACES[4]} == outside


async def test_a_client_keeps_its_backend_when_the_address_it_came_by_first_goes(rig: Rig) -> None:
    made = objects()
    connect(rig)
    await rig.start_with_pods(*PODS, objects=made)
    (first,) = {who(rig, "a", to, port, Protocol.TCP) for to, port in PLACES[4]}
    it = made[WEB]
    assert isinstance(it, Service)
    await rig.change((WEB, replace(it, external_ips=(), ports=(replace(it.ports[0], node_port=0),))))
    await rig.running.flows.until_quiet()
    assert {who(rig, "a", to, port, Protocol.TCP) for to, port in (PLACES[4][0], PLACES[4][3])} == {first}
    assert await rig.drift() == []
