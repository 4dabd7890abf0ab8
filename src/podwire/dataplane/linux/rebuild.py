"""Attachments from what the kernel holds of them, for a store that was lost. Pure.

Invariants: nothing is guessed: a link whose names do not fit together is left out. The path of a pod's namespace is
nowhere in the kernel, so it is unknown: the node's side is looked after, and a DEL finds its pod.
"""

from collections.abc import Mapping
from typing import Any

from podwire.model.addresses import Address
from podwire.model.network import Link, LinkKey, Route, RouteKey
from podwire.model.objects import Attachment, AttachmentKey, PodKey
from podwire.pods.wiring import interface_name, keys_of


def attachments(held: Mapping[Any, Any]) -> dict[AttachmentKey, Attachment]:
    """`held`: the linux driver's keys of the node's own namespace."""
    addresses: dict[int, list[Address]] = {}
    for key, value in held.items():
        if isinstance(key, RouteKey) and isinstance(value, Route) and _is_pods(key, value):
            addresses.setdefault(value.index, []).append(key.destination.first)
    found: dict[AttachmentKey, Attachment] = {}
    for key, value in held.items():
        if isinstance(key, LinkKey) and isinstance(value, Link):
            owner = next((k for k in keys_of(value.altname) if interface_name(k) == key.name), None)
            namespace, slash, name = value.alias.partition("/")
            own = sorted(addresses.get(value.index, ()), key=lambda address: (len(address), address))
            if owner is not None and slash and own:
                found[owner] = Attachment(PodKey(namespace, name), "", tuple(own), value.index, confirmed=True)
    return found


def _is_pods(key: RouteKey, value: Route) -> bool:
    """Whether it is the node's route to one address on a link."""
    return not key.space and value.via is None and key.destination.length == key.destination.family.bits
