"""A trace, from the question to the view: makes the table, sends, listens, removes the table, asks what rules say.

Invariants: one at a time, bounded in time; the table goes with the trace, whatever ends it, and is made and removed by
the commits that the watch of nftables knows as ours. What may take long is done elsewhere (a process, a thread).
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from podwire.dataplane import netlink
from podwire.dataplane.messages import Message
from podwire.dataplane.nftables import listing
from podwire.dataplane.nftables.layout import TABLE, keyword
from podwire.dataplane.nftables.wire import GETRULE, GETTABLE
from podwire.explain.packets import explain_packet
from podwire.explain.places import places
from podwire.model.addresses import FAMILIES, Family
from podwire.model.snapshot import Snapshot
from podwire.trace import events, flow, own, table, texts
from podwire.trace.asked import Asked
from podwire.trace.events import Packet
from podwire.trace.sender import Sender, sender
from podwire.trace.table import Probe
from podwire.trace.views import TraceView
from podwire.trace.words import Seen, told

_NO_OWNER = (errno.EINVAL, errno.EOPNOTSUPP)


class Busy(Exception):
    """Another trace is under way."""


class Tracer:
    """In the network namespace of the thread that makes it, with the rights of an agent."""

    def __init__(self, commit: Callable[[list[Message]], dict[int, int]]) -> None:
        """`commit`: as that of the nftables driver."""
        self._commit = commit
        self._socket = netlink.Socket(netlink.NETFILTER, reader=True)
        self._busy = False

    def close(self) -> None:
        self._socket.close()

    def sweep(self) -> None:
        """Removes what a killed agent's trace has left. Raises OSError."""
        for family in FAMILIES:
            if self._socket.dump(GETTABLE, table.request(family), 0):
                self._commit_or_raise(table.remove(family))

    async def trace(self, now: Snapshot, asked: Asked, patience: float, all_rules: bool = False) -> TraceView:
        """`patience`: seconds to wait for an answer. `all_rules`: the text of others' rules too let by. Raises
        Busy; LookupError where the pod is gone; OSError where the kernel refuses to tell."""
        if self._busy:
            raise Busy("another trace is under way: one at a time")
        self._busy = True
        try:
            with sender(asked.attachment, asked.to) as ready:
                seen = await self._seen(asked, ready, patience)
            handles = self._handles(asked.to.family, seen.packets or ())
        finally:
            self._busy = False
        found = await listing.texts(events.foreign(seen.packets or (), all_rules))
        return await asyncio.to_thread(_told, now, asked, seen, handles, found)

    async def _seen(self, asked: Asked, ready: Sender, patience: float) -> Seen:
        if ready.source is None:
            return Seen(None, [], None, await ready.send(patience), asked.link, {}, {})
        interface = asked.attachment.index if asked.attachment is not None else 0
        probe = Probe(ready.source, ready.port, asked.to, interface)
        with ExitStack() as opened:
            told = netlink.Listener(netlink.NETFILTER, (events.GROUP,))
            opened.callback(told.close)
            opened.enter_context(self._table(probe))
            answer = await ready.send(patience)
            found = flow.request(probe)
            entry = next((flow.entry(probe, body) for body in self._socket.dump(flow.GET, found, 0)), None)
            packets = _packets(probe, told)
        return Seen(probe, packets, entry, answer, asked.link, _interfaces(packets or []), {})

    def _handles(self, family: Family, packets: Iterable[Packet]) -> dict[str, list[int]]:
        chains = sorted({event.chain for packet in packets for event in packet.events if event.ours})
        return {chain: own.handles(self._socket.dump(GETRULE, own.request(family, chain))) for chain in chains}

    @contextmanager
    def _table(self, probe: Probe) -> Iterator[None]:
        self.sweep()
        try:
            self._commit_or_raise(table.make(probe))
        except OSError as error:
            if error.errno not in _NO_OWNER:
                raise
            self._commit_or_raise(table.make(probe, owned=False))
        try:
            yield
        finally:
            self.sweep()

    def _commit_or_raise(self, messages: list[Message]) -> None:
        errors = self._commit(messages)
        code = next((errors[at] for at in sorted(errors)), 0)
        if code:
            raise OSError(code, f"the table {table.TABLE}: {os.strerror(code)}")


def _packets(probe: Probe, told: netlink.Listener) -> list[Packet] | None:
    notices = told.drain()
    if notices is None:
        return None
    return events.packets(probe, (event for event in map(events.read, notices) if event is not None))


def _interfaces(packets: list[Packet]) -> dict[int, str]:
    found: dict[int, str] = {}
    for index in {index for packet in packets for e in packet.events for index in (e.came, e.goes)} - {0}:
        try:
            found[index] = socket.if_indextoname(index)
        except OSError:
            continue
    return found


def _told(
    now: Snapshot,
    asked: Asked,
    seen: Seen,
    handles: Mapping[str, list[int]],
    others: Mapping[tuple[str, str, str], str],
) -> TraceView:
    family = asked.to.family
    listings = {chain: texts.read(text) for chain, text in others.items()}
    listings |= {(keyword(family), TABLE, chain): own.listing(family, chain, held) for chain, held in handles.items()}
    why = explain_packet(now, asked.client, asked.to)
    return told(seen._replace(listings=listings), places(now), why, asked.source)
