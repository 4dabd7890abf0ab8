"""The fold: an event makes the next snapshot, allocation included, and says which objects it touched. Pure.

Invariants: `fold` never looks at the network. Every index is kept by the one function that changes what it indexes.
What is touched includes the objects that gain or lose by the change (the other claimants of a frontend), so that
deciding for the touched is as good as deciding for all.
"""

from collections.abc import Iterable
from typing import Any

from immutables import Map
from msgspec.structs import replace

from podwire.controller import events as e
from podwire.controller.difference import Outcome
from podwire.ipam import blocks
from podwire.model.addresses import Address, Prefix
from podwire.model.network import LinkKey, RouteKey
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    BackendSlice,
    Namespace,
    NamespaceKey,
    Node,
    NodeKey,
    Object,
    ObjectKey,
    Pod,
    PodKey,
    Service,
    ServiceCIDR,
    ServiceCIDRKey,
    ServiceKey,
    SliceKey,
)
from podwire.model.snapshot import EVERYTHING, UNKNOWN, Snapshot, Touched
from podwire.nodes.own import remembered
from podwire.pods.readiness import obstacle
from podwire.pods.wiring import interface_name, space_of
from podwire.services.backends import zone_of
from podwire.services.frontends import Claim, claims_of

NOTHING = Touched()
NO_CLAIMS: frozenset[Claim] = frozenset()


def fold(now: Snapshot, event: e.Event) -> tuple[Snapshot, Touched | None]:
    """Raises Refused where a request can't be granted; the snapshot is then as it was."""
    match event:
        case e.AddPod():
            return _add_pod(now, event), Touched(attachments=frozenset((event.key,)))
        case e.PodWired(key):
            confirmed = replace(now.attachments[key], confirmed=True)
            return _hold(now, key, confirmed), Touched(attachments=frozenset((key,)))
        case e.DeletePod(key):
            return _release(now, key), Touched(attachments=frozenset((key,)))
        case e.SandboxGone(keys):
            for key in keys:
                now = _release(now, key)
            return now, Touched(attachments=keys)
        case e.SandboxUnseen(keys):
            for key in sorted(key for key in keys if key in now.attachments):
                now = _hold(now, key, replace(now.attachments[key], netns="", device=0, inode=0))
            return now, Touched(attachments=keys)
        case e.KubeStateChange(changes):
            return _change(now, changes)
        case e.Resync(_, objects, whole):
            if objects is not None:
                listed = objects if whole else {**remembered(now), **objects}
                now = replace(_list(now, listed.items()), whole=whole)
            return now, EVERYTHING
        case e.Disturbed("linux", keys) if keys is not None:
            return now, _held_by(now, keys)
        case e.Disturbed():
            return now, EVERYTHING
        case e.Restored(attachments, cursors, objects):
            for key, attachment in attachments.items():
                if attachment.confirmed:
                    now = _hold(now, key, attachment)
            now, _ = _change(now, objects.items())
            return replace(now, cursors=Map(cursors)), NOTHING
        case e.Reported(driver, outcomes):
            return _report(now, driver, outcomes.items()), NOTHING
        case e.FlowsReconciled() | e.Shutdown():
            return now, NOTHING
    raise TypeError(event)


# --- attachments -------------------------------------------------------------------------------


def _add_pod(now: Snapshot, event: e.AddPod) -> Snapshot:
    before = now.attachments.get(event.key)
    if before is not None:  # a repeated ADD keeps its addresses and its confirmation
        there = {"netns": event.netns, "device": event.device, "inode": event.inode}
        return _hold(now, event.key, replace(before, pod=event.pod, **there))
    why = obstacle(now)
    if why is not None:
        raise e.Refused(e.Refusal.EXHAUSTED if why.exhausted else e.Refusal.NOT_READY, why.text)
    addresses: list[Address] = []
    cursors = now.cursors
    for block in now.node.pod_cidrs:
        free = blocks.next_free(block, now.ledger, cursors.get(block, 0))
        assert free is not None
        addresses.append(free[0])
        cursors = cursors.set(block, free[1])
    for old in set(cursors) - set(now.node.pod_cidrs):
        cursors = cursors.delete(old)
    index = blocks.next_index(interface_name(event.key), now.ledger)
    attachment = Attachment(event.pod, event.netns, tuple(addresses), index, device=event.device, inode=event.inode)
    return _hold(replace(now, cursors=cursors), event.key, attachment)


def _hold(now: Snapshot, key: AttachmentKey, attachment: Attachment) -> Snapshot:
    ledger = now.ledger
    for item in _items(attachment):
        ledger = ledger.set(item, key)
    return replace(now, attachments=now.attachments.set(key, attachment), ledger=ledger)


def _held_by(now: Snapshot, keys: Iterable[Any]) -> Touched:
    """The objects to which these keys of links, addresses, routes and neighbours belong; what is no pod's is of the
    nodes."""
    of: dict[Any, set[AttachmentKey]] = {}
    for attachment, held in now.attachments.items():
        for it in (interface_name(attachment), space_of(held), held.index, *held.addresses):
            of.setdefault(it, set()).add(attachment)
    found: set[AttachmentKey] = set()
    nodes = False
    for key in keys:
        match key:
            case LinkKey(name):
                owners = of.get(name, set())
            case RouteKey("", destination):
                owners = of.get(destination.first, set())
            case _:
                owners = of.get(getattr(key, "space", "") or getattr(key, "index", 0), set())
        found |= owners
        nodes = nodes or not owners
    return Touched(attachments=frozenset(found), nodes=frozenset((now.local.key,)) if nodes else frozenset())


def _release(now: Snapshot, key: AttachmentKey) -> Snapshot:
    held = now.attachments.get(key)
    if held is None:
        return now
    ledger = now.ledger
    for item in _items(held):
        if ledger.get(item) == key:
            ledger = ledger.delete(item)
    return replace(now, attachments=now.attachments.delete(key), ledger=ledger)


def _items(held: Attachment) -> tuple[Address | int, ...]:
    """What an attachment has in the ledger."""
    return (*held.addresses, held.index)


# --- the cluster's objects ---------------------------------------------------------------------


def _change(now: Snapshot, changes: Iterable[tuple[ObjectKey, Object | None]]) -> tuple[Snapshot, Touched]:
    services: set[ServiceKey] = set()
    nodes: set[NodeKey] = set()
    ranges = False
    for key, value in changes:
        if value == _held(now, key):
            continue
        now, more = _put(now, key, value)
        services |= more.services
        nodes |= more.nodes
        ranges |= more.ranges
    return now, Touched(services=frozenset(services), nodes=frozenset(nodes), ranges=ranges)


def _list(now: Snapshot, objects: Iterable[tuple[ObjectKey, Object]]) -> Snapshot:
    """All of the cluster's objects anew."""
    empty: Snapshot = replace(
        now,
        namespaces=Map(),
        nodes=Map(),
        pods=Map(),
        services=Map(),
        slices=Map(),
        service_cidrs=Map(),
        slices_of=Map(),
        claims=Map(),
        affinities=Map(),
    )
    return _change(empty, objects)[0]


def _held(now: Snapshot, key: ObjectKey) -> Object | None:
    match key:
        case ServiceKey():
            return now.services.get(key)
        case SliceKey():
            return now.slices.get(key)
        case NodeKey():
            return now.nodes.get(key)
        case PodKey():
            return now.pods.get(key)
        case NamespaceKey():
            return now.namespaces.get(key)
        case ServiceCIDRKey():
            return now.service_cidrs.get(key)


def _put(now: Snapshot, key: ObjectKey, value: Object | None) -> tuple[Snapshot, Touched]:
    match key, value:
        case ServiceKey(), (Service() | None):
            return _put_service(now, key, value)
        case SliceKey(), (BackendSlice() | None):
            return _put_slice(now, key, value)
        case NodeKey(), (Node() | None):
            return _put_node(now, key, value)
        case PodKey(), (Pod() | None):
            return replace(now, pods=_set(now.pods, key, value)), NOTHING
        case NamespaceKey(), (Namespace() | None):
            return replace(now, namespaces=_set(now.namespaces, key, value)), NOTHING
        case ServiceCIDRKey(), (ServiceCIDR() | None):
            return _put_service_cidr(now, key, value)
    raise TypeError(f"{key}: {value!r}")


def _put_node(now: Snapshot, key: NodeKey, node: Node | None) -> tuple[Snapshot, Touched]:
    """This node's addresses are where node ports are: the Services that have some claim others then."""
    before, ranges = now.node, now.service_ranges
    now = replace(now, nodes=_set(now.nodes, key, node))
    touched: set[ServiceKey] = set()
    if zone_of(now.node) != zone_of(before):  # whose hints count
        touched |= set(now.services)
    if now.node.addresses != before.addresses:
        for name, service in now.services.items():
            if not {*before.addresses, *now.node.addresses}.isdisjoint(service.cluster_ips):
                touched.add(name)
            if any(port.node_port for port in service.ports):
                now, rivals = _claim(now, name, claims_of(service, before), claims_of(service, now.node))
                touched |= rivals
    moved = _moved(now, ranges)
    return now, Touched(
        services=frozenset(touched | moved), nodes=frozenset((key,)), ranges=now.service_ranges != ranges
    )


def _put_service_cidr(now: Snapshot, key: ServiceCIDRKey, cidr: ServiceCIDR | None) -> tuple[Snapshot, Touched]:
    before = now.service_ranges
    now = replace(now, service_cidrs=_set(now.service_cidrs, key, cidr))
    return now, Touched(services=frozenset(_moved(now, before)), ranges=True)


def _moved(now: Snapshot, before: tuple[Prefix, ...]) -> set[ServiceKey]:
    """The Services whose cluster IPs came to lie in a service range, or no longer do."""
    after = now.service_ranges
    if after == before:
        return set()
    return {
        name
        for name, service in now.services.items()
        if any(_within(address, before) != _within(address, after) for address in service.cluster_ips)
    }


def _within(address: Address, ranges: tuple[Prefix, ...]) -> bool:
    return any(address in prefix for prefix in ranges)


def _put_service(now: Snapshot, key: ServiceKey, service: Service | None) -> tuple[Snapshot, Touched]:
    before = now.services.get(key)
    old = claims_of(before, now.node) if before is not None else NO_CLAIMS
    new = claims_of(service, now.node) if service is not None else NO_CLAIMS
    affinities = now.affinities
    for it, holds in ((before, False), (service, True)):
        if it is not None and it.affinity:
            rest = affinities.get(it.affinity, frozenset()) - {key}
            affinities = _set(affinities, it.affinity, rest | {key} if holds else rest or None)
    now = replace(now, services=_set(now.services, key, service), affinities=affinities)
    now, touched = _claim(now, key, old, new)
    return now, Touched(services=frozenset(touched))


def _claim(
    now: Snapshot, key: ServiceKey, old: frozenset[Claim], new: frozenset[Claim]
) -> tuple[Snapshot, set[ServiceKey]]:
    """The index of claims after a Service gave up the old and took the new; and all whom that concerns."""
    claims = now.claims
    touched = {key}
    for claim in old | new:
        rivals = claims.get(claim, frozenset())
        touched |= rivals
        mine = rivals | {key} if claim in new else rivals - {key}
        claims = _set(claims, claim, mine or None)
    return replace(now, claims=claims), touched


def _put_slice(now: Snapshot, key: SliceKey, part: BackendSlice | None) -> tuple[Snapshot, Touched]:
    before = now.slices.get(key)
    slices_of = now.slices_of
    touched: set[ServiceKey] = set()
    if before is not None:
        touched.add(before.service)
        slices_of = _set(slices_of, before.service, (slices_of[before.service] - {key}) or None)
    if part is not None:
        touched.add(part.service)
        slices_of = slices_of.set(part.service, slices_of.get(part.service, frozenset()) | {key})
    return (
        replace(now, slices=_set(now.slices, key, part), slices_of=slices_of),
        Touched(services=frozenset(touched)),
    )


# --- what the network holds --------------------------------------------------------------------


def _report(now: Snapshot, driver: str, outcomes: Iterable[tuple[Any, Outcome]]) -> Snapshot:
    known = now.programmed.get(driver, Map()).mutate()
    for key, outcome in outcomes:
        if outcome.error is not None:
            known[key] = UNKNOWN
        elif outcome.value is not None:
            known[key] = outcome.value
        elif key in known:
            del known[key]
    return replace(now, programmed=now.programmed.set(driver, known.finish()))


def _set(map_: Map[Any, Any], key: Any, value: Any) -> Map[Any, Any]:
    """None: without the key."""
    if value is not None:
        return map_.set(key, value)
    return map_.delete(key) if key in map_ else map_
