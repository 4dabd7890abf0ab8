"""What every provider of tenants' networks must do, as checks that any package can run against its own.

    import asyncio, pytest
    from podwire.tenants.testing import CASES

    @pytest.mark.parametrize("case", CASES, ids=lambda it: it.name)
    def test_conformance(case):
        asyncio.run(case.check(make_my_provider(), tenant="a tenant that there is"))

Invariants: a case begins with a provider that has nothing of ours, and says what it lacks by an AssertionError. It
looks at answers alone; what packets do is another matter. It leaves nothing.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from msgspec.structs import replace

from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.tenants import Affinity, HostPort, LoadBalancer, Network, NetworkStatus, Route, Subnet
from podwire.tenants.names import build_load_balancer_name, build_network_name
from podwire.tenants.provider import NotFound, Provider, ProviderError

RUNTIME = "containerd"


class Case(NamedTuple):
    name: str
    check: Callable[[Provider, str], Awaitable[None]]


CASES: list[Case] = []


def _case(check: Callable[[Provider, str], Awaitable[None]]) -> Callable[[Provider, str], Awaitable[None]]:
    CASES.append(Case(check.__name__.replace("_", " "), check))
    return check


def network(tenant: str, name: str = "conformance", *cidrs: str) -> Network:
    subnets = []
    for number, text in enumerate(cidrs or ("10.77.0.0/24",)):
        cidr = parse_prefix(text)
        subnets.append(Subnet(build_network_name(f"{name}-{number}", tenant), cidr, cidr.nth(1), tenant_id=tenant))
    return Network(build_network_name(name, tenant), tenant, tuple(subnets))


async def _refused(call: Awaitable[object], how: type[Exception] = NotFound) -> str:
    """Why, in the provider's words."""
    try:
        found = await call
    except how as error:
        return str(error)
    raise AssertionError(f"expected {how.__name__}, not {found!r}")


def _core(it: Network) -> tuple[object, ...]:
    """What was asked for, without what is the provider's to say."""
    return it.name, it.tenant_id, tuple((each.name, each.cidr, each.gateway) for each in it.subnets)


# --- networks ----------------------------------------------------------------------------------


@_case
async def a_network_is_there_from_its_creation_to_its_deletion(provider: Provider, tenant: str) -> None:
    asked = network(tenant)
    await _refused(provider.networks.get_network(asked.name))
    await provider.networks.create_network(asked)
    try:
        found = await provider.networks.get_network(asked.name)
        assert _core(found) == _core(asked)
        assert found.status in (NetworkStatus.ACTIVE, NetworkStatus.PENDING)
        assert found.uid, "a network has an ID of its own"
        assert await provider.networks.get_network_by_id(found.uid) == found
    finally:
        await provider.networks.delete_network(asked.name)
    await _refused(provider.networks.get_network(asked.name))


@_case
async def to_create_a_network_again_changes_nothing(provider: Provider, tenant: str) -> None:
    asked = network(tenant)
    await provider.networks.create_network(asked)
    try:
        before = await provider.networks.get_network(asked.name)
        await provider.networks.create_network(asked)
        assert await provider.networks.get_network(asked.name) == before
    finally:
        await provider.networks.delete_network(asked.name)


@_case
async def two_networks_may_have_the_same_addresses(provider: Provider, tenant: str) -> None:
    both = network(tenant, "one"), network(tenant, "two")
    for it in both:
        await provider.networks.create_network(it)
    try:
        one, two = [await provider.networks.get_network(it.name) for it in both]
        assert one.uid != two.uid
        assert not one.segment_id or one.segment_id != two.segment_id, "one segment each"
    finally:
        for it in both:
            await provider.networks.delete_network(it.name)


@_case
async def what_can_not_be_is_refused_and_leaves_nothing(provider: Provider, tenant: str) -> None:
    subnet = network(tenant).subnets[0]
    outside = replace(subnet, gateway=parse_address("10.78.0.1"))
    overlapping = network(tenant, "conformance", "10.77.0.0/24", "10.77.0.128/25")
    lost = replace(subnet, routes=(Route(parse_address("10.78.0.1"), parse_prefix("10.79.0.0/16")),))
    for wrong in (
        overlapping,
        replace(network(tenant), subnets=(outside,)),
        replace(network(tenant), subnets=(lost,)),
        replace(network(tenant), subnets=(subnet, subnet)),
    ):
        assert await _refused(provider.networks.create_network(wrong), ProviderError), "an error says why"
        await _refused(provider.networks.get_network(wrong.name))


@_case
async def a_network_changes_as_asked(provider: Provider, tenant: str) -> None:
    asked = network(tenant)
    await provider.networks.create_network(asked)
    try:
        before = await provider.networks.get_network(asked.name)
        more = replace(asked, subnets=(*asked.subnets, *network(tenant, "more", "10.80.0.0/24").subnets))
        await provider.networks.update_network(more)
        after = await provider.networks.get_network(asked.name)
        assert _core(after) == _core(more)
        assert (after.uid, after.segment_id) == (before.uid, before.segment_id), "it is the same network"
    finally:
        await provider.networks.delete_network(asked.name)


@_case
async def what_is_not_there_is_not_found(provider: Provider, tenant: str) -> None:
    absent = network(tenant, "absent")
    networks, balancers = provider.networks, provider.load_balancers
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: networks.get_network(absent.name),
        lambda: networks.get_network_by_id("no-such-id"),
        lambda: networks.update_network(absent),
        lambda: networks.delete_network(absent.name),
        lambda: balancers.get_load_balancer("absent"),
        lambda: balancers.update_load_balancer("absent", (), ()),
    ]
    for call in calls:
        assert await _refused(call()) == "NotFound", "callers of the remote protocol compare the text"
    await provider.load_balancers.delete_load_balancer("absent")


@_case
async def tenants_are_told_apart_from_strangers(provider: Provider, tenant: str) -> None:
    assert await provider.check_tenant_id(tenant) is True
    assert await provider.check_tenant_id("nobody-has-this-name") is False


# --- pods --------------------------------------------------------------------------------------


@_case
async def a_pod_has_an_address_of_its_subnet_while_it_is_set_up(provider: Provider, tenant: str) -> None:
    asked = network(tenant)
    await provider.networks.create_network(asked)
    whose = "pod", "default", "sandbox-1"
    try:
        there = await provider.networks.get_network(asked.name)
        assert await provider.pods.pod_status(*whose, there, RUNTIME) is None
        await provider.pods.setup_pod(*whose, there, RUNTIME)
        address = await provider.pods.pod_status(*whose, there, RUNTIME)
        assert address is not None
        assert address in asked.subnets[0].cidr
        assert address != asked.subnets[0].gateway
        await provider.pods.setup_pod(*whose, there, RUNTIME)
        assert await provider.pods.pod_status(*whose, there, RUNTIME) == address, "set up twice it is the same"
        await _refused(provider.networks.delete_network(asked.name), ProviderError)  # it has a pod
        await provider.pods.teardown_pod(*whose, there, RUNTIME)
        assert await provider.pods.pod_status(*whose, there, RUNTIME) is None
        await provider.pods.teardown_pod(*whose, there, RUNTIME)
    finally:
        await provider.pods.teardown_pod(*whose, asked, RUNTIME)
        await provider.networks.delete_network(asked.name)


@_case
async def a_late_teardown_leaves_the_next_pod_of_that_name_alone(provider: Provider, tenant: str) -> None:
    asked = network(tenant)
    await provider.networks.create_network(asked)
    old, new = ("pod", "default", "sandbox-1"), ("pod", "default", "sandbox-2")
    try:
        await provider.pods.setup_pod(*old, asked, RUNTIME)
        await provider.pods.setup_pod(*new, asked, RUNTIME)
        address = await provider.pods.pod_status(*new, asked, RUNTIME)
        await provider.pods.teardown_pod(*old, asked, RUNTIME)
        assert await provider.pods.pod_status(*new, asked, RUNTIME) == address
    finally:
        for it in (old, new):
            await provider.pods.teardown_pod(*it, asked, RUNTIME)
        await provider.networks.delete_network(asked.name)


@_case
async def a_pod_can_be_torn_down_after_its_network_is_gone(provider: Provider, tenant: str) -> None:
    await provider.pods.teardown_pod("pod", "default", "sandbox-1", network(tenant, "absent"), RUNTIME)


# --- load balancers ----------------------------------------------------------------------------


def balancer(there: Network, *hosts: HostPort, external: tuple[str, ...] = ()) -> LoadBalancer:
    name = build_load_balancer_name("web", "default")
    addresses = tuple(map(parse_address, external))
    return LoadBalancer(name, there.tenant_id, subnets=there.subnets[:1], hosts=hosts, external_ips=addresses)


MEMBERS = tuple(HostPort(parse_address(f"10.77.0.{number}"), 80, 8080) for number in (11, 12))


@_case
async def a_load_balancer_has_an_address_inside_and_the_members_that_it_was_told(
    provider: Provider, tenant: str
) -> None:
    asked = network(tenant)
    await provider.networks.create_network(asked)
    name = build_load_balancer_name("web", "default")
    try:
        there = await provider.networks.get_network(asked.name)
        vip = await provider.load_balancers.create_load_balancer(balancer(there, *MEMBERS), Affinity.NONE)
        assert vip in asked.subnets[0].cidr
        assert vip not in (asked.subnets[0].gateway, *(it.address for it in MEMBERS))
        found = await provider.load_balancers.get_load_balancer(name)
        assert (found.vip, sorted(found.hosts)) == (vip, sorted(MEMBERS))
        for hosts in (
            MEMBERS[:1],
            tuple(replace(it, target_port=9090) for it in MEMBERS),  # a port alone is a change, too
            (*MEMBERS, *(replace(it, target_port=9090) for it in MEMBERS)),  # both, while a target port rolls
            (),
        ):
            assert await provider.load_balancers.update_load_balancer(name, hosts, ()) == vip
            found = await provider.load_balancers.get_load_balancer(name)
            assert sorted(found.hosts) == sorted(hosts)
    finally:
        await provider.load_balancers.delete_load_balancer(name)
        await provider.networks.delete_network(asked.name)
    await _refused(provider.load_balancers.get_load_balancer(name))


@_case
async def external_addresses_come_and_go_and_have_one_owner(provider: Provider, tenant: str) -> None:
    asked = network(tenant)
    await provider.networks.create_network(asked)
    name, external = build_load_balancer_name("web", "default"), parse_address("198.51.100.7")
    try:
        there = await provider.networks.get_network(asked.name)
        await provider.load_balancers.create_load_balancer(balancer(there, *MEMBERS), Affinity.CLIENT_IP)
        await provider.load_balancers.update_load_balancer(name, MEMBERS, (external,))
        assert (await provider.load_balancers.get_load_balancer(name)).external_ips == (external,)
        other = replace(balancer(there, *MEMBERS, external=("198.51.100.7",)), name="another")
        call = provider.load_balancers.create_load_balancer(other, Affinity.NONE)
        assert "198.51.100.7" in await _refused(call, ProviderError), "an external address has one owner"
        await _refused(provider.load_balancers.get_load_balancer("another"))
        await provider.load_balancers.update_load_balancer(name, MEMBERS, ())
        assert (await provider.load_balancers.get_load_balancer(name)).external_ips == ()
    finally:
        for it in (name, "another"):
            await provider.load_balancers.delete_load_balancer(it)
        await provider.networks.delete_network(asked.name)
