"""What becomes of one Network object: what its provider is asked for next, and which phase the object shows. Pure.

Invariants: what is decided follows from what is asked for and what the provider has, never from what was done before:
whoever is stopped half-way looks again, and goes on. The provider is asked for nothing until the object carries our
finalizer, which it loses once the provider has nothing of it any more. A network with pods in it is never deleted.
"""

from podwire.model.objects import Value
from podwire.model.tenants import Network, NetworkRequest, NetworkStatus, Subnet
from podwire.tenants.checks import mistakes_of_request
from podwire.tenants.names import api_network_to_provider_network


class Wanted(Value, frozen=True):
    """An object as it is. `accepted`: it carries our finalizer. `pods`: how many are in it, or on their way out."""

    name: str
    request: NetworkRequest
    deleting: bool = False
    accepted: bool = False
    pods: int = 0


class Seen(Value, frozen=True):
    """What its provider says. `tenant`: whether there is such a one, None: that can't be said now, as `trouble` tells.
    `own`: what was made for the object. `given`: the network that it names by ID."""

    tenant: bool | None = None
    trouble: str = ""
    own: Network | None = None
    given: Network | None = None


class Create(Value, frozen=True):
    network: Network


class Update(Value, frozen=True):
    network: Network


class Delete(Value, frozen=True):
    network: str


class Shown(Value, frozen=True):
    """Nothing is to be done with the provider now. `accepted`: whether the object carries our finalizer from here on.
    `again`: it is to be looked at again before long, since what is in the way is nothing that we would hear of."""

    status: NetworkStatus
    reason: str
    message: str = ""
    accepted: bool = True
    again: bool = False
    network: Network | None = None


Step = Create | Update | Delete | Shown


def decide(wanted: Wanted, seen: Seen) -> Step:
    if wanted.deleting:
        return _leaving(wanted, seen.own)
    if not wanted.accepted:
        return Shown(NetworkStatus.INITIALIZING, "Accepted")
    if wrong := mistakes_of_request(wanted.request):
        return Shown(NetworkStatus.FAILED, "Invalid", "; ".join(wrong), network=seen.own)
    if seen.tenant is None:
        return Shown(NetworkStatus.PENDING, "TenantUnknown", seen.trouble, again=True, network=seen.own)
    tenant = wanted.request.tenant_id
    if not seen.tenant:
        return Shown(NetworkStatus.FAILED, "NoTenant", f"there is no tenant {tenant}", again=True, network=seen.own)
    if wanted.request.provider_network_id:
        return _given(wanted, seen)
    return _made(wanted, seen.own)


def _leaving(wanted: Wanted, own: Network | None) -> Step:
    if not wanted.accepted:
        return Shown(NetworkStatus.TERMINATING, "Deleted", accepted=False)
    if wanted.pods:
        words = f"{wanted.pods} {'pod is' if wanted.pods == 1 else 'pods are'} still in it"
        return Shown(NetworkStatus.TERMINATING, "PodsLeft", words, network=own)
    if own is not None:
        return Delete(own.name)
    return Shown(NetworkStatus.TERMINATING, "Deleted", accepted=False)


def _given(wanted: Wanted, seen: Seen) -> Step:
    """A network that is the provider's: never made, changed nor deleted here. What was made for the object before it
    named that one goes once it is empty."""
    if seen.given is None:
        words = f"spec.providerNetworkID: the provider has no network {wanted.request.provider_network_id}"
        return Shown(NetworkStatus.FAILED, "NoNetwork", words, again=True)
    if seen.own is None or seen.own.uid == seen.given.uid:
        return _as_it_is(seen.given)
    if wanted.pods:
        words = f"network {seen.own.name} has pods still: {wanted.pods}"
        return Shown(NetworkStatus.PENDING, "PodsLeft", words, network=seen.own)
    return Delete(seen.own.name)


def _made(wanted: Wanted, own: Network | None) -> Step:
    asked = api_network_to_provider_network(wanted.name, wanted.request)
    if own is None:
        return Create(asked)
    if not _same(asked.subnets, own.subnets):
        return Update(asked)
    return _as_it_is(own)


def _same(asked: tuple[Subnet, ...], held: tuple[Subnet, ...]) -> bool:
    """As far as it was asked for: the provider has chosen the rest."""
    there = {it.name: it for it in held}
    return len(asked) == len(held) == len(there) and all(
        (it := there.get(one.name)) is not None and one.cidr == it.cidr and one.gateway in (None, it.gateway)
        for one in asked
    )


def _as_it_is(network: Network) -> Shown:
    status = network.status
    if status in (NetworkStatus.INITIALIZING, NetworkStatus.PENDING):
        return Shown(NetworkStatus.PENDING, "ProviderAtIt", "the provider is still at it", again=True, network=network)
    if status == NetworkStatus.ACTIVE:
        return Shown(NetworkStatus.ACTIVE, "Provided", network=network)
    words = f"the provider says that network {network.name} is {status.value}"
    return Shown(NetworkStatus.FAILED, "ProviderFailed", words, again=True, network=network)
