"""Waiting until something holds of a network, by the kernel's own word that the network has changed.

Invariants: the subscription stands before the first look, so no change is missed; nothing is asked again in between.
"""

import select
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from time import monotonic

from tests.kernel.rig import Space, entered

PATIENCE = 30.0
"""Seconds: a limit against hanging, never a measure."""
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
# Protocol and its groups (linux/rtnetlink.h, linux/netfilter/nfnetlink.h).
_LINK, _ADDRESS4, _ROUTE4, _ADDRESS6, _ROUTE6, _NFTABLES, _FLOW_GONE = 1, 5, 7, 9, 11, 7, 3
_GROUPS = ((0, (_LINK, _ADDRESS4, _ROUTE4, _ADDRESS6, _ROUTE6)), (12, (_NFTABLES, _FLOW_GONE)))


def until_none(left: Callable[[], Sequence[str]], spaces: Iterable[Space]) -> None:
    """Looks at what is left to come, and looks again whenever links, addresses, routes or nftables of one of these
    namespaces have changed, or connection tracking has lost an entry."""
    with ExitStack() as opened:
        poll = select.poll()
        heard = [opened.enter_context(it) for space in spaces for it in _subscriptions(space)]
        for it in heard:
            poll.register(it, select.POLLIN)
        deadline = monotonic() + PATIENCE
        while found := left():
            ready = poll.poll(max(0.0, deadline - monotonic()) * 1000)
            assert ready, "nothing changes any more, and still:\n" + "\n".join(found[:20])
            for it in heard:
                _drain(it)


def _subscriptions(space: Space) -> list[socket.socket]:
    found = []
    with entered(space):
        for protocol, groups in _GROUPS:
            it = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
            it.bind((0, 0))  # without an address of its own it is left out of broadcasts
            for group in groups:
                it.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
            found.append(it)
    return found


def _drain(it: socket.socket) -> None:
    while True:
        try:
            it.recv(65_536)
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: more was said than fits; a look comes anyway
            continue
