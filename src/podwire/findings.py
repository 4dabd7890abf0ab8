"""What the cluster's objects say and the network does not do, and why: for whoever looks after the node. Pure.

Invariants: sorted, each line once and of one object. What is here is decided elsewhere; nothing is only told.
"""

from collections.abc import Iterator

from immutables import Map

from podwire.dataplane.nftables.layout import MOST_BACKENDS
from podwire.ipam.own import own_addresses
from podwire.ipam.pools import is_single, why_idle
from podwire.ipam.usage import shortages, strays
from podwire.loadbalancer.checks import Seen, problems
from podwire.loadbalancer.others import NOBODYS, taken
from podwire.model.addresses import Address, Family, Prefix, overlap, show_address
from podwire.model.network import Frontend, HostPortKey, InternalKey, Slots, listed
from podwire.model.objects import NodeKey, PodBlockKey, ServiceKey
from podwire.model.snapshot import Snapshot
from podwire.nodes.routes import ways
from podwire.services.frontends import owner, serving
from podwire.services.room import lack


def findings(now: Snapshot) -> tuple[str, ...]:
    return tuple(
        sorted(
            {
                *now.unfit_ranges,
                *_neighbours(now),
                *_mtu(now),
                *_claims(now),
                *_strangers(now),
                *_out_of_reach(now),
                *_services(now),
                *_cut(now),
                *_left_out(now),
                *_refused(now),
                *_shadowed(now),
                *_pools(now),
                *_configured(now),
                *map(str, shortages(now)),
            }
        )
    )


def _neighbours(now: Snapshot) -> Iterator[str]:
    """What other nodes have of this node's, and which of their blocks can't be reached."""
    for address in now.node.addresses:
        for key in now.homes.addresses.get(address, frozenset()) - {now.local.key}:
            yield f"{key}: it has the address {show_address(address)} as this node has: they can't reach each other"
    here = now.home(now.local.key)
    for key, block, way in ways(now):
        home = now.home(key)
        if isinstance(way, str) and home.addresses:  # a node that has none yet is only just coming
            yield f"{key}: there is no route to its {home.called(block)}: {way}"
        for mine in here.blocks if not isinstance(way, str) else ():
            if overlap(mine, block) and not (is_single(mine) or is_single(block)):
                it = home.called(block)
                yield f"{key}: its {it} overlaps this node's {mine}: two pods may have one address"


def _mtu(now: Snapshot) -> Iterator[str]:
    """What somebody has set, and VXLAN leaves no room for."""
    most = min(map(now.tunnel_mtu, now.underlays), default=now.local.mtu)
    if now.local.fixed_mtu and now.local.mtu > most > 0:
        yield (
            f"mtu {now.local.mtu} is more than the {most} that VXLAN leaves of this node's {now.network_mtu()}: "
            f"larger packets to other nodes are answered by ICMP; set at most {most}, or no mtu"
        )


def _claims(now: Snapshot) -> Iterator[str]:
    """Addresses of other nodes where only Services or pods can be: nothing gives way to them, so nobody here reaches
    the node by them."""
    for key, node in now.nodes.items():
        for address in node.addresses if key != now.local.key else ():
            why = _occupied(now, key, address)
            if why:
                yield f"{key}: its address {show_address(address)} is not heeded: it {why}"


def _occupied(now: Snapshot, key: NodeKey, address: Address) -> str | None:
    """A node's own block around its own address is told with the way to it."""
    ranges = sorted(prefix for prefix in now.service_ranges if address in prefix)
    if ranges:
        return f"lies in the service range {ranges[0]}"
    block = now.homes.block_of(address)
    owners = now.homes.owners(block) if block is not None else frozenset[NodeKey]()
    if block is not None and owners and key not in owners:
        return f"lies in the {called(now, block)} of {min(owners)}"
    services = [name for name in now.claims.get(address, ()) if address in now.services[name].cluster_ips]
    return f"is the cluster IP of {min(services)}" if services else None


def _strangers(now: Snapshot) -> Iterator[str]:
    """Pods that were here before their address was another node's to give."""
    for attachment in now.attachments.values():
        for address in attachment.addresses if not attachment.delegated else ():
            block = now.homes.block_of(address)
            owners = now.homes.owners(block) if block is not None else frozenset[NodeKey]()
            if block is not None and owners and now.local.key not in owners:
                whose = f"{called(now, block)} of {min(owners)}"
                yield f"{attachment.pod}: its address {show_address(address)} is in the {whose}: start it anew"


def _out_of_reach(now: Snapshot) -> Iterator[str]:
    """What another IPAM plugin has given beside this node's ranges: that is nobody's to refuse, and nobody's way."""
    found = sorted(
        f"{it.pod} {show_address(address)}"
        for it in now.attachments.values()
        for address in (it.addresses if it.delegated else ())
        if (block := now.homes.block_of(address)) is None or now.local.key not in now.homes.owners(block)
    )
    if found:
        yield f"other nodes have no way to what an IPAM plugin has given beside this node's ranges: {listed(found)}"


def _cut(now: Snapshot) -> Iterator[str]:
    """Frontends with more backends than slots: only those of the largest class can be."""
    for key, held in now.programmed.get("nftables", Map()).items():
        frontend = key.frontend if isinstance(key, InternalKey) else key
        if not isinstance(held, Slots) or MOST_BACKENDS not in (held.verdict, held.drawn) or frontend not in now.claims:
            continue
        service = owner(now, frontend)
        wanted = serving(now, service).get(key)
        if wanted is not None and len(wanted.backends) > MOST_BACKENDS:
            cut = f"{len(wanted.backends)} backends, of which {MOST_BACKENDS} are in force: no frontend can have more"
            yield f"{service}: {frontend} has {cut}"


def _left_out(now: Snapshot) -> Iterator[str]:
    for key, families in now.room.left_out.items():
        for family in families:
            yield f"{key}: {no_room(now, key, family)}"


def no_room(now: Snapshot, key: ServiceKey, family: Family) -> str:
    """Why a Service is not served in a family for which it was left out."""
    short = lack(now, key, family)
    return f"there is no room for it in {family}: nftables holds at most {short.most} {short.unit}, the oldest first"


def _refused(now: Snapshot) -> Iterator[str]:
    """What the kernel has refused, though it should have had room: somebody else's elements take it up."""
    for key in now.waiting.get("nftables", ()):
        yield f"{key}: there is no room for it in nftables: its map is full"


def _shadowed(now: Snapshot) -> Iterator[str]:
    """Host ports where a Service answers instead."""
    own = {*now.node.addresses, *now.local.addresses, *own_addresses(now)}
    for at, keys in now.host_ports.items():
        here = (it for it in own if len(it) == len(at.address)) if not any(at.address) else (at.address,)
        for place in (Frontend(address, at.protocol, at.port) for address in here):
            if place in now.claims:
                pod = min(now.attachments[key].pod for key in keys)
                instead = f"at {show_address(place.address)} {owner(now, place)} answers instead"
                yield f"{pod}: {HostPortKey(at)}: {instead}"


def _pools(now: Snapshot) -> Iterator[str]:
    """What of this node's blocks is not given, and who lives there all the same."""
    for pool, reason in now.unfit_pools.items():
        yield f"{pool}: it is not used: {reason}"
    for block in now.blocks_of.get(now.local.key, ()):
        if (why := why_idle(now, block)) is not None:
            pods = {str(now.attachments[key].pod) for at, key in now.ledger.items() if _within(at, block)}
            keep = f"; its {len(pods)} pods keep what they have" if pods else ""
            yield f"{PodBlockKey(block)}: no address is given of it: {why}{keep}"
    for address in strays(now):
        key = now.ledger.get(address)
        if key is not None and now.homes.block_of(address) is None:
            pod = now.attachments[key].pod
            yield f"{pod}: its address {show_address(address)} is in a block that no PodBlock names"


def _within(at: Address | int, block: Prefix) -> bool:
    return isinstance(at, bytes) and at in block


def _services(now: Snapshot) -> Iterator[str]:
    for key, addresses in now.misplaced.items():
        for address in addresses:
            yield f"{key}: {misplaced(now, address)}"


def misplaced(now: Snapshot, address: Address) -> str:
    """Why no Service can have an address."""
    if address in now.node.addresses:
        return f"{show_address(address)} is not used: it is an address of {now.local.key}"
    block = now.homes.block_of(address)
    if block is None:  # as it was when this was asked
        return f"{show_address(address)} is not used"
    return f"{show_address(address)} is not used: it is in the {called(now, block)} of {min(now.homes.owners(block))}"


def called(now: Snapshot, block: Prefix) -> str:
    """A block that some node has, as people know it."""
    return now.home(min(now.homes.owners(block))).called(block)


_configured_before: tuple[tuple[object, ...], tuple[str, ...]] = (), ()
"""The objects that were looked at last, and the answer: for thousands of nodes it takes 80 ms, and is asked often."""


def _configured(now: Snapshot) -> tuple[str, ...]:
    """Of load balancers' pools, peers and advertisements what does not fit, as the controller says it of the objects.
    What is not known yet is missing nowhere."""
    global _configured_before
    it = now.announcing
    if not now.whole or not (it.pools or it.peers or it.bgp or it.l2):
        return ()
    of_cluster = now.nodes, now.pools, now.blocks, now.service_cidrs, now.services
    asked: tuple[object, ...] = it.pools, it.peers, it.bgp, it.l2, it.secrets, *of_cluster
    before, told = _configured_before
    if len(before) != len(asked) or any(one is not other for one, other in zip(before, asked, strict=True)):
        told = tuple(_misconfigured(now))
        _configured_before = asked, told
    return told


def _misconfigured(now: Snapshot) -> Iterator[str]:
    it = now.announcing
    cidrs = [cidr for pool in now.pools.values() for cidr in pool.cidrs]
    alone = {key: block for key, block in now.blocks.items() if not any(key.cidr.first in cidr for cidr in cidrs)}
    secrets = {key.name: frozenset(name for name, _ in secret.items) for key, secret in it.secrets.items()}
    balanced = {key: service.labels for key, service in now.services.items() if service.balancer_ips}
    whose = taken(now.nodes, now.pools, alone, now.service_cidrs) if it.pools else NOBODYS
    for each in problems(Seen(it.pools, it.peers, it.bgp, it.l2, now.nodes, whose, secrets, balanced)):
        yield f"{each.object}: {each.field}: {each.message}" if each.field else f"{each.object}: {each.message}"
