"""What of a network that is asked for can't be, whichever provider makes it. Pure.

Invariants: each mistake is one line that names the subnet, the field and the right form.
"""

from collections.abc import Iterator
from itertools import combinations

from podwire.model.addresses import IPV4, Address, Prefix, overlap, show_address
from podwire.model.tenants import Network, NetworkRequest, Subnet


def mistakes_of_request(request: NetworkRequest) -> tuple[str, ...]:
    if request.provider_network_id and request.subnets:
        return ("spec.subnets: expected none beside spec.providerNetworkID, whose network has its own",)
    if not request.provider_network_id and not request.subnets:
        return ("spec.subnets: expected at least one subnet, or spec.providerNetworkID",)
    return mistakes(Network("", "", tuple(Subnet(name, it.cidr, it.gateway) for name, it in request.subnets)))


def mistakes(network: Network) -> tuple[str, ...]:
    """Sorted."""
    found = [line for subnet in network.subnets for line in _of_subnet(subnet)]
    for one, other in combinations(sorted(network.subnets), 2):
        if one.name == other.name:
            found.append(f"subnet {one.name}: expected another name, since two have this one")
        elif overlap(one.cidr, other.cidr):
            found.append(f"subnet {other.name}: cidr {other.cidr}: expected one apart from {one.name}'s {one.cidr}")
    return tuple(sorted(found))


def _of_subnet(subnet: Subnet) -> Iterator[str]:
    where = f"subnet {subnet.name}"
    if room(subnet.cidr) < 2:
        yield f"{where}: cidr {subnet.cidr}: expected room for a gateway and a pod"
    if subnet.gateway is not None and not is_host(subnet.cidr, subnet.gateway):
        shown = show_address(subnet.gateway)
        yield f"{where}: gateway {shown}: expected an address of a host in {subnet.cidr}"
    for route in subnet.routes:
        if route.next_hop not in subnet.cidr:
            shown = show_address(route.next_hop)
            yield f"{where}: route to {route.destination}: next hop {shown}: expected an address in {subnet.cidr}"
        if route.destination.family != subnet.cidr.family:
            yield f"{where}: route to {route.destination}: expected a destination of {subnet.cidr.family}"


def is_host(cidr: Prefix, address: Address) -> bool:
    """Whether a host can have it: not the range's own address, nor IPv4's broadcast."""
    if address not in cidr:
        return False
    return address != cidr.first and not (cidr.family == IPV4 and address == cidr.nth(cidr.count - 1))


def room(cidr: Prefix) -> int:
    """How many hosts can have addresses of it."""
    return max(0, cidr.count - (2 if cidr.family == IPV4 else 1))
