"""The objects that the cluster's controller follows, as the API last said."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from podwire.loadbalancer.pools import Pools
from podwire.model.balancers import Balanced, Labels
from podwire.model.objects import NamespaceKey, ServiceKey
from podwire.sources.address_pools import AddressPoolObject, pool_key, read_pool
from podwire.sources.balancer_objects import (
    BalancedService,
    NamespaceObject,
    read_namespace,
    read_service,
    service_key,
)
from podwire.sources.fields import Invalid
from podwire.sources.kube_api import Api
from podwire.sources.kube_objects import POOLS
from podwire.sources.kube_watch import CHANCE, Chance, Watch
from podwire.sources.kubernetes import Resource
from podwire.sources.troubles import Troubles

log = logging.getLogger(__name__)


class Objects:
    """What the API last said of the kinds that count."""

    def __init__(self, api: Api, unclassed: bool, stir: Callable[[], None], chance: Chance = CHANCE) -> None:
        self._stir = stir
        self._troubles = Troubles(log, "Kubernetes API: ")
        self._watches = [Watch(api, it, self._told, self._noted, chance) for it in _resources(unclassed)]

    # Each list is the one that the watch holds now; what it holds is of the kinds that the resource reads.
    @property
    def services(self) -> Mapping[ServiceKey, Balanced]:
        return cast(Mapping[ServiceKey, Balanced], self._watches[0].objects)

    @property
    def namespaces(self) -> Mapping[str, Labels]:
        found = cast(Mapping[NamespaceKey, Labels], self._watches[1].objects)
        return {key.name: labels for key, labels in found.items()}

    @property
    def pools(self) -> Pools:
        return cast(Pools, self._watches[2].objects)

    async def watched(self) -> None:
        """Returns once all objects are known; until cancelled they are kept so by `run`."""
        for watch in self._watches:
            await watch.listed.wait()

    async def run(self) -> None:
        """Never returns."""
        await asyncio.gather(*(watch.run() for watch in self._watches))

    def _told(self, *_: object) -> None:
        self._stir()

    def _noted(self) -> None:
        errors = (it.state.error for it in self._watches if it.state.error)
        self._troubles.tell((*errors, *(text for it in self._watches for text in it.wrong.values())))


def _resources(unclassed: bool) -> tuple[Resource, ...]:
    def service(thing: Any, _: list[Invalid]) -> tuple[ServiceKey, Balanced | None]:
        return read_service(thing, unclassed)

    def namespace(_: str, name: str) -> NamespaceKey:
        return NamespaceKey(name)

    return (
        Resource("services", "/api/v1/services", BalancedService, service_key, read=service),
        Resource("namespaces", "/api/v1/namespaces", NamespaceObject, namespace, read=lambda it, _: read_namespace(it)),
        Resource(
            "addresspools",
            f"/apis/{POOLS}/addresspools",
            AddressPoolObject,
            pool_key,
            optional=True,
            absent_seconds=10.0,
            read=lambda it, _: read_pool(it),
        ),
    )
