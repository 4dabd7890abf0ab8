"""The cluster's machines as network namespaces: nodes and a client outside on one link, pods behind the nodes.

Invariants: the link is a bridge in a namespace of its own, so nothing of the machine's own network is touched. What
carries pods and Services is not made here, but by a plane; `wire` and `carry` do the pods' part plainly, for planes
that know Services only. All namespaces are removed at the end.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from podwire.model.addresses import FAMILIES, IPV4, IPV6, Family
from tests.kernel.rig import MakeSpace, Space, spaces
from tests.packets.plan import (
    BALANCER_RANGE,
    EXTERNAL_RANGE,
    FABRIC,
    ONE,
    OUTSIDE,
    PROXY,
    SERVICE_RANGE,
    Node,
    Outside,
    Pod,
    Station,
    router,
)

_BESIDE = (OUTSIDE, PROXY)
_GATEWAY = {IPV4: "169.254.1.1", IPV6: "fe80::1"}
_NODE_MAC = "ee:ee:ee:ee:ee:ee"


class Topology:
    def __init__(self, make_space: MakeSpace) -> None:
        self._make_space = make_space
        self._spaces: dict[str, Space] = {}
        self._pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.fabric = make_space("fabric")
        # Without snooping: a new port would wait for the next query before it hears neighbour discovery.
        ip(
            self.fabric,
            "link set lo up",
            "link add br0 type bridge forward_delay 0 mcast_snooping 0",
            "link set br0 up",
            *(_address(f"{router(family)}/{FABRIC[family].length}", "br0") for family in FAMILIES),
        )
        _set(self.fabric, "net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1")
        for station in _BESIDE:
            self._plug_in(station)

    def space(self, station: Station) -> Space:
        return self._spaces[station.name]

    def add_node(self, node: Node) -> None:
        self._plug_in(node)
        self.nodes[node.name] = node
        space = self.space(node)
        # The kernel sends six ICMP errors to one client and then one a second, and fifty at once to all: not what is
        # asked here.
        _set(space, "net/ipv4/icmp_ratelimit=0", "net/ipv4/icmp_msgs_burst=10000", "net/ipv4/icmp_msgs_per_sec=10000")
        _set(space, "net/ipv6/icmp/ratelimit=0", "net/ipv4/conf/all/promote_secondaries=1")
        ip(space, *(f"route add default via {router(family)}" for family in FAMILIES))
        self._lead_to(node)

    def add_address(self, node: Node) -> None:
        """One more, where the node has moved."""
        ip(self.space(node), *_addresses(node))
        self.nodes[node.name] = node
        self._lead_to(node)

    def remove_address(self, node: Node) -> None:
        ip(self.space(node), *(f"address del {_on_fabric(node, family)} dev eth0" for family in FAMILIES))

    def remove_node(self, node: Node) -> None:
        for station in _BESIDE:
            ip(self.space(station), *(f"route del {node.block(family)}" for family in FAMILIES))
        ip(self.fabric, f"link del {node.name}")
        del self.nodes[node.name]

    def add_pod(self, pod: Pod) -> Space:
        """Its namespace, empty."""
        self._pods[pod.name] = pod
        self._spaces[pod.name] = self._make_space(pod.name)
        return self._spaces[pod.name]

    # --- pods without an agent -----------------------------------------------------------------

    def wire(self, pod: Pod) -> None:
        """A routed veth pair, as Podwire's own: so that of two planes only the Services differ."""
        node, inside, name = self.space(pod.node), self.space(pod), f"p-{pod.number}"
        ip(
            node,
            f"link add {name} address {_NODE_MAC} type veth peer name eth0 netns {inside.name}",
            f"link set {name} up",
            *(f"route add {pod.address(family)} dev {name} {_source(pod.node, family)}" for family in FAMILIES),
        )
        lines = ["link set lo up", "link set eth0 up"]
        for family in FAMILIES:
            gateway = _GATEWAY[family]
            lines += [
                _address(f"{pod.address(family)}/{family.bits}", "eth0"),
                f"neigh add {gateway} lladdr {_NODE_MAC} dev eth0 nud permanent",
                f"route add {gateway} dev eth0",
                f"route add default via {gateway} dev eth0",
            ]
        ip(inside, *lines)
        mac = mac_of(inside)
        ip(node, *(f"neigh add {pod.address(family)} lladdr {mac} dev {name} nud permanent" for family in FAMILIES))

    def carry(self, node: Node) -> None:
        """Forwarding, the node's own address of its blocks, and the way to the other nodes' pods."""
        space = self.space(node)
        _set(space, "net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1")
        ip(space, *(_address(f"{node.own(family)}/{family.bits}", "lo") for family in FAMILIES))
        for other in self.nodes.values():
            if other != node:
                ip(space, *_ways_to(other, node))
                ip(self.space(other), *_ways_to(node, other))

    def _lead_to(self, node: Node) -> None:
        """Machines beside the cluster know the way to all pods; the client and the router know node one for all that
        is Services'."""
        for station in _BESIDE:
            ip(self.space(station), *_ways_to(node))
        for family in FAMILIES if node.number == ONE.number else ():
            services, *led_here = (
                f"route replace {range_[family]} via {node.address(family)}"
                for range_ in (SERVICE_RANGE, EXTERNAL_RANGE, BALANCER_RANGE)
            )
            ip(self.space(OUTSIDE), services, *led_here)
            ip(self.fabric, *led_here)

    def _plug_in(self, station: Node | Outside) -> None:
        space = self._spaces[station.name] = self._make_space(station.name)
        ip(
            self.fabric,
            f"link add {station.name} type veth peer name eth0 netns {space.name}",
            f"link set {station.name} master br0 up",
        )
        ip(space, "link set lo up", *_addresses(station), "link set eth0 up")


def mac_of(space: Space) -> str:
    listed = subprocess.run(
        ["ip", "-n", space.name, "-o", "link", "show", "eth0"], check=True, capture_output=True, text=True
    ).stdout.split()
    return listed[listed.index("link/ether") + 1]


def ip(space: Space, *lines: str) -> None:
    """Lines of ip(8) in a namespace."""
    done = subprocess.run(
        ["ip", "-n", space.name, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{space.name}: {done.stderr}"


def _ways_to(node: Node, whose: Node | None = None) -> list[str]:
    """`whose`: the node whose routes they are, if it is one."""
    return [
        f"route replace {node.block(family)} via {node.address(family)} {_source(whose, family)}" for family in FAMILIES
    ]


def _source(node: Node | None, family: Family) -> str:
    return "" if node is None else f"src {node.address(family)}"


def _addresses(station: Node | Outside) -> list[str]:
    return [_address(_on_fabric(station, family), "eth0") for family in FAMILIES]


def _on_fabric(station: Node | Outside, family: Family) -> str:
    return f"{station.address(family)}/{FABRIC[family].length}"


def _address(address: str, interface: str) -> str:
    # nodad: nobody else is there, and the address is needed at once.
    return f"address replace {address} dev {interface}" + (" nodad" if ":" in address else "")


def _set(space: Space, *settings: str) -> None:
    subprocess.run(["ip", "netns", "exec", space.name, "sysctl", "-qw", *settings], check=True)


@contextmanager
def topology() -> Iterator[Topology]:
    with spaces() as make_space:
        yield Topology(make_space)
