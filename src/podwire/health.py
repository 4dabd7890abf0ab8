"""What load balancers are told of this node: by a Service's health check node port, and of the node itself. Pure.

Invariants: the answers are kube-proxy's (pkg/proxy/healthcheck), field by field, so that whatever asks kube-proxy may
ask this. A load balancer is told to send its clients here only when the data plane has reported that it holds what
they need.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from podwire import views
from podwire.model.addresses import FAMILIES, Family, family_of, show_host_port
from podwire.model.network import Frontend, Serving
from podwire.model.objects import Protocol, ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.services.frontends import Kind, of_service, owner, serving
from podwire.services.health import Place, holder, local_backends, places_of

HEADERS = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
WEIGHT = "X-Load-Balancing-Endpoint-Weight"


class Answer(Struct, frozen=True):
    """`status` is HTTP's: 200 where clients may be sent, 503 where not."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def answer(status: int, body: Mapping[str, Any], **headers: str) -> Answer:
    return Answer(status, HEADERS | headers, msgspec.json.encode(body))


# --- a Service ---------------------------------------------------------------------------------


def of_health_port(now: Snapshot, key: ServiceKey, family: Family, faults: str | None) -> Answer:
    """What the health check node port of that Service answers. `faults`: what is wrong with all Services here."""
    count = local_backends(now, key, family)
    healthy = faults is None and programmed(now, key, family)
    body = {
        "service": {"namespace": key.namespace, "name": key.name},
        "localEndpoints": count,
        "serviceProxyHealthy": healthy,
    }
    return answer(200 if count and healthy else 503, body, **{WEIGHT: str(count)})


def programmed(now: Snapshot, key: ServiceKey, family: Family) -> bool:
    """Whether the data plane holds, as it should be, all that a load balancer sends clients of this family to."""
    mine = serving(now, key)
    return all(
        owner(now, frontend) == key and _held(now, frontend, mine[frontend])
        for _, kind, frontend in of_service(now, key)
        if kind in (Kind.NODE_PORT, Kind.BALANCER) and frontend.family == family
    )


def _held(now: Snapshot, frontend: Frontend, wanted: Serving) -> bool:
    return views.state_of(now, frontend, wanted) not in _LACKS


def in_words(now: Snapshot, key: ServiceKey) -> tuple[str, ...]:
    """What becomes of the Service's health check node port, a line for each address."""
    port = now.services[key].health_port
    first = holder(now, port)
    if not port or first is None:
        return ()
    if first != key:
        return (f"{_NAME} {port}: {first.namespace}/{first.name} has it, which is older",)
    places = places_of(now, key)
    if not places:
        return (f"{_NAME} {port}: node {now.local.name} has no address for it in the Service's families",)
    return tuple(f"{_NAME} {show_host_port(*place)}: {_verdict(now, key, place)}" for place in places)


def _verdict(now: Snapshot, key: ServiceKey, place: Place) -> str:
    family = family_of(place.address)
    taken = Frontend(place.address, Protocol.TCP, place.port)
    if taken in now.claims:
        other = owner(now, taken)
        return f"not reached: {other.namespace}/{other.name} has it as a frontend"
    count = local_backends(now, key, family)
    ready = f"{count} ready backend{'' if count == 1 else 's'} on this node" if count else NOBODY_READY
    status = of_health_port(now, key, family, None).status
    waiting = "" if programmed(now, key, family) else ", but nftables does not hold all of the Service yet"
    return f"answers {status}, {ready}{waiting}"


_LACKS = {views.FrontendState.PENDING, views.FrontendState.FAILED, views.FrontendState.NO_ROOM}
_NAME = "health check node port"
NOBODY_READY = "no ready backend on this node"


# --- the node ----------------------------------------------------------------------------------


def fault(now: Snapshot, follows_api: bool, unsynced: frozenset[str], broken: frozenset[str]) -> str | None:
    """Why this node can't serve Services, or doesn't know them; None: it does. `follows_api`: the objects come from the
    Kubernetes API. `unsynced` and `broken` are the controller's."""
    if follows_api and not now.whole:
        return "the Services are not yet known: the Kubernetes API has not listed them"
    if "nftables" in unsynced:
        return "the rules of the Services were not yet brought in order since the start"
    if "nftables" in broken:
        return "the rules of the Services can't be read or changed: see podwire history"
    return None


def of_node(now: Snapshot, path: str, faults: str | None, seconds: float, updated: float) -> Answer | None:
    """What kube-proxy's own health port answers to this path; None: it has no such. `seconds`: the time, `updated`: of
    the last event that went well; both since the epoch."""
    if path not in ("/healthz", "/livez"):
        return None
    sound, eligible = faults is None, not now.node.leaving
    healthy = sound and (eligible or path != "/healthz")
    body: dict[str, Any] = {"lastUpdated": _time(seconds if healthy else updated), "currentTime": _time(seconds)}
    if path == "/healthz":
        body["nodeEligible"] = eligible
    each = {"lastUpdated": _time(updated), "healthy": sound}  # one agent serves both families
    body |= {"healthy": sound, "status": {family.name: each for family in FAMILIES}}
    if faults is not None:
        body["reason"] = faults
    return answer(200 if healthy else 503, body)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
