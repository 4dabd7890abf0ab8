"""AddressPools to the model's values.

Invariants: as in `pod_pools.py`: pure, one direction, and what Podwire's users write is read strictly.
"""

from collections.abc import Sequence
from sys import intern

from msgspec import field

from podwire.model.addresses import AddressRange, parse_range, special_in
from podwire.model.balancers import AddressPool, AddressPoolKey, AnnouncedBy
from podwire.model.objects import Requirement
from podwire.sources.fields import (
    Invalid,
    check_apart,
    read_each,
    read_label,
    read_labels,
    read_members,
    read_name,
    read_time,
    shown,
)
from podwire.sources.kube_objects import LabelSelector, PoolMeta, Wire
from podwire.sources.pod_pools import read_selector


class AddressPoolSpec(Wire, frozen=True):
    addresses: list[str] | None = None
    auto_assign: bool | None = None
    avoid_buggy_ips: bool | None = field(default=None, name="avoidBuggyIPs")
    priority: int | None = None
    namespaces: list[str] | None = None
    namespace_selectors: list[LabelSelector] | None = None
    service_selectors: list[LabelSelector] | None = None
    announce: list[str] | None = None


class AddressPoolObject(Wire, frozen=True):
    metadata: PoolMeta
    spec: AddressPoolSpec


def pool_key(_: str, name: str) -> AddressPoolKey:
    """Raises Invalid."""
    return AddressPoolKey(intern(read_name(name, "metadata.name")))


def read_pool(thing: AddressPoolObject) -> tuple[AddressPoolKey, AddressPool]:
    """Raises Invalid."""
    spec = thing.spec
    ranges = tuple(read_each("spec.addresses", spec.addresses, _range))
    if not ranges:
        raise Invalid("spec.addresses", "expected at least one address range")
    check_apart("spec.addresses", ranges)
    priority = spec.priority or 0
    if priority < 0:
        raise Invalid("spec.priority", f"expected a number from 0, not {shown(priority)}")
    pool = AddressPool(
        ranges,
        spec.auto_assign is not False,
        bool(spec.avoid_buggy_ips),
        priority,
        tuple(sorted(set(read_each("spec.namespaces", spec.namespaces, lambda text: read_label(text, ""))))),
        read_selectors("spec.namespaceSelectors", spec.namespace_selectors),
        read_selectors("spec.serviceSelectors", spec.service_selectors),
        read_members("spec.announce", spec.announce, {it.value: it for it in AnnouncedBy}),
        read_labels(thing.metadata.labels),
        read_time(thing.metadata.creation_timestamp, "metadata.creationTimestamp"),
    )
    return pool_key("", thing.metadata.name), pool


def _range(text: str) -> AddressRange:
    try:
        found = parse_range(text)
    except ValueError as error:
        raise Invalid("", f"{error}; such as 192.0.2.0/28 or 192.0.2.10-192.0.2.19") from None
    if (others := special_in(found)) is not None:
        raise Invalid("", f"expected addresses that hosts can have; {found} has {others}")
    return found


def read_selectors(path: str, given: Sequence[LabelSelector] | None) -> tuple[tuple[Requirement, ...], ...]:
    """In the order in which they stand there. Raises Invalid."""
    return tuple(read_selector(f"{path}[{number}]", it) for number, it in enumerate(given or ()))
