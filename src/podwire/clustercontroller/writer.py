"""What the cluster's controller writes: statuses of Services, and Events.

Invariants: a status is written on the version of its object that was seen, or not at all.
"""

import logging
from typing import Any

import msgspec

from podwire.clustercontroller.allocator import Refused
from podwire.loadbalancer.statuses import News, Status
from podwire.model.balancers import Balanced
from podwire.model.objects import ServiceKey
from podwire.sources.balancer_objects import CONDITION, BalancedService, read_service
from podwire.sources.fields import Invalid
from podwire.sources.kube_api import Api, ApiError
from podwire.sources.kube_time import micro_time_of, time_of
from podwire.sources.kube_watch import CHANCE, Chance

log = logging.getLogger(__name__)
NAME = "podwire-controller"
"""Who tells Events; the Lease's name, too."""
LONGEST_NOTE = 1024
"""Bytes of an Event's message (Kubernetes API, NoteLengthLimit)."""


class Writer:
    def __init__(self, api: Api, unclassed: bool, identity: str, chance: Chance = CHANCE) -> None:
        """`unclassed`: Services without a class are ours, too. `identity`: of this controller among others."""
        self._api, self._unclassed, self._identity, self._chance = api, unclassed, identity, chance

    async def write(self, key: ServiceKey, held: Balanced, status: Status) -> Balanced:
        """On the version that was seen. Raises Refused."""
        body = status_patch(held, status, time_of(self._chance.now()))
        try:
            answer = await self._api.patch(f"/api/v1/namespaces/{key.namespace}/services/{key.name}/status", body)
            _, after = read_service(msgspec.json.decode(answer, type=BalancedService), self._unclassed)
        except ApiError as error:
            raise Refused(str(error), changed=error.status in (404, 409), later=error.retry_after) from None
        except (Invalid, msgspec.DecodeError) as error:
            raise Refused(f"the answer can't be read: {error}") from None
        if after is None:
            raise Refused("it is for us no more", changed=True)
        return after

    async def tell(self, key: ServiceKey, held: Balanced, news: News) -> None:
        """An Event (core/v1). What can't be told is logged, and no reason to stop."""
        now = self._chance.now()
        about = {"apiVersion": "v1", "kind": "Service", "namespace": key.namespace, "name": key.name, "uid": held.uid}
        body = {
            "metadata": {"generateName": f"{key.name}.", "namespace": key.namespace},
            "involvedObject": about,
            "type": news.type,
            "reason": news.reason,
            "message": news.message.encode()[:LONGEST_NOTE].decode(errors="ignore"),
            "reportingComponent": NAME,
            "reportingInstance": self._identity,
            "action": "Allocate",
            "eventTime": micro_time_of(now),
            "firstTimestamp": time_of(now),
            "lastTimestamp": time_of(now),
            "count": 1,
        }
        try:
            await self._api.post(f"/api/v1/namespaces/{key.namespace}/events", msgspec.json.encode(body))
        except ApiError as error:
            log.info("%s: no Event %s: %s", key, news.reason, error)


def status_patch(held: Balanced, status: Status, now: str) -> bytes:
    """A strategic merge patch: conditions are merged by type, addresses take the others' place. The time is of the
    last change of the condition's status (API conventions), and stays as it is where that does."""
    word, reason, message = status.condition
    condition: dict[str, Any] = {
        "type": CONDITION,
        "status": word,
        "reason": reason,
        "message": message,
        "observedGeneration": held.generation,
    }
    if held.condition is None or held.condition[0] != word:
        condition["lastTransitionTime"] = now
    ingress = [{"ip": ip, "ipMode": mode} for ip, mode in status.ingress]
    body: dict[str, Any] = {"metadata": {"resourceVersion": held.version}, "status": {"conditions": [condition]}}
    if status.ingress != held.ingress:
        body["status"]["loadBalancer"] = {"ingress": ingress} if ingress else None
    return msgspec.json.encode(body)
