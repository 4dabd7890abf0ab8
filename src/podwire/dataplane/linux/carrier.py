"""Waiting until an interface that has got its carrier sends what it is given.

Invariants: a veth pair has its carrier as soon as its second end is up, but the end that was up first goes on throwing
away what it is to send until the kernel's link watch has had its turn (net/core/link_watch.c). So long its operational
state is DOWN, LOWERLAYERDOWN, or still the UNKNOWN that a veth is born with, then UP (RFC 2863). Interfaces of other
kinds without a carrier of their own are UNKNOWN for good, and usable (netif_oper_up). Since Linux 6.8 (facd15dfd691)
whoever asks for that one interface gives the link watch its turn; an older kernel only tells when it has come. Nothing
is waited for where there is no carrier.
"""

import select
import time
from collections.abc import Collection
from struct import unpack_from

from podwire.dataplane import netlink
from podwire.dataplane.linux import links
from podwire.dataplane.linux import rtnetlink as rt
from podwire.dataplane.messages import attrs, u32, walk

PATIENCE = 1.0
"""Seconds for an older kernel's link watch, which usually takes less than a thousandth of that."""
_LINKS = (1,)  # RTNLGRP_LINK
_NO_COUNTERS = 8  # RTEXT_FILTER_SKIP_STATS
_LOWER_UP, _UNKNOWN, _OPERATING = 0x10000, b"\x00", b"\x06"  # IFF_LOWER_UP, IF_OPER_UNKNOWN, IF_OPER_UP


def silent(node: netlink.Socket, indexes: Collection[int]) -> Collection[int]:
    """Those interfaces of the node's that have a carrier and send nothing for PATIENCE."""
    waiting = [index for index in sorted(indexes) if _is_silent(node, index)]
    if not waiting:
        return waiting
    told, limit = netlink.Listener(netlink.ROUTE, _LINKS), time.monotonic() + PATIENCE
    try:
        while waiting := [index for index in waiting if _is_silent(node, index)]:
            if not select.select([told], [], [], max(0.0, limit - time.monotonic()))[0]:
                break
            told.datagrams()
    finally:
        told.close()
    return waiting


def _is_silent(node: netlink.Socket, index: int) -> bool:
    try:
        found = node.dump(rt.GETLINK, _asked(index), 0)
    except OSError:  # it is gone
        return False
    return any(unpack_from("=I", body, 8)[0] & _LOWER_UP and not _sends(body) for body in found)


def _asked(index: int) -> bytes:
    """Without its counters, which nobody wants to know."""
    return links.get_link(index) + u32(rt.IFLA_EXT_MASK, _NO_COUNTERS)


def _sends(body: bytes) -> bool:
    """Registering a veth comes before its carrier is taken away (veth_newlink), so UNKNOWN may be all it showed. The
    state is one of the first things that are told; the rest is looked at where that is not enough."""
    state = next((value for kind, value in walk(body, 16) if kind == rt.IFLA_OPERSTATE), None)
    return state == _OPERATING or (state == _UNKNOWN and links.kind_of(attrs(body, 16)) != b"veth")
