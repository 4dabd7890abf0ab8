"""Tenants' networks: names, what can't be, the registry of providers, and that the conformance suite tells right from
wrong."""

import asyncio
import io
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.model.addresses import Address, parse_address, parse_prefix
from podwire.model.tenants import (
    Affinity,
    HostPort,
    LoadBalancer,
    Network,
    NetworkRequest,
    Route,
    Subnet,
    SubnetRequest,
)
from podwire.tenants import checks
from podwire.tenants.names import api_network_to_provider_network, build_load_balancer_name, build_network_name
from podwire.tenants.provider import Provider
from podwire.tenants.registry import GROUP, Registry, RegistryError
from podwire.tenants.testing import CASES, Case
from tests.unit.memory_provider import MemoryProvider


def subnet(cidr: str, gateway: str = "", name: str = "a", *routes: Route) -> Subnet:
    return Subnet(name, parse_prefix(cidr), parse_address(gateway) if gateway else None, routes)


# --- names -------------------------------------------------------------------------------------


def test_names_are_those_that_providers_know() -> None:
    assert build_network_name("front", "t1") == "kube_front_t1"
    assert build_load_balancer_name("web", "shop") == "kube_web_shop"


@given(st.permutations(["c", "a", "b"]))
def test_subnets_come_in_the_order_of_their_names(order: list[str]) -> None:
    asked = tuple((key, SubnetRequest(parse_prefix(f"10.{ord(key)}.0.0/24"))) for key in order)
    made = api_network_to_provider_network("front", NetworkRequest("t1", asked))
    assert made.name == "kube_front_t1"
    assert [it.name for it in made.subnets] == ["kube_a_t1", "kube_b_t1", "kube_c_t1"]
    assert {it.tenant_id for it in (made, *made.subnets)} == {"t1"}


# --- what can't be -----------------------------------------------------------------------------

ROUTE = Route(parse_address("10.2.0.1"), parse_prefix("10.3.0.0/16"))


@pytest.mark.parametrize(
    ("subnets", "expected"),
    [
        pytest.param((subnet("10.1.0.0/24", "10.1.0.1"),), "", id="right"),
        pytest.param((subnet("fd00::/64", "fd00::1"),), "", id="IPv6"),
        pytest.param((subnet("10.1.0.0/24"),), "", id="without a gateway"),
        pytest.param(
            (subnet("10.1.0.0/24", "10.2.0.1"),),
            "subnet a: gateway 10.2.0.1: expected an address of a host in 10.1.0.0/24",
            id="a gateway outside",
        ),
        pytest.param(
            (subnet("10.1.0.0/24", "10.1.0.0"),),
            "subnet a: gateway 10.1.0.0: expected an address of a host in 10.1.0.0/24",
            id="the network's own address",
        ),
        pytest.param(
            (subnet("10.1.0.0/24", "10.1.0.255"),),
            "subnet a: gateway 10.1.0.255: expected an address of a host in 10.1.0.0/24",
            id="the broadcast address",
        ),
        pytest.param(
            (subnet("10.1.0.0/24"), subnet("10.1.0.128/25", name="b")),
            "subnet b: cidr 10.1.0.128/25: expected one apart from a's 10.1.0.0/24",
            id="two that overlap",
        ),
        pytest.param(
            (subnet("10.1.0.0/24"), subnet("10.2.0.0/24")),
            "subnet a: expected another name, since two have this one",
            id="one name",
        ),
        pytest.param(
            (subnet("10.1.0.0/32"),),
            "subnet a: cidr 10.1.0.0/32: expected room for a gateway and a pod",
            id="too small",
        ),
        pytest.param(
            (subnet("10.1.0.0/24", "", "a", ROUTE),),
            "subnet a: route to 10.3.0.0/16: next hop 10.2.0.1: expected an address in 10.1.0.0/24",
            id="a next hop outside",
        ),
    ],
)
def test_what_can_not_be_is_told_with_field_and_right_form(subnets: tuple[Subnet, ...], expected: str) -> None:
    assert checks.mistakes(Network("n", subnets=subnets)) == ((expected,) if expected else ())


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (NetworkRequest("t"), "spec.subnets: expected at least one subnet, or spec.providerNetworkID"),
        (
            NetworkRequest("t", (("a", SubnetRequest(parse_prefix("10.1.0.0/24"))),), "there"),
            "spec.subnets: expected none beside spec.providerNetworkID, whose network has its own",
        ),
        (NetworkRequest("t", (), "there"), ""),
    ],
)
def test_an_object_asks_for_subnets_or_for_what_there_is(request_: NetworkRequest, expected: str) -> None:
    assert checks.mistakes_of_request(request_) == ((expected,) if expected else ())


# --- registry ----------------------------------------------------------------------------------


def made(_: TextIO | None) -> Provider:
    return MemoryProvider()


def failing(_: TextIO | None) -> Provider:
    raise ValueError("no\nlicence")


def shipped(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def registry(*packages: EntryPoint) -> Registry:
    found = Registry(lambda: packages)
    found.register("memory", made)
    return found


HERE = f"{__name__}:made"


@pytest.mark.parametrize(
    ("act", "error"),
    [
        pytest.param(
            lambda it: it.register("memory", made),
            "network provider 'memory' is registered already; registered: linux, memory",
            id="twice",
        ),
        pytest.param(
            lambda it: it.register("linux", made),
            "network provider 'linux' is registered already; registered: linux, memory",
            id="one that a package ships",
        ),
        pytest.param(
            lambda it: it.register("", made), "expected a network provider's name, not ''", id="without a name"
        ),
        pytest.param(
            lambda it: it.init(""), "no network provider is named; registered: linux, memory", id="none named"
        ),
        pytest.param(
            lambda it: it.init("other"), "unknown network provider 'other'; registered: linux, memory", id="unknown"
        ),
    ],
)
def test_what_the_registry_refuses_says_what_there_is(act: Callable[[Registry], Any], error: str) -> None:
    with pytest.raises(RegistryError) as raised:
        act(registry(shipped("linux", HERE)))
    assert str(raised.value) == error


def test_a_provider_is_made_from_its_configuration() -> None:
    read: list[str] = []

    def reading(config: TextIO | None) -> Provider:
        read.append(config.read() if config is not None else "none")
        return MemoryProvider()

    it = registry()
    it.register("reading", reading)
    assert it.init("reading", io.StringIO("a = 1")).provider_name == "memory"
    assert it.get("reading") is not None
    assert read == ["a = 1", "none"]
    assert it.get("other") is None
    assert it.names() == ("memory", "reading")


def test_a_failing_factory_is_an_error_in_one_line() -> None:
    it = registry()
    it.register("failing", failing)
    for ask in (it.get, it.init):
        with pytest.raises(RegistryError, match="could not init network provider 'failing': no licence"):
            ask("failing")


def test_a_package_s_provider_is_loaded_when_it_is_asked_for() -> None:
    it = registry(
        shipped("linux", HERE), shipped("broken", "no_such_package:factory"), shipped("odd", f"{__name__}:HERE")
    )
    assert it.init("linux").provider_name == "memory"
    with pytest.raises(
        RegistryError, match="'broken' of entry point no_such_package:factory can't be loaded: No module"
    ):
        it.init("broken")
    with pytest.raises(RegistryError, match=r"'odd' of entry point .*: expected a factory"):
        it.init("odd")


def test_two_packages_with_one_name_are_an_error_that_names_both() -> None:
    it = registry(shipped("linux", HERE), shipped("linux", f"{__name__}:failing"))
    with pytest.raises(RegistryError, match=r"is shipped by entry point .*:failing and entry point .*:made: remove"):
        it.init("linux")


# --- the conformance suite ---------------------------------------------------------------------


def held(case: Case, provider: Provider) -> None:
    asyncio.run(case.check(provider, "tenant"))


@pytest.mark.parametrize("case", CASES, ids=lambda it: it.name)
def test_a_right_provider_passes_and_keeps_nothing(case: Case) -> None:
    provider = MemoryProvider()
    held(case, provider)
    assert (provider.there, provider.balancers, provider.set_up) == ({}, {}, {})


class KeepsMembers(MemoryProvider):
    """Where there are none any more."""

    async def update_load_balancer(
        self, name: str, hosts: tuple[HostPort, ...], external_ips: tuple[Address, ...]
    ) -> Address:
        return await super().update_load_balancer(name, hosts or self.balancers[name].hosts, external_ips)


class ByAddressAlone(MemoryProvider):
    """Of a member whose port changes it sees no change."""

    async def update_load_balancer(
        self, name: str, hosts: tuple[HostPort, ...], external_ips: tuple[Address, ...]
    ) -> Address:
        before = self.balancers[name].hosts
        same = {it.address for it in hosts} == {it.address for it in before}
        return await super().update_load_balancer(name, before if same else hosts, external_ips)


class IgnoresExternal(MemoryProvider):
    async def update_load_balancer(
        self, name: str, hosts: tuple[HostPort, ...], external_ips: tuple[Address, ...]
    ) -> Address:
        before = self.balancers[name].external_ips
        return await super().update_load_balancer(name, hosts, before or external_ips)


class HalfMade(MemoryProvider):
    async def create_network(self, network: Network) -> None:
        self.there.setdefault(network.name, replace(network, uid="half"))
        await super().create_network(network)


class DeletesUnderPods(MemoryProvider):
    async def delete_network(self, name: str) -> None:
        await self.get_network(name)
        del self.there[name]


class ByName(MemoryProvider):
    """A pod is known by its name, whatever its sandbox."""

    async def teardown_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None:
        for key, (pod, _) in list(self.set_up.items()):
            if pod == f"{namespace}/{name}":
                del self.set_up[key]
        await super().teardown_pod(name, namespace, sandbox, network, runtime)


class NeedsItsNetwork(MemoryProvider):
    async def teardown_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None:
        await self.get_network(network.name)
        await super().teardown_pod(name, namespace, sandbox, network, runtime)


class WrapsTheText(MemoryProvider):
    async def get_network(self, name: str) -> Network:
        try:
            return await super().get_network(name)
        except Exception as error:
            raise type(error)(f"network {name}: {error}") from None


class LetsAnybodyIn(MemoryProvider):
    async def check_tenant_id(self, tenant_id: str) -> bool:
        return bool(tenant_id)


class SharesExternal(MemoryProvider):
    async def create_load_balancer(self, balancer: LoadBalancer, affinity: Affinity) -> Address:
        vip = await super().create_load_balancer(replace(balancer, external_ips=()), affinity)
        self.balancers[balancer.name] = replace(self.balancers[balancer.name], external_ips=balancer.external_ips)
        return vip


@pytest.mark.parametrize(
    "wrong",
    [
        KeepsMembers,
        ByAddressAlone,
        IgnoresExternal,
        HalfMade,
        DeletesUnderPods,
        ByName,
        NeedsItsNetwork,
        WrapsTheText,
        LetsAnybodyIn,
        SharesExternal,
    ],
    ids=lambda it: it.__name__,
)
def test_a_provider_with_one_thing_wrong_does_not_pass(wrong: type[MemoryProvider]) -> None:
    told = []
    for case in CASES:
        try:
            held(case, wrong())
        except Exception as error:  # in whatever way
            told.append((case.name, error))
    assert told
