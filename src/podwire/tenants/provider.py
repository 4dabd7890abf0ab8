"""What a provider of tenants' networks does, for whoever writes one.

Invariants: a call is done when it returns, or has failed and left nothing half-made. What is there already as asked
for is no failure, nor is what is to be deleted and not there, unless a method says otherwise: each may be called again
after whatever interruption. Names are the caller's (`names.py`), IDs the provider's.
"""

from typing import Protocol

from podwire.model.addresses import Address
from podwire.model.tenants import Affinity, HostPort, LoadBalancer, Network


class NotFound(Exception):
    """There is no such thing. Its text is part of the remote protocol."""

    def __init__(self, text: str = "NotFound") -> None:
        super().__init__(text)


class MultipleResults(Exception):
    """Several things have the name. Its text is part of the remote protocol."""

    def __init__(self, text: str = "MultipleResults") -> None:
        super().__init__(text)


class ProviderError(Exception):
    """Why a provider can't do what is asked for, in one line for the user. Nothing is half-made."""


class Networks(Protocol):
    """All raise ProviderError."""

    async def get_network(self, name: str) -> Network:
        """Raises NotFound, MultipleResults."""

    async def get_network_by_id(self, uid: str) -> Network:
        """Raises NotFound."""

    async def create_network(self, network: Network) -> None:
        """With its subnets, their gateways and routes. One that is there as asked for stays; one that is there
        otherwise is refused. `uid`, `segment_id` and `status` are the provider's to say."""

    async def update_network(self, network: Network) -> None:
        """By its name: as it is there now. Pods in a subnet keep it. Raises NotFound."""

    async def delete_network(self, name: str) -> None:
        """With all that is in it but pods: as long as any is set up there it is refused. Raises NotFound."""


class LoadBalancers(Protocol):
    """All raise ProviderError."""

    async def get_load_balancer(self, name: str) -> LoadBalancer:
        """Raises NotFound."""

    async def create_load_balancer(self, balancer: LoadBalancer, affinity: Affinity) -> Address:
        """The address inside of its network (VIP). One that is there already becomes as asked for."""

    async def update_load_balancer(
        self, name: str, hosts: tuple[HostPort, ...], external_ips: tuple[Address, ...]
    ) -> Address:
        """These members and external addresses, and no others; none at all is right, too. The VIP. Raises NotFound."""

    async def delete_load_balancer(self, name: str) -> None: ...


class Pods(Protocol):
    """`sandbox`: the pod's infrastructure container, by which one pod is known from another of its name. All raise
    ProviderError."""

    async def setup_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None: ...

    async def teardown_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None:
        """Also after the network is gone, and of a sandbox that was never set up. Another sandbox of the same name
        keeps what it has."""

    async def pod_status(
        self, name: str, namespace: str, sandbox: str, network: Network, runtime: str
    ) -> Address | None:
        """The pod's address as it is now, None: it has none."""


class Provider(Protocol):
    @property
    def provider_name(self) -> str: ...
    @property
    def networks(self) -> Networks: ...
    @property
    def load_balancers(self) -> LoadBalancers: ...
    @property
    def pods(self) -> Pods: ...

    async def check_tenant_id(self, tenant_id: str) -> bool:
        """Whether there is such a tenant. Raises ProviderError where that can't be said now."""
