"""Whose an address is already, whatever pools say: nodes', pods' and cluster IPs. Pure.

Invariants: ranges are sorted and none overlaps another, so each question is one search; of two that overlap the first
by address, and of these the wider, is named.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from podwire.model.addresses import Address, AddressRange, Prefix
from podwire.model.objects import (
    Node,
    NodeKey,
    PodBlock,
    PodBlockKey,
    PodPool,
    PodPoolKey,
    ServiceCIDR,
    ServiceCIDRKey,
)

_Place = tuple[int, Address]
"""A family's size, and an address: in the order of both."""


class Taken(NamedTuple):
    """Ranges, each with whose it is in words that follow "it is"; `starts` beside them, to search in."""

    starts: tuple[_Place, ...] = ()
    ranges: tuple[tuple[AddressRange, str], ...] = ()

    def of(self, address: Address) -> str:
        """ "" where it is nobody's."""
        at = bisect_right(self.starts, (len(address), address)) - 1
        return self.ranges[at][1] if at >= 0 and address in self.ranges[at][0] else ""

    def within(self, given: AddressRange) -> Iterator[tuple[AddressRange, str]]:
        """What of a range is somebody's."""
        at = max(0, bisect_right(self.starts, (len(given.first), given.first)) - 1)
        for each, whose in self.ranges[at:]:
            if (len(each.first), each.first) > (len(given.last), given.last):
                return
            if len(each.first) == len(given.first) and each.last >= given.first:
                yield AddressRange(max(each.first, given.first), min(each.last, given.last)), whose

    def without(self, given: AddressRange) -> Iterator[AddressRange]:
        """What of a range is nobody's."""
        first = given.first
        for each, _ in self.within(given):
            if first < each.first:
                yield AddressRange(first, _moved(each.first, -1))
            if each.last == given.last:
                return
            first = _moved(each.last, 1)
        yield AddressRange(first, given.last)


NOBODYS = Taken()


def taken(
    nodes: Mapping[NodeKey, Node],
    pod_pools: Mapping[PodPoolKey, PodPool],
    pod_blocks: Mapping[PodBlockKey, PodBlock],
    service_cidrs: Mapping[ServiceCIDRKey, ServiceCIDR],
) -> Taken:
    found = [(AddressRange(it, it), f"an address of {key}") for key, node in nodes.items() for it in node.addresses]
    found += [_named(it, f"pod CIDR {it} of {key}") for key, node in nodes.items() for it in node.pod_cidrs]
    found += [_named(it, f"{it} of {key}") for key, pool in pod_pools.items() for it in pool.cidrs]
    found += [_named(key.cidr, str(key)) for key in pod_blocks]
    found += [_named(it, f"{it} of {key}") for key, value in service_cidrs.items() for it in value.prefixes]
    return _apart(found)


def _named(prefix: Prefix, words: str) -> tuple[AddressRange, str]:
    return AddressRange(prefix.first, prefix.last), f"in {words}"


def _apart(found: list[tuple[AddressRange, str]]) -> Taken:
    ranges: list[tuple[AddressRange, str]] = []
    for each, whose in sorted(found, key=_place):
        before = ranges[-1][0] if ranges else None
        if before is None or len(before.last) != len(each.first) or before.last < each.first:
            ranges.append((each, whose))
        elif each.last > before.last:
            ranges.append((AddressRange(_moved(before.last, 1), each.last), whose))
    return Taken(tuple((len(it.first), it.first) for it, _ in ranges), tuple(ranges))


def _place(it: tuple[AddressRange, str]) -> tuple[int, Address, int, str]:
    """By family and first address, the widest first."""
    found, whose = it
    return len(found.first), found.first, -int.from_bytes(found.last, "big"), whose


def _moved(address: Address, by: int) -> Address:
    return Address((int.from_bytes(address, "big") + by).to_bytes(len(address), "big"))
