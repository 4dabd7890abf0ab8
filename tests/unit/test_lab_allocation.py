"""Cluster IPs and node ports: given, held, and new."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.lab.allocation import NODE_PORTS, NOTHING_HELD, Claim, NotFree, allocate, claim_of, families_of
from podwire.lab.forms import Metadata, Service, ServicePort, ServiceSpec
from podwire.lab.services import external_ips
from podwire.lab.topology import SERVICE_RANGES
from podwire.model.addresses import FAMILIES, IPV4, IPV6, Family, parse_address, parse_prefix
from podwire.model.objects import Protocol, ServiceKey
from podwire.sources.fields import Invalid

PORTS = [ServicePort(80), ServicePort(53, "dns", "UDP")]
SMALL = {IPV4: parse_prefix("10.96.0.0/29"), IPV6: parse_prefix("fd00:96::/125")}
"""Seven addresses each, so that names collide."""

keys = st.builds(ServiceKey, st.sampled_from(["a", "b"]), st.sampled_from("cdefgh"))
specs = st.builds(
    lambda policy, kind: ServiceSpec(type=kind, ip_family_policy=policy, ports=PORTS),
    st.sampled_from(["SingleStack", "PreferDualStack"]),
    st.sampled_from(["ClusterIP", "NodePort"]),
)


def claims(asked: dict[ServiceKey, ServiceSpec]) -> dict[ServiceKey, Claim]:
    return {key: claim_of(key, spec, SMALL) for key, spec in asked.items()}


def dual(name: str, *given: str) -> dict[ServiceKey, Claim]:
    key = ServiceKey("a", name)
    spec = ServiceSpec(ip_family_policy="PreferDualStack", cluster_ips=list(given), ports=PORTS)
    return {key: claim_of(key, spec, SERVICE_RANGES)}


def test_addresses_are_read_as_an_agent_reads_them() -> None:
    (it,) = dual("x", "10.096.0.07", "fd00:96::00007").values()
    assert it.given == {IPV4: parse_address("10.96.0.7"), IPV6: parse_address("fd00:96::7")}
    service = Service(Metadata("x"), ServiceSpec(external_ips=["192.0.2.010", "::ffff:192.0.2.1"]))
    assert external_ips(service) == [parse_address("192.0.2.10"), parse_address("192.0.2.1")]


@given(st.dictionaries(keys, specs, max_size=6), st.randoms())
def test_from_nothing_the_order_does_not_matter(asked: dict[ServiceKey, ServiceSpec], random: Random) -> None:
    shuffled = list(asked.items())
    random.shuffle(shuffled)
    assert allocate(claims(asked), NOTHING_HELD, SMALL) == allocate(claims(dict(shuffled)), NOTHING_HELD, SMALL)


@given(st.lists(st.dictionaries(keys, specs, max_size=6), max_size=5))
def test_whoever_stays_keeps_its_own_and_nobody_shares(steps: list[dict[ServiceKey, ServiceSpec]]) -> None:
    held = NOTHING_HELD
    for asked in steps:
        before, held = held, allocate(claims(asked), held, SMALL)
        for slot, address in held.cluster_ips.items():
            assert before.cluster_ips.get(slot, address) == address
            assert address in SMALL[slot[1]]
        for port, number in held.node_ports.items():
            assert before.node_ports.get(port, number) == number
            assert number in NODE_PORTS
        assert len(set(held.cluster_ips.values())) == len(held.cluster_ips)
        taken = [(port.protocol, number) for port, number in held.node_ports.items()]
        assert len(set(taken)) == len(taken)
        assert set(held.cluster_ips) == {(key, family) for key, it in claims(asked).items() for family in it.families}


def test_a_given_address_is_given_even_where_another_holds_it() -> None:
    first = allocate(dual("x"), NOTHING_HELD, SERVICE_RANGES)
    wanted = first.cluster_ips[ServiceKey("a", "x"), IPV4]
    spec = ServiceSpec(cluster_ip="10.96.1.2", ports=PORTS)
    assert wanted != parse_address("10.96.1.2")
    taking = claim_of(ServiceKey("a", "y"), spec, SERVICE_RANGES)._replace(given={IPV4: wanted})
    second = allocate({**dual("x"), ServiceKey("a", "y"): taking}, first, SERVICE_RANGES)
    assert second.cluster_ips[ServiceKey("a", "y"), IPV4] == wanted
    assert second.cluster_ips[ServiceKey("a", "x"), IPV4] != wanted


def test_a_given_address_stays_out_of_the_way_of_new_ones() -> None:
    many = {key: claim for number in range(300) for key, claim in dual(f"s{number}").items()}
    low = {address for address in allocate(many, NOTHING_HELD, SERVICE_RANGES).cluster_ips.values() if address[-2] == 0}
    assert low == set()


def test_an_address_given_to_two_names_both() -> None:
    both = {**dual("x", "10.96.0.10"), **dual("y", "10.96.0.10")}
    with pytest.raises(NotFree) as caught:
        allocate(both, NOTHING_HELD, SERVICE_RANGES)
    assert (caught.value.key, str(caught.value)) == (
        ServiceKey("a", "y"),
        "spec.clusterIP: 10.96.0.10 is service/a/x's already",
    )


def test_a_full_range_says_so() -> None:
    asked = {ServiceKey("a", f"s{number}"): ServiceSpec(ports=PORTS) for number in range(8)}
    with pytest.raises(NotFree, match="none is free"):
        allocate(claims(asked), NOTHING_HELD, SMALL)


@pytest.mark.parametrize(
    ("spec", "families"),
    [
        pytest.param(ServiceSpec(), (IPV4,), id="IPv4 where nothing is said"),
        pytest.param(ServiceSpec(ip_families=["IPv6"]), (IPV6,), id="the one that is named"),
        pytest.param(ServiceSpec(cluster_ip="fd00:96::5"), (IPV6,), id="the one that the address has"),
        pytest.param(ServiceSpec(ip_family_policy="PreferDualStack"), FAMILIES, id="both where asked"),
        pytest.param(
            ServiceSpec(ip_family_policy="RequireDualStack", ip_families=["IPv6"]),
            (IPV6, IPV4),
            id="the named one first",
        ),
        pytest.param(ServiceSpec(cluster_ip="None"), (IPV4,), id="a headless one too"),
    ],
)
def test_the_families_of_a_service(spec: ServiceSpec, families: tuple[Family, ...]) -> None:
    assert families_of(spec) == families


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param(ServiceSpec(ip_family_policy="Both"), "spec.ipFamilyPolicy", id="an unknown policy"),
        pytest.param(ServiceSpec(ip_families=["IPv5"]), "spec.ipFamilies[0]", id="an unknown family"),
        pytest.param(
            ServiceSpec(ip_family_policy="PreferDualStack", ip_families=["IPv4", "IPv4"]),
            "spec.ipFamilies",
            id="one twice",
        ),
        pytest.param(ServiceSpec(cluster_ips=["10.96.0.1", "fd00:96::1"]), "spec.ipFamilyPolicy", id="two unasked"),
        pytest.param(
            ServiceSpec(ip_family_policy="PreferDualStack", ip_families=["IPv6"], cluster_ips=["10.96.0.1"]),
            "spec.clusterIPs",
            id="another order",
        ),
        pytest.param(ServiceSpec(cluster_ip="10.96"), "spec.clusterIP", id="no address"),
        pytest.param(ServiceSpec(cluster_ip="10.96.0.1", cluster_ips=["10.96.0.2"]), "spec.clusterIPs", id="two words"),
    ],
)
def test_families_that_do_not_fit(spec: ServiceSpec, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        families_of(spec)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("spec", "ports"),
    [
        pytest.param(ServiceSpec(ports=PORTS), 0, id="ClusterIP: none"),
        pytest.param(ServiceSpec(type="NodePort", ports=PORTS), 2, id="NodePort: one for each"),
        pytest.param(ServiceSpec(type="LoadBalancer", ports=PORTS), 2, id="LoadBalancer: too"),
        pytest.param(
            ServiceSpec(type="LoadBalancer", ports=PORTS, allocate_load_balancer_node_ports=False),
            0,
            id="unless told not",
        ),
        pytest.param(
            ServiceSpec(type="LoadBalancer", ports=PORTS, external_traffic_policy="Local"),
            3,
            id="Local: its health check",
        ),
    ],
)
def test_who_gets_node_ports(spec: ServiceSpec, ports: int) -> None:
    key = ServiceKey("a", "x")
    held = allocate({key: claim_of(key, spec, SERVICE_RANGES)}, NOTHING_HELD, SERVICE_RANGES)
    assert len(held.node_ports) == ports


def test_one_node_port_serves_two_protocols() -> None:
    spec = ServiceSpec(
        type="NodePort",
        ports=[ServicePort(53, "a", "TCP", node_port=30053), ServicePort(53, "b", "UDP", node_port=30053)],
    )
    key = ServiceKey("a", "dns")
    held = allocate({key: claim_of(key, spec, SERVICE_RANGES)}, NOTHING_HELD, SERVICE_RANGES)
    assert {(port.protocol, number) for port, number in held.node_ports.items()} == {
        (Protocol.TCP, 30053),
        (Protocol.UDP, 30053),
    }
