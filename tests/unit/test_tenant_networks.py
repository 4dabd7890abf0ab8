"""Network objects and their provider: which phase each shows, and that whatever fails on the way, in whatever order,
comes to the same in the end."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.tenants import Network, NetworkRequest, NetworkStatus, Subnet, SubnetRequest
from podwire.tenants.lifecycle import Create, Delete, Seen, Shown, Step, Update, Wanted, decide
from podwire.tenants.names import api_network_to_provider_network
from podwire.tenants.networks import advance
from podwire.tenants.provider import MultipleResults, NotFound, ProviderError
from tests.unit.memory_provider import MemoryProvider

ACTIVE, FAILED, PENDING = NetworkStatus.ACTIVE, NetworkStatus.FAILED, NetworkStatus.PENDING
INITIALIZING, TERMINATING = NetworkStatus.INITIALIZING, NetworkStatus.TERMINATING


def subnets(**cidrs: str) -> tuple[tuple[str, SubnetRequest], ...]:
    return tuple(sorted((name.replace("_", "-"), SubnetRequest(parse_prefix(it))) for name, it in cidrs.items()))


ONE = NetworkRequest("tenant", subnets(a="10.0.0.0/24"))
TWO = NetworkRequest("tenant", subnets(a="10.0.0.0/24", a_b="10.0.1.0/24"))
GIVEN = NetworkRequest("tenant", provider_network_id="id-7")
OVERLAP = NetworkRequest("tenant", subnets(a="10.0.0.0/24", b="10.0.0.128/25"))
OUTSIDE = NetworkRequest("tenant", (("a", SubnetRequest(parse_prefix("10.0.0.0/24"), parse_address("10.0.1.1"))),))
ASKED = api_network_to_provider_network("net", ONE)
OWN = replace(ASKED, uid="id-1", segment_id=1, status=ACTIVE)
THEIRS = Network("theirs", subnets=OWN.subnets, uid="id-7", status=ACTIVE)
HERE = Seen(tenant=True)
IT = Wanted("net", ONE, accepted=True)
GOING = replace(IT, deleting=True)
CHOSEN = replace(OWN, subnets=(replace(OWN.subnets[0], gateway=parse_address("10.0.0.1")),))
TURNED = replace(
    api_network_to_provider_network("net", TWO),
    subnets=api_network_to_provider_network("net", TWO).subnets[::-1],
    status=ACTIVE,
)


def shown(status: NetworkStatus, reason: str, message: str = "", **more: Any) -> Shown:
    return Shown(status, reason, message, **more)


STEPS: dict[str, tuple[Wanted, Seen, Step]] = {
    "nothing is asked of the provider before the object has our finalizer": (
        replace(IT, accepted=False),
        HERE,
        shown(INITIALIZING, "Accepted"),
    ),
    "one that is not there is made": (IT, HERE, Create(ASKED)),
    "one that is there as asked for is active": (
        IT,
        replace(HERE, own=OWN),
        shown(ACTIVE, "Provided", network=OWN),
    ),
    "a gateway that the provider chose is no difference": (
        IT,
        replace(HERE, own=CHOSEN),
        shown(ACTIVE, "Provided", network=CHOSEN),
    ),
    "nor is the order of subnets": (
        replace(IT, request=TWO),
        replace(HERE, own=TURNED),
        shown(ACTIVE, "Provided", network=TURNED),
    ),
    "another subnet is an update": (
        replace(IT, request=TWO),
        replace(HERE, own=OWN),
        Update(api_network_to_provider_network("net", TWO)),
    ),
    "another gateway, too": (
        replace(
            IT,
            request=NetworkRequest("tenant", (("a", SubnetRequest(OWN.subnets[0].cidr, parse_address("10.0.0.2"))),)),
        ),
        replace(HERE, own=CHOSEN),
        Update(replace(ASKED, subnets=(replace(ASKED.subnets[0], gateway=parse_address("10.0.0.2")),))),
    ),
    "a tenant that can't be looked up now is pending, and what is there stays": (
        IT,
        Seen(None, "connection refused", OWN),
        shown(PENDING, "TenantUnknown", "connection refused", again=True, network=OWN),
    ),
    "a tenant that is not there has failed, and may come": (
        IT,
        Seen(False),
        shown(FAILED, "NoTenant", "there is no tenant tenant", again=True),
    ),
    "a network that the provider has failed with": (
        IT,
        replace(HERE, own=replace(OWN, status=FAILED)),
        shown(
            FAILED,
            "ProviderFailed",
            "the provider says that network kube_net_tenant is Failed",
            again=True,
            network=replace(OWN, status=FAILED),
        ),
    ),
    "a network that the provider is at": (
        IT,
        replace(HERE, own=replace(OWN, status=PENDING)),
        shown(PENDING, "ProviderAtIt", "the provider is still at it", again=True, network=replace(OWN, status=PENDING)),
    ),
    "subnets that overlap are nobody's to make": (
        replace(IT, request=OVERLAP),
        HERE,
        shown(FAILED, "Invalid", "subnet b: cidr 10.0.0.128/25: expected one apart from a's 10.0.0.0/24"),
    ),
    "a gateway outside of its subnet": (
        replace(IT, request=OUTSIDE),
        HERE,
        shown(FAILED, "Invalid", "subnet a: gateway 10.0.1.1: expected an address of a host in 10.0.0.0/24"),
    ),
    "a network by its ID is taken as it is": (
        replace(IT, request=GIVEN),
        replace(HERE, given=THEIRS),
        shown(ACTIVE, "Provided", network=THEIRS),
    ),
    "one that the provider has not": (
        replace(IT, request=GIVEN),
        HERE,
        shown(FAILED, "NoNetwork", "spec.providerNetworkID: the provider has no network id-7", again=True),
    ),
    "what was made before goes once a network is named": (
        replace(IT, request=GIVEN),
        replace(HERE, own=OWN, given=THEIRS),
        Delete("kube_net_tenant"),
    ),
    "but not with pods in it": (
        replace(IT, request=GIVEN, pods=2),
        replace(HERE, own=OWN, given=THEIRS),
        shown(PENDING, "PodsLeft", "network kube_net_tenant has pods still: 2", network=OWN),
    ),
    "nor where it is the one that is named": (
        replace(IT, request=replace(GIVEN, provider_network_id="id-1")),
        replace(HERE, own=OWN, given=OWN),
        shown(ACTIVE, "Provided", network=OWN),
    ),
    "one that is deleted waits for its pods": (
        replace(GOING, pods=1),
        Seen(own=OWN),
        shown(TERMINATING, "PodsLeft", "1 pod is still in it", network=OWN),
    ),
    "and goes then": (GOING, Seen(own=OWN), Delete("kube_net_tenant")),
    "and the object with it": (GOING, Seen(), shown(TERMINATING, "Deleted", accepted=False)),
    "one that was deleted before we saw it": (
        replace(GOING, accepted=False),
        Seen(),
        shown(TERMINATING, "Deleted", accepted=False),
    ),
    "one with mistakes goes as others do": (
        replace(GOING, request=OVERLAP),
        Seen(),
        shown(TERMINATING, "Deleted", accepted=False),
    ),
}


@pytest.mark.parametrize(("wanted", "seen", "step"), STEPS.values(), ids=STEPS)
def test_what_is_next(wanted: Wanted, seen: Seen, step: Step) -> None:
    assert decide(wanted, seen) == step


# --- with a provider ---------------------------------------------------------------------------


class Failing(MemoryProvider):
    """`faults`: of the calls to come, which fail, and whether after they were done."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[tuple[Exception, bool]] = []

    async def _call(self, name: str, *given: Any) -> Any:
        error, after = self.faults.pop(0) if self.faults else (None, False)
        if error is not None and not after:
            raise error
        done = await getattr(MemoryProvider, name)(self, *given)
        if error is not None:
            raise error
        return done

    async def check_tenant_id(self, tenant_id: str) -> bool:
        return bool(await self._call("check_tenant_id", tenant_id))

    async def create_network(self, network: Network) -> None:
        await self._call("create_network", network)

    async def update_network(self, network: Network) -> None:
        await self._call("update_network", network)

    async def delete_network(self, name: str) -> None:
        await self._call("delete_network", name)


async def done(provider: MemoryProvider, wanted: Wanted) -> tuple[Wanted, Shown]:
    """As the controller does it: the finalizer is on the object before the provider is asked."""
    for _ in range(20):
        found = await advance(provider, wanted)
        settled = found.accepted == wanted.accepted and not found.again
        wanted = replace(wanted, accepted=found.accepted)
        if settled:
            break
    return wanted, found


@pytest.mark.parametrize("request_", [ONE, TWO], ids=["one subnet", "two"])
async def test_a_network_is_made_and_goes(request_: NetworkRequest) -> None:
    provider = MemoryProvider()
    wanted, found = await done(provider, Wanted("net", request_))
    assert (wanted.accepted, found.status, found.reason) == (True, ACTIVE, "Provided")
    assert found.network == provider.there["kube_net_tenant"]
    wanted, found = await done(provider, replace(wanted, deleting=True))
    assert (wanted.accepted, provider.there) == (False, {})


FAULTS: dict[str, tuple[Exception, NetworkStatus, str, str]] = {
    "it can't": (ProviderError("no segment is free"), FAILED, "ProviderError", "no segment is free"),
    "it has lost it": (NotFound(), PENDING, "Changed", "the provider has lost it meanwhile"),
    "it has several": (
        MultipleResults(),
        FAILED,
        "MultipleResults",
        "the provider has several networks kube_net_tenant",
    ),
}


@pytest.mark.parametrize(("error", "status", "reason", "message"), FAULTS.values(), ids=FAULTS)
async def test_what_fails_is_shown_and_tried_again(
    error: Exception, status: NetworkStatus, reason: str, message: str
) -> None:
    provider = MemoryProvider()
    provider.create_network = _once(error, provider.create_network)  # type: ignore[method-assign]
    found = await advance(provider, IT)
    assert found == Shown(status, reason, message, again=True)
    assert (await advance(provider, IT)).status == ACTIVE


def _once(error: Exception, call: Any) -> Any:
    left = [error]

    async def asked(*given: Any) -> Any:
        if left:
            raise left.pop()
        return await call(*given)

    return asked


async def test_a_provider_that_keeps_nothing_is_asked_a_few_times_and_no_more() -> None:
    provider = MemoryProvider()
    asked = []

    async def create(network: Network) -> None:
        asked.append(network)

    provider.create_network = create  # type: ignore[method-assign]
    found = await advance(provider, IT)
    assert (found.status, found.again) == (FAILED, True)
    assert 1 < len(asked) < 9


REQUESTS = st.sampled_from((ONE, TWO, OVERLAP, OUTSIDE))
ERRORS = st.sampled_from((ProviderError("no"), NotFound(), MultipleResults()))


@given(
    changes=st.lists(st.tuples(REQUESTS, st.lists(st.tuples(ERRORS, st.booleans()), max_size=3)), max_size=6),
    last=REQUESTS,
    deleting=st.booleans(),
)
def test_whatever_was_asked_for_before_and_failed_in_between_it_comes_to_the_same(
    changes: list[tuple[NetworkRequest, list[tuple[Exception, bool]]]], last: NetworkRequest, deleting: bool
) -> None:
    async def run() -> None:
        provider, wanted = Failing(), Wanted("net", ONE)
        for request, faults in changes:
            provider.faults = list(faults)
            found = await advance(provider, wanted := replace(wanted, request=request))
            wanted = replace(wanted, accepted=found.accepted)
            assert found.status != TERMINATING
        provider.faults = []
        wanted, found = await done(provider, replace(wanted, request=last, deleting=deleting))
        held = tuple(_plain(it) for it in provider.there.values())
        if deleting:
            assert (held, wanted.accepted, found.status) == ((), False, TERMINATING)
        elif last in (ONE, TWO):
            assert (held, found.status) == ((_plain(api_network_to_provider_network("net", last)),), ACTIVE)
        else:
            assert found.status == FAILED

    asyncio.run(run())


def _plain(network: Network) -> tuple[str, tuple[Subnet, ...]]:
    return network.name, network.subnets
