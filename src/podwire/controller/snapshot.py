"""The fold: an event makes the next snapshot, allocation included, and says which objects it touched. Pure.

Invariants: `fold` never looks at the network. Every index is kept by the one function that changes what it indexes.
Deciding for the touched is as good as deciding for all. The cluster's objects have a room of their own (`objects.py`).
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar

from immutables import Map
from msgspec.structs import replace

from podwire.controller import events as e
from podwire.controller import objects
from podwire.controller.difference import Outcome
from podwire.ipam import blocks
from podwire.ipam.allocation import Given, Obstacle, Wish
from podwire.ipam.own import own_addresses
from podwire.model.addresses import Address, family_of, host_prefix, show_address
from podwire.model.network import EgressKey, Frontend, HostPortKey, IngressKey, LinkKey, RouteKey, Space, listed
from podwire.model.objects import (
    Attachment,
    AttachmentKey,
    Bandwidth,
    HostPort,
    NodeKey,
    PodBlockKey,
    PodKey,
    ServiceKey,
)
from podwire.model.snapshot import EVERYTHING, UNKNOWN, Snapshot, Touched
from podwire.nodes.own import remembered
from podwire.pods import hostports
from podwire.pods.names import interface_name, link_of, mac_of, shaper_of
from podwire.pods.readiness import granted, taken_over
from podwire.pods.wiring import space_of

Home = TypeVar("Home")
NOTHING = Touched()
NOBODY: frozenset[AttachmentKey] = frozenset()


def fold(now: Snapshot, event: e.Event) -> tuple[Snapshot, Touched | None]:
    """Raises Refused where a request can't be granted; the snapshot is then as it was."""
    match event:
        case e.AddPod(key):
            after = _add_pod(now, event)
            mates = (_with_housemates(it, frozenset((key,))).attachments for it in (now, after))
            rest = (hostports.sharing(it, key) for it in (now, after))
            return after, Touched(attachments=frozenset().union(*mates, *rest), nodes=_moved(now, after, (key,)))
        case e.PodWired(key):
            confirmed = replace(now.attachments[key], confirmed=True)
            return _hold(now, key, confirmed), Touched(rows=frozenset((key,)))
        case e.DeletePod(key):
            return _released(now, frozenset((key,)))
        case e.SandboxGone(keys) | e.SandboxReplaced(keys):
            return _released(now, keys)
        case e.CollectPods(network, valid, serial):
            return _released(now, unclaimed(now, network, valid, serial))
        case e.SandboxUnseen(keys):
            touched = _with_housemates(now, keys)
            for key in sorted(key for key in keys if key in now.attachments):
                now = _hold(now, key, replace(now.attachments[key], netns="", device=0, inode=0))
            return now, touched
        case e.KubeStateChange(changes):
            return objects.changed(now, changes)
        case e.Resync(_, told, whole, drivers):
            now = replace(now, waiting=Map({k: v for k, v in now.waiting.items() if k not in (drivers or now.waiting)}))
            if told is not None:
                listed = told if whole else {**remembered(now), **told}
                now = replace(objects.listed(now, listed.items()), whole=whole)
            return now, EVERYTHING
        case e.Disturbed("linux", keys) if keys is not None:
            return now, _held_by(now, keys)
        case e.Disturbed():
            return now, EVERYTHING
        case e.Restored(attachments, cursors, known):
            now = replace(now, serial=max(now.serial, event.serial))
            for key, attachment in attachments.items():
                if attachment.confirmed:
                    now = _hold(now, key, attachment)
            now, _ = objects.changed(now, known.items())
            return replace(now, cursors=Map(cursors)), NOTHING
        case e.NodeAddressesChanged(addresses, networks, mtus):
            return objects.addressed(now, addresses, networks, mtus)
        case e.NodesHeard(dead, unready):
            return replace(now, announcing=replace(now.announcing, dead=dead, unready=unready)), NOTHING
        case e.RoomMade(driver):
            touched = _waiting(now, driver)
            return replace(now, waiting=now.waiting.delete(driver)) if driver in now.waiting else now, touched
        case e.Reported(driver, outcomes):
            return _report(now, driver, outcomes), NOTHING
        case e.FlowsReconciled() | e.Shutdown():
            return now, NOTHING
    raise TypeError(event)


# --- attachments -------------------------------------------------------------------------------


def _add_pod(now: Snapshot, event: e.AddPod) -> Snapshot:
    key = event.key
    for other in sorted(now.housed.get(Space(event.netns, event.device, event.inode), NOBODY) - {key}):
        if other.interface == key.interface:
            pod = now.attachments[other].pod
            raise e.Refused(
                e.Refusal.OCCUPIED,
                f"{event.netns} has an interface of podwire already: {other.interface} of sandbox {other.sandbox}"
                f" (pod {pod.namespace}/{pod.name})",
            )
    taken = hostports.rivals(now, key, event.pod, event.uid, event.host_ports)
    if taken:
        raise e.Refused(e.Refusal.PORT_TAKEN, _taken(now, taken))
    before = now.attachments.get(event.key)
    if before is not None:  # a repeated ADD keeps its addresses and its confirmation
        _refuse_unfit(event.host_ports, before.addresses)
        _refuse_others(event, before)
        there = {"netns": event.netns, "device": event.device, "inode": event.inode, "boot": now.local.boot}
        there |= {"host_ports": event.host_ports, "bandwidth": event.bandwidth}
        there["shaper"] = _shaper(before.link or link_of(key, before), event.bandwidth, now.ledger, before.shaper)
        known = {name: value for name in ("uid", "network") if (value := getattr(event, name))}
        return _hold(now, event.key, replace(before, pod=event.pod, **there, **known))
    link = interface_name(key)
    if (namesake := now.links.get(link)) is not None:  # one that an older version has named
        raise e.Refused(
            e.Refusal.NAMED,
            f"interface {key.interface} of sandbox {key.sandbox} would have the link of interface "
            f"{namesake.interface} of sandbox {namesake.sandbox}: {link}",
        )
    given = _given(now, event)
    _refuse_unfit(event.host_ports, given.addresses)
    index = blocks.next_index(link, now.ledger)
    shaper = _shaper(link, event.bandwidth, now.ledger.set(index, key))
    attachment = Attachment(
        event.pod,
        event.netns,
        given.addresses,
        index,
        device=event.device,
        inode=event.inode,
        uid=event.uid,
        network=event.network,
        serial=now.serial + 1,
        link=link,
        boot=now.local.boot,
        host_ports=event.host_ports,
        bandwidth=event.bandwidth,
        shaper=shaper,
        pool=event.pool,
        mac=event.mac,
        delegated=event.delegated is not None,
        routes=event.routes,
    )
    return _hold(replace(now, cursors=given.cursors), event.key, attachment)


def _given(now: Snapshot, event: e.AddPod) -> Given:
    """Raises Refused."""
    wish = Wish(event.pool, event.fixed, event.requested)
    given = granted(now, wish) if event.delegated is None else taken_over(now, event.delegated)
    if isinstance(given, Obstacle):
        refusal = e.Refusal.EXHAUSTED if given.exhausted else e.Refusal.NOT_READY
        raise e.Refused(e.Refusal.ADDRESS_UNFIT if given.wrong else refusal, given.text)
    return given


def _refuse_others(event: e.AddPod, before: Attachment) -> None:
    """Raises Refused. An attachment keeps its addresses and its MAC address until its DEL."""
    for address in event.requested:
        if address not in before.addresses:
            has = ", ".join(map(show_address, before.addresses))
            text = f"{show_address(address)} can't be had any more: until its DEL the interface keeps {has}"
            raise e.Refused(e.Refusal.ADDRESS_UNFIT, text)
    has_mac = mac_of(event.key, before)
    if event.mac not in (b"", has_mac):
        text = f"{event.mac.hex(':')} can't be had any more: until its DEL the interface keeps {has_mac.hex(':')}"
        raise e.Refused(e.Refusal.MAC_UNFIT, text)


def _shaper(link: str, asked: Bandwidth, ledger: Mapping[Address | int, AttachmentKey], has: int = 0) -> int:
    """The index of the device for what the pod sends; 0: it needs none."""
    if asked.egress is None:
        return 0
    return has or blocks.next_index(shaper_of(link), ledger)


def _taken(now: Snapshot, taken: Mapping[Frontend, AttachmentKey]) -> str:
    found = []
    for key in sorted(set(taken.values())):
        pod = now.attachments[key].pod
        theirs = listed(str(HostPortKey(at)) for at in sorted(taken) if taken[at] == key)
        found.append(f"pod {pod.namespace}/{pod.name} (sandbox {key.sandbox}) has {theirs}")
    return "; ".join(found)


def _refuse_unfit(asked: Iterable[HostPort], addresses: Iterable[Address]) -> None:
    """Raises Refused. A port at all addresses of both families is content with those that the pod has."""
    families = {family_of(address) for address in addresses}
    for it in asked:
        if it.address and family_of(it.address) not in families:
            at = HostPortKey(Frontend(it.address, it.protocol, it.port))
            raise e.Refused(e.Refusal.PORT_UNFIT, f"{at}: the pod has no {family_of(it.address)} address")


def unclaimed(now: Snapshot, network: str, valid: frozenset[AttachmentKey], serial: int) -> frozenset[AttachmentKey]:
    """Whom a runtime's list of valid attachments leaves out. Of which network an older version's rows are, and those
    that were taken from the kernel, nobody knows: they are left alone."""
    mine = (key for key, it in now.attachments.items() if it.network == network and it.serial <= serial)
    return frozenset(mine) - valid


def _hold(now: Snapshot, key: AttachmentKey, attachment: Attachment) -> Snapshot:
    ledger, before = now.ledger, now.attachments.get(key)
    if before is not None and before.shaper and before.shaper != attachment.shaper:
        ledger = ledger.delete(before.shaper)
    for item in _items(attachment):
        ledger = ledger.set(item, key)
    return replace(
        now,
        attachments=now.attachments.set(key, attachment),
        ledger=ledger,
        housed=_house(now.housed, key, before, attachment),
        links=now.links.set(link_of(key, attachment), key),
        attached=_attached(now.attached, key, before, attachment),
        host_ports=_listed(now, key, before, attachment),
        serial=max(now.serial, attachment.serial),
    )


def _listed(
    now: Snapshot, key: AttachmentKey, before: Attachment | None, after: Attachment | None
) -> Map[Frontend, frozenset[AttachmentKey]]:
    found = now.host_ports
    for at, keys in hostports.claimed(found, key, before, after).items():
        found = found.set(at, keys) if keys else found.delete(at)
    return found


def _house(
    housed: Map[str, frozenset[AttachmentKey]], key: AttachmentKey, before: Attachment | None, after: Attachment | None
) -> Map[str, frozenset[AttachmentKey]]:
    old, new = (frozenset() if it is None else {space_of(it), it.netns} - {""} for it in (before, after))
    return _moved_to(housed, key, old, new)


def _attached(
    attached: Map[PodKey, frozenset[AttachmentKey]],
    key: AttachmentKey,
    before: Attachment | None,
    after: Attachment | None,
) -> Map[PodKey, frozenset[AttachmentKey]]:
    old, new = (frozenset() if it is None else {it.pod} for it in (before, after))
    return _moved_to(attached, key, old, new)


def _moved_to(
    index: Map[Home, frozenset[AttachmentKey]], key: AttachmentKey, old: Set[Home], new: Set[Home]
) -> Map[Home, frozenset[AttachmentKey]]:
    """Who was under `old` is under `new`; what has nobody is not in the index."""
    for home in old - new:
        left = index[home] - {key}
        index = index.set(home, left) if left else index.delete(home)
    for home in new - old:
        index = index.set(home, index.get(home, NOBODY) | {key})
    return index


def _with_housemates(now: Snapshot, keys: frozenset[AttachmentKey]) -> Touched:
    """Who shares a network namespace shares what is in it once: the routes of the first, and the loopback."""
    for key in keys:
        if key in now.attachments:
            keys |= now.housed.get(space_of(now.attachments[key]), NOBODY)
    return Touched(attachments=keys)


def _held_by(now: Snapshot, keys: Iterable[Any]) -> Touched:
    """The objects to which these keys of links, addresses, routes and neighbours belong; what is no pod's is of the
    nodes."""
    of: dict[Any, set[AttachmentKey]] = {}
    for attachment, held in now.attachments.items():
        for it in (link_of(attachment, held), space_of(held), held.index, *held.addresses):
            of.setdefault(it, set()).add(attachment)
    found: set[AttachmentKey] = set()
    nodes = False
    for key in keys:
        match key:
            case LinkKey(name) | IngressKey(name) | EgressKey(name):
                owners = of.get(name, set())
            case RouteKey("", destination):
                owners = of.get(destination.first, set())
            case _:
                owners = of.get(getattr(key, "space", "") or getattr(key, "index", 0), set())
        found |= owners
        nodes = nodes or not owners
    return Touched(attachments=frozenset(found), nodes=frozenset((now.local.key,)) if nodes else frozenset())


def _released(now: Snapshot, keys: frozenset[AttachmentKey]) -> tuple[Snapshot, Touched]:
    """What a pod had in place of the node, since the block came to it later, is the node's again."""
    before, touched = now, _with_housemates(now, keys)
    heirs = frozenset(other for key in keys for other in hostports.sharing(now, key))
    touched = replace(touched, attachments=touched.attachments | heirs)
    for key in sorted(keys):
        now = _release(now, key)
    return now, replace(touched, nodes=_moved(now, before, keys))


def _moved(less: Snapshot, more: Snapshot, keys: Iterable[AttachmentKey]) -> frozenset[NodeKey]:
    """This node, where what these have in one of two snapshots, but not in the other, is the node's own else, or leads
    to another node. Of a block the node's own is the first that is free: it is another one only where a pod has it."""
    held = (it for key in keys for one in (less, more) if (it := one.attachments.get(key)) is not None)
    addresses = {address for it in held for address in it.addresses}
    singles = (PodBlockKey(host_prefix(address)) for address in addresses)
    if not addresses.isdisjoint(own_addresses(less)) or (less.blocks and any(it in less.blocks for it in singles)):
        return frozenset((less.local.key,))
    return frozenset()


def _release(now: Snapshot, key: AttachmentKey) -> Snapshot:
    held = now.attachments.get(key)
    if held is None:
        return now
    ledger, link = now.ledger, link_of(key, held)
    for item in _items(held):
        if ledger.get(item) == key:
            ledger = ledger.delete(item)
    return replace(
        now,
        attachments=now.attachments.delete(key),
        ledger=ledger,
        housed=_house(now.housed, key, held, None),
        links=now.links.delete(link) if now.links.get(link) == key else now.links,
        attached=_attached(now.attached, key, held, None),
        host_ports=_listed(now, key, held, None),
    )


def _items(held: Attachment) -> tuple[Address | int, ...]:
    """What an attachment has in the ledger."""
    return (*held.addresses, held.index, *((held.shaper,) if held.shaper else ()))


# --- what the network holds --------------------------------------------------------------------


def _waiting(now: Snapshot, driver: str) -> Touched:
    """The objects to which the keys belong that found no room."""
    services: set[ServiceKey] = set()
    attachments: set[AttachmentKey] = set()
    for key in now.waiting.get(driver, ()):
        frontend = key if isinstance(key, Frontend) else getattr(key, "frontend", None)
        address: Address | None = getattr(key, "address", None)
        for claim in (frontend, address):
            services.update(now.claims.get(claim, ()) if claim is not None else ())
        if isinstance(key, HostPortKey):
            attachments |= now.host_ports.get(key.frontend, NOBODY)
        if address is not None and address in now.ledger:
            attachments.add(now.ledger[address])
    return Touched(services=frozenset(services), attachments=frozenset(attachments))


def _report(now: Snapshot, driver: str, outcomes: Mapping[Any, Outcome]) -> Snapshot:
    known = now.programmed.get(driver, Map()).mutate()
    waited = now.waiting.get(driver, frozenset())
    waits = (waited - outcomes.keys() if waited else waited) | {key for key, it in outcomes.items() if it.full}
    for key, outcome in outcomes.items():
        if outcome.error is not None and not outcome.full:
            known[key] = UNKNOWN
        elif outcome.value is not None:
            known[key] = outcome.value
        elif key in known:
            del known[key]
    if waits != waited:
        now = replace(now, waiting=now.waiting.set(driver, waits) if waits else now.waiting.delete(driver))
    return replace(now, programmed=now.programmed.set(driver, known.finish()))
