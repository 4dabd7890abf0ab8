"""The objects that the cluster's controller follows, as the API last said.

Invariants: nothing is kept of a Secret but the names of its items that can be passwords.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from podwire.loadbalancer.checks import Seen
from podwire.loadbalancer.others import Taken, taken
from podwire.loadbalancer.pools import Pools
from podwire.model.addresses import Address
from podwire.model.announcements import (
    NAMESPACE,
    BGPAdvertisementKey,
    BGPPeerKey,
    ConfigKey,
    L2AdvertisementKey,
    SecretKey,
)
from podwire.model.balancers import AddressPoolKey, Balanced, Labels, Leftover
from podwire.model.declared import Declared
from podwire.model.objects import (
    NamespaceKey,
    Node,
    NodeKey,
    PodBlock,
    PodBlockKey,
    PodPool,
    PodPoolKey,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
)
from podwire.sources.balancer_objects import (
    BalancedService,
    NamespaceObject,
    read_namespace,
    read_service,
    service_key,
)
from podwire.sources.declared import OWN_KINDS, declared_resources
from podwire.sources.fields import Invalid
from podwire.sources.kube_api import Api
from podwire.sources.kube_watch import CHANCE, Chance, State, Watch, wrong_with
from podwire.sources.kubernetes import Resource, resources
from podwire.sources.passwords import SecretObject, read_secret, secret_key
from podwire.sources.troubles import Troubles

log = logging.getLogger(__name__)
_TAKING = ("nodes", "podpools", "podblocks", "servicecidrs")
"""Whose addresses no pool gives."""


class Objects:
    """What the API last said of the kinds that count. `stir`: called where who gets which address may be another.
    `stir_reports`: where what statuses say may be."""

    def __init__(
        self,
        api: Api,
        unclassed: bool,
        stir: Callable[[], None],
        stir_reports: Callable[[], None],
        chance: Chance = CHANCE,
    ) -> None:
        self._stir, self._stir_reports = stir, stir_reports
        self._troubles = Troubles(log, "Kubernetes API: ")
        self.services: dict[ServiceKey, Balanced] = {}
        self.leftovers: dict[ServiceKey, Leftover] = {}
        self._taken: Taken | None = None
        """None: to be found out."""
        told: dict[str, Callable[..., None]] = {
            "services": self._service,
            "namespaces": self._allocation,
            "secrets": self._reported,
            **dict.fromkeys(_TAKING, self._takes),
        }
        self._watches = {
            it.name: Watch(api, it, told.get(it.name, self._declared), self._noted, chance)
            for it in _resources(unclassed)
        }

    async def watched(self) -> None:
        """Returns once all objects are known; until cancelled they are kept so by `run`."""
        for watch in self._watches.values():
            await watch.listed.wait()

    async def run(self) -> None:
        """Never returns."""
        await asyncio.gather(*(watch.run() for watch in self._watches.values()))

    # --- what is known -------------------------------------------------------------------------

    # Each list is the one that the watch holds now; what it holds is of the kinds that the resource reads.
    @property
    def namespaces(self) -> Mapping[str, Labels]:
        found = cast(Mapping[NamespaceKey, Labels], self._watches["namespaces"].objects)
        return {key.name: labels for key, labels in found.items()}

    @property
    def declared(self) -> dict[ConfigKey, Declared]:
        return {key: it for kind in OWN_KINDS for key, it in self._declared_of(kind).items()}

    @property
    def secrets(self) -> dict[str, frozenset[str]] | None:
        """As of `Seen`."""
        watch = self._watches["secrets"]
        found = cast(Mapping[SecretKey, frozenset[str]], watch.objects)
        return None if watch.denied else {key.name: items for key, items in found.items()}

    @property
    def pools(self) -> Pools:
        return self._meant(AddressPoolKey)

    @property
    def taken(self) -> Taken:
        if self._taken is None:
            pools, blocks = self._pod_pools, cast(Mapping[PodBlockKey, PodBlock], self._watches["podblocks"].objects)
            alone = {key: it for key, it in blocks.items() if not self._is_of_a_pool(key)}
            cidrs = cast(Mapping[ServiceCIDRKey, ServiceCIDR], self._watches["servicecidrs"].objects)
            self._taken = taken(self._nodes, pools, alone, cidrs)
        return self._taken

    @property
    def states(self) -> list[State]:
        return [it.state for it in self._watches.values()]

    def seen(self) -> Seen:
        """All that is checked against each other."""
        return Seen(
            self.pools,
            self._meant(BGPPeerKey),
            self._meant(BGPAdvertisementKey),
            self._meant(L2AdvertisementKey),
            self._nodes,
            self.taken,
            self.secrets,
            {key: it.request.labels for key, it in self.services.items()},
        )

    def _meant(self, kind: type[ConfigKey]) -> dict[Any, Any]:
        """What can't be understood is as good as not there."""
        return {key: it.value for key, it in self._declared_of(kind).items() if it.value is not None}

    def _declared_of(self, kind: type[ConfigKey]) -> Mapping[Any, Declared]:
        return cast(Mapping[Any, Declared], self._watches[OWN_KINDS[kind].plural].objects)

    @property
    def _nodes(self) -> Mapping[NodeKey, Node]:
        return cast(Mapping[NodeKey, Node], self._watches["nodes"].objects)

    @property
    def _pod_pools(self) -> Mapping[PodPoolKey, PodPool]:
        return cast(Mapping[PodPoolKey, PodPool], self._watches["podpools"].objects)

    def _is_of_a_pool(self, key: PodBlockKey) -> bool:
        """Then it takes nothing that the pool does not."""
        return any(key.cidr.first in cidr for pool in self._pod_pools.values() for cidr in pool.cidrs)

    # --- what changes --------------------------------------------------------------------------

    def _service(self, key: Any, _: Any, after: Any) -> None:
        self.services.pop(key, None)
        self.leftovers.pop(key, None)
        if isinstance(after, Balanced):
            self.services[key] = after
        elif isinstance(after, Leftover):
            self.leftovers[key] = after
            self._stir_reports()
        self._stir()

    def _allocation(self, *_: object) -> None:
        self._stir()

    def _reported(self, *_: object) -> None:
        self._stir_reports()

    def _declared(self, key: Any, before: Any, after: Any) -> None:
        """A status alone gives nobody another address."""
        self._stir_reports()
        if isinstance(key, AddressPoolKey) and _value(before) != _value(after):
            self._stir()

    def _takes(self, key: Any, before: Any, after: Any) -> None:
        self._stir_reports()
        if isinstance(key, NodeKey) and _takes(before) == _takes(after):
            return
        if isinstance(key, PodBlockKey) and self._is_of_a_pool(key):
            return
        self._taken = None
        self._stir()

    def _noted(self) -> None:
        self._troubles.tell(wrong_with(self._watches.values()))


def _value(held: Declared | None) -> object:
    return held.value if held is not None else None


def _takes(node: Node | None) -> tuple[tuple[Address, ...], object]:
    return (node.addresses, node.pod_cidrs) if node is not None else ((), ())


def _resources(unclassed: bool) -> tuple[Resource, ...]:
    def service(thing: Any, _: list[Invalid]) -> tuple[ServiceKey, Balanced | Leftover | None]:
        return read_service(thing, unclassed)

    def of_namespace(_: str, name: str) -> NamespaceKey:
        return NamespaceKey(name)

    def secret(thing: SecretObject, _: list[Invalid]) -> tuple[SecretKey, frozenset[str]]:
        return secret_key(NAMESPACE, thing.metadata.name), frozenset(it.item for it in read_secret(thing, []))

    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    return (
        Resource("services", "/api/v1/services", BalancedService, service_key, read=service),
        Resource(
            "namespaces", "/api/v1/namespaces", NamespaceObject, of_namespace, read=lambda it, _: read_namespace(it)
        ),
        *declared_resources(),
        # Without the right to ask for these, addresses are given all the same.
        *(it._replace(optional=True) for it in resources("") if it.name in _TAKING),
        Resource("secrets", secrets, SecretObject, secret_key, optional=True, absent_seconds=60.0, read=secret),
    )
