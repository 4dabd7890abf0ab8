"""How long it takes to say who has which load balancer's address, by Service.

    python -m tests.bench.balancers ROUNDS FEW MANY

prints one line of JSON: microseconds for each Service of FEW and of MANY, by round: all of them new, and all of them
with their addresses as after a restart. As many Services are looked at in both: FEW of them again and again.
"""

import json
import sys
import time

from msgspec.structs import replace

from podwire.loadbalancer.allocation import allocate
from podwire.loadbalancer.pools import Pools, used
from podwire.model.addresses import IPV4, IPV6, parse_range
from podwire.model.balancers import AddressPool, AddressPoolKey, Request
from podwire.model.objects import Protocol, ServiceKey

Requests = dict[ServiceKey, Request]


def pools() -> Pools:
    """One for all, and one that chooses nobody of them."""
    ranges = (parse_range("10.0.0.0/16"), parse_range("fd00::/64"))
    return {
        AddressPoolKey("all"): AddressPool(ranges, avoid_buggy=True),
        AddressPoolKey("few"): AddressPool((parse_range("10.1.0.0/16"),), namespaces=("few",), priority=1),
    }


def new(count: int) -> Requests:
    ports = frozenset({(Protocol.TCP, 80), (Protocol.TCP, 443)})
    return {ServiceKey("shop", f"s{n}"): Request((IPV4, IPV6), ports, created=f"{n:06}") for n in range(count)}


def held(requests: Requests) -> Requests:
    grants = allocate(used(pools()), {}, requests)
    return {key: replace(it, holds=grants[key].addresses) for key, it in requests.items()}


def each(requests: Requests, times: int) -> float:
    """Microseconds for one Service."""
    known, began = pools(), time.perf_counter()
    for _ in range(times):
        allocate(used(known), {}, requests)
    return (time.perf_counter() - began) * 1e6 / len(requests) / times


def measure(rounds: int, few: int, many: int) -> dict[str, list[float]]:
    sizes = {"few": new(few), "many": new(many)}
    sizes |= {f"{name}_held": held(it) for name, it in sizes.items()}
    found: dict[str, list[float]] = {name: [] for name in sizes}
    for number in range(rounds):
        for name in sizes if number % 2 else reversed(sizes):
            found[name].append(each(sizes[name], max(1, many // len(sizes[name]))))
    return found


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:4]))))
