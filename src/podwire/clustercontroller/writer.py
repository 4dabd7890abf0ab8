"""What the cluster's controller writes: statuses of Services and of objects of our own kinds, and Events.

Invariants: a status is written on the version of its object that was seen, or not at all.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.clustercontroller.backoff import Refused, refused
from podwire.loadbalancer.reports import Report
from podwire.loadbalancer.statuses import News, Status
from podwire.model.announcements import ConfigKey
from podwire.model.balancers import Balanced, Leftover
from podwire.model.declared import Declared
from podwire.model.objects import ServiceKey
from podwire.sources.balancer_objects import CONDITION, BalancedService, read_service
from podwire.sources.declared import OWN_KINDS, path_of
from podwire.sources.fields import Invalid
from podwire.sources.kube_api import MERGE, STRATEGIC_MERGE, Api, ApiError
from podwire.sources.kube_objects import POOLS
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
        answer = await self._patch(_status_path(key), body, STRATEGIC_MERGE)
        try:
            _, after = read_service(msgspec.json.decode(answer, type=BalancedService), self._unclassed)
        except (Invalid, msgspec.DecodeError) as error:
            raise Refused(f"the answer can't be read: {error}") from None
        if not isinstance(after, Balanced):
            raise Refused("it is for us no more", changed=True)
        return after

    async def tell(self, key: ServiceKey, held: Balanced, news: News) -> None:
        """Never raises."""
        about = {"apiVersion": "v1", "kind": "Service", "namespace": key.namespace, "name": key.name, "uid": held.uid}
        await self._event(about, "Allocate", news)

    async def report(self, key: ConfigKey, held: Declared, report: Report) -> None:
        """The status of an object of our own kinds, on the version that was seen. Raises Refused."""
        await self._patch(f"{path_of(key)}/status", report_patch(held, report), MERGE)

    async def forget(self, key: ServiceKey, held: Leftover) -> None:
        """Takes our condition off a Service, on the version that was seen. Raises Refused."""
        conditions = [{"type": CONDITION, "$patch": "delete"}]
        body = {"metadata": {"resourceVersion": held.version}, "status": {"conditions": conditions}}
        await self._patch(_status_path(key), msgspec.json.encode(body), STRATEGIC_MERGE)

    async def tell_of(self, key: ConfigKey, held: Declared, news: News) -> None:
        """Never raises."""
        about = {"apiVersion": POOLS, "kind": OWN_KINDS[type(key)].name, "name": key.name, "uid": held.uid}
        await self._event(about, "Check", news)

    async def _patch(self, path: str, body: bytes, kind: str) -> bytes:
        """Raises Refused."""
        try:
            return await self._api.patch(path, body, kind)
        except ApiError as error:
            raise refused(error) from None

    async def _event(self, about: Mapping[str, str], action: str, news: News) -> None:
        """core/v1; of an object without a namespace in namespace default, as the API asks. What can't be told is
        logged, and no reason to stop."""
        now, namespace = self._chance.now(), about.get("namespace", "default")
        body = {
            "metadata": {"generateName": f"{about['name']}.", "namespace": namespace},
            "involvedObject": about,
            "type": news.type,
            "reason": news.reason,
            "message": news.message.encode()[:LONGEST_NOTE].decode(errors="ignore"),
            "reportingComponent": NAME,
            "reportingInstance": self._identity,
            "action": action,
            "eventTime": micro_time_of(now),
            "firstTimestamp": time_of(now),
            "lastTimestamp": time_of(now),
            "count": 1,
        }
        try:
            await self._api.post(f"/api/v1/namespaces/{namespace}/events", msgspec.json.encode(body))
        except ApiError as error:
            log.info("%s %s: no Event %s: %s", about["kind"], about["name"], news.reason, error)


def _status_path(key: ServiceKey) -> str:
    return f"/api/v1/namespaces/{key.namespace}/services/{key.name}/status"


def report_patch(held: Declared, report: Report) -> bytes:
    """A merge patch, which has lists whole. None of the counts is none any more."""
    conditions = [
        {
            "type": it.type,
            "status": it.status,
            "reason": it.reason,
            "message": it.message,
            "lastTransitionTime": it.since,
            "observedGeneration": it.generation,
        }
        for it in report.conditions
    ]
    status: dict[str, Any] = {"conditions": conditions}
    for name, before, after in zip(("ipv4", "ipv6"), held.counts, report.counts, strict=True):
        if before != after:
            status[name] = msgspec.to_builtins(after)
    return msgspec.json.encode({"metadata": {"resourceVersion": held.version}, "status": status})


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
