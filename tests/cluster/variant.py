"""Which address families a cluster has, and the addresses that follow: all in namespaces, so the same for every run."""

from ipaddress import ip_network
from typing import NamedTuple

HOSTS = {4: "10.99.0.0/24", 6: "fd99::/64"}
PODS = {4: "10.244.0.0/16", 6: "fd00:244::/56"}
SERVICES = {4: "10.96.0.0/16", 6: "fd00:96::/112"}
_ROUTER, _FIRST_NODE, _DNS = 1, 0x11, 10


class Variant(NamedTuple):
    """`families`: 4 and 6, the primary one first (KEP-563)."""

    name: str
    families: tuple[int, ...]

    def joined(self, ranges: dict[int, str]) -> str:
        """As Kubernetes' own options take them."""
        return ",".join(ranges[family] for family in self.families)

    def router(self, family: int) -> str:
        """The control plane's address, and the gateway of all nodes."""
        return _nth(HOSTS[family], _ROUTER)

    def node(self, number: int, family: int) -> str:
        """`number` counts from 1."""
        return _nth(HOSTS[family], _FIRST_NODE + number - 1)

    def nodes_own(self, number: int) -> tuple[str, ...]:
        return tuple(self.node(number, family) for family in self.families)

    def routers(self) -> tuple[str, ...]:
        return tuple(map(self.router, self.families))

    def kubernetes(self) -> tuple[str, ...]:
        """Of the Service `kubernetes`: the first of each range (KEP-1880)."""
        return tuple(_nth(SERVICES[family], 1) for family in self.families)

    def dns(self) -> tuple[str, ...]:
        return tuple(_nth(SERVICES[family], _DNS) for family in self.families)

    def api_server(self) -> str:
        return f"https://{bracketed(self.router(self.families[0]))}:6443"


IPV4 = Variant("ipv4", (4,))
DUAL = Variant("dual", (4, 6))
IPV6_FIRST = Variant("ipv6-first", (6, 4))
VARIANTS = {variant.name: variant for variant in (IPV4, DUAL, IPV6_FIRST)}


def bracketed(address: str) -> str:
    """As in a URL (RFC 3986, 3.2.2)."""
    return f"[{address}]" if ":" in address else address


def _nth(network: str, number: int) -> str:
    return str(ip_network(network)[number])
