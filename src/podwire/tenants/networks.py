"""A Network object and its provider: asks, does one step, asks again, until there is nothing to do.

Invariants: each answer of the provider is used for one step alone. Whatever fails leaves a phase, a reason and a
message on the object, and is tried again later; nothing that the provider has is forgotten for it.
"""

from podwire.model.tenants import Network, NetworkStatus
from podwire.tenants.lifecycle import Create, Delete, Seen, Shown, Update, Wanted, decide
from podwire.tenants.names import build_network_name
from podwire.tenants.provider import MultipleResults, NotFound, Provider, ProviderError

_STEPS = 4
"""More than any object needs: one that needs more has a provider that does not keep what it has said."""


async def advance(provider: Provider, wanted: Wanted) -> Shown:
    """What the object shows once all that can be done now is done. Raises nothing of the provider's."""
    leaving = NetworkStatus.TERMINATING if wanted.deleting else None
    try:
        for _ in range(_STEPS):
            match decide(wanted, await _seen(provider, wanted)):
                case Create(network):
                    await provider.networks.create_network(network)
                case Update(network):
                    await provider.networks.update_network(network)
                case Delete(name):
                    await _delete(provider, name)
                case Shown() as shown:
                    return shown
    except ProviderError as error:
        return Shown(leaving or NetworkStatus.FAILED, "ProviderError", str(error), again=True)
    except NotFound:
        return Shown(leaving or NetworkStatus.PENDING, "Changed", "the provider has lost it meanwhile", again=True)
    except MultipleResults:
        words = f"the provider has several networks {build_network_name(wanted.name, wanted.request.tenant_id)}"
        return Shown(leaving or NetworkStatus.FAILED, "MultipleResults", words, again=True)
    words = f"provider {provider.provider_name} does not keep what it has said"
    return Shown(leaving or NetworkStatus.FAILED, "ProviderError", words, again=True)


async def _seen(provider: Provider, wanted: Wanted) -> Seen:
    """Only what is needed is asked for: of one that leaves the tenant may well be gone before it."""
    if not wanted.accepted:
        return Seen()
    name, given = build_network_name(wanted.name, wanted.request.tenant_id), wanted.request.provider_network_id
    own = await _found(provider, name)
    if wanted.deleting:
        return Seen(own=own)
    try:
        tenant = await provider.check_tenant_id(wanted.request.tenant_id)
    except ProviderError as error:
        return Seen(None, str(error), own)
    return Seen(tenant, "", own, await _by_id(provider, given) if given and tenant else None)


async def _found(provider: Provider, name: str) -> Network | None:
    try:
        return await provider.networks.get_network(name)
    except NotFound:
        return None


async def _by_id(provider: Provider, uid: str) -> Network | None:
    try:
        return await provider.networks.get_network_by_id(uid)
    except NotFound:
        return None


async def _delete(provider: Provider, name: str) -> None:
    try:
        await provider.networks.delete_network(name)
    except NotFound:
        return
