"""Cluster IPs and node ports, as an API server gives them. Pure.

Invariants: what a manifest asks for comes first, then what is held already, then the new ones in the order of their
names: so the result depends on the set of Services, not on the order of files, and a change elsewhere moves nobody. A
new number starts its search at a hash of the Service's name, above a band kept for numbers chosen by hand (KEP-3070
for addresses, KEP-3682 for node ports), so that the two seldom meet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from podwire.lab.forms import ServiceSpec, protocol
from podwire.model.addresses import FAMILIES, Address, Family, Prefix, family_of, show_address
from podwire.model.objects import Protocol, ServiceKey
from podwire.sources.fields import Invalid, read_address

NODE_PORTS = range(30000, 32768)
_PORTS_BY_HAND = 86
_ADDRESSES_BY_HAND = 256

HEADLESS = "None"
SINGLE, PREFER_DUAL, REQUIRE_DUAL = "SingleStack", "PreferDualStack", "RequireDualStack"
_POLICIES = (SINGLE, PREFER_DUAL, REQUIRE_DUAL)


class NotFree(Invalid):
    """A Service can't have what it asks for, because of others."""

    def __init__(self, key: ServiceKey, field: str, message: str) -> None:
        super().__init__(field, message)
        self.key = key


class PortKey(NamedTuple):
    """Whose node port: one of a Service's ports by its protocol and number; port 0 is its health check's."""

    service: ServiceKey
    protocol: Protocol
    port: int


class Held(NamedTuple):
    """What has been given out."""

    cluster_ips: Mapping[tuple[ServiceKey, Family], Address]
    node_ports: Mapping[PortKey, int]


NOTHING_HELD = Held({}, {})


class Claim(NamedTuple):
    """What one Service asks for: an address per family, chosen (`given`) or any (None)."""

    families: tuple[Family, ...]
    given: Mapping[Family, Address]
    node_ports: Mapping[PortKey, int | None]


def is_headless(spec: ServiceSpec) -> bool:
    return HEADLESS in (spec.cluster_ip, *(spec.cluster_ips or ()))


def families_of(spec: ServiceSpec) -> tuple[Family, ...]:
    """A Service's families, the first is its main one (KEP-563): IPv4 alone unless it asks for more.

    Raises Invalid.
    """
    policy = spec.ip_family_policy or SINGLE
    if policy not in _POLICIES:
        raise Invalid("spec.ipFamilyPolicy", f"expected one of {', '.join(_POLICIES)}, not {policy!r}")
    named = tuple(_family(name, position) for position, name in enumerate(spec.ip_families or ()))
    listed = tuple(family_of(address) for address in _given(spec))
    for field, found in (("ipFamilies", named), ("clusterIPs", listed)):
        if len(set(found)) != len(found):
            raise Invalid(f"spec.{field}", "expected at most one of each family")
        if len(found) > 1 and policy == SINGLE:
            raise Invalid("spec.ipFamilyPolicy", f"expected {PREFER_DUAL} or {REQUIRE_DUAL} beside two {field}")
    if named and listed and named[: len(listed)] != listed[: len(named)]:
        raise Invalid("spec.clusterIPs", f"expected the order of ipFamilies: {', '.join(map(str, named))}")
    first = max(named, listed, key=len) or FAMILIES[:1]
    if policy == SINGLE:
        return first
    return first + tuple(family for family in FAMILIES if family not in first)


def claim_of(key: ServiceKey, spec: ServiceSpec, ranges: Mapping[Family, Prefix]) -> Claim:
    """`ranges`: the cluster's service ranges. Raises Invalid for what no allocation could satisfy."""
    kind = spec.type or "ClusterIP"
    if kind == "ExternalName":
        return Claim((), {}, {})
    families = families_of(spec)
    given = {family_of(address): address for address in _given(spec)}
    for address in given.values():
        range_ = ranges[family_of(address)]
        if address not in range_ or address == range_.first:
            raise Invalid("spec.clusterIP", f"{show_address(address)} is not in the service range {range_}")
    return Claim(() if is_headless(spec) else families, given, _node_ports(key, spec, kind))


def allocate(claims: Mapping[ServiceKey, Claim], held: Held, ranges: Mapping[Family, Prefix]) -> Held:
    """An address and a node port for every claim. Raises NotFree."""
    services = sorted(claims, key=lambda key: (key.namespace, key.name))
    addresses = _assign(
        [
            _Wish((key, family), key, claims[key].given.get(family))
            for key in services
            for family in claims[key].families
        ],
        held.cluster_ips,
        lambda slot: _free_addresses(ranges[slot[1]], str(slot[0])),
        "clusterIP",
    )
    ports = _assign(
        [
            _Wish(port, key, None if number is None else (port.protocol, number))
            for key in services
            for port, number in sorted(claims[key].node_ports.items())
        ],
        {port: (port.protocol, number) for port, number in held.node_ports.items()},
        _free_ports,
        "ports",
    )
    return Held(addresses, {port: number for port, (_, number) in ports.items()})


class _Wish(NamedTuple):
    """One number wanted: for what, by which Service, and which one (None: any)."""

    slot: Any
    service: ServiceKey
    given: Any


def _assign(
    wishes: Sequence[_Wish], held: Mapping[Any, Any], candidates: Callable[[Any], Iterable[Any]], field: str
) -> dict[Any, Any]:
    owners: dict[Any, ServiceKey] = {}
    found: dict[Any, Any] = {}
    for wish in wishes:
        if wish.given in owners:
            raise NotFree(wish.service, f"spec.{field}", f"{_show(wish.given)} is {owners[wish.given]}'s already")
        if wish.given is not None:
            owners[wish.given], found[wish.slot] = wish.service, wish.given
    for wish in wishes:
        before = held.get(wish.slot)
        if before is not None and wish.slot not in found and before not in owners:
            owners[before], found[wish.slot] = wish.service, before
    for wish in wishes:
        if wish.slot not in found:
            free = next((value for value in candidates(wish.slot) if value not in owners), None)
            if free is None:
                raise NotFree(wish.service, f"spec.{field}", "none is free")
            owners[free], found[wish.slot] = wish.service, free
    return found


def _free_addresses(range_: Prefix, seed: str) -> Iterable[Address]:
    # The first address names the range, and the last of an IPv4 range would look like a broadcast.
    numbers = range(1, range_.count - 1)
    return map(range_.nth, _above(numbers, min(_ADDRESSES_BY_HAND, len(numbers) // 2), seed))


def _free_ports(slot: PortKey) -> Iterable[tuple[Protocol, int]]:
    seed = f"{slot.service}:{slot.protocol.name}:{slot.port}"
    return ((slot.protocol, number) for number in _above(NODE_PORTS, _PORTS_BY_HAND, seed))


def _show(value: Any) -> str:
    return show_address(Address(value)) if isinstance(value, bytes) else f"node port {value[1]}/{value[0].name}"


def _node_ports(key: ServiceKey, spec: ServiceSpec, kind: str) -> dict[PortKey, int | None]:
    balanced = kind == "LoadBalancer"
    if kind != "NodePort" and not (balanced and spec.allocate_load_balancer_node_ports in (None, True)):
        return {}
    wanted = {
        PortKey(key, protocol(port.protocol, f"spec.ports[{position}].protocol"), port.port): _node_port(
            port.node_port, f"spec.ports[{position}].nodePort"
        )
        for position, port in enumerate(spec.ports or ())
    }
    if balanced and spec.external_traffic_policy == "Local":
        wanted[PortKey(key, Protocol.TCP, 0)] = _node_port(spec.health_check_node_port, "spec.healthCheckNodePort")
    return wanted


def _node_port(number: int | None, path: str) -> int | None:
    if number and number not in NODE_PORTS:
        raise Invalid(path, f"expected {NODE_PORTS[0]} to {NODE_PORTS[-1]}, not {number}")
    return number or None


def _given(spec: ServiceSpec) -> list[Address]:
    """Addresses that the manifest chooses. Raises Invalid."""
    single, several = spec.cluster_ip, spec.cluster_ips or []
    if single and several and several[0] != single:
        raise Invalid("spec.clusterIPs", f"expected clusterIP {single} as its first")
    field = "clusterIPs" if several else "clusterIP"
    try:
        return [read_address(text) for text in several or [single or ""] if text and text != HEADLESS]
    except Invalid as error:
        raise Invalid(f"spec.{field}", f"{error.message} ({HEADLESS}: headless)") from None


def _family(name: object, position: int) -> Family:
    for family in FAMILIES:
        if family.name == name:
            return family
    raise Invalid(f"spec.ipFamilies[{position}]", f"expected IPv4 or IPv6, not {name!r}")


def _above(numbers: range, by_hand: int, seed: str) -> Iterable[int]:
    """All the numbers once: those above the band for numbers chosen by hand, from the one that the seed hashes to, and
    only then that band."""
    lower, upper = numbers[:by_hand], numbers[by_hand:]
    start = int.from_bytes(sha256(seed.encode()).digest()[:8], "big") % len(upper)
    yield from upper[start:]
    yield from upper[:start]
    yield from lower
