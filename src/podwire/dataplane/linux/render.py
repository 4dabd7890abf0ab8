"""One change to rtnetlink messages, whatever its key; in which order, and what of a value the kernel decides. Pure.

Invariants: what a dump gives back equals what was rendered, but for what `place` and `settle` leave to others.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from podwire.controller.difference import Change
from podwire.dataplane.linux import links, neighbours, routes, vxlan
from podwire.dataplane.messages import Message
from podwire.model.network import (
    TUNNEL_INDEX,
    AddressKey,
    EgressKey,
    ForwardKey,
    IngressKey,
    Link,
    LinkKey,
    NeighbourKey,
    PodMAC,
    Route,
    RouteKey,
    RuleKey,
    SysctlKey,
    TunnelKey,
    UpKey,
)

ORDER = (
    SysctlKey,
    LinkKey,
    IngressKey,
    EgressKey,
    TunnelKey,
    UpKey,
    AddressKey,
    ForwardKey,
    NeighbourKey,
    RouteKey,
    RuleKey,
)
_UP = ORDER.index(UpKey)
_IN_PODS = (AddressKey, NeighbourKey)


def rank(key: Any) -> tuple[int, int]:
    """Create in this order, delete in the reverse: a default route needs the route to its gateway, and no packet may
    ask for a neighbour before it is told. In a pod only its routes come behind its interface: from then on the kernel's
    own tasks take its lock in turn with us, an eighth of the time that a pod's namespace takes."""
    if isinstance(key, _IN_PODS) and key.space:
        return _UP, -1
    return ORDER.index(type(key)), -key.destination.length if isinstance(key, RouteKey) else 0


def outlasts(key: Any) -> bool:
    """Whether it goes only after the rest has come: a tunnel carries packets until no route leads there any more, and
    a route of another metric, as older versions made, until there is one in its place."""
    if isinstance(key, RouteKey):
        return bool(key.metric)
    return isinstance(key, TunnelKey | ForwardKey) or getattr(key, "index", 0) in TUNNEL_INDEX.values()


def place(wanted: Any, actual: Any) -> Any:
    """A route by its gateway alone is content with whatever interface the kernel found for it; a link with the name
    and MAC address that its pod has given it, and with a route_localnet that another plugin of the chain needs: what
    comes to 127.0.0.0/8 from elsewhere is dropped anyway."""
    if isinstance(wanted, Route) and wanted.index == 0 and isinstance(actual, Route):
        return actual if replace(actual, index=0) == wanted else wanted
    if isinstance(wanted, Link) and isinstance(actual, Link) and links.identity(wanted) == links.identity(actual):
        localnet = wanted.localnet or actual.localnet
        return replace(wanted, interface=actual.interface, mac=actual.mac, localnet=localnet)
    return wanted


def settle(wanted: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The node's neighbours follow the MAC addresses that the pods' ends really have: an owner may change them, as
    virtual machines in pods do. Where that end can't be seen, the neighbour stays as it is."""
    found: dict[Any, Any] = {}
    for key, value in wanted.items():
        if isinstance(value, PodMAC):
            made, will = actual.get(LinkKey(value.link)), wanted.get(LinkKey(value.link))
            found[key] = value.born
            if isinstance(made, Link) and isinstance(will, Link):
                seen = bool(will.space) and links.identity(made) == links.identity(will)
                if seen or not made.space:
                    found[key] = (made.mac if seen else actual.get(key)) or value.born
    return {**wanted, **found} if found else wanted


def render(key: Any, change: Change, descriptor: int) -> list[Message]:
    """`descriptor` is the pod's namespace, opened, where a link is to end in it."""
    match key:
        case LinkKey(name):
            return links.link(name, change, descriptor)
        case UpKey():
            return [] if change.after is None else links.bring_up(key, change.after)
        case AddressKey():
            return routes.address(key, change)
        case RouteKey():
            return routes.route(key, change)
        case RuleKey():
            return routes.rule(key, change)
        case NeighbourKey():
            return neighbours.neighbour(key, change)
        case ForwardKey():
            return neighbours.forward(key, change)
        case TunnelKey():
            return vxlan.device(key, change)
    raise TypeError(key)
