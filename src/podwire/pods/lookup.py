"""Whose an attachment is: from a pod's name to its interfaces, and from a new sandbox to the one before it. Pure.

Invariants: of several sandboxes of one pod the newest counts. A name that Kubernetes has given again is another pod's,
where the UIDs say so: then the older one is still ending, and stays attached until its own DEL.
"""

from collections.abc import Iterator

from podwire.model.objects import AttachmentKey, PodKey
from podwire.model.snapshot import Snapshot
from podwire.pods.names import link_of


def interfaces_of(now: Snapshot, pod: PodKey) -> list[AttachmentKey]:
    """The attachments of a pod's newest sandbox, in the order in which they came."""
    mine = now.attached.get(pod)
    if mine is None:
        return []
    newest = max(mine, key=lambda key: (now.attachments[key].serial, key)).sandbox
    return sorted(
        (key for key in mine if key.sandbox == newest), key=lambda key: (now.attachments[key].serial, key.interface)
    )


def get_interface_name(now: Snapshot, namespace: str, pod: str, interface: str | None = None) -> str | None:
    """The node's end of the link that leads to a pod's interface; without `interface` to the one that came first. None:
    the pod has no such interface here."""
    for key in interfaces_of(now, PodKey(namespace, pod)):
        if interface in (None, key.interface):
            return link_of(key, now.attachments[key])
    return None


def predecessors(now: Snapshot, key: AttachmentKey, pod: PodKey) -> frozenset[AttachmentKey]:
    """The same interface of the same name in other sandboxes that came before, whoever's that was. Without Kubernetes
    (namespace "") a pod is its sandbox, and has none."""
    mine = now.attachments.get(key)
    return frozenset(
        other
        for other in now.attached.get(pod, ())
        if pod.namespace
        and other.interface == key.interface
        and other.sandbox != key.sandbox
        and (mine is None or now.attachments[other].serial < mine.serial)
    )


def replaced(now: Snapshot, key: AttachmentKey, pod: PodKey, uid: str) -> frozenset[AttachmentKey]:
    """Of these, the ones of the same pod: a runtime makes a new sandbox only where the old one has ended. One that
    lacks its UID is the same."""
    return frozenset(_same(now, predecessors(now, key, pod), uid))


def _same(now: Snapshot, keys: frozenset[AttachmentKey], uid: str) -> Iterator[AttachmentKey]:
    for key in keys:
        other = now.attachments[key].uid
        if not uid or not other or uid == other:
            yield key
