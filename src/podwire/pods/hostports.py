"""Ports of the node that lead to a pod's: who has which, and where they answer. Pure.

Invariants: a port at a named address goes before the same port at all addresses, so no two pods ever answer at one
place. Of several sandboxes of one pod the newest has its ports. Whoever asks for a port that another pod has gets none
of his: an ADD is refused whole. What is decided depends on the attachments alone, not on the order of their coming.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from podwire.model.addresses import FAMILIES, Address, Family, Prefix, family_of, parse_prefix
from podwire.model.network import Backend, Frontend, HostPortKey
from podwire.model.objects import Attachment, AttachmentKey, HostPort, PodKey
from podwire.model.snapshot import Snapshot
from podwire.pods.lookup import replaced

NOBODY: frozenset[AttachmentKey] = frozenset()
LOOPBACK = parse_prefix("127.0.0.0/8")
UNREACHED: tuple[Prefix, ...] = tuple(map(parse_prefix, ("::1/128", "fe80::/10")))
"""Addresses of the node that lead to no pod: what is sent from IPv6's loopback can't leave the node, which has no
route_localnet in that family, and what is sent from a link's addresses can't leave that link."""


def everywhere(frontend: Frontend) -> Frontend:
    """The same port at all addresses of the node."""
    return Frontend(Address(bytes(len(frontend.address))), frontend.protocol, frontend.port)


def places(ports: Iterable[HostPort], families: Iterable[Family]) -> dict[Frontend, int]:
    """Where a pod with addresses of these families answers, and by which of its ports. Of one place that is named
    twice the last counts: no request names one so."""
    listed = sorted(set(families))
    return {
        Frontend(address, it.protocol, it.port): it.target
        for it in ports
        for address in ([it.address] if it.address else [Address(bytes(family.size)) for family in listed])
        if family_of(address) in listed
    }


def mapped(it: Attachment) -> dict[Frontend, Backend]:
    """Where an attachment answers, if nobody else does. Of several addresses in a family the first answers."""
    own: dict[Family, Address] = {}
    for address in it.addresses:
        own.setdefault(family_of(address), address)
    return {at: Backend(own[at.family], target) for at, target in places(it.host_ports, own).items()}


def owner(now: Snapshot, frontend: Frontend) -> AttachmentKey | None:
    """Who has a port of the node, None: nobody."""
    return max(now.host_ports.get(frontend, ()), key=lambda key: (now.attachments[key].serial, key), default=None)


def desired(now: Snapshot, keys: Iterable[AttachmentKey]) -> dict[Any, Any]:
    """What nftables holds for these attachments."""
    return {
        HostPortKey(at): backend
        for key in keys
        if (it := now.attachments.get(key)) is not None and it.host_ports
        for at, backend in mapped(it).items()
        if owner(now, at) == key
    }


def claimed(
    index: Mapping[Frontend, frozenset[AttachmentKey]],
    key: AttachmentKey,
    before: Attachment | None,
    after: Attachment | None,
) -> dict[Frontend, frozenset[AttachmentKey]]:
    """What changes in the index of who has which port; nobody: it goes."""
    had, has = (set(mapped(it)) if it is not None and it.host_ports else set() for it in (before, after))
    gone = {at: index.get(at, NOBODY) - {key} for at in had - has}
    return gone | {at: index.get(at, NOBODY) | {key} for at in has - had}


def sharing(now: Snapshot, key: AttachmentKey) -> frozenset[AttachmentKey]:
    """Who else is to have a port of this attachment's, before or after it."""
    it = now.attachments.get(key)
    if it is None or not it.host_ports:
        return NOBODY
    return frozenset(other for at in mapped(it) for other in now.host_ports.get(at, NOBODY)) - {key}


def rivals(
    now: Snapshot, key: AttachmentKey, pod: PodKey, uid: str, asked: Iterable[HostPort]
) -> dict[Frontend, AttachmentKey]:
    """The ports that another pod has, each with who has it. The sandbox that a new one of the same pod replaces is no
    other: a runtime makes a new one only where the old one has ended."""
    wanted = sorted(places(asked, FAMILIES))
    if not any(at in now.host_ports for at in wanted):
        return {}
    own = replaced(now, key, pod, uid) | {key}
    others = ((at, now.host_ports.get(at, NOBODY) - own) for at in wanted)
    return {at: min(keys) for at, keys in others if keys}


def answers(address: Address) -> bool:
    """Whether a port at all addresses of the node is at this one, if the node has it."""
    return not any(address in prefix for prefix in UNREACHED)


def found(now: Snapshot, to: Frontend) -> tuple[Frontend, AttachmentKey] | None:
    """Which port of the node takes what is sent to an address of it, where no Service does; and whose it is."""
    for at in (to, everywhere(to)) if answers(to.address) else ():
        key = owner(now, at)
        if key is not None:
            return at, key
    return None


def from_loopback(it: Attachment) -> bool:
    """Whether what the node sends from its 127.0.0.0/8 may have to go to the pod."""
    return any(at.address in LOOPBACK or at.address == bytes(4) for at in (mapped(it) if it.host_ports else ()))
