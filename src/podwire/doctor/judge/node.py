"""The node's own network: its way out, the MTU, ranges that overlap, the state directory. Pure."""

from collections.abc import Iterator

from podwire.doctor.facts import Agent, Cluster, Facts, LinkFact
from podwire.doctor.findings import Judgement, Unseen, note, ok, unseen, warning, wrong
from podwire.model.addresses import IPV6, Prefix, show_address
from podwire.model.network import TUNNELS
from podwire.pods.names import LINK_PREFIX

LEAST_IPV6_MTU = 1280  # RFC 8200, section 5
LEAST_FREE = 16 << 20
"""Bytes that the state directory's disk should have left."""


def uplink(facts: Facts) -> Iterator[Judgement]:
    route = facts.network.default_route()
    if route is not None:
        yield ok(f"{route.destination.family} default route by {route.link}")
    elif facts.setup.mtu is None and facts.setup.config and not facts.setup.error and _out(facts) is None:
        yield wrong(
            "there is no default route, no interface has the node's address, and the configuration has no mtu: no pod "
            "can be attached",
            f"mtu = 1500    # in {facts.setup.config}, or give the node its address or a default route",
        )
    else:
        yield note("there is no default route: only what the node's own networks reach can be reached")


def mtu(facts: Facts) -> Iterator[Judgement]:
    link = _out(facts)
    pods = facts.agent.status.mtu if isinstance(facts.agent, Agent) else facts.setup.mtu
    if link is None:
        yield note("which interface leads to the other nodes is not known")
        return
    seen = f"{link.name} has an MTU of {link.mtu}"
    if link.mtu < LEAST_IPV6_MTU and IPV6 in facts.families:
        yield wrong(f"{seen}: IPv6 needs {LEAST_IPV6_MTU}", f"ip link set {link.name} mtu 1500")
    elif pods and pods > link.mtu:
        yield warning(
            f"{seen}, and pods have {pods}: large packets to other nodes are dropped or cut",
            f"mtu = {link.mtu}    # in {facts.setup.config or 'the configuration'}; then restart the agent",
        )
    elif pods and any(it.name in TUNNELS.values() and it.mtu >= pods for it in facts.network.links):
        yield ok(f"{seen}; pods have {pods}: the rest is for VXLAN")
    elif pods and pods < link.mtu and facts.setup.mtu is None and isinstance(facts.agent, Agent):
        yield note(f"{seen}, and pods have {pods}: the least of the interfaces with the node's addresses")
    else:
        yield ok(f"{seen}; pods have {pods or 'the same'}")


def vxlan_port(facts: Facts) -> Iterator[Judgement]:
    vni, port = facts.setup.vxlan
    others = [it for it in facts.network.links if it.vxlan is not None and it.name not in TUNNELS.values()]
    for link in others:
        if link.vxlan == (vni, port):
            yield wrong(
                f"interface {link.name} has UDP port {port} and VNI {vni}, so Podwire's own can't be made",
                f"ip link del {link.name}    # or another vxlan_vni in {facts.setup.config or 'the configuration'} "
                "of all nodes",
            )
        elif link.vxlan is not None and link.vxlan[1] == port:
            yield note(f"interface {link.name} has UDP port {port} too, with another VNI: both work")
    if all(it.vxlan is None or it.vxlan[1] != port for it in others):
        yield ok(f"no other VXLAN interface has UDP port {port}")


def _out(facts: Facts) -> LinkFact | None:
    """The interface with an address of the node, else the one with the default route."""
    cluster = facts.cluster
    known = cluster.nodes.get(facts.setup.node) if isinstance(cluster, Cluster) else None
    for address in known.addresses if known is not None else ():
        for held in facts.network.addresses:
            if held.address == address:
                return facts.network.link(held.link)
    route = facts.network.default_route()
    return facts.network.link(route.link) if route is not None else None


# --- overlaps ----------------------------------------------------------------------------------


def overlaps(facts: Facts) -> Iterator[Judgement]:
    cluster = facts.cluster
    if isinstance(cluster, Unseen):
        yield unseen(cluster)
        return
    own = cluster.nodes.get(facts.setup.node)
    blocks = own.blocks if own is not None else ()
    found = [
        *_with_addresses(facts, cluster, blocks),
        *_with_services(cluster),
        *_with_nodes(facts, cluster, own.pod_cidrs if own is not None else ()),
        *_of_pools(cluster),
        *_with_routes(facts, cluster),
    ]
    pools = f", {len(cluster.pools)} pools" if cluster.pools else ""
    counts = f"{len(cluster.nodes)} nodes' pod ranges{pools} and {len(cluster.service_cidrs)} Service ranges"
    yield from found or [ok(counts)]


_RENUMBER = "give the cluster other ranges (kubeadm: --pod-network-cidr, --service-cidr), or this network others"


def _with_addresses(facts: Facts, cluster: Cluster, blocks: tuple[Prefix, ...]) -> Iterator[Judgement]:
    for block in (*blocks, *cluster.service_cidrs):
        for held in facts.network.addresses:
            if held.address in block and not held.ours and not held.link.startswith(LINK_PREFIX) and held.link != "lo":
                yield wrong(
                    f"{held.link} has the address {show_address(held.address)}, which lies in {block}", _RENUMBER
                )
        for name, node in sorted(cluster.nodes.items()):
            for address in node.addresses:
                if address in block and not any(held.address == address for held in facts.network.addresses):
                    yield wrong(
                        f"node {name} has the address {show_address(address)}, which lies in {block}", _RENUMBER
                    )


def _with_services(cluster: Cluster) -> Iterator[Judgement]:
    for name, node in sorted(cluster.nodes.items()):
        for block in node.pod_cidrs:
            for range_ in cluster.service_cidrs:
                if _meet(block, range_):
                    yield wrong(f"the pod range {block} of node {name} overlaps the Service range {range_}", _RENUMBER)


def _with_nodes(facts: Facts, cluster: Cluster, blocks: tuple[Prefix, ...]) -> Iterator[Judgement]:
    for name, node in sorted(cluster.nodes.items()):
        for other in node.pod_cidrs if name != facts.setup.node else ():
            for block in blocks:
                if _meet(block, other):
                    yield wrong(
                        f"the pod range {block} of this node and {other} of node {name} overlap",
                        f"kubectl delete node {name}    # and let it register anew, for another range",
                    )


def _of_pools(cluster: Cluster) -> Iterator[Judgement]:
    """A pool that lies where somebody else does is not used."""
    others = {range_: f"the Service range {range_}" for range_ in cluster.service_cidrs}
    for name, node in sorted(cluster.nodes.items()):
        others |= {block: f"the pod range {block} of node {name}" for block in node.pod_cidrs}
        for address in node.addresses:
            others[Prefix(address, len(address) * 8)] = f"node {name}'s address {show_address(address)}"
    for name, cidrs in sorted(cluster.pools.items()):
        for cidr in cidrs:
            met = [words for range_, words in sorted(others.items()) if _meet(cidr, range_)]
            if met:
                fix = f"kubectl edit podpool {name}    # with other ranges"
                yield wrong(f"the range {cidr} of pool {name} overlaps {met[0]}: the pool is not used", fix)
        others |= {cidr: f"{cidr} of pool {name}" for cidr in cidrs}


def _with_routes(facts: Facts, cluster: Cluster) -> Iterator[Judgement]:
    """Routes of others within the cluster's ranges, or around them (but for the default route)."""
    ranges = {
        block: f"pod range {block} of node {name}" for name, it in cluster.nodes.items() for block in it.pod_cidrs
    }
    ranges |= {range_: f"Service range {range_}" for range_ in cluster.service_cidrs}
    ranges |= {cidr: f"range {cidr} of pool {name}" for name, cidrs in cluster.pools.items() for cidr in cidrs}
    # The kernel makes a route of its own to each IPv6 address.
    own = {Prefix(held.address, len(held.address) * 8) for held in facts.network.addresses if held.ours}
    for route in facts.network.routes:
        if (
            route.ours
            or route.destination in own
            or route.destination.length == 0
            or route.link.startswith(LINK_PREFIX)
        ):
            continue
        met = {range_: words for range_, words in sorted(ranges.items()) if _meet(route.destination, range_)}
        within = [words for range_, words in met.items() if route.destination.length >= range_.length]
        if within:
            yield wrong(
                f"a route that is not Podwire's, {route.destination} by {route.link}, takes from the {within[0]}",
                f"ip route del {route.destination} dev {route.link}    # and stop what made it",
            )
        elif met:
            first = next(iter(met.values())) + (f" and {len(met) - 1} more ranges" if len(met) > 1 else "")
            yield warning(
                f"the node's network {route.destination} by {route.link} contains the {first}: "
                "hosts of it with such addresses can't be reached",
                _RENUMBER,
            )


def _meet(one: Prefix, other: Prefix) -> bool:
    return one.first in other or other.first in one


# --- the state directory -----------------------------------------------------------------------


def state_directory(facts: Facts) -> Iterator[Judgement]:
    disk, path = facts.disk, facts.setup.state_dir
    if isinstance(disk, Unseen):
        yield unseen(disk)
    elif not disk.writable:
        yield wrong(
            f"{path} is on a file system that can't be written", f"mount -o remount,rw $(findmnt -no TARGET -T {path})"
        )
    elif disk.free < LEAST_FREE:
        yield wrong(f"{path}: {disk.free >> 20} MB are left on its disk: no pod can be recorded", f"df -h {path}")
    elif disk.there:
        yield ok(f"{path}: {disk.free >> 20} MB left")
    else:
        yield note(f"{path} is not there yet: the agent makes it")
