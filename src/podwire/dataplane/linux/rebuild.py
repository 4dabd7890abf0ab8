"""Attachments from what the kernel holds of them, for a store that was lost. Pure.

Invariants: nothing is guessed: a link whose names do not fit together is left out, and a pod whose name somebody has
removed is called by its sandbox, as one that came without a name. The path of a pod's namespace is
nowhere in the kernel, so it is unknown: the node's side is looked after, and a DEL finds its pod.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from podwire.model.addresses import Address
from podwire.model.network import (
    Backend,
    EgressKey,
    HostPortKey,
    IngressKey,
    Link,
    LinkKey,
    NeighbourKey,
    Route,
    RouteKey,
)
from podwire.model.objects import Attachment, AttachmentKey, Bandwidth, HostPort, PodKey
from podwire.pods import shaping
from podwire.pods.names import owner_of, pod_mac, pod_of


def attachments(held: Mapping[Any, Any]) -> dict[AttachmentKey, Attachment]:
    """`held`: the linux driver's keys of the node's own namespace."""
    addresses: dict[int, list[Address]] = {}
    for key, value in held.items():
        if isinstance(key, RouteKey) and isinstance(value, Route) and _is_pods(key, value):
            addresses.setdefault(value.index, []).append(key.destination.first)
    found: dict[AttachmentKey, Attachment] = {}
    for key, value in held.items():
        if isinstance(key, LinkKey) and isinstance(value, Link):
            owner = owner_of(key.name, value.altnames)
            own = sorted(addresses.get(value.index, ()), key=lambda address: (len(address), address))
            if owner is not None and own:
                pod = pod_of(value.alias, value.altnames) or PodKey("", owner.sandbox)
                received, sent = held.get(IngressKey(key.name)), held.get(EgressKey(key.name))
                rates = Bandwidth(received and shaping.rate_of(received), sent and shaping.rate_of(sent))
                found[owner] = Attachment(
                    pod,
                    "",
                    tuple(own),
                    value.index,
                    confirmed=True,
                    link=key.name,
                    bandwidth=rates,
                    shaper=sent.through if sent is not None else 0,
                    mac=_mac(key.name, held.get(NeighbourKey("", value.index, own[0]))),
                )
    return found


def _mac(link: str, neighbour: Any) -> bytes:
    """Of the pod's end, where that is another than follows from the link's name: asked for, or given by its owner."""
    return neighbour if isinstance(neighbour, bytes) and len(neighbour) == 6 and neighbour != pod_mac(link) else b""


def with_host_ports(
    found: Mapping[AttachmentKey, Attachment], held: Mapping[HostPortKey, Backend]
) -> dict[AttachmentKey, Attachment]:
    """The same with their host ports, as nftables holds them: those that lead to nobody's address are left out."""
    of: dict[Address, list[HostPort]] = {}
    for key, backend in held.items():
        at = key.frontend
        of.setdefault(backend.address, []).append(HostPort(at.address, at.protocol, at.port, backend.port))
    ports = {key: sorted(port for address in it.addresses for port in of.get(address, ())) for key, it in found.items()}
    return {key: replace(it, host_ports=tuple(ports[key])) for key, it in found.items()}


def _is_pods(key: RouteKey, value: Route) -> bool:
    """Whether it is the node's route to one address on a link."""
    return not key.space and value.via is None and key.destination.length == key.destination.family.bits
