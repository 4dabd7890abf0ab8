"""To which rates a pod's traffic is kept, and how large the token buckets are for that. Pure.

Invariants: a bucket holds at least one packet of the pod's MTU, or nothing larger would ever pass. What waits for
tokens waits for some 50 ms and is dropped then, however large the burst: runtimes tell bursts of half a gigabyte.
"""

from typing import Any

from podwire.model.network import EgressKey, IngressKey, Limit
from podwire.model.objects import Attachment, Rate

ETHERNET = 14
"""Bytes before a packet's own."""
WAIT = 20
"""A queue holds a second's bytes divided by that …"""
LEAST_QUEUE = 128 << 10
"""… and so many: two segments as the kernel hands them on (GSO)."""
_TICK = 64
"""Nanoseconds (PSCHED_SHIFT)."""
_WORD = 0xFFFF_FFFF


def desired(link: str, it: Attachment, mtu: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    if it.bandwidth.ingress is not None:
        found[IngressKey(link)] = limit(it.bandwidth.ingress, it.index, mtu)
    if it.bandwidth.egress is not None and it.shaper:
        found[EgressKey(link)] = limit(it.bandwidth.egress, it.index, mtu, it.shaper)
    return found


def limit(it: Rate, index: int, mtu: int, through: int = 0) -> Limit:
    """A burst of more than 274 seconds counts as one of so many: the kernel's number ends there."""
    rate = it.rate // 8
    burst = max(it.burst // 8, mtu + ETHERNET)
    fill = min(-(-burst * 1_000_000_000 // (rate * _TICK)), _WORD)
    queue = min(rate // WAIT + LEAST_QUEUE, _WORD)
    return Limit(index, rate, queue, fill, through, mtu if through else 0)


def rate_of(it: Limit) -> Rate:
    """From what the kernel holds: what makes the same of it, but for a bit's time."""
    return Rate(it.rate * 8, it.fill * _TICK * it.rate * 8 // 1_000_000_000)
