"""Everything that can happen. Facts are named in the past, requests in the imperative.

Invariants: an event is a frozen value and says by its class what its failure means. Outcomes are events too
(`Reported`): the snapshot learns from them what the network holds.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

from podwire.controller.difference import Outcome
from podwire.model.addresses import Address, Prefix, show_address
from podwire.model.kinds import Object, ObjectKey
from podwire.model.network import Frontend
from podwire.model.objects import (
    NO_BANDWIDTH,
    Attachment,
    AttachmentKey,
    Bandwidth,
    HostPort,
    PodKey,
    ServiceKey,
    SliceKey,
    Value,
)

_SHOWN = 3


def _short(key: AttachmentKey) -> str:
    return f"{key.sandbox[:12]}/{key.interface}"


def _some(keys: frozenset[AttachmentKey]) -> str:
    return _listed([_short(key) for key in sorted(keys)[:_SHOWN]], len(keys))


def _listed(shown: list[str], count: int) -> str:
    return ", ".join(shown) + (f" and {count - len(shown)} more" if count > len(shown) else "")


class OnFailure(Enum):
    REVERT = "put back what was there, and answer the error"
    HEAL = "go on, and resync what failed later"
    IGNORE = "go on in reverse order; what is gone is gone"


class Refusal(Enum):
    """Why a request can't be granted, for programs; the words are the error's."""

    NOT_READY = "the node is not ready to attach pods"
    EXHAUSTED = "no address is free"
    OCCUPIED = "the network namespace has an interface of ours already"
    NAMED = "another attachment's link has the same name"
    NOT_STORED = "it can't be written down now"
    PORT_TAKEN = "another pod has a host port that is asked for"
    PORT_UNFIT = "the pod has no address of a host port's family"
    ADDRESS_UNFIT = "the pod can't have an address that is asked for"
    MAC_UNFIT = "the pod has another MAC address already"


class Refused(Exception):
    """A request that the fold can't grant. Nothing has changed."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


class Event(Value, frozen=True):
    on_failure: ClassVar[OnFailure] = OnFailure.HEAL


class AddPod(Event, frozen=True):
    """Attach a pod. `netns` is the path of its network namespace, `device` and `inode` tell which one that is. `uid` is
    the pod's in Kubernetes, `network` the name of the CNI configuration; both may be "". No two of `host_ports` are at
    one place."""

    key: AttachmentKey
    pod: PodKey
    netns: str
    device: int = 0
    inode: int = 0
    uid: str = ""
    network: str = ""
    host_ports: tuple[HostPort, ...] = ()
    bandwidth: Bandwidth = NO_BANDWIDTH
    pool: str = ""
    """The PodPool whose addresses it shall have; "": of those that all pods get."""
    fixed: tuple[Address, ...] = ()
    """The addresses that it shall have, at most one of each family: of the pools' reserved ones."""
    requested: tuple[Address, ...] = ()
    """The same, as a runtime asks for it (CNI conventions, "ips")."""
    mac: bytes = b""
    """Of the pod's end (CNI conventions, "mac"); b"": it has none to ask for."""
    delegated: tuple[Address, ...] | None = None
    """What another IPAM plugin has given it; None: none was asked."""
    routes: tuple[Prefix, ...] | None = None
    """Where that lets the pod send; None: everywhere."""
    again: bool = False
    """It was refused once, and what was dead has been released since."""
    on_failure: ClassVar[OnFailure] = OnFailure.REVERT

    def __str__(self) -> str:
        return f"AddPod {self.pod.namespace}/{self.pod.name} {_short(self.key)}"


class PodWired(Event, frozen=True):
    """Follows AddPod before its answer: the stored row becomes confirmed."""

    key: AttachmentKey
    on_failure: ClassVar[OnFailure] = OnFailure.REVERT

    def __str__(self) -> str:
        return f"PodWired {_short(self.key)}"


class DeletePod(Event, frozen=True):
    """Detach a pod's interface. Never fails for what is already gone."""

    key: AttachmentKey
    on_failure: ClassVar[OnFailure] = OnFailure.IGNORE

    def __str__(self) -> str:
        return f"DeletePod {_short(self.key)}"


class CollectPods(Event, frozen=True):
    """Detach what the runtime no longer knows (CNI's GC): the attachments of this network that are not in `valid`, up
    to that `serial`: what is younger came after the runtime had made its list."""

    network: str
    valid: frozenset[AttachmentKey]
    serial: int
    on_failure: ClassVar[OnFailure] = OnFailure.IGNORE

    def __str__(self) -> str:
        return f"CollectPods of {self.network}, beside {len(self.valid)} valid"


class SandboxGone(Event, frozen=True):
    """The network namespaces of these no longer exist, and their interfaces with them."""

    keys: frozenset[AttachmentKey]
    on_failure: ClassVar[OnFailure] = OnFailure.IGNORE

    def __str__(self) -> str:
        return f"SandboxGone {_some(self.keys)}"


class SandboxReplaced(Event, frozen=True):
    """The pod of these has another sandbox now, which is attached."""

    keys: frozenset[AttachmentKey]
    on_failure: ClassVar[OnFailure] = OnFailure.IGNORE

    def __str__(self) -> str:
        return f"SandboxReplaced {_some(self.keys)}"


class SandboxUnseen(Event, frozen=True):
    """No path leads to the network namespaces of these any more, but their links live: from now on only the node's
    side is looked after, until an ADD names the namespace anew."""

    keys: frozenset[AttachmentKey]

    def __str__(self) -> str:
        return f"SandboxUnseen {_some(self.keys)}"


class KubeStateChange(Event, frozen=True):
    """Objects of the cluster came, changed or (None) went; all in one transaction."""

    changes: tuple[tuple[ObjectKey, Object | None], ...]

    @property
    def of_services_alone(self) -> bool:
        """Whether no pod, node or pool is concerned, as by most changes of a cluster."""
        return bool(self.changes) and all(isinstance(key, ServiceKey | SliceKey) for key, _ in self.changes)

    def __str__(self) -> str:
        shown = [f"{key}{'' if value is not None else ' removed'}" for key, value in self.changes[:_SHOWN]]
        return f"KubeStateChange {_listed(shown, len(self.changes))}"


class NodeAddressesChanged(Event, frozen=True):
    """The addresses that this node's kernel has, but for ours, and the networks in which it has them; by address the
    MTU of its interface in bytes, None: nobody has looked."""

    addresses: frozenset[Address]
    networks: frozenset[Prefix] = frozenset()
    mtus: frozenset[tuple[Address, int]] | None = None

    def __str__(self) -> str:
        shown = [show_address(address) for address in sorted(self.addresses)[:_SHOWN]]
        return f"NodeAddressesChanged {_listed(shown, len(self.addresses)) or 'none'}"


class NodesHeard(Event, frozen=True):
    """What other nodes' heartbeats say (`podwire.l2`): these have fallen silent, and these can't answer for anything
    now; all others can, or were never heard."""

    dead: frozenset[str]
    unready: frozenset[str] = frozenset()

    def __str__(self) -> str:
        silent = _listed(sorted(self.dead)[:_SHOWN], len(self.dead)) or "none"
        return f"NodesHeard silent: {silent}{f', {len(self.unready)} not ready' if self.unready else ''}"


class ResyncReason(Enum):
    STARTUP = "startup"
    ON_DEMAND = "on demand"
    HEALING = "healing"
    COLLECTION = "collection"
    SOURCE_RECONNECTED = "source reconnected"


class Resync(Event, frozen=True):
    """Read the network and make it what it should be.

    `objects`, where given, are the cluster's objects: what the snapshot has beside them has gone. `whole` False: there
    may be more that can't be read now. `drivers` None: all of them.
    """

    reason: ResyncReason
    objects: Mapping[ObjectKey, Object] | None = None
    whole: bool = True
    drivers: frozenset[str] | None = None

    def __str__(self) -> str:
        only = f" of {', '.join(sorted(self.drivers))}" if self.drivers is not None else ""
        return f"Resync {self.reason.value}{only}"


class Disturbed(Event, frozen=True):
    """Others' hands have changed something that a driver looks after: it is read and made right.

    `keys`: what they have changed; None: all of that driver's. `by` is who, where that is known.
    """

    driver: str
    keys: frozenset[Any] | None = None
    by: str = ""

    def __str__(self) -> str:
        return f"Disturbed {self.driver}" + (f" by {self.by}" if self.by else "")


class RoomMade(Event, frozen=True):
    """Something of a driver's went: for what found no room there may be some now."""

    driver: str

    def __str__(self) -> str:
        return f"RoomMade {self.driver}"


class Shutdown(Event, frozen=True):
    """The last event: the network stays as it is, and works on without the agent."""

    def __str__(self) -> str:
        return "Shutdown"


class Restored(Event, frozen=True):
    """What the store held at a start. Unconfirmed attachments were never answered: they are released. `objects` are
    this node and the service ranges as the cluster knew them last: a list of all objects takes their place. `dead`
    counts the attachments of an earlier boot, which are released; `rebuilt` those that are taken from the kernel, since
    the store was lost. `serial` is the greatest that was ever given, as far as the store knows."""

    attachments: Mapping[AttachmentKey, Attachment]
    cursors: Mapping[Prefix, int]
    objects: Mapping[ObjectKey, Object] = {}
    dead: int = 0
    rebuilt: int = 0
    serial: int = 0

    def __str__(self) -> str:
        rebuilt = f", {self.rebuilt} from the kernel, since the store was lost" if self.rebuilt else ""
        dead = f", released {self.dead} of an earlier boot" if self.dead else ""
        return f"Restored {len(self.attachments)} attachments{rebuilt}{dead}"


class FlowsReconciled(Event, frozen=True):
    """Entries of connection tracking were deleted, so many of each frontend: their flows went where the Service no
    longer sends anybody. `error`: not all could be read or deleted; that is tried again."""

    deleted: tuple[tuple[Frontend, int], ...]
    error: str | None = None

    def __str__(self) -> str:
        return f"FlowsReconciled {sum(count for _, count in self.deleted)} deleted"


class Reported(Event, frozen=True):
    """What a driver did or found, key by key."""

    driver: str
    outcomes: Mapping[Any, Outcome]
