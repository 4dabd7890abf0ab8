"""A client outside of the cluster, and a backend on another node: one namespace beyond the node's uplink."""

from dataclasses import dataclass

from podwire.model.addresses import parse_address, parse_prefix
from podwire.model.kinds import Object, ObjectKey
from podwire.model.objects import BackendPort, BackendSlice, Member, Node, NodeKey, Protocol, ServiceKey, SliceKey
from tests.kernel.rig import NODE, NODE_OBJECT, TARGET_PORT, Rig, Space, respond, sh

NODE_ADDRESSES = tuple(map(parse_address, ("192.0.2.1", "fd99::1")))
FAR = {4: "10.1.2.9", 16: "fd02::9"}
"""The backend on node two; it answers by the name `far`."""
NODES: dict[ObjectKey, Object] = {
    NODE: Node(NODE_OBJECT.pod_cidrs, NODE_ADDRESSES),
    NodeKey("two"): Node(
        (parse_prefix("10.1.2.0/24"), parse_prefix("fd02::/64")), tuple(map(parse_address, ("192.0.2.2", "fd99::2")))
    ),
}


@dataclass(frozen=True)
class Outside:
    """`client` has 192.0.2.9 and fd99::9, and sends everything else by the node; `two` is the other node."""

    client: Space
    two: Space


def connect(rig: Rig) -> Outside:
    """To be called in the node's namespace, before the agent starts."""
    world, two = rig.make_space("world"), rig.make_space("two")
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "br0", "type", "bridge")
    sh("ip", "link", "set", "br0", "up")
    for space, number, peer in ((world, 9, "up9"), (two, 2, "up2")):
        sh("ip", "link", "add", peer, "type", "veth", "peer", "name", "up0", "netns", space.name)
        sh("ip", "link", "set", peer, "master", "br0", "up")
        sh("ip", "-n", space.name, "link", "set", "lo", "up")
        sh("ip", "-n", space.name, "link", "set", "up0", "up")
        sh("ip", "-n", space.name, "addr", "add", f"192.0.2.{number}/24", "dev", "up0")
        sh("ip", "-n", space.name, "addr", "add", f"fd99::{number}/64", "dev", "up0", "nodad")
        for family, gateway in (("-4", "192.0.2.1"), ("-6", "fd99::1")):
            sh("ip", family, "-n", space.name, "route", "add", "default", "via", gateway)
    sh("ip", "addr", "add", "192.0.2.1/24", "dev", "br0")
    sh("ip", "addr", "add", "fd99::1/64", "dev", "br0", "nodad")
    for family, gateway in (("-4", "192.0.2.9"), ("-6", "fd99::9")):  # sockets want a route to what they dial
        sh("ip", family, "route", "add", "default", "via", gateway)
    sh("ip", "-n", two.name, "addr", "add", f"{FAR[4]}/32", "dev", "lo")
    sh("ip", "-n", two.name, "addr", "add", f"{FAR[16]}/128", "dev", "lo", "nodad")
    respond(two, "far", at=(FAR[4], FAR[16]))
    return Outside(world, two)


def members(name: str, *addresses: str, protocol: Protocol = Protocol.TCP) -> dict[ObjectKey, Object]:
    """The slice of a Service: 10.1.1.x and fd01::x are on node one, others on node two."""
    listed = (Member(parse_address(a), node="one" if a.startswith(("10.1.1.", "fd01:")) else "two") for a in addresses)
    key = ServiceKey("default", name)
    port = BackendPort("p", protocol, TARGET_PORT)
    return {SliceKey("default", f"{name}-1"): BackendSlice(key, (port,), tuple(listed))}
