"""The MTU of the interface that holds the default route: that of the node's network where the node has no InternalIP.

Invariants: never a guess: 0 where there is no default route.
"""

from struct import unpack_from

from podwire.dataplane import netlink
from podwire.dataplane.linux import links
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import attrs
from podwire.model.addresses import FAMILIES

_RTA_OIF, _RTA_PRIORITY = 4, 6


def default_route_mtu() -> int:
    """In bytes; of the best default route, IPv4 before IPv6. Raises OSError."""
    there = netlink.Socket(netlink.ROUTE)
    try:
        told = links.by_index(there.dump(rt.GETLINK, links.get_links()))
        for family in FAMILIES:
            found: list[tuple[int, int]] = []
            for body in there.dump(rt.GETROUTE, bytes((family.number,)) + bytes(11)):
                seen = attrs(body, 12)
                if body[1] == 0 and body[4] == rt.MAIN_TABLE and _RTA_OIF in seen:
                    metric = unpack_from("=I", seen[_RTA_PRIORITY])[0] if _RTA_PRIORITY in seen else 0
                    found.append((metric, unpack_from("=I", seen[_RTA_OIF])[0]))
            if found:
                return int(unpack_from("=I", told[min(found)[1]][rt.IFLA_MTU])[0])
    finally:
        there.close()
    return 0
