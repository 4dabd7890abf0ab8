"""Names and addresses of a lab's nodes, clients and ranges. Pure.

Invariants: the number of a node says all of its addresses. Two labs have the same ones, each behind its own fabric.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from podwire.model.addresses import (
    FAMILIES,
    IPV4,
    IPV6,
    Address,
    Family,
    Prefix,
    family_of,
    parse_address,
    parse_prefix,
    show_address,
)
from podwire.model.objects import PodKey

SERVICE_RANGES: dict[Family, Prefix] = {IPV4: parse_prefix("10.96.0.0/16"), IPV6: parse_prefix("fd00:96::/112")}
MOST_LINKS = 9
FABRIC: tuple[dict[Family, Prefix], ...] = tuple(
    {IPV4: parse_prefix(f"192.168.{number}.0/24"), IPV6: parse_prefix(f"fd00:{number}::/64")}
    for number in range(99, 99 - MOST_LINKS - 1, -1)
)
"""The networks of its links; clients are on the first. The last one is that of clients behind the router."""
BEHIND = MOST_LINKS
"""The link of clients that know no way but the router's."""
_POD_RANGES = {IPV4: parse_prefix("10.244.0.0/16"), IPV6: parse_prefix("fd00:244::/48")}
_POD_BLOCK = {IPV4: 24, IPV6: 64}

MOST_NODES = 200
_FIRST_CLIENT, _LAST_CLIENT, _ROUTER = 201, 250, 254
MTU = 1500

RUN = Path("/run/netns")
"""Where ip-netns(8) keeps names."""
LAB_NAME = re.compile(r"[a-z][a-z0-9]{0,14}")
"""No dash, so that no lab's namespaces begin as another's do."""
_LONGEST = 200  # of the 255 bytes that a file name has


class Station(NamedTuple):
    """A node or client on the fabric. `addresses` and `pod_blocks`: IPv4 first; a client has no blocks. `host`: where
    on its link it is, once it has moved from its own number's place."""

    name: str
    number: int
    host: int = 0
    link: int = 0

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(FABRIC[self.link][family].nth(self.host or self.number) for family in FAMILIES)

    @property
    def networks(self) -> tuple[tuple[Prefix, Address], ...]:
        return tuple(zip(FABRIC[self.link].values(), self.addresses, strict=True))

    @property
    def pod_blocks(self) -> tuple[Prefix, ...]:
        if self.number > MOST_NODES:
            return ()
        return tuple(
            Prefix(_POD_RANGES[family].nth(self.number << family.bits - _POD_BLOCK[family]), _POD_BLOCK[family])
            for family in FAMILIES
        )


def router(link: int) -> Station:
    """The fabric's own address on a link: the default gateway there. It knows the links, and nobody's pods."""
    return Station("router", _ROUTER, link=link)


def stations(nodes: int, links: int = 1) -> tuple[Station, ...]:
    """Spread over the links, one after the other."""
    return tuple(Station(f"node{number}", number, link=(number - 1) % links) for number in range(1, nodes + 1))


def next_client(taken: frozenset[int]) -> int | None:
    """The number of another client; None where the fabric is full."""
    return next((n for n in range(_FIRST_CLIENT, _LAST_CLIENT + 1) if n not in taken), None)


def next_host(nodes: Collection[Station]) -> int | None:
    """Where a node can move to; None where the fabric is full."""
    taken = {node.number for node in nodes} | {node.host for node in nodes}
    return next((n for n in range(1, MOST_NODES + 1) if n not in taken), None)


def ways_to_pods(nodes: Iterable[Station]) -> dict[str, str]:
    """Destination → gateway, for a client: each node's blocks by way of that node, or, where it is on another link, by
    way of a node on the client's own."""
    nodes = list(nodes)
    near = next((node for node in nodes if not node.link), None)
    return {
        str(block): show_address(gateway)
        for node in nodes
        if not node.link or near is not None
        for block, gateway in zip(node.pod_blocks, (near if node.link and near else node).addresses, strict=True)
    }


def ways_to_external(entry: Station, addresses: Iterable[Address]) -> dict[str, str]:
    """Destination → gateway: external IPs by way of one node; those on the fabric need none."""
    found = {}
    for address in addresses:
        family = family_of(address)
        if address not in FABRIC[0][family]:
            found[show_address(address)] = show_address(entry.addresses[FAMILIES.index(family)])
    return found


def on_fabric(address: str) -> bool:
    """Whether clients take it for a neighbour."""
    parsed = parse_address(address)
    return parsed in FABRIC[0][family_of(parsed)]


def labels_of(node: Station) -> dict[str, str]:
    return {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux"}


def node_object(node: Station, ready: bool, created: str) -> dict[str, Any]:
    """The Node as its kubelet and the controllers would have it. `created`: RFC 3339."""
    condition: Mapping[str, str] = {"type": "Ready", "status": "True" if ready else "Unknown"}
    blocks = [str(block) for block in node.pod_blocks]
    addresses = [{"type": "InternalIP", "address": show_address(address)} for address in node.addresses]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels_of(node), "creationTimestamp": created},
        "spec": {"podCIDR": blocks[0], "podCIDRs": blocks},
        "status": {
            "addresses": [*addresses, {"type": "Hostname", "address": node.name}],
            "conditions": [condition],
        },
    }


def fabric_space(lab: str) -> str:
    return f"pw-{lab}-fabric"


def station_space(lab: str, name: str) -> str:
    """A node's or client's namespace."""
    return f"pw-{lab}-{name}"


def pod_space(lab: str, pod: PodKey) -> str:
    """A namespace's name has no dot, so the first one ends it. What is too long for a file name ends in a hash."""
    name = f"pw-{lab}-pod-{pod.namespace}.{pod.name}"
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{sha256(name.encode()).hexdigest()[:12]}"


def path_of(space: str) -> Path:
    return RUN / space
