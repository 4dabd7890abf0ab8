"""What a Service says of who may use it and who answers, and the questions on it. Pure.

Invariants: rules 6 to 10 of `table.py`. Where chance would decide between backends there is no question.
"""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from itertools import product
from typing import NamedTuple

from podwire.model.addresses import FAMILIES, Family
from podwire.model.objects import Protocol
from tests.packets.plan import (
    ONE,
    ONE_BACKEND,
    ONE_CLIENT,
    OTHER_TARGET_PORT,
    OUTSIDE,
    PROXY,
    TARGET_PORT,
    TWO,
    TWO_BACKEND,
    TWO_CLIENT,
    Backend,
    Exposed,
    Outside,
    Pod,
    State,
    Station,
    is_on,
)
from tests.packets.refusals import Why, dropped, refused
from tests.packets.table import CLIENTS, FRONTENDS, Kind, Path, frontend, seen, translator

# --- who answers -------------------------------------------------------------------------------


def answer(service: Exposed, asker: Station, kind: Kind, protocol: Protocol, family: Family) -> str:
    """The only right answer to a client that asks a frontend."""
    if kind is Kind.LOAD_BALANCER_IP and service.proxied:
        return f"{PROXY.name} {seen(Path(asker, kind, family, PROXY))}"
    if not is_frontend(service, kind):
        return refused(asker, kind, protocol, Why.UNKNOWN_PORT)
    if is_denied(service, kind, asker.address(family)):
        return dropped(asker, kind, protocol)
    backend = reached(service, asker, kind, family)
    if backend is not None:
        return f"{answers_as(backend)} {seen(Path(asker, kind, family, backend.station))}"
    if in_order_of_readiness(service.backends):
        return dropped(asker, kind, protocol)
    return refused(asker, kind, protocol, Why.NO_BACKEND)


def reached(service: Exposed, asker: Station, kind: Kind, family: Family) -> Backend | None:
    """The one that answers; of several that may it is the first."""
    if not is_frontend(service, kind) or is_denied(service, kind, asker.address(family)):
        return None
    return next(iter(answering(service, asker, kind, family)), None)


def answers_as(it: Backend) -> str:
    return it.station.name if it.port == TARGET_PORT else f"{it.station.name}:{it.port}"


def is_frontend(service: Exposed, kind: Kind) -> bool:
    """Rule 10."""
    match kind:
        case Kind.NODE_PORT:
            return service.node_ports
        case Kind.LOAD_BALANCER_IP:
            return not service.proxied
    return True


def is_denied(service: Exposed, kind: Kind, client: str) -> bool:
    """By its source ranges (rule 10)."""
    address = ip_address(client)
    ranges = [it for it in map(ip_network, service.sources) if it.version == address.version]
    return kind is Kind.LOAD_BALANCER_IP and bool(ranges) and not any(address in it for it in ranges)


def answering(service: Exposed, asker: Station, kind: Kind, family: Family) -> list[Backend]:
    """Those that may (rules 6 to 8)."""
    some = service.backends
    if not some:
        return []
    node = translator(Path(asker, kind, family, some[0].station))
    assert node is not None
    inside = isinstance(asker, Pod) or asker == node
    if service.internal_local if kind is Kind.CLUSTER_IP else service.external_local and not inside:
        return in_order_of_readiness(it for it in some if is_on(it.station, node))
    found = in_order_of_readiness(some)
    ready = [it for it in found if it.state in READY]
    if ready and all(it.for_nodes for it in ready) and any(node.name in it.for_nodes for it in ready):
        return [it for it in ready if node.name in it.for_nodes]
    if ready and all(it.for_zones for it in ready) and any(node.zone in it.for_zones for it in ready):
        return [it for it in ready if node.zone in it.for_zones]
    return found


READY = (State.READY, State.PUBLISHED)


def in_order_of_readiness(some: Iterable[Backend]) -> list[Backend]:
    """The ready ones, else those that still serve (rule 7)."""
    known = list(some)
    ready = [it for it in known if it.state in READY]
    return ready or [it for it in known if it.state is State.LEAVING]


# --- what is asked -----------------------------------------------------------------------------


def _hosts(*allowed: Station) -> tuple[str, ...]:
    return tuple(f"{it.address(family)}/{family.bits}" for it in allowed for family in FAMILIES)


_HERE, _THERE = Backend(ONE_BACKEND), Backend(TWO_BACKEND)
_LEAVING, _GONE = _HERE._replace(state=State.LEAVING), _HERE._replace(state=State.GONE)
_UNREADY = _THERE._replace(state=State.UNREADY)
_IN_NODES = tuple(Backend(it.station, for_nodes=(name,)) for it, name in ((_HERE, "one"), (_THERE, "two")))
_IN_ZONES = tuple(Backend(it.station, for_zones=(zone,)) for it, zone in ((_HERE, ONE.zone), (_THERE, TWO.zone)))
_NOWHERE = ("192.0.2.99/32", "fd00:2::99/128")


def _local(name: str, number: int, *backends: Backend) -> Exposed:
    return Exposed(name, number, backends, external_local=True, internal_local=True)


_CASES: dict[Exposed, tuple[Kind, ...]] = {
    # Traffic policies, with a backend on each node and with none at all.
    _local("local-on-both", 30, _HERE, _THERE): FRONTENDS,
    _local("local-on-none", 31): FRONTENDS,
    Exposed("external-local", 32, (_THERE,), external_local=True): FRONTENDS,
    Exposed("internal-local", 33, (_THERE,), internal_local=True): FRONTENDS,
    # Backends that are not ready.
    Exposed("leaving", 34, (_LEAVING,)): FRONTENDS,
    Exposed("leaving-beside-ready", 35, (_LEAVING, _THERE)): FRONTENDS,
    _local("local-leaving-beside-ready", 36, _LEAVING, _THERE): FRONTENDS,
    _local("local-gone-beside-ready", 37, _GONE, _THERE): (Kind.CLUSTER_IP, Kind.NODE_PORT),
    Exposed("none-ready", 38, (_GONE, _UNREADY)): (Kind.CLUSTER_IP, Kind.NODE_PORT),
    _local("local-none-ready", 39, _GONE, _UNREADY): (Kind.CLUSTER_IP, Kind.NODE_PORT),
    Exposed("published", 40, (Backend(ONE_BACKEND, State.PUBLISHED), _LEAVING._replace(station=TWO_BACKEND))): (
        Kind.CLUSTER_IP,
        Kind.NODE_PORT,
    ),
    # What else it says.
    _local("two-target-ports", 41, Backend(ONE_BACKEND, port=OTHER_TARGET_PORT), _THERE): FRONTENDS,
    Exposed("no-node-ports", 42, (_THERE,), node_ports=False): FRONTENDS,
    Exposed("proxied", 43, (_THERE,), proxied=True): FRONTENDS,
    Exposed("hints-for-nodes", 44, _IN_NODES): FRONTENDS,
    Exposed("hints-for-zones", 45, _IN_ZONES): FRONTENDS,
    # Source ranges: each client may use one of the first two.
    Exposed("for-some", 46, (_THERE,), sources=_hosts(OUTSIDE, ONE_CLIENT, TWO)): FRONTENDS,
    Exposed("for-others", 47, (_THERE,), sources=_hosts(TWO_CLIENT, ONE)): FRONTENDS,
    Exposed("for-nobody-of-one-family", 48, (_HERE,), sources=_NOWHERE[:1]): (Kind.LOAD_BALANCER_IP,),
    Exposed("for-nobody-by-nobody", 49, sources=_NOWHERE): (Kind.LOAD_BALANCER_IP,),
    _local("local-for-some", 50, _HERE)._replace(sources=_hosts(OUTSIDE, TWO_CLIENT, ONE)): (Kind.LOAD_BALANCER_IP,),
}
CASES = tuple(_CASES)


class Case(NamedTuple):
    service: Exposed
    client: str
    kind: Kind
    protocol: Protocol
    family: Family

    @property
    def id(self) -> str:
        return f"{self.service.name}-{self.client}-{self.kind.value}-{self.protocol.name}-{self.family}"

    @property
    def asker(self) -> Station:
        return CLIENTS[self.client]

    @property
    def target(self) -> tuple[str, int]:
        return frontend(self.service, self.kind, self.family)


def cases() -> list[Case]:
    """What a client outside sends to a load balancer that answers itself never meets a node."""
    every = [
        Case(service, *each)
        for service, kinds in _CASES.items()
        for each in product(CLIENTS, kinds, Protocol, FAMILIES)
    ]
    return [it for it in every if _is_certain(it) and not (_is_proxied(it) and isinstance(it.asker, Outside))]


def _is_certain(it: Case) -> bool:
    return len(answering(it.service, it.asker, it.kind, it.family)) <= 1


def _is_proxied(it: Case) -> bool:
    return it.service.proxied and it.kind is Kind.LOAD_BALANCER_IP
