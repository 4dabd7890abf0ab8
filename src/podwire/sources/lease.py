"""Who of several works: a Lease of the Kubernetes API, as client-go's leader election uses it (coordination.k8s.io/v1).

Invariants: whoever holds it renews it long before others may take it, and stops working before they may: by its own
clock, never by the times that stand in the Lease, since two machines' clocks differ; also where the API does not answer
at all. One that nobody has renewed for its whole duration, as seen from here, is free. Each change names the version
that it was decided on, so that of two takers one gets it.
"""

import asyncio
import logging
from collections.abc import Awaitable

import msgspec
from msgspec import Struct

from podwire.sources.kube_api import MERGE, Api, ApiError
from podwire.sources.kube_time import micro_time_of
from podwire.sources.kube_watch import CHANCE, Chance

DURATION, RENEWED_WITHIN, EVERY = 15.0, 10.0, 2.0
"""Seconds: how long it holds, how long a holder works on without a renewal, and from one try to the next (client-go's
defaults)."""
log = logging.getLogger(__name__)


class LeaseMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class LeaseSpec(Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None


class LeaseObject(Struct, frozen=True):
    metadata: LeaseMeta = LeaseMeta()
    spec: LeaseSpec = LeaseSpec()


class Lost(Exception):
    """The lease could not be renewed in time."""


class Lease:
    def __init__(self, api: Api, namespace: str, name: str, identity: str, chance: Chance = CHANCE) -> None:
        self._api, self._identity, self._chance = api, identity, chance
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name, self._path = name, f"{self._all}/{name}"
        self._seen: tuple[LeaseObject, float] | None = None
        """The last one that differed, and when it was first seen so, by our clock."""
        self.holder = ""
        self._renewed = float("-inf")
        """When we last asked for what we got: others may count from then on."""

    @property
    def held(self) -> bool:
        """Whether it is surely ours: nobody else may have taken it."""
        return self._chance.clock() - self._renewed < RENEWED_WITHIN

    async def acquire(self) -> None:
        """Returns once it is ours."""
        failing = False
        while True:
            try:
                if await self._try():
                    return
                failing = False
            except (ApiError, msgspec.DecodeError) as error:
                if not failing:
                    log.warning("lease %s: %s", self._name, error)
                failing = True
            await self._chance.pause(EVERY)

    async def hold(self) -> None:
        """Renews it. Raises Lost once that has failed for too long, or somebody else has it."""
        while True:
            await self._chance.pause(EVERY)
            left = self._renewed + RENEWED_WITHIN - self._chance.clock()
            try:
                async with asyncio.timeout(max(left, EVERY)):
                    if await self._try():
                        continue
                if self.holder != self._identity:
                    raise Lost(f"lease {self._name} is held by {self.holder or 'nobody'}")
            except TimeoutError:
                log.warning("lease %s can't be renewed: no answer in time", self._name)
            except (ApiError, msgspec.DecodeError) as error:
                log.warning("lease %s can't be renewed: %s", self._name, error)
            if not self.held:
                raise Lost(f"lease {self._name} was not renewed for {RENEWED_WITHIN:g} s")

    async def release(self) -> None:
        """So that the next one need not wait; what fails here costs only that."""
        try:
            found = await self._read()
            if found is not None and found.spec.holder_identity == self._identity:
                await self._write(found, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except (ApiError, msgspec.DecodeError) as error:
            log.info("lease %s is not given back: %s", self._name, error)

    async def _try(self) -> bool:
        """Whether it is ours, renewed. Raises ApiError, msgspec.DecodeError."""
        asked = self._chance.clock()
        won = await self._attempt()
        if won:
            self._renewed = asked
        return won

    async def _attempt(self) -> bool:
        """As `_try`."""
        found, now = await self._read(), micro_time_of(self._chance.now())
        mine = {"holderIdentity": self._identity, "leaseDurationSeconds": int(DURATION), "renewTime": now}
        if found is None:
            made = {"acquireTime": now, "leaseTransitions": 0, **mine}
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": made,
            }
            return await self._won(self._api.post(self._all, msgspec.json.encode(body)))
        self.holder = found.spec.holder_identity or ""
        if self._seen is None or self._seen[0] != found:
            self._seen = found, self._chance.clock()
        if self.holder != self._identity:
            free = not self.holder or self._chance.clock() - self._seen[1] > (found.spec.lease_duration_seconds or 0)
            if not free:
                return False
            mine |= {"acquireTime": now, "leaseTransitions": (found.spec.lease_transitions or 0) + 1}
        return await self._won(self._write(found, mine))

    async def _won(self, write: Awaitable[bytes]) -> bool:
        """Whether nobody was quicker."""
        try:
            await write
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        self.holder = self._identity
        return True

    async def _read(self) -> LeaseObject | None:
        body = await self._api.find(self._path)
        return None if body is None else msgspec.json.decode(body, type=LeaseObject)

    def _write(self, found: LeaseObject, spec: dict[str, object]) -> Awaitable[bytes]:
        body = {"metadata": {"resourceVersion": found.metadata.resource_version}, "spec": spec}
        return self._api.patch(self._path, msgspec.json.encode(body), MERGE)
