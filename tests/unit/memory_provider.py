"""A provider of tenants' networks that holds all in memory, as strict as the interface says: to hold the conformance
suite against something that is right, and, with one thing wrong, to see that it tells."""

from typing import Any

from msgspec.structs import replace

from podwire.model.addresses import Address, show_address
from podwire.model.tenants import Affinity, HostPort, LoadBalancer, Network, NetworkStatus
from podwire.tenants.checks import is_host, mistakes
from podwire.tenants.provider import NotFound, ProviderError

TENANTS = frozenset(("tenant",))


class MemoryProvider:
    provider_name = "memory"

    def __init__(self) -> None:
        self.there: dict[str, Network] = {}
        self.balancers: dict[str, LoadBalancer] = {}
        self.set_up: dict[tuple[str, str], tuple[str, Address]] = {}
        """By sandbox and network: the pod, and its address."""
        self.ids = 0
        # One object is all three parts.
        self.networks: Any = self
        self.load_balancers: Any = self
        self.pods: Any = self

    async def check_tenant_id(self, tenant_id: str) -> bool:
        return tenant_id in TENANTS

    # --- networks ---

    async def get_network(self, name: str) -> Network:
        if name not in self.there:
            raise NotFound
        return self.there[name]

    async def get_network_by_id(self, uid: str) -> Network:
        found = [it for it in self.there.values() if it.uid == uid]
        if not found:
            raise NotFound
        return found[0]

    async def create_network(self, network: Network) -> None:
        self._check(network)
        held = self.there.get(network.name)
        if held is not None and held.subnets != network.subnets:
            raise ProviderError(f"network {network.name} is there with other subnets")
        if held is None:
            self.ids += 1
            self.there[network.name] = replace(
                network, uid=f"id-{self.ids}", segment_id=self.ids, status=NetworkStatus.ACTIVE
            )

    async def update_network(self, network: Network) -> None:
        held = await self.get_network(network.name)
        self._check(network)
        self.there[network.name] = replace(held, subnets=network.subnets)

    async def delete_network(self, name: str) -> None:
        await self.get_network(name)
        pods = [pod for (_, network), (pod, _) in self.set_up.items() if network == name]
        if pods:
            raise ProviderError(f"network {name} has pods: {', '.join(pods)}")
        del self.there[name]

    @staticmethod
    def _check(network: Network) -> None:
        wrong = mistakes(network)
        if wrong:
            raise ProviderError(wrong[0])

    # --- pods ---

    async def setup_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None:
        assert runtime
        held = await self.get_network(network.name)
        if (sandbox, network.name) not in self.set_up:
            self.set_up[sandbox, network.name] = f"{namespace}/{name}", self._free(held)

    async def teardown_pod(self, name: str, namespace: str, sandbox: str, network: Network, runtime: str) -> None:
        assert runtime
        held = self.set_up.pop((sandbox, network.name), None)
        assert held is None or held[0] == f"{namespace}/{name}"

    async def pod_status(
        self, name: str, namespace: str, sandbox: str, network: Network, runtime: str
    ) -> Address | None:
        assert runtime
        pod, address = self.set_up.get((sandbox, network.name), (f"{namespace}/{name}", None))
        assert pod == f"{namespace}/{name}"
        return address

    def _free(self, network: Network) -> Address:
        subnet = network.subnets[0]
        taken = {address for (_, name), (_, address) in self.set_up.items() if name == network.name}
        taken |= {it.vip for it in self.balancers.values() if it.vip is not None}
        taken |= {host.address for it in self.balancers.values() for host in it.hosts}
        every = (subnet.cidr.nth(number) for number in range(subnet.cidr.count))
        return next(it for it in every if is_host(subnet.cidr, it) and it != subnet.gateway and it not in taken)

    # --- load balancers ---

    async def get_load_balancer(self, name: str) -> LoadBalancer:
        if name not in self.balancers:
            raise NotFound
        return self.balancers[name]

    async def create_load_balancer(self, balancer: LoadBalancer, affinity: Affinity) -> Address:
        assert affinity in Affinity
        self._check_external(balancer.name, balancer.external_ips)
        network = next(it for it in self.there.values() if it.subnets[0].cidr == balancer.subnets[0].cidr)
        self.balancers[balancer.name] = balancer
        vip = self._free(network)
        self.balancers[balancer.name] = replace(balancer, vip=vip)
        return vip

    async def update_load_balancer(
        self, name: str, hosts: tuple[HostPort, ...], external_ips: tuple[Address, ...]
    ) -> Address:
        held = await self.get_load_balancer(name)
        self._check_external(name, external_ips)
        self.balancers[name] = replace(held, hosts=hosts, external_ips=external_ips)
        assert held.vip is not None
        return held.vip

    async def delete_load_balancer(self, name: str) -> None:
        self.balancers.pop(name, None)

    def _check_external(self, name: str, wanted: tuple[Address, ...]) -> None:
        for other in self.balancers.values():
            for it in wanted:
                if other.name != name and it in other.external_ips:
                    raise ProviderError(f"load balancer {other.name} has {show_address(it)}")
